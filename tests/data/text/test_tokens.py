"""Tokenizers give text back as it was, are learnt the same every time, and say where their tokens lie."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from regard.data.text import Tokenizer, Tokenizers, open_pairs, train_tokenizer, train_tokenizers
from regard.errors import ConfigError, DataError, RunError
from tests.data.text.test_pairs import MULTI30K, needs_multi30k

TEXTS = [
    "Zwei junge weiße Männer sind im Freien.",
    "Two young, White males don't wait outside.",
    "오늘 날씨가 좋다, 그렇지?",
    "  Two  spaces\u202fand a narrow one ",
    "##no ▁mark <s> </s> <pad> <unk>",
    "x² − 1 = 0; “Grüße” – 🍜!",
] * 3
SIZES = {"bpe": 400, "wordpiece": 260}


@pytest.fixture(scope="module", params=["bpe", "wordpiece"])
def tokenizer(request) -> Tokenizer:
    return train_tokenizer(TEXTS, SIZES[request.param], request.param)


def test_text_comes_back_as_it_was(tokenizer):
    for text, ids in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        exact = text if tokenizer.kind == "bpe" else text.replace("▁", " ")
        assert tokenizer.decode(ids) == exact
        assert not {tokenizer.pad, tokenizer.start, tokenizer.end, tokenizer.unknown} & set(ids), "names mean nothing"


def test_bpe_knows_every_text():
    tokenizer = train_tokenizer(["only a few letters"], 270)
    for text in ("漢字", "\x00\x7f\u2028", "Ä🍜\U0010ffff", " ", ""):
        ids = tokenizer.encode([text])[0]
        assert tokenizer.decode(ids) == text
        assert tokenizer.unknown not in ids


def test_half_a_character_is_an_error_that_says_which_text(tokenizer):
    with pytest.raises(DataError, match="text 2 is not Unicode"):
        tokenizer.encode(["fine", "caf\udce9"])


def test_wordpiece_says_what_it_does_not_know():
    tokenizer = train_tokenizer(["a few letters"], 60, "wordpiece")
    ids = tokenizer.encode(["a 한국 letter"])[0]
    assert tokenizer.unknown in ids
    assert tokenizer.decode(ids) == "a ⁇ letter"


def test_start_end_and_what_follows(tokenizer):
    plain, marked = (tokenizer.encode(["Zwei Männer"], start=s, end=s)[0] for s in (False, True))
    assert marked == [tokenizer.start, *plain, tokenizer.end]
    after = tokenizer.encode(["wait"])[0]
    assert tokenizer.decode([*marked, *after, tokenizer.pad]) == "Zwei Männer", "nothing is said after the end"


def test_numbers_are_read_digit_by_digit(tokenizer):
    trained = train_tokenizer(["in 1984 and 1985, 1984 times"] * 9, 300, tokenizer.kind)
    assert [p.text for p in trained.pieces(trained.encode(["1984"])[0]) if p.text] == list("1984")


def test_both_spellings_of_a_letter_are_one(tokenizer):
    assert tokenizer.encode(["Ma\u0308nner"]) == tokenizer.encode(["Männer"])


def test_the_library_decodes_alike(tokenizer):
    from tokenizers import decoders

    if tokenizer.kind == "bpe":
        tokenizer._engine.decoder = decoders.ByteLevel()
        for ids in tokenizer.encode(TEXTS):
            assert tokenizer._engine.decode(ids).removeprefix(" ") == tokenizer.decode(ids)


def test_pieces_cover_the_text_and_join_to_words(tokenizer):
    text = "Zwei junge, weiße don't 날씨"
    ids = tokenizer.encode([text], start=True, end=True)[0]
    pieces = tokenizer.pieces([*ids, tokenizer.pad])
    assert len(pieces) == len(ids) + 1
    assert [p.text for p in (pieces[0], *pieces[-2:])] == ["<s>", "</s>", "<pad>"]
    assert all(p.start == p.end and p.word == -1 for p in (pieces[0], *pieces[-2:]))
    inner = pieces[1:-2]
    assert all(p.text == text[p.start : p.end] for p in inner)
    covered = {at for p in inner for at in range(p.start, p.end)}
    assert {at for at, c in enumerate(text) if c != " "} == covered
    words = ["Zwei", "junge", ",", "weiße", "don't", "날씨"]
    for number, word in enumerate(words):
        own = [p for p in inner if p.word == number]
        assert text[min(p.start for p in own) : max(p.end for p in own)] == word
    assert [p.word for p in inner] == sorted(p.word for p in inner)
    assert min(p.word for p in inner) == 0


def test_a_token_of_some_bytes_has_the_whole_character():
    tokenizer = train_tokenizer(["abc"], 270)
    pieces = tokenizer.pieces(tokenizer.encode(["a한b"])[0])
    assert [(p.text, p.start, p.end, p.word) for p in pieces if p.text] == [
        ("a", 0, 1, 0), *[("한", 1, 2, 0)] * 3, ("b", 2, 3, 0),
    ]  # fmt: skip
    broken = tokenizer.encode(["한"])[0][:-1]
    assert tokenizer.decode(broken) == "\ufffd", "half a character, such as a network may say"
    assert [p.text for p in tokenizer.pieces(broken)][-1] == "\ufffd"


def test_learning_is_the_same_every_time(tmp_path):
    """In another process too, whose hashes are other ones."""
    code = (
        "import sys; from pathlib import Path; from tests.data.text.test_tokens import *\n"
        "for kind in SIZES: train_tokenizer(TEXTS, SIZES[kind], kind).save(Path(sys.argv[1], kind))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, cwd=Path(__file__).parents[3])
    for kind in SIZES:
        train_tokenizer(TEXTS, SIZES[kind], kind).save(tmp_path / "again")
        assert (tmp_path / kind).read_bytes() == (tmp_path / "again").read_bytes()


def test_saved_and_loaded(tokenizer, tmp_path):
    Tokenizers(tokenizer, tokenizer, True).save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.json"]
    loaded = Tokenizers.load(tmp_path)
    assert loaded.source is loaded.target
    assert loaded.shared
    assert loaded.source == tokenizer
    assert loaded.source.encode(TEXTS) == tokenizer.encode(TEXTS)


def test_separate_vocabularies(tmp_path):
    pair = train_tokenizers(["a tree"] * 3, ["ein Baum"] * 3, 280, joint=False)
    pair.save(tmp_path)
    loaded = Tokenizers.load(tmp_path)
    assert not pair.shared
    assert loaded == pair
    assert pair.source.vocabulary != pair.target.vocabulary
    assert train_tokenizers(["a tree"], ["ein Baum"], 280).shared


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_code_before_a_text_is_one_token(kind):
    pair = train_tokenizers(["<de> a tree", "<ko> a tree"], ["ein Baum", "나무"], 300, kind, codes=["<de>", "<ko>"])
    german, korean, plain = pair.source.encode(["<de> a tree", "<ko> a tree", "a tree"])
    assert german[1:] == korean[1:] == plain
    assert [pair.source.vocabulary[ids[0]] for ids in (german, korean)] == ["<de>", "<ko>"]
    assert pair.source.pieces(german)[0].text == "<de>"
    assert pair.source.decode(german) == "a tree"
    assert 4 not in pair.source.encode(["tree <de>"])[0], "elsewhere it is text"


def test_what_cannot_be_learnt_is_said():
    with pytest.raises(ConfigError, match="no tokenizer 'bep'"):
        train_tokenizer(["a"], 300, "bep")
    with pytest.raises(ConfigError, match="200 tokens is too small: bpe needs more than 260"):
        train_tokenizer(["a"], 200)
    with pytest.raises(ConfigError, match="cannot be a code"):
        train_tokenizer(["a"], 300, codes=["<s>"])
    with pytest.raises(DataError, match="no text"):
        train_tokenizer(["", " "], 300)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"pad": 99999},
        {"start": "1"},
        {"vocabulary": ["a", "a", "b", "c", "d", "e"]},
        {"vocabulary": [1, 2, 3, 4, 5, 6]},
        {"model": {"merges": [["no", "such"]]}},
        {"model": {"merges": [["one"]]}},
        {"model": []},
        {"codes": ["<xx>"]},
        {"surprise": 1},
    ],
)
def test_a_damaged_file_is_refused(change, tmp_path):
    train_tokenizer(["a few words"], 280).save(tmp_path / "tokenizer.json")
    contents = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents | change))
    with pytest.raises(RunError, match="no tokenizer"):
        Tokenizer.load(tmp_path / "tokenizer.json")


@needs_multi30k
@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_every_sentence_of_multi30k_comes_back(kind):
    """Trained on the training part alone; BLEU of references that went through it is 100."""
    corpus = open_pairs(MULTI30K, source="en", target="de")
    train = corpus.index("train")[::4]
    pair = train_tokenizers([corpus.sources[i] for i in train], [corpus.targets[i] for i in train], 4000, kind)
    texts = [text for i, text in enumerate(corpus.sources + corpus.targets) if i % 4 == 0 or i % len(corpus) > 29_000]
    same = [pair.source.decode(ids) == text for ids, text in zip(pair.source.encode(texts), texts, strict=True)]
    assert sum(same) == len(texts) if kind == "bpe" else sum(same) > 0.999 * len(texts)
