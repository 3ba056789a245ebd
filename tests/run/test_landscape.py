"""The loss landscape: filter norms and a quadratic loss by hand, real runs, a stop and its resumption."""

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard.data.batch import Batch
from regard.errors import ConfigError
from regard.evaluation.landscape import Landscape, fill, filter_normalised, grid


def test_every_filter_of_a_direction_has_the_norm_of_the_weights():
    model = regard.create("vit_nano", classes=5, size=16)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    direction = filter_normalised(weights, seed=3)
    seen = 0
    for name, weight in weights.items():
        drawn = direction[name]
        assert drawn.shape == weight.shape
        if weight.ndim == 1:
            assert not drawn.any(), f"{name} is a bias or norm"
            continue
        rows = weight.shape[:-1] if weight.shape[0] == 1 else weight.shape[:1]
        own, made = (t.reshape(math.prod(rows), -1).norm(dim=1) for t in (weight, drawn))
        assert torch.allclose(own, made, rtol=1e-4, atol=1e-7), name
        seen += 1
    assert seen > 10
    other = filter_normalised(weights, seed=4)
    assert all(not torch.equal(other[n], d) for n, d in direction.items() if d.any())
    again = filter_normalised(weights, seed=3)
    assert all(torch.equal(again[n], d) for n, d in direction.items())


class Squares:
    """The mean square of what the model gives, of batches of different sizes."""

    divisible = True

    def forward(self, model: Any, batch: Batch) -> Any:
        return model(batch.inputs["x"])

    def loss(self, output: torch.Tensor, targets: dict) -> torch.Tensor:
        return (output - targets["y"]).square().mean()

    def num_targets(self, targets: dict) -> int:
        return targets["y"].numel()


def test_a_quadratic_loss_by_hand():
    """y = w x: the loss at w + a d + b e is the mean of ((w + a d + b e) x - y)², whatever the order of the points."""
    model = nn.Linear(2, 1, bias=True).double()
    w, bias = torch.tensor([[3.0, -4.0]]).double(), 0.5
    with torch.no_grad():
        model.weight.copy_(w)
        model.bias.fill_(bias)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(7, 2, generator=draw).double(), torch.randn(7, 1, generator=draw).double()
    batches = [Batch({"x": x[:5]}, {"y": y[:5]}), Batch({"x": x[5:]}, {"y": y[5:]})]
    directions = [filter_normalised(dict(model.named_parameters()), seed) for seed in (0, 1)]
    assert float(directions[0]["weight"].detach().norm()) == pytest.approx(5)
    model.train()
    steps, places = grid(5, 2.0, 2)
    objective: Any = Squares()
    known = fill(Landscape(model, objective, batches, directions), places, {}, lambda done: False)
    assert len(known) == 25
    for (a, b), loss in known.items():
        there = w + a * directions[0]["weight"].detach() + b * directions[1]["weight"].detach()
        exact = float((x @ there.T + bias - y).square().mean())
        assert loss == pytest.approx(exact, rel=1e-9)
    assert torch.equal(model.weight, w)
    assert model.training
    # A quadratic has the same second difference everywhere along a line.
    line = np.diff([known[(float(a), 0.0)] for a in steps], n=2)
    assert np.allclose(line, line[0])


def test_dropout_and_random_masks_are_the_same_at_every_point():
    class Noisy(nn.Linear):
        def forward(self, input):
            return super().forward(nn.functional.dropout(input, 0.5, self.training)) + torch.randn(1)

    model, objective = Noisy(2, 1), Squares()
    batch = Batch({"x": torch.ones(3, 2)}, {"y": torch.zeros(3, 1)})
    at: Any = Landscape(model, objective, [batch], [filter_normalised(dict(model.named_parameters()), 0)])
    with at:
        assert at.loss([0.1]) == at.loss([0.1])


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_run_has_its_loss_in_the_middle_and_the_files_say_the_same(run_folder, tmp_path, split):
    surface = regard.landscape(run_folder, points=3, samples=200, split=split, out=tmp_path / "made", quiet=True)
    assert surface.losses.shape == (3, 3)
    assert surface.centre == surface.losses.min(), "trained weights are better than random ones around them"
    assert surface.samples >= 200
    rows = (tmp_path / "made" / "landscape.csv").read_text().splitlines()
    assert rows[0] == "step1,step2,loss"
    assert [float(row.split(",")[2]) for row in rows[1:]] == surface.losses.ravel().tolist()
    assert [float(row.split(",")[0]) for row in rows[1:4]] == [-1, 0, 1]
    for name in ("landscape.png", "landscape.svg"):
        assert (tmp_path / "made" / name).stat().st_size > 5000
    again = regard.landscape(run_folder, points=3, samples=200, split=split, out=tmp_path / "made", quiet=True)
    assert np.array_equal(again.losses, surface.losses)


def test_it_stops_and_continues_where_it_was(run_folder, tmp_path, monkeypatch):
    from regard.run import landscape as module

    options: dict[str, Any] = {"points": 3, "samples": 32, "out": tmp_path / "made", "quiet": True}
    whole = regard.landscape(run_folder, **options | {"out": tmp_path / "whole"})
    asked = SimpleNamespace(left=4)

    def stopped(self):
        asked.left -= 1
        return asked.left == 0

    with monkeypatch.context() as patch:
        patch.setattr(module.Stop, "asked", stopped)
        with pytest.raises(KeyboardInterrupt):
            regard.landscape(run_folder, **options)
    held = json.loads((tmp_path / "made" / "landscape.json").read_text())
    assert len(held["losses"]) == 4
    held["losses"][1][-1] = 77.0  # what is known is not computed again
    (tmp_path / "made" / "landscape.json").write_text(json.dumps(held))
    surface = regard.landscape(run_folder, **options)
    assert (surface.losses == 77).sum() == 1
    assert np.isclose(surface.losses, whole.losses).sum() == 8
    with pytest.raises(ConfigError, match="a landscape of other seed"):
        regard.landscape(run_folder, **options | {"seed": 1})


def test_one_direction_of_a_translator_and_the_command(translation_run, cli, tmp_path):
    code, out, _ = cli(
        "landscape", translation_run.path, "--directions", 1, "--points", 5, "--samples", 20, "--quiet",
        "--out", tmp_path / "line",
    )  # fmt: skip
    assert code == 0
    assert "landscape.png" in out
    rows = (tmp_path / "line" / "landscape.csv").read_text().splitlines()
    assert rows[0] == "step1,loss"
    losses = [float(row.split(",")[1]) for row in rows[1:]]
    assert losses[2] == min(losses)
    code, _, err = cli("landscape", translation_run.path, "--points", 4)
    assert code == 2
    assert "an odd number" in err
