"""DeiT's distillation token: its loss by hand, its teacher's inputs, and runs that have one."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import regard
from regard.cli import main
from regard.data import Preparation
from regard.errors import ConfigError, RunError
from regard.explain import explanation
from regard.networks.base import Output
from regard.nn import capture
from regard.tasks.classification.distillation import Distillation, Taught, Teacher, open_teacher
from regard.tasks.classification.loss import CrossEntropy
from regard.training import loop
from regard.weights import Run
from tests.conftest import make_folder, settings_of
from tests.loading import load_classifier

QUICK: dict[str, Any] = {
    "epochs": 2, "batch_size": 8, "explain": 0, "quiet": True, "device": "cpu", "recipe": "plain", "depth": 1,
    "pixel_baseline": False,
}  # fmt: skip
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("data") / "pictures")


@pytest.fixture(scope="module")
def teacher_run(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "teacher"
    settings = {name: value for name, value in QUICK.items() if name != "depth"}
    return regard.train(data, model="resnet_nano", out=out, **settings).path


@pytest.fixture(scope="module")
def student_run(data, teacher_run, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "student"
    return regard.train(data, model="vit_nano", teacher=teacher_run, out=out, **QUICK).path


PUBLISHED = {"vit_ti16": 5_910_800, "vit_s16": 22_436_432, "vit_b16": 87_338_192}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_of_parameters(name):
    """DeiT-Ti, S and B with the token, as timm builds them: one more token, its position and its head."""
    with torch.device("meta"):
        assert sum(p.numel() for p in regard.create(name, distilled=True).parameters()) == PUBLISHED[name]


def taught(kind, weight, temperature=3.0, both=True) -> float:
    """The loss of one image of class 1 of 2, where the tokens say (0, 2) and (1, 0) and the teacher (0, 4)."""
    own, learner = torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 0.0]])
    pair = torch.stack([own, learner], dim=1)
    output = Output(pair.mean(1), pair.mean(1), pair, pair) if both else Output(learner, learner, learner)
    objective: Any = Distillation(CrossEntropy(), Any, kind, weight, temperature)  # pyright: ignore[reportArgumentType]
    return float(
        objective.loss(Taught(output, torch.tensor([[0.0, 4.0]])), {"probabilities": torch.tensor([[0.0, 1.0]])})
    )


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def test_hard_distillation_by_hand():
    """Half the class token's cross-entropy with the label, half the distillation token's with the decision."""
    assert taught("hard", 0.5) == pytest.approx(0.5 * softplus(-2) + 0.5 * softplus(1), abs=1e-6)
    assert taught("hard", 0.25) == pytest.approx(0.75 * softplus(-2) + 0.25 * softplus(1), abs=1e-6)
    assert taught("hard", 0.5, both=False) == pytest.approx(softplus(1), abs=1e-6), "one head learns both"


def test_soft_distillation_by_hand():
    """Equation 2: the divergence of the student from the teacher at a temperature of 3, times its square."""
    p = 1 / (1 + math.exp(-4 / 3))  # what the teacher says of class 1, softened
    q = 1 / (1 + math.exp(1 / 3))  # and the student
    divergence = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert taught("soft", 0.1) == pytest.approx(0.9 * softplus(-2) + 0.1 * 9 * divergence, abs=1e-6)
    assert taught("soft", 0.1) != pytest.approx(taught("soft", 0.1, temperature=1.0), abs=1e-3)


@pytest.mark.parametrize("channels", [(3, 3), (1, 3), (3, 1)])
@pytest.mark.parametrize("size", [(8, 12), (16, 24)])
def test_a_teacher_sees_the_image_as_it_was_trained_on(channels, size):
    """What the student's input is made of, prepared for the teacher: the same as preparing the image for it."""
    ours, theirs = channels
    student = Preparation((8, 12), ours, (0.3,) * ours, (0.2,) * ours)
    own = Preparation(size, theirs, (0.5, 0.4, 0.6)[:theirs], (0.1, 0.3, 0.2)[:theirs])
    model = regard.create("resnet_nano", classes=2, size=size, channels=theirs)
    pixels = torch.rand(ours, 8, 12)
    seen = Teacher(model, own, ("a", "b"), student, ("a", "b")).seen(student(pixels))
    torch.testing.assert_close(seen, own(pixels), atol=1e-5, rtol=1e-5)


def test_a_part_of_the_image_stays_a_part():
    """Epochs of low resolution show three quarters of each side: so does the teacher's input, on its own scale."""
    student, own = Preparation((16, 16), 3, (0.5,) * 3, (0.2,) * 3), Preparation((32, 32), 3, (0.5,) * 3, (0.2,) * 3)
    model = regard.create("resnet_nano", classes=2, size=32)
    teacher = Teacher(model, own, ("a", "b"), student, ("a", "b"))
    assert teacher.seen(torch.zeros(1, 3, 12, 12)).shape[2:] == (24, 24)


def test_classes_are_matched_by_name_and_others_are_refused(teacher_run, tmp_path):
    prepared = Preparation((20, 20), 3, (0.5,) * 3, (0.2,) * 3)
    x = torch.rand(2, 3, 20, 20)
    straight = open_teacher(teacher_run, prepared, ("blue", "red"), CPU)
    crossed = open_teacher(teacher_run, prepared, ("red", "blue"), CPU)
    assert torch.equal(straight(x), crossed(x).flip(-1))
    assert not straight.train().model.training
    with pytest.raises(ConfigError, match="other classes than the data: green, red"):
        open_teacher(teacher_run, prepared, ("blue", "green"), CPU)
    with pytest.raises(ConfigError, match="inputs of"):
        open_teacher(teacher_run, Preparation((8, 8, 8), 3, (0.5,) * 3, (0.2,) * 3), ("blue", "red"), CPU)
    regard.save(regard.create("vit_nano", classes=2, size=20), tmp_path / "w.safetensors", classes=("blue", "red"))
    with pytest.raises(ConfigError, match="no trained head"):
        open_teacher(tmp_path / "w.safetensors", prepared, ("blue", "red"), CPU)


def test_a_run_with_a_teacher_learns_from_it_and_says_so(data, teacher_run, student_run, tmp_path):
    settings = settings_of(student_run)
    assert settings["distilled"] == {"value": True, "origin": "auto"}
    said = Run(student_run).read_json("teacher.json")
    weights = load_file(student_run / "checkpoints" / "last.safetensors")
    assert {"distillation_token", "head.label.weight", "head.teacher.weight"} <= weights.keys()
    assert not any("order" in name or "own_" in name for name in weights), "the teacher is not part of it"
    assert not torch.equal(weights["head.label.weight"], weights["head.teacher.weight"])
    assert (said["seen_in_test"], said["parameters"]) == (0, 174_738)
    model = load_classifier(student_run)
    x = torch.rand(2, 3, *model.preparation.size)
    both = model.model(x).both
    torch.testing.assert_close(model.model(x).logits, both.mean(1))
    soft = regard.train(data, model="vit_nano", teacher=teacher_run, distillation="soft", out=tmp_path / "s", **QUICK)
    changed = load_file(soft.checkpoint("last"))
    assert not torch.equal(weights["head.teacher.weight"], changed["head.teacher.weight"])


def test_a_network_without_the_token_can_be_taught_too(data, teacher_run, tmp_path):
    settings: dict[str, Any] = {name: value for name, value in QUICK.items() if name != "depth"} | {"epochs": 1}
    run = regard.train(data, model="resnet_nano", teacher=teacher_run, out=tmp_path / "resnet", **settings)
    assert "distilled" not in settings_of(run)
    run = regard.train(data, model="vit_nano", pool="mean", teacher=teacher_run, out=tmp_path / "mean", **QUICK)
    assert not settings_of(run).get("distilled", {}).get("value")


def test_weights_with_the_token_train_on_without_a_teacher(data, student_run, tmp_path):
    fine = {name: value for name, value in QUICK.items() if name not in ("depth", "recipe")}
    run = regard.train(data, weights=student_run, freeze="all", out=tmp_path / "run", **fine)
    before = load_file(student_run / "checkpoints" / "best.safetensors")
    after = load_file(run.checkpoint("last"))
    assert after["head.label.weight"].any()
    assert after["head.teacher.weight"].any()
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed <= {f"head.{kind}.{part}" for kind in ("label", "teacher") for part in ("weight", "bias")}


def test_resumed_to_the_bit(data, teacher_run, student_run, tmp_path, monkeypatch):
    out, real = tmp_path / "run", loop.Training._save_if_due

    def stop(self: Any) -> None:
        self._save()
        if self.history.updates == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop.Training, "_save_if_due", stop)
    with pytest.raises(KeyboardInterrupt):
        regard.train(data, model="vit_nano", teacher=teacher_run, out=out, **QUICK)
    monkeypatch.setattr(loop.Training, "_save_if_due", real)
    teacher = teacher_run / "checkpoints" / "best.safetensors"
    held = teacher.read_bytes()
    try:
        with safe_open(teacher, "pt") as file:
            about = file.metadata()
        save_file({name: tensor + 1 for name, tensor in load_file(teacher).items()}, teacher, metadata=about)
        with pytest.raises(RunError, match="the teacher has changed"):
            regard.resume(out, quiet=True)
    finally:
        teacher.write_bytes(held)
    regard.resume(out, quiet=True)
    whole, ours = (load_file(path / "checkpoints" / "last.safetensors") for path in (student_run, out))
    assert all(torch.equal(whole[name], ours[name]) for name in whole)


def test_attention_is_followed_from_both_tokens():
    model = regard.create("vit_nano", classes=2, size=8, patch=4, depth=1, distilled=True)
    model.head.label.weight.data.normal_()
    assert model.token_map().prefix == ("class", "distillation")
    with capture(model) as tape, torch.no_grad():
        model(torch.rand(1, 3, 8, 8))
    weights = tape.attention(tape.names[0]).double()[0]
    expected = weights[:2, 2:].mean(0)
    method = explanation.METHODS["attention"].function
    found = method(tape, model.token_map())[0].double()
    torch.testing.assert_close(found / found.sum(), expected / expected.sum(), atol=1e-6, rtol=1e-6)


def test_a_taught_student_explains_and_probes(data, student_run, tmp_path):
    model = load_classifier(student_run)
    picture = next((data / "red").iterdir())
    assert model.explain(picture, method="chefer", checks="none").map.shape == model.preparation.size
    probe = regard.probe(student_run, data, methods=["linear"], keep=tmp_path / "kept", quiet=True)
    kept = load_classifier(tmp_path / "kept")
    assert 0 <= probe.row("linear").accuracy.value <= 1
    x = torch.rand(2, 3, *kept.preparation.size)
    out = kept.model(x)
    weight, bias = kept.model.head.label.weight, kept.model.head.label.bias
    np.testing.assert_allclose(
        out.logits.detach(), (out.features @ weight.T + bias).detach(), atol=1e-5, err_msg="the probe's own head"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--distillation", "soft"), "distillation needs a teacher"),
        (("--temperature", "2"), "temperature needs a teacher"),
        (("--teacher", "nowhere"), "there are no such weights"),
        (("--model", "vit_nano", "--distilled", "--pool", "mean"), "stands beside a class token"),
    ],
)
def test_what_makes_no_sense_is_refused(words, message, data, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["regard", "train", str(data), *words])
    with pytest.raises(SystemExit):
        main()
    assert message in capsys.readouterr().err
