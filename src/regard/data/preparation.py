"""Preparation of decoded pixels as a network's input, and the channel statistics for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.data.augment import normalise, to_float
from regard.data.fitting import fit, with_channels
from regard.data.loader import Images
from regard.data.volumes.frame import ScanFrame
from regard.data.volumes.preparing import Plan
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
    scans: tuple[str, ...] = ()
    """Of volumes from scans: names of the channels. The fields below are theirs, as in `Plan`."""
    spacing: tuple[float, ...] = ()
    foreground: bool = True
    intensity: str = "zscore"

    @property
    def plan(self) -> Plan | None:
        """How scans become the network's input; None of pictures and arrays."""
        return Plan(self.scans, self.spacing, self.size, self.foreground, self.intensity) if self.scans else None

    def reading(self) -> dict[str, Any]:
        """The settings by which other scans are read as the model's own were; none of pictures and arrays."""
        if not self.scans:
            return {}
        return {
            "scans": ",".join(self.scans), "spacing": self.spacing, "foreground": self.foreground,
            "intensity": self.intensity,
        }  # fmt: skip

    def following(self, plan: Plan | None) -> Preparation:
        """The same for scans that are prepared by this plan."""
        if plan is None:
            return self
        return replace(
            self, scans=plan.scans, spacing=plan.spacing, foreground=plan.foreground, intensity=plan.intensity
        )

    def picture(self, pixels: Tensor) -> Tensor:
        """The network's input before normalisation: (channels, *size) in 0..1; of scans, in their own units."""
        return to_float(fit(with_channels(pixels, self.channels), self.size))

    def frame(self, file_size: tuple[int, ...]) -> Frame:
        """The position of the network's input on a picture of that size."""
        return Frame.fitted(file_size, self.size)

    def region(self, mask: Tensor, frame: Frame | ScanFrame | None = None) -> Tensor:
        """A mask of the decoded picture's size, resampled to the network's input: true inside, (*size).

        A region smaller than a pixel of the input marks the pixel that it covers most. `frame` is that of a scan.
        """
        frame = frame or self.frame(tuple(mask.shape))
        share = frame.mask_to_input(mask)
        if share.max() <= 0:
            what, do = "is empty", "mark something"
            if mask.any():
                what, do = "lies in the part that is cut off", "mark something that the network sees"
            if mask.any() and isinstance(frame, Frame) and len(frame.window) == 2:
                rows, columns = (f"{start:.0f} to {start + length:.0f}" for start, length in frame.window)
                do += f": rows {rows}, columns {columns}"
            raise ConfigError(f"the mask or box {what}", do=do)
        return share >= min(0.5, float(share.max())) - 1e-6

    def patient(self, picture: Tensor) -> Tensor | None:
        """Of a scan's `picture`: true in the foreground, (*size); None of pictures and arrays."""
        if not self.scans:
            return None
        air = picture.flatten(1).amin(1)[:, None, None, None] if self.intensity == "raw" else 0.0
        inside = (picture != air).any(0)
        return inside if inside.any() else None

    def normalised(self, pictures: Tensor) -> Tensor:
        return normalise(pictures, self.mean, self.std)

    def shown(self, x: Tensor) -> Tensor:
        """The inverse of `normalised`: pictures in 0..1 from a network's inputs or predicted images."""
        mean, std = (torch.tensor(v, device=x.device).reshape(-1, *[1] * len(self.size)) for v in (self.mean, self.std))
        return self.display(x * std + mean).clamp(0, 1)

    def display(self, picture: Tensor) -> Tensor:
        """What is drawn, in 0..1: of scans, each channel from its 1st to its 99th percentile."""
        if not self.scans:
            return picture
        flat = picture.flatten(-len(self.size)).float()
        step = max(1, flat.shape[-1] // 100_000)  # quantile takes no more than 16 million values
        low, high = (flat[..., ::step].quantile(q, dim=-1)[(..., *[None] * len(self.size))] for q in (0.01, 0.99))
        return ((picture - low) / (high - low).clamp_min(1e-6)).clamp(0, 1)

    def __call__(self, pixels: Tensor) -> Tensor:
        """(1, channels, *size), ready for the network."""
        return self.normalised(self.picture(pixels)[None])
