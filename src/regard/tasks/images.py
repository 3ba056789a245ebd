"""What tasks on images and volumes share: opening data, batches, a network for the data."""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from regard import registry
from regard.config import make, to_dict
from regard.console import Progress
from regard.data import (
    CROPS,
    Augmenter,
    Batch,
    ImageDataset,
    Images,
    Loader,
    Preparation,
    fit_loses,
    keep_some,
    open_source,
    scan,
    statistics,
)
from regard.data.feed import ImageFeed
from regard.data.splits import split
from regard.errors import ConfigError
from regard.explain import (
    Explanation,
    attends,
    reported,
)
from regard.explain.attention_store import BUDGET, keep_attention
from regard.explain.draw import draw
from regard.geometry import three_quarters
from regard.networks.base import Network
from regard.nn.lora import merged
from regard.settings import RunConfig
from regard.task import Job, Task
from regard.training import ALONE, World, adapt, largest_batch
from regard.weights import Checkpoint, Run, Start, find_run, open_start

SMALL_SIDE = 64
"""Pixels up to which pictures are small."""
EVAL_BATCH_PIXELS = 2**22
"""Numbers of small pictures that a GPU evaluates at once."""


def read_images(data: str | Path, progress: Progress, labels: bool = True) -> ImageDataset:
    """Read every image once, saying what they are."""
    source = open_source(data, labels)
    with progress.bar("reading", len(source.samples)) as tick:
        dataset = scan(source, lambda done, total: tick(done))
    dataset.path = str(data)
    if source.ignored:
        progress.say(f"not part of the data: {len(source.ignored)} files (`regard check` lists them)")
    return dataset


def is_small(dataset: ImageDataset) -> bool:
    return max((max(size) for size in dataset.sizes), default=0) <= SMALL_SIDE


class ImageTask(Task):
    """A task whose inputs are images or volumes of one size."""

    files: ClassVar[tuple[str, ...]] = ("transfer.json",)
    labels: ClassVar[bool] = True
    """Whether the data's labels are used."""

    def __init__(self, job: Job):
        super().__init__(job)
        self.images: Images
        self.preparation: Preparation

    @property
    def dataset(self) -> Any:
        return self.job.dataset

    @classmethod
    def open(cls, data: str | Path, config: RunConfig, progress: Progress) -> Any:
        return read_images(data, progress, cls.labels)

    @classmethod
    def outputs(cls, dataset: Any) -> int:
        """Number of outputs of the network's head."""
        return len(dataset.source.classes)

    @classmethod
    def start(cls, config: Any, model: str | None, dataset: Any) -> Start | None:
        weights = config.transfer.weights if hasattr(config, "transfer") else None
        return open_start(weights, cls.outputs(dataset), config.model.fields(), model) if weights else None

    @classmethod
    def split(cls, dataset: Any, config: Any) -> tuple[list[str], str]:
        splits, note = split(dataset, config.data.split_seed, config.data.holdout)
        splits = [name if digest else "unreadable" for name, digest in zip(splits, dataset.digests, strict=True)]
        if config.data.images is not None:
            splits = keep_some(dataset, splits, config.data.images, config.general.seed)
            note += f"; {config.data.images} training images are used, drawn with seed {config.general.seed}"
        return splits, note

    @classmethod
    def from_data(cls, config: Any, dataset: Any) -> dict[str, Any]:
        sizes = sorted(dataset.sizes, key=lambda size: -dataset.sizes[size])
        model = config.model.model
        axes, own = len(sizes[0]), registry.find(model).size
        if {len(size) for size in sizes} != {len(own)}:
            kind = {2: "pictures, such as vit_s16", 3: "volumes, such as vit3d_nano"}[axes]
            wanted = "weights of a model" if config.flat().get("weights") else "a --model"
            what = f"{model} takes inputs with {len(own)} axes and the data has {axes}"
            raise ConfigError(what, do=f"choose {wanted} for {kind}")
        one_size = len(sizes) == 1 and all(side <= most for side, most in zip(sizes[0], own, strict=True))
        crop = "none" if axes != 2 else "resized" if max(sizes[0]) > SMALL_SIDE else "shift"
        in_memory = bool(dataset.cache) and (config.augment.crop or crop) not in CROPS
        # Where processes are spawned, a plain script without a __main__ guard would run itself again in each.
        forks = multiprocessing.get_start_method(allow_none=True) in (None, "fork") and sys.platform == "linux"
        workers = min(16, max(0, (os.cpu_count() or 1) - 1)) if forks else 0
        return {
            "size": sizes[0] if one_size else own,
            "channels": dataset.channels,
            "crop": crop,
            "flip": dataset.channels == 3 and axes == 2,
            "workers": 0 if in_memory else workers,
        }

    def prepare(self, progress: Progress, about: dict[str, Any] | None, folder: Path | None) -> None:
        if self.job.start:
            for line in self.job.start.report.lines():
                progress.say(line)

    def build(self, about: dict[str, Any] | None) -> Network:
        network = self._network(about)
        size, channels = network.config.size, network.config.channels
        self.images = Images(self.dataset, size, channels)
        if about:
            self.preparation = make(Preparation, about["preparation"])
        elif self.job.start:
            self.preparation = self.job.start.checkpoint.preparation
        else:
            self.preparation = Preparation(size, channels, *statistics(self.images, self.job.part("train")))
        return self.assemble(network)

    def _network(self, about: dict[str, Any] | None) -> Network:
        """From weights, with a head of zeros; of a saved state's shape; or random as the seed says."""
        model = self.config.model
        if about:
            return registry.build(model.model, **about["model"])
        if self.job.start is None:
            return registry.build(model.model, classes=self.outputs(self.dataset), **model.fields())
        return self.job.start.with_rates(model.fields()).build()

    def assemble(self, network: Network) -> Any:
        """The module to train, made of the network."""
        return network

    def adapt(self) -> None:
        """Freeze what is to stay as it is, and add what is learnt beside it."""
        if hasattr(self.config, "transfer"):
            adapt(self.model, self.config.transfer)
        else:
            self.model.train()

    def batch_settings(self, progress: Progress) -> dict[str, Any]:
        """A batch for so many training images: at least ten steps per epoch."""
        data, count = self.config.data, len(self.job.part("train"))
        few = max(4, count // 10)
        if data.batch_size == "auto":
            return {"batch_size": largest_batch(self.model, self.objective, self.blank, self.config, self.device, few)}
        if self.job.origins["batch_size"] != "flag" and count < 10 * data.batch_size:
            return {"batch_size": few}
        return {}

    def blank(self, count: int) -> Batch:
        """A batch of zeros, to try out how many fit in memory."""
        raise ConfigError(f"batch_size='auto' is not for {self.name}", do="give --batch-size a number")

    def batches_per_epoch(self) -> int:
        return math.ceil(len(self.job.part("train")) / self.config.data.batch_size)

    def augmenter(self) -> Augmenter:
        raise NotImplementedError

    def phases(self) -> tuple[int, int]:
        """The last epoch with mixup and CutMix, and the last one of low resolution, never the very last."""
        epochs, augment = self.config.optim.epochs, self.config.augment
        return epochs - round(epochs * augment.mixup_off), min(round(epochs * augment.low_res), epochs - 1)

    def window(self) -> tuple[int, ...]:
        """What the epochs of low resolution see."""
        config = self.network().config
        return three_quarters(config.size, getattr(config, "patch", (1,) * len(config.size)))

    def feed(self, world: World) -> ImageFeed:
        config = self.config
        varied = Images(
            self.dataset, self.images.size, self.images.channels, crop=config.augment.crop, seed=config.general.seed
        )
        loader = Loader(
            varied, self.job.part("train"), config.data.batch_size, shuffle=config.general.seed,
            workers=config.machine.workers or 0, rank=world.rank, ranks=world.size,
        )  # fmt: skip
        return ImageFeed(loader, self.augmenter(), self.device)

    def loader(self, part: str, world: World | None = None, limit: int | None = None) -> Loader:
        world = world or ALONE
        # More small pictures at once: a GPU would wait for Python, which launches its kernels.
        usual, numbers = self.config.data.batch_size, self.images.channels * math.prod(self.images.size)
        most = max(usual, min(4 * usual, EVAL_BATCH_PIXELS // numbers)) if self.device.type == "cuda" else usual
        return Loader(
            self.images, self.job.part(part)[:limit], most, workers=0 if limit else self.config.machine.workers or 0,
            rank=world.rank, ranks=world.size,
        )  # fmt: skip

    def checkpoint(self, progress: dict[str, Any], weights: dict[str, Tensor]) -> Checkpoint:
        network, classes = to_dict(self.network().config), self.class_names()
        return Checkpoint(
            self.config.model.model, network, classes, self.preparation, progress, weights, self.name, self.details()
        )

    def class_names(self) -> tuple[str, ...]:
        """Names of the head's outputs."""
        return self.dataset.source.classes

    def details(self) -> dict[str, Any]:
        """What else a checkpoint says."""
        return {}

    def kept_weights(self, run: Any, name: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return merged(weights)

    def about(self) -> dict[str, Any]:
        return {"model": to_dict(self.network().config), "preparation": asdict(self.preparation)}

    def write(self, run: Run, progress: Progress) -> None:
        if any(fit_loses(shape, self.images.size) for shape in self.dataset.sizes):
            progress.say(f"images of other proportions than {self.images.size} are cut at the centre, not stretched")
        if self.job.start:
            tested, trained = self.tests[0], sum(p.numel() for p in self.model.parameters() if p.requires_grad)
            folder = find_run(self.config.transfer.weights)
            rows = [] if folder is None else folder.seen_rows()
            seen = len(self.dataset.seen(rows).intersection(self.job.part(tested)))
            if seen:
                progress.say(f"warning: the weights come from a run that has seen {seen} of the images of {tested}")
            facts = self.job.start.to_json() | {"parameters_trained": trained, f"seen_in_{tested}": seen}
            run.write_json("transfer.json", facts)

    @property
    def input_words(self) -> str:
        return f"input {self.images.size}"

    @property
    def step_words(self) -> str:
        return f"{self.config.data.batch_size * self.config.optim.accumulate} images"


def explain_images(
    run: Run, predictor: Any, images: Images, samples: Sequence[tuple[int, str, str]], progress: Progress
) -> None:
    """Explain tested images, given by number, key and true label, and keep their attention for the report."""
    done, room = list[list[Explanation]](), BUDGET
    methods = reported(predictor.model)
    with progress.bar("explaining", len(samples)) as tick:
        for place, (number, key, truth) in enumerate(samples, start=1):
            pixels = images[0, number][0]
            done.append([predictor.explain(pixels, method=method).about(key, truth) for method in methods])
            draw(done[-1], run.path / "explain" / f"{place:02d}.png")
            x = predictor.preparation(pixels).to(predictor.device)
            if attends(predictor.model):
                room -= keep_attention(run, place, predictor.model, x, done[-1][0].picture, room)
            tick(place)
    if done:
        run.write_json("explain/explanations.json", [[e.to_json() for e in maps] for maps in done])
