"""Translators that start from trained weights, and tokenizers that others have trained."""

import json
import shutil
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.data.text import Tokenizers, open_tokenizer, train_tokenizers
from regard.errors import ConfigError, DataError
from regard.networks.transformer.network import build
from regard.tasks.translation.transfer import known_rows, open_text_start
from regard.weights import save_marian
from tests.conftest import write_pairs
from tests.data.text.test_existing import write_bert
from tests.data.text.test_marian import ENGLISH, GERMAN, pieces_of, train
from tests.loading import load_translator

SHAPE: dict[str, Any] = {"model": "transformer_nano", "width": 32, "depth": 1, "heads": 2, "mlp": 32}
SHORT: dict[str, Any] = {"batch_tokens": 256, "explain": 0, "quiet": True, "device": "cpu"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("transfer")


@pytest.fixture(scope="module")
def data(place):
    return write_pairs(place / "data", 120)


@pytest.fixture(scope="module")
def first(place, data):
    return regard.train(data, out=place / "first", vocabulary=300, steps=12, **SHAPE, **SHORT)


def start_of(run, **settings):
    """The network before its first step: so small a rate moves nothing."""
    return load_translator(
        regard.train(out=run, lr=1e-30, ema=0.0, steps=1, weight_decay=0.0, **settings, **SHORT).path
    )


def test_kept_tokens_keep_the_whole_network(place, data, first):
    model, held = (
        start_of(place / "kept", data=data, weights=str(first.path), tokenizer="keep"),
        load_translator(first.path),
    )
    assert model.tokenizers == held.tokenizers
    for name, tensor in held.model.state_dict().items():
        torch.testing.assert_close(model.model.state_dict()[name], tensor, msg=name)
    stored = json.loads((place / "kept" / "transfer.json").read_text())
    assert stored["tokens"]["target"] == {"kept": 300, "new": 0, "dropped": 0, "some_new": []}
    lines = {part: (data / f"{part}.en").read_text().splitlines() for part in ("train", "val", "test")}
    assert stored["seen_in_test"] == sum(line in {*lines["train"], *lines["val"]} for line in lines["test"])
    config = json.loads((place / "kept" / "config.json").read_text())["settings"]
    assert config["model"]["width"] == {"value": 32, "origin": "weights"}
    assert config["general"]["recipe"]["value"] == "translate_finetune"


def test_other_tokens_share_the_rows_of_those_with_the_same_bytes(place, data, first):
    settings = {"data": data, "weights": str(first.path), "tokenizer": "wordpiece", "vocabulary": 200}
    model, held = start_of(place / "adapted", **settings), load_translator(first.path)
    new, old = model.tokenizers.target, held.tokenizers.target
    rows, theirs = (m.model.state_dict()["embedding.weight"] for m in (model, held))
    known = dict(zip(*(numbers.tolist() for numbers in known_rows(old, new)), strict=True))
    for own in range(new.size):
        text = new.decode([3, own]) if own > 3 else ""
        assert (own in known) == torch.equal(rows[own], theirs[known.get(own, 0)])
        if own in known and own > 3:
            assert old.decode([3, known[own]]) == text, "the same text in both"
    assert [known[n] for n in range(4)] == [0, 1, 2, 3], "special tokens by their roles"
    stored = json.loads((place / "adapted" / "transfer.json").read_text())["tokens"]["target"]
    assert (stored["kept"], stored["new"], stored["dropped"]) == (len(known), new.size - len(known), 300 - len(known))
    assert 0 < stored["new"] < new.size
    assert set(stored["some_new"]) <= set(new.vocabulary)
    for name, tensor in held.model.state_dict().items():
        if "embedding" not in name:
            torch.testing.assert_close(model.model.state_dict()[name], tensor, msg=name)


def test_a_start_beats_chance_and_resumes_the_same(place, data, first):
    settings = {"weights": str(first.path), "tokenizer": "keep", "steps": 6, **SHORT}
    run = regard.train(data, out=place / "whole", **settings)
    fresh = regard.train(data, out=place / "fresh", vocabulary=300, steps=6, lr=3e-4, **SHAPE, **SHORT)
    loss, chance = (float(r.read_rows("metrics.csv")[0]["train_loss"]) for r in (run, fresh))
    assert loss < chance
    # Stopped before its first state: the weights and tokens are read again, those of the run's folder.
    shutil.copytree(run.path, place / "again")
    for name in ("report.html", "summary.json", "checkpoints/state.safetensors", "checkpoints/state"):
        (place / "again" / name).unlink(missing_ok=True)
    again = regard.resume(place / "again", quiet=True)
    for which in ("last", "best"):
        one, other = (load_file(r.path / "checkpoints" / f"{which}.safetensors") for r in (run, again))
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_marian_model_is_a_start(place, data):
    torch.manual_seed(0)
    folder = place / "marian"
    folder.mkdir()
    spm = [train(folder / f"{side}.spm", texts) for side, texts in (("source", ENGLISH), ("target", GERMAN))]
    pieces = sorted({piece for file in spm for piece in pieces_of(file)} - {"<unk>", "</s>", "<s>"})
    names = ["</s>", "<unk>", *pieces, "<pad>"]
    save_marian(
        build(
            "transformer_nano", vocabulary=len(names), width=32, depth=1, heads=2, mlp=32, padding=len(names) - 1,
            start=len(names) - 1, end=0, output_bias=True, positions="halves", eps=1e-5, activation="swish", length=64,
        ),
        folder,
    )  # fmt: skip
    (folder / "vocab.json").write_text(json.dumps({name: n for n, name in enumerate(names)}))
    kept = start_of(place / "from_marian", data=data, weights=str(folder), tokenizer="keep")
    assert kept.tokenizers.target.kind == "sentencepiece"
    adapted = start_of(place / "from_marian_bpe", data=data, weights=str(folder), vocabulary=280)
    start = open_text_start(str(folder), None, {})
    own, theirs = known_rows(start.tokenizers.target, adapted.tokenizers.target)
    assert len(own) > 10
    rows = adapted.model.state_dict()["embedding.weight"]
    torch.testing.assert_close(rows[own], start.checkpoint.weights["embedding.weight"][theirs])
    bias = adapted.model.state_dict()["output_bias"]
    torch.testing.assert_close(bias[own], start.checkpoint.weights["output_bias"][theirs])


def test_a_vocabulary_of_berts_trains(place, data):
    run = regard.train(data, out=place / "bert", tokenizer=str(write_bert(place)), steps=2, **SHAPE, **SHORT)
    model = load_translator(run.path)
    assert model.tokenizers == Tokenizers.load(run.path / "tokenizers")
    assert model.model.config.target_words == 30_522
    assert (model.model.config.start, model.model.config.end) == (101, 102)
    assert isinstance(model.predict("one two").text, str)


def test_two_vocabularies_keep_their_own_rows():
    old = train_tokenizers(["one two"], ["eins zwei"], 280, joint=False)
    own, theirs = known_rows(old.source, train_tokenizers(["one three"], ["eins"], 280, joint=False).source)
    assert len(own) == len(theirs) < 280
    codes = [train_tokenizers(["<de> a"], ["b"], 270, codes=["<de>", *more]).source for more in ([], ["<ko>"])]
    pairs = dict(zip(*(numbers.tolist() for numbers in known_rows(*codes)), strict=True))
    assert pairs[codes[1].vocabulary.index("<de>")] == codes[0].vocabulary.index("<de>")
    assert codes[1].vocabulary.index("<ko>") not in pairs


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"tokenizer": "keep"}, ConfigError, "give them by --from"),
        ({"tokenizer": "bep"}, DataError, "neither a kind that can be trained nor a file"),
        ({"weights": "FIRST", "width": 64}, ConfigError, "width is 32 in the weights, not 64"),
        ({"weights": "FIRST", "model": "rnn_nano"}, ConfigError, "the weights are of transformer_nano"),
        ({"weights": "FIRST", "tokenizer": "keep", "vocabulary": 400}, ConfigError, "leave --vocabulary out"),
        ({"weights": "FIRST", "tokenizer": "keep", "joint": False}, ConfigError, "leave --joint out"),
        ({"weights": "FIRST", "joint": False, "vocabulary": 280}, ConfigError, "need one vocabulary"),
    ],
)
def test_what_cannot_be_is_refused_before_a_folder_is_made(place, data, first, settings, error, says):
    settings = {name: str(first.path) if value == "FIRST" else value for name, value in settings.items()}
    with pytest.raises(error, match=says):
        regard.train(data, out=place / "none", **settings, **SHORT)
    assert not (place / "none").exists()


def test_one_file_serves_both_languages(tmp_path):
    both = open_tokenizer(write_bert(tmp_path))
    assert both.shared
    assert both.source is both.target
