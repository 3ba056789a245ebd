"""Panoptic segmentation for the runner; also masks of objects alone, where the data has no stuff."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from regard import registry
from regard.annotations import find_panoptic
from regard.console import Progress
from regard.data import Batch
from regard.data.objects import ObjectDataset, ObjectFeed, read_objects
from regard.data.objects.loader import MASK_STRIDE
from regard.data.objects.panoptic_dataset import PanopticDataset
from regard.errors import ConfigError
from regard.metrics import Comparison
from regard.metrics.detection import Detections, Truth, quick_ap
from regard.networks.base import Network
from regard.tasks.objects.diagnostics import diagnose_training
from regard.tasks.objects.evaluation import DetectionEvaluation, detect, sure_boxes
from regard.tasks.objects.explaining import explain_boxes
from regard.tasks.objects.task import ObjectTask
from regard.tasks.panoptic.drawing import Labelled, draw_maps
from regard.tasks.panoptic.evaluation import (
    THRESHOLDS,
    Gathered,
    PanopticEvaluation,
    compare_panoptic,
    quick_figures,
)
from regard.tasks.panoptic.loss import PanopticLoss
from regard.tasks.panoptic.page import DRAWN, page
from regard.tasks.panoptic.predictor import Segmenter
from regard.tasks.panoptic.settings import RECIPES
from regard.training import World
from regard.weights import Run, Start, open_weights

MASK_HEAD = "masks."


class Task(ObjectTask):
    name: ClassVar[str] = "panoptic"
    predictor_type = Segmenter
    masks: ClassVar[bool] = True
    from_scratch, plain, finetune = "panoptic", "panoptic_plain", "panoptic_finetune"

    @property
    def best(self) -> tuple[str, Literal["max", "min"]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("pq" if isinstance(self.dataset, PanopticDataset) else "mask_ap"), "max"

    @property
    def headline(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (self.best[0], "ap50")

    @property
    def things(self) -> tuple[bool, ...]:
        return things_of(self.dataset)

    @classmethod
    def open(cls, data: str | Path, config: Any, progress: Progress) -> ObjectDataset:
        """Panoptic maps, if there are any and no instances are asked for."""
        how = config.data
        if how.stuff is None and find_panoptic(Path(data).expanduser()):
            how = replace(how, stuff=True)
        dataset = read_objects(data, progress, how)
        if not dataset.has_masks:
            what = "there are objects without masks"
            raise ConfigError(what, where=data, do="train boxes only, with a model without masks, such as detr_nano")
        return dataset

    @classmethod
    def recipe_model(cls, recipe: str) -> str:
        return RECIPES[recipe]().model.model

    @classmethod
    def start(cls, config: Any, model: str | None, dataset: ObjectDataset) -> Start | None:
        """Trained weights; those of a detector without masks get a mask head when the network is built.

        The head for classes stays if the classes are the same.
        """
        weights = config.transfer.weights
        recipe = RECIPES.get(config.general.recipe or "")
        frozen = config.task.freeze_boxes or (recipe is not None and recipe().task.freeze_boxes)
        if not weights:
            if frozen:
                raise ConfigError("freeze_boxes would freeze random boxes", do="give trained ones by --from")
            return None
        fields = {name: value for name, value in config.model.fields().items() if name not in ("masks", "dropout")}
        checkpoint, report = open_weights(weights, predicts="boxes", **fields)
        if checkpoint.classes != dataset.source.classes:
            if frozen:
                what = (
                    f"the weights are for the classes {', '.join(checkpoint.classes[:8])}, and these cannot be frozen"
                )
                do = "train boxes of the same classes first (--stuff), or leave --freeze-boxes out"
                raise ConfigError(what, where=weights, do=do)
            count = len(dataset.source.classes)
            checkpoint, report = open_weights(weights, None, count, new_head=True, predicts="boxes", **fields)
        if not checkpoint.config["masks"]:
            report = replace(report, untrained=(*report.untrained, "the mask head: the file has none"))
            named = f"{checkpoint.model}_panoptic"
            called = named if named in registry.MODELS else checkpoint.model
            checkpoint = replace(checkpoint, model=called, config=checkpoint.config | {"masks": True})
        return Start(checkpoint, report)

    def _network(self, about: dict[str, Any] | None) -> Network:
        start = self.job.start
        if about or start is None or any(name.startswith(MASK_HEAD) for name in start.checkpoint.weights):
            return super()._network(about)
        held = start.with_rates(self.config.model.fields())
        network = registry.build(held.model, **held.config)
        missing, unknown = network.load_state_dict(held.weights, strict=False)
        assert not unknown
        assert all(name.startswith(MASK_HEAD) for name in missing)
        return network

    def _check_options(self, network: Network) -> None:
        super()._check_options(network)
        for name in ("no_object", "class_weight", "one_to_many"):
            if self.config.task.freeze_boxes and self.job.origins.get(name) == "flag":
                what = f"{name} is of the loss of boxes, and freeze_boxes leaves that out"
                raise ConfigError(what, do=f"leave --{name.replace('_', '-')} out, or --freeze-boxes")

    def adapt(self) -> None:
        if self.config.task.freeze_boxes:
            for name, parameter in self.model.named_parameters():
                parameter.requires_grad_(name.startswith(MASK_HEAD))
            self.model.frozen = tuple(name for name, _ in self.model.named_children() if name != "masks")
        self.model.train()

    @property
    def objective(self) -> PanopticLoss:
        options, config = self.config.task, self.network().config
        made = PanopticLoss.of(config, options)
        assert isinstance(made, PanopticLoss)
        only = options.freeze_boxes
        weights = (options.mask_weight, options.dice_weight)
        return replace(made, mask_weights=weights, masks_only=only, denoising=made.denoising and not only)

    def blank(self, count: int) -> Batch:
        batch = super().blank(count)
        height, width = (side // MASK_STRIDE for side in batch.inputs["image"].shape[2:])
        masks = torch.zeros(count, self.slots, height, width, dtype=torch.bool, device=self.device)
        return replace(batch, targets=batch.targets | {"masks": masks})

    def details(self) -> dict[str, Any]:
        return super().details() | {"things": list(self.things)}

    def validate(self, model: nn.Module, loader: ObjectFeed, tick: Any, world: World) -> dict[str, float]:
        classes = self.dataset.source.classes
        kind = self.network().config.classification
        gathered = Gathered(self.dataset, classes, self.things, kind, THRESHOLDS)
        lost = detect(model, loader, self.dataset.shapes, tick, self.objective, gathered)[2]
        truths, detections = without_masks(gathered)
        return {"loss": lost} | quick_figures(gathered) | quick_ap(truths, detections, len(classes))

    @classmethod
    def measure(cls, predictor: Segmenter, dataset: ObjectDataset, feed: ObjectFeed, tick: Any) -> PanopticEvaluation:
        """Figures with intervals over everything the feed gives. Classes are matched by name."""
        config, threshold = predictor.model.config, predictor.map_threshold
        gathered = Gathered(dataset, predictor.classes, predictor.things, config.classification, (threshold,))
        objective = PanopticLoss.of(config)
        spread = detect(predictor.model, feed, dataset.shapes, tick, objective, gathered)[3]
        truths, detections = without_masks(gathered)
        keys, index = [dataset.key(n) for n in gathered.index], np.array(gathered.index)
        boxes = DetectionEvaluation.of(predictor.classes, keys, index, truths, detections, predictor.threshold, spread)
        counts = np.stack(gathered.counts[threshold]) if gathered.counts[threshold] else None
        return PanopticEvaluation.of(boxes, predictor.things, counts, threshold, gathered.truths, gathered.detections)

    def explain(self, run: Run, trained: Segmenter, result: PanopticEvaluation, progress: Progress) -> None:
        """Draw the maps of images, the worst and the best by turns, and explain sure boxes of things."""
        for line in diagnose_training(run.read_rows("metrics.csv"), self.config.optim.lr):
            progress.say(f"warning: {line}")
        ranked, count = result.worst(), self.config.general.explain
        turns = [n for pair in zip(ranked, reversed(ranked), strict=True) for n in pair]
        chosen = list(dict.fromkeys(turns))[:count]
        for place, n in enumerate(chosen, start=1):
            number = int(result.index[n])
            pixels = self.dataset.source.read(number)[0]
            made = trained.predict(pixels)
            labels = {own.number: trained.classes.index(own.label) for own in made.segments}
            maps = [self._true_map(number), Labelled("predicted", made.panoptic.numpy(), labels)]
            draw_maps(run.path / "explain" / f"maps-{place:02d}.png", pixels, maps, trained.classes)
        if chosen:
            run.write_json(DRAWN, [result.keys[n] for n in chosen])
        sure = {n: int(result.index[n]) for n in sure_boxes(result.boxes)[:count]}
        samples = [(result.keys[n], self.dataset.source.read(number)[0]) for n, number in sure.items()]
        explain_boxes(run, trained, samples, progress)

    def _true_map(self, number: int) -> Labelled:
        """The true segments; of instances, which may overlap, the later ones lie above."""
        item, dataset = self.dataset.objects[number], self.dataset
        if isinstance(dataset, PanopticDataset):
            return Labelled(
                "true", dataset.ids(number), dict(zip(dataset.segment_ids(number), item.labels.tolist(), strict=True))
            )
        ids = np.zeros(dataset.shapes[number] or (0, 0), dtype=np.int64)
        for place, mask in enumerate(dataset.outlines(number).numpy(), start=1):
            ids[mask] = place
        return Labelled("true", ids, dict(enumerate(item.labels.tolist(), start=1)))

    page = staticmethod(page)

    @classmethod
    def compare(
        cls, first: Sequence[Mapping[str, str]], second: Sequence[Mapping[str, str]], data: dict[str, Any]
    ) -> dict[str, Comparison]:
        return compare_panoptic(first, second, data["classes"])


def things_of(dataset: ObjectDataset) -> tuple[bool, ...]:
    """Of each class, whether it is one of things: all of them, where there are no panoptic maps."""
    return dataset.things if isinstance(dataset, PanopticDataset) else (True,) * len(dataset.source.classes)


def without_masks(gathered: Gathered) -> tuple[list[Truth], list[Detections]]:
    """The same truths and predictions, measured by their boxes."""
    return [own._replace(masks=None) for own in gathered.truths], [
        own._replace(masks=None) for own in gathered.detections
    ]
