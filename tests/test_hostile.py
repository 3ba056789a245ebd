"""Bad input through the command line: a clear error, exit code 2, no traceback, and nothing lost."""

import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import zipfile
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


def test_check_refuses_what_train_refuses(refused, cli, tmp_path):
    data = make_folder(tmp_path / "data", classes=("red",))
    for command in (("check", "data"), ("train", "data", *TRAIN)):
        refused(*command, said=("one class only, red",))
    rows = "".join(f"data/red/{n:02d}.png,{n / 7:.3f}\n" for n in range(12))
    (tmp_path / "t.csv").write_text(f"path,label\n{rows}")
    for command in (("check", "t.csv"), ("train", "t.csv", *TRAIN)):
        refused(*command, said=("class '0.000' has too few independent images", "--column label"))
    data.rename(tmp_path / "test")
    (tmp_path / "only").mkdir()
    (tmp_path / "test").rename(tmp_path / "only" / "test")
    assert cli("check", "only")[0] == 0, "data to evaluate on"


def test_a_class_with_one_image(refused, tmp_path):
    make_folder(tmp_path / "data")
    make_folder(tmp_path / "more", per_class=1, classes=("rare",))
    (tmp_path / "more" / "rare").rename(tmp_path / "data" / "rare")
    for command in (("check", "data"), ("train", "data", *TRAIN)):
        refused(*command, said=("'rare' has too few independent images",))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_damaged_archives(refused, tmp_path, method):
    arrays = {"images": np.random.default_rng(0).integers(0, 255, (20, 6, 6), np.uint8), "labels": np.arange(20) % 2}
    np.savez(tmp_path / "whole.npz", **arrays)
    with zipfile.ZipFile(tmp_path / "whole.npz") as whole, zipfile.ZipFile(tmp_path / "x.npz", "w", method) as packed:
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    contents = (tmp_path / "x.npz").read_bytes()
    for at in range(100, 400, 20):
        (tmp_path / "x.npz").write_bytes(contents[:at] + bytes([contents[at] ^ 255]) + contents[at + 1 :])
        refused("check", "x.npz", "--quiet", said=("safely",))


def test_images_without_pixels(refused, tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((4, 0, 6), np.uint8), labels=np.arange(4) % 2)
    refused("check", "x.npz", said=("images without pixels",))


def test_a_tiff_whose_offsets_are_no_whole_numbers(refused, tmp_path):
    path = make_folder(tmp_path / "data", per_class=2) / "red" / "bad.tif"
    Image.new("L", (8, 8)).save(path)
    contents = bytearray(path.read_bytes())
    first = struct.unpack_from("<I", contents, 4)[0] + 2
    entries = range(first, first + 12 * struct.unpack_from("<H", contents, first - 2)[0], 12)
    offsets = next(at for at in entries if struct.unpack_from("<H", contents, at)[0] == 273)
    struct.pack_into("<H", contents, offsets + 2, 5)
    path.write_bytes(contents)
    refused("check", "data", said=("1 of 5 images cannot be read", "bad.tif: the image is damaged"))


@pytest.mark.parametrize("file", ["config.json", "data.json", "summary.json", "environment.json", "splits.csv"])
def test_files_of_a_run_that_hold_something_else(refused, run_folder, tmp_path, file):
    run = shutil.copytree(run_folder, tmp_path / "run", dirs_exist_ok=True)
    for contents in ("[]", "{}"):
        (run / file).write_text(contents)
        command = ("eval", run, "digits") if file == "splits.csv" else ("report", run)
        refused(*command, said=("",))


@pytest.mark.parametrize("contents", ["[]", "{}", "{", '{"data": "x", "task": "classification", "settings": 3}'])
def test_weights_of_a_run_with_damaged_settings(refused, run_folder, tmp_path, contents):
    run = shutil.copytree(run_folder, tmp_path / "run", dirs_exist_ok=True)
    (run / "config.json").write_text(contents)
    for words in (("train", "digits", "--from", run, "--dry-run"), ("convert", run, "out.safetensors", "--to", "timm")):
        refused(*words, said=("config.json",))
    assert not Path("out.safetensors").exists()


def test_settings_that_would_have_no_effect(refused):
    refused(
        "train", "digits", "--dry-run", "--strength", "0.5", said=("strength is for RandAugment only", "--policy rand")
    )
    words = ("--dry-run", "--mixup", "0", "--mixup-off", "0.5")
    refused("train", "digits", *words, said=("mixup_off has no effect without mixup", "--cutmix"))


def test_a_rate_that_is_no_number(refused):
    for value in ("nan", "inf", "0", "-1"):
        refused("train", "digits", "--lr", value, said=("lr=",))


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
        (("explain", run_folder, digit_files, "--method", "magic"), "method cannot be 'magic'"),
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
