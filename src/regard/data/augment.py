"""Augmentation on whole batches, each sample's randomness its own: a function of (seed, epoch, sample).

Images come as float in 0..1 with shape (B, C, *size). Mixing pairs samples of a batch, so it is keyed by
(seed, epoch, step) instead.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import Augment
from regard.data.random import uniforms
from regard.errors import ConfigError

# RandAugment (Cubuk et al., 2020) and TrivialAugment (Müller & Hutter, 2021, its "wide" space): what is
# done, and the strength at level 0 and at full level. Two-sided strengths also get a random sign.
_Operation = Callable[[Tensor, Tensor], Tensor]


def _operations() -> dict[str, tuple[float, float, bool, _Operation | None]]:
    from kornia import enhance
    from kornia.geometry import transform

    def shear(axis: int) -> _Operation:
        def run(x: Tensor, s: Tensor) -> Tensor:
            zero = torch.zeros_like(s)
            return transform.shear(x, torch.stack([s, zero] if axis == 0 else [zero, s], dim=1))

        return run

    def slide(axis: int) -> _Operation:
        def run(x: Tensor, s: Tensor) -> Tensor:
            pixels, zero = s * x.shape[-1 - axis], torch.zeros_like(s)
            return transform.translate(x, torch.stack([pixels, zero] if axis == 0 else [zero, pixels], dim=1))

        return run

    def autocontrast(x: Tensor, _: Tensor) -> Tensor:
        low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
        return torch.where(high > low, (x - low) / (high - low).clamp_min(1e-6), x)

    def posterize(x: Tensor, s: Tensor) -> Tensor:
        return enhance.posterize(x, s.round().int())

    return {
        "identity": (0, 0, False, None),
        "autocontrast": (0, 0, False, autocontrast),
        "equalize": (0, 0, False, lambda x, _: enhance.equalize(x)),
        "rotate": (0, 30, True, transform.rotate),
        "shear_x": (0, 0.3, True, shear(0)),
        "shear_y": (0, 0.3, True, shear(1)),
        "slide_x": (0, 0.25, True, slide(0)),
        "slide_y": (0, 0.25, True, slide(1)),
        "posterize": (8, 2, False, posterize),
        "solarize": (1, 0, False, lambda x, s: enhance.solarize(x, s)),
        "brightness": (0, 0.9, True, lambda x, s: enhance.adjust_brightness_accumulative(x, 1 + s)),
        "contrast": (0, 0.9, True, lambda x, s: enhance.adjust_contrast_with_mean_subtraction(x, 1 + s)),
        "colour": (0, 0.9, True, lambda x, s: _colour(x, 1 + s)),
        "sharpness": (0, 0.9, True, lambda x, s: enhance.sharpness(x, 1 + s)),
    }


def _colour(x: Tensor, factor: Tensor) -> Tensor:
    from kornia import enhance

    return enhance.adjust_saturation_with_gray_subtraction(x, factor) if x.shape[1] == 3 else x


def move(x: Tensor, u: Tensor, config: Augment) -> Tensor:
    """Shift, rotate, zoom and flip as one resampling; `u` holds five numbers in [0, 1) a sample."""
    dims = x.ndim - 2
    shift = config.crop == "shift"
    if not (shift or config.rotate or config.zoom or config.flip):
        return x
    signed = 2 * u - 1
    angle, zoom = signed[:, 0] * math.radians(config.rotate), 1 + signed[:, 1] * config.zoom
    mirror = torch.where(u[:, 2] < 0.5, -1.0, 1.0) if config.flip else torch.ones(len(x))
    theta = torch.zeros(len(x), dims, dims + 1)
    for axis in range(dims):
        theta[:, axis, axis] = zoom
    theta[:, 0, 0], theta[:, 0, 1] = zoom * angle.cos() * mirror, -zoom * angle.sin()
    theta[:, 1, 0], theta[:, 1, 1] = zoom * angle.sin() * mirror, zoom * angle.cos()
    if shift:  # whole pixels, an eighth of the side each way
        for axis, side in ((0, x.shape[-1]), (1, x.shape[-2])):
            reach = side // 8
            theta[:, axis, -1] = torch.floor(u[:, 3 + axis] * (2 * reach + 1)).sub(reach) * 2 / side
    grid = _affine_grid(theta.to(x.device, x.dtype), tuple(x.shape[2:]))
    return F.grid_sample(x, grid, align_corners=False)


def _affine_grid(theta: Tensor, size: tuple[int, ...]) -> Tensor:
    """F.affine_grid by plain products: its batched matrix product rounds differently in different batches."""
    axes = [((torch.arange(n, device=theta.device, dtype=theta.dtype) * 2 + 1) / n - 1) for n in reversed(size)]
    dims, rows = len(size), []
    shaped = [a.reshape(1, *[-1 if dims - 1 - i == j else 1 for j in range(dims)]) for i, a in enumerate(axes)]
    for row in range(dims):
        at = theta[:, row].reshape(len(theta), dims + 1, *[1] * dims)
        rows.append(sum((at[:, i] * shaped[i] for i in range(dims)), at[:, dims]).expand(len(theta), *size))
    return torch.stack(rows, dim=-1)


def vary(x: Tensor, u: Tensor, policy: str) -> Tensor:
    """RandAugment (two operations at strength 0.3) or TrivialAugment (one at any strength)."""
    if policy == "none":
        return x
    if x.ndim != 4:
        raise ConfigError(f"policy={policy!r} is for pictures, not volumes", do="use --policy none")
    table = _operations()
    rounds = 2 if policy == "rand" else 1
    for turn in range(rounds):
        pick, level, sign = u[:, 3 * turn], u[:, 3 * turn + 1], u[:, 3 * turn + 2]
        chosen = (pick * len(table)).long()
        out = x.clone()
        for number, (low, high, signed, operation) in enumerate(table.values()):
            at = (chosen == number).nonzero()[:, 0]
            if operation is None:
                continue
            strength = low + (high - low) * (level[at] if policy == "trivial" else torch.full((len(at),), 0.3))
            if signed:
                strength = torch.where(sign[at] < 0.5, -strength, strength)
            # One sample at a time: batched kernels may round differently in different batches.
            for n, s in zip(at.tolist(), strength.to(x.device, x.dtype), strict=True):
                out[n] = operation(x[n : n + 1], s[None])[0].clamp(0, 1)
        x = out
    return x


def erase(x: Tensor, u: Tensor, share: float) -> Tensor:
    """Random erasing (Zhong et al., 2020): a box of 2 to 33 % of the image becomes zero, for `share` of them."""
    if share == 0:
        return x
    dims = x.ndim - 2
    area = 0.02 + 0.31 * u[:, 1]
    ratio = torch.exp((2 * u[:, 2] - 1) * math.log(10 / 3))
    keep = torch.zeros(len(x), *x.shape[2:], dtype=torch.bool)
    for axis in range(dims):
        side = x.shape[2 + axis]
        stretch = {0: ratio.sqrt(), dims - 1: 1 / ratio.sqrt()}.get(axis, torch.ones(len(x)))
        length = (area ** (1 / dims) * stretch * side).clamp(1, side).floor()
        start = (u[:, 3 + axis] * (side - length + 1)).floor()
        at = torch.arange(side)[None]
        outside = (at < start[:, None]) | (at >= (start + length)[:, None])
        keep |= outside.reshape(len(x), *[-1 if axis == a else 1 for a in range(dims)])
    keep |= (u[:, 0] >= share).reshape(-1, *[1] * dims)
    return x * keep[:, None].to(x.device, x.dtype)


def mix(x: Tensor, targets: Tensor, config: Augment, seed: int, epoch: int, step: int) -> tuple[Tensor, Tensor]:
    """mixup (Zhang et al., 2018) or CutMix (Yun et al., 2019), one of them for the whole batch."""
    kinds = [kind for kind in ("mixup", "cutmix") if getattr(config, kind) > 0]
    if not kinds:
        return x, targets
    draw = np.random.default_rng([seed, epoch, step])
    kind = kinds[int(draw.integers(len(kinds)))]
    alpha = getattr(config, kind)
    own, other = float(draw.beta(alpha, alpha)), torch.from_numpy(draw.permutation(len(x)))
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


class Augmenter:
    """From a batch of pixels to what the network trains on: augmented, normalised, with soft targets."""

    def __init__(self, config: Augment, seed: int, mean: tuple[float, ...], std: tuple[float, ...], classes: int):
        self.config, self.seed, self.mean, self.std, self.classes = config, seed, mean, std, classes

    def __call__(self, images: Tensor, labels: Tensor, index: Tensor, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        u = torch.from_numpy(uniforms(self.seed, epoch, index.numpy(), 17, use=2)).float()
        x = vary(move(to_float(images), u[:, :5], self.config), u[:, 5:11], self.config.policy)
        x = erase(normalise(x, self.mean, self.std), u[:, 11:], self.config.erase)
        targets = F.one_hot(labels, self.classes).to(x.dtype)
        return mix(x, targets, self.config, self.seed, epoch, step)


def to_float(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images


def normalise(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    shape = (1, -1, *[1] * (x.ndim - 2))
    return (x - x.new_tensor(mean).reshape(shape)) / x.new_tensor(std).reshape(shape)
