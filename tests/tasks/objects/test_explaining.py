"""A detected box is explained on its image by every method, and the encoder looks from a point of the file."""

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.console import Progress
from regard.errors import ConfigError
from regard.explain import METHODS
from regard.explain.draw import draw
from regard.report.explanations import explanations
from regard.tasks.objects import explaining
from regard.tasks.objects.evaluation import sure_boxes
from regard.tasks.objects.explaining import as_shown, explain_boxes
from regard.tasks.objects.predictor import Detector
from regard.weights import Run
from tests.weights.parity import save_own, spread

MODERN = {"two_stage": True, "refine": True, "box_bias": True, "classification": "focal"}
SIZES = {"queries": 6, "width": 32, "mlp": 32, "backbone_width": 8, "blocks": (1, 1, 1, 1), "size": (64, 64)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("detector")
    for name, changes in (("plain", {}), ("modern", MODERN)):
        save_own(spread(regard.create("detr_nano", classes=4, **SIZES, **changes)), path / f"{name}.safetensors")
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 255, (4, 6, 3), dtype=np.uint8).repeat(20, 0).repeat(20, 1)
    Image.fromarray(pixels[:70]).save(path / "scene.png")  # 120 × 70: padded below
    return path


@pytest.fixture(scope="module", params=["plain", "modern"])
def detector(request, folder) -> Detector:
    loaded: Any = regard.load(folder / f"{request.param}.safetensors", quiet=True)
    return loaded


@pytest.mark.parametrize("method", METHODS)
def test_the_score_of_a_box_is_explained(method, detector, folder):
    explained = detector.explain(folder / "scene.png", method=method, box=1, checks="none")
    detections = detector.predict(folder / "scene.png", threshold=0.0)
    assert f"box 1: {detections.labels[1]} {detections.scores[1]:.0%}" in str(explained.prediction)
    assert explained.target == detections.labels[1]
    assert explained.map.shape == (64, 64)
    assert not explained.map[37:].any(), "padding"
    assert explained.says_nothing or explained.map.sum() == pytest.approx(1.0)
    assert explained.file_map.shape == (70, 120)
    assert explained.location is not None
    left, top, right, bottom = detections.boxes[1].tolist()
    assert explained.location.area == pytest.approx((right - left) * (bottom - top) / 8400, abs=0.03)


def test_the_checks_watch_the_boxs_own_probability(detector, folder):
    explained = detector.explain(folder / "scene.png", method="rollout", box=2)
    detections = detector.predict(folder / "scene.png", threshold=0.0)
    assert explained.scores is not None
    # With everything in place the curve ends at the predicted score, with queries where they were.
    assert explained.scores.insertion_curve[-1] == pytest.approx(float(detections.scores[2]), abs=1e-4)
    assert explained.random_correlation is not None
    other = detector.explain(folder / "scene.png", method="rollout", box=2, target="class 3", checks="none")
    assert other.target == "class 3"


def test_the_encoder_looks_from_a_point_of_the_file(detector, folder, tmp_path):
    shown = detector.shown(folder / "scene.png")
    with torch.no_grad(), regard.capture(detector.model) as tape:
        detector.model(shown.x, shown.mask)
    for x, y in ((3, 4), (100, 60)):
        explained = detector.attention_from_point(folder / "scene.png", (x, y))
        row, column = int(y * 37 / 70 // 16), int(x * 64 / 120 // 16)
        expected = tape.attention("encoder.1.attention")[0, row * 4 + column]
        torch.testing.assert_close(explained.tokens, expected)
        assert explained.mask is not None
        assert explained.mask.nonzero()[0].tolist() == [16 * row, 16 * column]
    first = detector.attention_from_point(folder / "scene.png", (3, 4), layer=0, head=2)
    torch.testing.assert_close(first.tokens, tape.attention("encoder.0.attention", head=2)[0, 0])
    assert draw([first], tmp_path / "point.png").is_file()
    for point in ((120, 3), (3, 70), (-1, 0), (3,)):
        with pytest.raises(ConfigError, match="is not on the image"):
            detector.attention_from_point(folder / "scene.png", point)


def test_boxes_and_classes_that_do_not_exist_are_refused(detector, folder):
    with pytest.raises(ConfigError, match="there is no box 99"):
        detector.explain(folder / "scene.png", box=99)
    with pytest.raises(ConfigError, match="no class 'class 9'"):
        detector.explain(folder / "scene.png", target="class 9")


@pytest.mark.parametrize("covered", [True, False])
def test_explained_boxes_are_in_the_run_folder_for_the_report(detector, folder, tmp_path, monkeypatch, covered):
    """Where the query looks, relevance, integrated gradients, and occlusion where that is quick; the encoder's too."""
    monkeypatch.setattr(explaining, "COVERED", 16 if covered else 15)
    plain = partial(detector.explain, checks="none")
    monkeypatch.setattr(detector, "explain", plain)  # a third of the time
    run = Run.create(tmp_path / "run")
    (run.path / "explain").mkdir(exist_ok=True)
    pixels = detector.shown(folder / "scene.png").pixels
    explain_boxes(run, detector, [("a", pixels)], Progress(quiet=True))
    items = json.loads((run.path / "explain" / "explanations.json").read_text())
    assert {item["name"] for item in items[0]} == {"a"}
    shown = ["attention", "chefer", "integrated_gradients"] + ["occlusion"] * covered
    assert [item["method"] for item in items[0]] == shown
    kept = json.loads((run.path / "explain" / "attention-01.json").read_text())
    assert kept["heads"] == [8, 8]  # of the encoder
    assert kept["grid"] == [1, 4, 4]
    (section,) = explanations(run)
    assert all(words in section.html for words in ("where its query looks", "by what way", "what decided"))
    assert "explorer-data" in section.html
    assert "true None" not in section.html, "a box has no label of its own"


def test_from_the_command_line(folder, tmp_path, cli):
    model, image, out = folder / "plain.safetensors", folder / "scene.png", tmp_path / "e.png"
    code, said, _ = cli("explain", model, image, "--box", "1", "--method", "rollout", "--checks", "none", "--out", out)
    assert code == 0
    assert "box 1:" in said
    assert out.is_file()
    code, said, _ = cli("explain", model, image, "--point", "30", "40", "--out", tmp_path / "p.svg")
    assert code == 0
    assert (tmp_path / "p.svg").is_file()
    code, _, error = cli("explain", model, image, "--point", "30", "40", "--box", "1")
    assert code == 2
    assert "--box is for a box, and --point shows" in error
    code, _, error = cli("explain", model, image, "--box", "1", "2", "3", "4")
    assert code == 2
    assert "box cannot be (1, 2, 3, 4)" in error


def test_a_changed_image_does_not_change_which_query_is_which(detector, folder):
    shown = detector.shown(folder / "scene.png")
    with torch.no_grad():
        anchors = detector.model(shown.x, shown.mask).anchors
        kept = as_shown(shown.mask, anchors, detector.model, shown.x.flip(3).expand(2, -1, -1, -1)).anchors
        other = detector.model(shown.x.flip(3), shown.mask).anchors
    if not detector.model.config.two_stage:
        assert anchors is kept is other is None
        return
    assert torch.equal(kept, anchors.expand(2, -1, -1))
    assert not torch.equal(other, anchors)


def test_the_report_shows_sure_boxes_of_every_class_first():
    surest = [(0.9, 1), (0.8, 1), (0.95, 0), (0.2, 2), (0.7, 0)]
    detections = [
        SimpleNamespace(scores=np.array([0.1, score]), labels=np.array([3, label])) for score, label in surest
    ]
    empty = SimpleNamespace(scores=np.zeros(0), labels=np.zeros(0))
    result: Any = SimpleNamespace(detections=[*detections, empty], threshold=0.5)
    assert sure_boxes(result) == [2, 0, 1, 4]
