"""Bad input through the command line: a clear error, exit code 2, no traceback, and nothing lost."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import make_folder
from tests.data.test_images import bomb


@pytest.fixture
def refused(cli, tmp_path, monkeypatch):
    """Run a command in `tmp_path` that must end with code 2 and these words; returns what it printed."""
    monkeypatch.chdir(tmp_path)

    def check(*words: object, said: tuple[str, ...]) -> str:
        code, out, err = cli(*words)
        assert code == 2, err
        assert "Traceback" not in err
        for word in said:
            assert word in err
        return out

    return check


TRAIN = ("--model", "vit_nano", "--depth", "1", "--size", "16", "--epochs", "1", "--out", "run")


def test_an_empty_folder(refused, tmp_path):
    (tmp_path / "data").mkdir()
    refused("train", "data", *TRAIN, said=("no images", "class"))
    assert not (tmp_path / "run").exists()


def test_a_class_with_one_image(refused, tmp_path):
    make_folder(tmp_path / "data")
    make_folder(tmp_path / "more", per_class=1, classes=("rare",))
    (tmp_path / "more" / "rare").rename(tmp_path / "data" / "rare")
    refused("train", "data", *TRAIN, said=("'rare' has too few independent images",))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["truncated", "bomb", "NaN"])
def test_damaged_and_hostile_images(refused, tmp_path, kind):
    data = make_folder(tmp_path / "data")
    bad = data / "red" / f"{kind}.{'jpg' if kind == 'truncated' else 'png' if kind == 'bomb' else 'tif'}"
    if kind == "truncated":
        Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(bad)
        bad.write_bytes(bad.read_bytes()[:1500])
    elif kind == "bomb":
        bomb(bad, 30_000)
    else:
        Image.fromarray(np.full((20, 20), np.nan, np.float32)).save(bad)
    refused("train", "data", *TRAIN, said=("1 of 25 images cannot be read", bad.name))
    assert not (tmp_path / "run").exists()
    assert "cannot be read: 1" in refused("check", "data", said=(bad.name,))
    assert len(list(data.rglob("*.png"))) >= 24, "the user's files are never touched"


def test_an_existing_run_is_never_written_over(refused, tmp_path):
    make_folder(tmp_path / "data")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious.txt").write_text("x")
    refused("train", "data", *TRAIN, said=("exists and is not empty",))
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["precious.txt"]


def test_a_disk_that_fills_while_saving(tmp_path):
    """No file may grow past 50,000 bytes: settings and splits still fit, the checkpoint does not."""
    make_folder(tmp_path / "data")

    def full() -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    words = [sys.executable, "-m", "regard", "train", "data", *TRAIN]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, preexec_fn=full)
    assert result.returncode == 2, result.stderr
    assert "could not be written" in result.stderr
    assert "make room" in result.stderr
    assert not list((tmp_path / "run").rglob("*-part")), "a half-written file was left"
    assert not list((tmp_path / "run" / "checkpoints").glob("*.safetensors"))


def test_a_failed_save_leaves_the_last_good_checkpoint(run_folder, tmp_path, monkeypatch):
    import shutil

    import safetensors.torch

    from regard.errors import RunError
    from regard.weights import open_weights, save_checkpoint

    path = tmp_path / "best.safetensors"
    shutil.copy(run_folder / "checkpoints" / "best.safetensors", path)
    good = path.read_bytes()

    def half(tensors, file, metadata):
        Path(file).write_bytes(good[: len(good) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", half)
    with pytest.raises(RunError, match=r"No space left.*earlier file is unharmed"):
        save_checkpoint(path, open_weights(path)[0])
    assert path.read_bytes() == good
    assert [p.name for p in tmp_path.iterdir()] == ["best.safetensors"]


@pytest.mark.parametrize("damage", ["cut", "pickle", "text"])
def test_a_checkpoint_that_is_none(refused, run_folder, tmp_path, damage):
    import pickle

    good = (run_folder / "checkpoints" / "best.safetensors").read_bytes()
    contents = {"cut": good[: len(good) // 2], "pickle": pickle.dumps({"a": 1}), "text": b"hello"}
    (tmp_path / "x.safetensors").write_bytes(contents[damage])
    refused("predict", "x.safetensors", ".", said=("damaged",))


@pytest.mark.parametrize("ending", [".pth", ".bin", ".ckpt", ".npz"])
@pytest.mark.parametrize("command", [("predict", "{}", "."), ("convert", "{}", "out.safetensors", "--to", "regard")])
def test_weights_that_would_run_code(refused, tmp_path, ending, command):
    import torch

    from tests.weights.test_files import Payload

    name, mark = f"w{ending}", tmp_path / "ran"
    if ending == ".npz":
        np.savez(tmp_path / name, x=np.array([Payload(mark)], dtype=object))
    else:
        torch.save({"model": Payload(mark)}, tmp_path / name)
    refused(*(word.format(name) for word in command), said=("run", "code", "refused", name))
    assert not mark.exists()
    assert not (tmp_path / "out.safetensors").exists()


def test_other_users_errors(refused, run_folder, tmp_path, digit_files):
    """Those that need a trained model; what is refused before torch is imported is in test_package.py."""
    for words, said in (
        (("predict", run_folder, "nothing/*.png"), "no image here"),
        (("predict", tmp_path, digit_files), "no config.json"),
        (("predict", run_folder), "no image was given"),
        (("explain", run_folder, run_folder / "summary.json"), "a .json file is no image"),
        (("explain", run_folder, digit_files, "--method", "magic"), "no method called 'magic'"),
        (("eval", run_folder, make_folder(tmp_path / "d")), "does not know: blue, red"),
        (("demo", "scene"), "no demo called"),
    ):
        refused(*words, said=(said,))
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def pipe(tmp_path):
    """Makes a named pipe that nobody writes to; whoever waits for it is interrupted."""

    def make(name: str) -> Path:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / name)
        return tmp_path / name

    def waited(*_: object) -> None:
        raise AssertionError("the pipe was opened")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(60)
    yield make
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_a_pipe_is_not_waited_for(refused, pipe, run_folder, tmp_path):
    make_folder(tmp_path / "data")
    pipe("data/red/x.png")
    refused("check", "data", said=("red/x.png", "pipe or device"))
    for name in ("x.csv", "x.npz", "x.tsv", "x"):
        refused("check", pipe(name), said=("neither a file nor a folder",))
    pipe("table/list.csv")
    refused("check", "table", said=("images",))
    for name in ("train.en", "train.de"):
        pipe(f"text/{name}")
    refused("check", "text", said=())
    refused("predict", run_folder, pipe("x.png"), said=("no image here",))
    refused("predict", pipe("w.safetensors"), "data", said=("no such file",))
    shutil.copytree(run_folder, tmp_path / "run")
    for name in ("config.json", "summary.json", "environment.json", "metrics.csv", "command.txt"):
        held = pipe(f"run/{name}")
        refused("report", "run", said=())
        held.unlink()
        shutil.copy(run_folder / name, held)


def test_a_device_is_no_data(refused):
    refused("check", "/dev/zero", said=("neither a file nor a folder",))
    refused("train", "/dev/zero", *TRAIN, said=("neither a file nor a folder",))
