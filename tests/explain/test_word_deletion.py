"""Deletion of words: on a network of which it is known what matters, and on a translator."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.data.text import Piece
from regard.errors import ConfigError
from regard.explain.word_attention import Sentence, WordAttention, record_words
from regard.explain.word_deletion import WordDeletion, word_deletion
from tests.explain.sentences import HOUSES, TOKENIZERS, sentence, translator


class OneWord(torch.nn.Module):
    """Likes the translation as much as the source has of one token, at whatever place: nothing else matters."""

    def __init__(self, token: int, vocabulary: int):
        super().__init__()
        self.token, self.vocabulary, self.seen = token, vocabulary, []
        self.config = regard.create("rnn_nano", vocabulary=vocabulary).config
        self.anything = torch.nn.Parameter(torch.zeros(1))

    def forward(self, source: Tensor, target: Tensor):
        self.seen.append(source)
        logits = torch.zeros(*target.shape, self.vocabulary)
        there = (source == self.token).any(1)
        logits[:, :, 5] = torch.where(there, 3.0, 0.0)[:, None]
        return type("Out", (), {"logits": logits})


@pytest.mark.parametrize("unknown", [None, 3])
def test_taking_the_word_that_matters_first_beats_random_orders(unknown):
    source = sentence("one", "two", "three", "four", "five", "six")
    source = Sentence(source.text, (*source.ids, 2), (*source.pieces, Piece("</s>", 27, 27, -1)))
    written = Sentence("x", (5,), (Piece("x", 0, 1, 0),))
    found = WordAttention(source, written, written, {"cross": torch.full((1, 1, 1, 7), 1 / 7)}, flow=())
    model: Any = OneWord(token=source.ids[3], vocabulary=20)
    relevant = torch.tensor([0.1, 0.1, 0.0, 0.5, 0.1, 0.1, 0.9])
    result = word_deletion(model, found, relevant, unknown=unknown, orders=40)
    high, low = (math.log(math.exp(score) / (math.exp(score) + 19)) for score in (3.0, 0.0))
    assert result.removed == (0, 1, 2, 3, 4, 5, 6)
    assert result.curve == pytest.approx([high] + [low] * 6, abs=1e-5)
    assert result.area == pytest.approx(low + (high - low) / 12, abs=1e-5)
    assert result.order[0] == "four"
    assert result.order[-1] == "three"
    # On average the word goes in the middle: its order keeps it for k of 6 words with k even from 0 to 5.
    assert result.gain == pytest.approx((high - low) * 2.5 / 6, abs=0.25)
    worst = word_deletion(model, found, -relevant, unknown=unknown, orders=40)
    assert worst.gain < 0 < result.gain
    assert not worst.trusted
    assert "do not rely" in worst.verdict
    sources = torch.cat(model.seen)
    assert (sources == 2).sum(1).eq(1).all(), "the end always stays"
    if unknown is None:
        ends = (sources == 2).int().argmax(1)
        assert all(
            (row[:end] > 3).all() and (row[end + 1 :] == 0).all() for row, end in zip(sources, ends, strict=True)
        )
    else:
        assert (sources != 0).all()
        assert (sources == 3).any()


def test_verdicts_on_deletion():
    def result(first, *others) -> WordDeletion:
        return WordDeletion((0, 2), (0.0, first), tuple((0.0, other) for other in others), ("a", "b"))

    assert result(-4.0, -2.0, -2.1).trusted
    assert result(-4.0, -2.0, -2.1).verdict == "better than 2 of 2 random orders"
    assert result(-4.0, -2.0, -2.1).gain == pytest.approx(0.975)
    assert "uncertain" in result(-4.0, -3.9, -1.0).verdict
    assert "better than 1 of 2 random orders only" in result(-4.0, -5.0, -1.0).verdict
    assert "cannot be tested" in result(0.0, 0.0, 0.0).verdict


@torch.no_grad()
def test_deletion_runs_on_a_translator():
    model = translator().float()
    found = record_words(model, TOKENIZERS, *HOUSES)
    result = word_deletion(model, found, orders=4, batch=3)
    assert sorted(result.order) == sorted(found.source.words[:-1])
    whole = model.eval()(torch.tensor([found.source.ids]), torch.tensor([found.read.ids])).logits[0].log_softmax(-1)
    exact = whole.gather(1, torch.tensor(found.target.ids)[:, None]).mean()
    assert result.curve[0] == pytest.approx(float(exact), abs=1e-4)
    assert all(curve[0] == pytest.approx(result.curve[0], abs=1e-4) for curve in result.random)
    assert result == word_deletion(model, found, orders=4, batch=3)
    requests: tuple[dict[str, Any], ...] = ({"relevance": torch.ones(2)}, {"orders": 1}, {"steps": 0})
    for wrong in requests:
        with pytest.raises(ConfigError):
            word_deletion(model, found, **wrong)
