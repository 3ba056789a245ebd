"""What the scripts in benchmarks/ promise of being called again."""

import contextlib
import gc
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import regard
from benchmarks import detr_speed, volumes_small
from regard.errors import RunError


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
