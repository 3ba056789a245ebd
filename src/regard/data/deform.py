"""Random deformation of volumes: mirror, rotate, scale, shift and an elastic field as one resampling.

A place is counted in voxels: voxel 0 is from 0 to 1. A deformation takes each place of its result to one of the volume:

    source = centre + A (place + d(place) − centre) + shift

A rotates and scales in millimetres, so that voxels of unequal sides are not sheared. d is a cubic B-spline of random
control points, a free-form deformation (Rueckert et al., 1999), which cannot fold up to 0.1 of a side (Choi & Lee,
2000).

Nothing here is a matrix product or a transcendental function of a whole batch: these round otherwise in other batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.random import uniforms
from regard.data.send import send
from regard.image_groups import Variation

CELLS = 4
"""Of the elastic field's control grid, along each axis."""
POINTS = CELLS + 3
EIGHTH = 0.125
"""The shift of `crop="shift"`, as a share of each side."""
AXES = "xyz"


@dataclass(frozen=True)
class Deformation:
    """Of a batch of volumes of one size."""

    size: tuple[int, ...]
    matrix: Tensor
    """(B, 3, 3): A, in voxels."""
    shift: Tensor
    """(B, 3), in voxels."""
    control: Tensor | None = None
    """(B, 3, 7, 7, 7): displacements of the control points, in voxels; None: no elastic field."""

    def source(self, places: list[Tensor], moved: list[Tensor]) -> list[Tensor]:
        """Where in the volume each place of the result lies; `moved` is the elastic field there, along each axis."""
        centred = [at + by - side / 2 for at, by, side in zip(places, moved, self.size, strict=True)]
        rows = []
        for axis, side in enumerate(self.size):
            parts = [_per_sample(self.matrix[:, axis, other]) * at for other, at in enumerate(centred)]
            rows.append(sum(parts[1:], parts[0]) + _per_sample(self.shift[:, axis] + side / 2))
        return rows

    def apply(self, x: Tensor) -> Tensor:
        """The deformed volumes (B, C, *size), by linear interpolation; 0 where there was nothing."""
        axes = []
        for axis, side in enumerate(self.size):
            shape = [1, *(-1 if axis == other else 1 for other in range(3))]
            axes.append((torch.arange(side, device=x.device, dtype=x.dtype) + 0.5).reshape(shape))
        rows = self.source(axes, self._field(axes))
        grid = [(row * (2 / side) - 1).expand(len(x), *self.size) for row, side in zip(rows, self.size, strict=True)]
        return F.grid_sample(x, torch.stack(grid[::-1], dim=-1), align_corners=False)

    def _field(self, axes: list[Tensor]) -> list[Tensor]:
        """The displacement at every voxel, along each axis (B, *size): one axis after the other."""
        if self.control is None:
            return [torch.zeros_like(at) for at in axes]
        field = self.control
        for axis, (at, side) in enumerate(zip(axes, self.size, strict=True), start=2):
            cell, weights = _spline(at.flatten() * (CELLS / side))
            shape = [-1 if axis == other else 1 for other in range(5)]
            parts = [field.index_select(axis, cell + k) * w.reshape(shape) for k, w in enumerate(weights)]
            field = sum(parts[1:], parts[0])
        return list(field.unbind(1))

    def displacement(self, places: Tensor) -> Tensor:
        """The same at any places (B, N, 3) inside of the volume."""
        if self.control is None:
            return torch.zeros_like(places)
        cells, weights = zip(*(_spline(places[..., a] * (CELLS / s)) for a, s in enumerate(self.size)), strict=True)
        batch, moved = torch.arange(len(places))[:, None], torch.zeros_like(places)
        for k in np.ndindex(4, 4, 4):
            w = weights[0][k[0]] * weights[1][k[1]] * weights[2][k[2]]
            moved += w[..., None] * self.control[batch, :, cells[0] + k[0], cells[1] + k[1], cells[2] + k[2]]
        return moved

    def to_result(self, places: Tensor, rounds: int = 50) -> Tensor:
        """The inverse: where in the result places of the volume (B, N, 3) lie, by fixed-point iteration."""
        centre = torch.tensor(self.size, dtype=places.dtype) / 2
        back = places - centre - self.shift[:, None].to(places.dtype)
        straight = torch.linalg.solve(self.matrix.to(places.dtype), back.transpose(1, 2)).transpose(1, 2) + centre
        made = straight
        for _ in range(rounds):
            made = straight - self.displacement(made)
        return made

    def undo(self, field: Tensor) -> Tensor:
        """A map of the results (B, *size) on the volumes as they were, by linear interpolation; 0 where unseen."""
        places = torch.stack(torch.meshgrid(*(torch.arange(s) + 0.5 for s in self.size), indexing="ij"), dim=-1)
        there = self.to_result(places.reshape(1, -1, 3).double().expand(len(field), -1, -1))
        grid = (there * 2 / torch.tensor(self.size) - 1).flip(-1).reshape(len(field), *self.size, 3)
        return F.grid_sample(field[:, None].double(), grid, align_corners=False)[:, 0].to(field.dtype)


def _per_sample(values: Tensor) -> Tensor:
    return values.reshape(-1, 1, 1, 1)


def _spline(at: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The cell of each place on the control grid, and the cubic B-spline's weights of the four points around it."""
    cell = at.floor().clamp(0, CELLS - 1)
    t = at - cell
    rest = 1 - t
    weights = [
        rest * rest * rest / 6,
        (t * t * (3 * t - 6) + 4) / 6,
        (rest * rest * (3 * rest - 6) + 4) / 6,
        t * t * t / 6,
    ]
    return cell.long(), weights


def flipped_axes(config: Variation) -> str:
    """The axes along which volumes are mirrored, of xyz: by `flip` alone, left and right."""
    return (config.flip_axes or "").replace(",", "") or ("x" if config.flip else "")


def shift_share(config: Variation) -> float:
    """The largest shift, as a share of each side."""
    return config.shift if config.shift is not None else EIGHTH if config.crop == "shift" else 0.0


def draw_deformation(
    config: Variation, seed: int, epoch: int, numbers: Tensor, size: tuple[int, ...], spacing: tuple[float, ...],
    device: torch.device,
) -> Deformation | None:  # fmt: skip
    """That of these samples in this epoch, on the device; None if nothing is asked for."""
    elastic, flips, shift = config.elastic or 0.0, flipped_axes(config), shift_share(config)
    if not (config.rotate or config.zoom or shift or elastic or flips):
        return None
    drawn = uniforms(seed, epoch, numbers.numpy(), 10, use=11)
    made = [_affine(u, config, flips, spacing) for u in drawn]
    shifts = (2 * drawn[:, 4:7] - 1) * shift * np.array(size)
    control = None
    if elastic:
        u = uniforms(seed, epoch, numbers.numpy(), 3 * POINTS**3, use=12).reshape(-1, 3, POINTS, POINTS, POINTS)
        control = (2 * u - 1) * elastic * np.array(size).reshape(1, 3, 1, 1, 1)
    tensors = [None if held is None else torch.from_numpy(held).float() for held in (np.stack(made), shifts, control)]
    matrix, moved, control = (None if held is None else send(held, device) for held in tensors)
    assert matrix is not None
    assert moved is not None
    return Deformation(tuple(size), matrix, moved, control)


def _affine(u: np.ndarray, config: Variation, flips: str, spacing: tuple[float, ...]) -> np.ndarray:
    """One sample's A, in voxels: mirrored and scaled, then rotated about each axis in millimetres."""
    turned = np.eye(3)
    for axis in range(3):
        angle = math.radians(config.rotate or 0.0) * (2 * float(u[axis]) - 1)
        one, two = (other for other in range(3) if other != axis)
        turn = np.eye(3)
        turn[[one, two], [one, two]] = math.cos(angle)
        turn[one, two], turn[two, one] = -math.sin(angle), math.sin(angle)
        turned = turned @ turn
    scale = 1 + (config.zoom or 0.0) * (2 * float(u[3]) - 1)
    mirror = [-1.0 if name in flips and u[7 + axis] < 0.5 else 1.0 for axis, name in enumerate(AXES)]
    sides = np.array(spacing)
    return turned * scale * np.array(mirror) * sides[None] / sides[:, None]
