"""Explained volumes stored for the report: scans, maps and mask of one subject, eight bits per voxel."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.explain.draw import limits
from regard.explain.explanation import Explanation
from regard.weights import Run

BUDGET = 16_000_000
"""Characters that the volumes of a report may take."""


def keep_volume(run: Run, number: int, maps: Sequence[Explanation], scans: Sequence[str], room: int) -> None:
    """Record one subject's volumes into the run folder; nothing for pictures."""
    if maps[0].picture.ndim == 4:
        run.write_json(f"explain/volume-{number:02d}.json", record_volume(maps, scans, room))


def record_volume(maps: Sequence[Explanation], scans: Sequence[str], room: int = BUDGET) -> dict[str, Any]:
    """What the network saw of one subject and the maps of several methods on it, ready for JSON.

    `data` is base64 of zlib of uint8: each scan (255 is 1), each method's map (0 is its `least`, 255 its `most`, in
    times the average), and the mask (1 inside) if there is one; each in the order of the input's axes, the last one
    fastest. Where this takes more than `room` characters, `step` voxels along each axis become one: scans and maps
    are averaged, and a voxel is in the mask if any part of it is.
    """
    first, step = maps[0], 1
    record = _record(maps, scans, step)
    while len(record["data"]) > room and step < max(first.map.shape):
        step += 1
        record = _record(maps, scans, step)
    return record


def _record(maps: Sequence[Explanation], scans: Sequence[str], step: int) -> dict[str, Any]:
    first, methods, parts = maps[0], [], []
    picture = _coarser(first.picture, step).clamp(0, 1)
    parts.append(_bytes(picture, 0.0, 1.0))
    for item in maps:
        values = _coarser(item.map[None] * item.map.numel(), step)[0]
        least, most = limits(values.numpy())
        methods.append({"name": item.method, "least": least, "most": most, "verdict": item.verdict})
        parts.append(_bytes(values, least, most))
    if first.mask is not None:
        parts.append((_coarser(first.mask[None], step)[0] > 0).to(torch.uint8).numpy().tobytes())
    return {
        "size": list(picture.shape[1:]),
        "input": list(first.map.shape),
        "file": None if first.scan is None else list(first.scan.file_size),
        "step": step,
        "to_mm": None if first.scan is None else _to_mm(first, step).tolist(),
        "scans": list(scans) or [f"channel {n}" for n in range(len(picture))],
        "methods": methods,
        "mask": first.mask is not None,
        "target": first.target,
        "data": base64.b64encode(zlib.compress(b"".join(parts), 9)).decode(),
    }


def _coarser(field: Tensor, step: int) -> Tensor:
    """(channels, *size) with `step` voxels along each axis averaged; a last one may be made of fewer."""
    return F.avg_pool3d(field.float().cpu(), step, ceil_mode=True, count_include_pad=False)


def _bytes(values: Tensor, least: float, most: float) -> bytes:
    return (255 * (values - least) / max(most - least, 1e-30)).clamp(0, 255).round().to(torch.uint8).numpy().tobytes()


def _to_mm(item: Explanation, step: int) -> np.ndarray:
    """(4, 4): from the index of a stored voxel to the scanner's millimetres."""
    assert item.scan is not None
    to_input = np.diag([step, step, step, 1.0])
    to_input[:3, 3] = (step - 1) / 2
    return item.scan.input_to_mm() @ to_input
