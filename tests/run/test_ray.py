"""Under Ray a run is the one it would be in one process, also when a process is lost; and Ray keeps to itself."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.errors import ConfigError, DataError, RunError
from regard.training import load_state
from tests.conftest import make_folder
from tests.training.test_distributed import SETTINGS, launch, told

STRUCK = 3
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run in one process, and one in two of Ray's, of which the second is killed before the fourth update."""
    place = tmp_path_factory.mktemp("ray")
    data, alone, out = make_folder(place / "pictures", per_class=15), place / "alone", place / "deep" / "run"
    assert launch(1, data, alone)[0] == [0]
    script = Path(__file__).parents[1] / "training" / "on_ray.py"
    words = [sys.executable, script, str(data), str(out), str(STRUCK), json.dumps(SETTINGS)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    home = place / "home"
    home.mkdir()
    environment |= {"OMP_NUM_THREADS": "1", "HOME": str(home), "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return alone, out, home


def test_a_run_on_ray_that_loses_a_process_ends_as_one_process_would_have(runs):
    alone, out, _ = runs
    assert Path(f"{out}.struck").exists()
    expected, losses = told(alone, 1)["losses"], told(out, 2)["losses"]
    assert list(losses) == [update for update in expected if int(update) >= STRUCK], "it went on, not anew"
    for update, loss in losses.items():
        assert loss == pytest.approx(expected[update], abs=1e-6), update
    a, b = (load_file(p / "checkpoints" / "last.safetensors") for p in (out, alone))
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=1e-4, rtol=1e-3)
    assert (out / "report.html").is_file()


def test_ctrl_c_has_a_run_on_ray_saved(tmp_path):
    """Nothing else would have saved it: the first state is due after ten minutes."""
    data, out = make_folder(tmp_path / "pictures", per_class=15), tmp_path / "run"
    asked = (SETTINGS | {"epochs": 100_000, "save_every": 600.0}).items()
    flags = [f"--{name}" if value is True else f"--{name}={value}" for name, value in asked]
    words = [sys.executable, "-m", "regard", "train", str(data), "--ray", "2", "--out", str(out), *flags]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        said = list(itertools.takewhile(lambda line: "training step" not in line, process.stdout))
        process.send_signal(signal.SIGINT)
        said += process.communicate(timeout=120)[0].splitlines()
    finally:
        process.kill()
    assert process.returncode == 130, said
    state = load_state(out / "checkpoints" / "state.safetensors")
    assert state is not None
    assert 0 < state.about["history"]["updates"] < 300_000
    assert not list(tmp_path.glob(".*-ray-*"))


FOLD_FLAGS = ("--model=mlp_nano", "--size=8", "--epochs=2", "--explain=0", "--no-pixel-baseline", "--quiet")


def cross_validated(data, out, *flags, home):
    """`regard train DATA --folds 3 --ray 2` with relative paths, in a process of its own."""
    words = [sys.executable, "-m", "regard", "train", data.name, "--folds=3", "--ray=2", f"--out={out}", *flags]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"OMP_NUM_THREADS": "1", "HOME": str(home)}
    return subprocess.Popen(
        words, cwd=data.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_folds_on_ray_are_the_same_folds_and_those_that_have_finished_are_kept(folded, tmp_path):
    data, made = folded
    out = Path(os.path.relpath(tmp_path / "out", data.parent))
    for missing in ((), ("fold2",)):
        for name in missing:
            shutil.rmtree(tmp_path / "out" / name)
        before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/fold*/report.html")}
        process = cross_validated(data, out, *FOLD_FLAGS, home=tmp_path)
        said = process.communicate(timeout=240)[0]
        assert process.returncode == 0, said
        assert re.match(r"figure +mean ± deviation +variance +fold 1 +fold 2 +fold 3\n", said)
        assert all(path.stat().st_mtime_ns == time for path, time in before.items())
        assert (tmp_path / "out" / "predictions.csv").read_text() == (made.path / "predictions.csv").read_text()
    assert len(before) == 2
    assert not list(tmp_path.glob(".*-ray-*"))


def test_ctrl_c_has_folds_on_ray_saved(folded, tmp_path):
    flags = [flag for flag in FOLD_FLAGS if "epochs" not in flag and flag != "--quiet"]
    out, process = (
        tmp_path / "out",
        cross_validated(folded[0], tmp_path / "out", *flags, "--epochs=1000000", "--save-every=600", home=tmp_path),
    )
    try:
        while len(list(out.glob("fold*/splits.csv"))) < 2 and process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=120)[0]
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "the same command resumes" in said
    for fold in (1, 2):
        state = load_state(out / f"fold{fold}" / "checkpoints" / "state.safetensors")
        assert state is not None
        assert state.about["history"]["updates"] > 0


LOST = """
import os, signal
from pathlib import Path
from regard.errors import DivergedError
from regard.run.ray import fold_workers
from tests.run.test_ray import Nothing

def work(dataset, item):
    if item == "fails":
        raise DivergedError("no number", where="here")
    if item == "lost" and not Path("struck").exists():
        Path("struck").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    Path(item).write_text(str(dataset.cache[0].sum().item()))

with fold_workers(Path("out").absolute(), 2, 3, "cpu", True) as share:
    for item, future in share(work, ["lost", "fine", "fails"], Nothing()):
        print(item, type(future.exception()).__name__, getattr(future.exception(), "where", None))
"""


@dataclass
class Nothing:
    """In place of a dataset: one image that was read."""

    cache: dict = field(default_factory=lambda: {0: torch.ones(2**20)})


def test_a_fold_whose_process_is_lost_is_taken_up_again_and_an_error_is_told_as_it_is(tmp_path):
    root = str(Path(__file__).parents[2])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join((root, environment.get("PYTHONPATH", "")))}
    words = [sys.executable, "-c", LOST]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    said = sorted(line for line in done.stdout.splitlines() if "raylet" not in line)
    assert said == ["fails DivergedError here", "fine NoneType None", "lost NoneType None"]
    assert (tmp_path / "struck").exists()
    assert (tmp_path / "lost").read_text() == (tmp_path / "fine").read_text() == str(float(2**20))


@pytest.mark.skipif(not shutil.which("ss"), reason="needs ss, which lists sockets")
def test_ray_listens_on_this_machine_alone_and_leaves_nothing_behind(runs):
    _, out, home = runs
    lines = Path(f"{out}.sockets").read_text().splitlines()
    own = [line.split()[3] for line in lines if re.search(r'"(ray|gcs_server)', line)]
    assert len(own) > 5
    # The one that is not is torch's own meeting place (TCPStore), which knows no other way, under torchrun too.
    assert len([address for address in own if "127.0.0.1" not in address]) == 1
    assert not {".ray", "ray_results"} & {path.name for path in home.iterdir()}, "neither a token nor results"
    assert not list(out.parent.glob(".*-ray-*"))


def test_what_cannot_run_on_ray_is_said_before_ray_is_started(picture_folder, tmp_path):
    with pytest.raises(ConfigError, match="has no folder"):
        regard.train_on_ray(picture_folder, processes=2)
    with pytest.raises(RunError, match="exists"):
        regard.train_on_ray(picture_folder, out=picture_folder)
    with pytest.raises(DataError):
        regard.train_on_ray(tmp_path / "nothing", out=tmp_path / "run")
    with pytest.raises(ConfigError, match="batchs"):
        regard.train_on_ray(picture_folder, out=tmp_path / "run", batchs=3)


def test_without_ray_the_way_to_install_it_is_said(picture_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("os.environ", dict(os.environ))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'regard\[ray\]'"):
        regard.train_on_ray(picture_folder, out=tmp_path / "run")
