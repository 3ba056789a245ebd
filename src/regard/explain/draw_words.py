"""Figures of a translator's attention: lines between two columns of words, and the matrix of weights.

- Queries stand on the left, keys on the right or above a matrix.
- SVG keeps text as text. In PNG and PDF, letters that no installed font has are listed below the figure.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from regard.drawing import (
    BAD,
    COLOURS,
    SOFT,
    canvas,
    colour_bar,
    missing_letters,
    no_ticks,
    require_ending,
    shorten,
    style,
)
from regard.errors import ConfigError, did_you_mean
from regard.explain.draw import save
from regard.explain.word_attention import WordAttention, WordMatrix

HEADS = (*COLOURS, "#000000")
LONG = 22
"""Letters of a word that are shown."""
FAINT = 0.05
"""A line below this share of the strongest is not drawn: there would be one from every word to every other."""
NUMBERS = 14
"""With so many words or fewer on either side, the weights stand in the cells of a matrix."""

FORMS = ("both", "lines", "matrix", "heads")

Head = int | Literal["all"] | None
"""One head; "all", each in its colour; or None, the mean over heads."""
NAMES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
    "rollout": "rollout to the source",
}
ASKS = {"encoder": "a word of the source", "decoder": "to write", "cross": "to write", "rollout": "to write"}
SEEN = {
    "encoder": "looks at the source",
    "decoder": "looks at what it wrote",
    "cross": "looks at the source",
    "rollout": "goes back to the source",
}


@style()
def draw_words(
    attention: WordAttention,
    path: Path,
    kind: str = "cross",
    *,
    layer: int = -1,
    head: Head = None,
    form: str = "both",
    words: bool = True,
) -> Path:
    """Draw one layer's attention of one `kind` ("rollout" too) into a PNG, SVG or PDF file.

    `form` is "lines", "matrix", "both", or "heads": a small matrix for each layer and head. With `words=False` tokens
    stand by themselves.
    """
    require_ending(path)
    if form not in FORMS:
        raise ConfigError(f"attention is not drawn as {form!r}", do=did_you_mean(form, FORMS))
    attention.sides(kind)
    heads = 1 if kind == "rollout" else attention.weights[kind].shape[1]
    chosen = list(range(heads)) if head == "all" else [head]
    read = attention.words if words else attention.tokens
    if form == "heads":
        figure, shown = _heads(attention, kind, read)
    else:
        shown = [read(kind, layer, each) for each in chosen]
        figure = _figure(shown, kind, form)
        figure.suptitle(_title(attention, kind, layer, head), fontsize=10)
    if path.suffix.lower() != ".svg" and (letters := missing_letters([*shown[0].queries, *shown[0].keys])):
        points = ", ".join(f"U+{ord(letter):04X}" for letter in letters[:8]) + ", …" * (len(letters) > 8)
        note = f"No font here has {len(letters)} of the letters ({points}): install one (NanumGothic) or draw SVG"
        figure.supxlabel(note, fontsize=7, color=BAD)
    return save(figure, path)


def _figure(shown: list[WordMatrix], kind: str, form: str) -> Any:
    """Lines, a matrix, or both side by side."""
    panels = {"lines": (_lines_size, _draw_lines), "matrix": (_matrix_size, _draw_matrix)}
    chosen = list(panels.values()) if form == "both" else [panels[form]]
    widths, heights = zip(*(size(shown[0]) for size, _ in chosen), strict=True)
    figure = canvas(sum(widths), max(heights), background="white")
    axes = figure.subplots(1, len(chosen), width_ratios=widths, squeeze=False)[0]
    for ax, (_, draw) in zip(axes, chosen, strict=True):
        draw(ax, shown, kind)
    return figure


def _lines_size(matrix: WordMatrix) -> tuple[float, float]:
    rows = max(len(matrix.queries), len(matrix.keys))
    return 2.6 + 0.085 * (_longest(matrix.queries) + _longest(matrix.keys)), 1.2 + 0.24 * rows


def _draw_lines(ax: Any, shown: list[WordMatrix], kind: str) -> None:
    """Two columns; a line as strong as its weight, heads side by side in their colours."""
    from matplotlib.collections import LineCollection

    queries, keys = shown[0].queries, shown[0].keys
    top = max(float(matrix.weights.max()) for matrix in shown)
    apart = 0.5 / max(len(shown) - 1, 1) if len(shown) > 1 else 0.0
    for number, matrix in enumerate(shown):
        weights = matrix.weights.numpy()
        rows, columns = np.nonzero(weights > FAINT * top)
        share = weights[rows, columns] / top
        shift = (number - (len(shown) - 1) / 2) * apart
        ends = [[(0.0, row + shift), (1.0, column + shift)] for row, column in zip(rows, columns, strict=True)]
        style = "solid" if number < len(HEADS) else "dashed"
        colour = HEADS[number % len(HEADS)]
        width = 0.3 + (1.6 if len(shown) > 1 else 2.7) * share
        label = f"head {number}" if len(shown) > 1 else None
        ax.add_collection(LineCollection(ends, colors=colour, alpha=share, linewidths=width, linestyles=style))
        ax.plot([], [], color=colour, linestyle=style, label=label)
    for texts, x, side in ((queries, -0.03, "right"), (keys, 1.03, "left")):
        for row, text in enumerate(texts):
            ax.text(x, row, shorten(text, LONG), ha=side, va="center", fontsize=9)
    ax.text(-0.03, -1.1, ASKS[kind], ha="right", va="center", fontsize=8, color=SOFT)
    ax.text(1.03, -1.1, SEEN[kind], ha="left", va="center", fontsize=8, color=SOFT)
    ax.set(xlim=(0, 1), ylim=(max(len(queries), len(keys)) - 0.5, -0.6))
    ax.axis("off")
    if len(shown) > 1:
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=min(4, len(shown)), fontsize=7, frameon=False)


def _matrix_size(matrix: WordMatrix) -> tuple[float, float]:
    queries, keys = matrix.queries, matrix.keys
    cell = _cell(matrix)
    return 1.5 + cell * len(keys) + 0.085 * _longest(queries), 1.1 + cell * len(queries) + 0.085 * _longest(keys)


def _cell(matrix: WordMatrix) -> float:
    """The side of a cell in inches: with room for a number where there are few, and for a letter's height always."""
    return 0.36 if max(len(matrix.queries), len(matrix.keys)) <= NUMBERS else 0.17


def _draw_matrix(ax: Any, shown: list[WordMatrix], kind: str) -> None:
    weights = np.mean([matrix.weights.numpy() for matrix in shown], axis=0)
    queries, keys = ([shorten(text, LONG) for text in texts] for texts in shown[0][1:])
    few = max(weights.shape) <= NUMBERS
    painted = ax.imshow(weights, cmap="viridis", vmin=0, aspect="equal")
    ax.set_xticks(range(len(keys)), keys, rotation=90, fontsize=9 if few else 8)
    ax.set_yticks(range(len(queries)), queries, fontsize=9 if few else 8)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel(SEEN[kind], fontsize=8, color=SOFT)
    ax.set_ylabel(ASKS[kind], fontsize=8, color=SOFT)
    for row, column in np.ndindex(*weights.shape) if few else ():
        value = weights[row, column]
        if value >= 0.005:
            colour = "black" if value > 0.6 * weights.max() else "white"
            ax.text(column, row, f"{100 * value:.0f}", ha="center", va="center", fontsize=7, color=colour)
    width = 0.12 / (_cell(shown[0]) * len(keys))
    bar = colour_bar(ax, painted, "weight (%)", width=width, shrink=0.7 if few else 0.3)
    bar.ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f}")
    bar.outline.set_visible(False)
    ax.set_anchor("N")  # beside a longer column of words, its top stands where theirs does


def _heads(attention: WordAttention, kind: str, read: Callable[..., WordMatrix]) -> tuple[Any, list[WordMatrix]]:
    """A small matrix for each layer (row) and head (column); the words stand at the first of each row and column."""
    layers, heads = (1, 1) if kind == "rollout" else attention.weights[kind].shape[:2]
    first = read(kind, 0)
    side = min(3.0, max(1.1, 0.13 * max(first.weights.shape)))
    figure = canvas(0.8 + side * heads, 0.7 + (side + 0.25) * layers, background="white")
    for layer, row in enumerate(figure.subplots(layers, heads, squeeze=False)):
        for head, ax in enumerate(row):
            ax.imshow(read(kind, layer, head).weights.numpy(), cmap="viridis", vmin=0)
            no_ticks(ax)
            ax.spines[:].set_visible(False)
            if layer == 0:
                ax.set_title(f"head {head}", fontsize=8)
            if head == 0:
                ax.set_ylabel(f"layer {layer}", fontsize=8)
    about = "a row asks, columns are looked at, in the order of the words; bright: the largest weight of each"
    figure.suptitle(f"{NAMES[kind]}\n{about}", fontsize=9)
    return figure, [WordMatrix(first.weights, (), ())]  # no word stands there


def _title(attention: WordAttention, kind: str, layer: int, head: Head) -> str:
    if kind == "rollout":
        return NAMES[kind]
    layers, heads = attention.weights[kind].shape[:2]
    which = {"all": f"all {heads} heads", None: "mean over heads"}.get(head, f"head {head}")  # pyright: ignore
    layer_name = "" if layers == 1 else f", layer {layer % layers}"
    return f"{NAMES[kind]}{layer_name}" + ("" if heads == 1 else f", {which}")


def _longest(texts: tuple[str, ...]) -> int:
    return max(len(shorten(text, LONG)) for text in texts)
