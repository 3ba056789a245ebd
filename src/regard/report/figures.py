"""The figures of a run, drawn from its files alone: colour-blind-safe, and readable on light and dark."""

from __future__ import annotations

from typing import Any

import numpy as np

from regard.drawing import BLUE, COLOURS, GREEN, GREY, INK, ORANGE, canvas, colour_bar, dress, shorten, style, to_svg


def name_curves(ax: Any, *names: tuple[str, str]) -> None:
    """Names of curves, each in its colour, above the axes one below the other: within, one would lie on a curve."""
    for n, (text, colour) in enumerate(reversed(names)):
        ax.text(0.0, 1.02 + 0.085 * n, text, transform=ax.transAxes, va="bottom", color=colour)


@style()
def curves(
    rows: list[dict[str, str]],
    best_epoch: int | None,
    measure: str = "accuracy",
    loss: str = "loss (nats)",
    train: str = "train (augmented, smoothed)",
) -> str:
    """Loss and a share measured on validation data, against epochs."""
    figure = canvas(8.4, 3.0)
    left, right = figure.subplots(1, 2)
    epochs = _losses(left, rows, loss)
    name_curves(left, (train, BLUE), ("validation", ORANGE))
    accuracy = [100 * float(row[f"val_{measure.lower().replace(' ', '_')}"]) for row in rows]
    right.plot(epochs, accuracy, color=ORANGE)
    dress(right, "epoch", f"validation {measure} (%)")
    right.xaxis.get_major_locator().set_params(integer=True)
    right.set_ylim(top=min(right.get_ylim()[1], 100.5))
    if best_epoch:
        y = accuracy[epochs.index(best_epoch)]
        right.plot([best_epoch], [y], "o", color=GREEN)
        name_curves(right, (f"kept: epoch {best_epoch}, {y:.2f} %", GREEN))
    return to_svg(figure)


@style()
def losses(rows: list[dict[str, str]], best_epoch: int | None, what: str, train: str = "train") -> str:
    """A loss against epochs."""
    figure = canvas(5.6, 3.2)
    ax = figure.subplots()
    epochs = _losses(ax, rows, what)
    if best_epoch:
        ax.plot([best_epoch], [float(rows[epochs.index(best_epoch)]["val_loss"])], "o", color=GREEN)
    kept = [(f"kept: epoch {best_epoch}", GREEN)] * bool(best_epoch)
    name_curves(ax, (train, BLUE), ("validation", ORANGE), *kept)
    return to_svg(figure)


def _losses(ax: Any, rows: list[dict[str, str]], what: str) -> list[int]:
    epochs = [int(row["epoch"]) for row in rows]
    for column, colour in (("train_loss", BLUE), ("val_loss", ORANGE)):
        ax.plot(epochs, [float(row[column]) for row in rows], "o-" if len(rows) == 1 else "-", color=colour)
    dress(ax, "epoch", what)
    ax.xaxis.get_major_locator().set_params(integer=True)
    return epochs


NAMED_CLASSES = 60
"""Up to so many classes, a confusion matrix names every one and says its counts."""


@style()
def confusion(counts: np.ndarray, classes: list[str]) -> str:
    """The confusion matrix, rows normalised, with counts written in while they can be read."""
    n = len(classes)
    cell = 0.36 if n <= 20 else 0.215
    side = min(2.2 + cell * n, 10.6)
    figure = canvas(side + 0.8, side)
    ax = figure.subplots()
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    painted = ax.imshow(share, cmap="cividis", vmin=0, vmax=1)
    ticks = range(n) if n <= NAMED_CLASSES else range(0, n, -(-n // 40))
    names, fontsize = [shorten(classes[t], 16) for t in ticks], 10 if n <= 20 else 7 if n <= 45 else 6
    ax.set_xticks(list(ticks), names)
    if n > 20:
        ax.tick_params(axis="x", rotation=90)
    elif n > 10 or max(map(len, classes)) > 4:
        ax.set_xticks(list(ticks), names, rotation=45, ha="right")
    ax.set_yticks(list(ticks), names)
    if n <= NAMED_CLASSES:
        for row, column in np.argwhere(counts):
            colour = "white" if share[row, column] < 0.55 else "black"
            size = 8 if n <= 20 else fontsize
            ax.text(column, row, f"{counts[row, column]}", ha="center", va="center", fontsize=size, color=colour)
    dress(ax, "predicted", "true")
    ax.tick_params(labelsize=fontsize)
    ax.grid(False)
    if n > 20:  # lines between the cells, by which eyes find the way to the names
        ax.set_xticks(np.arange(n - 1) + 0.5, minor=True)
        ax.set_yticks(np.arange(n - 1) + 0.5, minor=True)
        ax.grid(which="minor", color="white", alpha=0.15, linewidth=0.5)
        ax.tick_params(which="minor", length=0)
    colour_bar(ax, painted, "share of the true class", ink=INK, shrink=0.8)
    return to_svg(figure)


def confused_pairs(counts: np.ndarray, classes: list[str], most: int = 12) -> list[tuple[str, str, int, str]]:
    """The commonest mistakes: true class, predicted class, how often, and of how many.

    >>> confused_pairs(np.array([[5, 2, 0], [0, 4, 0], [0, 1, 9]]), ["a", "b", "c"])
    [('a', 'b', 2, '2 of 7'), ('c', 'b', 1, '1 of 10')]
    """
    totals, wrong = counts.sum(1), counts * (1 - np.eye(len(classes), dtype=counts.dtype))
    pairs = sorted(np.argwhere(wrong).tolist(), key=lambda at: (-wrong[at[0], at[1]], totals[at[0]], at))
    return [(classes[a], classes[b], int(wrong[a, b]), f"{wrong[a, b]} of {totals[a]}") for a, b in pairs[:most]]


@style()
def reliability(rows: np.ndarray, x: str = "mean confidence in bin", y: str = "accuracy in bin") -> str:
    """Accuracy against confidence; on the diagonal a model means what it says."""
    figure = canvas(3.9, 3.5)
    ax = figure.subplots()
    ax.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1)
    size = 12 + 180 * rows[:, 2] / rows[:, 2].max()
    ax.scatter(rows[:, 0], rows[:, 1], s=size, color=BLUE, alpha=0.85, linewidths=0)
    ax.set_xlim(0, 1.03)
    ax.set_ylim(0, 1.03)
    dress(ax, x, y)
    ax.text(0.04, 0.96, "dot area: samples", fontsize=8, color=GREY, va="top")
    return to_svg(figure)


@style()
def recalls(per_class: dict[str, Any]) -> str:
    """Recall of each class with its interval."""
    names = list(per_class)
    figure = canvas(4.6, max(2.0, 0.5 + 0.27 * len(names)))
    ax = figure.subplots()
    for row, name in enumerate(names):
        recall = per_class[name]["recall"]
        if recall["value"] is None:
            continue
        ax.plot([100 * recall["low"], 100 * recall["high"]], [row, row], color=BLUE, linewidth=2, alpha=0.5)
        ax.plot([100 * recall["value"]], [row], "o", color=BLUE, markersize=5)
    ax.set_yticks(range(len(names)), [shorten(name, 16) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    dress(ax, "recall (%), 95 % interval", "class")
    return to_svg(figure)


@style()
def precision_recall(curves: list[list[float | None]], names: list[str], most: int = 7) -> str:
    """Precision against recall: the mean over classes, and the classes where there are few."""
    figure = canvas(5.6, 3.6)
    ax = figure.subplots()
    values = np.array(curves, dtype=float)  # None becomes NaN
    there = [(name, row) for name, row in zip(names, values, strict=True) if not np.isnan(row).any()]
    recall = np.linspace(0, 100, values.shape[1])
    shown = there if len(there) <= most else []
    for (_, row), colour in zip(shown, COLOURS, strict=False):
        ax.plot(recall, 100 * row, color=colour, linewidth=1.2)
    lines = [(shorten(name, 24), colour) for (name, _), colour in zip(shown, COLOURS, strict=False)]
    if len(there) > 1:
        ax.plot(recall, 100 * np.mean([row for _, row in there], axis=0), color=INK, linewidth=2)
        lines.append(("mean over classes", INK))
    ax.set_xlim(0, 101)
    ax.set_ylim(0, 103)
    dress(ax, "recall (%)", "precision (%)")
    for number, (label, colour) in enumerate(lines):
        ax.text(1.02, 0.98 - 0.08 * number, label, transform=ax.transAxes, va="top", color=colour)
    return to_svg(figure)


@style()
def shots(rows: list[dict[str, Any]]) -> str:
    """Few-shot accuracy against shots, and the probes on all training images as lines across; bands are intervals."""
    figure = canvas(5.6, 3.6)
    ax = figure.subplots()
    few = [row for row in rows if row["probe"] == "few_shot"]
    at = [row["shots"] for row in few]
    values, lows, highs = ([100 * row[part] for row in few] for part in ("accuracy", "low", "high"))
    ax.fill_between(at, lows, highs, color=BLUE, alpha=0.15, linewidth=0)
    ax.errorbar(at, values, [np.subtract(values, lows), np.subtract(highs, values)], fmt="o-", color=BLUE, capsize=3)
    lines = [("few-shot, least squares", BLUE)]
    for name, label, colour in (("linear", "linear, all images", ORANGE), ("neighbours", "neighbours", GREEN)):
        for row in (row for row in rows if row["probe"] == name):
            ax.axhspan(100 * row["low"], 100 * row["high"], color=colour, alpha=0.12, linewidth=0)
            ax.axhline(100 * row["accuracy"], color=colour, linestyle="--", linewidth=1.4)
            lines.append((label, colour))
    for number, (label, colour) in enumerate(lines):
        ax.text(0.97, 0.05 + 0.08 * number, label, transform=ax.transAxes, ha="right", color=colour)
    ax.set_xscale("log")
    ax.set_xticks(at, [str(count) for count in at])
    ax.minorticks_off()
    dress(ax, "training images a class", "accuracy (%), 95 % interval")
    return to_svg(figure)
