"""On pictures whose cause was planted, maps find it well above chance and random maps do not."""

import numpy as np
import pytest
import torch

import regard
from tests.explain.planted import DIGIT, SIDE, planted

pytestmark = pytest.mark.long
CHANCE = (DIGIT / SIDE) ** 2
COUNT = 40


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    pictures, labels, _ = planted(1200, seed=0)
    np.savez(folder / "planted.npz", images=pictures, labels=labels)
    run = regard.train(
        folder / "planted.npz", recipe="plain", depth=3, epochs=12, batch_size=32, crop="none", mixup=0.0,
        drop_path=0.0, explain=0, out=folder / "run", quiet=True,
    )  # fmt: skip
    assert run.read_json("summary.json")["figures"]["accuracy"]["value"] > 0.9, "it never learnt the cause"
    return regard.load(run.path)


def found(maps: list[torch.Tensor], masks: torch.Tensor) -> tuple[float, float]:
    """Mean share of the map inside the digit, and how often its peak is there."""
    shares = [float(m[mask].sum() / m.sum()) for m, mask in zip(maps, masks, strict=True)]
    points = [bool(mask.flatten()[m.argmax()]) for m, mask in zip(maps, masks, strict=True)]
    return float(np.mean(shares)), float(np.mean(points))


@pytest.mark.parametrize(
    ("method", "options", "least_share", "least_pointing"),
    [
        ("rollout", {}, 2.0, 0.8),
        ("rollout", {"identity": False}, 1.3, 0.7),
        ("attention", {}, 2.0, 0.6),
        ("gradient_rollout", {}, 2.0, 0.8),
        ("chefer", {}, 2.0, 0.8),
        ("grad_cam", {}, 1.5, 0.3),  # the weakest: its order of the patches is no better than chance here
        ("integrated_gradients", {"steps": 8}, 2.0, 0.6),
        ("occlusion", {}, 2.0, 0.8),
    ],
)
def test_the_map_finds_the_planted_cause(predictor, method, options, least_share, least_pointing):
    pictures, _, masks = planted(COUNT, seed=99)
    explained = [
        predictor.explain(torch.from_numpy(p)[None], method=method, mask=mask, **options)
        for p, mask in zip(pictures, masks, strict=True)
    ]
    share, pointing = found([e.map for e in explained], masks)
    assert share == pytest.approx(np.mean([e.location.share for e in explained]), abs=1e-5)
    assert pointing == np.mean([e.location.pointing for e in explained])
    assert share > least_share * CHANCE
    assert pointing > least_pointing
    gain = np.array([e.scores.gain for e in explained])
    if method != "grad_cam":
        assert gain.mean() > 3 * gain.std() / np.sqrt(COUNT), "insertion and deletion do not see the cause"


def test_a_random_map_scores_at_chance(predictor):
    _, _, masks = planted(600, seed=99)
    where, draw = predictor.model.token_map(), torch.Generator().manual_seed(0)
    maps = [where.paint(torch.rand(where.places, generator=draw)) for _ in range(len(masks))]
    share, pointing = found(maps, masks)
    assert share == pytest.approx(CHANCE, abs=0.01)
    assert pointing == pytest.approx(CHANCE, abs=0.05)
