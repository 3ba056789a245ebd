"""Augmentation of whole batches on the device.

- Images are float in 0..1, (B, C, *size).
- A sample's random numbers depend on (seed, epoch, sample) only.
- Volumes are deformed (`deform.py`) and change their intensities (`intensities.py`).
- Mixing pairs neighbours in a batch and depends on (seed, epoch, step): it does not depend on the number of processes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.deform import draw_deformation
from regard.data.intensities import vary_intensities
from regard.data.random import uniforms
from regard.data.send import send
from regard.data.three import three_augment
from regard.errors import ConfigError
from regard.image_groups import Augment, Variation

_Operation = Callable[[Tensor, Tensor], Tensor]


def _operations() -> dict[str, tuple[float, float, bool, _Operation]]:
    """The operations of RandAugment (Cubuk et al., 2020) and TrivialAugment (Müller & Hutter, 2021, "wide").

    For each: the strength at level 0 and at full level, whether it also gets a random sign, and the
    operation on (B, C, H, W) with one strength per sample.
    """
    from kornia import enhance

    return {
        "identity": (0, 0, False, lambda x, s: x),
        "autocontrast": (0, 0, False, lambda x, s: _autocontrast(x)),
        "equalize": (0, 0, False, lambda x, s: _equalize(x)),
        "rotate": (0, 30, True, lambda x, s: _warp(x, _theta(x, rotation=torch.deg2rad(s)))),
        "shear_x": (0, 0.3, True, lambda x, s: _warp(x, _theta(x, shear=(s, 0.0)))),
        "shear_y": (0, 0.3, True, lambda x, s: _warp(x, _theta(x, shear=(0.0, s)))),
        "slide_x": (0, 0.25, True, lambda x, s: _warp(x, _theta(x, shift=(2 * s, 0.0)))),
        "slide_y": (0, 0.25, True, lambda x, s: _warp(x, _theta(x, shift=(0.0, 2 * s)))),
        "posterize": (8, 2, False, lambda x, s: enhance.posterize(x, s.round().int())),
        "solarize": (1, 0, False, lambda x, s: enhance.solarize(x, s)),
        "brightness": (0, 0.9, True, lambda x, s: enhance.adjust_brightness_accumulative(x, 1 + s)),
        "contrast": (0, 0.9, True, lambda x, s: enhance.adjust_contrast_with_mean_subtraction(x, 1 + s)),
        "colour": (0, 0.9, True, lambda x, s: _colour(x, 1 + s)),
        "sharpness": (0, 0.9, True, lambda x, s: enhance.sharpness(x, 1 + s)),
    }


def _autocontrast(x: Tensor) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp_min(1e-6), x)


def _equalize(x: Tensor) -> Tensor:
    """Each channel's grey levels spread evenly, as Pillow does; kornia's own loops over images in Python."""
    levels = (x * 255).round().long().flatten(2)  # (B, C, pixels)
    counts = torch.zeros(*levels.shape[:2], 256, dtype=x.dtype, device=x.device)
    counts.scatter_add_(2, levels, torch.ones_like(x).flatten(2))
    last = counts.gather(2, levels.amax(2, keepdim=True))
    step = ((counts.sum(2, keepdim=True) - last) / 255).floor()
    before = counts.cumsum(2) - counts
    table = ((before + (step / 2).floor()) / step.clamp_min(1)).floor().clamp(0, 255)
    spread = table.gather(2, levels).reshape(x.shape) / 255
    return torch.where((step > 0)[..., None], spread, x)


def _colour(x: Tensor, factor: Tensor) -> Tensor:
    from kornia import enhance

    return enhance.adjust_saturation_with_gray_subtraction(x, factor) if x.shape[1] == 3 else x


def _theta(
    x: Tensor,
    *,
    rotation: Tensor | float = 0.0,
    zoom: Tensor | float = 1.0,
    mirror: Tensor | float = 1.0,
    shear: tuple[Tensor | float, Tensor | float] = (0.0, 0.0),
    shift: tuple[Tensor | float, Tensor | float] = (0.0, 0.0),
) -> Tensor:
    """One map per sample from output to input coordinates of pictures, which run from -1 to 1: (B, 2, 3).

    Rotation and shear are computed in pixels, so a rectangle is not distorted.
    """
    aspect = x.shape[-2] / x.shape[-1]
    angle = rotation if isinstance(rotation, Tensor) else torch.full((), rotation, dtype=x.dtype, device=x.device)
    theta = torch.zeros(len(x), 2, 3, dtype=x.dtype, device=x.device)
    theta[:, 0, 0], theta[:, 0, 1] = zoom * mirror * angle.cos(), (shear[0] - zoom * angle.sin()) * aspect
    theta[:, 1, 0], theta[:, 1, 1] = (shear[1] + zoom * mirror * angle.sin()) / aspect, zoom * angle.cos()
    theta[:, 0, -1], theta[:, 1, -1] = shift
    return theta


def _warp(x: Tensor, theta: Tensor) -> Tensor:
    """Resample by `theta`. F.affine_grid is not used: it rounds differently in different batches."""
    size = x.shape[2:]
    across, down = ((torch.arange(n, device=x.device, dtype=x.dtype) * 2 + 1) / n - 1 for n in reversed(size))
    rows = []
    for row in range(2):
        at = theta[:, row].reshape(len(x), 3, 1, 1)
        rows.append((at[:, 2] + at[:, 0] * across + at[:, 1] * down[:, None]).expand(len(x), *size))
    return F.grid_sample(x, torch.stack(rows, dim=-1), align_corners=False)


def move(x: Tensor, u: Tensor, config: Variation) -> Tensor:
    """Shift, rotate, zoom and flip as one resampling; `u` holds five numbers in [0, 1) per sample."""
    shifted = config.crop == "shift"
    if not (shifted or config.rotate or config.zoom or config.flip):
        return x
    u = send(u, x.device)
    signed = 2 * u - 1
    shift: tuple[Tensor | float, Tensor | float] = (0.0, 0.0)
    if shifted:  # whole pixels, up to an eighth of the side each way
        sides = x.shape[-1], x.shape[-2]
        shift = tuple(
            (torch.floor(u[:, 3 + n] * (2 * (side // 8) + 1)) - side // 8) * 2 / side for n, side in enumerate(sides)
        )  # pyright: ignore[reportAssignmentType]
    theta = _theta(
        x,
        rotation=signed[:, 0] * math.radians(config.rotate or 0.0),
        zoom=1 + signed[:, 1] * (config.zoom or 0.0),
        mirror=torch.where(u[:, 2] < 0.5, -1.0, 1.0) if config.flip else 1.0,
        shift=shift,
    )
    return _warp(x, theta)


def vary(x: Tensor, u: Tensor, policy: str, strength: float = 0.3) -> Tensor:
    """RandAugment (two operations at one strength), TrivialAugment (one at any), or 3-Augment."""
    if policy == "none":
        return x
    if x.ndim != 4:
        raise ConfigError(f"policy={policy!r} is for pictures, not volumes", do="use --policy none")
    if policy == "three":
        return three_augment(x, u)
    table = _operations()
    for repeat in range(2 if policy == "rand" else 1):
        pick, level, sign = u[:, 3 * repeat : 3 * repeat + 3].unbind(1)
        level = level if policy == "trivial" else torch.full_like(level, strength)
        chosen, out = (pick * len(table)).long(), x.clone()
        for number, (low, high, signed, operation) in enumerate(table.values()):
            at = (chosen == number).nonzero()[:, 0]
            if not len(at):
                continue
            strengths = low + (high - low) * level[at]
            if signed:
                strengths = torch.where(sign[at] < 0.5, -strengths, strengths)
            at = send(at, x.device)
            out[at] = operation(x[at], send(strengths.to(x.dtype), x.device)).clamp(0, 1)
        x = out
    return x


def erase(x: Tensor, u: Tensor, share: float) -> Tensor:
    """Random erasing (Zhong et al., 2020): a box of 2 to 33 % of the image becomes zero, for `share` of them."""
    if share == 0:
        return x
    dims, u = x.ndim - 2, send(u, x.device)
    area = 0.02 + 0.31 * u[:, 1]
    ratio = torch.exp((2 * u[:, 2] - 1) * math.log(10 / 3))
    keep = torch.zeros(len(x), *x.shape[2:], dtype=torch.bool, device=x.device)
    for axis in range(dims):
        side = x.shape[2 + axis]
        stretch = {0: ratio.sqrt(), dims - 1: 1 / ratio.sqrt()}.get(axis, torch.ones_like(ratio))
        length = (area ** (1 / dims) * stretch * side).clamp(1, side).floor()
        start = (u[:, 3 + axis] * (side - length + 1)).floor()
        at = torch.arange(side, device=x.device)[None]
        outside = (at < start[:, None]) | (at >= (start + length)[:, None])
        keep |= outside.reshape(len(x), *[-1 if axis == a else 1 for a in range(dims)])
    keep |= (u[:, 0] >= share).reshape(-1, *[1] * dims)
    return x * keep[:, None].to(x.dtype)


def mix(x: Tensor, targets: Tensor, config: Augment, seed: int, epoch: int, step: int) -> tuple[Tensor, Tensor]:
    """mixup (Zhang et al., 2018) or CutMix (Yun et al., 2019), the same one for all images of the batch.

    Each image is mixed with its neighbour: the first with the second and the second with the first.
    """
    kinds = [kind for kind in ("mixup", "cutmix") if getattr(config, kind) > 0]
    if not kinds:
        return x, targets
    draw = np.random.default_rng([seed, epoch, step])
    kind = kinds[int(draw.integers(len(kinds)))]
    alpha = getattr(config, kind)
    own, other = float(draw.beta(alpha, alpha)), (torch.arange(len(x), device=x.device) ^ 1).clamp_max(len(x) - 1)
    if kind == "mixup":
        x = x * own + x[other] * (1 - own)
    else:
        box, covered = [], 1.0
        for side in x.shape[2:]:
            length = round(side * (1 - own) ** (1 / (x.ndim - 2)))
            start = int(draw.integers(side - length + 1))
            box.append(slice(start, start + length))
            covered *= length / side
        x, own = x.clone(), 1 - covered
        x[(..., *box)] = x[other][(..., *box)]
    return x, targets * own + targets[other] * (1 - own)


@dataclass(eq=False)
class Augmenter:
    """Augments and normalises a batch of pixels and makes soft targets.

    After the epoch `mixed`, images are no longer mixed with one another. Up to the epoch `low_res`, each is cropped to
    a centred `window` of that size.
    """

    config: Variation
    seed: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int
    mixed: float = math.inf
    low_res: int = 0
    window: tuple[int, ...] = ()
    spacing: tuple[float, ...] = (1.0, 1.0, 1.0)
    """Of volumes, in millimetres."""
    raw: bool = False
    """Whether the air of volumes is their least intensity, not 0."""

    def images(self, images: Tensor, numbers: Tensor, epoch: int) -> Tensor:
        """Augmented images. The result of an image does not depend on the others of the batch."""
        drawn = uniforms(self.seed, epoch, numbers.numpy(), 17, use=2)
        # Mirrored in every other epoch, not at random (Jordan, 2024): of two epochs one shows the mirror image.
        drawn[:, 2] = (uniforms(self.seed, 0, numbers.numpy(), 1, use=2)[:, 0] + epoch / 2) % 1
        u = torch.from_numpy(drawn).float()
        x, config = to_float(images), self.config
        x = self._volumes(x, numbers, epoch) if x.ndim == 5 else move(x, u[:, :5], config)
        x = vary(x, u[:, 5:11], config.policy, config.strength)
        x = erase(normalise(x, self.mean, self.std), u[:, 11:], self.config.erase)
        return centre_crop(x, self.window) if epoch <= self.low_res else x

    def _volumes(self, x: Tensor, numbers: Tensor, epoch: int) -> Tensor:
        """Deformed, with other intensities; the air around is 0 in between."""
        air = x.amin((2, 3, 4), keepdim=True) if self.raw else torch.zeros((), dtype=x.dtype, device=x.device)
        drawn = (self.config, self.seed, epoch, numbers)
        deformation = draw_deformation(*drawn, tuple(x.shape[2:]), self.spacing, x.device)
        x = x - air
        if deformation:
            x = deformation.apply(x)
        return vary_intensities(x, *drawn, self.std) + air

    def targets(self, labels: Tensor, numbers: Tensor, epoch: int) -> Tensor:
        """Target probabilities, one row per sample."""
        return F.one_hot(labels, self.classes).float()

    def mix(self, x: Tensor, targets: Tensor, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        """Images and targets of a batch, mixed with one another."""
        if not isinstance(self.config, Augment) or epoch > self.mixed:
            return x, targets
        return mix(x, targets, self.config, self.seed, epoch, step)

    def named(self, x: Tensor, targets: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Inputs and targets by name."""
        return {"image": x}, {"probabilities": targets}


def centre_crop(x: Tensor, window: tuple[int, ...]) -> Tensor:
    """The centre of the last axes."""
    for axis, length in enumerate(window, start=x.ndim - len(window)):
        x = x.narrow(axis, (x.shape[axis] - length) // 2, length)
    return x


def patch_order(seed: int, epoch: int, numbers: Tensor, patches: int, device: str | torch.device = "cpu") -> Tensor:
    """A random order of each sample's patches, (B, patches): the last ones are masked.

    >>> order = patch_order(0, 3, torch.tensor([7, 8]), 16)
    >>> torch.equal(order[1:], patch_order(0, 3, torch.tensor([8]), 16))
    True
    """
    u = torch.from_numpy(uniforms(seed, epoch, numbers.numpy(), patches, use=5)).float()
    return send(u, torch.device(device)).argsort(dim=1, stable=True)


class Masker(Augmenter):
    """Augmenter for images without labels: the targets are orders of patches, of which the last are masked."""

    def __init__(self, config: Variation, seed: int, mean: tuple[float, ...], std: tuple[float, ...], patches: int):
        super().__init__(config, seed, mean, std, classes=0)
        self.patches = patches

    def named(self, x: Tensor, targets: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"image": x}, {"patch_order": targets}

    def targets(self, labels: Tensor, numbers: Tensor, epoch: int) -> Tensor:
        return patch_order(self.seed, epoch, numbers, self.patches, labels.device)


def to_float(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images


def normalise(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    centre, width = (
        send(torch.tensor(own, dtype=x.dtype), x.device).reshape(1, -1, *[1] * (x.ndim - 2)) for own in (mean, std)
    )
    return (x - centre) / width
