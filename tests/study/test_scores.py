"""Additive and dot-product attention: what is measured is what it says."""

import pytest
import torch

from regard.errors import ConfigError
from regard.study.attention.scores import KINDS, Lookup, Scored, Scores, learn, scores, sentences

TINY = Lookup(length=16, rounds=1, steps=2, tested=50)


def test_a_sentence_asks_for_one_of_the_symbols_it_shows():
    task = Lookup(symbols=6, shown=4, values=3)
    shown, values, asked, right = sentences(task, 200, torch.Generator().manual_seed(0))
    for n in range(200):
        assert len(set(shown[n].tolist())) == 4
        place = shown[n].tolist().index(int(asked[n]))
        assert values[n, place] == right[n]
    assert set(asked.tolist()) == set(range(6))


def test_unscaled_dot_products_learn_less_at_a_large_width_and_the_others_do_not():
    task = Lookup(steps=60, tested=500)
    right = {kind: learn(score, task, 512, seed=0) for kind, score in KINDS.items()}
    assert right["q·k / √d_k"] > 0.95
    assert right["additive"] > 0.9
    assert right["q·k"] < 0.8


def test_without_training_an_answer_is_a_guess():
    task = Lookup(steps=0, tested=4000)
    assert learn(KINDS["q·k / √d_k"], task, 8, seed=0) == pytest.approx(1 / task.values, abs=0.1)


def test_additive_attention_keeps_a_number_per_pair_and_channel():
    found = scores((4, 32), task=TINY, seeds=1)
    narrow, wide = found.of("additive")
    assert wide.bytes > 4 * narrow.bytes
    assert wide.bytes > 32 * 16 * 16 * 4 > found.of("q·k")[1].bytes


def test_the_sentences_say_what_was_measured():
    rows = [Scored(kind, d_k, n * d_k * 1.0, n * d_k, (0.5 / n, 0.7 / n)) for d_k in (4, 8)
            for n, kind in ((1, "q·k / √d_k"), (2, "q·k"), (10, "additive"))]  # fmt: skip
    lines = Scores(TINY, rows).summary()
    assert "10 times as long as dot products at d_k = 4 and 10 times at 8" in lines[0]
    assert lines[1].startswith("At d_k = 4, right answers after 2 steps: q·k / √d_k 60%, q·k 30%, additive 6%")
    assert "| q·k | 4 | 8000.00 | 0.00 | 30.0 |" in Scores(TINY, rows).table()


def test_finished_widths_are_kept(tmp_path):
    first = scores((2, 4), task=TINY, seeds=1, keep=tmp_path)
    assert scores((2, 4), task=TINY, seeds=1, keep=tmp_path) == first
    with pytest.raises(ConfigError, match="show nothing"):
        scores((4,), task=TINY)
