"""Attention stored for the report: every layer and head of one input, eight bits per weight."""

from __future__ import annotations

import base64
import io
import json
import math
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from regard.explain.flow import stage_maps
from regard.geometry import AttentionStep, TokenMap
from regard.networks.base import Network
from regard.nn import Tape, capture
from regard.weights import Run

BUDGET = 12_000_000
"""Characters that the attention of all images of a report may take."""
LARGE = 256
"""Pixels of a side from which a picture is stored as JPEG."""
HOPELESS = 8
"""Attention compresses two to three times; what is this much above the room is not even tried."""


def keep_attention(
    run: Run, number: int, model: Network, x: Tensor, picture: Tensor, room: int, mask: Tensor | None = None
) -> int:
    """Record one input's attention into the run folder, if it fits; returns how much room it took."""
    record = record_attention(model, x, picture, room, mask)
    run.write_json(f"explain/attention-{number:02d}.json", record)
    return _length(record)


def record_attention(
    model: Network, x: Tensor, picture: Tensor, room: int = BUDGET, mask: Tensor | None = None
) -> dict[str, Any]:
    """The attention of every layer and head among places of x (1, C, *size), ready for JSON.

    `picture`, in 0..1, is what x was made of: of a volume as large as x, else of any size.
    `data` is what `pack` makes of the weights, by layer and head. What takes more than `room` characters is left
    out, and the record says why. Where attention has windows, a layer's weights are (windows, slots, slots), and
    `layers` is JSON of each layer's grid, cell and windows: the token in each slot, -1 for padding, whose weights are
    zero. `mask` (1, *size) is of networks whose inputs have padding, false there.

    >>> import regard
    >>> model, picture = regard.create("vit_nano", classes=2, size=16), torch.rand(3, 16, 16)
    >>> record = record_attention(model, picture[None], picture)
    >>> record["grid"], record["prefix"], record["heads"]
    ([1, 4, 4], ['class'], [4, 4, 4, 4])
    """
    size = tuple(x.shape[2:])
    where, flow = model.input_map(size), model.token_flow(size)
    if len(where.grid) == 1:
        return {"left_out": "signals are not shown here"}
    with torch.inference_mode(), capture(model.eval()) as tape:
        model(x) if mask is None else model(x, mask)
    steps = [step for step in flow if isinstance(step, AttentionStep) and step.stream == "tokens"]
    heads = [tape.heads(step.layer) for step in steps]
    plain = sum(count * math.prod(tape.shape(step.layer)) for step, count in zip(steps, heads, strict=True))
    weights = (_weights(tape, step, head) for step, count in zip(steps, heads, strict=True) for head in range(count))
    record = {
        "grid": list((1, *where.grid)[-3:]),
        "cell": list(where.cell[-2:]),
        "size": list(where.size[-2:]),
        "prefix": list(where.prefix),
        "heads": heads,
        "picture": _address(picture, where),
        "data": None if plain > HOPELESS * room else pack(weights),
    }
    if any(step.windows is not None for step in steps):
        maps = stage_maps(flow, where)
        record["layers"] = json.dumps([_layer(step, maps[step.layer]) for step in steps])
    if record["data"] is None or _length(record) > room:
        return {"left_out": f"{sum(heads)} heads over {where.tokens:,} tokens do not fit"}
    return record


def _length(record: dict[str, Any]) -> int:
    """Characters of the parts that may be long."""
    return sum(len(record.get(part, "")) for part in ("data", "picture", "layers"))


def _weights(tape: Tape, step: AttentionStep, head: int) -> Tensor:
    """(queries, keys) of a head for one input, or (windows, slots, slots) with zeros for padding."""
    weights = tape.attention(step.layer, head).cpu()
    if step.windows is None:
        return weights[0]
    real = step.windows >= 0
    return weights * real[:, :, None] * real[:, None]


def _layer(step: AttentionStep, where: TokenMap) -> dict[str, Any]:
    tokens = torch.arange(where.tokens)[None] if step.windows is None else step.windows
    cell = (1, *where.cell)[-3:]
    return {"grid": list((1, *where.grid)[-3:]), "cell": list(cell), "windows": tokens.tolist()}


def pack(parts: Iterable[Tensor]) -> str:
    """Weights (..., queries, keys) as base64 of zlib.

    First the largest weight of each row, float32 in little-endian order; then all weights, uint8, 255 being the row's
    largest. So none is off by more than half of 1/255 of its row's largest.
    """
    largest, shares = [], []
    for weights in parts:
        top = weights.amax(-1, keepdim=True)
        largest.append(top.numpy().astype("<f4").tobytes())
        shares.append((255 * weights / top.clamp_min(1e-30)).round().to(torch.uint8).numpy().tobytes())
    return base64.b64encode(zlib.compress(b"".join(largest + shares), 9)).decode()


def _address(picture: Tensor, where: TokenMap) -> str:
    """The picture as an address that holds it; of a volume the middle slice of each plane of patches, one below
    the other."""
    values = picture.detach().float().cpu()
    if values.ndim == 4:  # as large as the input
        depth, cell = values.shape[1], where.cell[0]
        middles = [min(plane * cell + cell // 2, depth - 1) for plane in range(where.grid[0])]
        values = torch.cat([values[:, at] for at in middles], dim=1)
    if len(values) not in (1, 3):
        values = values.mean(0, keepdim=True)
    pixels = (255 * values.clamp(0, 1)).round().to(torch.uint8).numpy().transpose(1, 2, 0)
    file, form = io.BytesIO(), "PNG" if max(pixels.shape) <= LARGE else "JPEG"
    image = Image.fromarray(np.ascontiguousarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0]))
    image.save(file, format=form, **({"quality": 88} if form == "JPEG" else {}))
    return f"data:image/{form.lower()};base64," + base64.b64encode(file.getvalue()).decode()
