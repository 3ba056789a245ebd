"""What tasks on images and volumes share: opening data, batches, a network for the data."""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard import registry, tasks
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
    Source,
    fitted_share,
    keep_some,
    open_source,
    scan,
    statistics,
)
from regard.data.feed import ImageFeed
from regard.data.splits import split
from regard.errors import ConfigError, DataError, NoLabelError, counted
from regard.geometry import three_quarters
from regard.image_groups import VOLUMES_ONLY, Augment, ImageData
from regard.networks.base import Network
from regard.nn.lora import merged
from regard.settings import RunConfig
from regard.task import Choice, Job, Task
from regard.tasks.image_options import LoadOptions
from regard.tasks.image_predictor import PicturePredictor
from regard.tasks.small_data import SMALL_SIDE, choose_defaults, fitting_size, require_useful_size, size_like
from regard.training import ALONE, World, adapt, largest_batch
from regard.weights import Checkpoint, Run, Start, find_run, open_start, open_weights

FEW = 5000
"""Small pictures up to which no processes load them."""
WHOLE, LITTLE, CELL = 0.98, 0.5, (8, 8)
"""Shares of an image from which on nothing is cut off, and below which another size is worth it; a ResNet's cell."""
PICTURES = {"rotate": 0.0, "zoom": 0.0}
"""The augmentation of pictures that is not asked for."""
VOLUMES = {"rotate": 10.0, "zoom": 0.1, "shift": 0.05, "elastic": 0.02}
"""The augmentation of volumes where none is asked for."""
SCANS = {"intensity_scale": 0.1, "intensity_shift": 0.1, "gamma": 0.2, "bias_field": 0.2, "noise": 0.05}
"""And of those whose intensities a scanner made."""
EVAL_BATCH_PIXELS = 2**22
"""Numbers of small pictures that a GPU evaluates at once."""


def read_images(
    data: str | Path,
    progress: Progress,
    labels: bool = True,
    how: ImageData | None = None,
    accept: Callable[[Source], None] = lambda source: None,
    size: int | tuple[int, ...] | None = None,
) -> ImageDataset:
    """Read every image once, saying what they are; `accept` may refuse the data before that.

    `size` is that of volumes, if it is given.
    """
    source = open_source(data, labels, how, size)
    accept(source)
    with progress.bar("reading", len(source.samples)) as tick:
        dataset = scan(source, lambda done, total: tick(done))
    dataset.path = str(data)
    tell_plan(dataset, progress)
    if source.ignored:
        progress.say(f"not part of the data: {counted(len(source.ignored), 'files')} (`regard check` lists them)")
    return dataset


def tell_plan(dataset: ImageDataset, progress: Progress) -> None:
    """Say what is left out, and how volumes become inputs, and why."""
    for line in dataset.source.left_out:
        progress.say(f"left out: {line}")
    for line in dataset.source.survey.sentences() if dataset.source.survey else ():
        progress.say(f"volumes: {line}")


def default_workers() -> int:
    """Loader processes: one fewer than cores, up to 16."""
    # Where processes are spawned, a plain script without a __main__ guard would run itself again in each.
    forks = multiprocessing.get_start_method(allow_none=True) in (None, "fork") and sys.platform == "linux"
    return min(16, max(0, (os.cpu_count() or 1) - 1)) if forks else 0


class ImageTask(Task):
    """A task whose inputs are images or volumes of one size."""

    files: ClassVar[tuple[str, ...]] = ("transfer.json",)
    labels: ClassVar[bool] = True
    """Whether the data's labels are used."""
    from_scratch: ClassVar[str] = ""
    """The recipe for random weights, whose network and length are chosen from the data."""
    plain: ClassVar[str] = ""
    """The recipe that trains a network as published."""
    plain_small: ClassVar[Mapping[str, Any]] = {
        "model": "vit_nano", "epochs": 60, "batch_size": 128, "lr": 2e-3, "drop_path": 0.05
    }  # fmt: skip
    """What it has for small pictures."""
    finetune: ClassVar[str] = ""
    """The recipe for trained weights."""
    predictor_type: ClassVar[type[PicturePredictor]]
    """What `regard.load` gives for its runs."""

    def __init__(self, job: Job):
        super().__init__(job)
        self.images: Images
        self.preparation: Preparation

    @property
    def dataset(self) -> Any:
        return self.job.dataset

    @classmethod
    def open(cls, data: str | Path, config: RunConfig, progress: Progress) -> Any:
        how = config.data
        assert isinstance(how, ImageData)
        try:
            return read_images(data, progress, cls.labels, how, size=config.model.fields().get("size"))
        except NoLabelError as error:
            others = f"for another target, {'; '.join(tasks.helps('target'))}"
            raise DataError(error.what, where=error.where, do=f"{error.do}; {others}") from None

    @classmethod
    def stored_settings(cls, run: str | Path, data: str | Path) -> dict[str, Any]:
        folder = find_run(run)
        return folder.reading(data) if folder else {}

    @classmethod
    def outputs(cls, dataset: Any, config: Any) -> int:
        """Number of outputs of the network's head."""
        return len(dataset.source.classes)

    @classmethod
    def start(cls, config: Any, model: str | None, dataset: Any) -> Start | None:
        weights = config.transfer.weights
        if not weights:
            return None
        fields = config.model.fields()
        outputs, predicts = cls.outputs(dataset, config), config.predicts
        opened = partial(
            open_start, weights, outputs, model=model, predicts=predicts,
            inflation=getattr(config.transfer, "inflation", None),
        )  # fmt: skip
        start = opened(fields=fields)
        size, suited = fitting_size(start.checkpoint.config, dataset), dict[str, Any]()
        if start.report.inflated:  # as the data has them, not the pictures
            suited, size = {"channels": dataset.channels}, min(dataset.sizes) if len(dataset.sizes) == 1 else None
        suited |= {"size": size} if size else {}
        return opened(fields=suited | fields) if suited.keys() - fields.keys() else start

    @classmethod
    def choose(
        cls, dataset: Any, start: Any, asked: Mapping[str, Any], gpu: bool, given: list[str | None] | None = None
    ) -> Choice:
        return choose_defaults(cls, dataset, start, asked, gpu, given)

    @classmethod
    def split(cls, dataset: Any, config: Any, given: list[str | None] | None = None) -> tuple[list[str], str]:
        splits, note = split(dataset, config.data.split_seed, config.data.holdout, given=given)
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
            started = config.flat().get("weights")
            wanted = "weights of a model" if started else "a --model"
            what = f"{model} takes inputs with {len(own)} axes and the data has {axes}"
            inflate = (
                ", or add --model vit3d_nano (of the weights' size) to inflate them" if started and axes == 3 else ""
            )
            raise ConfigError(what, do=f"choose {wanted} for {kind}{inflate}")
        given = {name: value for name, value in config.model.fields().items() if name in ("size", "patch")}
        room = zip(registry.configure(model, **given).smallest, sizes[0], own, strict=True)
        one_size = len(sizes) == 1 and all(least <= side <= most for least, side, most in room)
        crop = "none" if axes != 2 else "resized" if max(sizes[0]) > SMALL_SIDE else "shift"
        amounts = PICTURES if axes == 2 else VOLUMES | (SCANS if dataset.source.survey else {})
        cropped = (config.augment.crop or crop) in CROPS
        # A few small pictures are cropped sooner than a process starts.
        few_small = len(dataset) <= FEW and max(map(max, dataset.sizes)) <= SMALL_SIDE
        in_memory = bool(dataset.cache) and (not cropped or few_small)
        return {
            "size": sizes[0] if one_size or dataset.source.survey else own,
            "channels": dataset.channels,
            "crop": crop,
            "flip": dataset.channels == 3 and axes == 2,
            **{name: value for name, value in amounts.items() if hasattr(config.augment, name)},
            "workers": 0 if in_memory else default_workers(),
        }

    def check_augmentation(self) -> None:
        """An error for a setting of it that would have no effect."""
        augment, origins = self.config.augment, self.job.origins
        if origins.get("strength") == "flag" and augment.policy != "rand":
            raise ConfigError("strength is for RandAugment only", do="give --policy rand, or leave --strength out")
        if origins.get("mixup_off") == "flag" and augment.mixup_off and not (augment.mixup or augment.cutmix):
            what = "mixup_off has no effect without mixup or CutMix"
            raise ConfigError(what, do="give --mixup or --cutmix, or leave --mixup-off out")
        volumes = len(registry.find(self.config.model.model).size) == 3
        both = [n for n in ("crop", "shift") if origins.get(n) == "flag"] if augment.crop == "shift" else []
        if len(both) == 2 and volumes:
            raise ConfigError("crop=shift and shift are both given", do="give one of --crop shift and --shift")
        if volumes and augment.flip is False and origins.get("flip") == "flag" and getattr(augment, "flip_axes", None):
            raise ConfigError("--no-flip and --flip-axes are both given", do="give one of them")

    def prepare(self, progress: Progress, about: dict[str, Any] | None, folder: Path | None) -> None:
        self.check_augmentation()
        if told := self._augmentation_words():
            progress.say(told)
        if self.job.start:
            for line in self.job.start.report.lines():
                progress.say(line)

    def _augmentation_words(self) -> str:
        """How volumes vary from epoch to epoch, in one line; nothing of pictures."""
        augment = self.config.augment
        names = [n for n in ("rotate", "zoom", *VOLUMES_ONLY) if getattr(augment, n, None)]
        if len(registry.find(self.config.model.model).size) != 3 or not names:
            return ""
        parts = [f"{n.replace('_', ' ')} {getattr(augment, n)}" for n in names]
        mirrored = "" if augment.flip or augment.flip_axes else "; not mirrored (--flip)"
        return f"volumes: augmented by {', '.join(parts)}{mirrored}"

    def build(self, about: dict[str, Any] | None) -> Network:
        network = self._network(about)
        size, channels = network.config.size, network.config.channels
        if not about and self.job.origins.get("size") == "flag":
            require_useful_size(size, getattr(network.config, "patch", None), max(self.dataset.sizes, key=max))
        self.images = Images(self.dataset, size, channels)
        plan = self.dataset.source.survey.plan if self.dataset.source.survey else None
        if plan and tuple(size) != plan.size:
            given = " ".join(map(str, size))
            what = f"the network takes inputs of {given}, and the volumes were prepared as {plan.size}"
            raise ConfigError(what, do=f"give --size {given}")
        if about:
            self.preparation = make(Preparation, about["preparation"])
        elif self.job.start and not self.job.start.report.inflated:
            self.preparation = self.job.start.checkpoint.preparation.following(plan)
        else:
            numbers = statistics(self.images, self.job.part("train"))
            self.preparation = Preparation(size, channels, *numbers).following(plan)
        return self.assemble(network)

    def _network(self, about: dict[str, Any] | None) -> Network:
        """From weights, with a head of zeros; of a saved state's shape; or random as the seed says."""
        model = self.config.model
        if about:
            return registry.build(model.model, **about["model"])
        if self.job.start is None:
            outputs = self.outputs(self.dataset, self.config)
            return registry.build(model.model, classes=outputs, **model.fields())
        return self.job.start.with_rates(model.fields()).build()

    def assemble(self, network: Network) -> Any:
        """The module to train, made of the network."""
        return network

    def adapt(self) -> None:
        """Freeze what is to stay as it is, and add what is learnt beside it."""
        adapt(self.model, self.config.transfer)

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
        mixed = epochs - round(epochs * augment.mixup_off) if isinstance(augment, Augment) else epochs
        return mixed, min(round(epochs * augment.low_res), epochs - 1)

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
        augmenter, prepared = self.augmenter(), self.preparation
        augmenter.spacing = prepared.spacing or augmenter.spacing
        augmenter.raw = bool(prepared.scans) and prepared.intensity == "raw"
        return ImageFeed(loader, augmenter, self.device)

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
        if line := self._cut_off():
            progress.say(line)
        self.write_transfer(run, progress)

    def _cut_off(self) -> str:
        """What is left of the commonest images that do not have the input's proportions."""
        size = self.images.size
        shares = {shape: fitted_share(shape, size) for shape, _ in self.dataset.sizes.most_common()}
        shape, share = next(((shape, share) for shape, share in shares.items() if share < WHOLE), (size, 1.0))
        if share == 1.0:
            return ""
        left = f"{share:.0%} of {' × '.join(map(str, shape))} is left"
        line = f"images of other proportions than {size} are cut at the centre, not stretched: {left}"
        if share >= LITTLE or len(size) != 2:
            return line
        like = size_like(shape, size, getattr(self.network().config, "patch", CELL))
        return f"warning: {line}; --size {like[0]} {like[1]} has their proportions"

    def write_transfer(self, run: Run, progress: Progress) -> None:
        """Where the weights come from, and whether they have seen the tested images."""
        if self.job.start:
            tested, trained = self.tests[0], sum(p.numel() for p in self.model.parameters() if p.requires_grad)
            folder = find_run(self.config.transfer.weights)
            rows = [] if folder is None else folder.seen_rows()
            seen = len(self.dataset.seen(rows).intersection(self.job.part(tested)))
            if seen:
                progress.say(f"warning: the weights come from a run that has seen {seen} of the images of {tested}")
            facts = self.job.start.to_json() | {"parameters_trained": trained, f"seen_in_{tested}": seen}
            run.write_json("transfer.json", facts)

    def plan_rows(self) -> list[tuple[str, str]]:
        """Of volumes: the fingerprint of the data, what was chosen from it, and what one of them costs."""
        source = self.dataset.source
        return [*source.survey.rows(), ("per volume", source.reader.cost())] if source.survey else []

    def trained(self, run: Run) -> Any:
        return self.predictor_type(open_weights(run.path)[0], self.device)

    @classmethod
    def predictor(cls, path: str | Path, device: torch.device, options: LoadOptions, progress: Progress) -> Any:
        return cls.predictor_type.open(path, device, progress, options)

    @classmethod
    def measure(cls, predictor: Any, dataset: Any, batches: Any, tick: Any, /) -> Any:
        """Figures with intervals over all batches."""
        raise NotImplementedError

    def evaluate(self, trained: Any, part: str, tick: Any) -> Any:
        return self.measure(trained, self.dataset, self.loader(part), tick)

    @classmethod
    def evaluate_on(cls, predictor: Any, dataset: Any, index: list[int], options: Any, progress: Progress) -> Any:
        prepared = predictor.preparation
        loader = Loader(Images(dataset, prepared.size, prepared.channels), index, options.batch_size)
        with progress.bar("evaluating", len(loader)) as tick:
            return cls.measure(predictor, dataset, loader, tick)

    @classmethod
    def ensemble(cls, results: Sequence[Any]) -> Any:
        return type(results[0]).mean_of(results) if cls.pools else super().ensemble(results)

    @classmethod
    def recalibration(cls, result: Any) -> dict[str, Any]:
        return result.recalibration() if cls.pools else {}

    @classmethod
    def without(cls, result: Any, seen: set[int]) -> Any:
        return result.without(seen)

    @property
    def input_words(self) -> str:
        return f"input {self.images.size}"

    @property
    def step_words(self) -> str:
        return f"{self.config.data.batch_size * self.config.optim.accumulate} images"
