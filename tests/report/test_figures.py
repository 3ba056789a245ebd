"""What can be read in the figures of a report."""

import re

import numpy as np
import pytest

from regard.report import figures

pytestmark = pytest.mark.whole_runs


def rows(losses: list[float]) -> list[dict[str, str]]:
    return [
        {"epoch": str(n), "train_loss": str(loss), "val_loss": str(loss + 0.1), "val_accuracy": "0.5"}
        for n, loss in enumerate(losses, start=1)
    ]


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_37_classes_are_all_named_and_counted():
    classes = [f"breed {n:02d}" for n in range(37)]
    counts = 20 * np.eye(37, dtype=int)
    counts[3, 30] = 7
    shown = texts(figures.confusion(counts, classes))
    assert all(shown.count(name) == 2 for name in classes)
    assert shown.count("20") == 37
    assert shown.count("7") == 1
    many = texts(figures.confusion(np.eye(200, dtype=int), [f"c{n}" for n in range(200)]))
    assert len(many) < 120, "names that cannot be read are left out"


def test_loss_axes_begin_where_the_curve_does():
    """From 7.0 to 6.8, an axis from 0 would show two level lines."""
    for svg in (figures.curves(rows([7.0, 6.9, 6.8]), 3), figures.losses(rows([7.0, 6.9, 6.8]), 3, "nats")):
        ticks = [float(text) for text in texts(svg) if re.fullmatch(r"\d\.\d+", text)]  # epochs are whole numbers
        assert ticks
        assert min(ticks) > 6
