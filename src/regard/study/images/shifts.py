"""Equivariance to shifts: the features of a shifted image against the shifted features, and whether the answer changes.

A convolution commutes with shifts (but at the edges); attention over patches with learned positions does not. Images
are shifted in a circle, so nothing enters or leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard import api
from regard.console import Progress
from regard.drawing import COLOURS, canvas, dress
from regard.errors import ConfigError
from regard.explain.inspection import own_pictures
from regard.metrics import wilson
from regard.study.images.finding import Finding
from regard.study.keep import keep_plan
from regard.study.transfer_table import short_names
from regard.weights import fingerprint

BATCH = 64


def feature_grid(model: Any, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The last feature map (B, *grid, width) of a network's output, and the pixels that a cell covers."""
    where = model.token_map(tuple(x.shape[2:]))
    tokens = torch.cat([model(some).tokens[:, len(where.prefix) :] for some in x.split(BATCH)])
    return tokens.unflatten(1, where.grid), where.cell


@torch.no_grad()
def shift_error(model: nn.Module, x: Tensor, cells: int) -> float:
    """How far features of images shifted by whole cells are from the shifted features.

    The mean square of the difference over the variance of the features about their mean over places, which is what
    shifting can change: 0 for a network that commutes with shifts, 2 if places have nothing to do with each other.
    """
    features, cell = feature_grid(model, x)
    moved, _ = feature_grid(model, x.roll([cells * side for side in cell], dims=(2, 3)))
    wanted = features.roll([cells] * len(cell), dims=(1, 2))
    spread = (features - features.mean((1, 2), keepdim=True)).square().mean()
    return float((moved - wanted).square().mean() / spread.clamp_min(1e-12))


@torch.no_grad()
def answers_kept(model: nn.Module, x: Tensor, pixels: int) -> float:
    """Share of images whose predicted class stays after a shift by so many pixels along both axes."""
    kept = 0
    for some in x.split(BATCH):
        own, moved = (model(image).logits.argmax(-1) for image in (some, some.roll((pixels, pixels), dims=(2, 3))))
        kept += int((own == moved).sum())
    return kept / len(x)


def shift_study(
    runs: Sequence[str | Path], *, shifts: Sequence[int] = (1, 2, 4, 8), images: int = 64,
    out: str | Path = "studies/invariance", quiet: bool = False,
) -> Finding:  # fmt: skip
    """Both measures for each run, on up to so many test `images` of its own data."""
    if images < 1:
        raise ConfigError(f"images={images} must be at least 1")
    rows, progress, place = list[dict[str, Any]](), Progress(quiet), Path(out).expanduser()
    given = short_names(runs)
    keep_plan(
        place,
        {"kind": "invariance", "weights": {name: fingerprint(run) for name, run in given.items()}, "images": images},
    )
    for name, run in given.items():
        trained: Any = api.load(run, quiet=True)
        if not hasattr(trained, "preparation") or len(trained.preparation.size) != 2:
            raise ConfigError("this study is for networks of pictures", where=run)
        pictures = own_pictures(run, trained.preparation, images)
        x = trained.preparation.normalised(pictures).to(trained.device)
        with torch.no_grad():
            error = shift_error(trained.model, x, 1)
            _, cell = feature_grid(trained.model, x[:1])
            for pixels in shifts:
                kept = wilson(answers_kept(trained.model, x, pixels) * len(x), len(x))
                rows.append({
                    "network": name, "shift": pixels, "answers_kept": kept.value, "low": kept.low, "high": kept.high,
                    "feature_error_one_cell": error, "cell": cell[0], "n": len(x),
                })  # fmt: skip
        progress.say(f"{name}: features of an image shifted by {cell[0]} pixels are off by {error:.3f}")
    names = list(given)
    finding = Finding(
        "invariance", "Equivariance to shifts", rows, _sentences(rows, names), lambda: _draw(rows, names), place
    )
    finding.write()
    return finding


def _sentences(rows: list[dict[str, Any]], names: list[str]) -> list[str]:
    lines = []
    for name in names:
        own = [row for row in rows if row["network"] == name]
        kept = ", ".join(
            f"{row['answers_kept']:.1%} ({row['low']:.1%} to {row['high']:.1%}) at {row['shift']}" for row in own
        )
        first = own[0]
        lines.append(
            f"{name}: after a shift by one cell ({first['cell']} pixels) features differ from the shifted features by "
            f"{first['feature_error_one_cell']:.3f} of their variance over places (0: equivariant, 2: unrelated); "
            f"answers kept by shift in pixels, with 95 % intervals: {kept} (n = {first['n']})."
        )
    return lines


def _draw(rows: list[dict[str, Any]], names: list[str]) -> Any:
    figure = canvas(8.0, 3.6)
    left, right = figure.subplots(1, 2)
    for number, name in enumerate(names):
        own, colour = [row for row in rows if row["network"] == name], COLOURS[number % len(COLOURS)]
        left.bar(number, own[0]["feature_error_one_cell"], color=colour)
        x = [row["shift"] for row in own]
        right.plot(x, [100 * row["answers_kept"] for row in own], "o-", color=colour, label=name, markersize=4)
        low, high = ([100 * row[end] for row in own] for end in ("low", "high"))
        right.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    left.set_xticks(range(len(names)), names, rotation=20)
    right.legend(frameon=False, labelcolor="linecolor")
    dress(left, "", "feature error after one cell")
    dress(right, "shift (pixels)", "answers kept (%), band: 95 % interval")
    return figure
