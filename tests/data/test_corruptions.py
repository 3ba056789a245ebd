"""Corruptions by hand arithmetic, by sample key, and in `regard eval --corruptions`."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt

KEYS = ["a.png", "b.png", "c.png"]


def pictures() -> torch.Tensor:
    """Smooth, as photographs are: neighbouring pixels are alike."""
    coarse = torch.rand(3, 3, 5, 5, generator=torch.Generator().manual_seed(3))
    return torch.nn.functional.interpolate(coarse, size=(20, 20), mode="bilinear")


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_corruption_depends_on_picture_and_key_only_and_grows(kind):
    x = pictures()
    whole = corrupt(x, kind, 3, KEYS)
    assert whole.shape == x.shape
    assert 0 <= whole.min() <= whole.max() <= 1
    assert torch.equal(whole[1:2], corrupt(x[1:2], kind, 3, KEYS[1:2])), "whatever the batch"
    away = [float((corrupt(x, kind, severity, KEYS) - x).abs().mean()) for severity in SEVERITIES]
    assert 0 < away[0] < away[2] < away[4]
    if kind in ("noise", "occlusion"):
        assert not torch.equal(whole[:1], corrupt(x[:1], kind, 3, ["other.png"]))


def test_each_kind_by_hand():
    x = torch.full((1, 1, 20, 20), 0.5)
    noise = corrupt(torch.full((1, 1, 200, 200), 0.5), "noise", 3, ["a"]) - 0.5
    assert float(noise.std()) == pytest.approx(0.12, rel=0.02)
    assert float(noise.mean()) == pytest.approx(0, abs=0.003)
    impulse = torch.zeros(1, 1, 21, 21)
    impulse[..., 10, 10] = 1
    blurred = corrupt(impulse, "blur", 5, ["a"])[0, 0]
    sigma, at = 0.06 * 21, torch.arange(-10.0, 11)
    weights = torch.exp(-(at**2) / (2 * sigma**2)) * (at.abs() <= 4)  # three deviations, 3.78, are four pixels
    weights = weights / weights.sum()
    torch.testing.assert_close(blurred, weights[:, None] * weights[None], atol=1e-6, rtol=1e-5)
    covered = corrupt(torch.zeros(1, 1, 20, 20), "occlusion", 3, ["a"])
    assert float((covered == 0.5).double().mean()) == pytest.approx((9 / 20) ** 2)  # √0.2 of 20 is 9
    ramp = torch.arange(400.0).reshape(1, 1, 20, 20) / 400
    moved = corrupt(ramp, "shift", 2, ["a"])[0, 0]
    ways = [(1, 2), (1, -2), (0, 2), (0, -2)]
    index = [(torch.arange(20) + by).clamp(0, 19) for _, by in ways]
    assert any(torch.equal(moved, ramp[0, 0].index_select(axis, i)) for (axis, _), i in zip(ways, index, strict=True))
    torch.testing.assert_close(corrupt(ramp, "contrast", 2, ["a"]), 0.5 * ramp + 0.5 * ramp.mean())
    torch.testing.assert_close(corrupt(x, "brightness", 3, ["a"]), x + 0.3)
    blocks = corrupt(ramp, "pixelate", 2, ["a"])[0, 0]
    torch.testing.assert_close(blocks[:2, :2], ramp[0, 0, :2, :2].mean().expand(2, 2))
    file = io.BytesIO()
    colours = (pictures()[:1] * 255).round()
    Image.fromarray(colours[0].permute(1, 2, 0).numpy().astype(np.uint8)).save(file, "JPEG", quality=15)
    read = torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1) / 255
    torch.testing.assert_close(corrupt(colours / 255, "jpeg", 3, ["a"])[0], read)


def test_eval_says_accuracy_by_corruption(run_folder, cli, tmp_path):
    code, out, err = cli(
        "eval", str(run_folder), "digits", "--split", "test", "--corruptions", "--out", str(tmp_path / "e.json")
    )
    assert code == 0, err
    assert "severity 5" in out
    stored = json.loads((tmp_path / "e.json").read_text())
    found = stored["corruptions"]
    assert found["accuracy"].keys() == CORRUPTIONS.keys()
    assert found["clean"] == pytest.approx(stored["figures"]["accuracy"]["value"])
    mean = np.mean([value for row in found["accuracy"].values() for value in row])
    assert found["mean"]["value"] == pytest.approx(mean)
    assert found["relative"] == pytest.approx(mean / found["clean"])
    assert found["mean"]["low"] < mean < found["mean"]["high"]
    assert min(found["accuracy"]["occlusion"]) < found["clean"]
