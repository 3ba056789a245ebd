"""Figures of explanations: on the file's own picture, nothing cut off, nothing on top of anything else."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.transforms import Bbox

import regard
from regard.explain import draw
from regard.explain.draw import _panels, draw_pages
from regard.explain.explanation import METHODS, Explanation, Method
from regard.explain.inspect_draw import _through_layers
from tests.loading import load_classifier


@pytest.fixture
def explained(run_folder, monkeypatch):
    """Explanations of pictures of any size, whose map is all in the input's first token."""
    predictor = load_classifier(run_folder)
    values = torch.zeros(1, predictor.model.token_map().places)
    values[0, 0] = 1.0
    monkeypatch.setitem(METHODS, "grad_cam", Method(lambda case: values, "model"))

    def explain(*size: int, value: float = 0.1) -> Explanation:
        pixels = torch.full((1, *size), value)
        made = predictor.explain(pixels, "grad_cam", mask=tuple(n * s // 4 for n in (1, 3) for s in size))
        return made.about("a long name of a picture that lies deep in folders.png", "the true class of it")

    return explain


def test_a_map_is_drawn_on_the_files_own_picture(explained):
    """8 × 8 pixels are the middle 40 × 40 of a wide picture: its first token covers 10 × 10 there."""
    panels = _panels(explained(40, 100))
    assert panels.picture.shape == (40, 100, 1)
    assert panels.seen == ((0, 40), (30, 40))
    places = np.argwhere(panels.values > 0)
    assert places.min(0).tolist() == [0, 30]
    assert places.max(0).tolist() == [9, 39]
    assert panels.values[0, 30] == pytest.approx(16)
    large = explained(3000, 1500)
    assert large.photo is not None
    assert large.photo.shape == (1, 512, 256)
    assert large.file_map.shape == (3000, 1500)
    assert large.seen.shape == (1, 256, 256)


def figure_of(monkeypatch, explanations: list[Explanation], path) -> Any:
    kept = []
    monkeypatch.setattr(draw, "save", lambda figure, path: kept.append(figure) or path)
    draw_pages(explanations, path)
    figure = kept[0]
    figure.savefig(io.BytesIO(), format="png")  # lays it out
    return figure


def overlap(one: Bbox, other: Bbox) -> float:
    """Of two rectangles, the narrower side of what they share, in pixels."""
    shared = Bbox.intersection(one, other)
    return 0.0 if shared is None else float(min(shared.width, shared.height))


def test_nothing_is_cut_off_and_nothing_lies_on_a_picture(explained, monkeypatch, tmp_path):
    """Of a wide picture the colour bar, and of a narrow one the captions, used to."""
    figure = figure_of(monkeypatch, [explained(40, 160), explained(160, 40), explained(8, 8)], tmp_path / "x.png")
    axes = [ax for part in figure.subfigs for ax in part.axes]
    bars = [child for ax in axes for child in ax.child_axes]
    panels = [ax for ax in axes if ax.images]
    assert (len(panels), len(bars)) == (9, 3)
    texts = [text for ax in [*axes, *bars] for text in [*ax.texts, ax.xaxis.label, ax.yaxis.label] if text.get_text()]
    boxes = [text.get_window_extent() for text in texts] + [bar.get_tightbbox() for bar in bars]
    for box in boxes:
        assert figure.bbox.x0 - 1 <= box.x0 < box.x1 <= figure.bbox.x1 + 1
        assert figure.bbox.y0 - 1 <= box.y0 < box.y1 <= figure.bbox.y1 + 1
        assert all(overlap(box, panel.get_window_extent()) < 1 for panel in panels)


def test_a_dark_scan_stays_visible_below_its_map(explained, monkeypatch, tmp_path):
    figure = figure_of(monkeypatch, [explained(16, 16, value=0.05)], tmp_path / "x.png")
    _, _, blended, _ = figure.subfigs[0].axes
    shown = blended.images[0].get_array()
    assert shown.max(-1).min() > 0.15, "the map's lowest colour shows where the scan is black"


def test_every_register_has_its_curve():
    from matplotlib.figure import Figure

    model = regard.create("vit_nano", classes=2, size=16, registers=4)
    norms = regard.explain.inspect.token_norms(model, torch.rand(2, 3, 16, 16))
    ax = Figure().subplots()
    _through_layers(ax, norms)
    names = [line.get_label() for line in ax.lines]
    assert names == ["largest patch", "median patch", "class", *(f"register {n}" for n in range(4))]
    for token, line in enumerate(ax.lines[2:]):
        torch.testing.assert_close(
            torch.tensor(line.get_ydata()).float(), torch.stack([layer[:, token].mean() for layer in norms.norms])
        )


def test_a_map_with_little_contrast_is_drawn_between_its_own_limits(explained, monkeypatch, tmp_path):
    made = explained(8, 8)
    assert limits_shown(monkeypatch, made, tmp_path)[0] == 0
    even = torch.ones_like(made.map)
    even[0] = 1.2
    least, most = limits_shown(monkeypatch, replace(made, map=even / even.sum()), tmp_path)
    assert 0.9 < least < 1 < most < 1.3


def limits_shown(monkeypatch, item: Explanation, folder) -> tuple[float, float]:
    *_, painted = figure_of(monkeypatch, [item], folder / "x.png").subfigs[0].axes
    return painted.images[0].get_clim()


def test_the_caption_of_a_map_says_its_range(explained, monkeypatch, tmp_path):
    made = explained(8, 8)
    even = torch.ones_like(made.map)
    even[0] = 1.2
    *_, painted = figure_of(monkeypatch, [replace(made, map=even / even.sum())], tmp_path / "x.png").subfigs[0].axes
    values = painted.images[0].get_array()
    assert painted.get_xlabel() == f"map, {values.min():.2f} to {values.max():.2f} times the average"
