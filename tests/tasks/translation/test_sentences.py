"""Sentences and files are told apart by a rule, and a word that is neither is an error."""

import csv
import io
import json

import pytest

from regard.errors import DataError
from regard.tasks.translation.sentences import sentences


def test_sentences_are_themselves_however_long(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["A dog runs.", "Hello.", "3.14", "가" * 100, "가" * 100 + "/" + "나" * 100, "see a.txt and b/c"]
    assert list(sentences(given)) == given


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("missing.en", "no such file"),
        ("data/missing", "no such file"),
        ("folder", "a folder is no sentence"),
        ("", "a sentence is empty"),
        (" \t", "a sentence is empty"),
        ("empty.en", "the file has no lines"),
        ("latin.en", r"0xE9, which is not UTF-8\n  where: latin.en, line 2"),
    ],
)
def test_a_word_that_stands_for_nothing_is_an_error(tmp_path, monkeypatch, word, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.en").write_text("")
    (tmp_path / "latin.en").write_bytes(b"one\ncaf\xe9\n")
    with pytest.raises(DataError, match=says):
        list(sentences(["one", word]))


def test_lines_are_those_of_the_file_without_a_byte_order_mark(tmp_path, monkeypatch):
    """As many as `wc -l` counts: characters that only Python takes for line ends stand inside sentences."""
    data = b"\xef\xbb\xbfone\r\n\ntwo\xe2\x80\xa8three\x0c\rfour"
    lines = ["one", "", "two\N{LINE SEPARATOR}three\x0c\rfour"]
    (tmp_path / "text.en").write_bytes(data)
    assert list(sentences([str(tmp_path / "text.en"), "five"])) == [*lines, "five"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert list(sentences(["-"])) == lines


def test_the_command_says_so_and_prints_a_line_per_line(translation_run, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("predict", translation_run.path, "one", "missing.en")
    assert (code, out) == (2, "")
    assert "where: missing.en" in err
    (tmp_path / "some.en").write_text("one\n\ntwo", encoding="utf-8-sig")
    assert cli("predict", translation_run.path, "some.en")[1] == "eins\n\nzwei\n"
    assert cli("predict", translation_run.path, "가" * 100)[0] == 0
    assert cli("explain", translation_run.path, "가" * 100, "some.en", "--out", "why.svg")[0] == 0
    assert sorted(path.name for path in tmp_path.glob("why*")) == ["why-2.svg", "why-3.svg", "why.svg"]


def test_the_next_best_translations_are_written_too(translation_run, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.en").write_text("\none two\n")
    for name in ("a.csv", "a.json"):
        assert cli("predict", translation_run.path, "some.en", "--best", 3, "--out", name)[0] == 0
    with (tmp_path / "a.csv").open(encoding="utf-8") as file:
        empty, row = csv.DictReader(file)
    assert list(row)[1::2] == ["translation", "translation_2", "translation_3"]
    assert row["translation"] == "eins zwei"
    assert float(row["score"]) >= float(row["score_2"]) >= float(row["score_3"])
    assert (empty["translation"], empty["translation_2"]) == ("", "")
    assert json.loads((tmp_path / "a.json").read_text())[1]["translation_3"] == row["translation_3"]


@pytest.mark.parametrize("flags", [("--kind", "rollout", "--layer", 0), ("--form", "heads", "--head", 1)])
def test_explain_refuses_what_a_drawing_would_ignore(translation_run, tmp_path, cli, flags):
    code, _, err = cli("explain", translation_run.path, "one two", *flags, "--out", tmp_path / "why.png")
    assert code == 2
    assert f"{flags[2]} does not apply" in err
