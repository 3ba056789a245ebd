"""Regression for the runner: its data, network, batches, figures and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.console import Progress
from regard.data import Augmenter, Batch, Loader
from regard.errors import ConfigError, DataError
from regard.evaluation import run_over
from regard.evaluation.pixel_baseline import as_json, pixel_numbers
from regard.metrics import Comparison
from regard.tasks.image_examples import choose_examples, explain_images
from regard.tasks.images import ImageTask
from regard.tasks.regression import folds
from regard.tasks.regression.data import NumberDataset, read_numbers
from regard.tasks.regression.evaluation import NumberEvaluation, compare_numbers
from regard.tasks.regression.loss import NumberError
from regard.tasks.regression.page import doubts, page
from regard.tasks.regression.predictor import Estimator
from regard.training import World
from regard.weights import Run


class Task(ImageTask):
    name: ClassVar[str] = "regression"
    predictor_type = Estimator
    best: ClassVar[Any] = ("loss", "min")
    from_scratch, plain, finetune = "regression", "regression_plain", "regression_finetune"

    @property
    def headline(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        suffixes = [f"_{name}" for name in self.dataset.columns] if len(self.dataset.columns) > 1 else [""]
        return tuple(f"{measure}{suffix}" for suffix in suffixes for measure in ("mae", "r2"))

    @classmethod
    def open(cls, data: str | Path, config: Any, progress: Progress) -> NumberDataset:
        return read_numbers(data, config.data.columns, progress, config.data, config.model.fields().get("size"))

    @classmethod
    def outputs(cls, dataset: NumberDataset, config: Any) -> int:
        return len(dataset.columns)

    @classmethod
    def from_data(cls, config: Any, dataset: NumberDataset) -> dict[str, Any]:
        """As for other images, but volumes keep their scale: a number may depend on the size of something."""
        return super().from_data(config, dataset) | {"zoom": 0.0}

    def prepare(self, progress: Progress, about: dict[str, Any] | None, folder: Path | None) -> None:
        """The mean and deviation of the training numbers: the network learns them standardised."""
        super().prepare(progress, about, folder)
        train = self.dataset.values[self.job.part("train")]
        self.mean, self.std = train.mean(0), train.std(0)
        for name, spread in zip(self.dataset.columns, self.std, strict=True):
            if not spread > 0:
                raise DataError(f"{name} is the same number everywhere", where=self.dataset.name)
        self.standardised = torch.from_numpy((self.dataset.values - self.mean) / self.std).float()

    @property
    def objective(self) -> NumberError:
        return NumberError(self.config.task.loss, self.config.task.huber_delta)

    def class_names(self) -> tuple[str, ...]:
        return self.dataset.columns

    def details(self) -> dict[str, Any]:
        return {"mean": self.mean.tolist(), "std": self.std.tolist()}

    def blank(self, count: int) -> Batch:
        shape, outputs = (self.images.channels, *self.images.size), len(self.dataset.columns)
        zeros = torch.zeros(count, *shape, device=self.device), torch.zeros(count, outputs, device=self.device)
        return Batch({"image": zeros[0]}, {"values": zeros[1]})

    def augmenter(self) -> Augmenter:
        config, prepared = self.config, self.preparation
        return NumberAugmenter(
            config.augment, config.general.seed, prepared.mean, prepared.std, 0, *self.phases(), self.window(),
            values=self.standardised,
        )  # fmt: skip

    def validate(self, model: nn.Module, loader: Loader, tick: Any, world: World) -> dict[str, float]:
        def answer(x: Tensor, _: Tensor) -> Tensor:
            return model(x, class_token_only=True).logits.float()

        predicted, _, index = run_over(model, answer, loader, self.preparation, self.device, tick)
        wanted, objective = self.standardised[torch.from_numpy(index)], self.objective
        lost = float(objective.error(torch.from_numpy(predicted), wanted)) * len(index)
        errors = np.abs(predicted - wanted.numpy()).sum(0) * self.std
        total, *sums, count = world.sums([lost, *errors.tolist(), len(index)])
        maes = {f"mae_{name}": value / count for name, value in zip(self.dataset.columns, sums, strict=True)}
        return {"loss": total / count} | maes

    @classmethod
    def measure(cls, predictor: Estimator, dataset: NumberDataset, loader: Loader, tick: Any) -> NumberEvaluation:
        def answer(x: Tensor, _: Tensor) -> Tensor:
            return predictor.answers(predictor.model(x, class_token_only=True))

        predicted, _, index = run_over(predictor.model, answer, loader, predictor.preparation, predictor.device, tick)
        keys, truth = [dataset.key(int(i)) for i in index], dataset.values[index]
        return NumberEvaluation.of(predictor.classes, keys, index, truth, predicted.astype(np.float64))

    def extra_summary(self, result: NumberEvaluation) -> dict[str, Any]:
        """What always giving the training mean would score, and what simple models make of the same images."""
        errors = np.abs(self.dataset.values[result.index] - self.mean).mean(0).tolist()
        made: dict[str, Any] = {"mean_error": dict(zip(self.dataset.columns, errors, strict=True))}
        if not self.config.task.pixel_baseline:
            return made
        guesses = pixel_numbers(self.images, self.job.part("train"), result.index.tolist(), self.dataset.values)
        baselines = {
            name: NumberEvaluation.of(result.columns, result.keys, result.index, result.truth, guess).figures
            for name, guess in guesses.items()
        }
        return made | {"pixel_baselines": as_json(baselines)}

    def explain(self, run: Run, trained: Estimator, result: NumberEvaluation, progress: Progress) -> None:
        chosen = choose_examples(
            result.examples(), self.config.general.explain, lambda n: self.dataset.digests[result.index[n]]
        )
        truth = [", ".join(f"{value:.4g}" for value in result.truth[n]) for n in chosen]
        samples = [(int(result.index[n]), result.keys[n], text) for n, text in zip(chosen, truth, strict=True)]
        explain_images(run, trained, self.images, samples, progress)

    page = staticmethod(page)
    doubts = staticmethod(doubts)
    pools: ClassVar[bool] = True
    pool = staticmethod(folds.pool)
    pool_page = staticmethod(folds.page)

    @classmethod
    def open_for(cls, predictor: Estimator, data: str | Path, config: Any, progress: Progress) -> NumberDataset:
        if config.data.columns != predictor.classes:
            raise ConfigError(f"the run predicts {', '.join(predictor.classes)}", do="leave --column out")
        return cls.open(data, config, progress)

    @classmethod
    def compare(
        cls, first: Sequence[Mapping[str, str]], second: Sequence[Mapping[str, str]], data: dict[str, Any]
    ) -> dict[str, Comparison]:
        return compare_numbers(first, second, data["columns"])


class NumberAugmenter(Augmenter):
    """Images with the standardised numbers to predict; mixup mixes the numbers too."""

    def __init__(self, *arguments: Any, values: Tensor):
        super().__init__(*arguments)
        self.values = values

    def targets(self, labels: Tensor, numbers: Tensor, epoch: int) -> Tensor:
        return self.values[numbers].to(labels.device)

    def named(self, x: Tensor, targets: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"image": x}, {"values": targets}
