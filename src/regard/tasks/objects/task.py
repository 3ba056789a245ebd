"""What tasks on objects share: data with boxes, batches of a few sizes, a DETR for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard import registry
from regard.console import Progress
from regard.data import Batch
from regard.data.feed import Waited
from regard.data.objects import (
    Composer,
    ObjectDataset,
    ObjectFeed,
    ObjectImages,
    ObjectLoader,
    bucket_of,
    choose_buckets,
    read_objects,
    target_slots,
)
from regard.errors import ConfigError, counted, did_you_mean
from regard.geometry import Frame
from regard.networks.base import Network
from regard.task import Choice
from regard.tasks.images import ImageTask, default_workers
from regard.tasks.objects.diagnostics import diagnose
from regard.tasks.objects.loss import SetLoss
from regard.tasks.small_data import choose_epochs, choose_finetune_epochs, facts, said_length
from regard.training import ALONE, World
from regard.weights import Run

LONGEST = {False: 192, True: 640}
"""Pixels on the longer side of inputs, by default: without and with a GPU."""
QUERIES = 20, 1.5, 300
"""Number of queries: at least, per object of the image with the most, and at most."""
FINE = 256, 8
"""Longer side in pixels up to which tokens are this many pixels apart; on larger inputs twice as many."""
SMALL = 0.75
"""Share of the stride below which a box's shorter side is too small to be seen as one."""


class ObjectTask(ImageTask):
    """A task whose images have boxes of objects. A batch has images of one size, with padding."""

    masks: ClassVar[bool] = False
    """Whether targets have masks."""
    gpu_model: ClassVar[str | None] = None
    """The default network from scratch on a GPU, where the recipe's is too small."""
    modern_finetune: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Settings of fine-tuning that weights of modern mode have in place of the recipe's."""

    @classmethod
    def open(cls, data: str | Path, config: Any, progress: Progress) -> ObjectDataset:
        return read_objects(data, progress, config.data)

    @classmethod
    def choose(
        cls,
        dataset: ObjectDataset,
        start: Any,
        asked: Mapping[str, Any],
        gpu: bool,
        given: list[str | None] | None = None,
    ) -> Choice:
        recipe, known = asked.get("recipe"), facts(dataset, asked, gpu, given)
        if recipe is None:
            recipe = cls.finetune if start else cls.from_scratch
        if start:
            values: dict[str, Any] = {"epochs": choose_finetune_epochs(known)} if recipe == cls.finetune else {}
            length = said_length(values, asked)
            why = f"for {known.describe()} and trained weights: their network{length}"
            rates = cls.modern_rates(start, asked) if recipe == cls.finetune else {}
            if rates:
                said = ", ".join(f"{name}={value}" for name, value in rates.items())
                why = f"{why}; {said}, as its classes are learnt by {class_loss(start)} loss"
            return Choice(recipe, values | rates, why)
        if recipe == cls.plain:
            return Choice(recipe, {"queries": queries_for(dataset, least=100)})
        if recipe != cls.from_scratch:
            return Choice(recipe)
        side = 32 * max(1, round(min(LONGEST[gpu], max(max(size) for size in dataset.sizes)) / 32))
        values = {"epochs": choose_epochs(known), "queries": queries_for(dataset), "size": (side, side)}
        if "fused_stages" not in asked:
            values["stride"] = FINE[1] if side <= FINE[0] else 2 * FINE[1]
        if gpu and cls.gpu_model and "model" not in asked:
            values["model"] = cls.gpu_model
        model = str(asked.get("model") or values.get("model") or cls.recipe_model(recipe))
        length = said_length(values, asked)
        why = f"for {known.describe()}: {model}, sides up to {side}{length}; --recipe {cls.plain}: DETR as published"
        return Choice(recipe, {name: value for name, value in values.items() if name not in asked}, why)

    @classmethod
    def modern_rates(cls, start: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Optimizer and class weight for weights of modern mode, as far as nothing else is asked for."""
        if class_loss(start) == "softmax":
            return {}
        chosen = cls.modern_finetune
        if asked.get("optimizer") not in (None, chosen.get("optimizer")):  # a rate is its optimizer's
            chosen = {name: value for name, value in chosen.items() if name not in ("optimizer", "lr", "clip")}
        return {name: value for name, value in chosen.items() if asked.get(name) is None}

    @classmethod
    def recipe_model(cls, recipe: str) -> str:
        """The model of a recipe from scratch."""
        raise NotImplementedError

    @classmethod
    def from_data(cls, config: Any, dataset: ObjectDataset) -> dict[str, Any]:
        return {
            "size": registry.find(config.model.model).size,
            "channels": dataset.channels,
            "workers": default_workers(),
            "backbone_rate": 0.1 if config.transfer.weights else 1.0,
        }

    def check_augmentation(self) -> None:
        augment = self.config.augment
        if self.job.origins.get("mixup_off") == "flag" and augment.mixup_off and not (augment.mosaic or augment.mixup):
            what = "mixup_off has no effect without mosaic or mixup"
            raise ConfigError(what, do="give --mosaic or --mixup, or leave --mixup-off out")

    def build(self, about: dict[str, Any] | None) -> Network:
        network = super().build(about)
        self._check_options(network)
        train, config = self.job.part("train"), network.config
        shapes = [shape for n in train if (shape := self.dataset.shapes[n]) is not None]
        self.buckets = choose_buckets(shapes, config.size)
        self.slots = target_slots(self.dataset, train, config.queries, self.config.augment)
        return network

    def _check_options(self, network: Network) -> None:
        """An error for what the network has no use for."""
        config, origins = network.config, self.job.origins
        if config.masks != self.masks:
            has, task = ("a", "boxes only") if config.masks else ("no", "masks too")
            raise ConfigError(f"{self.config.model.model} has {has} mask head, and {self.name} trains {task}")
        if origins.get("no_object") == "flag" and config.classification != "softmax":
            what = f"no_object is of a softmax, and classification={config.classification!r} has no such class"
            raise ConfigError(what, do="leave --no-object out, or give --classification softmax")
        if origins.get("one_to_many") == "flag" and not config.two_stage:
            raise ConfigError("one_to_many is for the proposals of two_stage", do="give --two-stage, or leave it out")

    def adapt(self) -> None:
        self.model.train()

    @property
    def objective(self) -> Any:
        return SetLoss.of(self.network().config, self.config.task)

    def blank(self, count: int) -> Batch:
        size, device = max(self.buckets, key=math.prod), self.device
        image = torch.zeros(count, self.images.channels, *size, device=device)
        mask = torch.ones(count, *size, dtype=torch.bool, device=device)
        labels = torch.zeros(count, self.slots, dtype=torch.int64, device=device)
        boxes = torch.full((count, self.slots, 4), 0.5, device=device)
        return Batch({"image": image, "mask": mask}, {"boxes": boxes, "labels": labels})

    def feed(self, world: World) -> Any:
        config, train = self.config, self.job.part("train")
        boxes = [item.boxes[item.targets] for item in self.dataset.objects]
        composer = Composer(config.augment, config.general.seed, self.dataset.shapes, boxes, train, self.last_mixed())
        images = self.object_images(self.buckets, self.slots, composer)
        loader = ObjectLoader(
            images, train, config.data.batch_size, shuffle=config.general.seed, workers=config.machine.workers or 0,
            rank=world.rank, ranks=world.size,
        )  # fmt: skip
        prepared = self.preparation
        return CountedFeed(loader, prepared.mean, prepared.std, self.device, config.augment, config.general.seed)

    def last_mixed(self) -> int:
        """The last epoch with mosaic and mixup."""
        epochs = self.config.optim.epochs
        return epochs - round(epochs * self.config.augment.mixup_off)

    def object_images(self, buckets: Any, slots: int, composer: Composer | None = None) -> ObjectImages:
        return ObjectImages(
            self.dataset, buckets, self.preparation.channels, slots, composer=composer, masks=self.masks
        )

    def loader(self, part: str, world: World | None = None, limit: int | None = None) -> Any:
        """All of a part, in every process: average precision is no sum over images."""
        index = self.job.part(part)[:limit]
        slots = target_slots(self.dataset, index, self.network().config.queries)
        loader = ObjectLoader(
            self.object_images(self.buckets, slots), index, self.config.data.batch_size,
            workers=0 if limit else self.config.machine.workers or 0, rank=ALONE.rank, ranks=ALONE.size,
        )  # fmt: skip
        return ObjectFeed(loader, self.preparation.mean, self.preparation.std, self.device)

    def details(self) -> dict[str, Any]:
        return {"class_ids": list(self.dataset.class_ids), "buckets": [list(size) for size in self.buckets]}

    def write(self, run: Run, progress: Progress) -> None:
        for line in self.cautions():
            progress.say(f"warning: {line}")
        self.write_transfer(run, progress)

    def extra_summary(self, result: Any) -> dict[str, Any]:
        return {"cautions": self.cautions()}

    doubts = staticmethod(diagnose)

    @classmethod
    def open_for(cls, predictor: Any, data: str | Path, config: Any, progress: Progress) -> ObjectDataset:
        dataset = cls.open(data, config, progress)
        for name in dataset.source.classes:
            if name not in predictor.classes:
                do = did_you_mean(name, predictor.classes)
                raise ConfigError(f"the model has no class {name!r}, which the data has", where=data, do=do)
        return dataset

    @classmethod
    def evaluate_on(cls, predictor: Any, dataset: Any, index: list[int], options: Any, progress: Progress) -> Any:
        slots, prepared = target_slots(dataset, index, predictor.model.config.queries), predictor.preparation
        images = ObjectImages(dataset, predictor.buckets, prepared.channels, slots, masks=cls.masks)
        loader = ObjectLoader(images, index, options.batch_size)
        feed = ObjectFeed(loader, prepared.mean, prepared.std, predictor.device)
        with progress.bar("evaluating", len(feed)) as tick:
            return cls.measure(predictor, dataset, feed, tick)

    def cautions(self) -> list[str]:
        """What about the data makes a network of this shape fail, in sentences."""
        return cautions(self.dataset, self.job.part("train"), self.network().config, self.buckets)

    @property
    def input_words(self) -> str:
        return f"inputs {' and '.join(f'{height} × {width}' for height, width in self.buckets)}"


class CountedFeed(ObjectFeed):
    """Batches whose targets also have `per_image`, the mean number of boxes: so pieces of a batch are weighed right."""

    def epoch(self, number: int, start: int = 0, waited: Waited = iter) -> Iterator[Batch]:
        for batch in super().epoch(number, start, waited):
            labels = batch.targets["labels"]
            per_image: Tensor = ((labels >= 0).sum() / len(labels)).expand(len(labels))
            yield replace(batch, targets=batch.targets | {"per_image": per_image})


def class_loss(start: Any) -> str:
    """The loss by which the weights' network has learnt classes."""
    return registry.configure(start.checkpoint.model, **start.checkpoint.config).classification


def queries_for(dataset: ObjectDataset, least: int = QUERIES[0]) -> int:
    """Half as many again as the image with the most objects has, in tens."""
    most = max((len(item.targets) for item in dataset.objects), default=0)
    return max(least, min(QUERIES[2], 10 * math.ceil(QUERIES[1] * most / 10)))


def cautions(dataset: ObjectDataset, index: list[int], config: Any, buckets: Any) -> list[str]:
    """Boxes too small for the stride, and more objects than queries."""
    sides, crowded = list[Tensor](), 0
    for number in index:
        item, shape = dataset.objects[number], dataset.shapes[number]
        crowded += len(item.targets) > config.queries
        if shape is not None and item.targets:
            frame = Frame.placed(shape, buckets[bucket_of(shape, buckets)])
            moved = frame.boxes_to_input(item.boxes[item.targets])
            sides.append((moved[:, 2:] - moved[:, :2]).amin(1))
    lines = list[str]()
    small = (torch.cat(sides) < SMALL * config.token_stride).float().mean().item() if sides else 0.0
    if small > 0.1:
        lines.append(
            f"{small:.0%} of the boxes are less than {SMALL * config.token_stride:.0f} pixels high or wide on the "
            f"network's input, and its tokens are {config.token_stride} pixels apart: give a larger --size, or finer "
            "tokens by --fused-stages and --stride"
        )
    if crowded:
        lines.append(
            f"{counted(crowded, 'training images')} have more objects than the {config.queries} queries: the rest "
            "cannot be found; give more --queries"
        )
    return lines
