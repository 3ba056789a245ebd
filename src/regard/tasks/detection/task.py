"""Detection for the runner: its network, figures and report. Data and batches are those of all tasks on objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from regard.console import Progress
from regard.data.objects import ObjectDataset, ObjectFeed
from regard.metrics import Comparison
from regard.metrics.detection import quick_ap
from regard.tasks.detection.settings import RECIPES
from regard.tasks.objects.diagnostics import diagnose_training
from regard.tasks.objects.drawing import draw_boxes
from regard.tasks.objects.evaluation import DetectionEvaluation, compare_detectors, detect, sure_boxes, truths_of
from regard.tasks.objects.explaining import explain_boxes
from regard.tasks.objects.loss import SetLoss
from regard.tasks.objects.page import DRAWN, page
from regard.tasks.objects.predictor import Detector
from regard.tasks.objects.task import ObjectTask
from regard.training import World
from regard.weights import Run


class Task(ObjectTask):
    name: ClassVar[str] = "detection"
    predictor_type = Detector
    best: ClassVar[Any] = ("ap", "max")
    headline: ClassVar[tuple[str, ...]] = ("ap", "ap50")
    from_scratch, plain, finetune = "detection", "detection_plain", "detection_finetune"
    gpu_model = "detr_mini"
    modern_finetune = MappingProxyType({"optimizer": "muon", "lr": 2e-3, "clip": 5.0, "class_weight": 12.0})

    @classmethod
    def recipe_model(cls, recipe: str) -> str:
        return RECIPES[recipe]().model.model

    def validate(self, model: nn.Module, loader: ObjectFeed, tick: Any, world: World) -> dict[str, float]:
        classes = self.dataset.source.classes
        index, detections, lost, _ = detect(model, loader, self.dataset.shapes, tick, self.objective)
        return {"loss": lost} | quick_ap(truths_of(self.dataset, index, classes), detections, len(classes))

    @classmethod
    def measure(cls, predictor: Detector, dataset: ObjectDataset, feed: ObjectFeed, tick: Any) -> DetectionEvaluation:
        """Figures with intervals over everything the feed gives. Classes are matched by name."""
        objective = SetLoss.of(predictor.model.config)
        index, detections, _, spread = detect(predictor.model, feed, dataset.shapes, tick, objective)
        truths, keys = truths_of(dataset, index, predictor.classes), [dataset.key(n) for n in index]
        return DetectionEvaluation.of(
            predictor.classes, keys, np.array(index), truths, detections, predictor.threshold, spread
        )

    def explain(self, run: Run, trained: Detector, result: DetectionEvaluation, progress: Progress) -> None:
        """Draw the images with the most errors, and explain sure boxes of all classes."""
        for line in diagnose_training(run.read_rows("metrics.csv"), self.config.optim.lr):
            progress.say(f"warning: {line}")
        names, chosen = list[str](), result.worst()[: self.config.general.explain]
        for place, n in enumerate(chosen, start=1):
            truth, detections, classes = result.truths[n], result.detections[n], result.classes
            sure = detections.scores >= result.threshold
            draw_boxes(
                run.path / "explain" / f"boxes-{place:02d}.png",
                self.dataset.source.read(int(result.index[n]))[0],
                (torch.from_numpy(truth.boxes), [classes[k] for k in truth.labels], None),
                (
                    torch.from_numpy(detections.boxes[sure]),
                    [classes[k] for k in detections.labels[sure]],
                    torch.from_numpy(detections.scores[sure]),
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
    def compare(
        cls, first: Sequence[Mapping[str, str]], second: Sequence[Mapping[str, str]], data: dict[str, Any]
    ) -> dict[str, Comparison]:
        return compare_detectors(first, second, data["classes"])
