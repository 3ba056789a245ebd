"""Pictures of explanations: the input beside what the output token looked at (the ViT paper's Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from regard.drawing import canvas, style
from regard.errors import ConfigError
from regard.weights import write_aside

if TYPE_CHECKING:
    from regard.explain.explanation import Explanation

DPI = 130
ROWS = 12
ENDINGS = (".png", ".svg", ".pdf")


def check_ending(path: Path) -> None:
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"pictures are not written as {path.suffix or 'nothing'}", do=f"end in {', '.join(ENDINGS)}")


def draw_pages(explanations: Sequence[Explanation], path: Path) -> list[Path]:
    """Draw any number of explanations: one file, or path-2, path-3, … where they fill several pages."""
    pages = [explanations[n : n + ROWS] for n in range(0, len(explanations), ROWS)]
    names = [path, *(path.with_stem(f"{path.stem}-{n}") for n in range(2, len(pages) + 1))]
    return [draw(page, name) for page, name in zip(pages, names, strict=True)]


@style()
def draw(explanations: Sequence[Explanation], path: Path) -> Path:
    """One row an explanation: input, input dimmed where the map is low (the paper's way), map."""
    check_ending(path)
    rows = len(explanations)
    figure = canvas(8.2, 0.45 + 2.75 * rows, background="white")
    axes = figure.subplots(rows, 3, squeeze=False)
    for (left, middle, right), item in zip(axes, explanations, strict=True):
        picture, values, part = _slice(item)
        light = values / max(values.max(), 1e-12)
        grey = picture.shape[-1] == 1
        colours = {"cmap": "gray", "vmin": 0, "vmax": 1} if grey else {}
        shape = picture[..., 0] if grey else picture
        left.imshow(shape, **colours)
        middle.imshow(shape * (0.12 + 0.88 * (light if grey else light[..., None])), **colours)
        painted = right.imshow(values * item.map.numel(), cmap="viridis", vmin=0)
        bar = figure.colorbar(painted, ax=right, shrink=0.85)
        bar.set_label("times the average", fontsize=8)
        bar.ax.tick_params(labelsize=7)
        truth = "" if item.label is None else f" (true: {item.label})"
        left.set_title(f"input{part}", fontsize=9)
        left.set_xlabel(f"{_short(item.prediction.name)}{truth}", fontsize=8)
        middle.set_title("dimmed by the map", fontsize=9)
        middle.set_xlabel(f"predicted {item.prediction.label} ({item.prediction.confidence:.1%})", fontsize=8)
        right.set_title(_title(item), fontsize=9)
        right.set_xlabel(_scores(item), fontsize=8, color="black" if item.badge is None else "#b34700")
        for ax in (left, middle, right):
            ax.set_xticks([])
            ax.set_yticks([])
    write_aside(path, lambda aside: figure.savefig(aside, dpi=DPI, format=path.suffix[1:].lower()))
    return path


def _title(item: Explanation) -> str:
    options = " ".join(f"{name}={value}" for name, value in item.options.items())
    return f"{item.method} {options}".strip() + f" for {item.target!r}"


def _scores(item: Explanation) -> str:
    scores = item.scores
    lines = [f"insertion {scores.insertion:.2f} · deletion {scores.deletion:.2f} · random {scores.random:.2f}"]
    if item.location is not None:
        peak = "peak inside" if item.location.pointing else "peak outside"
        lines.append(f"{item.location.share:.0%} inside the mask ({item.location.area:.0%} of the picture), {peak}")
    if item.badge is not None:
        lines.append("much the same with random weights")
    return "\n".join(lines)


def _short(name: str) -> str:
    return name if len(name) <= 34 else "…" + name[-33:]


def _slice(item: Explanation) -> tuple[np.ndarray, np.ndarray, str]:
    """(H, W, channels) and (H, W); of a volume, the slice where the map peaks, and which one that is."""
    picture, values, part = item.picture, item.map, ""
    if values.ndim == 3:
        weight, content = values.sum((1, 2)), picture.flatten(2).std(2).sum(0)
        depth = int(content.masked_fill(weight < 0.999 * weight.max(), -1.0).argmax())  # the fullest that peaks
        part = f", slice {depth + 1} of {len(values)}"
        picture, values = picture[:, depth], values[depth]
    if values.ndim == 1:
        picture, values = picture[:, None], values[None]
    return _numpy(picture).transpose(1, 2, 0), _numpy(values), part


def _numpy(x: Tensor) -> np.ndarray:
    return x.detach().float().cpu().numpy()
