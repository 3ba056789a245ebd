"""Where a network's input lies in a scan: axes reordered to right, anterior, superior, a window of it, scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from regard.geometry import Frame


@dataclass(frozen=True)
class ScanFrame:
    """`frame` is on the scan with axes in the order right, anterior, superior; its window may reach beyond the scan.

    `order` is the file's axis for each of these, and `flipped` whether it runs the other way. Two arrays of one size
    that lie in other orientations of the same patient have frames that take them to the same input.
    """

    frame: Frame
    order: tuple[int, ...]
    flipped: tuple[bool, ...]
    affine: tuple[tuple[float, ...], ...]
    """Of the file: from its indices to millimetres."""

    @property
    def file_size(self) -> tuple[int, ...]:
        """Of the file's own axes."""
        return tuple(self.frame.file_size[self.order.index(axis)] for axis in range(len(self.order)))

    def map_to_file(self, field: Tensor) -> Tensor:
        """A map of the input (*size) on the file's voxels, zero where the network saw nothing."""
        field = self.frame.map_to_file(field).flip([axis for axis, flip in enumerate(self.flipped) if flip])
        return field.permute([self.order.index(axis) for axis in range(field.ndim)])

    def mask_to_input(self, mask: Tensor) -> Tensor:
        """Of each input voxel, the share that a mask of the file's size covers."""
        mask = mask.permute(self.order).flip([axis for axis, flip in enumerate(self.flipped) if flip])
        return self.frame.mask_to_input(mask)

    def voxel_to_input(self, voxel: Sequence[int]) -> tuple[float, ...]:
        """The place of the middle of a file's voxel in the input, in its voxels: voxel 0 is from 0 to 1."""
        places = []
        for axis, (start, length) in enumerate(self.frame.window):
            side, at = self.frame.file_size[axis], voxel[self.order[axis]] + 0.5
            at = side - at if self.flipped[axis] else at
            places.append((at - start) * self.frame.input_size[axis] / length)
        return tuple(places)

    def input_to_mm(self) -> np.ndarray:
        """(4, 4): from the index of an input's voxel to the scanner's millimetres."""
        to_file = np.zeros((4, 4))
        to_file[3, 3] = 1
        for axis, (start, length) in enumerate(self.frame.window):
            scale, side = length / self.frame.input_size[axis], self.frame.file_size[axis]
            first = start + scale / 2 - 0.5  # the middle of the input's first voxel
            row = self.order[axis]
            to_file[row, axis] = -scale if self.flipped[axis] else scale
            to_file[row, 3] = side - 1 - first if self.flipped[axis] else first
        return np.array(self.affine) @ to_file

    def save(self, field: Tensor, path: Path, about: str, write: Any) -> Path:
        """Write a map of the input as NIfTI with the scan's own affine and shape."""
        from regard.data.volumes.nifti import save_nifti

        return save_nifti(self.map_to_file(field).numpy(), np.array(self.affine), path, about, write)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, held: dict[str, Any]) -> ScanFrame:
        frame = held["frame"]
        sizes = [tuple(int(n) for n in frame[name]) for name in ("file_size", "input_size")]
        window = tuple((float(start), float(length)) for start, length in frame["window"])
        order, flipped = tuple(int(n) for n in held["order"]), tuple(bool(n) for n in held["flipped"])
        affine = tuple(tuple(float(n) for n in row) for row in held["affine"])
        return cls(Frame(sizes[0], sizes[1], window), order, flipped, affine)
