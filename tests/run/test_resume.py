"""A run that was stopped anywhere, in any way, ends with the very weights it would have had."""

import itertools
import json
import os
import random
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import regard
import regard.training.loop as loop
from regard.data.batch import Batch
from regard.errors import ConfigError, DataError, RunError
from regard.settings import RunConfig
from regard.tasks.classification.loss import CrossEntropy
from regard.training import World, load_state
from regard.training.fits import _try_out
from regard.training.step import Step
from regard.training.stopping import STOP_FILE
from tests.conftest import make_folder
from tests.processes import finished, start
from tests.run.killed import main
from tests.training.test_training import quick, use_sgd

SETTINGS = {
    "model": "vit_nano", "depth": 2, "epochs": 3, "batch_size": 4, "explain": 0, "size": 16, "device": "cpu",
    "crop": "resized", "flip": True, "policy": "trivial", "mixup": 0.3, "cutmix": 0.3, "dropout": 0.1, "drop_path": 0.2,
    "optimizer": "muon", "low_res": 0.4,
}  # fmt: skip


def killed(data, out, update, number, where="training", **settings) -> int:
    """The exit code of a run that sends itself a signal, if it does."""
    said = Path(f"{out}.said")
    process = start(main, str(data), str(out), update, int(number), where, SETTINGS | settings, said=said)
    (code,) = finished(process)
    print(said.read_text())
    return code


def weights(out, name="last"):
    return load_file(Path(out) / "checkpoints" / f"{name}.safetensors")


def same(one, other) -> bool:
    return all(
        a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
        for a, b in ((weights(one, name), weights(other, name)) for name in ("best", "last"))
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("data") / "pictures", per_class=14)


@pytest.fixture(scope="module")
def reference(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert killed(data, out, -1, 0) == 0
    return out


def test_killed_at_any_step_and_resumed_twice_with_other_workers(data, reference, tmp_path):
    steps = int((reference / "metrics.csv").read_text().splitlines()[-1].split(",")[1])
    seed = random.SystemRandom().randrange(2**32)
    first, second = sorted(random.Random(seed).sample(range(steps), 2))
    print(f"killed at {first} and {second} of {steps} (seed {seed})")
    assert killed(data, tmp_path / "run", first, signal.SIGKILL, workers=2) == -signal.SIGKILL
    assert killed(data, tmp_path / "run", second, signal.SIGKILL, workers=0) == -signal.SIGKILL
    assert killed(data, tmp_path / "run", -1, 0, workers=1) == 0
    assert same(reference, tmp_path / "run")
    one, other = (json.loads((run / "summary.json").read_text())["compute"] for run in (reference, tmp_path / "run"))
    assert (one["flops"], one["samples"]) == (other["flops"], other["samples"])
    assert one["flops"] is not None
    columns = [0, 1, 3, 4, 5, 6]  # all but the seconds
    ours, whole = (
        [[line.split(",")[c] for c in columns] for line in (p / "metrics.csv").read_text().splitlines()]
        for p in (tmp_path / "run", reference)
    )
    assert ours == whole


def test_sigterm_in_the_middle_of_an_accumulation(data, tmp_path):
    assert killed(data, tmp_path / "whole", -1, 0, accumulate=3) == 0
    assert killed(data, tmp_path / "run", 4, signal.SIGTERM, accumulate=3) == 128 + signal.SIGTERM
    assert killed(data, tmp_path / "run", -1, 0, accumulate=3) == 0
    assert same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("where", ["training", "evaluation"])
def test_ctrl_c_saves_and_the_run_can_be_used_and_resumed(data, reference, tmp_path, where):
    assert killed(data, tmp_path / "run", 2, signal.SIGINT, where) == 130
    assert (tmp_path / "run" / "checkpoints" / "state.safetensors").exists()
    if where == "evaluation":  # the second one, so one epoch is whole
        assert regard.load(tmp_path / "run").predict(data / "red" / "00.png").label in ("red", "blue")
        assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 2
    assert killed(data, tmp_path / "run", -1, 0) == 0
    assert same(reference, tmp_path / "run")
    assert "resume" in (tmp_path / "run" / "command.txt").read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 130)])
def test_a_signal_to_all_processes_saves_as_one_to_the_first_does(data, reference, tmp_path, number, code):
    """The loader's processes get it too, and the first one gets it twice, as from `timeout`."""
    assert killed(data, tmp_path / "run", 2, number, "group", workers=2, save_every=1e9) == code
    said = Path(f"{tmp_path / 'run'}.said").read_text()
    assert "Traceback" not in said
    state = load_state(tmp_path / "run" / "checkpoints" / "state.safetensors")
    assert state is not None
    assert state.about["history"]["updates"] == 3
    assert killed(data, tmp_path / "run", -1, 0, workers=0) == 0
    assert same(reference, tmp_path / "run")


def test_a_loader_process_that_is_killed_ends_a_run_that_is_saved(data, reference, tmp_path):
    assert killed(data, tmp_path / "run", 2, 0, "worker", workers=2, save_every=1e9) == 1
    assert "DataError: a process that loads images died" in Path(f"{tmp_path / 'run'}.said").read_text()
    state = load_state(tmp_path / "run" / "checkpoints" / "state.safetensors")
    assert state is not None
    assert state.about["history"]["updates"] >= 3
    assert killed(data, tmp_path / "run", -1, 0, workers=1) == 0
    assert same(reference, tmp_path / "run")


def test_fine_tuning_with_lora_resumes_too(data, reference, tmp_path):
    """The kept weights are merged, the state is not; and the weights it began with may be gone by then."""
    begun = shutil.copy(reference / "checkpoints" / "best.safetensors", tmp_path / "start.safetensors")
    settings = {"weights": str(begun), "lora": 2, "layer_decay": 0.8, "optimizer": "adamw"}
    assert killed(data, tmp_path / "whole", -1, 0, **settings) == 0
    assert killed(data, tmp_path / "run", 3, signal.SIGKILL, **settings) == -signal.SIGKILL
    (tmp_path / "start.safetensors").unlink()
    assert killed(data, tmp_path / "run", -1, 0, **settings) == 0
    assert same(tmp_path / "whole", tmp_path / "run")


def test_killed_before_anything_was_saved_it_begins_anew(data, reference, tmp_path):
    assert killed(data, tmp_path / "run", 0, signal.SIGKILL) == -signal.SIGKILL
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert killed(data, tmp_path / "run", -1, 0) == 0
    assert same(reference, tmp_path / "run")


def test_a_second_ctrl_c_stops_at_once():
    before = signal.getsignal(signal.SIGINT)
    with regard.training.Stop(quiet=True) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wanted == signal.SIGINT
        for again in (signal.SIGINT, signal.SIGTERM):  # the same one, sent to the process and to its group; no Ctrl-C
            os.kill(os.getpid(), again)
        stop.since -= 1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_where_no_signal_comes_a_file_stops_a_run(picture_folder, tmp_path, monkeypatch):
    """As under Ray, whose processes train in a thread."""
    (tmp_path / "stop").touch()
    monkeypatch.setenv(STOP_FILE, str(tmp_path / "stop"))
    with pytest.raises(KeyboardInterrupt):
        quick(picture_folder, tmp_path / "run", epochs=3)
    state = load_state(tmp_path / "run" / "checkpoints" / "state.safetensors")
    assert state is not None
    assert state.about["history"]["updates"] == 1


def test_a_failed_write_leaves_the_last_good_state(picture_folder, tmp_path, monkeypatch):
    import safetensors.torch

    original, calls = safetensors.torch.save_file, []

    def full(tensors, path, metadata=None):
        calls.append(1)
        original(tensors, path, metadata)
        if len(calls) == 5:
            Path(path).write_bytes(b"half")
            raise OSError("no space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(RunError, match="no space left"):
        quick(picture_folder, tmp_path / "run", epochs=3, save_every=0.0)
    monkeypatch.undo()
    regard.resume(tmp_path / "run", quiet=True)
    whole = quick(picture_folder, tmp_path / "whole", epochs=3)
    assert same(whole.path, tmp_path / "run")


def test_what_cannot_be_resumed_says_so(picture_folder, tmp_path, capsys):
    run = quick(picture_folder, tmp_path / "run", epochs=1)
    regard.resume(run.path)
    assert "is finished" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="lr cannot be changed"):
        regard.resume(run.path, lr=1.0)
    (run.path / "report.html").unlink()
    state = run.checkpoint("state")
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(RunError, match="damaged"):
        regard.resume(run.path, quiet=True)
    state.unlink()
    (picture_folder / "red" / "00.png").unlink()
    with pytest.raises(RunError, match=r"data has changed .*gone: red/00\.png"):
        regard.resume(run.path, quiet=True)
    with pytest.raises(RunError, match="no such run"):
        regard.resume(tmp_path / "nothing")


HOSTILE_STATES = {
    "deep JSON": lambda about: "[" * 100_000,
    "a list": lambda about: "[]",
    "many blocks": lambda about: json.dumps(about | {"model": about["model"] | {"depth": 2**31}}),
    "no settings": lambda about: json.dumps(about | {"model": {"depth": "x"}}),
    "no history": lambda about: json.dumps(about | {"history": {"epoch": "x"}}),
    "before the start": lambda about: json.dumps(about | {"history": about["history"] | {"epoch": -1}}),
}


@pytest.mark.parametrize("kind", HOSTILE_STATES)
def test_a_hostile_state_is_refused_at_once(run_folder, tmp_path, monkeypatch, kind):
    run = Path(shutil.copytree(run_folder, tmp_path / "run"))
    (run / "report.html").unlink()
    path = run / "checkpoints" / "state.safetensors"
    with safe_open(path, "pt") as file:
        header = file.metadata()
    hostile = HOSTILE_STATES[kind](json.loads(header["about"]))
    save_file(load_file(path), path, metadata=header | {"about": hostile})
    monkeypatch.setattr("regard.registry.build", lambda *_, **__: pytest.fail("a model was built"))
    with pytest.raises(RunError, match="the saved state is damaged"):
        regard.resume(run, quiet=True)


def test_settings_of_more_blocks_than_any_model_has_are_refused(picture_folder, tmp_path):
    with pytest.raises(ConfigError, match="2,147,483,648 blocks are too many"):
        quick(picture_folder, tmp_path / "run", depth=2**31)


def test_the_latest_epochs_are_kept(picture_folder, tmp_path):
    run = quick(picture_folder, tmp_path / "run", epochs=4, keep=2)
    assert sorted(p.name for p in (run.path / "checkpoints").glob("epoch-*")) == [
        "epoch-0003.safetensors",
        "epoch-0004.safetensors",
    ]


class Trouble:
    """A loss that is not finite, or that finds no memory, at the second call of a step."""

    def __init__(self, monkeypatch, act):
        original, self.calls = CrossEntropy.loss, 0

        def loss(objective, output, targets):
            self.calls += 1
            return act(self.calls, original(objective, output, targets), len(targets["probabilities"]))

        monkeypatch.setattr(CrossEntropy, "loss", loss)


def test_a_step_that_is_not_finite_is_never_made(picture_folder, tmp_path, monkeypatch):
    Trouble(monkeypatch, lambda call, loss, count: loss * float("nan") if call == 2 else loss)
    with pytest.raises(RunError, match=r"not a number.*trouble\.json"):
        quick(picture_folder, tmp_path / "run", epochs=1)
    [entry] = json.loads((tmp_path / "run" / "trouble.json").read_text())
    assert len(entry["samples"]) == 8
    assert all((picture_folder / name).is_file() for name in entry["samples"])


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_skipping_it_leaves_everything_as_if_it_had_not_been(picture_folder, tmp_path, monkeypatch, optimizer):
    plain = {"epochs": 1, "ema": 0.0, "optimizer": optimizer, "crop": "none", "warmup": 0.0}
    rates = itertools.repeat(1e-3)
    monkeypatch.setattr(loop, "learning_rate", lambda *_: next(rates))
    with monkeypatch.context() as patch:
        Trouble(patch, lambda call, loss, count: loss * float("inf") if call == 2 else loss)
        bad = quick(picture_folder, tmp_path / "bad", nonfinite="skip", **plain)
    assert bad.read_json("summary.json")["skipped_steps"] == 1
    rates = itertools.chain([1e-3], itertools.repeat(0.0))
    short = quick(picture_folder, tmp_path / "short", **plain)
    assert all(torch.equal(a, b) for a, b in zip(weights(bad.path).values(), weights(short.path).values(), strict=True))


def test_where_memory_runs_out_smaller_pieces_give_the_same(picture_folder, tmp_path, monkeypatch, capsys):
    plain = {
        "epochs": 2,
        "crop": "none",
        "batch_size": 8,
        "quiet": False,
        "clip": 0.0,
        "lr": 0.05,
        "drop_path": 0.0,
        "stem": "patch",
    }
    use_sgd(monkeypatch)

    def scarce(call, loss, count):
        if count > 2 and loss.requires_grad:
            torch.empty(2**60, dtype=torch.uint8)  # as the CPU's own memory runs out: a plain RuntimeError
        return loss

    whole = quick(picture_folder, tmp_path / "whole", **plain)
    Trouble(monkeypatch, scarce)
    pieces = quick(picture_folder, tmp_path / "pieces", **plain)
    assert "pieces of 2 samples" in capsys.readouterr().err
    for name, tensor in weights(whole.path).items():
        torch.testing.assert_close(weights(pieces.path)[name], tensor, atol=1e-5, rtol=1e-4)


def test_memory_that_runs_out_in_validation_is_an_error(picture_folder, tmp_path, monkeypatch):
    def none(*_):
        raise MemoryError

    monkeypatch.setattr("regard.tasks.classification.task.quick_figures", none)
    with pytest.raises(RunError, match="out of memory in epoch 1"):
        quick(picture_folder, tmp_path / "run")


def test_memory_that_never_suffices_is_an_error(picture_folder, tmp_path, monkeypatch):
    def none(call, loss, count):
        raise torch.OutOfMemoryError("out of memory")

    Trouble(monkeypatch, none)
    with pytest.raises(RunError, match="out of memory at"):
        quick(picture_folder, tmp_path / "run")


def test_a_device_that_fails_is_an_error_that_says_how_to_continue(picture_folder, tmp_path, monkeypatch):
    def fail(call, loss, count):
        raise torch.AcceleratorError("CUDA error: unspecified launch failure\nmore")

    Trouble(monkeypatch, fail)
    with pytest.raises(RunError, match=r"(?s)device failed in epoch 1: CUDA error: unspecified launch failure.*resume"):
        quick(picture_folder, tmp_path / "run")


def test_of_several_processes_none_repeats_a_step_in_pieces():
    """The others would wait for it, within the step: an error says so."""
    task, batch = SimpleNamespace(divisible=True), Batch({"image": torch.zeros(4, 3, 16, 16)}, {})
    step: Any = object.__new__(Step)
    step.objective, step.world, step.pieces = task, World(0, 2), 1

    def run(*_):
        raise torch.OutOfMemoryError("out of memory")

    step.replay = SimpleNamespace(run=run)
    with pytest.raises(RunError, match=r"(?s)out of memory at 4 samples.*only one process alone repeats a step"):
        step.train_step([batch])


@pytest.mark.parametrize(("room", "most", "expected"), [(20, 64, 16), (1000, 64, 64), (1000, 50, 32), (1, 64, None)])
def test_the_largest_batch_is_found_by_trying(monkeypatch, room, most, expected):
    def scarce(call, loss, count):
        if count > room:
            raise torch.OutOfMemoryError("out of memory")
        return loss

    def blank(count):
        return Batch({"image": torch.zeros(count, 3, 16, 16)}, {"probabilities": torch.zeros(count, 3)})

    Trouble(monkeypatch, scarce)
    model = regard.create("resnet_nano", classes=3, size=16)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    arguments = (model, CrossEntropy(), blank, RunConfig.of(precision="fp32"), torch.device("cpu"), most)
    if expected is None:
        with pytest.raises(RunError, match="not even two images"):
            _try_out(*arguments)
    else:
        assert _try_out(*arguments) == expected
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_a_batch_found_by_itself_needs_a_gpu(picture_folder, tmp_path):
    with pytest.raises(ConfigError, match="needs a GPU"):
        quick(picture_folder, tmp_path / "run", batch_size="auto")


def test_a_few_unreadable_images_are_left_out_and_listed(tmp_path):
    folder = make_folder(tmp_path / "data", per_class=20)
    (folder / "red" / "03.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"1 of 40 images cannot be read[\s\S]*--unreadable"):
        quick(folder, tmp_path / "strict")
    run = quick(folder, tmp_path / "run", unreadable=0.05)
    assert list(run.read_json("data.json")["unreadable"]) == ["red/03.png"]
    rows = {row["name"]: row["split"] for row in run.read_rows("splits.csv")}
    assert rows["red/03.png"] == "unreadable"
    assert list(rows.values()).count("unreadable") == 1


def test_an_image_that_breaks_during_training_is_named(tmp_path, monkeypatch):
    folder = make_folder(tmp_path / "data")
    monkeypatch.setattr("regard.data.scanner.CACHE_SIDE", 1)

    def rate(*_):
        for path in folder.rglob("*.png"):
            path.write_bytes(b"gone")
        return 1e-3

    monkeypatch.setattr(loop, "learning_rate", rate)
    with pytest.raises(DataError) as caught:
        quick(folder, tmp_path / "run", workers=1, epochs=9)
    assert ".png" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_loader_process_that_dies_is_an_error_that_says_so(tmp_path, monkeypatch):
    folder = make_folder(tmp_path / "data")
    monkeypatch.setattr("regard.data.scanner.CACHE_SIDE", 1)
    monkeypatch.setattr("regard.data.loader._Guarded.__getitem__", lambda self, at: os._exit(7))
    with pytest.raises(DataError, match="process that loads images died"):
        quick(folder, tmp_path / "run", workers=1)


def test_a_dry_run_prints_the_plan_and_writes_nothing(picture_folder, tmp_path, capsys):
    quick(picture_folder, tmp_path / "run", dry_run=True, accumulate=2)
    said = capsys.readouterr().out
    assert "steps" in said
    assert "2 of 16 images" in said
    assert not (tmp_path / "run").exists()


def test_a_dry_run_times_pictures_of_both_sizes(picture_folder, tmp_path, monkeypatch):
    sizes, whole = set(), Step.train_step

    def watched(step, batches):
        sizes.add(batches[0].inputs["image"].shape[2:])
        return whole(step, batches)

    monkeypatch.setattr(Step, "train_step", watched)
    quick(picture_folder, tmp_path / "run", dry_run=True, low_res=0.9)
    assert sizes == {(16, 16), (12, 12)}
