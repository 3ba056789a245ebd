"""Batches of text hold every pair once, in few shapes, with little padding, the same whoever asks."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from regard.data.text import EncodedPairs, TextLoader, open_pairs, train_tokenizers
from regard.errors import ConfigError, DataError
from tests.data.text.test_pairs import MULTI30K, needs_multi30k

N = 300


@pytest.fixture(scope="module")
def pairs() -> EncodedPairs:
    draw = np.random.default_rng(0)
    words = [f"w{n}" for n in range(20)]
    lengths = draw.integers(1, 14, N)
    sources = [" ".join(draw.choice(words, n)) for n in lengths]
    targets = [
        " ".join(draw.choice(words, max(1, n + d))) for n, d in zip(lengths, draw.integers(-2, 3, N), strict=True)
    ]
    return EncodedPairs(train_tokenizers(sources, targets, 320), sources, targets)


def members(batches) -> list[int]:
    return [n for batch in batches for n in batch.numbers.tolist() if n >= 0]


def same(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a[:3], b[:3], strict=True)) and a.tokens == b.tokens


@pytest.mark.parametrize("tokens", [40, 64, 200, 5000])
@pytest.mark.parametrize("shapes", [1, 3, 12])
def test_every_pair_once_in_few_shapes_within_the_budget(pairs, tokens, shapes):
    loader = TextLoader(pairs, range(N), tokens, shuffle=3, shapes=shapes)
    assert len(loader.shapes) <= shapes
    batches = list(loader.epoch(0))
    assert len(batches) == len(loader)
    assert sorted(members(batches)) == list(range(N))
    allowed = {(s.rows, s.source, s.target) for s in loader.shapes}
    total = 0
    for batch in batches:
        assert (*batch.source.shape, batch.target.shape[1]) in allowed
        assert len(batch.source) == len(batch.target) == len(batch.numbers)
        assert max(batch.source.numel(), batch.target.numel()) <= tokens
        total += batch.source.numel() + batch.target.numel()
    assert len({batch.source.shape + batch.target.shape for batch in batches}) == len(allowed), "each is used"
    real = sum(int(lengths.sum()) for lengths in pairs.lengths(np.arange(N)))
    assert loader.padding == pytest.approx(1 - real / total)


def test_rows_are_the_sentences_padded_and_filling_counts_for_nothing(pairs):
    loader = TextLoader(pairs, range(N), 200, shuffle=0)
    source, target = pairs.tokenizers.source, pairs.tokenizers.target
    filled = 0
    for batch in loader.epoch(1):
        assert batch.source.dtype == batch.target.dtype == batch.numbers.dtype == torch.int64
        for s, t, number in zip(batch.source.tolist(), batch.target.tolist(), batch.numbers.tolist(), strict=True):
            if number < 0:
                filled += 1
                assert s == [source.end] + [source.pad] * (len(s) - 1)
                assert t == [target.start] + [target.pad] * (len(t) - 1)
                continue
            i = slice(*pairs.source_at[number : number + 2])
            own = pairs.source[i].tolist()
            assert s == own + [source.pad] * (len(s) - len(own))
            assert own[-1] == source.end
            assert t[0] == target.start
            assert t.count(target.end) == 1
            assert set(t[t.index(target.end) + 1 :]) <= {target.pad}
        assert batch.tokens == int((batch.target[:, 1:] != target.pad).sum())
    assert filled


def test_the_order_depends_on_seed_and_epoch_alone(pairs):
    def epoch(seed, number, index=range(N)):
        return list(TextLoader(pairs, index, 120, shuffle=seed).epoch(number))

    first, again = epoch(0, 5), epoch(0, 5)
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    others = members(epoch(0, 6)), members(epoch(1, 5))
    assert members(first) not in others
    assert others[0] != others[1]
    together = [{frozenset(members([b])) for b in epoch(0, number)} for number in (5, 6)]
    assert len(together[0] & together[1]) < len(first) / 4, "pairs meet others in every epoch"
    shapes = [tuple(b.source.shape) for b in first]
    assert shapes != sorted(shapes), "long and short batches are mixed"
    assert members(epoch(None, 0)) == members(epoch(None, 1))


def test_an_epoch_goes_on_from_any_pair(pairs):
    loader = TextLoader(pairs, range(N), 120, shuffle=2)
    whole = list(loader.epoch(3))
    done = 0
    for n, batch in enumerate(whole):
        if n in (0, 1, 5, len(whole) - 1):
            assert all(same(a, b) for a, b in zip(whole[n:], loader.epoch(3, start=done), strict=True))
        done += int((batch.numbers >= 0).sum())
    everything = members(whole)
    for start in (1, 7, 150, N - 1, N):
        assert members(loader.epoch(3, start=start)) == everything[start:]


@pytest.mark.parametrize("tokens", [120, 400, 1000])
def test_what_fills_no_batch_goes_on_to_a_larger_shape(pairs, tokens):
    """So that fewer rows are empty than one batch has, however many shapes there are."""
    loader = TextLoader(pairs, range(N), tokens, shuffle=0)
    empty = [int((batch.numbers < 0).sum()) for batch in loader.epoch(0)]
    assert sum(n > 0 for n in empty) <= 3
    assert sum(empty) <= max(shape.rows for shape in loader.shapes) / 2


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_processes_share_each_batch(pairs, ranks):
    whole = list(TextLoader(pairs, range(N), 200, shuffle=1).epoch(0))
    parts = [list(TextLoader(pairs, range(N), 200, shuffle=1, rank=r, ranks=ranks).epoch(0)) for r in range(ranks)]
    for batch, *shares in zip(whole, *parts, strict=True):
        assert len({(tuple(s.source.shape), tuple(s.target.shape)) for s in shares}) == 1, "they step together"
        assert sorted(members(shares)) == sorted(members([batch]))
        assert {s.tokens for s in shares} == {batch.tokens}
        assert sum(int((s.target[:, 1:] != 0).sum()) for s in shares) == batch.tokens
        counts = [len(members([s])) for s in shares]
        assert max(counts) - min(counts) <= 1


def test_some_pairs_only_and_long_ones_left_out_by_name(pairs):
    index = list(range(0, N, 3))
    source, target = pairs.lengths(np.array(index))
    loader = TextLoader(pairs, index, 100, longest=20)
    long = [n for n, s, t in zip(index, source, target, strict=True) if max(s, t) > 20]
    assert long
    assert loader.left_out == long
    assert sorted(members(loader.epoch(0))) == sorted(set(index) - set(long))
    assert len(loader.index) == len(index) - len(long)


def test_what_cannot_be_batched_is_said(pairs):
    with pytest.raises(ConfigError, match="a batch at most 5"):
        TextLoader(pairs, range(N), 5)
    with pytest.raises(DataError, match="no sentences"):
        TextLoader(pairs, [], 100)


def test_all_sizes_of_vocabulary_and_corpus_are_packed_alike(pairs, monkeypatch):
    texts = ["w1 w2", "", "w3"]
    rows = pairs.tokenizers.source.encode(texts, end=True)
    for size, at_once in ((70_000, 2), (300, 1), (300, 10)):
        monkeypatch.setattr("regard.data.text.batches._AT_ONCE", at_once)
        monkeypatch.setattr(type(pairs.tokenizers.source), "size", size)
        made = EncodedPairs(pairs.tokenizers, texts, texts)
        assert made.source.dtype == (np.int32 if size > 65_536 else np.uint16)
        assert [made.source[a:b].tolist() for a, b in pairwise(made.source_at)] == rows
    with pytest.raises(DataError, match="3 source and 2 target"):
        EncodedPairs(pairs.tokenizers, texts, texts[:2])


@needs_multi30k
@pytest.mark.parametrize("tokens", [4096, 25_000])
def test_little_of_multi30k_is_padding(tokens, multi30k):
    loader = TextLoader(multi30k, range(29_000), tokens, shuffle=0)
    print(f"{tokens} tokens: {loader.padding:.1%} padding, {len(loader)} batches of {len(loader.shapes)} shapes")
    assert loader.padding < 0.15
    assert len(loader.shapes) <= 12


@pytest.fixture(scope="module")
def multi30k() -> EncodedPairs:
    corpus = open_pairs(MULTI30K, source="en", target="de")
    few = corpus.index("train")[::10]
    pair = train_tokenizers([corpus.sources[i] for i in few], [corpus.targets[i] for i in few], 4000)
    return EncodedPairs(pair, corpus.sources, corpus.targets)
