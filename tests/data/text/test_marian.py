"""Vocabularies of stored Marian models: text is split and numbered exactly as transformers does."""

import json
import random
import sys
from pathlib import Path

import pytest

from regard.data.text import EncodedPairs, TextLoader, Tokenizer, Tokenizers, open_marian
from regard.errors import ConfigError, DataError, RunError

sentencepiece = pytest.importorskip("sentencepiece")

ENGLISH = ["Two young, White males are outside near bushes.", "Several men in hard hats are operating a giant pulley."]
GERMAN = ["Zwei junge weiße Männer sind im Freien in der Nähe.", "Mehrere Männer mit Schutzhelmen bedienen ein Gerät."]
ODD = [
    "", "   ", "Hello  world ", " ½ ﬁne ①  Ａ", "Ma\u0308nner und A\u030a", "\u1112\u1161\u11ab",
    "e\u0301\u0323 q\u0307\u0323",
    "tab\tnew\u202fspace\xa0x\u3000y", "</s> <s> <unk> <pad> a", "한국어 漢字 🍜🍜 x", "\u200bzero\u200dwidth\ufeff",
    "ﷺ ㍿ … ª²³ ﬃ Ⅷ ℃ ㎏", "A\x00B\x07C\x7f", "👨‍👩‍👧 flag 🇩🇪", "ｶﾞ ﾊﾟ ไทย ำ नमस्ते", "▁x ▁▁y", "x\u0301" * 10,
    "\r\n x", "a" * 300, "(80 %) – “no”",
]  # fmt: skip


def corpus(texts: list[str]) -> list[str]:
    """These sentences and others of made-up words with their letters, so that there is something to learn."""
    draw, parts = random.Random(0), [text[n : n + 2].strip() for text in texts for n in range(0, len(text), 2)]
    words = ["".join(draw.choices(parts, k=draw.randint(1, 4))) for _ in range(300)]
    return texts * 3 + [" ".join(draw.choices(words, k=draw.randint(2, 9))) for _ in range(300)]


def train(path: Path, texts: list[str], **options) -> Path:
    settings = {"vocab_size": 120, "model_type": "unigram", "character_coverage": 1.0, "minloglevel": 2}
    settings |= {"hard_vocab_limit": "false"} if options.get("model_type") != "bpe" else {}
    settings |= options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus(texts)), model_prefix=str(path.with_suffix("")), **settings
    )
    return path.with_suffix(".model").rename(path)


def pieces_of(path: Path) -> list[str]:
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [model.id_to_piece(n) for n in range(len(model))]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def folder(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files as an Opus-MT model has them: one vocabulary for both languages, with codes, padding last."""
    folder = tmp_path_factory.mktemp("marian")
    train(folder / "source.spm", ENGLISH, model_type=request.param)
    train(folder / "target.spm", GERMAN, model_type=request.param)
    pieces: dict[str, None] = dict.fromkeys(["</s>", "<unk>"])
    for name in ("source.spm", "target.spm"):
        pieces |= dict.fromkeys(pieces_of(folder / name))
    del pieces["<s>"]
    names = [*list(pieces)[:-7], ">>deu<<", ">>fra<<", "<pad>"]  # a few pieces have no number
    (folder / "vocab.json").write_text(json.dumps({name: n for n, name in enumerate(names)}), encoding="utf-8")
    return folder


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_bytes_stand_for_unknown_letters(tmp_path, model_type):
    """Where the model has a piece for each byte, all text comes back."""
    for name in ("source.spm", "target.spm"):
        train(tmp_path / name, ENGLISH, model_type=model_type, byte_fallback=True, vocab_size=400)
    names = ["<pad>", *pieces_of(tmp_path / "source.spm")]
    (tmp_path / "vocab.json").write_text(json.dumps({name: n for n, name in enumerate(names)}), encoding="utf-8")
    tokenizer = open_marian(tmp_path).source
    text = "Zwei Männer essen 한국어 🍜."
    ids = tokenizer.encode([text])[0]
    assert names.index("<0xED>") in ids
    assert tokenizer.unknown not in ids
    assert tokenizer.decode(ids) == text


@pytest.mark.filterwarnings("ignore:Recommended")
def test_numbers_are_marians(folder):
    from transformers import MarianTokenizer

    theirs = MarianTokenizer(
        str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"), source_lang="en"
    )
    ours = open_marian(folder)
    assert ours.shared
    assert (ours.source.pad, ours.source.start, ours.source.end, ours.source.unknown) == (
        theirs.pad_token_id, theirs.pad_token_id, theirs.eos_token_id, theirs.unk_token_id,
    )  # fmt: skip
    assert ours.source.size == theirs.vocab_size
    assert ours.source.codes == (">>deu<<", ">>fra<<")
    # Names of special tokens are text here; there, some of them are found in it.
    texts = [text for text in [*ENGLISH, *GERMAN, *ODD, *corpus(ENGLISH)[-50:]] if "<" not in text and text.strip()]
    texts += [">>deu<< Two men.", ">>fra<<Two men."]
    assert ours.source.encode(texts, end=True) == theirs(texts)["input_ids"]
    targets = [text for text in [*texts, *corpus(GERMAN)[-50:]] if ">>" not in text]
    numbers = ours.target.encode(targets, end=True)
    assert numbers == theirs(text_target=targets)["input_ids"]
    seen = [row for row in numbers if ours.target.unknown not in row]
    assert len(seen) > 20
    for row in seen:
        assert ours.target.decode(row) == theirs.decode(row, skip_special_tokens=True)


def test_a_marian_vocabulary_is_a_tokenizer_like_any_other(folder, tmp_path):
    made = open_marian(folder)
    made.save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source.json", "target.json"]
    loaded = Tokenizers.load(tmp_path)
    assert loaded == made
    assert loaded.source.encode(ENGLISH) == made.source.encode(ENGLISH)
    text = "Two men."
    ids = made.source.encode([f">>deu<< {text}"], end=True)[0]
    pieces = made.source.pieces(ids)
    assert pieces[0].text == ">>deu<<"
    assert pieces[-1].text == "</s>"
    assert "".join(p.text for p in pieces[1:-1]) == text.replace(" ", "")
    assert all(p.text == text[p.start : p.end] for p in pieces[1:-1])
    pairs = EncodedPairs(made, ENGLISH, GERMAN)
    for batch in TextLoader(pairs, [0, 1], 400).epoch(0):
        assert (batch.target[:, 0] == made.target.pad).all(), "Marian starts with padding"
        assert batch.tokens == sum(len(row) for row in made.target.encode(GERMAN, end=True))


@pytest.mark.parametrize("model", [{}, {"spm": ""}, {"spm": "!"}, {"spm": "AAAA"}, {"spm": 7}, ["spm"]], ids=str)
def test_a_damaged_tokenizer_is_refused(folder, tmp_path, model):
    open_marian(folder).source.save(tmp_path / "source.json")
    contents = json.loads((tmp_path / "source.json").read_text(encoding="utf-8"))
    (tmp_path / "source.json").write_text(json.dumps(contents | {"model": model}))
    with pytest.raises(RunError, match="no tokenizer"):
        Tokenizer.load(tmp_path / "source.json")


def test_without_the_package_the_install_command_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ConfigError, match="sentencepiece is not installed") as error:
        open_marian(folder)
    assert error.value.do == "pip install 'regard[text]'"


def test_names_of_special_tokens_in_a_text_are_text(folder):
    made = open_marian(folder)
    ids = made.source.encode(["</s> <pad> >>fra<< a"])[0]
    assert not {made.source.end, made.source.pad, made.source.vocabulary.index(">>fra<<")} & set(ids)


def test_not_even_where_all_of_their_letters_are_unknown(folder, tmp_path):
    """A run of unknown letters is looked up by name, as Marian does; the names of special tokens are not."""
    train(tmp_path / "source.spm", ["오늘 날씨가 좋다", "그렇지 않은가"], vocab_size=40)
    (tmp_path / "target.spm").write_bytes((folder / "target.spm").read_bytes())
    (tmp_path / "vocab.json").write_bytes((folder / "vocab.json").read_bytes())
    made = open_marian(tmp_path).source
    assert made.encode(["날 </s> 날 ä"])[0].count(made.unknown) >= 3
    assert made.end not in made.encode(["날 </s> 날 ä"])[0]
    letter = next(name for name in made.vocabulary if len(name) == 1 and name.isalpha())
    assert made.encode([letter])[0][-1] == made.vocabulary.index(letter)


def test_missing_and_wrong_files_are_named(folder, tmp_path):
    for name in ("source.spm", "vocab.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(DataError, match=r"target.spm missing"):
        open_marian(tmp_path)
    (tmp_path / "target.spm").write_bytes((folder / "target.spm").read_bytes())
    good = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    for bad, words in (
        ([1, 2], "no table"),
        ({"a": "b"}, "no table"),
        (good | {"</s>": 1}, "gaps, or one is given twice"),
        ({name: n for n, name in enumerate(list(good)[:-1])}, "no <pad>"),
    ):
        (tmp_path / "vocab.json").write_text(json.dumps(bad))
        with pytest.raises(DataError, match=words):
            open_marian(tmp_path)
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(RunError, match="not a JSON file"):
        open_marian(tmp_path)


def test_a_damaged_or_large_model_is_refused(folder, tmp_path, monkeypatch):
    for name in ("source.spm", "target.spm", "vocab.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    whole = (folder / "source.spm").read_bytes()
    for contents in (b"", whole[:-1], whole[: len(whole) // 2], b"version https://git-lfs", bytes(1000)):
        (tmp_path / "source.spm").write_bytes(contents)
        with pytest.raises(DataError, match="SentencePiece model"):
            open_marian(tmp_path)
    (tmp_path / "source.spm").write_bytes(bytes(2**14))
    monkeypatch.setattr("regard.data.text.marian._MAX_FILE", 2**14 - 1)
    with pytest.raises(DataError, match="16,384 bytes; at most 16,383"):
        open_marian(tmp_path)
