"""Under Ray a run is the one it would be in one process, also when a process is lost; and Ray keeps to itself."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
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
