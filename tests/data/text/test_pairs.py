"""Parallel text is read line by line, faults are told with their place, and splits do not leak."""

import gzip
import os
from pathlib import Path

import pytest

from regard import tasks
from regard.data.splits import split
from regard.data.text import TextDataset, open_pairs
from regard.errors import DataError

ROOT = Path(__file__).parents[3]
SHARED = Path(os.environ.get("REGARD_SHARED", ROOT.parent / "shared"))
MULTI30K = SHARED / "data" / "multi30k"
needs_multi30k = pytest.mark.skipif(not MULTI30K.is_dir(), reason="needs ../shared/data, or REGARD_SHARED")


def write(folder: Path, **texts: str | bytes) -> Path:
    """Files called train_en and so on, with a dot for the underscore before the language."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        file = folder / ".".join(name.rsplit("_", 1))
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def made(sources: list[str], targets: list[str], splits: list[str] | None = None) -> TextDataset:
    n = len(sources)
    return TextDataset("made", "made", "", "en", "de", sources, targets, splits or [""] * n, list(range(1, n + 1)))


def test_plain_and_packed_files_with_named_splits(tmp_path):
    write(tmp_path, train_en="a\nb\n", train_de="A\r\nB", valid_en="c\n", test_2016_en="d\n", test_2017_en="e\n")
    write(tmp_path, valid_de="C\n", test_2016_de="D\n", test_2017_de="E\n", notes_txt="no part of it")
    (tmp_path / "train.de.gz").write_bytes(gzip.compress((tmp_path / "train.de").read_bytes()))
    (tmp_path / "train.de").unlink()
    corpus = open_pairs(tmp_path)
    assert (corpus.source, corpus.target) == ("en", "de"), "English is translated from where nothing else is said"
    assert corpus.sources == list("abcde")
    assert corpus.targets == list("ABCDE")
    assert corpus.splits == ["train", "train", "val", "test_2016", "test_2017"]
    assert corpus.ignored == ("notes.txt",)
    back = open_pairs(tmp_path, source="de")
    assert (back.target, back.sources) == ("en", list("ABCDE"))


def test_only_line_feeds_end_lines(tmp_path):
    """str.splitlines would see six lines here, and shift all that follows."""
    write(tmp_path, train_en="one\u2028still one\ntwo\u0085\ntwo\x1chalf\nthree\n", train_de="1\n2\n2\n3\n")
    corpus = open_pairs(tmp_path)
    assert list(zip(corpus.sources, corpus.targets, strict=True)) == [("three", "3")]
    assert [(t.where, t.kind, t.detail) for t in corpus.trouble] == [
        ("train.en, line 1", "control character", "U+2028"),
        ("train.en, line 2", "control character", "U+0085"),
        ("train.en, line 3", "control character", "U+001C"),
    ]


def test_a_lone_carriage_return_ends_no_line_and_chunks_may_end_anywhere(tmp_path, monkeypatch):
    write(tmp_path, train_en="one\rhalf\n" + "two\r\nthree\n" * 9, train_de="1\n" + "2\n3\n" * 9)
    for chunk in (1, 2, 5, 1000):
        monkeypatch.setattr("regard.data.text.lines._CHUNK", chunk)
        corpus = open_pairs(tmp_path)
        assert corpus.sources == ["two", "three"] * 9
        assert [str(t) for t in corpus.trouble] == ["train.en, line 1: control character (U+000D)"]


def test_unequal_line_counts_are_refused_with_both(tmp_path):
    write(tmp_path, train_en="a\nb\nc\n", train_de="A\nB\n")
    with pytest.raises(DataError, match=r"train.en has 3 lines and train.de has 2"):
        open_pairs(tmp_path)


def test_a_text_without_its_partner_is_named(tmp_path):
    write(tmp_path, train_en="One.\nTwo.\n")
    with pytest.raises(DataError, match=r"train\.en has no partner[\s\S]*train\.de"):
        open_pairs(tmp_path)


def test_faults_are_listed_by_line_up_to_a_share(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.data.text.lines.LONGEST", 10)
    write(tmp_path, train_en=b"good\n\nfine\nwell\ncaf\xe9\n" + b"x\n" * 95, train_de="gut\nleer\n \n" + "l" * 11)
    with (tmp_path / "train.de").open("a") as file:
        file.write("\nKaffee\n" + "y\n" * 95)
    corpus = open_pairs(tmp_path)
    assert [str(t) for t in corpus.trouble] == [
        "train.en, line 2: empty",
        "train.de, line 3: empty",
        "train.de, line 4: too long (11 characters, more than 10)",
        "train.en, line 5: not UTF-8 (byte 4 is 0xE9)",
    ]
    assert (len(corpus), corpus.lines[:2]) == (96, [1, 6])
    assert "pairs left out, empty: 2" in corpus.describe()
    corpus.require_usable(0.04)
    with pytest.raises(DataError, match=r"4 of 100 pairs of train cannot be used:\n +train.en, line 2: empty"):
        corpus.require_usable(0.03)


def test_text_is_composed_and_otherwise_kept(tmp_path):
    write(tmp_path, train_en="  a\u202fb  c\t\n", train_de="\u1112\u1161\u11ab a\u0308\n")  # 한 and ä in parts
    corpus = open_pairs(tmp_path)
    assert corpus.sources == ["a\u202fb  c"]
    assert corpus.targets == ["한 ä"]


def test_more_than_two_languages_must_be_told_apart(tmp_path):
    write(tmp_path, train_en="a\n", train_de="A\n", train_fr="Á\n")
    with pytest.raises(DataError, match="3 languages: de, en, fr"):
        open_pairs(tmp_path)
    with pytest.raises(DataError, match="no text in 'ed'"):
        open_pairs(tmp_path, source="ed", target="de")
    assert open_pairs(tmp_path, source="fr", target="de").sources == ["Á"]


def test_one_text_without_a_splits_name_is_all_there_is(tmp_path):
    write(tmp_path, europarl_en="a\n", europarl_de="A\n")
    assert open_pairs(tmp_path).splits == [""]
    write(tmp_path, news_en="a\n", news_de="A\n")
    with pytest.raises(DataError, match="none of the texts is called train"):
        open_pairs(tmp_path)


def test_a_table_of_tabs_with_attribution_and_quotes(tmp_path):
    file = tmp_path / "pairs.txt"
    file.write_text('He said "go\t가\tCC-BY #1\nHi.\t안녕.\tCC-BY #2\nlonely\n', encoding="utf-8")
    corpus = open_pairs(file)
    assert corpus.sources == ['He said "go', "Hi."]
    assert corpus.targets == ["가", "안녕."]
    assert "not used: column 3" in corpus.why
    assert [str(t) for t in corpus.trouble] == ["pairs.txt, line 3: too few columns (1, with tabs between them)"]


@pytest.mark.parametrize("mark", [",", ";"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_csv_with_header_splits_and_quoted_cells(tmp_path, mark, packed):
    text = f'id{mark}de{mark}en{mark}split\n1{mark}"Ja, gut; so"{mark}yes{mark}train\n2{mark}Nein{mark}no{mark}dev\n'
    file = tmp_path / ("pairs.csv.gz" if packed else "pairs.csv")
    file.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    corpus = open_pairs(file, source="en", target="de")
    assert (corpus.sources, corpus.targets) == (["yes", "no"], ["Ja, gut; so", "Nein"])
    assert corpus.splits == ["train", "val"]
    assert corpus.lines == [2, 3]
    assert corpus.key(1) == "val:3"
    assert "not used: id" in corpus.why
    with pytest.raises(DataError, match="no column 'ed'"):
        open_pairs(file, source="ed", target="de")


@pytest.mark.parametrize(("first", "header"), [("en\tde", True), ("English\tGerman", True), ("No\tDe", False)])
def test_a_header_is_told_from_a_sentence(tmp_path, first, header):
    (tmp_path / "x.tsv").write_text(first + "\nYes.\tJa.\n")
    assert len(open_pairs(tmp_path / "x.tsv")) == (1 if header else 2)


def test_a_table_that_is_not_utf8_says_line_and_byte(tmp_path):
    (tmp_path / "x.tsv").write_bytes(b"a\tA\nb\tB\xff\n")
    with pytest.raises(DataError, match="byte 4 is 0xFF") as caught:
        open_pairs(tmp_path / "x.tsv")
    assert str(caught.value.where).endswith("x.tsv, line 2")


def test_a_gzip_bomb_is_left_before_it_is_unpacked(tmp_path, monkeypatch):
    with gzip.GzipFile(tmp_path / "train.en.gz", "wb") as file:
        for _ in range(100):
            file.write(b"\0" * 2**20)
    write(tmp_path, train_de="A\n")
    with pytest.raises(DataError, match=r"more than 1,048,576 bytes in line 1"):
        open_pairs(tmp_path)
    (tmp_path / "train.en.gz").write_bytes(gzip.compress(b"\n" * 5_000_000))
    monkeypatch.setattr("regard.data.text.lines.MAX_LINES", 100_000)
    with pytest.raises(DataError, match=r"more than 100,000 lines"):
        open_pairs(tmp_path)
    (tmp_path / "train.de").write_bytes(b"\n" * 50_000)
    monkeypatch.setattr("regard.data.text.pairs.MAX_TROUBLE", 1000)
    with pytest.raises(DataError, match=r"more than 1,000 pairs cannot be used"):
        open_pairs(tmp_path)


def test_a_damaged_archive_is_an_error(tmp_path):
    packed = gzip.compress(os.urandom(4000).hex().encode())
    write(tmp_path, train_de="A\n", train_en=packed[:2000])
    with pytest.raises(DataError, match="cannot be read after"):
        open_pairs(tmp_path)


def test_cut_splits_part_neither_equal_sources_nor_equal_targets():
    sources = [f"sentence {n // 2}" if n % 3 else f"Sentence  {n // 2}" for n in range(400)]
    targets = [f"Satz {n // 4}" for n in range(400)]
    corpus = made(sources, targets)
    names, note = split(corpus, 0, 0.1)
    assert names.count("val") == names.count("test") == 40
    assert "val (40 of 400 pairs) and test (40 of 400 pairs) cut with seed 0" in note
    for first in range(0, 400, 4):
        assert len(set(names[first : first + 4])) == 1
    assert corpus.overlap(names) == {name: {"pairs": 0, "sources": 0} for name in ("test", "val")}


def test_case_and_spacing_make_no_other_sentence():
    sources = [f"A dog {n // 2}" if n % 2 else f"a  DOG {n // 2}" for n in range(200)]
    names, _ = split(made(sources, [f"t{n}" for n in range(200)]), seed=0)
    assert all(names[n] == names[n + 1] for n in range(0, 200, 2))


def test_named_splits_are_kept_and_what_lacks_is_cut():
    corpus = made([str(n) for n in range(100)], [f"t{n}" for n in range(100)], ["train"] * 90 + ["test_a"] * 10)
    names, note = split(corpus, 0, 0.1)
    assert names[90:] == ["test_a"] * 10
    assert names.count("val") == 9
    assert note == "train and test_a are the data's own; val (9 of 100 pairs) cut with seed 0"
    assert split(made(["1", "2"], ["a", "b"], ["train", "val"]), 0)[1].endswith("which also chose the weights")


def test_one_sentence_that_hundreds_share_stays_in_training():
    corpus = made([f"s{n}" for n in range(200)], ["Ja."] * 150 + [f"t{n}" for n in range(50)])
    names, _ = split(corpus, 0, 0.1)
    assert set(names[:150]) == {"train"}
    assert names.count("val") == names.count("test") == 20


def test_too_few_pairs_cannot_be_cut():
    with pytest.raises(DataError, match="too few independent pairs to train, choose and test on: 2"):
        split(made(["a", "b"], ["A", "B"]), 0)


def test_of_very_many_pairs_a_few_thousand_are_held_out():
    corpus = made([f"s{n}" for n in range(30_000)], [f"t{n}" for n in range(30_000)])
    task = tasks.find("translation")
    names, _ = task.load().split(corpus, task.config())
    assert names.count("val") == names.count("test") == 2000


def test_doubled_pairs_and_overlap_are_counted():
    corpus = made(["a", "a", "b", "a", "b"], ["A", "A", "B", "A", "C"], ["train"] * 3 + ["test"] * 2)
    assert corpus.duplicates() == 2
    assert corpus.overlap() == {"test": {"pairs": 1, "sources": 2}}
    assert "of test, also in train (leaks): 1 pair, 2 sources" in corpus.describe()


def test_the_fingerprint_moves_with_text_and_splits():
    prints = {
        made(["a", "b"], ["A", "B"]).fingerprint(),
        made(["a", "b"], ["A", "C"]).fingerprint(),
        made(["a", "b"], ["A", "B"], ["train", "val"]).fingerprint(),
    }
    assert len(prints) == 3


@needs_multi30k
def test_multi30k_is_sound():
    corpus = open_pairs(MULTI30K, source="en", target="de")
    names, _ = split(corpus, 0)
    assert [names.count(n) for n in ("train", "val", "test_2016_flickr", "test_2017_flickr")] == [
        29_000,
        1014,
        1000,
        1000,
    ]
    assert not corpus.trouble
    assert corpus.overlap()["test_2016_flickr"] == {"pairs": 0, "sources": 0}


def test_columns_called_by_their_role_say_the_direction(tmp_path):
    file = tmp_path / "pairs.tsv"
    file.write_text("target\tsource\nEins.\tOne.\n", encoding="utf-8")
    made = open_pairs(file)
    assert (made.source, made.sources, made.targets) == ("source", ["One."], ["Eins."])
    assert open_pairs(file, "en", "de").source == "en"


def test_the_made_corpus_has_one_direction():
    with pytest.raises(DataError, match="from en to de"):
        open_pairs("dates", "de", "en")
