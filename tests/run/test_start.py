"""What a run that is asked for may not be: refused before anything is written."""

import itertools
import os
import shutil

import pytest
import torch

import regard
from regard.errors import ConfigError, RunError
from regard.weights import Run
from tests.conftest import SMALL_TRANSLATOR
from tests.training.test_training import quick


def test_resuming_refuses_what_would_be_ignored(run_folder, picture_folder):
    with pytest.raises(ConfigError, match="resume needs the run folder"):
        regard.train("digits", resume=True, quiet=True)
    with pytest.raises(ConfigError, match="begun with lr="):
        regard.train("digits", out=run_folder, resume=True, lr=0.5, quiet=True)
    with pytest.raises(RunError, match="the data has changed"):
        regard.train(picture_folder, out=run_folder, resume=True, quiet=True)
    with pytest.raises(ConfigError, match="a run of classification, not of translation"):
        regard.train("dates", out=run_folder, resume=True, quiet=True)
    with pytest.raises(ConfigError, match="a dry run resumes nothing"):
        regard.train("digits", out=run_folder, resume=True, dry_run=True, quiet=True)


def test_a_dry_run_of_several_seeds_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="a dry run is of one seed"):
        regard.train("digits", seeds=2, dry_run=True, out=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()


class Killed(BaseException):
    """Stands for a process that is no more."""


def killed_while_writing(monkeypatch, number: int, start) -> bool:
    """Start a run that is gone in the middle of its file `number`, and cleans up nothing; whether it got so far."""
    counter, replace, clear, rmtree, dead = itertools.count(), os.replace, Run.clear, shutil.rmtree, []

    def dying(source, target):
        if next(counter) == number:
            dead.append(1)
            raise Killed
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        patch.setattr(shutil, "rmtree", lambda path, **_: None if dead else rmtree(path))
        patch.setattr(Run, "clear", lambda run, names: None if dead else clear(run, names))
        patch.setattr("regard.run.runner.train", lambda *_: pytest.fail("the set-up is over"))
        try:
            start()
        except Killed:
            return True
        except pytest.fail.Exception:
            return False
    return False


@pytest.mark.parametrize("kind", ["images", "text"])
def test_killed_anywhere_in_its_set_up_the_same_command_starts_anew(
    picture_folder, pairs_folder, tmp_path, monkeypatch, kind
):
    def start(**more):
        if kind == "images":
            return quick(picture_folder, tmp_path / "run", epochs=1, **more)
        return regard.train(pairs_folder, **SMALL_TRANSLATOR | {"explain": 0}, epochs=1, out=tmp_path / "run", **more)

    number = 0
    while killed_while_writing(monkeypatch, number, start):
        assert list((tmp_path / "run").rglob("*.regard-part")), "as a killed process leaves it"
        with pytest.raises(RunError, match="not empty"):
            start()
        assert not killed_while_writing(monkeypatch, 99, lambda: start(resume=True)), "set up anew"
        assert not list((tmp_path / "run").rglob(".*")), "nothing is left of it"
        assert Run.open(tmp_path / "run").read_config()
        shutil.rmtree(tmp_path / "run")
        number += 1
    assert number == 5  # command, environment, data, splits, settings


def test_a_set_up_that_fails_leaves_nothing(picture_folder, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("regard.tasks.images.ImageTask.write", full)
        with pytest.raises(RunError, match="No space left"):
            quick(picture_folder, tmp_path / "run", epochs=1)
    assert list((tmp_path / "run").iterdir()) == []
    assert quick(picture_folder, tmp_path / "run", epochs=1).read_json("summary.json")


def test_a_rehearsal_validates_as_training_does_without_compiling(picture_folder, tmp_path, monkeypatch):
    """Compiling would count as the time of each batch, and `--minutes` would find that no epoch fits."""
    compiled = list[object]()

    def backend(graph, inputs):
        compiled.append(graph)
        return graph

    def figures(*_):
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
        return {"accuracy": 0.5, "loss": 1.0}

    monkeypatch.setattr("regard.tasks.classification.task.quick_figures", figures)
    regard.train(picture_folder, recipe="plain", model="vit_nano", depth=1, dry_run=True, out=tmp_path / "run")
    assert not compiled
