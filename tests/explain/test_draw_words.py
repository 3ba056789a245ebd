"""Pictures of words and what they look at, in every form and ending."""

from typing import Any

import pytest

from regard.drawing import missing_letters
from regard.errors import ConfigError
from regard.explain.draw_words import FORMS, draw_words
from regard.explain.word_attention import record_words
from tests.explain.sentences import HOUSES, TOKENIZERS, translator


def test_pictures_are_written_in_every_form(tmp_path):
    model = translator().float()
    found = record_words(model, TOKENIZERS, "two $mall houses & <trees>", "zwei Häuser")
    for form in FORMS:
        path = draw_words(found, tmp_path / f"{form}.svg", "cross", layer=0, head="all", form=form)
        text = path.read_text()
        assert ("Häuser" in text) == ("$" in text) == (form != "heads")
    for number, kind in enumerate(found.kinds):
        ending = (".png", ".pdf")[number % 2]
        assert draw_words(found, tmp_path / f"{kind}{ending}", kind, words=False).stat().st_size > 4000
    rnn = record_words(translator("rnn_nano").float(), TOKENIZERS, *HOUSES)
    assert draw_words(rnn, tmp_path / "rnn.png").stat().st_size > 4000
    wrong: tuple[dict[str, Any], ...] = ({"form": "tree"}, {"kind": "crossed"}, {"layer": 7})
    for options in wrong:
        with pytest.raises(ConfigError):
            draw_words(found, tmp_path / "x.png", **options)
    with pytest.raises(ConfigError, match="pictures are not written"):
        draw_words(found, tmp_path / "x.gif")
    assert not list(tmp_path.glob("x.*"))


def test_letters_without_a_font_are_said_below_a_picture(tmp_path, monkeypatch):
    assert missing_letters(["zwölf Häuser", "grün\n"]) == ""
    assert missing_letters(["a\U0010fffd", "\U0010fffd"]) == "\U0010fffd", "a place where no letter is"
    found = record_words(translator().float(), TOKENIZERS, "a \U0010fffd", "ein Haus")
    notes = []
    monkeypatch.setattr("matplotlib.figure.Figure.supxlabel", lambda self, text, **_: notes.append(text))
    draw_words(found, tmp_path / "a.svg")
    assert notes == [], "in SVG the reader's fonts count"
    draw_words(found, tmp_path / "a.png")
    assert "U+10FFFD" in notes[0]
