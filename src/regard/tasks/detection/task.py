"""Detection for the runner: its network, figures and report. Data and batches are those of all tasks on objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from regard.console import Progress
from regard.data.objects import ObjectDataset, ObjectFeed, ObjectImages, ObjectLoader, target_slots
from regard.errors import ConfigError, did_you_mean
from regard.metrics import Comparison
from regard.metrics.detection import quick_ap
from regard.tasks.detection.settings import RECIPES, EvalOptions
from regard.tasks.image_options import LoadOptions
from regard.tasks.objects.diagnostics import diagnose, diagnose_training
from regard.tasks.objects.drawing import draw_boxes
from regard.tasks.objects.evaluation import DetectionEvaluation, compare_detectors, detect, sure_boxes, truths_of
from regard.tasks.objects.explaining import explain_boxes
from regard.tasks.objects.loss import SetLoss
from regard.tasks.objects.page import DRAWN, page
from regard.tasks.objects.predictor import Detector
from regard.tasks.objects.task import ObjectTask
from regard.training import World
from regard.weights import Run, open_weights


class Task(ObjectTask):
    name: ClassVar[str] = "detection"
    best: ClassVar[Any] = ("ap", "max")
    headline: ClassVar[tuple[str, ...]] = ("ap", "ap50")
    from_scratch, plain, finetune = "detection", "detection_plain", "detection_finetune"

    @classmethod
    def recipe_model(cls, recipe: str) -> str:
        return RECIPES[recipe]().model.model

    def validate(self, model: nn.Module, loader: ObjectFeed, tick: Any, world: World) -> dict[str, float]:
        classes = self.dataset.source.classes
        index, found, lost, _ = detect(model, loader, self.dataset.shapes, tick, self.objective)
        return {"loss": lost} | quick_ap(truths_of(self.dataset, index, classes), found, len(classes))

    def trained(self, run: Run) -> Detector:
        return Detector(open_weights(run.path)[0], self.device)

    def evaluate(self, trained: Detector, part: str, tick: Any) -> DetectionEvaluation:
        return evaluate(trained, self.dataset, self.loader(part), tick)

    def extra_summary(self, result: DetectionEvaluation) -> dict[str, Any]:
        return {"cautions": self.cautions()}

    def explain(self, run: Run, trained: Detector, result: DetectionEvaluation, progress: Progress) -> None:
        """Draw the images with the most errors, and explain sure boxes of all classes."""
        for line in diagnose_training(run.read_rows("metrics.csv"), self.config.optim.lr):
            progress.say(f"warning: {line}")
        names, chosen = list[str](), result.worst()[: self.config.general.explain]
        for place, n in enumerate(chosen, start=1):
            truth, found, classes = result.truths[n], result.found[n], result.classes
            sure = found.scores >= result.threshold
            draw_boxes(
                run.path / "explain" / f"boxes-{place:02d}.png",
                self.dataset.source.read(int(result.index[n]))[0],
                (torch.from_numpy(truth.boxes), [classes[k] for k in truth.labels], None),
                (
                    torch.from_numpy(found.boxes[sure]),
                    [classes[k] for k in found.labels[sure]],
                    torch.from_numpy(found.scores[sure]),
                ),
            )
            names.append(result.keys[n])
        if names:
            run.write_json(DRAWN, names)
        index = {n: int(result.index[n]) for n in sure_boxes(result)[: self.config.general.explain]}
        samples = [(result.keys[n], self.dataset.source.read(number)[0]) for n, number in index.items()]
        explain_boxes(run, trained, samples, progress)

    page = staticmethod(page)

    @classmethod
    def predictor(cls, path: str | Path, device: torch.device, options: LoadOptions, progress: Progress) -> Detector:
        return Detector.open(path, device, progress, options)

    @classmethod
    def open_for(cls, predictor: Detector, data: str | Path, config: Any, progress: Progress) -> ObjectDataset:
        dataset = cls.open(data, config, progress)
        for name in dataset.source.classes:
            if name not in predictor.classes:
                do = did_you_mean(name, predictor.classes)
                raise ConfigError(f"the model has no class {name!r}, which the data has", where=data, do=do)
        return dataset

    @classmethod
    def evaluate_on(
        cls, predictor: Detector, dataset: ObjectDataset, index: list[int], options: EvalOptions, progress: Progress
    ) -> DetectionEvaluation:
        slots = target_slots(dataset, index, predictor.model.config.queries)
        images = ObjectImages(dataset, predictor.buckets, predictor.preparation.channels, slots)
        loader = ObjectLoader(images, index, options.batch_size)
        feed = ObjectFeed(loader, predictor.preparation.mean, predictor.preparation.std, predictor.device)
        with progress.bar("evaluating", len(feed)) as tick:
            return evaluate(predictor, dataset, feed, tick)

    @classmethod
    def without(cls, result: DetectionEvaluation, seen: set[int]) -> DetectionEvaluation:
        return result.without(seen)

    @staticmethod
    def doubts(summary: dict[str, Any]) -> list[str]:
        return diagnose(summary)

    @classmethod
    def compare(
        cls, first: Sequence[Mapping[str, str]], second: Sequence[Mapping[str, str]], data: dict[str, Any]
    ) -> dict[str, Comparison]:
        return compare_detectors(first, second, data["classes"])


def evaluate(detector: Detector, dataset: ObjectDataset, feed: ObjectFeed, tick: Any) -> DetectionEvaluation:
    """Figures with intervals over everything the feed gives. Classes are matched by name."""
    objective = SetLoss.of(detector.model.config)
    index, found, _, spread = detect(detector.model, feed, dataset.shapes, tick, objective)
    truths, keys = truths_of(dataset, index, detector.classes), [dataset.key(n) for n in index]
    return DetectionEvaluation.of(detector.classes, keys, np.array(index), truths, found, detector.threshold, spread)
