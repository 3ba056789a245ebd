"""Networks for volumes: positions at other sizes, checkpointing, and masked pre-training before fine-tuning."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import regard
from tests.data.volumes.scans import phantom, save
from tests.weights.parity import assert_close, picture, randomise, save_own

NANO: dict[str, Any] = {"depth": 2, "width": 32, "heads": 2, "mlp": 48}


@torch.no_grad()
def test_positions_are_resampled_along_all_three_axes(tmp_path: Path) -> None:
    """Two values along the last axis become four: each new one lies a quarter or three quarters of the way."""
    model = randomise(regard.create("vit3d_nano", size=(8, 8, 16), patch=8, channels=1, classes=3, **NANO))
    save_own(model, tmp_path / "small.safetensors")
    larger = regard.create(weights=tmp_path / "small.safetensors", size=(8, 16, 32), quiet=True).eval()
    table, made = model.positions.table, larger.positions.table
    a, b = table[1], table[2]
    line = torch.stack([a, 0.75 * a + 0.25 * b, 0.25 * a + 0.75 * b, b])
    torch.testing.assert_close(made[1:].reshape(1, 2, 4, -1), line.expand(1, 2, 4, -1))
    assert torch.equal(made[0], table[0])
    assert any("from 1×1×2 to 1×2×4 patches" in line for line in larger.loaded.changed)
    x = picture(8, 16, 32, channels=1)
    assert_close(model(x).logits, larger(x).logits)


@pytest.mark.parametrize("name", ["vit3d_nano", "swin3d_nano"])
def test_checkpointing_changes_no_gradient(name: str) -> None:
    x, grads = picture(16, 24, 32, channels=1), []
    for on in (False, True):
        torch.manual_seed(0)
        model = randomise(regard.create(name, size=(16, 24, 32), channels=1, classes=3)).train()
        model.checkpointing = on
        model(x).logits.square().sum().backward()
        grads.append({key: p.grad for key, p in model.named_parameters()})
    for key, expected in grads[0].items():
        torch.testing.assert_close(grads[1][key], expected, msg=key)


@pytest.fixture
def scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """24 subjects with two modalities."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows: list[list[object]] = [["subject", "t1", "flair", "label"]]
    for n in range(24):
        for m, name in enumerate(("t1", "flair")):
            array = phantom((16, 16, 12), 100 * m + n)
            array[4 : 8 if n % 2 else 12] += 300
            save(tmp_path / f"{n}_{name}.nii", array)
        rows.append([f"s{n}", f"{n}_t1.nii", f"{n}_flair.nii", "ab"[n % 2]])
    with (tmp_path / "scans.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return tmp_path / "scans.csv"


def test_volumes_are_pretrained_by_masking_and_then_fine_tuned(scans: Path, tmp_path: Path) -> None:
    common: dict[str, Any] = {"device": "cpu", "explain": 1, "quiet": True, "epochs": 1, "batch_size": 8}
    before = regard.pretrain(
        scans, model="vit3d_nano", patch=4, decoder_width=16, decoder_depth=1, decoder_heads=2, out=tmp_path / "pre",
        **common, **NANO,
    )  # fmt: skip
    assert (before.path / "figures" / "reconstructions.png").stat().st_size > 5000
    loss = before.read_json("summary.json")["figures"]["reconstruction_loss"]["value"]
    assert np.isfinite(loss)
    run = regard.train(scans, weights=before.path, out=tmp_path / "run", lr=1e-60, checkpointing=True, **common)
    first, then = (load_file(r.checkpoint("last")) for r in (before, run))
    assert first["patches.project.weight"].shape == (32, 2 * 4**3)
    for key in (key for key in first if not key.startswith("head")):
        assert torch.equal(first[key], then[key]), key
    assert not then["head.weight"].any()
    predictor: Any = regard.load(run.path)
    assert predictor.model.config.channels == 2
