"""Classification for the runner: its data, network, batches, figures and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from regard.console import Progress
from regard.data import Augmenter, Batch, ImageDataset, Images, Loader
from regard.errors import DataError
from regard.tasks.classification.comparison import compare_classifiers
from regard.tasks.classification.evaluation import Evaluation, evaluate, quick_figures
from regard.tasks.classification.loss import CrossEntropy
from regard.tasks.classification.page import page
from regard.tasks.classification.predictor import Classifier
from regard.tasks.classification.probing import probe
from regard.tasks.classification.settings import EvalOptions
from regard.tasks.image_options import LoadOptions
from regard.tasks.images import ImageTask, explain_images, is_small
from regard.training import World
from regard.weights import Run, open_weights


class Task(ImageTask):
    name: ClassVar[str] = "classification"
    best: ClassVar[Any] = ("accuracy", "max")
    headline: ClassVar[tuple[str, ...]] = ("accuracy",)

    @classmethod
    def recipe_for(cls, dataset: ImageDataset, start: Any) -> str:
        if start:
            return "paper_finetune"
        if dataset.source.kind == "digits":
            return "digits"
        return "small_images" if is_small(dataset) else "default"

    @classmethod
    def split(cls, dataset: ImageDataset, config: Any) -> tuple[list[str], str]:
        if len(dataset.source.classes) < 2:
            raise DataError("the data has one class only: there is nothing to tell apart", where=dataset.name)
        return super().split(dataset, config)

    @property
    def objective(self) -> CrossEntropy:
        return CrossEntropy(self.config.task.label_smoothing, self.config.task.loss)

    def blank(self, count: int) -> Batch:
        shape, classes = (self.images.channels, *self.images.size), len(self.class_names())
        zeros = torch.zeros(count, *shape, device=self.device), torch.zeros(count, classes, device=self.device)
        return Batch({"image": zeros[0]}, {"probabilities": zeros[1]})

    def augmenter(self) -> Augmenter:
        config, prepared, classes = self.config, self.preparation, len(self.class_names())
        return Augmenter(
            config.augment, config.general.seed, prepared.mean, prepared.std, classes, *self.phases(), self.window()
        )

    def validate(self, model: nn.Module, loader: Loader, tick: Any, world: World) -> dict[str, float]:
        return quick_figures(model, loader, self.preparation, self.device, tick, world.sums)

    def trained(self, run: Run) -> Classifier:
        return Classifier(open_weights(run.path)[0], self.device)

    def evaluate(self, trained: Classifier, part: str, tick: Any) -> Evaluation:
        source, loader = self.dataset.source, self.loader(part)
        return evaluate(trained.model, loader, self.preparation, source, self.class_names(), self.device, tick)

    def explain(self, run: Run, trained: Classifier, result: Evaluation, progress: Progress) -> None:
        chosen = result.examples(self.config.general.explain)
        samples = [(int(result.index[n]), result.keys[n], result.classes[result.labels[n]]) for n in chosen]
        explain_images(run, trained, self.images, samples, progress)

    page = staticmethod(page)

    @classmethod
    def predictor(cls, path: str | Path, device: torch.device, options: LoadOptions, progress: Progress) -> Classifier:
        return Classifier.open(path, device, progress, options)

    @classmethod
    def evaluate_on(
        cls, predictor: Classifier, dataset: ImageDataset, index: list[int], options: EvalOptions, progress: Progress
    ) -> Evaluation:
        predictor.require_answers()
        unknown = sorted(set(dataset.source.classes) - set(predictor.classes))
        if unknown:
            what = f"the data has classes the model does not know: {', '.join(unknown)}"
            raise DataError(what, where=dataset.path, do=f"it knows {', '.join(predictor.classes)}")
        prepared, mirror = predictor.preparation, options.mirror
        loader = Loader(Images(dataset, prepared.size, prepared.channels), index, options.batch_size)
        with progress.bar("evaluating", len(loader)) as tick:
            return evaluate(
                predictor.model,
                loader,
                prepared,
                dataset.source,
                predictor.classes,
                predictor.device,
                tick,
                mirror,
            )

    probe = staticmethod(probe)

    @classmethod
    def compare(cls, first: Sequence[Mapping[str, str]], second: Sequence[Mapping[str, str]], data: Any) -> Any:
        return compare_classifiers(first, second)
