"""Groups of settings of tasks on images and volumes: how data is read, and how it is augmented. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from regard.errors import ConfigError
from regard.setting_groups import Data, Group, Machine, setting

MAX_MEGAPIXELS = 64.0
"""Size up to which an image is decoded, if not said otherwise: a small file can claim to be enormous."""


@dataclass(frozen=True)
class ImageMachine(Machine):
    workers: int | None = setting(
        None,
        "Loader processes, for images that are not kept in memory. Default: one fewer than cores, up to 16.",
        least=0,
    )
    shard: bool = setting(False, "With several processes: shard the weights over them (FSDP2) in place of DDP.")


@dataclass(frozen=True)
class PixelOptions(Group):
    pixel_baseline: bool = setting(True, "Compare with simple models of the raw pixels, up to 10,000 training images.")


@dataclass(frozen=True)
class PictureData(Data):
    """What every task on images has."""

    title: ClassVar[str] = "image data"
    batch_size: int | Literal["auto"] = setting(
        64, "Images per batch, over all processes; auto: the most that the GPU can hold.", least=1, common=True
    )
    images: int | None = setting(
        None,
        "Use only this many training images, as many of each class, if any; smaller subsets are nested in larger ones.",
        least=1,
    )
    max_megapixels: float = setting(
        MAX_MEGAPIXELS,
        "Largest image that is decoded, in millions of pixels; volumes may have 8 times as many voxels.",
        least=0.001,
        opens=True,
    )


@dataclass(frozen=True)
class ImageData(PictureData):
    """How images and volumes are read from a table."""

    image_column: str | None = setting(
        None, "Column of the table that holds the paths. Default: path, image, file, filename or filepath.", opens=True
    )
    scans: str | None = setting(
        None,
        "Volumes: columns of the table that hold scans, separated by commas: t1,flair. Default: all that do.",
        opens=True,
        volumes=True,
    )
    spacing: float | tuple[float, ...] | None = setting(
        None,
        "Volumes: millimetres per voxel of the input, one number or three. Default: chosen from the data.",
        opens=True,
        volumes=True,
    )
    foreground: bool | None = setting(
        None,
        "Volumes: crop the air around the patient. Default: yes.",
        opens=True,
        volumes=True,
    )
    intensity: Literal["zscore", "percentiles", "raw"] | None = setting(
        None,
        "Volumes: intensities of each scan by mean and deviation of its foreground, by its 1st and 99th percentile, or "
        "as they are. Default: zscore.",
        opens=True,
        volumes=True,
    )
    cache_folder: str | None = setting(
        None,
        "Volumes: folder that keeps prepared ones. Default: regard/volumes in the user's cache.",
        opens=True,
        volumes=True,
    )

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns of a table without which a row is of no use."""
        return ()

    def named(self, setting: str) -> Any:
        """The value of a setting; None where this data has none of that name."""
        return getattr(self, setting, None)


@dataclass(frozen=True)
class LabelColumnData(ImageData):
    """Data whose labels stand in a table."""

    label_column: str | None = setting(
        None,
        "Column of the table that holds the labels; several, learnt jointly, separated by commas: mgmt,pten. Default: "
        "label, class, target or diagnosis.",
        common=True,
        opens=True,
    )


@dataclass(frozen=True)
class LabelData(LabelColumnData):
    """Data with one label each, in a table, by folder or by file name."""

    label_pattern: str | None = setting(
        None,
        "Labels from file names: a regular expression whose first group is the label, such as '^(.+)_[0-9]+'.",
        opens=True,
    )


@dataclass(frozen=True)
class ObjectData(PictureData):
    """Which annotations are read."""

    stuff: bool | None = setting(
        None,
        "Of COCO data with both: things and stuff, from the panoptic annotations, or only things, from the instances. "
        "Default: stuff too for a model with masks.",
        opens=True,
    )


@dataclass(frozen=True)
class Crops(Group):
    """The variation that needs no labels."""

    title: ClassVar[str] = "augmentation"
    crop: Literal["none", "shift", "simple", "resized"] | None = setting(
        None, "Random crops. Default: resized above 64 pixels, else shift (by up to an eighth); none in 3D."
    )
    flip: bool | None = setting(
        None,
        "Mirror each image every other epoch; volumes at random, left and right. Default: colour pictures only.",
    )


@dataclass(frozen=True)
class Variation(Crops):
    """The variation of each image by itself."""

    rotate: float | None = setting(
        None, "Largest random rotation in degrees; of volumes about each axis. Default: none; volumes 10.", least=0
    )
    zoom: float | None = setting(
        None,
        "Largest random change of scale: 0.1 is 10 %. Default: none; volumes with classes 0.1.",
        least=0,
        below=1,
    )
    policy: Literal["none", "rand", "trivial", "three"] = setting(
        "none", "RandAugment, TrivialAugment or DeiT III's 3-Augment."
    )
    strength: float = setting(0.3, "Strength of RandAugment, 0 to 1 (level 10 of 10).", least=0, most=1)
    erase: float = setting(0.0, "Random erasing: share of images.", least=0, most=1)
    low_res: float = setting(
        0.0,
        "Share of the epochs, at the beginning, that see only the middle three quarters of each side.",
        least=0,
        below=1,
    )

    shift: float | None = setting(
        None,
        "Volumes: largest random shift as a share of each side. Default: 0.05.",
        least=0,
        most=0.5,
        volumes=True,
    )
    elastic: float | None = setting(
        None,
        "Volumes: largest displacement of a smooth elastic field, as a share of each side. Default: 0.02.",
        least=0,
        most=0.1,
        volumes=True,
    )
    flip_axes: str | None = setting(
        None,
        "Volumes: axes mirrored at random: x (left and right), y (front and back), z (top and bottom), or several: "
        "x,y. Default: none, since organs have sides.",
        volumes=True,
    )
    intensity_scale: float | None = setting(
        None,
        "Volumes: largest random factor on intensities: 0.1 is 10 %. Default: 0.1 of scans.",
        least=0,
        below=1,
        volumes=True,
    )
    intensity_shift: float | None = setting(
        None,
        "Volumes: largest random shift of intensities, in standard deviations. Default: 0.1 of scans.",
        least=0,
        volumes=True,
    )
    gamma: float | None = setting(
        None,
        "Volumes: random contrast curve, a power from 1 / (1 + gamma) to 1 + gamma. Default: 0.2 of scans.",
        least=0,
        most=4,
        volumes=True,
    )
    bias_field: float | None = setting(
        None,
        "Volumes: largest change of intensity by a smooth field, as a coil makes it. Default: 0.2 of scans.",
        least=0,
        below=1,
        volumes=True,
    )
    noise: float | None = setting(
        None,
        "Volumes: most random Gaussian noise, in standard deviations. Default: 0.05 of scans.",
        least=0,
        volumes=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        axes = [] if self.flip_axes is None else self.flip_axes.split(",")
        if set(axes) - {"x", "y", "z"} or len(set(axes)) < len(axes):
            raise ConfigError(f"flip_axes={self.flip_axes!r} names no axes", do="give --flip-axes x, or such as x,y")

    @property
    def varies(self) -> bool:
        """Whether a picture is not the same in every epoch."""
        amounts = [self.rotate, self.zoom, self.erase, self.low_res]
        amounts += [getattr(self, name) for name in VOLUMES_ONLY]
        return any(amounts) or bool(self.flip) or self.policy != "none" or self.crop not in (None, "none")


VOLUMES_ONLY = tuple(entry.name for entry in fields(Variation) if entry.metadata["volumes"])
"""Settings of the augmentation that pictures do not have."""


@dataclass(frozen=True)
class Augment(Variation):
    """The variation where two images may also be mixed, with their targets."""

    mixup: float = setting(0.0, "Alpha of mixup; 0: off.", least=0)
    cutmix: float = setting(0.0, "Alpha of CutMix; 0: off.", least=0)
    mixup_off: float = setting(0.0, "Share of the epochs, at the end, without mixup and CutMix.", least=0, below=1)

    @property
    def varies(self) -> bool:
        return super().varies or bool(self.mixup or self.cutmix)


@dataclass(frozen=True)
class ObjectAugment(Group):
    """The variation of images with boxes, which move with their image."""

    title: ClassVar[str] = "augmentation"
    flip: bool = setting(True, "Mirror each image every other epoch.")
    scale_low: float = setting(0.5, "Smallest random scale of an image; 1: it fills the input.", above=0, most=1)
    scale_high: float = setting(1.5, "Largest random scale of an image; 1: all of it is seen.", least=1, most=4)
    crop_share: float = setting(0.3, "Share of images that are cropped at random, around an object.", least=0, most=1)
    mosaic: float = setting(0.0, "Share of images that become mosaics of four.", least=0, most=1)
    mixup: float = setting(
        0.0, "Share of images that are blended with another one, with the boxes of both.", least=0, most=1
    )
    mixup_off: float = setting(0.2, "Share of the epochs, at the end, without mosaic and mixup.", least=0, below=1)
    colour: float = setting(
        0.3, "Largest random change of brightness, contrast and saturation: 0.3 is 30 %.", least=0, below=1
    )
