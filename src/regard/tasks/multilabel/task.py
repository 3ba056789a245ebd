"""Several labels for the runner: their data, network, batches, figures and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.console import Progress
from regard.data import Augmenter, Batch, Loader
from regard.data.dataset import UNUSED
from regard.errors import ConfigError, counted
from regard.evaluation import run_over
from regard.evaluation.pixel_baseline import as_json, pixel_labels
from regard.metrics import Comparison
from regard.tasks.image_examples import explain_images
from regard.tasks.images import ImageTask
from regard.tasks.multilabel import folds
from regard.tasks.multilabel.data import LabelDataset, read_labels
from regard.tasks.multilabel.evaluation import LabelsEvaluation, compare_labels, doubts, label_auroc
from regard.tasks.multilabel.loss import LabelsEntropy, log_probabilities
from regard.tasks.multilabel.page import page
from regard.tasks.multilabel.predictor import LabelsPredictor, output_names
from regard.tasks.multilabel.settings import label_names
from regard.training import World
from regard.weights import Run


class Task(ImageTask):
    name: ClassVar[str] = "multilabel"
    predictor_type = LabelsPredictor
    best: ClassVar[Any] = ("auroc", "max")
    from_scratch, plain, finetune = "multilabel", "multilabel_plain", "multilabel_finetune"

    @property
    def headline(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("auroc", *(f"auroc_{label}" for label, _ in self.dataset.labels))

    @classmethod
    def open(cls, data: str | Path, config: Any, progress: Progress) -> LabelDataset:
        return read_labels(data, progress, config.data, config.model.fields().get("size"))

    @classmethod
    def outputs(cls, dataset: LabelDataset, config: Any) -> int:
        return len(output_names(dataset.labels))

    @classmethod
    def split(cls, dataset: LabelDataset, config: Any, given: list[str | None] | None = None) -> tuple[list[str], str]:
        """As for one label, by combinations of labels; images without any are left out."""
        splits, note = super().split(dataset, config, given)
        bare = dataset.unlabelled
        if bare.any():
            splits = [UNUSED if without else name for name, without in zip(splits, bare, strict=True)]
            note += f"; {counted(int(bare.sum()), 'images')} without any label left out"
            dataset.require_trainable(splits)
        return splits, note

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(classes) for _, classes in self.dataset.labels)

    def prepare(self, progress: Progress, about: dict[str, Any] | None, folder: Path | None) -> None:
        """Target probabilities of every image: zeros where a label is missing."""
        super().prepare(progress, about, folder)
        codes = torch.from_numpy(self.dataset.codes)
        parts = [
            (codes[:, n, None] == torch.arange(size)).float() for n, size in enumerate(self.sizes)
        ]  # -1 is no class
        self.wanted = torch.cat(parts, dim=1)

    @property
    def objective(self) -> LabelsEntropy:
        train, options, weights = self.wanted[self.job.part("train")], self.config.task, None
        if options.class_weights == "balanced":
            counts = train.sum(0).split(self.sizes)
            weights = torch.cat([own.sum() / (len(own) * own) for own in counts]).to(self.device)
        known = float(train.sum() / (len(train) * len(self.sizes)))
        return LabelsEntropy(self.sizes, known, options.label_smoothing, weights)

    def class_names(self) -> tuple[str, ...]:
        return output_names(self.dataset.labels)

    def details(self) -> dict[str, Any]:
        return {"labels": [[label, list(classes)] for label, classes in self.dataset.labels]}

    def blank(self, count: int) -> Batch:
        zeros = torch.zeros(count, self.images.channels, *self.images.size, device=self.device)
        return Batch({"image": zeros}, {"probabilities": torch.zeros(count, sum(self.sizes), device=self.device)})

    def augmenter(self) -> Augmenter:
        config, prepared = self.config, self.preparation
        return LabelsAugmenter(
            config.augment, config.general.seed, prepared.mean, prepared.std, 0, *self.phases(), self.window(),
            wanted=self.wanted,
        )  # fmt: skip

    def validate(self, model: nn.Module, loader: Loader, tick: Any, world: World) -> dict[str, float]:
        """Loss and AUROCs of the whole split: of several processes each has a part, and gets those of the others."""

        def answer(x: Tensor, _: Tensor) -> Tensor:
            return log_probabilities(model(x, class_token_only=True), self.sizes)

        logs, _, index = run_over(model, answer, loader, self.preparation, self.device, tick)
        whole = np.zeros((len(self.dataset), logs.shape[1] + 1))
        whole[index] = np.c_[logs, np.ones(len(index))]
        whole = np.array(world.sums(whole.ravel().tolist())).reshape(whole.shape)
        there = np.flatnonzero(whole[:, -1])
        logs, codes, wanted = whole[there, :-1], self.dataset.codes[there], self.wanted.numpy()[there]
        parts = np.split(logs, np.cumsum(self.sizes)[:-1], axis=1)
        names = [f"auroc_{label}" for label, _ in self.dataset.labels]
        areas = {name: label_auroc(own, codes[:, n]) for n, (name, own) in enumerate(zip(names, parts, strict=True))}
        mean = float(np.nanmean(list(areas.values())))
        return {"auroc": mean, "loss": float(-(wanted * logs).sum() / wanted.sum())} | areas

    @classmethod
    def measure(cls, predictor: LabelsPredictor, dataset: LabelDataset, loader: Loader, tick: Any) -> LabelsEvaluation:
        def answer(x: Tensor, _: Tensor) -> Tensor:
            return predictor.answers(predictor.model(x, class_token_only=True))

        outputs, _, index = run_over(predictor.model, answer, loader, predictor.preparation, predictor.device, tick)
        probs = np.split(outputs.astype(np.float64), np.cumsum(predictor.sizes)[:-1], axis=1)
        keys = [dataset.key(int(i)) for i in index]
        return LabelsEvaluation.of(predictor.labels, keys, index, dataset.codes[index], list(probs))

    def extra_summary(self, result: LabelsEvaluation) -> dict[str, Any]:
        """What simple models make of the same images."""
        if not self.config.task.pixel_baseline:
            return {}
        codes, sizes = self.dataset.codes, self.sizes
        each = pixel_labels(self.images, self.job.part("train"), result.index.tolist(), codes, sizes)
        baselines = {
            name: LabelsEvaluation.of(result.labels, result.keys, result.index, result.codes, probs).figures
            for name, probs in each.items()
        }
        kept = {name: {k: f for k, f in own.items() if k.startswith("auroc")} for name, own in baselines.items()}
        return {"pixel_baselines": as_json(kept)}

    def explain(self, run: Run, trained: LabelsPredictor, result: LabelsEvaluation, progress: Progress) -> None:
        """As many images of each label as of the others; the map is that of the label's predicted class."""
        digests = [self.dataset.digests[int(i)] for i in result.index]
        chosen, seen = list[tuple[int, str]](), set[object]()
        waiting = [iter(own) for own in result.examples()]
        for _ in range(self.config.general.explain):
            for (label, _), own in zip(result.labels, waiting, strict=True):
                fresh = next((n for n in own if digests[n] not in seen), None)
                if fresh is not None and len(chosen) < self.config.general.explain:
                    chosen.append((fresh, label))
                    seen.add(digests[fresh])
        samples = []
        for n, _ in chosen:
            known = zip(result.labels, self.dataset.texts(int(result.index[n])), strict=True)
            samples.append(
                (
                    int(result.index[n]),
                    result.keys[n],
                    ", ".join(f"{label}={text}" for (label, _), text in known if text),
                )
            )
        explain_images(run, trained, self.images, samples, progress, [label for _, label in chosen])

    page = staticmethod(page)
    pools: ClassVar[bool] = True
    pool = staticmethod(folds.pool)
    pool_page = staticmethod(folds.page)
    fold_doubts = staticmethod(folds.describe_rare)
    doubts = staticmethod(doubts)

    @classmethod
    def open_for(cls, predictor: LabelsPredictor, data: str | Path, config: Any, progress: Progress) -> LabelDataset:
        own = tuple(label for label, _ in predictor.labels)
        if label_names(config.data) != own:
            raise ConfigError(f"the run predicts {', '.join(own)}", do="leave --label-column out")
        return read_labels(data, progress, config.data, config.model.fields().get("size"), predictor.labels)

    @classmethod
    def overview(cls, figures: Sequence[str]) -> Sequence[str]:
        return [name for name in figures if name.startswith("auroc_")] or figures[:1]

    @classmethod
    def compare(
        cls, first: Sequence[Mapping[str, str]], second: Sequence[Mapping[str, str]], data: dict[str, Any]
    ) -> dict[str, Comparison]:
        return compare_labels(first, second, data["labels"])


class LabelsAugmenter(Augmenter):
    """Images with the probabilities of their labels; mixup mixes these too, and a missing label stays missing."""

    def __init__(self, *arguments: Any, wanted: Tensor):
        super().__init__(*arguments)
        self.wanted = wanted

    def targets(self, labels: Tensor, numbers: Tensor, epoch: int) -> Tensor:
        return self.wanted[numbers].to(labels.device)
