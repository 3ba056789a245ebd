"""A model is refused by what it predicts, before data is read, by every command that needs another kind."""

import pytest

import regard
from regard import tasks
from regard.errors import ConfigError, RunError
from regard.networks.vit.config import ViTConfig
from tests.weights.parity import save_own


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    path = tmp_path_factory.mktemp("detector") / "detr.safetensors"
    save_own(regard.create("detr_nano", classes=3), path)
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("train", "digits", "--model", "detr_nano"),
        ("train", "digits", "--model", "detr_r50", "--seeds", "2"),
        ("pretrain", "digits", "--model", "detr_nano"),
        ("study", "data-size", "digits", "--models", "detr_nano"),
    ],
)
def test_a_detector_is_not_trained_on_labels(words, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said, error = cli(*words)
    assert code == 2
    assert "it takes images and predicts boxes" in error
    assert "reading" not in said + error
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_no_task_trains_is_refused_by_what_it_predicts(monkeypatch):
    monkeypatch.setattr(ViTConfig, "predicts", "poems")
    with pytest.raises(ConfigError, match="vit_nano cannot be trained yet: it predicts poems"):
        tasks.choose("digits", {"model": "vit_nano"})
    with pytest.raises(RunError, match="no task uses vit_nano yet: it predicts poems"):
        tasks.for_weights("", "vit_nano")


@pytest.mark.parametrize("words", [("inspect",), ("probe", "digits")])
def test_a_detector_is_refused_where_classes_are_needed(words, detector, cli):
    command, *rest = words
    code, said, error = cli(command, detector, *rest)
    assert code == 2
    assert "predicts boxes" in error or "not for networks that predict boxes" in error
    assert "damaged" not in error
    assert "reading" not in said + error


def test_a_classifier_does_not_start_from_a_detector(detector, tmp_path):
    with pytest.raises(
        RunError, match="detr_nano takes images and predicts boxes; here a network must predict classes"
    ):
        regard.train("digits", weights=detector, out=tmp_path / "run", quiet=True)


def test_what_works_with_a_detector(detector, cli, tmp_path):
    code, said, _ = cli("models")
    assert code == 0
    assert "detr_nano" in said
    code, _, error = cli("convert", detector, tmp_path / "out.safetensors", "--to", "detr")
    assert code == 0, error
    assert regard.create(weights=tmp_path / "out.safetensors", quiet=True).config.queries == 20
