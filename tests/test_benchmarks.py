"""What the scripts in benchmarks/ promise of being called again."""

import contextlib
import gc
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import regard
from benchmarks import detr_speed, transfer_size, transfer_table, volumes_small
from regard.errors import RunError
from regard.weights import to_json, write_text


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The settings of every run that was asked for; none is made."""
    asked: list[dict[str, Any]] = []

    def make(data: object, **settings: Any) -> Any:
        asked.append(settings)
        return SimpleNamespace(read_json=lambda name: {"figures": {"auroc": {"value": settings.get("lr", 0.5)}}})

    monkeypatch.setattr(regard, "train", make)
    monkeypatch.setattr(regard, "pretrain", make)
    return asked


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["volumes_small.py", "some.npz", *map(str, words)])
    volumes_small.main()


def test_small_volumes_are_resumed_pretraining_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = (tmp_path / "out", "--models", "vit3d_nano", "--seeds", 2, "--pretrain", 5, "--set", "lr=0.25")
    run(monkeypatch, *words)
    assert [settings["resume"] for settings in calls] == [True] * 4, "a pre-training and a run per seed"
    assert "| vit3d_nano | 2 | 0.250 (0.250, 0.250) |" in capsys.readouterr().out
    run(monkeypatch, *words)
    assert len(calls) == 4, "what has finished is kept"


def test_small_volumes_of_other_settings_are_not_told_as_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[dict[str, Any]]
) -> None:
    words = (tmp_path / "out", "--models", "vit3d_nano", "--seeds", 1)
    run(monkeypatch, *words, "--set", "lr=0.25")
    for other in (("--set", "lr=0.5"), ("--set", "lr=0.25", "--pretrain", 5), ("--set", "lr=0.25", "--from", "x")):
        with pytest.raises(RunError, match="runs of other settings"):
            run(monkeypatch, *words, *other)
    run(monkeypatch, *words, "--set", "lr=0.25")
    assert len(calls) == 1


def test_the_recorded_step_of_the_speed_benchmark_keeps_the_memory_it_works_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph replays on addresses: weights that nothing else holds would be the peer's memory a moment later."""
    calls = list[str]()
    stream = SimpleNamespace(wait_stream=lambda other: None)
    graph = SimpleNamespace(replay=lambda: calls.append("replay"))
    for name, stub in {
        "Stream": lambda: stream, "current_stream": lambda: stream, "CUDAGraph": lambda: graph,
        "stream": lambda it: contextlib.nullcontext(), "graph": lambda *_, **__: contextlib.nullcontext(),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stub)
    monkeypatch.setattr(detr_speed.Bench, "gpu", True)

    def made() -> tuple[detr_speed.Work, weakref.ref[torch.nn.Module]]:
        model = torch.nn.Linear(1, 1)
        bench = object.__new__(detr_speed.Bench)
        return bench.recorded(lambda: model(torch.ones(1))), weakref.ref(model)

    work, model = made()
    gc.collect()
    assert model() is not None
    assert isinstance(work(), torch.Tensor)
    assert calls == ["replay"]


def test_the_speed_benchmark_stops_within_a_phase() -> None:
    def compiling() -> None:
        while True:
            pass

    with pytest.raises(detr_speed.OutOfTime), detr_speed.limited(0.0):
        compiling()


ROW = {
    "accuracy": 0.5, "split": "test", "seen": 0, "parameters": 7, "tuning_cost": {"flops": 2.0},
    "pre_training_cost": {"flops": 3.0},
}  # fmt: skip


def test_table_2_pre_trains_only_models_with_runs_to_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[dict[str, Any]]
) -> None:
    """Finished runs are known by their rows, without any weights; the table has all rows that are there."""
    tables: list[Any] = []
    monkeypatch.setattr(transfer_table, "halves", lambda data, out: (out / "pretrain.csv", out / "transfer.csv"))
    monkeypatch.setattr(transfer_table, "transfer", lambda data, models, **given: tables.append((models, given)))
    for data in ("transfer", "pets"):
        row = ROW | {"model": "vit_nano", "data": data, "seed": 0, "run": f"runs/vit_nano-{data}-0"}
        write_text(tmp_path / "table" / "kept" / f"vit_nano-{data}-0.json", to_json(row))
    words = ["cifar", "pets", tmp_path, "--models", "vit_nano", "resnet_nano", "--seeds", "1"]
    monkeypatch.setattr(sys, "argv", ["transfer_table.py", *map(str, words)])
    transfer_table.main()
    assert [settings["model"] for settings in calls] == ["resnet_nano"]
    ((models, given),) = tables
    assert models == [tmp_path / "weights" / "resnet_nano"]
    assert 0 < given["minutes"] <= 7
    assert "| vit_nano | 7 | 50.00 | 50.00 |" in (tmp_path / "table" / "study.md").read_text()
    monkeypatch.setattr(sys, "argv", ["transfer_table.py", *map(str, words), "--minutes", "-1"])
    transfer_table.main()
    assert len(calls) == len(tables) == 1, "nothing starts when the time is over"


def test_a_process_per_model_gets_every_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    codes = iter([0, 3])

    def start(words: list[str], **_: Any) -> Any:
        started.append(words)
        return SimpleNamespace(wait=lambda: next(codes))

    asked: list[tuple[Any, dict[str, Any]]] = []
    monkeypatch.setattr(subprocess, "Popen", start)
    result = SimpleNamespace(summary=list)
    monkeypatch.setattr(transfer_size, "transfer_size", lambda *a, **given: asked.append((a, given)) or result)
    words = ["cifar", tmp_path, "--to", "pets", "--models", "vit_nano", "resnet_nano", "--sizes", 70, 140]
    words += ["--steps", 3, "--tune-steps", 2, "--seeds", 1]
    monkeypatch.setattr(sys, "argv", ["transfer_size.py", *map(str, words), "--together"])
    with pytest.raises(SystemExit, match="failed: resnet_nano"):
        transfer_size.main()
    assert asked.pop()[1]["minutes"] < 0, "makes the plan only"
    for model, own in zip(("vit_nano", "resnet_nano"), started, strict=True):
        monkeypatch.setattr(sys, "argv", own[2:])
        transfer_size.main()
        (data, to, models, sizes), given = asked.pop()
        assert (data, to, models, sizes) == ("cifar", "pets", [model], [70, 140])
        assert (given["steps"], given["tune"], given["seeds"]) == (3, {"steps": 2, "size": 64}, 1)
        assert 6.9 < given["minutes"] <= 7
