"""Residual networks both ways with transformers, and in the names that torchvision and timm share."""

import json
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import regard
from regard.errors import ConfigError, RunError
from regard.weights import convert
from tests.loading import load_classifier
from tests.weights.parity import assert_close, assert_equal, picture, randomise, save_own

KINDS = ("basic", "bottleneck", "bit")


def reference(kind: str):
    fields = {"depths": [2, 1, 2], "num_labels": 5, "num_channels": 3}
    if kind == "bit":
        config = transformers.BitConfig(embedding_size=32, hidden_sizes=[128, 256, 512], **fields)
        return randomise(transformers.BitForImageClassification(config))
    widths = [8, 16, 32] if kind == "basic" else [32, 64, 128]
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=widths, layer_type=kind, **fields)
    return randomise(transformers.ResNetForImageClassification(config))


def torchvision_names(theirs) -> dict[str, torch.Tensor]:
    """Its names written down by hand from torchvision's resnet.py, not by our table."""
    state = {}
    for name, tensor in theirs.state_dict().items():
        words = name.removeprefix("resnet.").split(".")
        if words[0] == "embedder":
            new = "conv1" if words[2] == "convolution" else "bn1"
        elif words[0] == "classifier":
            new = "fc"
        else:
            stage, unit = int(words[2]) + 1, words[4]
            if words[5] == "shortcut":
                part = f"downsample.{0 if words[6] == 'convolution' else 1}"
            else:
                part = f"{'conv' if words[7] == 'convolution' else 'bn'}{int(words[6]) + 1}"
            new = f"layer{stage}.{unit}.{part}"
        state[f"{new}.{words[-1]}"] = tensor.contiguous().clone()
    return state


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_saved_by_transformers_answers_the_same(kind, tmp_path):
    theirs = reference(kind)
    theirs.save_pretrained(tmp_path / "hf")
    ours = regard.create(weights=tmp_path / "hf", quiet=True).eval()
    assert ours.loaded.format == "hf"
    assert ours.loaded.unused == ()
    assert ours.config.kind == kind
    for size in ((64, 48), (33, 70)):
        with torch.no_grad():
            assert_close(ours(picture(*size)).logits, theirs(picture(*size)).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_back_to_transformers_every_tensor_of_a_resnet_is_equal(kind, tmp_path):
    theirs: Any = reference(kind)
    theirs.save_pretrained(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "ours.safetensors", to="regard", size=(64, 48))
    convert(tmp_path / "ours.safetensors", tmp_path / "back", to="hf")
    before, after = (load_file(tmp_path / n / "model.safetensors") for n in ("hf", "back"))
    assert_equal(after, before)
    if kind != "bit":
        assert after["resnet.embedder.embedder.normalization.num_batches_tracked"] == 17
    again, info = type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for field in ("embedding_size", "hidden_sizes", "depths", "layer_type", "id2label"):
        assert getattr(again.config, field) == getattr(theirs.config, field)
    with torch.no_grad():
        assert_close(again.eval()(picture(64, 48)).logits, theirs(picture(64, 48)).logits)
    assert regard.create(weights=tmp_path / "back", quiet=True).config.size == (64, 48)


@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
@pytest.mark.parametrize("to", ["torchvision", "timm"])
def test_torchvisions_names_both_ways(kind, to, tmp_path):
    theirs = reference(kind)
    state = torchvision_names(theirs)
    torch.save({"state_dict": {f"module.{name}": t for name, t in state.items()}}, tmp_path / "r.pth")
    ours = regard.create(weights=tmp_path / "r.pth", quiet=True).eval()
    assert ours.loaded.format == "torchvision"
    assert any("224 × 224" in line for line in ours.loaded.assumed)
    with torch.no_grad():
        assert_close(ours(picture(64, 48)).logits, theirs(picture(64, 48)).logits)
    save_own(ours, tmp_path / "own.safetensors")
    convert(tmp_path / "own.safetensors", tmp_path / "back.safetensors", to=to)
    assert_equal(load_file(tmp_path / "back.safetensors"), state)
    again = load_classifier(tmp_path / "back.safetensors", device="cpu", quiet=True)
    assert again.classes == tuple(f"class {n}" for n in range(5))
    assert again.preparation.mean == (0.5, 0.5, 0.5)


def test_a_file_from_before_batches_were_counted(tmp_path):
    theirs = reference("basic")
    state = {name: t for name, t in torchvision_names(theirs).items() if not name.endswith("num_batches_tracked")}
    save_file(state, tmp_path / "r.safetensors")
    ours = regard.create(weights=tmp_path / "r.safetensors", quiet=True).eval()
    with torch.no_grad():
        assert_close(ours(picture(64, 48)).logits, theirs(picture(64, 48)).logits)


def test_missing_and_extra_tensors_are_listed_by_the_files_own_names(tmp_path):
    state = torchvision_names(reference("bottleneck"))
    del state["layer3.1.bn2.running_mean"]
    save_file(state, tmp_path / "lacks.safetensors")
    with pytest.raises(RunError, match=r"layer3\.1\.bn2\.running_mean: not in the file"):
        regard.create(weights=tmp_path / "lacks.safetensors", quiet=True)
    state = torchvision_names(reference("bottleneck")) | {"layer1.0.se.fc1.weight": torch.zeros(2, 2)}
    save_file(state, tmp_path / "more.safetensors")
    with pytest.raises(RunError, match=r"layer1\.0\.se\.fc1\.weight: not in the model"):
        regard.create(weights=tmp_path / "more.safetensors", quiet=True)
    state = torchvision_names(reference("bottleneck"))
    state["layer2.0.conv1.weight"] = state["layer2.0.conv1.weight"][:, :5].clone()
    save_file(state, tmp_path / "odd.safetensors")
    with pytest.raises(RunError, match=r"layer2\.0\.conv1\.weight: \(16, 32, 1, 1\) here, \(16, 5, 1, 1\) in the file"):
        regard.create(weights=tmp_path / "odd.safetensors", quiet=True)
    save_file(torchvision_names(reference("basic")), tmp_path / "r.safetensors")
    with pytest.raises(RunError, match="vit_b16 is asked for, and the file holds a resnet"):
        regard.create("vit_b16", weights=tmp_path / "r.safetensors", quiet=True)


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        ("bottleneck", {"downsample_in_bottleneck": True}),
        ("bit", {"global_padding": "SAME"}),
        ("bit", {"num_groups": 16}),
    ],
)
def test_settings_that_are_another_network_are_refused(kind, setting, tmp_path):
    reference(kind).save_pretrained(tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | setting))
    with pytest.raises(RunError, match=next(iter(setting))):
        regard.create(weights=tmp_path / "hf", quiet=True)


def test_head_and_colours_adapt_and_it_is_said(tmp_path):
    theirs: Any = reference("basic")
    theirs.save_pretrained(tmp_path / "hf")
    ours = regard.create(weights=tmp_path / "hf", classes=7, channels=1, size=(64, 48), quiet=True).eval()
    assert "the head for 7 classes is all zeros" in ours.loaded.untrained[0]
    assert "summed over colours" in ours.loaded.changed[0]
    grey = picture(64, 48, channels=1)
    with torch.no_grad():
        expected = theirs.resnet(grey.expand(-1, 3, -1, -1)).last_hidden_state
        assert_close(ours(grey).tokens, expected.flatten(2).transpose(1, 2))


@pytest.mark.parametrize("name", ["resnet_nano", "bit_r50x1", "mlp_nano"])
def test_our_own_files_come_back(name, tmp_path):
    fields = {"width": 32, "blocks": (1, 1)} if name == "bit_r50x1" else {}
    model = randomise(regard.create(name, classes=3, size=(16, 16), **fields))
    regard.save(model, tmp_path / "m.safetensors")
    again = load_classifier(tmp_path / "m.safetensors", device="cpu").model
    assert again.config == model.config
    assert_equal(again.state_dict(), model.state_dict())


def test_what_a_format_cannot_represent_is_said(tmp_path):
    regard.save(regard.create("resnet_nano", classes=3), tmp_path / "r.safetensors")
    regard.save(regard.create("mlp_nano", classes=3), tmp_path / "m.safetensors")
    with pytest.raises(ConfigError, match="cannot represent stem='small'"):
        convert(tmp_path / "r.safetensors", tmp_path / "hf", to="hf")
    with pytest.raises(ConfigError, match="google weights cannot represent"):
        convert(tmp_path / "r.safetensors", tmp_path / "r.npz", to="google")
    with pytest.raises(ConfigError, match="cannot represent models of the family 'mlp'"):
        convert(tmp_path / "m.safetensors", tmp_path / "m2.safetensors", to="timm")
    _, written = convert(tmp_path / "r.safetensors", tmp_path / "r2.safetensors", to="timm")
    assert any("no pooling follows" in line for line in written)
    assert regard.create(weights=tmp_path / "r2.safetensors", quiet=True).config.stem == "small"


def test_where_a_vits_norms_stand_is_kept_and_never_assumed(tmp_path):
    model = randomise(regard.create("vit_nano", classes=3, size=16, norm="post"))
    regard.save(model, tmp_path / "post.safetensors")
    assert regard.create(weights=tmp_path / "post.safetensors", quiet=True).config.norm == "post"
    with pytest.raises(RunError, match="norm: pre here, post in the file"):
        regard.create(weights=tmp_path / "post.safetensors", norm="pre", quiet=True)
    with pytest.raises(ConfigError, match="cannot represent norm='post'"):
        convert(tmp_path / "post.safetensors", tmp_path / "t.safetensors", to="timm")
