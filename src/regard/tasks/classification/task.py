"""Classification for the runner: its data, network, batches, figures and report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from regard import registry
from regard.console import Progress
from regard.data import Augmenter, Batch, ImageDataset, Images, Loader, Source
from regard.data.corruptions import CORRUPTIONS, SEVERITIES
from regard.errors import DataError, RunError
from regard.evaluation.pixel_baseline import as_json, pixel_baselines
from regard.task import Choice, Job
from regard.tasks.class_folds import confounded
from regard.tasks.classification import folds
from regard.tasks.classification.comparison import compare_classifiers
from regard.tasks.classification.distillation import Distillation, Teacher, open_teacher
from regard.tasks.classification.evaluation import Evaluation, doubts, evaluate, quick_figures
from regard.tasks.classification.loss import CrossEntropy
from regard.tasks.classification.page import chosen_by, is_unbalanced, page
from regard.tasks.classification.predictor import Classifier
from regard.tasks.classification.probing import probe
from regard.tasks.classification.robustness import robustness
from regard.tasks.classification.settings import RECIPES, EvalOptions
from regard.tasks.image_examples import choose_examples, explain_images
from regard.tasks.images import ImageTask, read_images
from regard.training import World
from regard.weights import Run, find_run, fingerprint


class Task(ImageTask):
    name: ClassVar[str] = "classification"
    predictor_type = Classifier
    from_scratch, plain, finetune = "default", "plain", "finetune"
    plain_small: ClassVar[Mapping[str, Any]] = {**ImageTask.plain_small, "mixup": 0.2}
    files: ClassVar[tuple[str, ...]] = (*ImageTask.files, "teacher.json")

    def __init__(self, job: Job):
        super().__init__(job)
        self.teacher: Teacher | None = None
        self.teacher_fingerprint = ""

    @classmethod
    def choose(
        cls,
        dataset: ImageDataset,
        start: Any,
        asked: Mapping[str, Any],
        gpu: bool,
        given: list[str | None] | None = None,
    ) -> Choice:
        if dataset.source.kind == "digits" and not start and asked.get("recipe") is None:
            choice = Choice("digits")
        else:
            choice = super().choose(dataset, start, asked, gpu, given)
        return with_distillation_token(choice, start, asked)

    @classmethod
    def split(cls, dataset: ImageDataset, config: Any, given: list[str | None] | None = None) -> tuple[list[str], str]:
        classes = dataset.source.classes
        if len(classes) < 2:
            raise DataError(
                f"the data has one class only, {', '.join(classes)}: there is nothing to tell apart",
                where=dataset.path or dataset.name,
                do="give the folder that holds one folder per class; labels in file names are read by --label-pattern",
            )
        try:
            return super().split(dataset, config, given)
        except DataError as error:
            if not all(re.fullmatch(r"-?\d+\.\d*", name) for name in classes):
                raise
            column = config.data.label_column or "label"
            do = f"the labels look like numbers: to predict them as such, give --column {column}"
            raise DataError(error.what, where=error.where, do=do) from None

    @property
    def objective(self) -> CrossEntropy | Distillation:
        options, weights = self.config.task, None
        if options.class_weights == "balanced":
            counts = self._train_counts()
            weights = torch.tensor(counts.sum() / (len(counts) * counts), dtype=torch.float32, device=self.device)
        labels, teaching = CrossEntropy(options.label_smoothing, options.loss, weights), self.config.teaching
        if self.teacher is None:
            return labels
        kind = teaching.distillation or "hard"
        share = teaching.teacher_weight or {"hard": 0.5, "soft": 0.1}[kind]
        return Distillation(labels, self.teacher, kind, share, teaching.temperature or 3.0)

    def build(self, about: dict[str, Any] | None) -> Any:
        network, path = super().build(about), self.config.teaching.teacher
        if path is None:
            return network
        self.teacher = open_teacher(path, self.preparation, self.class_names(), self.device)
        self.teacher_fingerprint = fingerprint(path)
        if about and about.get("teacher") != self.teacher_fingerprint:
            do = "restore the weights that the run was started with, or train a new run"
            raise RunError("the teacher has changed since the run began", where=path, do=do)
        return network

    def about(self) -> dict[str, Any]:
        return super().about() | ({"teacher": self.teacher_fingerprint} if self.teacher else {})

    def write(self, run: Run, progress: Progress) -> None:
        super().write(run, progress)
        path = self.config.teaching.teacher
        if self.teacher is None or path is None:
            return
        tested, folder = self.tests[0], find_run(path)
        seen = self.dataset.seen(folder.seen_rows() if folder else []).intersection(self.job.part(tested))
        if seen:
            progress.say(f"warning: the teacher was trained or chosen on {len(seen)} of the images of {tested}")
        run.write_json("teacher.json", {
            "teacher": path, "sha256": self.teacher_fingerprint, "size": self.teacher.own.size,
            "parameters": sum(p.numel() for p in self.teacher.parameters()), f"seen_in_{tested}": len(seen),
        })  # fmt: skip

    def _train_counts(self) -> np.ndarray:
        """Training images per class."""
        labels = np.array(self.dataset.strata())[self.job.part("train")]
        return np.bincount(labels, minlength=len(self.class_names()))

    def prepare(self, progress: Progress, about: dict[str, Any] | None, folder: Path | None) -> None:
        super().prepare(progress, about, folder)
        if self.config.transfer.freeze == "all" and not folder:
            changed = "since augmentation changes them" if self.config.augment.varies else "though nothing changes them"
            progress.say(
                f"every epoch computes the frozen network's features again, {changed}; "
                "`regard probe WEIGHTS DATA --keep RUN` computes them once and fits the best head"
            )
        if is_unbalanced(self._train_counts().tolist()) and self.config.task.class_weights == "equal":
            progress.say(
                "warning: the largest class has more than ten times the images of the smallest; look at the balanced "
                "accuracy too, or train with --class-weights balanced"
            )

    @property
    def best(self) -> tuple[str, Literal["max", "min"]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return chosen_by(self.config), "max"

    @property
    def headline(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("accuracy", "balanced_accuracy") if is_unbalanced(self._train_counts().tolist()) else ("accuracy",)

    def extra_summary(self, result: Evaluation) -> dict[str, Any]:
        """What simpler models make of the same images."""
        if not self.config.task.pixel_baseline:
            return {}
        labels, balanced = np.array(self.dataset.strata()), self.config.task.class_weights == "balanced"
        baselines = pixel_baselines(self.images, self.job.part("train"), result.index.tolist(), labels, balanced)
        return {"pixel_baselines": as_json(baselines)}

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

    @classmethod
    def measure(
        cls, predictor: Classifier, dataset: ImageDataset, loader: Loader, tick: Any, mirror: bool = False
    ) -> Evaluation:
        model, prepared, device = predictor.model, predictor.preparation, predictor.device
        return evaluate(model, loader, prepared, dataset.source, predictor.classes, device, tick, mirror)

    def explain(self, run: Run, trained: Classifier, result: Evaluation, progress: Progress) -> None:
        chosen = choose_examples(
            result.examples(), self.config.general.explain, lambda n: self.dataset.digests[result.index[n]]
        )
        samples = [(int(result.index[n]), result.keys[n], result.classes[result.labels[n]]) for n in chosen]
        explain_images(run, trained, self.images, samples, progress)

    page = staticmethod(page)
    pools: ClassVar[bool] = True
    confounded = staticmethod(confounded)
    pool = staticmethod(folds.pool)
    pool_page = staticmethod(folds.page)

    @classmethod
    def open_for(cls, predictor: Classifier, data: str | Path, config: Any, progress: Progress) -> ImageDataset:
        predictor.require_answers()

        def accept(source: Source) -> None:
            unknown = sorted(set(source.classes) - set(predictor.classes))
            if unknown:
                what = f"the data has classes the model does not know: {', '.join(unknown)}"
                raise DataError(what, where=data, do=f"it knows {', '.join(predictor.classes)}")

        size = config.model.fields().get("size")
        return read_images(data, progress, how=config.data, accept=accept, size=size)

    @classmethod
    def evaluate_on(
        cls, predictor: Classifier, dataset: ImageDataset, index: list[int], options: EvalOptions, progress: Progress
    ) -> Evaluation:
        prepared, model, device = predictor.preparation, predictor.model, predictor.device

        def loader() -> Loader:
            return Loader(Images(dataset, prepared.size, prepared.channels), index, options.batch_size)

        with progress.bar("evaluating", len(loader())) as tick:
            result = cls.measure(predictor, dataset, loader(), tick, options.mirror)
        if not options.corruptions:
            return result
        with progress.bar("corrupting", len(CORRUPTIONS) * len(SEVERITIES)) as tick:
            right = result.probs.argmax(1) == result.labels
            measured = robustness(model, loader, prepared, dataset.source, result.labels, right, device, tick)
        return replace(result, robustness=measured)

    probe = staticmethod(probe)

    doubts = staticmethod(doubts)

    @classmethod
    def compare(cls, first: Sequence[Mapping[str, str]], second: Sequence[Mapping[str, str]], data: Any) -> Any:
        return compare_classifiers(first, second)


def with_distillation_token(choice: Choice, start: Any, asked: Mapping[str, Any]) -> Choice:
    """With a teacher, a ViT from scratch whose head reads the class token gets a distillation token, as in DeiT."""
    if not asked.get("teacher") or start or asked.get("distilled") is not None:
        return choice
    settings = {**RECIPES[choice.recipe]().flat(), **choice.values, **{n: v for n, v in asked.items() if v is not None}}
    named = {"pool": "class", "head": "linear"}
    if registry.find(settings["model"]).family != "vit" or any(settings.get(n, v) != v for n, v in named.items()):
        return choice
    return choice._replace(values={**choice.values, "distilled": True})
