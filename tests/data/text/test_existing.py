"""Tokenizers that others have trained, against the libraries they came from."""

import io
import json
import string
from typing import Any

import pytest
import sentencepiece
import transformers
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers, trainers

from regard.data.text import Tokenizer, existing, open_tokenizer, train_tokenizer
from regard.errors import DataError

TEXTS = ["Hello, how are you doing?", "the Frenchman spoke in the language and ate", "Häuser am See, 123 Bäume!"] * 4
SLIDE = {  # numbers of bert-base-uncased on the slide
    "[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103, ",": 1010, "?": 1029, "the": 1996, "in": 1999,
    "and": 1998, "you": 2017, "are": 2024, "how": 2129, "language": 2653, "doing": 2725, "spoke": 3764, "hello": 7592,
    "ate": 8823, "frenchman": 26529,
}  # fmt: skip


def write_bert(folder, cased: bool = False):
    """A vocabulary of BERT's layout: 30,522 lines, special tokens at 0 and 100 to 103, the slide's words at theirs."""
    words = [f"[unused{n}]" for n in range(30_522)]
    for word, number in SLIDE.items():
        words[number] = word
    letters = [*string.ascii_lowercase, *string.digits, *"!.'äöü", *(string.ascii_uppercase if cased else "")]
    for n, letter in enumerate([*letters, *(f"##{letter}" for letter in letters)]):
        words[5000 + n] = letter
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return folder / "vocab.txt"


def test_the_slides_sentences_have_the_slides_numbers(tmp_path):
    """But for the comma, 1010, which the slide leaves out of its first line."""
    tokenizer = open_tokenizer(write_bert(tmp_path)).source
    sentences = {
        "Hello, how are you doing?": [101, 7592, 1010, 2129, 2024, 2017, 2725, 1029, 102],
        "The Frenchman spoke in the [MASK] language and ate 🍜": [
            101, 1996, 26529, 3764, 1999, 1996, 103, 2653, 1998, 8823, 100, 102
        ],
        "[CLS] [SEP] [MASK] [UNK]": [101, 101, 102, 103, 100, 102],
    }  # fmt: skip
    assert tokenizer.encode(list(sentences), start=True, end=True) == list(sentences.values())
    assert (tokenizer.pad, tokenizer.start, tokenizer.end, tokenizer.unknown) == (0, 101, 102, 100)
    assert tokenizer.size == 30_522


@pytest.mark.parametrize("cased", [False, True])
def test_against_berts_tokenizer(tmp_path, cased):
    file = write_bert(tmp_path, cased)
    theirs = transformers.BertTokenizer(vocab=str(file), do_lower_case=not cased)
    texts = [*TEXTS[:3], "[CLS] [SEP] [MASK] [UNK]", "Ärger, façade 한국 don't", "", "  two   spaces\t"]
    ours = open_tokenizer(file).source.encode(texts, start=True, end=True)
    assert ours == [theirs(text)["input_ids"] for text in texts]


def test_what_the_file_beside_it_says_of_case_holds(tmp_path):
    file = write_bert(tmp_path, cased=True)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    tokenizer = open_tokenizer(file).source
    assert tokenizer.encode(["HELLO"]) == tokenizer.encode(["hello"]) == [[7592]]


def test_bert_pieces_become_words_again(tmp_path):
    tokenizer = open_tokenizer(write_bert(tmp_path)).source
    ids = tokenizer.encode(["Hello, how are you doing? Baum"], end=True)[0]
    assert tokenizer.decode(ids) == "hello , how are you doing ? baum"
    assert [piece.word for piece in tokenizer.pieces(ids)] == [0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7, -1]


def library(kind: str) -> Engine:
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    if kind == "bytes":
        engine = Engine(models.BPE())
        engine.pre_tokenizer, engine.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, show_progress=False)
    else:
        engine = Engine(models.Unigram())
        engine.pre_tokenizer, engine.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=80, special_tokens=special, unk_token="<unk>", show_progress=False)
    engine.train_from_iterator(TEXTS, trainer)
    return engine


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_a_file_of_the_library_encodes_and_decodes_as_the_library_does(kind, tmp_path):
    engine = library(kind)
    engine.enable_truncation(2)  # as of a model's input; not of a tokenizer's
    engine.enable_padding(length=99)
    engine.save(str(tmp_path / "tokenizer.json"))
    engine.no_truncation()
    engine.no_padding()
    tokenizer = open_tokenizer(tmp_path / "tokenizer.json").target
    for text in TEXTS[:3]:
        (ids,) = tokenizer.encode([text])
        assert ids == engine.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode([*ids, tokenizer.end]) == engine.decode(ids) == text
    tokenizer.save(tmp_path / "kept.json")
    assert Tokenizer.load(tmp_path / "kept.json") == tokenizer == open_tokenizer(tmp_path / "kept.json").source


@pytest.mark.parametrize("pad", [-1, 3])
def test_a_sentencepiece_model_has_its_own_numbers_and_gets_padding(pad, tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=40, pad_id=pad, minloglevel=2
    )
    (tmp_path / "m.model").write_bytes(model.getvalue())
    tokenizer = open_tokenizer(tmp_path / "m.model").source
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    assert tokenizer.size == theirs.get_piece_size() + (pad < 0)
    assert tokenizer.pad == (pad if pad >= 0 else theirs.get_piece_size())
    assert (tokenizer.start, tokenizer.end, tokenizer.unknown) == (theirs.bos_id(), theirs.eos_id(), theirs.unk_id())
    for text in TEXTS[:3]:
        (ids,) = tokenizer.encode([text])
        assert ids == theirs.encode(text)
        assert tokenizer.decode(ids) == theirs.decode(ids)


def test_tokens_of_two_kinds_are_the_same_where_their_bytes_are(tmp_path):
    ours = train_tokenizer(TEXTS, 300)
    library("pieces").save(str(tmp_path / "tokenizer.json"))
    theirs = open_tokenizer(tmp_path / "tokenizer.json").source
    assert ours.vocabulary[ours.spelling[b"a"]] == theirs.vocabulary[theirs.spelling[b"a"]] == "a"
    both = ours.spelling.keys() & theirs.spelling.keys()
    assert any(spelt.startswith(b" ") and len(spelt) > 1 for spelt in both)
    assert not {ours.pad, ours.start, ours.end, ours.unknown} & set(ours.spelling.values())


@pytest.mark.parametrize(
    ("name", "contents", "says"),
    [
        ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\na\nb\nc", r"no special token for end \(names looked for: end: \[SEP\]"),
        ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\na", "names a token twice"),
        ("vocab.txt", b"\xff\xfe", "not UTF-8"),
        ("tokenizer.json", '{"model": 3}', "it has no model"),
        ("tokenizer.json", '{"model": {"type": "new"}}', "the library cannot read it"),
        ("tokenizer.json", "[1, 2]", "has no model"),
        ("x.model", b"", "model is missing"),
        ("x.model", b"no model", "no SentencePiece model"),
        ("words.csv", "a", "no tokenizer that can be read"),
    ],
)
def test_what_is_no_tokenizer_is_said(name, contents, says, tmp_path):
    file = tmp_path / name
    file.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    with pytest.raises(DataError, match=says):
        open_tokenizer(file)


def test_gaps_other_decoders_and_too_much_are_refused(tmp_path, monkeypatch):
    engine = library("pieces")
    contents = json.loads(engine.to_str())
    file = tmp_path / "tokenizer.json"
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"decoder": {"type": "BPEDecoder", "suffix": "</w>"}}, "its decoder is BPEDecoder"),
        (
            {
                "added_tokens": [],
                "model": {
                    "type": "WordPiece",
                    "unk_token": "<unk>",
                    "continuing_subword_prefix": "##",
                    "max_input_chars_per_word": 9,
                    "vocab": {"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 9},
                },
            },
            "leave gaps",
        ),
    )
    for change, says in changes:
        file.write_text(json.dumps(contents | change))
        with pytest.raises(DataError, match=says):
            open_tokenizer(file)
    with pytest.raises(DataError, match="this is a folder, not a tokenizer"):
        open_tokenizer(tmp_path)
    with pytest.raises(DataError, match="neither a kind that can be trained nor a file"):
        open_tokenizer(tmp_path / "bep")
    monkeypatch.setattr(existing, "MAX_FILE", 100)
    with pytest.raises(DataError, match="at most 100 are read"):
        open_tokenizer(file)
