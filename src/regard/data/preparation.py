"""Preparation of decoded pixels as a network's input, and the channel statistics for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.augment import normalise, to_float
from regard.data.fitting import fit, with_channels
from regard.data.loader import Images
from regard.errors import ConfigError
from regard.geometry import Frame


def statistics(images: Images, index: list[int], most: int = 1000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over (up to `most` of) the given samples."""
    chosen = index[:: max(1, len(index) // most)][:most]
    total, squares, count = torch.zeros(images.channels).double(), torch.zeros(images.channels).double(), 0
    for i in chosen:
        x = to_float(images[0, i][0]).double().flatten(1)
        total, squares, count = total + x.sum(1), squares + (x * x).sum(1), count + x.shape[1]
    mean = total / count
    std = (squares / count - mean**2).clamp_min(0).sqrt().clamp_min(1e-3)
    return tuple(round(m, 6) for m in mean.tolist()), tuple(round(s, 6) for s in std.tolist())


@dataclass(frozen=True)
class Preparation:
    """Turns decoded pixels into a network's input; saved with the weights."""

    size: tuple[int, ...]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def picture(self, pixels: Tensor) -> Tensor:
        """The network's input before normalisation: (channels, *size) in 0..1."""
        return to_float(fit(with_channels(pixels, self.channels), self.size))

    def frame(self, file_size: tuple[int, ...]) -> Frame:
        """The position of the network's input on a picture of that size."""
        return Frame.fitted(file_size, self.size)

    def region(self, mask: Tensor) -> Tensor:
        """A mask of the decoded picture's size, resampled to the network's input: true inside, (*size).

        A region smaller than a pixel of the input marks the pixel that it covers most.
        """
        share = self.frame(tuple(mask.shape)).mask_to_input(mask)
        if share.max() <= 0:
            what = "is empty" if not mask.any() else "lies in the part that is cut off: inputs are cut at the centre"
            raise ConfigError(f"the mask {what}", do="mark something that the network sees")
        return share >= min(0.5, float(share.max())) - 1e-6

    def normalised(self, pictures: Tensor) -> Tensor:
        return normalise(pictures, self.mean, self.std)

    def shown(self, x: Tensor) -> Tensor:
        """The inverse of `normalised`: pictures in 0..1 from a network's inputs or predicted images."""
        mean, std = (torch.tensor(v, device=x.device).reshape(-1, *[1] * len(self.size)) for v in (self.mean, self.std))
        return (x * std + mean).clamp(0, 1)

    def __call__(self, pixels: Tensor) -> Tensor:
        """(1, channels, *size), ready for the network."""
        return self.normalised(self.picture(pixels)[None])
