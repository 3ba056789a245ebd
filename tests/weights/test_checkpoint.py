"""Checkpoints of ours that were tampered with: good files in which one thing is changed."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import regard
from regard.config import to_dict
from regard.errors import RegardError, RunError
from regard.weights.checkpoint import FORMAT, Checkpoint, save_checkpoint
from tests.loading import load_classifier
from tests.weights.parity import save_own
from tests.weights.test_files import model


def own_file(path: Path, state=None, **change) -> Path:
    """A good checkpoint of ours, but for its tensors or for entries of its header; `config` changes fields of it."""
    save_own(model(), path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    about = json.loads(metadata["regard"])
    if isinstance(change.get("config"), dict):
        change["config"] = about["config"] | change["config"]
    header = metadata | {"regard": json.dumps(about | change)}
    save_file(load_file(path) if state is None else state, path, metadata=header)
    return path


NAMED = [f"class {n}" for n in range(5)]
LIES = (
    ({"config": {"depth": 10**9}}, "settings and weights do not fit together"),
    ({"config": {"classes": 6}}, "settings and weights do not fit together"),
    ({"classes": NAMED[:4]}, "settings and weights do not fit together"),
    ({"classes": [*NAMED[:4], "class 0"]}, "two classes are called 'class 0'"),
    ({"config": {"width": 10**30}}, "its settings are not valid"),
    ({"config": {"width": 128}}, r"class_token: \(1, 128\) here, \(1, 64\) in the file"),
    ({"config": {"depth": 1}}, r"blocks\.1\.attention\.out\.bias: not in the model"),
    ({"config": {"depth": 3}}, r"blocks\.2\.norm1\.weight: not in the file"),
    ({"config": {"size": [16, 16]}}, r"positions\.table: \(5, 64\) here, \(10, 64\) in the file"),
    ({"config": {"patch": [0, 8]}}, "patch=.* does not fit"),
    ({"config": {"heads": 5}}, "heads"),
    ({"config": {"eps": 0.0}}, "eps=0.0 is out of range"),
    ({"config": {"eps": 10**400}}, "eps cannot be"),
    ({"config": {"colour": 1}}, "has no field 'colour'"),
    ({"config": [1]}, "the checkpoint is damaged"),
    ({"model": "vit_none"}, "'vit_none'"),
    ({"task": "soup"}, "the checkpoint is damaged: there is no task called 'soup'"),
    ({"preparation": {"size": "x"}}, r"Preparation\.size cannot be 'x'"),
)


def test_a_checkpoint_of_ours_is_good_before_it_lies(tmp_path):
    assert load_classifier(own_file(tmp_path / "w.safetensors"), device="cpu").model.config.depth == 2


@pytest.mark.parametrize(("change", "message"), LIES, ids=str)
def test_a_checkpoint_of_ours_whose_header_lies(change, message, tmp_path):
    with pytest.raises(RegardError, match=message):
        regard.load(own_file(tmp_path / "w.safetensors", **change))


def test_a_checkpoint_of_ours_whose_header_is_no_json(tmp_path):
    for text in ("[" * 100_000, '{"config": ' + "9" * 5000 + "}", "{"):
        header = {"format": FORMAT, "regard": text}
        save_file({"a": torch.zeros(2)}, tmp_path / "w.safetensors", metadata=header)
        with pytest.raises(RunError, match="the checkpoint is damaged"):
            regard.load(tmp_path / "w.safetensors")


def test_a_checkpoint_of_another_version_of_ours_is_said_to_be_one(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "w.safetensors", metadata={"format": "regard-1", "regard": "{}"})
    with pytest.raises(RunError, match=rf"not a checkpoint of this version \({FORMAT}\)"):
        regard.load(tmp_path / "w.safetensors")


def test_a_width_that_the_file_does_not_have_is_refused_before_memory_is_asked_for(tmp_path):
    """The head of zeros that a file without one gets would be 120 TB."""
    names = [str(n) for n in range(100_000)]
    state = {key: tensor for key, tensor in model().state_dict().items() if not key.startswith("head.")}
    lie = {"config": {"width": 300_000_000, "classes": len(names)}, "classes": names}
    with pytest.raises(RunError, match=r"\(300000000,\) here, \(64,\) in the file"):
        regard.load(own_file(tmp_path / "w.safetensors", state, **lie))


LACKING = {
    "no positions": ({"positions.table": None}, {"size": 40}, r"positions\.table: not in the file"),
    "few positions": ({"positions.table": 4}, {"size": 40}, r"positions\.table: \(10, 64\) here, \(4, 64\)"),
    "no kernel": ({"patches.project.weight": None}, {"channels": 1}, r"patches\.project\.weight: not in the file"),
}


@pytest.mark.parametrize("kind", LACKING)
def test_a_checkpoint_of_ours_that_lacks_what_is_to_be_changed(kind, tmp_path):
    kept, fields, message = LACKING[kind]
    state = model().state_dict()
    for key, rows in kept.items():
        state[key] = state[key][: rows or 0].clone()
    path = own_file(tmp_path / "w.safetensors", {k: t for k, t in state.items() if t.numel()})
    with pytest.raises(RunError, match=message):
        regard.create(weights=path, **fields)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_quantised_checkpoint_of_ours_is_refused(dtype, tmp_path):
    state = model().state_dict()
    path = own_file(tmp_path / "w.safetensors", state | {"norm.weight": state["norm.weight"].to(dtype)})
    with pytest.raises(RunError, match=r"1 weights are not floating-point.*norm\.weight"):
        regard.load(path)


def test_a_count_in_a_checkpoint_of_ours_is_no_quantised_weight(tmp_path):
    """The convolutional stem's batch norms count their batches."""
    ours = model(stem="conv")
    assert any(not tensor.is_floating_point() for tensor in ours.state_dict().values())
    save_own(ours, tmp_path / "w.safetensors")
    assert load_classifier(tmp_path / "w.safetensors", device="cpu").model.config.stem == "conv"


@pytest.mark.parametrize(("name", "field"), [("transformer_nano", "depth"), ("transformer_nano", "decoder_depth"),
                                             ("rnn_nano", "depth")])  # fmt: skip
def test_a_translator_of_more_blocks_than_tensors_is_refused_before_it_is_built(tmp_path, monkeypatch, name, field):
    translator = regard.create(name, vocabulary=50, width=16)
    config = to_dict(translator.config) | {field: 200_000}
    about = Checkpoint(name, config, weights=translator.state_dict(), task="translation")
    save_checkpoint(tmp_path / "w.safetensors", about)
    monkeypatch.setattr("regard.registry.build", lambda *_, **__: pytest.fail("built"))
    with pytest.raises(RunError, match="settings and weights do not fit together"):
        regard.load(tmp_path / "w.safetensors")
