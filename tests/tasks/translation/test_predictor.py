"""A translator: a stored Opus-MT model as transformers would run it, and the mean of a run's last epochs."""

import json
import re
import shutil
from typing import Any

import pytest
import torch

import regard
from regard.errors import RunError
from regard.explain import record_words
from regard.networks.transformer.network import Transformer
from regard.tasks.translation.evaluation import make_search
from regard.weights import average, save_marian
from tests.conftest import SMALL_TRANSLATOR, write_pairs
from tests.data.text.test_marian import ENGLISH, GERMAN, folder  # noqa: F401
from tests.loading import create_translator, load_translator


@pytest.mark.filterwarnings("ignore:Recommended")
def test_a_stored_opus_mt_model_translates_as_transformers_does(folder, tmp_path):  # noqa: F811
    """The whole way: text, SentencePiece, numbers, network, search, numbers, text."""
    import transformers

    files = [str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")]
    tokenizer: Any = transformers.MarianTokenizer(*files, source_lang="en")
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=tokenizer.vocab_size, decoder_vocab_size=tokenizer.vocab_size, d_model=32, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
        max_position_embeddings=128, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id, forced_eos_token_id=None, scale_embedding=True,
        activation_function="swish", init_std=0.5,
    )  # fmt: skip
    theirs: Any = transformers.MarianMTModel._from_config(config, attn_implementation="eager").eval()
    theirs.save_pretrained(tmp_path)
    for name in ("source.spm", "target.spm", "vocab.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    ours = load_translator(tmp_path)
    compared = 0
    for text in [*ENGLISH, *GERMAN]:
        numbers = tokenizer([text], return_tensors="pt")["input_ids"]
        limit = numbers.shape[1] + 50
        with torch.inference_mode():
            found = theirs.generate(
                numbers,
                num_beams=1,
                do_sample=False,
                max_new_tokens=limit - 1,
                bad_words_ids=[[tokenizer.pad_token_id]],
            )[0, 1:].tolist()
        mine = "".join(ours.stream(text))
        wanted = ours.tokenizers.target.decode(found)
        assert mine[: len(wanted)] == wanted[: len(mine)]  # where one may be longer, up to there
        compared += len(wanted)
    assert compared > 100


@pytest.fixture
def opus(folder, tmp_path):  # noqa: F811
    """A folder as an Opus-MT model has it, with random weights."""
    pieces = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    model = create_translator(
        "transformer_nano",
        vocabulary=len(pieces),
        width=16,
        depth=1,
        heads=2,
        mlp=16,
        padding=len(pieces) - 1,
        start=len(pieces) - 1,
        end=0,
        positions="halves",
        eps=1e-5,
        output_bias=True,
    )
    assert isinstance(model, Transformer)
    save_marian(model, tmp_path / "opus")
    for name in ("source.spm", "target.spm", "vocab.json"):
        shutil.copy(folder / name, tmp_path / "opus")
    return tmp_path / "opus"


def test_commands_on_an_opus_mt_folder(opus, pairs_folder, translation_run, tmp_path, cli):
    code, _, error = cli("explain", opus, "Two men", "--out", tmp_path / "words.png")
    assert code == 0, error
    code, _, error = cli("eval", opus, pairs_folder, "--split", "test")
    assert (code, "give --source and --target" in error) == (2, True)
    code, said, error = cli(
        "eval", opus, pairs_folder, "--split", "test", "--source", "en", "--target", "de", "--beam-size", 1
    )
    assert code == 0, error
    assert "bleu" in said
    (opus / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "de"}')
    assert load_translator(opus).languages == ("en", "de")
    for words in (("compare", opus, translation_run.path), ("compare", translation_run.path, opus), ("report", opus)):
        code, _, error = cli(*words)
        assert code == 2, words
        assert "the folder holds weights of marian, not a run" in error


def test_the_mean_of_the_last_epochs_is_a_translator_too(tmp_path):
    data = write_pairs(tmp_path / "data", 150)
    run = regard.train(data, **SMALL_TRANSLATOR, epochs=4, keep=3, out=tmp_path / "run")
    kept = sorted((run.path / "checkpoints").glob("epoch-*.safetensors"))
    assert len(kept) == 3
    expected = average([load_translator(path).model.state_dict() for path in kept[-2:]])
    made = load_translator(run.path, average=2).model.state_dict()
    assert all(torch.equal(made[name], expected[name]) for name in expected)
    with pytest.raises(RunError, match="keeps the weights of 3 epochs"):
        regard.load(run.path, average=5)


@pytest.fixture
def other_search(translation_run, tmp_path):
    """The run, as if it had been trained with another search."""
    shutil.copytree(translation_run.path, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["settings"]["task"]["beam_size"]["value"] = 2
    config["settings"]["task"]["length_penalty"]["value"] = 1.5
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    return tmp_path / "run"


def test_the_runs_own_search_is_the_default_and_flags_override_it(other_search, pairs_folder, cli, monkeypatch):
    asked: list[tuple[int, float]] = []

    def recorded(model, device, *, beams, penalty, **options):
        asked.append((beams, penalty))
        return make_search(model, device, beams=beams, penalty=penalty, **options)

    def explained(*args, beams, penalty):
        asked.append((beams, penalty))
        return record_words(*args, beams=beams, penalty=penalty)

    monkeypatch.setattr("regard.tasks.translation.predictor.make_search", recorded)
    monkeypatch.setattr("regard.tasks.translation.evaluation.make_search", recorded)
    monkeypatch.setattr("regard.tasks.translation.predictor.record_words", explained)
    flags = ("--beam-size", 1, "--length-penalty", 0)
    for words in (("predict", other_search, "one two"), ("eval", other_search, pairs_folder, "--quiet")):
        assert [cli(*words)[0], cli(*words, *flags)[0]] == [0, 0]
    load_translator(other_search / "checkpoints" / "last.safetensors").explain("one two")
    assert asked == [(2, 1.5), (1, 0.0), (2, 1.5), (1, 0.0), (2, 1.5)]


def test_a_table_is_translated_in_the_direction_of_the_run(translation_run, pairs_folder, tmp_path, cli):
    """Whatever the order of its columns; where they have other names, these are asked for."""
    files = [pairs_folder / "test.de", pairs_folder / "test.en"]
    texts = list(zip(*(file.read_text(encoding="utf-8").splitlines() for file in files), strict=True))

    def table(*names: str) -> str:
        file = tmp_path / f"{names[0]}.tsv"
        file.write_text("\n".join("\t".join(row) for row in (names, *texts)), encoding="utf-8")
        return str(file)

    for data in (table("de", "en"), table("target", "source")):
        figures = regard.evaluate(translation_run.path, data, split="all", quiet=True).figures
        assert figures["exact_match"].value > 0.9
    other = table("german", "english")
    code, _, err = cli("eval", translation_run.path, other, "--split", "all")
    assert code == 2
    assert "say which of german, english are meant by --source and --target" in err
    flags = ("--split", "all", "--source", "english", "--target", "german")
    code, out, _ = cli("eval", translation_run.path, other, *flags)
    assert code == 0
    assert re.search(r"exact_match +(1\.0|0\.9)", out)
