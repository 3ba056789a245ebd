"""The report's explorer: what is stored is what the network did, and what a browser shows is what is stored."""

import base64
import json
import re
import shutil
import subprocess
import zlib

import numpy as np
import pytest
import torch

import regard
from regard.data import open_source
from regard.explain.attention_store import keep_attention, record_attention
from regard.geometry import AttentionStep
from regard.nn import MultiHeadAttention, Tape
from regard.report.attention_explorer import attention_explorer
from regard.weights import Run
from tests.loading import load_classifier

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def recorded(model, size: tuple[int, ...], **options) -> tuple[dict, Tape]:
    picture = torch.rand(model.config.channels, *size, generator=torch.Generator().manual_seed(0))
    with regard.capture(model.eval()) as tape:
        model(picture[None])
    return record_attention(model, picture[None], picture, **options), tape


def unpacked(record: dict) -> list[list[np.ndarray]]:
    """The stored weights by layer and head: (queries, keys)."""
    plain, tokens = zlib.decompress(base64.b64decode(record["data"])), len(record["prefix"]) + np.prod(record["grid"])
    rows = sum(record["heads"]) * tokens
    largest = np.frombuffer(plain, "<f4", rows).reshape(-1, tokens, 1)
    shares = np.frombuffer(plain, np.uint8, offset=4 * rows).reshape(-1, tokens, tokens) / 255
    heads = iter(largest * shares)
    return [[next(heads) for _ in range(count)] for count in record["heads"]]


def agree(record: dict, tape: Tape) -> None:
    stored = unpacked(record)
    assert [len(layer) for layer in stored] == [tape.heads(n) for n in range(len(tape))]
    for layer, heads in enumerate(stored):
        for head, weights in enumerate(heads):
            exact = tape.attention(layer, head)[0].numpy()
            assert (np.abs(weights - exact) <= exact.max(1, keepdims=True) * (0.5 / 255 + 1e-6)).all()


def sharp(name: str = "vit_nano", **fields):
    """A network whose attention is far from even, so that mixing up rows, heads or layers shows."""
    torch.manual_seed(3)
    model = regard.create(name, classes=3, **fields)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, MultiHeadAttention):
                module.qkv.weight *= 4
    return model


def test_a_run_keeps_the_attention_of_its_explained_images(run_folder):
    predictor, source = load_classifier(run_folder), open_source("digits")
    images = json.loads((run_folder / "explain" / "explanations.json").read_text())
    for number, maps in enumerate(images, start=1):
        (index,) = (n for n, sample in enumerate(source.samples) if sample.key == maps[0]["name"])
        with regard.capture(predictor.model) as tape:
            predictor.model(predictor.preparation(source.read(index)[0]))
        agree(json.loads((run_folder / "explain" / f"attention-{number:02d}.json").read_text()), tape)


@pytest.mark.parametrize(("name", "size", "fields"), [
    ("vit_nano", (16, 22), {"registers": 2}), ("vit_nano", (16, 16), {"pool": "mean"}),
    ("vit3d_nano", (20, 16, 24), {}),
])  # fmt: skip
def test_stored_weights_are_exact_to_half_a_255th_of_the_rows_largest(name, size, fields):
    record, tape = recorded(sharp(name, size=size, **fields), size)
    agree(record, tape)
    assert np.prod(record["grid"]) + len(record["prefix"]) == tape.attention(0).shape[-1]
    assert record["picture"].startswith("data:image/png;base64,")


def full_attention(model, tape: Tape, size: tuple[int, ...], layer: int, head: int | None) -> torch.Tensor:
    """(tokens, tokens) of a layer with windows: zero between windows, padding left out."""
    windows = [step.windows for step in model.token_flow(size) if isinstance(step, AttentionStep)][layer]
    assert windows is not None
    weights = torch.zeros(int(windows.max()) + 1, int(windows.max()) + 1)
    for tokens, window in zip(windows, tape.attention(layer, head), strict=True):
        real = tokens >= 0
        weights[tokens[real][:, None], tokens[real]] = window[real][:, real]
    return weights


@pytest.mark.parametrize(("name", "size"), [("swin_nano", (21, 30)), ("swin3d_nano", (24, 20, 28))])
def test_windows_are_stored_with_their_tokens_and_without_padding(name, size):
    model = sharp(name, size=size)
    record, tape = recorded(model, size)
    layers, plain = json.loads(record["layers"]), zlib.decompress(base64.b64decode(record["data"]))
    shapes = [(heads, *tape.shape(layer)) for layer, heads in enumerate(record["heads"])]
    tops = np.frombuffer(plain, "<f4", sum(int(np.prod(shape[:3])) for shape in shapes))
    shares = np.frombuffer(plain, np.uint8, offset=tops.nbytes) / 255
    row = first = padded = 0
    for layer, shape in enumerate(shapes):
        rows, count = int(np.prod(shape[:3])), int(np.prod(shape))
        weights = tops[row : row + rows].reshape(*shape[:3], 1) * shares[first : first + count].reshape(shape)
        row, first, windows = row + rows, first + count, torch.tensor(layers[layer]["windows"])
        assert tuple(windows.shape) == shape[1:3]
        assert np.prod(layers[layer]["grid"]) == (windows >= 0).sum()
        padded += int((windows < 0).sum())
        for head in range(shape[0]):
            exact = full_attention(model, tape, size, layer, head)
            for tokens, window in zip(windows, torch.from_numpy(weights[head]), strict=True):
                real = tokens >= 0
                assert not window[~real].any()
                assert not window[:, ~real].any()
                expected = exact[tokens[real][:, None], tokens[real]]
                assert ((window[real][:, real] - expected).abs() <= expected.amax(1, keepdim=True) * 0.51 / 255).all()
    assert first == len(shares)
    assert padded > 0
    assert record["grid"] == layers[0]["grid"]


def test_what_does_not_fit_is_left_out_and_said(tmp_path):
    model, run = sharp(size=16), Run(tmp_path)
    picture = torch.rand(3, 16, 16)
    taken = keep_attention(run, 1, model, picture[None], picture, room=100_000)
    stored = run.read_json("explain/attention-01.json")
    assert 1000 < taken == len(stored["data"]) + len(stored["picture"])
    assert keep_attention(run, 2, model, picture[None], picture, room=taken - 1) == 0
    assert keep_attention(run, 3, model, picture[None], picture, room=10) == 0
    page = attention_explorer(run, [{"name": f"<{n}>", "predicted": "a", "label": "b"} for n in range(3)])
    assert "&lt;1&gt; (16 heads over 17 tokens do not fit); &lt;2&gt; (16 heads" in page
    assert len(page_data(page)) == 1
    signal = regard.create("vit_nano", classes=2, size=16)
    signal.token_map = lambda size=None: regard.TokenMap((4,), (4,), (16,))
    assert record_attention(signal, picture[None], picture) == {"left_out": "signals are not shown here"}


def page_data(page: str) -> list[dict]:
    (text,) = re.findall(r'<script type="application/json" id="explorer-data">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(text)


def test_names_cannot_break_out_of_the_data(tmp_path):
    run, picture = Run(tmp_path), torch.rand(3, 16, 16)
    keep_attention(run, 1, sharp(size=16), picture[None], picture, room=100_000)
    hostile = "</script><script>alert(1)</script><!--"
    page = attention_explorer(run, [{"name": hostile, "predicted": hostile, "label": "b"}])
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "<!--" not in page
    assert page_data(page)[0]["name"] == f"{hostile}: predicted {hostile}, true b"


def test_a_run_without_attention_has_no_explorer(tmp_path):
    assert attention_explorer(Run(tmp_path), [{"name": "a", "predicted": "a", "label": "b"}]) == ""


DRIVER = """
const part = (name) => document.getElementById("explorer-" + name);
const choose = (name, value) => { part(name).value = value; part(name).dispatchEvent(new Event("change")); };
const press = (key, shiftKey = false) => part("map").dispatchEvent(new KeyboardEvent("keydown", { key, shiftKey }));
const point = (kind, row, column, rows, columns) => {
  const box = part("map").getBoundingClientRect();
  const clientX = box.left + (column + 0.5) / columns * box.width, clientY = box.top + (row + 0.5) / rows * box.height;
  part("map").dispatchEvent(new PointerEvent(kind, { clientX, clientY }));
  return part("says").textContent;
};
(async () => {
  while (!part("says").textContent) await new Promise((next) => setTimeout(next, 10));
  const result = [];
  try { %s } catch (error) { result.push(String(error)); }
  document.body.textContent = "RESULT" + btoa(unescape(encodeURIComponent(JSON.stringify(result)))) + "END";
})();
"""


def browse(page: str, script: str, folder, driver: str = DRIVER) -> list:
    """What a script pushes onto `result`, run in the page after the explorer has started."""
    file = folder / "page.html"
    text = f"<!doctype html><meta charset='utf-8'><body>{page}<script>{driver % script}</script></body>"
    file.write_text(text, encoding="utf-8")
    shown = ""
    for budget in (
        20_000,
        200_000,
        2_000_000,
    ):  # virtual time runs ahead of pictures that a busy machine decodes slowly
        shown, errors = dumped(file, budget, folder)
        if answer := result_in(shown):
            return json.loads(base64.b64decode(answer, validate=True))
    raise AssertionError(shown[-500:] + errors[-500:])


def dumped(file, budget: int, folder) -> tuple[str, str]:
    """The page as it is after so many milliseconds of virtual time, and what the browser complains about."""
    words = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking",
        f"--user-data-dir={folder / 'profile'}", f"--virtual-time-budget={budget}", "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    return done.stdout, done.stderr


def result_in(page: str) -> str | None:
    """The result of a script, in base64; None while the page still holds the script itself, which names the marks."""
    match = re.search("RESULT([A-Za-z0-9+/=]+)END", page)
    return match and match[1]


def test_a_script_that_has_not_finished_is_not_read_as_its_result():
    assert result_in(DRIVER % "") is None
    assert result_in("<body>RESULTW10=END</body>") == "W10="


def read_out(text: str) -> float:
    match = re.search(r": ([\d.]+)\s% to ", text)
    assert match, text
    return float(match[1]) / 100


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_browser_shows_the_weights_of_the_chosen_layer_head_and_patch(tmp_path):
    model, run = sharp(size=(16, 24), registers=1), Run(tmp_path)
    picture = torch.rand(3, 16, 24)
    keep_attention(run, 1, model, picture[None], picture, room=1_000_000)
    with regard.capture(model) as tape:
        model(picture[None])
    page = attention_explorer(run, [{"name": "x", "predicted": "a", "label": "b"}])
    shown = browse(page, """
        result.push(document.getElementById("explorer").hidden, part("slices").hidden, part("says").textContent);
        choose("layer", 1); choose("head", 2);
        point("click", 0, 5, 4, 6);
        const patches = Array.from({ length: 24 }, (_, n) => [Math.floor(n / 6), n % 6]);
        const all = () => patches.map(([row, column]) => point("pointermove", row, column, 4, 6));
        result.push(all());
        choose("head", "mean"); result.push(all());
        part("prefix").children[0].click(); result.push(all());
        part("map").dispatchEvent(new PointerEvent("pointerleave")); choose("head", 3);
        press("ArrowDown"); press("ArrowRight"); press("ArrowDown"); result.push(part("says").textContent);
        press("ArrowRight", true); press("ArrowRight", true); result.push(part("says").textContent);
    """, tmp_path)  # fmt: skip
    assert len(shown) == 8, shown
    hidden, slices, first, one, mean, token, moved, read = shown
    assert (hidden, slices) == (False, True)
    assert first.startswith("From class token (layer 3, mean over heads): ")
    assert one[0].startswith("From row 0, column 5 (layer 1, head 2): ")
    prefix = 2
    for texts, exact in (
        (one, tape.attention(1, 2)[0, prefix + 5]),
        (mean, tape.attention(1)[0, prefix + 5]),
        (token, tape.attention(1)[0, 0]),
    ):
        got = torch.tensor([read_out(text) for text in texts])
        bound = 0.51 / 255 * float(exact.max() if texts is one else tape.attention(1).max() * 4) + 0.5e-4
        assert (got - exact[prefix:]).abs().max() <= bound
        (register,) = re.findall(r"register 0 token ([\d.]+)\s%", texts[0])
        assert float(register) / 100 == pytest.approx(float(exact[1]), abs=bound)
    exact = tape.attention(1, 3)[0, prefix + 7]
    assert moved.startswith("From row 1, column 1 (layer 1, head 3): ")
    assert read_out(moved) == pytest.approx(float(exact.max()), abs=1e-4)
    assert " to row 0, column 1." in read
    assert read_out(read) == pytest.approx(float(exact[prefix + 1]), abs=0.51 / 255 * float(exact.max()) + 0.5e-4)


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_browser_shows_volumes_slice_by_slice(tmp_path):
    model, run = sharp("vit3d_nano", size=(24, 16, 24)), Run(tmp_path)
    picture = torch.rand(1, 24, 16, 24)
    keep_attention(run, 1, model, picture[None], picture, room=1_000_000)
    with regard.capture(model) as tape:
        model(picture[None])
    shown = browse(attention_explorer(run, [{"name": "x", "predicted": "a", "label": "b"}]), """
        choose("layer", 2); choose("head", 1);
        part("slice").value = 1; part("slice").dispatchEvent(new Event("input"));
        point("click", 1, 2, 2, 3);
        part("slice").value = 2; part("slice").dispatchEvent(new Event("input"));
        result.push(part("slices").hidden, point("pointermove", 1, 0, 2, 3));
    """, tmp_path)  # fmt: skip
    exact = tape.attention(2, 1)[0, 1 + 6 + 5]
    assert shown[0] is False
    assert shown[1].startswith("From slice 1, row 1, column 2 (layer 2, head 1): ")
    assert " to slice 2, row 1, column 0." in shown[1]
    assert read_out(shown[1]) == pytest.approx(float(exact[1 + 12 + 3]), abs=0.51 / 255 * float(exact.max()) + 0.5e-4)


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_browser_shows_the_weights_inside_a_window_on_the_grid_of_the_stage(tmp_path):
    size = (21, 30)  # grids of 11 × 15 and 6 × 8, windows of 4 × 4
    model, run, picture = sharp("swin_nano", size=size), Run(tmp_path), torch.rand(3, *size)
    keep_attention(run, 1, model, picture[None], picture, room=1_000_000)
    with regard.capture(model) as tape:
        model(picture[None])
    shown = browse(attention_explorer(run, [{"name": "x", "predicted": "a", "label": "b"}]), """
        const cells = (rows, columns, cell) => Array.from({ length: rows * columns }, (_, n) => {
          const box = part("map").getBoundingClientRect(), row = Math.floor(n / columns), column = n % columns;
          const clientY = box.top + (row * cell + 0.5) / 21 * box.height;
          const clientX = box.left + (column * cell + 0.5) / 30 * box.width;
          part("map").dispatchEvent(new PointerEvent("pointermove", { clientX, clientY }));
          return part("says").textContent;
        });
        const ask = (row, column, cell) => {
          const box = part("map").getBoundingClientRect();
          const clientY = box.top + (row * cell + 0.5) / 21 * box.height;
          const clientX = box.left + (column * cell + 0.5) / 30 * box.width;
          part("map").dispatchEvent(new PointerEvent("click", { clientX, clientY }));
        };
        choose("layer", 1); choose("head", 1); ask(10, 14, 2); result.push(cells(11, 15, 2));
        choose("layer", 2); result.push(cells(6, 8, 4));
        choose("head", "mean"); choose("layer", 5); ask(0, 0, 4); result.push(cells(6, 8, 4));
    """, tmp_path)  # fmt: skip
    expected = [(1, 1, 10 * 15 + 14), (2, 1, 5 * 8 + 7), (5, None, 0)]
    starts = [
        "From row 10, column 14 (layer 1, head 1, within its window): ",
        "From row 5, column 7 (layer 2, head 1, within its window): ",  # the patch at the same place
        "From row 0, column 0 (layer 5, mean over heads, within its window): ",
    ]
    for texts, start, (layer, head, query) in zip(shown, starts, expected, strict=True):
        exact = full_attention(model, tape, size, layer, head)[query]
        got = torch.tensor([read_out(text) for text in texts])
        assert texts[0].startswith(start)
        bound = 0.51 / 255 * float(exact.max() * (1 if head else 4)) + 0.5e-4
        assert (got - exact).abs().max() <= bound
        assert (got[exact == 0] == 0).all()
        assert (exact == 0).sum() >= len(exact) - 16
    (padding,) = re.findall(r"padding ([\d.]+)\s%", shown[1][0])
    lost = 1 - float(full_attention(model, tape, size, 2, 1)[5 * 8 + 7].sum())
    assert lost > 0.01
    assert float(padding) / 100 == pytest.approx(lost, abs=0.02)


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_browser_shows_windows_of_volumes_slice_by_slice(tmp_path):
    size = (24, 20, 28)  # grids of 6 × 5 × 7 and 3 × 3 × 4
    model, run, picture = sharp("swin3d_nano", size=size), Run(tmp_path), torch.rand(1, *size)
    keep_attention(run, 1, model, picture[None], picture, room=1_000_000)
    with regard.capture(model) as tape:
        model(picture[None])
    shown = browse(attention_explorer(run, [{"name": "x", "predicted": "a", "label": "b"}]), """
        choose("layer", 0); choose("head", 1);
        part("slice").value = 5; part("slice").dispatchEvent(new Event("input"));
        point("click", 4, 6, 5, 7); result.push(part("slice").max, point("pointermove", 4, 4, 5, 7));
        choose("layer", 2); result.push(part("slice").max, part("slice").value, part("says").textContent);
    """, tmp_path)  # fmt: skip
    most, first, coarse, at, second = shown
    assert (most, coarse, at) == ("5", "2", "2")
    assert first.startswith("From slice 5, row 4, column 6 (layer 0, head 1, within its window): ")
    assert " to slice 5, row 4, column 4." in first
    exact = full_attention(model, tape, size, 0, 1)[5 * 35 + 4 * 7 + 6]
    assert read_out(first) == pytest.approx(
        float(exact[5 * 35 + 4 * 7 + 4]), abs=0.51 / 255 * float(exact.max()) + 1e-4
    )
    assert second.startswith("From slice 2, row 2, column 3 (layer 2, head 1, within its window): ")
    exact = full_attention(model, tape, size, 2, 1)[2 * 12 + 2 * 4 + 3]
    assert " to slice 2, row 2, column 2." in second
    assert read_out(second) == pytest.approx(
        float(exact[2 * 12 + 2 * 4 + 2]), abs=0.51 / 255 * float(exact.max()) + 1e-4
    )
