"""Studies of claims about image networks, against arithmetic by hand."""

import shutil
from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard.errors import ConfigError, RunError
from regard.explain.inspect import hooked
from regard.explain.inspection import inspect_model, own_pictures
from regard.study.images import norm_study, receptive_field_study, resolution_study, shift_study
from regard.study.images.norms import TokenBatchNorm, with_batch_norm
from regard.study.images.receptive import _normalise, attention_distances, receptive_fields
from regard.study.images.shifts import BATCH, answers_kept, feature_grid, shift_error
from regard.weights import Run


def test_a_circular_convolution_commutes_with_shifts_and_a_vit_with_positions_does_not():
    x = torch.rand(2, 3, 16, 16)
    assert shift_error(regard.create("vit_nano", classes=2, size=16, positions="none").eval(), x, 1) < 1e-9
    learned = shift_error(regard.create("vit_nano", classes=2, size=16).eval(), x, 1)
    convolved = regard.create("resnet_nano", classes=2, size=16).eval()
    for module in convolved.modules():
        if isinstance(module, nn.Conv2d):
            module.padding_mode = "circular"
            module._reversed_padding_repeated_twice = [int(module.padding[0])] * 4  # pyright: ignore
    assert shift_error(convolved, x, 1) < 1e-9
    assert learned > 0.1


def test_shifts_of_more_images_than_a_batch_are_of_all_images():
    model = regard.create("vit_nano", classes=5, size=16).eval()
    nn.init.normal_(model.head.weight)
    x = torch.rand(BATCH + 6, 3, 16, 16)
    with torch.no_grad():
        own, moved = (model(image).logits.argmax(-1) for image in (x, x.roll((1, 1), dims=(2, 3))))
        tokens = model(x).tokens[:, 1:]
    assert answers_kept(model, x, 1) == pytest.approx(float((own == moved).double().mean()))
    assert torch.allclose(feature_grid(model, x)[0].flatten(1, 2), tokens, atol=1e-5)


def test_answers_of_a_bag_of_patches_stay_under_shifts_by_patches():
    x, model = torch.rand(8, 3, 16, 16), regard.create("vit_nano", classes=5, size=16, positions="none").eval()
    nn.init.normal_(model.head.weight)
    assert answers_kept(model, x, 4) == 1.0


def test_two_convolutions_of_3_by_3_see_3_by_3_and_5_by_5():
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)]
    fields = receptive_fields(nn.Sequential(*layers), layers, torch.rand(2, 3, 16, 16), channels_last=False)
    assert [field.reached for field in fields] == pytest.approx([9 / 256, 25 / 256])
    assert fields[0].distance < fields[1].distance < 3


def test_one_attention_layer_sees_everything_and_a_resnet_block_does_not(tmp_path):
    finding = receptive_field_study(
        ("vit_nano", "swin_nano", "resnet_nano"), size=64, images=2, out=tmp_path / "s", quiet=True
    )
    first = {row["network"]: row["reached"] for row in finding.rows if row["layer"] == 1}
    assert first["vit_nano"] == 1.0
    assert first["swin_nano"] < 1.0
    assert first["resnet_nano"] < 0.1
    assert (tmp_path / "s" / "study.png").stat().st_size > 5000
    assert "all of it from block 1 on" in (tmp_path / "s" / "study.md").read_text()


def test_statistics_of_a_group_norm_do_not_widen_the_field():
    """They depend on all pixels: without this, a convolution of 3 × 3 would see everything, as BiT after one block."""
    conv, norm = nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4)
    nn.init.normal_(norm.weight)
    model, x = nn.Sequential(conv, norm), torch.rand(2, 3, 16, 16)
    assert [field.reached for field in receptive_fields(model, [norm], x, channels_last=False)] == [9 / 256]
    kept = []
    with hooked([(norm, lambda *given: kept.append((given[-1], _normalise(norm, *given[1:]))))]):
        model(x)
    torch.testing.assert_close(*kept[0])
    assert not norm._forward_hooks


def test_attention_distance_is_that_of_regard_inspect(tmp_path, monkeypatch):
    x = torch.rand(2, 3, 32, 32)
    for name in ("vit_nano", "swin_nano"):
        model = regard.create(name, classes=2, size=32)
        found = inspect_model(model, x).distance
        assert found is not None
        assert attention_distances(model, x) == pytest.approx([float(heads.mean()) for heads in found])
    drawn = []
    monkeypatch.setattr("regard.study.images.finding.save", lambda figure, path: drawn.append(figure))
    finding = receptive_field_study(("swin_nano", "resnet_nano"), size=32, images=2, out=tmp_path / "s", quiet=True)
    swin, resnet = ([row for row in finding.rows if row["network"] == name] for name in ("swin_nano", "resnet_nano"))
    assert all(row["attention_distance"] is None for row in resnet)
    right = drawn[0].axes[1]
    dashed = [list(line.get_ydata()) for line in right.lines if line.get_linestyle() == "--" and len(line.get_ydata())]
    assert dashed == [[row["attention_distance"] for row in swin]]
    assert "; mean attention distance" in finding.summary()[0]
    assert "attention" not in finding.summary()[1]


def test_what_has_no_places_has_no_receptive_field(tmp_path):
    with pytest.raises(ConfigError, match="has no blocks whose outputs have places"):
        receptive_field_study(("mlp_nano",), size=16, images=1, out=tmp_path / "s", quiet=True)


def test_batch_norm_of_tokens_by_hand():
    x = torch.tensor([[[1.0], [3.0]], [[5.0], [7.0]]])  # four tokens of one channel: mean 4, variance 5
    made = TokenBatchNorm(1, eps=1e-12)(x)
    torch.testing.assert_close(made, (x - 4) / 5**0.5)
    model = with_batch_norm(regard.create("vit_nano", classes=2, size=8, patch=4, depth=2))
    assert not any(isinstance(module, nn.LayerNorm) for module in model.modules())
    assert sum(isinstance(module, TokenBatchNorm) for module in model.modules()) == 5


def test_norms_by_batch_size_resume_and_say_what_was_found(tmp_path, monkeypatch):
    given: dict[str, Any] = {"batches": (2, 8), "steps": 2, "seeds": 2, "out": tmp_path / "s", "quiet": True}
    finding = norm_study(**given)
    assert len(finding.rows) == 8
    assert "Batch 2: LayerNorm" in finding.summary()[0]
    monkeypatch.setattr("regard.study.images.norms._train", None)
    assert norm_study(**given).rows == finding.rows


def test_accuracy_over_test_size(run_folder, tmp_path):
    finding = resolution_study(run_folder, "digits", (8, 12), epochs=1, out=tmp_path / "s", quiet=True)
    own = regard.load(run_folder)
    tested = regard.evaluate(run_folder, "digits", split="test", quiet=True)
    assert own.preparation.size == (8, 8)  # pyright: ignore[reportAttributeAccessIssue]
    assert finding.rows[0]["accuracy"] == pytest.approx(tested.figures["accuracy"].value)
    assert finding.rows[1]["accuracy"] < finding.rows[0]["accuracy"]
    assert finding.rows[1]["tuned"] > finding.rows[1]["accuracy"], "fine-tuning there helps"
    assert (tmp_path / "s" / "study.svg").is_file()


def test_runs_of_one_name_do_not_share_a_folder(run_folder, tmp_path, monkeypatch):
    names = ("accuracy", "low", "high", "tuned", "tuned_low", "tuned_high", "n")
    monkeypatch.setattr("regard.study.images.resolution._at", lambda *_: dict.fromkeys(names, 0.5))
    for parent in ("a", "b"):
        shutil.copytree(run_folder, tmp_path / parent / "m")
    given: dict[str, Any] = {"sizes": (8,), "out": tmp_path / "s", "quiet": True}
    resolution_study(tmp_path / "a" / "m", "digits", **given)
    resolution_study(tmp_path / "b" / "m", "digits", **given)  # the same weights: the same study
    best = Run(tmp_path / "b" / "m").checkpoint()
    data = bytearray(best.read_bytes())
    data[-4] ^= 1  # the lowest bit of the last weight
    best.write_bytes(data)
    with pytest.raises(RunError, match="its weights differ"):
        resolution_study(tmp_path / "b" / "m", "digits", **given)


def test_runs_of_one_name_are_two_networks_in_the_study_of_shifts(run_folder, tmp_path):
    for parent in ("a", "b"):
        shutil.copytree(run_folder, tmp_path / parent / "m")
    finding = shift_study([tmp_path / "a" / "m", tmp_path / "b" / "m"], shifts=(1,), out=tmp_path / "s", quiet=True)
    assert [row["network"] for row in finding.rows] == ["a-m", "b-m"]
    assert [line.split(":")[0] for line in finding.summary()] == ["a-m", "b-m"]


def test_no_study_writes_into_a_folder_of_another(run_folder, tmp_path):
    receptive_field_study(("vit_nano",), size=16, images=1, out=tmp_path / "s", quiet=True)
    held = (tmp_path / "s" / "study.md").read_text()
    with pytest.raises(RunError, match="its kind"):
        shift_study([run_folder], shifts=(1,), out=tmp_path / "s", quiet=True)
    with pytest.raises(RunError, match="its models"):
        receptive_field_study(("mlp_nano",), size=16, images=1, out=tmp_path / "s", quiet=True)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "notes.txt").write_text("mine")
    for study in (receptive_field_study, lambda **given: shift_study([run_folder], **given)):
        with pytest.raises(RunError, match="holds no study"):
            study(out=tmp_path / "t", quiet=True)
    assert (tmp_path / "s" / "study.md").read_text() == held


def test_shifts_of_a_run_and_what_is_refused(run_folder, tmp_path, cli):
    finding = shift_study([run_folder], shifts=(1, 2), out=tmp_path / "s", quiet=True)
    assert [row["shift"] for row in finding.rows] == [1, 2]
    assert all(0 <= row["low"] <= row["answers_kept"] <= row["high"] <= 1 for row in finding.rows)
    opened: Any = regard.load(run_folder)
    everything = len(own_pictures(run_folder, opened.preparation, 10**6))
    assert {row["n"] for row in finding.rows} == {min(64, everything)}
    code, out, _ = cli("study", "invariance", str(run_folder), "--images", "70", "--out", str(tmp_path / "more"))
    assert code == 0
    assert f"(n = {min(70, everything)})" in out
    code, _, err = cli("study", "invariance", str(run_folder), "--images", "0", "--out", str(tmp_path / "none"))
    assert code == 2
    assert "'0' is not a whole number of at least 1" in err
    with pytest.raises(ConfigError, match="images=0 must be at least 1"):
        shift_study([run_folder], images=0, out=tmp_path / "none", quiet=True)
    code, _, err = cli("study", "invariance")
    assert code == 2
    assert "takes RUN" in err
    code, _, err = cli("study", "receptive-field", "--steps", "3")
    assert code == 2
    assert "has no --steps" in err
    code, out, _ = cli(
        "study", "receptive-field", "--models", "vit_nano", "--size", "32", "--out", str(tmp_path / "r"), "--quiet"
    )
    assert code == 0
    assert "vit_nano: one place sees 100.0%" in out
    with pytest.raises(RunError, match="the study there is another: its kind"):
        resolution_study(run_folder, "digits", (8,), out=tmp_path / "s", quiet=True)
