"""Swin Transformers both ways with transformers, and in Microsoft's names with its buffers."""

import json
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import regard
from regard.errors import ConfigError, RunError
from regard.networks.swin.config import SwinConfig
from regard.networks.swin.network import Swin
from regard.weights import convert
from tests.loading import load_classifier
from tests.weights.parity import assert_close, assert_equal, picture, randomise, save_own

SMALL: dict[str, Any] = {
    "image_size": 48,
    "patch_size": 4,
    "embed_dim": 8,
    "depths": [2, 3],
    "num_heads": [2, 4],
    "window_size": 3,
    "mlp_ratio": 2.0,
    "num_labels": 5,
}
# Grids of 12 × 12 and 6 × 6 in whole windows of 3; then windows to pad, patches to pad, odd grids to merge, and a
# second stage of 3 × 6 tokens, where transformers shifts along neither axis.
SIZES = [(48, 48), (40, 52), (33, 50), (20, 44), (24, 48)]


def reference(**fields: Any) -> transformers.SwinForImageClassification:
    return randomise(transformers.SwinForImageClassification(transformers.SwinConfig(**SMALL | fields)))


def answer(theirs: transformers.SwinForImageClassification, x: torch.Tensor) -> torch.Tensor:
    """A fresh copy for each size: theirs keeps the windows of the smallest input that it has seen."""
    copy = transformers.SwinForImageClassification(theirs.config).eval()
    copy.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        return copy(x).logits


def microsoft_names(theirs: transformers.SwinForImageClassification) -> dict[str, torch.Tensor]:
    """Its names and buffers written down by hand from Microsoft's swin_transformer.py, not by our table."""
    state, old = {}, theirs.state_dict()
    for name, tensor in old.items():
        new = name.removeprefix("swin.").removeprefix("encoder.").replace("relative_position_bias.relative", "relative")
        for a, b in {
            "embeddings.patch_embeddings.projection": "patch_embed.proj", "embeddings.norm": "patch_embed.norm",
            "layernorm_before": "norm1", "layernorm_after": "norm2", "layernorm": "norm", "classifier": "head",
            "attention.o_proj": "attn.proj", "attention.relative": "attn.relative",
        }.items():  # fmt: skip
            new = new.replace(a, b)
        if ".q_proj." in name:
            parts = [old[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            state[new.replace("attention.q_proj", "attn.qkv")] = torch.cat(parts)
        elif ".k_proj." not in name and ".v_proj." not in name:
            state[new] = tensor.clone()
    side = theirs.config.window_size
    for key in [key for key in state if key.endswith("relative_position_bias_table")]:
        block = key.removesuffix(".attn.relative_position_bias_table")
        places = [(row, column) for row in range(side) for column in range(side)]
        index = [[(a - c + side - 1) * (2 * side - 1) + b - d + side - 1 for c, d in places] for a, b in places]
        state[f"{block}.attn.relative_position_index"] = torch.tensor(index)
        if int(block.split(".")[3]) % 2:
            state[f"{block}.attn_mask"] = microsoft_mask(12 // 2 ** int(block.split(".")[1]), side)
    return state


def microsoft_mask(tokens: int, side: int) -> torch.Tensor:
    regions, number, shift = torch.zeros(tokens, tokens), 0, side // 2
    slices = (slice(0, -side), slice(-side, -shift), slice(-shift, None))
    for rows in slices:
        for columns in slices:
            regions[rows, columns] = number
            number += 1
    count = tokens // side
    parts = regions.reshape(count, side, count, side).permute(0, 2, 1, 3).reshape(-1, side * side)
    return torch.where(parts[:, None] == parts[:, :, None], 0.0, -100.0)


@pytest.mark.parametrize("version", [4, 5])
def test_a_model_saved_by_transformers_answers_the_same_at_every_size(version, tmp_path):
    theirs = reference()
    theirs.save_pretrained(tmp_path / "hf")
    saved = load_file(tmp_path / "hf" / "model.safetensors")
    v4, v5 = "attention.self.query.weight", "attention.q_proj.weight"
    assert any(name.endswith(v4) for name in saved)
    if version == 5:
        save_file({name: t.contiguous() for name, t in theirs.state_dict().items()}, tmp_path / "hf/model.safetensors")
        assert any(name.endswith(v5) for name in load_file(tmp_path / "hf" / "model.safetensors"))
    ours = regard.create(weights=tmp_path / "hf", quiet=True).eval()
    assert (ours.loaded.format, ours.loaded.unused, ours.loaded.changed) == ("hf", (), ())
    assert (ours.config.window, ours.config.size, ours.config.heads) == ((3, 3), (48, 48), (2, 4))
    for size in SIZES:
        with torch.no_grad():
            assert_close(ours(picture(*size)).logits, answer(theirs, picture(*size)))


def test_written_for_transformers_and_back_the_tensors_are_equal(tmp_path):
    ours = randomise(Swin(SwinConfig(size=(48, 36), width=8, depths=(2, 3), heads=(2, 4), window=(3, 3), classes=5)))
    save_own(ours, tmp_path / "ours.safetensors")
    convert(tmp_path / "ours.safetensors", tmp_path / "hf", to="hf")
    theirs = transformers.SwinForImageClassification.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        assert_close(answer(theirs, picture(48, 36)), ours(picture(48, 36)).logits)
    theirs.save_pretrained(tmp_path / "again")
    convert(tmp_path / "again", tmp_path / "back.safetensors", to="regard")
    assert_equal(load_file(tmp_path / "back.safetensors"), ours.state_dict())
    assert load_classifier(tmp_path / "hf", quiet=True).classes == tuple(f"class {n}" for n in range(5))


def test_microsofts_names_and_buffers_both_ways(tmp_path):
    theirs = reference()
    state = microsoft_names(theirs)
    torch.save({"model": state, "epoch": 3}, tmp_path / "swin.pth")
    ours = regard.create(weights=tmp_path / "swin.pth", quiet=True).eval()
    assert (ours.loaded.format, ours.config.size, ours.config.window) == ("microsoft", (48, 48), (3, 3))
    for size in SIZES:
        with torch.no_grad():
            assert_close(ours(picture(*size)).logits, answer(theirs, picture(*size)))
    convert(tmp_path / "swin.pth", tmp_path / "back.safetensors", to="microsoft")
    assert_equal(load_file(tmp_path / "back.safetensors"), state)


@pytest.mark.parametrize("buffer", ["layers.1.blocks.0.attn.relative_position_index", "layers.0.blocks.1.attn_mask"])
def test_a_buffer_that_differs_is_refused(buffer, tmp_path):
    state = microsoft_names(reference())
    state[buffer] = state[buffer].flip(0)
    save_file(state, tmp_path / "swin.safetensors")
    with pytest.raises(RunError, match=f"{buffer.replace('.', '[.]')} is not what windows of"):
        regard.create(weights=tmp_path / "swin.safetensors")


def test_a_mask_in_a_block_that_does_not_shift_is_refused(tmp_path):
    state = microsoft_names(reference(image_size=24, num_labels=5))  # a second stage of 3 × 3 tokens
    state = {name: t for name, t in state.items() if not name.endswith("attn_mask")}
    state["layers.0.blocks.1.attn_mask"] = microsoft_mask(6, 3)
    state["layers.1.blocks.1.attn_mask"] = torch.zeros(1, 9, 9)
    save_file(state, tmp_path / "swin.safetensors")
    with pytest.raises(RunError, match="attn_mask is not what windows of"):
        regard.create(weights=tmp_path / "swin.safetensors")


def test_smaller_tables_of_small_grids_both_ways(tmp_path):
    """Microsoft's models have a table for the window that a stage really has: here 2 × 2 tokens in the second."""
    theirs = Swin(
        SwinConfig(size=(16, 16), width=8, depths=(2, 2), heads=(2, 4), window=(3, 3), small_grid="shortest", classes=5)
    )
    save_own(randomise(theirs), tmp_path / "ours.safetensors")
    _, notes = convert(tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors", to="timm")
    assert any("stage 2 are cut to windows of (2, 2)" in note for note in notes)
    written = load_file(tmp_path / "theirs.safetensors")
    table = "layers.1.blocks.0.attn.relative_position_bias_table"
    assert written[table].shape == (9, 4)
    save_file(written, tmp_path / "bare.safetensors")  # without what we say in the header
    ours = regard.create(weights=tmp_path / "bare.safetensors", quiet=True).eval()
    assert (ours.config.size, ours.config.window) == ((16, 16), (3, 3))
    with torch.no_grad():
        assert_close(ours(picture(16, 16)).logits, theirs(picture(16, 16)).logits)
    convert(tmp_path / "bare.safetensors", tmp_path / "back.safetensors", to="timm")
    assert_equal(load_file(tmp_path / "back.safetensors"), written)


@pytest.mark.parametrize(
    ("size", "depths", "stages"),
    [((40, 56), (2, 2), "stages 1, 2"), ((48, 60), (1, 2), "stage 2"), ((48, 48), (2, 2), ""), ((40, 56), (1, 1), "")],
)
def test_sizes_at_which_timm_answers_differently_are_said(size, depths, stages, tmp_path):
    """`test_timm_rolls_before_it_pads` shows that it does."""
    save_own(
        Swin(SwinConfig(size=size, width=8, depths=depths, heads=(2, 4), window=(3, 3))), tmp_path / "o.safetensors"
    )
    _, notes = convert(tmp_path / "o.safetensors", tmp_path / "theirs.safetensors", to="timm")
    said = [note for note in notes if "timm answers differently" in note]
    assert len(said) == bool(stages)
    assert all(f"windows of {stages} need padding" in note for note in said)


def test_another_window_resamples_the_tables_and_says_so(tmp_path):
    theirs = reference()
    theirs.save_pretrained(tmp_path / "hf")
    ours = regard.create(weights=tmp_path / "hf", window=6, size=96, classes=7, quiet=True)
    table = "stages.0.blocks.0.attention.positions.table"
    own = regard.create(weights=tmp_path / "hf", quiet=True).state_dict()[table]
    field = own.T.reshape(1, 2, 5, 5)
    wanted = torch.nn.functional.interpolate(field, size=(11, 11), mode="bicubic", antialias=True)
    torch.testing.assert_close(ours.state_dict()[table], wanted.flatten(2)[0].T)
    assert (ours.config.window, ours.config.size, ours.config.classes) == ((6, 6), (96, 96), 7)
    changed = "\n".join(ours.loaded.changed)
    assert "resampled from windows of 3×3 to 6×6" in changed
    assert "the input is 96×96, not 48×48" in changed
    assert "7 classes" in ours.loaded.untrained[0]


def test_grey_input(tmp_path):
    reference().save_pretrained(tmp_path / "hf")
    colour = regard.create(weights=tmp_path / "hf", quiet=True).eval()
    grey = regard.create(weights=tmp_path / "hf", channels=1, quiet=True).eval()
    x = picture(48, 48, channels=1)
    with torch.no_grad():
        assert_close(grey(x).logits, colour(x.expand(-1, 3, -1, -1)).logits)


@pytest.mark.parametrize(
    "fields", [{"use_absolute_embeddings": True}, {"hidden_act": "relu"}, {"qkv_bias": False}, {"layer_norm_eps": 1e-3}]
)
def test_what_ours_cannot_be_is_refused(fields, tmp_path):
    reference(**fields).save_pretrained(tmp_path)
    with pytest.raises(RunError, match=f"its {next(iter(fields))} is"):
        regard.create(weights=tmp_path)


@pytest.mark.parametrize("family", ["swinv2", "microsoft", "timm"])
def test_swin_v2_is_refused_by_name(family, tmp_path):
    fields = {"image_size": 16, "patch_size": 4, "embed_dim": 8, "depths": [1], "num_heads": [2], "window_size": 2}
    theirs = transformers.Swinv2ForImageClassification(transformers.Swinv2Config(**fields))
    if family == "swinv2":
        theirs.save_pretrained(tmp_path)
        with pytest.raises(RunError, match="Swin V2"):
            regard.create(weights=tmp_path)
    else:  # names of Microsoft's swin_transformer_v2.py, and of timm's swinv2_cr
        names = ("patch_embed.proj.weight", "layers.0.blocks.0.attn.cpb_mlp.0.weight", "head.weight")
        if family == "timm":
            names = ("patch_embed.proj.weight", "stages.0.blocks.0.attn.meta_mlp.fc1.weight", "x.attn.logit_scale")
        save_file({name: torch.rand(2, 2) for name in names}, tmp_path / "v2.safetensors")
        with pytest.raises(RunError, match="Swin V2, as its tensors are named"):
            regard.create(weights=tmp_path / "v2.safetensors")


@pytest.mark.parametrize("broken", ["a missing block", "a missing tensor", "a flat table", "another table", "more"])
def test_a_file_that_is_no_swin_is_refused(broken, tmp_path):
    state = {name: t for name, t in microsoft_names(reference()).items() if not name.endswith(("mask", "index"))}
    table = "layers.1.blocks.2.attn.relative_position_bias_table"
    if broken == "a missing block":
        state = {name: t for name, t in state.items() if not name.startswith("layers.1.blocks.1.")}
    elif broken == "a missing tensor":
        del state["layers.0.blocks.0.mlp.fc1.weight"]
    elif broken == "a flat table":
        state["layers.1.blocks.0.attn.relative_position_bias_table"] = torch.rand(25)
    elif broken == "another table":
        state[table] = torch.rand(49, 4)
    else:
        state["layers.0.blocks.0.attn.logit_scale"] = torch.rand(2)
    save_file(state, tmp_path / "swin.safetensors")
    with pytest.raises(RunError, match="the weights are not this model's"):
        regard.create(weights=tmp_path / "swin.safetensors")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"image_size": 10**9}, "too large"),
        ({"image_size": "large"}, "size=large does not fit"),
        ({"window_size": -3}, "window=-3 does not fit"),
    ],
)
def test_hostile_settings_are_refused_before_memory_is_asked_for(settings, words, tmp_path):
    reference().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | settings))
    with pytest.raises(regard.RegardError, match=words):
        regard.create(weights=tmp_path)


def test_what_a_format_cannot_represent_is_refused(tmp_path):
    volume = Swin(SwinConfig(size=(8, 8, 8), patch=(2, 2, 2), width=8, depths=(1,), heads=(2,), window=(2, 2, 2)))
    save_own(volume, tmp_path / "3d.safetensors")
    with pytest.raises(ConfigError, match="3 axes"):
        convert(tmp_path / "3d.safetensors", tmp_path / "out.safetensors", to="timm")
    small = Swin(SwinConfig(size=(16, 16), width=8, depths=(1,), heads=(2,), window=(7, 7)))
    save_own(small, tmp_path / "small.safetensors")
    with pytest.raises(ConfigError, match="a grid is shorter than one"):
        convert(tmp_path / "small.safetensors", tmp_path / "hf", to="hf")
    with pytest.raises(ConfigError, match="google weights cannot represent a Swin"):
        convert(tmp_path / "small.safetensors", tmp_path / "out.npz", to="google")


def test_the_settings_beside_the_weights_are_transformers_own(tmp_path):
    ours = Swin(SwinConfig(size=(28, 56), width=8, depths=(1, 1), heads=(2, 4), window=(3, 3), classes=5))
    save_own(ours, tmp_path / "ours.safetensors")
    convert(tmp_path / "ours.safetensors", tmp_path / "hf", to="hf")
    settings = json.loads((tmp_path / "hf" / "config.json").read_text())
    known = transformers.SwinConfig().to_dict()
    assert set(settings) - {"architectures", "id2label", "label2id"} <= set(known)
