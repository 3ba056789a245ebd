"""Survival for the runner: its data, network, batches, figures and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.console import Progress
from regard.data import Augmenter, Batch, Loader
from regard.data.feed import ImageFeed
from regard.errors import ConfigError
from regard.evaluation import run_over
from regard.evaluation.pixel_baseline import as_json, pixel_components
from regard.metrics import Comparison, Concordance, survival_figures
from regard.networks.base import Network
from regard.tasks.image_examples import choose_examples, explain_images
from regard.tasks.images import ImageTask
from regard.tasks.survival import folds
from regard.tasks.survival.clinical import Clinical, fit_cox, join
from regard.tasks.survival.curves import Curves, discrete_targets, make_edges
from regard.tasks.survival.data import SubjectDataset, read_subjects
from regard.tasks.survival.evaluation import SurvivalEvaluation, compare_risks, concordance_difference
from regard.tasks.survival.loss import SurvivalLoss, cox_loss, discrete_loss
from regard.tasks.survival.page import doubts, page
from regard.tasks.survival.predictor import RISK, SurvivalPredictor
from regard.tasks.survival.settings import BINS, EvalOptions
from regard.training import ALONE, World
from regard.weights import Checkpoint, Run, open_weights, save_checkpoint

STEPS_PER_EPOCH = 4
"""At least, of the default batch of Cox's loss; not ten, for risk sets to be large."""
SMALLEST_BATCH = 8
EVENTS_PER_BIN = 10
CLINICAL = "clinical.weight"
PIXEL_RIDGE = 0.1
"""Penalty of Cox's model of the pixels' components, as RIDGE of clinical columns; larger, since few may matter."""


class Task(ImageTask):
    name: ClassVar[str] = "survival"
    predictor_type = SurvivalPredictor
    best: ClassVar[Any] = ("loss", "min")
    headline: ClassVar[tuple[str, ...]] = ("c_index", "integrated_brier")
    from_scratch, plain, finetune = "survival", "survival_plain", "survival_finetune"
    world: World = ALONE

    @classmethod
    def open(cls, data: str | Path, config: Any, progress: Progress) -> SubjectDataset:
        return read_subjects(data, progress, config.data, config.model.fields().get("size"))

    @classmethod
    def outputs(cls, dataset: SubjectDataset, config: Any) -> int:
        """One log-hazard; or a hazard for each interval of time."""
        if config.task.loss == "cox":
            return 1
        return config.task.bins or int(np.clip(dataset.event.sum() // EVENTS_PER_BIN, 2, BINS))

    @classmethod
    def from_data(cls, config: Any, dataset: SubjectDataset) -> dict[str, Any]:
        """As for other images, but nothing that changes the scale: a risk may depend on the size of something."""
        values = super().from_data(config, dataset)
        return values | {"crop": "shift" if values["crop"] == "resized" else values["crop"], "zoom": 0.0}

    def prepare(self, progress: Progress, about: dict[str, Any] | None, folder: Path | None) -> None:
        """Ranks of times or intervals, clinical columns, and the horizon, from the training set."""
        super().prepare(progress, about, folder)
        dataset, train = self.dataset, self.job.part("train")
        time, event, outputs = dataset.time, dataset.event, self.outputs(dataset, self.config)
        died, self.clinical = time[train][event[train]], None
        horizon = self.config.task.horizon or float(np.median(died)) or float(time[train].max())
        edges: tuple[float, ...] = ()
        if self.config.task.loss == "cox":
            ranks = np.unique(time, return_inverse=True)[1]  # exact in float32, so that ties stay ties
            packed = np.stack([ranks, event], axis=1)
        else:
            edges = make_edges(time[train], event[train], outputs)
            packed = np.concatenate(discrete_targets(time, event, edges), axis=1)
        self.curves, self.targets = Curves(self.config.task.loss, horizon, edges), torch.from_numpy(packed).float()
        self.features = torch.zeros(len(dataset), 0)
        if dataset.clinical:
            self.clinical = Clinical.fit(dataset.clinical, train, dataset.name)
            encoded = self.clinical.encode(dataset.clinical)
            self.coefficients = fit_cox(encoded[train], time[train], event[train])
            self.features = torch.from_numpy(encoded).float()

    def assemble(self, network: Network) -> Network:
        if self.clinical is None:
            return network
        return join(network, self.coefficients, self.outputs(self.dataset, self.config))

    def adapt(self) -> None:
        super().adapt()
        if self.clinical is not None:  # part of the head, which trains whatever is frozen
            self.model.clinical.requires_grad_(True)

    def batch_settings(self, progress: Progress) -> dict[str, Any]:
        """Of Cox's loss a larger part of the training set than otherwise."""
        usual, count = self.config.data.batch_size, len(self.job.part("train"))
        if self.config.task.loss != "cox" or usual == "auto" or self.job.origins["batch_size"] == "flag":
            return super().batch_settings(progress)
        return {"batch_size": min(usual, max(SMALLEST_BATCH, count // STEPS_PER_EPOCH))}

    def feed(self, world: World) -> ImageFeed:
        self.world = world
        return super().feed(world)

    @property
    def objective(self) -> SurvivalLoss:
        options = self.config.task
        rows = -(-self.config.data.batch_size // self.world.size) if self.world.size > 1 else 0
        return SurvivalLoss(options.loss, options.ties or "efron", self.world, rows + rows % 2)

    def class_names(self) -> tuple[str, ...]:
        if self.config.task.loss == "cox":
            return (RISK,)
        starts = (0.0, *self.curves.edges)
        return tuple(f"{start:g} to {end:g}" for start, end in zip(starts, self.curves.edges, strict=False))

    def details(self) -> dict[str, Any]:
        return {"columns": list(self.dataset.columns), "curves": self.curves.to_json()}

    def checkpoint(self, progress: dict[str, Any], weights: dict[str, Tensor]) -> Checkpoint:
        """The image's network; the effect of clinical columns is a few numbers beside it."""
        made = super().checkpoint(progress, {name: t for name, t in weights.items() if name != CLINICAL})
        if self.clinical is None:
            return made
        rows = tuple(map(tuple, weights[CLINICAL].double().tolist()))
        return replace(made, details=made.details | {"clinical": replace(self.clinical, weight=rows).to_json()})

    def blank(self, count: int) -> Batch:
        zeros = torch.zeros(count, self.images.channels, *self.images.size, device=self.device)
        own = torch.zeros(count, self.targets.shape[1] + self.features.shape[1], device=self.device)
        return Batch(*self.augmenter().named(zeros, own))

    def augmenter(self) -> Augmenter:
        config, prepared = self.config, self.preparation
        return SurvivalAugmenter(
            config.augment, config.general.seed, prepared.mean, prepared.std, 0, *self.phases(), self.window(),
            targets=self.targets, features=self.features, cox=config.task.loss == "cox",
        )  # fmt: skip

    def validate(self, model: nn.Module, loader: Loader, tick: Any, world: World) -> dict[str, float]:
        """Loss and C-index of the whole split: of several processes each has a part, and gets those of the others."""
        features = self.features.to(self.device)

        def answer(x: Tensor, numbers: Tensor) -> Tensor:
            beside = {"clinical": features[numbers.to(self.device)]} if self.clinical else {}
            return model(x, **beside, class_token_only=True).logits.float()

        logits, _, index = run_over(model, answer, loader, self.preparation, self.device, tick)
        whole = np.zeros((len(self.dataset), logits.shape[1] + 1))
        whole[index] = np.c_[logits, np.ones(len(index))]
        whole = np.array(world.sums(whole.ravel().tolist())).reshape(whole.shape)
        there = np.flatnonzero(whole[:, -1])
        logits, own = torch.from_numpy(whole[there, :-1]), self.targets[there]
        if self.config.task.loss == "cox":
            loss = cox_loss(logits[:, 0], own[:, 0], own[:, 1], self.config.task.ties or "efron")
        else:
            loss = discrete_loss(logits, *own.double().chunk(2, dim=1))
        ranked = Concordance(self.dataset.time[there], self.dataset.event[there])
        return {"loss": float(loss), "c_index": ranked.of(self.curves.risk(logits.numpy()))}

    def trained(self, run: Run) -> SurvivalPredictor:
        """The best weights; the baseline of their survival curves, from the training set, is added to the file."""
        checkpoint = open_weights(run.path)[0]
        predictor, loader = SurvivalPredictor(checkpoint, self.device), self.loader("train")
        try:
            logits, index = all_logits(predictor, self.dataset, loader, lambda *_: None)
        finally:
            loader.close()
        self.curves = predictor.curves.fit(logits, self.dataset.time[index], self.dataset.event[index])
        details = checkpoint.details | {"curves": self.curves.to_json()}
        save_checkpoint(run.checkpoint(), replace(checkpoint, details=details))
        return SurvivalPredictor(replace(checkpoint, details=details), self.device)

    @classmethod
    def measure(
        cls, predictor: SurvivalPredictor, dataset: SubjectDataset, loader: Loader, tick: Any
    ) -> SurvivalEvaluation:
        logits, index = all_logits(predictor, dataset, loader, tick)
        keys = [dataset.key(int(i)) for i in index]
        time, event = dataset.time[index], dataset.event[index]
        return SurvivalEvaluation.of(predictor.curves, keys, index, time, event, logits)

    def extra_summary(self, result: SurvivalEvaluation) -> dict[str, Any]:
        """What Cox's model scores of the clinical columns alone, and of raw pixels; and how much the image adds."""
        return self._pixel_baseline(result) | self._clinical_baseline(result)

    def _pixel_baseline(self, result: SurvivalEvaluation) -> dict[str, Any]:
        train, made = self.job.part("train"), None
        if self.config.task.pixel_baseline:
            made = pixel_components(self.images, train, result.index.tolist())
        if made is None:
            return {}
        known, asked = made
        risk = asked @ fit_cox(known, self.dataset.time[train], self.dataset.event[train], PIXEL_RIDGE)
        figures = survival_figures(result.time, result.event, risk, None, np.zeros(0), self.curves.horizon)
        name = f"Cox’s model of {known.shape[1]} principal components"
        return {"pixel_baselines": as_json({name: {"c_index": figures["c_index"]}})}

    def _clinical_baseline(self, result: SurvivalEvaluation) -> dict[str, Any]:
        if self.clinical is None:
            return {}
        risk = self.features.double().numpy()[result.index] @ self.coefficients
        grid, horizon = np.zeros(0), self.curves.horizon
        alone = survival_figures(result.time, result.event, risk, None, grid, horizon)["c_index"]
        added, p = concordance_difference(result.time, result.event, risk, result.risk)
        coefficients = dict(zip(self.clinical.features, self.coefficients.tolist(), strict=True))
        return {
            "clinical_only": {"c_index": alone._asdict(), "coefficients": coefficients},
            "image_adds": added._asdict() | {"p": p},
        }

    def explain(self, run: Run, trained: SurvivalPredictor, result: SurvivalEvaluation, progress: Progress) -> None:
        chosen = choose_examples(
            result.examples(), self.config.general.explain, lambda n: self.dataset.digests[result.index[n]]
        )
        words = {True: "event at", False: "censored at"}
        truth = [f"{words[bool(result.event[n])]} {result.time[n]:g}" for n in chosen]
        samples = [(int(result.index[n]), result.keys[n], text) for n, text in zip(chosen, truth, strict=True)]
        explain_images(run, trained, self.images, samples, progress)

    page = staticmethod(page)
    pools: ClassVar[bool] = True

    @classmethod
    def fold_settings(cls, dataset: SubjectDataset, index: list[int], config: Any) -> dict[str, Any]:
        """One horizon for all folds: predicted survival at different times could not be added up."""
        died = dataset.time[index][dataset.event[index]]
        median = float(np.median(died)) if len(died) else 0.0
        return {"horizon": median} if config.task.horizon is None and median > 0 else {}

    pool = staticmethod(folds.pool)
    pool_page = staticmethod(folds.page)
    doubts = staticmethod(doubts)

    @classmethod
    def open_for(
        cls, predictor: SurvivalPredictor, data: str | Path, config: Any, progress: Progress
    ) -> SubjectDataset:
        """The columns of time and event may be called otherwise elsewhere; those joined to the image may not."""
        if config.data.clinical_columns != predictor.column_names[2:]:
            names = ", ".join(predictor.column_names[2:]) or "none"
            raise ConfigError(f"the clinical columns of the run are: {names}", do="leave --clinical out")
        return cls.open(data, config, progress)

    @classmethod
    def evaluate_on(
        cls, predictor: SurvivalPredictor, dataset: SubjectDataset, index: list[int], options: EvalOptions,
        progress: Progress,
    ) -> SurvivalEvaluation:  # fmt: skip
        if options.horizon is not None:
            predictor.curves = replace(predictor.curves, horizon=options.horizon)
        return super().evaluate_on(predictor, dataset, index, options, progress)

    @classmethod
    def compare(
        cls, first: Sequence[Mapping[str, str]], second: Sequence[Mapping[str, str]], data: dict[str, Any]
    ) -> dict[str, Comparison]:
        return compare_risks(first, second)


class SurvivalAugmenter(Augmenter):
    """Images with their clinical features, and what is to be predicted of each."""

    def __init__(self, *arguments: Any, targets: Tensor, features: Tensor, cox: bool):
        super().__init__(*arguments)
        self.beside, self.width, self.cox = torch.cat([targets, features], dim=1), targets.shape[1], cox

    def targets(self, labels: Tensor, numbers: Tensor, epoch: int) -> Tensor:
        return self.beside[numbers].to(labels.device)

    def named(self, x: Tensor, targets: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        wanted, features = targets[:, : self.width], targets[:, self.width :]
        inputs = {"image": x} | ({"clinical": features} if features.shape[1] else {})
        parts = wanted.unbind(1) if self.cox else wanted.chunk(2, dim=1)
        return inputs, dict(zip(("rank", "event") if self.cox else ("at_risk", "died"), parts, strict=True))


def all_logits(
    predictor: SurvivalPredictor, dataset: SubjectDataset, loader: Loader, tick: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Logits (N, outputs) of everything the loader gives, clinical columns included, and the samples' numbers."""

    def answer(x: Tensor, _: Tensor) -> Tensor:
        return predictor.answers(predictor.model(x, class_token_only=True))

    logits, _, index = run_over(predictor.model, answer, loader, predictor.preparation, predictor.device, tick)
    logits = logits.astype(np.float64)
    if predictor.clinical is not None:
        logits += predictor.clinical.effect(dataset.clinical)[index]
    return logits, index
