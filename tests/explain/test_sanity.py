"""Checks on maps: random weights must change them, and a known cause is looked up in them."""

from typing import Any

import pytest
import torch
from PIL import Image
from scipy.stats import spearmanr

import regard
from regard.data import Preparation, read_mask
from regard.errors import ConfigError
from regard.explain import METHODS, faithfulness, random_twins, rank_correlation
from regard.explain.explanation import Method, locate
from regard.explain.faithfulness import Faithfulness
from regard.geometry import TokenMap
from tests.explain.explained import explain_class
from tests.loading import load_classifier


def test_rank_correlation_is_spearmans():
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        a, b = torch.randint(0, 6, (2, 15), generator=draw).float()  # with ties
        expected: Any = spearmanr(a, b)
        assert rank_correlation(a, b) == pytest.approx(expected.statistic, abs=1e-9)
    assert rank_correlation(torch.ones(4), torch.arange(4.0)) == 0


def test_twins_forget_what_was_learnt_and_keep_its_size():
    model = regard.create("vit_nano", classes=3, size=16, registers=1)
    torch.nn.init.normal_(model.head.weight)
    one, other = random_twins(model)
    for (name, p), q, r in zip(model.named_parameters(), one.parameters(), other.parameters(), strict=True):
        if p.std() > 0:
            assert not torch.equal(p, q), name
            assert not torch.equal(q, r), name
            assert q.std().item() == pytest.approx(p.std().item(), rel=0.5), name
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), random_twins(model)[0].parameters(), strict=True))


def test_a_map_of_the_picture_alone_fails_and_gets_a_badge(run_folder, digit_files, monkeypatch):
    """Brightness looks at no model at all; of the real methods a trained model's maps do not fail this way."""
    brightness = Method(lambda case: case.where.collect(case.x.mean(1)), "model")
    monkeypatch.setitem(METHODS, "brightness", brightness)
    monkeypatch.setattr("regard.explain.explanation.WITHOUT_ATTENTION", ("brightness",))
    predictor = load_classifier(run_folder)
    fooled = predictor.explain(digit_files / "3.png", method="brightness")
    assert fooled.random_correlation == pytest.approx(1)
    assert "fails the randomisation check" in (fooled.badge or "")
    assert "fails the randomisation check" in fooled.verdict
    assert fooled.to_json()["verdict"] == fooled.verdict
    honest = predictor.explain(digit_files / "3.png", method="chefer")
    assert (honest.random_correlation or 1) < 0.5
    assert honest.badge is None


def test_twins_forget_running_statistics_too():
    model = regard.create("vit_nano", classes=3, size=16, stem="conv")
    model(torch.randn(4, 3, 16, 16))
    model.train()(torch.randn(4, 3, 16, 16))
    for twin in random_twins(model):
        assert all(v.unique().numel() == 1 for k, v in twin.state_dict().items() if "running" in k)


def test_ties_and_constant_maps_know_nothing(run_folder, digit_files, monkeypatch):
    """A map of zeros is no map, though the first patches in reading order might be the right ones."""
    where = TokenMap((4, 4), (4, 4), (16, 16))
    gains = [
        faithfulness(lambda x: x[:, 0, :4].mean((1, 2)), torch.ones(1, 1, 16, 16), torch.zeros(16), where, seed=s).gain
        for s in range(40)
    ]
    assert abs(sum(gains) / 40) < 0.15
    monkeypatch.setitem(METHODS, "grad_cam", Method(lambda case: torch.zeros(1, 16), "model"))
    nothing = load_classifier(run_folder).explain(digit_files / "3.png", "grad_cam", mask=(0, 0, 4, 4))
    assert nothing.verdict == "the map is zero everywhere and says nothing"
    assert not nothing.trusted
    assert nothing.location == (0.0, False, 0.25)


def test_the_map_that_is_shown_is_the_map_that_is_scored(run_folder, digit_files, monkeypatch):
    """Evidence against the target is not drawn, so it may not earn a good score either."""
    predictor, draw = load_classifier(run_folder), torch.Generator().manual_seed(0)
    values = torch.randn(1, 16, generator=draw)
    found = {}
    for name, given in (("signed", values), ("shown", values.clamp_min(0)), ("against", values - 10)):
        monkeypatch.setitem(METHODS, "grad_cam", Method(lambda case, given=given: given, "model"))
        found[name] = predictor.explain(digit_files / "3.png", "grad_cam")
    assert found["signed"].scores == found["shown"].scores
    assert torch.equal(found["signed"].tokens, values[0])
    empty = found["against"]
    assert empty.map.max() == 0
    assert empty.verdict == "the map is zero everywhere and says nothing"
    assert not empty.trusted
    assert empty.to_json()["scores"] is None


def test_a_gain_that_rounds_to_nothing_is_not_trusted():
    """Eight random maps of eight may be worse by a thousandth: insertion and deletion would read the same."""
    curves = {"deletion_curve": (0.5, 0.4), "insertion_curve": (0.4, 0.5)}
    tiny = Faithfulness(0.5, 0.504, 0.5, random_spread=0.0005, beaten=1.0, maps=8, **curves)
    assert not tiny.trusted
    assert tiny.verdict == "do not rely on it: the gain is below 0.01"
    small = Faithfulness(0.5, 0.52, 0.5, random_spread=0.0005, beaten=1.0, maps=8, **curves)
    assert small.trusted
    assert small.verdict == "better than 8 of 8 random maps"


def test_a_head_that_is_not_trained_cannot_be_tested():
    model = regard.create("vit_nano", classes=3, size=16)
    x = torch.randn(1, 3, 16, 16)
    seen = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    explained = explain_class(model, x, method="rollout")
    assert "cannot be tested" in explained.verdict
    assert not explained.trusted
    assert sum(seen) == 1 + 4 + 2, "beside the map, four probes and two twins"
    torch.nn.init.normal_(model.head.weight)
    seen.clear()
    tested = explain_class(model, x, method="rollout")
    assert "cannot be tested" not in tested.verdict
    assert tested.scores
    assert tested.scores.maps == 16
    assert sum(seen) > 200
    seen.clear()
    bare = explain_class(model, x, method="rollout", checks="none")
    assert sum(seen) == 1
    assert (bare.scores, bare.random_correlation, bare.verdict, bare.trusted) == (None, None, "not checked", False)
    assert torch.equal(bare.map, explain_class(model, x, method="rollout").map)


def test_share_and_pointing_of_a_map():
    painted = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    mask = torch.tensor([[True, True], [True, False]])
    assert locate(painted, mask) == (pytest.approx(0.6), False, 0.75)
    assert locate(painted, ~mask) == (pytest.approx(0.4), True, 0.25)
    assert locate(torch.zeros(2, 2), mask) == (0.0, False, 0.75)


def test_masks_come_as_files_arrays_and_boxes(tmp_path):
    Image.fromarray(torch.tensor([[0, 0, 7], [0, 255, 0]], dtype=torch.uint8).numpy()).save(tmp_path / "m.png")
    expected = torch.tensor([[False, False, True], [False, True, False]])
    assert torch.equal(read_mask(tmp_path / "m.png", (2, 3)), expected)
    assert torch.equal(read_mask(expected.int().numpy(), (2, 3)), expected)
    assert read_mask((0, 1, 2, 3), (2, 3)).sum() == 4
    for wrong, words in (
        ((0, 2, 2, 2), "does not lie"),
        (expected[:1], "does not fit"),
        ("no.png", "no such file"),
        (3, "no mask"),
    ):
        with pytest.raises(ConfigError, match=words):
            read_mask(wrong, (2, 3))


def test_a_mask_goes_the_way_of_the_picture():
    """Cut at the centre and scaled as the picture is."""
    preparation = Preparation((4, 4), 1, (0.0,), (1.0,))
    mask = torch.zeros(8, 16, dtype=torch.bool)
    mask[:4, 4:8] = True  # the upper left quarter of the central square
    assert preparation.region(mask).nonzero().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    small, outside = torch.zeros(2, 80, 160, dtype=torch.bool)
    small[41, 81] = outside[0, 0] = True  # one pixel of twenty; and one in the part cut off
    assert preparation.region(small).nonzero().tolist() == [[2, 2]]
    for mask, words in ((outside, "cut off"), (outside & small, "is empty")):
        with pytest.raises(ConfigError, match=words):
            preparation.region(mask)


def test_location_is_reported_where_a_mask_is_given(run_folder, digit_files):
    predictor = load_classifier(run_folder)
    explained = predictor.explain(digit_files / "0.png", mask=(0, 0, 4, 8))
    assert explained.location is not None
    assert explained.location.area == 0.5
    assert explained.location.share == pytest.approx(explained.map[:4].sum().item(), abs=1e-5)
    assert explained.to_json()["location"]["area"] == 0.5
    assert explained.frame is not None
    assert explained.frame.file_size == (8, 8)
    assert torch.allclose(explained.file_map, explained.map, atol=1e-7)  # digits fit as they are
    with pytest.raises(ConfigError, match="box"):
        predictor.explain(digit_files / "0.png", mask=(0, 0, 9, 9))
