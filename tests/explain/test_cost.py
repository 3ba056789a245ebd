"""How long an explanation takes is known before: forward passes are counted, not guessed."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.explain import explain
from regard.explain.cost import GRADIENT, passes
from regard.explain.explanation import METHODS
from regard.tasks.classification.loss import probabilities
from regard.tasks.classification.predictor import Prediction
from tests.explain.explained import explain_class
from tests.loading import load_classifier


@pytest.mark.parametrize(
    ("method", "name", "side"),
    [*((method, "vit_nano", 16) for method in METHODS), ("rollout", "vit_nano", 36), ("occlusion", "resnet_nano", 16)],
)
def test_the_passes_of_every_method_are_those_that_are_made(method, name, side, monkeypatch):
    small: dict[str, Any] = {"depth": 2} if name == "vit_nano" else {}
    model = regard.create(name, classes=3, size=side, **small).eval()
    torch.nn.init.normal_(model.head.weight)
    made, forward = [], type(model).forward

    def counted(network, x, **options):
        made.append(len(x) * (GRADIENT if torch.is_grad_enabled() and not torch.is_inference_mode_enabled() else 1))
        return forward(network, x, **options)

    monkeypatch.setattr(type(model), "forward", counted)
    least, most, checks = passes(model, method)
    x = torch.randn(1, 3, side, side)
    bare = explain_class(model, x, method, checks="none")
    assert least - 1 <= sum(made) <= most - 1, "and one for the prediction"
    if method == "integrated_gradients":
        assert passes(model, method, steps=bare.options["steps"]).least <= sum(made) + 1
    made.clear()
    assert explain_class(model, x, method).scores
    assert least - 1 + checks <= sum(made) <= most - 1 + checks


def test_a_long_explanation_is_announced_with_what_makes_it_shorter(cli, run_folder, tmp_path, monkeypatch):
    Image.fromarray(np.full((8, 8), 90, np.uint8)).save(tmp_path / "a.png")
    monkeypatch.setattr("regard.tasks.image_predictor.pass_seconds", lambda model: 0.5)
    words = ("explain", run_folder, tmp_path / "a.png", "--out", tmp_path / "why.png")
    told = [cli(*words, *more)[2].splitlines()[1] for more in ((), ("--checks", "none"), ("--method", "rollout"))]
    assert passes(load_classifier(run_folder).model) == (
        1 + 2 + 3 * 32,
        1 + 2 + 3 * 480,
        4 + 34 * 15 + 2 * (2 + 3 * 32),
    )
    assert told[0] == "about 7 min to 18 min per image on this CPU; --checks none: 50 s to 12 min"
    assert told[1] == "about 50 s to 12 min per image on this CPU"
    assert told[2] == "about 4 min per image on this CPU; --checks none: 1 s"
    monkeypatch.setattr("regard.tasks.image_predictor.pass_seconds", lambda model: 1e-6)
    assert "per image" not in cli(*words)[2]


def test_large_inputs_tell_of_progress_more_often_on_a_cpu(monkeypatch):
    monkeypatch.setattr("regard.explain.methods.CPU_NUMBERS", 3 * 16 * 16)
    model, told = regard.create("vit_nano", classes=3, size=16).eval(), []
    torch.nn.init.normal_(model.head.weight)
    x = torch.randn(1, 3, 16, 16)
    explain(
        model, x, x[0], prediction=Prediction("x", "a", {"a": 1.0}), target="a", steps=8, say=told.append,
        score=lambda output: output.logits[:, 0], answer=lambda output: probabilities(output)[:, 0],
    )  # fmt: skip
    assert [text for text in told if text.startswith("gradient")] == [f"gradient {n} of 8" for n in range(8)]
    assert "check 17 of 510" in told
    assert "random weights 2 of 2: gradient 31 of 32" in told
