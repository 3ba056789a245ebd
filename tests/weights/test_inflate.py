"""Weights of networks for pictures in networks for volumes: exact where the arithmetic allows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import regard
from regard.errors import ConfigError, RegardError
from regard.networks.base import Network
from tests.conftest import settings_of
from tests.weights.parity import assert_close, picture, randomise, save_own

HOW = ("mean", "centre")
VIT: dict[str, Any] = {"patch": (8, 8), "size": (16, 24), "depth": 2, "width": 32, "heads": 4, "mlp": 48, "classes": 5}
SWIN: dict[str, Any] = {
    "size": (32, 32), "patch": (4, 4), "window": (2, 2), "width": 8, "depths": (2, 2), "heads": (2, 4), "classes": 5
}  # fmt: skip


def saved(name: str, path: Path, **fields: Any) -> Network:
    flat = randomise(regard.create(name, **fields))
    save_own(flat, path)
    return flat


def inflated(name: str, path: Path, **fields: Any) -> Network:
    return regard.create(name, weights=path, quiet=True, **fields).eval()


def deep(x: Tensor, depth: int) -> Tensor:
    """A volume with the picture in every slice."""
    return x[..., None].expand(*x.shape, depth).contiguous()


@torch.no_grad()
@pytest.mark.parametrize("inflation", HOW)
@pytest.mark.parametrize("positions", ["learned", "axial", "sinusoidal", "conditional", "none"])
def test_equal_slices_give_a_vit_s_tokens_of_the_picture(tmp_path: Path, inflation: str, positions: str) -> None:
    flat = saved("vit_nano", tmp_path / "flat.safetensors", **VIT, pool="mean", positions=positions)
    shape = {name: VIT[name] for name in ("depth", "width", "heads", "mlp")}
    made = inflated(
        "vit3d_nano", tmp_path / "flat.safetensors", size=(16, 24, 12), patch=(8, 8, 4), channels=3,
        inflation=inflation, **shape,
    )  # fmt: skip
    x = picture(16, 24)
    ours, theirs = made(deep(x, 12)), flat(x)
    assert_close(ours.tokens.unflatten(1, (6, 3)), theirs.tokens[:, :, None].expand(-1, -1, 3, -1))
    assert_close(ours.features, theirs.features)
    assert_close(ours.logits, theirs.logits)


@torch.no_grad()
def test_of_a_vit_with_a_class_token_one_patch_of_depth_is_exact(tmp_path: Path) -> None:
    flat = saved("vit_nano", tmp_path / "flat.safetensors", **VIT, registers=2)
    shape = {name: VIT[name] for name in ("depth", "width", "heads", "mlp")}
    x = picture(16, 24)
    made = inflated("vit3d_nano", tmp_path / "flat.safetensors", size=(16, 24, 8), channels=3, **shape)
    assert_close(made(deep(x, 8)).tokens, flat(x).tokens)


@torch.no_grad()
def test_deeper_than_a_patch_the_class_token_sees_each_patch_once_per_slice(tmp_path: Path) -> None:
    """Equal keys that are there n times weigh as one with log(n) added to its score."""
    flat = saved("vit_nano", tmp_path / "flat.safetensors", **VIT | {"depth": 1})
    shape = {name: VIT[name] for name in ("width", "heads", "mlp")}
    made = inflated("vit3d_nano", tmp_path / "flat.safetensors", size=(16, 24, 24), channels=3, depth=1, **shape)
    x, slices = picture(16, 24), 3
    block: Any = flat.blocks[0]
    tokens = flat.embed(x)
    q, k, v = block.attention.project(block.norm1(tokens))
    scores = q.double() @ k.double().transpose(-2, -1) / q.shape[-1] ** 0.5
    scores[..., 1:] += np.log(slices)
    mixed = (scores.softmax(-1) @ v.double()).float().transpose(1, 2).flatten(2)
    tokens = tokens + block.attention.out(mixed)
    tokens = flat.norm(tokens + block.mlp(block.norm2(tokens)))
    assert_close(made(deep(x, 24)).features, tokens[:, 0])
    assert (made(deep(x, 24)).features - flat(x).features).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("inflation", HOW)
def test_equal_slices_give_a_swin_s_tokens_of_the_picture(tmp_path: Path, inflation: str) -> None:
    """With shifted windows in all directions, biases for each offset of depth, and merges."""
    flat = saved("swin_nano", tmp_path / "flat.safetensors", **SWIN)
    shape = {name: SWIN[name] for name in ("width", "depths", "heads")}
    made = inflated(
        "swin3d_nano", tmp_path / "flat.safetensors", size=(32, 32, 16), patch=(4, 4, 2), window=(2, 2, 4), channels=3,
        inflation=inflation, **shape,
    )  # fmt: skip
    x = picture(32, 32)
    ours, theirs = made(deep(x, 16)), flat(x)
    assert_close(ours.tokens.unflatten(1, (16, 4)), theirs.tokens[:, :, None].expand(-1, -1, 4, -1))
    assert_close(ours.logits, theirs.logits)


@torch.no_grad()
def test_tensors_equal_hand_arithmetic(tmp_path: Path) -> None:
    flat = saved("vit_nano", tmp_path / "vit.safetensors", **VIT | {"size": (8, 16)}).state_dict()
    shape = {name: VIT[name] for name in ("depth", "width", "heads", "mlp")}
    made = inflated("vit3d_nano", tmp_path / "vit.safetensors", size=(8, 16, 16), channels=4, **shape).state_dict()
    kernel = flat["patches.project.weight"].reshape(32, 3, 8, 8)
    grey = kernel[:, 0] + kernel[:, 1] + kernel[:, 2]
    for channel in range(4):
        for z in (0, 7):
            ours = made["patches.project.weight"].reshape(32, 4, 8, 8, 8)[:, channel, :, :, z]
            torch.testing.assert_close(ours, grey / 4 / 8)
    rows = flat["positions.table"]
    assert torch.equal(made["positions.table"], rows[[0, 1, 1, 2, 2]])
    flat = saved("swin_nano", tmp_path / "swin.safetensors", **SWIN).state_dict()
    shape = {name: SWIN[name] for name in ("width", "depths", "heads")}
    made = inflated(
        "swin3d_nano", tmp_path / "swin.safetensors", size=(32, 32, 8), window=2, channels=3, **shape
    ).state_dict()
    table = "stages.0.blocks.1.attention.positions.table"
    assert torch.equal(made[table].reshape(3, 3, 3, 2), flat[table].reshape(3, 3, 1, 2).expand(3, 3, 3, 2))
    project = flat["stages.0.merge.project.weight"]
    assert torch.equal(made["stages.0.merge.project.weight"], torch.cat([project, project], dim=1) / 2)
    assert torch.equal(made["stages.0.merge.norm.weight"], flat["stages.0.merge.norm.weight"].repeat(2))


@torch.no_grad()
def test_equal_channels_answer_as_before_whatever_their_number(tmp_path: Path) -> None:
    for name, fields in (("vit_nano", VIT), ("swin_nano", SWIN)):
        flat = saved(name, tmp_path / "flat.safetensors", **fields)
        made = regard.create(weights=tmp_path / "flat.safetensors", channels=4, quiet=True).eval()
        grey = picture(*fields["size"], channels=1)
        assert_close(made(grey.expand(-1, 4, -1, -1)).logits, flat(grey.expand(-1, 3, -1, -1)).logits)


@torch.no_grad()
def test_others_files_are_inflated_and_positions_follow_the_plane(tmp_path: Path) -> None:
    """A transformers ViT, at another size: positions are resampled in the plane as for pictures, then repeated."""
    fields: dict[str, Any] = {
        "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 192, "patch_size": 8,
        "image_size": 16, "num_labels": 5,
    }  # fmt: skip
    randomise(transformers.ViTForImageClassification(transformers.ViTConfig(**fields))).save_pretrained(tmp_path / "hf")
    made = inflated("vit3d_nano", tmp_path / "hf", size=(32, 24, 8), channels=3)
    flat = regard.create(weights=tmp_path / "hf", size=(32, 24), quiet=True).eval()
    x = picture(32, 24)
    assert_close(made(deep(x, 8)).logits, flat(x).logits)
    report = made.loaded
    assert report.inflated
    assert any("resampled from 2×2 to 4×3 patches" in line for line in report.changed)
    assert any("repeated along 1 patches of depth" in line for line in report.changed)
    assert any("each of 8 slices has 1/8 of them" in line for line in report.changed)


@pytest.mark.parametrize(
    ("file", "name", "fields", "words"),
    [
        ({"patch": (4, 4)}, "vit3d_nano", {}, r"(?s)patches of \(8, 8, 8\).*--patch 4 4 8"),
        ({"stem": "conv"}, "vit3d_nano", {}, "stem='conv' cannot be inflated"),
        ({"rope": True}, "vit3d_nano", {}, "rope=True cannot be inflated"),
        ({}, "vit3d_s16", {"patch": 8}, "the weights are not this model's"),
        ({}, "swin3d_nano", {}, "the file holds a vit"),
        ({}, "vit_nano", {"inflation": "mean", "patch": 8}, "nothing to inflate"),
    ],
)
def test_what_cannot_be_inflated_is_refused_by_name(
    tmp_path: Path, file: dict[str, Any], name: str, fields: dict[str, Any], words: str
) -> None:
    fields_in_file: dict[str, Any] = {"size": 16, "patch": 8} | file
    save_own(regard.create("vit_nano", **fields_in_file), tmp_path / "flat.safetensors")
    with pytest.raises(RegardError, match=words):
        inflated(name, tmp_path / "flat.safetensors", **fields)


def volumes(path: Path) -> Path:
    """24 training volumes: bright in one half or the other."""
    draw = np.random.default_rng(0)
    held = {}
    for part, count in (("train", 24), ("val", 8), ("test", 8)):
        labels = np.arange(count) % 2
        x = draw.integers(0, 80, (count, 12, 12, 12))
        for n, label in enumerate(labels):
            x[n, : 6 if label else None, None if label else 6 :] += 100
        held |= {f"{part}_images": x.astype(np.uint8), f"{part}_labels": labels[:, None]}
    np.savez(path, **held)
    return path


def test_a_run_on_volumes_starts_from_pictures_and_says_what_was_done(tmp_path: Path) -> None:
    shape = {name: VIT[name] for name in ("depth", "width", "heads", "mlp")}
    saved("vit_nano", tmp_path / "flat.safetensors", **VIT)
    data = volumes(tmp_path / "cubes.npz")
    run = regard.train(
        data, weights=tmp_path / "flat.safetensors", model="vit3d_nano", epochs=2, batch_size=8, explain=0,
        device="cpu", inflation="centre", out=tmp_path / "run", quiet=True, **shape,
    )  # fmt: skip
    said = run.read_json("transfer.json")
    assert said["inflated"]
    assert "mean" not in said, "volumes are normalised by their own"
    assert any("the middle one of 8 slices" in line for line in said["changed"])
    assert any("summed over colours" in line for line in said["changed"])
    predictor: Any = regard.load(run.path)
    assert (predictor.model.config.size, predictor.model.config.channels) == ((12, 12, 12), 1)
    held = np.load(data)["train_images"] / 255
    assert predictor.preparation.mean == pytest.approx((held.mean(),), abs=1e-3)
    assert settings_of(run)["recipe"]["value"] == "finetune"


def test_weights_for_pictures_on_volumes_say_how_to_inflate_them(tmp_path: Path) -> None:
    saved("vit_nano", tmp_path / "flat.safetensors", **VIT)
    with pytest.raises(ConfigError, match="--model vit3d_nano"):
        regard.train(volumes(tmp_path / "cubes.npz"), weights=tmp_path / "flat.safetensors", quiet=True)
    with pytest.raises(ConfigError, match="inflation needs trained weights"):
        regard.train(tmp_path / "cubes.npz", inflation="mean", quiet=True)
