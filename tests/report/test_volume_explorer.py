"""The report's planes: what a browser shows of a voxel is what the arrays have there, on the right side of the body."""

import base64
import json
import re
import zlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from regard.data.volumes import ScanFrame
from regard.explain import Explanation
from regard.explain.volume_store import keep_volume, record_volume
from regard.geometry import Frame, TokenMap
from regard.report.volume_explorer import volume_explorer
from regard.weights import Run
from tests.report.test_attention_explorer import BROWSER, browse

SIZE = (7, 9, 5)
FRAME = ScanFrame(
    Frame((14, 18, 5), SIZE, ((0, 14), (0, 18), (0, 5))), (2, 0, 1), (True, False, False),
    ((0.0, 0.0, 3.0, -4.0), (1.5, 0.0, 0.0, 2.0), (0.0, 2.5, 0.0, 1.0), (0.0, 0.0, 0.0, 1.0)),
)  # fmt: skip


def explained(method: str = "rollout", seed: int = 0, mask: bool = True) -> Explanation:
    draw = torch.Generator().manual_seed(seed)
    values = torch.rand(*SIZE, generator=draw)
    prediction: Any = SimpleNamespace(name="s1")
    return Explanation(
        map=values / values.sum(), tokens=values.flatten(), method=method, options={}, target="high",
        prediction=prediction, scores=None, random_correlation=None, completeness_error=None,
        picture=torch.rand(2, *SIZE, generator=draw), where=TokenMap(SIZE, (1, 1, 1), SIZE),
        mask=torch.rand(*SIZE, generator=draw) > 0.7 if mask else None, scan=FRAME,
    )  # fmt: skip


def unpacked(record: dict) -> np.ndarray:
    """(volumes, *size) as stored."""
    return np.frombuffer(zlib.decompress(base64.b64decode(record["data"])), np.uint8).reshape(-1, *record["size"])


def page_of(tmp_path, maps: list[Explanation], room: int = 10**6) -> str:
    run = Run(tmp_path)
    keep_volume(run, 1, maps, ["t1", "flair"], room)
    return volume_explorer(run, [{"name": "<s1>", "predicted": "a", "label": "b"}])


def test_stored_voxels_are_exact_to_half_a_255th():
    maps = [explained(), explained("occlusion", 1)]
    record = record_volume(maps, ["t1", "flair"])
    held = unpacked(record)
    assert len(held) == 2 + 2 + 1
    assert np.abs(held[:2] / 255 - maps[0].picture.numpy()).max() <= 0.5 / 255 + 1e-6
    for item, about, values in zip(maps, record["methods"], held[2:4], strict=True):
        exact = item.map.numpy() * item.map.numel()
        assert about["most"] == pytest.approx(exact.max())
        assert (
            np.abs(about["least"] + (about["most"] - about["least"]) * values / 255 - exact).max() < about["most"] / 500
        )
    assert maps[0].mask is not None
    assert np.array_equal(held[4], maps[0].mask.numpy())


def test_a_volume_that_does_not_fit_is_made_smaller_and_says_so(tmp_path):
    whole = record_volume([explained()], ["t1", "flair"])
    small = record_volume([explained()], ["t1", "flair"], room=len(whole["data"]) - 1)
    assert (small["step"], small["size"]) == (2, [4, 5, 3])
    mask = explained().mask
    assert mask is not None
    assert unpacked(small)[-1].sum() >= mask.sum() / 8
    # The middle of the first coarse voxel lies between the first two fine ones, in millimetres too.
    fine, coarse = (np.array(record["to_mm"]) for record in (whole, small))
    assert np.allclose(coarse @ [0, 0, 0, 1], fine @ [0.5, 0.5, 0.5, 1])
    page = page_of(tmp_path, [explained()], room=len(whole["data"]) - 1)
    assert "shown smaller: 4 × 5 × 3 voxels, each the mean of 2³" in page
    assert "14 × 18 × 5" not in page
    assert "a scan of 18 × 5 × 14" in page


def test_names_cannot_break_out_and_pictures_have_no_planes(tmp_path):
    page = page_of(tmp_path, [explained()])
    assert page.count("<script") == 2
    assert "\\u003cs1>" in page
    flat = replace(explained(), picture=torch.zeros(3, 4, 4))
    run = Run(tmp_path / "pictures")
    keep_volume(run, 1, [flat], [], 1000)
    assert volume_explorer(run, [{"name": "x", "predicted": "a", "label": "b"}]) == ""


DRIVER = """
const part = (name) => document.getElementById("volumes-" + name);
const choose = (name, value) => { part(name).value = value; part(name).dispatchEvent(new Event("change")); };
const slide = (name, value) => { part(name).value = value; part(name).dispatchEvent(new Event("input")); };
const press = (plane, key) => part(plane).dispatchEvent(new KeyboardEvent("keydown", { key }));
const point = (plane, x, y, wide, high) => {
  const box = part(plane).getBoundingClientRect();
  const clientX = box.left + (x + 0.5) / wide * box.width, clientY = box.top + (y + 0.5) / high * box.height;
  part(plane).dispatchEvent(new PointerEvent("pointerdown", { clientX, clientY }));
  return part("says").textContent;
};
(async () => {
  while (!part("says").textContent) await new Promise((next) => setTimeout(next, 10));
  const result = [];
  try { %s } catch (error) { result.push(String(error)); }
  document.body.textContent = "RESULT" + btoa(unescape(encodeURIComponent(JSON.stringify(result)))) + "END";
})();
"""
SAYS = re.compile(
    r"Voxel right (\d+), anterior (\d+), superior (\d+) \(x (-?[\d.]+), y (-?[\d.]+), z (-?[\d.]+) mm\): "
    r"(\w+) ([\d.]+), map ([\d.]+) times the average; (inside|outside of) the mask\."
)


def read_out(text: str) -> tuple[tuple[int, ...], list[float], str, float, float, bool]:
    match = SAYS.fullmatch(text)
    assert match, text
    values = match.groups()
    return (
        tuple(map(int, values[:3])), list(map(float, values[3:6])), values[6], float(values[7]), float(values[8]),
        values[9] == "inside",
    )  # fmt: skip


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_browser_shows_the_voxels_of_the_arrays_in_all_three_planes(tmp_path):
    maps = [explained(), explained("occlusion", 1)]
    shown = browse(page_of(tmp_path, maps), """
        const start = part("says").textContent;
        result.push([document.getElementById("volumes").hidden, part("scans").hidden, part("masks").hidden, start]);
        choose("method", 1); choose("scan", 1);
        slide("axial-slice", 3); slide("coronal-slice", 2); slide("sagittal-slice", 6);
        result.push(part("says").textContent);
        const all = (plane, wide, high) => Array.from({ length: wide * high },
          (_, n) => point(plane, n % wide, Math.floor(n / wide), wide, high));
        result.push(all("axial", 7, 9), all("coronal", 7, 5), all("sagittal", 9, 5));
        slide("axial-slice", 1); slide("coronal-slice", 1); slide("sagittal-slice", 1);
        const steps = [["axial", "ArrowLeft"], ["axial", "ArrowUp"], ["coronal", "ArrowUp"], ["sagittal", "PageDown"],
                       ["axial", "ArrowDown"], ["sagittal", "ArrowRight"]];
        result.push(steps.map(([plane, key]) => { press(plane, key); return part("says").textContent; }));
        // The drawn pixels: without the map, in the middle of a voxel, the scan's own grey.
        slide("opacity", 0); part("mask").checked = false; part("mask").dispatchEvent(new Event("change"));
        choose("scan", 0); slide("axial-slice", 4); slide("sagittal-slice", 0); slide("coronal-slice", 0);
        const canvas = part("axial"), context = canvas.getContext("2d");
        const pixel = (x, y) => context.getImageData((x + 0.5) / 7 * canvas.width, (y + 0.5) / 9 * canvas.height, 1, 1);
        result.push(Array.from({ length: 9 }, (_, y) => Array.from({ length: 6 }, (_, x) => pixel(x, y).data[0])));
    """, tmp_path, DRIVER)  # fmt: skip
    assert len(shown) == 7, shown
    assert shown[0][:3] == [False, False, False]
    peak = np.unravel_index(int(maps[0].map.argmax()), SIZE)
    assert read_out(shown[0][3])[0] == tuple(int(n) for n in peak)
    assert read_out(shown[1])[:2] == ((6, 2, 3), pytest.approx(_mm((6, 2, 3)), abs=0.06))
    exact = (maps[1].map * maps[1].map.numel()).numpy()
    # The corner pixel of each plane shows the patient's right, front and top.
    planes = {2: lambda n: (6 - n % 7, 8 - n // 7, 3), 3: lambda n: (6 - n % 7, None, 4 - n // 7),
              4: lambda n: (None, 8 - n % 9, 4 - n // 9)}  # fmt: skip
    for number, place in planes.items():
        for n, text in enumerate(shown[number]):
            at, mm, scan, grey, value, inside = read_out(text)
            assert all(a == b for a, b in zip(at, place(n), strict=True) if b is not None)
            assert mm == pytest.approx(_mm(at), abs=0.06)
            assert (scan, inside) == ("flair", bool(maps[0].mask[at]))  # pyright: ignore[reportOptionalSubscript]
            assert grey == pytest.approx(float(maps[0].picture[(1, *at)]), abs=0.0031)
            assert value == pytest.approx(float(exact[at]), abs=float(exact.max()) / 500 + 5e-4)
    walked = [read_out(text)[0] for text in shown[5]]
    assert walked == [(2, 1, 1), (2, 2, 1), (2, 2, 2), (1, 2, 2), (1, 1, 2), (1, 0, 2)]
    drawn, stored = np.array(shown[6]), maps[0].picture[0, :, :, 4].numpy()
    wanted = 255 * stored[::-1, ::-1].T[:, :6]  # patient's right on the left, front up
    inner = np.s_[1:8, 1:]  # not where the letters and the cross are
    assert np.abs(drawn - wanted)[inner].max() < 4


def _mm(at: tuple[int, ...]) -> list[float]:
    """By hand: twice the file's voxels on the first two axes, the first of which runs the other way."""
    file = {2: 13 - (2 * at[0] + 0.5), 0: 2 * at[1] + 0.5, 1: at[2]}
    index = [file[0], file[1], file[2], 1]
    return [float(np.dot(row, index)) for row in FRAME.affine[:3]]


def test_every_record_survives_json(tmp_path):
    page_of(tmp_path, [explained(mask=False)])
    record = json.loads((tmp_path / "explain" / "volume-01.json").read_text())
    assert (record["mask"], len(unpacked(record))) == (False, 3)
