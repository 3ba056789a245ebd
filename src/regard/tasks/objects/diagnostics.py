"""Why a detector finds little, in sentences: what went wrong, and what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

FAILED = 0.2
"""AP50 below which reasons are looked for."""
SAME_PLACE, SAME_ANSWER = 0.6, 0.8
"""Mean overlaps from which queries of an image, or the answers to two images, are taken for the same."""
UNSURE = 0.3
"""Mean score of an image's surest box below which hardly anything is taken for an object."""
FELL = 0.1
"""Share by which the training loss must fall."""


def diagnose(summary: Mapping[str, Any]) -> list[str]:
    """From summary.json: reasons, if AP50 is low; classes that are never predicted; and what the data warned of."""
    figure, spread = summary["figures"].get("ap50"), summary["spread"]
    lines = list[str]()
    if figure and figure["value"] < FAILED:
        lines += [*_collapsed(spread), *_silent(summary)] or [
            f"AP50 is {figure['value']:.2f}, and the boxes differ between images and places: it learns; train longer, "
            "or start from trained weights by --from"
        ]
    counts, names = np.array(summary["confusion"]), list(summary["per_class"])
    never = [name for n, name in enumerate(names) if counts[n].sum() and not counts[:, n].sum()]
    if never and len(never) < len(names):
        shown = ", ".join(never[:8]) + (f" and {len(never) - 8} more" if len(never) > 8 else "")
        lines.append(f"never predicted with a score of {summary['threshold']:.2f} or more: {shown}")
    return [*lines, *summary.get("cautions", ())]


def _collapsed(spread: Mapping[str, float]) -> list[str]:
    lines = list[str]()
    if spread["same_place"] > SAME_PLACE:
        lines.append(
            f"the queries have collapsed: two boxes of an image overlap by {spread['same_place']:.0%} on average; "
            "lower --lr, train longer, or give --two-stage and --denoising, which tell queries apart"
        )
    elif spread["same_answer"] > SAME_ANSWER:
        lines.append(
            f"the boxes hardly depend on the image: those of two images overlap by {spread['same_answer']:.0%} on "
            "average; train longer, raise --lr if the loss still falls slowly, or start from trained weights by --from"
        )
    return lines


def _silent(summary: Mapping[str, Any]) -> list[str]:
    score = summary["spread"]["best_score"]
    if score >= UNSURE:
        return []
    return [
        f"no-object dominates: the surest box of an image with objects has a score of {score:.2f} on average; train "
        "longer, lower --no-object (with a softmax), or give fewer --queries"
    ]


def diagnose_training(rows: Sequence[Mapping[str, str]], lr: float) -> list[str]:
    """From metrics.csv: whether the loss fell as it does with a fitting learning rate."""
    losses = [float(row["train_loss"]) for row in rows]
    if len(losses) < 3:
        return []
    first, least, last = losses[0], min(losses), losses[-1]
    if last > (1 + FELL) * least and last > first:
        return [f"the training loss rose from {least:.2f} to {last:.2f}: the learning rate, {lr:g}, is too high"]
    if last > (1 - FELL) * first:
        what = f"the training loss fell by less than {FELL:.0%}, from {first:.2f} to {last:.2f}"
        return [f"{what}: the learning rate, {lr:g}, is too low or far too high, or the training too short"]
    return []
