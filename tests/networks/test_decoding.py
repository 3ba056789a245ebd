"""Greedy and beam search against every sentence there is, word by word, and with and without a cache."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.networks import decoding
from regard.networks.decoding import Hypotheses, Search, beam_search, greedy, length_penalty, stream
from regard.networks.rnn.config import RNNConfig
from regard.networks.rnn.network import RNN
from regard.networks.translator import Memory, State, Translator
from tests.networks.test_transformer import END, PADDING, START, sentences, small


def bias_of(model: Translator) -> Tensor:
    assert model.output_bias is not None
    return model.output_bias.data


def lively(**fields) -> Translator:
    """Random, but with sentences of many words and lengths: what it says is no echo of what it was given."""
    model = small(**{"embeddings": "separate", "output_bias": True} | fields)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
    assert model.output is not None
    nn.init.normal_(model.output.weight, std=0.4)
    nn.init.zeros_(bias_of(model))
    bias_of(model)[END] = 1.0
    return model


def recurrent(**fields) -> Translator:
    torch.manual_seed(0)
    shape = {"vocabulary": 23, "width": 16, "depth": 2, "embeddings": "separate", "output_bias": True, "dropout": 0.0}
    model = RNN(RNNConfig(**shape | fields)).eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.6)
    bias_of(model)[END] = 1.0
    return model


KINDS = {
    "post": lively,
    "pre": lambda **fields: lively(norm="pre", key_width=3, value_width=5, **fields),
    "lstm": recurrent,
    "gru": lambda **fields: recurrent(cell="gru", attention="additive", **fields),
    "fed": lambda **fields: recurrent(query="newest", **fields),
    "parallel": lambda **fields: recurrent(query="newest", input_feeding=False, cells=False, **fields),
    "plain": lambda **fields: recurrent(attention="none", **fields),
}
KIND = pytest.mark.parametrize("kind", KINDS)


def rescored(model: Translator, source: Tensor, words: Tensor, penalty: float) -> float:
    """The score of one sentence, by one pass over all of it."""
    words = words[words != PADDING]
    given = torch.cat([torch.tensor([START]), words[:-1]])
    scores = model(source[None], given[None]).logits[0].double().log_softmax(-1)
    return (scores[torch.arange(len(words)), words].sum() / length_penalty(len(words), penalty)).item()


@KIND
@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0])
def test_a_beam_as_wide_as_all_sentences_finds_the_best_of_all(kind, penalty):
    """Three words that may be said and up to four places, the last for the end: 40 sentences."""
    model = KINDS[kind](vocabulary=5)
    source = torch.tensor([[3, 4, 4, 3], [4, 3, 0, 0]])
    every = [torch.tensor([*words, END]) for n in range(4) for words in itertools.product((START, 3, 4), repeat=n)]
    assert len(every) == 40
    found = beam_search(model, source, beams=50, best=40, penalty=penalty, ratio=0.0, constant=4)
    for sentence in range(2):
        own = source[sentence][source[sentence] != PADDING]
        ranked = sorted(((rescored(model, own, words, penalty), words.tolist()) for words in every), reverse=True)
        for n, (score, words) in enumerate(ranked):
            assert found.words[sentence, n][found.words[sentence, n] != PADDING].tolist() == words
            assert found.scores[sentence, n].item() == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("penalty", [0.6, 4.0, 20.0])
def test_asked_for_one_it_stops_no_sooner_than_is_safe(penalty):
    """A longer sentence may still overtake, as its log-probability will be divided by more."""
    model, source = lively(vocabulary=5), sentences(6, 3, 1, 8, 5, 2, words=5)
    bias_of(model)[END] = 4.0
    search = {"beams": 130, "penalty": penalty, "ratio": 0.0, "constant": 5}  # 121 sentences
    every, one = beam_search(model, source, best=121, **search), beam_search(model, source, best=1, **search)
    assert every.scores.isfinite().all()
    assert torch.equal(one.words, every.words[:, :1])


def assert_same(ours: Hypotheses, other: Hypotheses) -> None:
    assert torch.equal(ours.words, other.words)
    torch.testing.assert_close(ours.scores, other.scores, atol=1e-5, rtol=1e-5)


@KIND
@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0])
def test_greedy_takes_the_likeliest_word_each_time(kind, penalty):
    model, source = KINDS[kind](), sentences(6, 3, 1, 8)
    result = greedy(model, source, penalty=penalty, constant=12)
    for n, length in enumerate((6, 3, 1, 8)):
        own, words = source[n : n + 1, :length], [START]
        while words[-1] != END:
            logits = model(own, torch.tensor([words])).logits[0, -1]
            logits[PADDING] = float("-inf")
            words.append(int(logits.argmax()) if len(words) < length + 12 else END)
        assert result.words[n, 0].tolist() == words[1:] + [PADDING] * (20 - len(words[1:]))
        expected = rescored(model, own[0], torch.tensor(words[1:]), penalty)
        assert result.scores[n, 0].item() == pytest.approx(expected, abs=1e-5)


def recomputing(model: Translator) -> Translator:
    """The same model, which decodes all words anew at every step."""

    def begin(memory: Memory, beams: int, length: int) -> State:
        words = torch.zeros(length, len(memory.words) * beams, dtype=torch.long)
        last = (t.transpose(0, 1) for t in memory.last)
        return State(torch.tensor(0), (words,), (memory.words, memory.mask, *last))

    def step(words: Tensor, state: State) -> Tensor:
        state.per_beam[0][state.at] = words.flatten()
        state.at.add_(1)
        source, mask, *last = (t.repeat_interleave(words.shape[1], dim=0) for t in state.per_sentence)
        memory = Memory(source, mask, tuple(t.transpose(0, 1) for t in last))
        return model.decode(state.per_beam[0][: int(state.at)].T, memory)[:, -1].unflatten(0, words.shape)

    model.begin, model.step = begin, step
    return model


@KIND
def test_cached_equals_uncached(kind):
    source = sentences(6, 3, 1, 8)
    cached = beam_search(KINDS[kind](), source, beams=5, best=5, constant=12)
    assert_same(cached, beam_search(recomputing(KINDS[kind]()), source, beams=5, best=5, constant=12))
    assert cached.words[:, 0].unique(dim=0).shape[0] > 1, "sentences that are all the same prove little"


@KIND
def test_a_sentence_is_translated_alike_in_any_company(kind):
    model, source = KINDS[kind](), sentences(6, 3, 1, 8)
    together = beam_search(model, source, best=3, constant=10)
    for n, length in enumerate((6, 3, 1, 8)):
        alone = beam_search(model, source[n : n + 1, :length], best=3, constant=10)
        room = alone.words.shape[2]
        assert torch.equal(together.words[n, :, :room], alone.words[0])
        assert (together.words[n, :, room:] == PADDING).all()
        torch.testing.assert_close(together.scores[n], alone.scores[0], atol=1e-5, rtol=1e-5)


@KIND
def test_finished_sentences_are_dropped_from_the_batch(kind, monkeypatch):
    """One by one there is nothing to drop."""
    model, source = KINDS[kind](), sentences(9, 3, 7, 2, 5, 8, 4, 6, 1, 9)
    left, select = [], Search.select
    monkeypatch.setattr(Search, "select", lambda self, rows: (left.append(len(rows)), select(self, rows)))
    options = {"beams": 3, "best": 2, "constant": 10}
    together = beam_search(model, source, **options)
    assert len(left) > 2
    assert left == sorted(left, reverse=True)
    for n in range(len(source)):
        alone = beam_search(model, source[n : n + 1], **options)
        assert torch.equal(together.words[n], alone.words[0])
        torch.testing.assert_close(together.scores[n], alone.scores[0], atol=1e-5, rtol=1e-5)


@KIND
def test_hypotheses_are_different_ended_ordered_and_scored_as_they_say(kind):
    model, source = KINDS[kind](), sentences(6, 3, 1, 8)
    found = beam_search(model, source, beams=4, best=4, ratio=1.5, constant=2)
    assert (found.scores.diff(dim=1) <= 0).all()
    for sentence, length in enumerate((6, 3, 1, 8)):
        rows = found.words[sentence]
        assert len({tuple(row.tolist()) for row in rows}) == 4
        for row, score in zip(rows, found.scores[sentence], strict=True):
            words = row[row != PADDING]
            assert len(words) <= int(1.5 * length + 2)
            assert words[-1] == END
            assert (words == END).sum() == 1
            own = source[sentence][source[sentence] != PADDING]
            assert score.item() == pytest.approx(rescored(model, own, row, 0.6), abs=1e-5)


def test_a_wider_beam_finds_likelier_sentences():
    model, source = lively(), sentences(6, 3, 1, 8)
    one, many = (beam_search(model, source, beams=beams, penalty=0.0, constant=6).scores for beams in (1, 8))
    assert (many >= one - 1e-5).all()
    assert (many > one + 1e-3).any()


def test_the_penalty_is_that_of_the_paper():
    assert length_penalty(1, 0.6) == 1
    assert length_penalty(7, 0.6) == pytest.approx(2**0.6)


def test_longer_sentences_win_with_a_larger_alpha():
    model, source = lively(), sentences(6, 3, 1, 8)
    short, long = ((beam_search(model, source, beams=8, penalty=a, constant=8).words != 0).sum() for a in (0.0, 3.0))
    assert long > short


def test_words_stream_as_greedy_says_them_and_it_stops_when_all_have_ended():
    model, source = lively(), sentences(6, 3, 1, 8)
    whole = greedy(model, source).words[:, 0]
    words = torch.stack(list(stream(model, source)), dim=1)
    assert words.shape[1] < whole.shape[1]
    assert torch.equal(words, whole[:, : words.shape[1]])
    assert (whole[:, words.shape[1] :] == PADDING).all()
    assert (words[:, -1] == END).any()


def test_looking_seldom_changes_nothing(monkeypatch):
    model, source = lively(), sentences(6, 3, 1, 8)
    expected = beam_search(model, source), greedy(model, source)
    monkeypatch.setattr(decoding, "time_to_check", lambda step, source: False)
    assert_same(beam_search(model, source), expected[0])
    assert_same(greedy(model, source), expected[1])


@KIND
def test_a_search_may_begin_again_in_the_same_memory(kind):
    model, first, second = KINDS[kind](), sentences(6, 3, 1, 8), sentences(8, 2, 5, 4, seed=1)
    expected = beam_search(model, second, beams=3, best=3, ratio=0.0, constant=9)
    with torch.no_grad():
        limit = torch.full((4,), 9)
        search = Search(model, first, limit, 9, beams=3, penalty=0.6, best=3)
        before = {name: value.data_ptr() for name, value in vars(search).items() if isinstance(value, Tensor)}
        for _ in range(9):
            search.advance()
        search.restart(second, limit)
        for _ in range(9):
            search.advance()
    assert_same(Hypotheses(search.ended, search.ended_scores), expected)
    assert before == {name: getattr(search, name).data_ptr() for name in before}


@KIND
def test_a_cpu_writes_the_scores_of_a_step_into_the_memory_of_the_step_before(kind, monkeypatch):
    model, source = KINDS[kind](), sentences(6, 3, 1, 8)
    reused = beam_search(model, source, beams=3, best=3, constant=9)
    with torch.no_grad():
        search = Search(model, source, torch.full((4,), 9), 9, beams=3, penalty=0.6, best=3)
        search.advance()
    torch.testing.assert_close(search.logits.exp().sum(-1), torch.ones(12) - probability_of_padding(model, source))
    monkeypatch.setattr(Search, "_score", fresh_scores)
    assert_same(reused, beam_search(model, source, beams=3, best=3, constant=9))


def probability_of_padding(model: Translator, source: Tensor) -> Tensor:
    logits = model(source, torch.full((len(source), 1), START)).logits[:, 0].detach()
    return logits.softmax(-1)[:, PADDING].repeat_interleave(3)


def fresh_scores(search: Search, features: Tensor) -> tuple[Tensor, Tensor]:
    logits = search.model.score(features)
    return logits, logits.logsumexp(dim=-1, keepdim=True)


def test_a_step_is_one_graph_for_all_words():
    """What a GPU records: nothing is asked back on the way, and no shape changes."""
    model, source = lively(), sentences(6, 3, 1, 8)
    expected = beam_search(model, source, beams=3, best=3, ratio=0.0, constant=6)
    with torch.no_grad():
        search = Search(model, source, torch.full((4,), 6), 6, beams=3, penalty=0.6, best=3)
        advance = torch.compile(search.advance, fullgraph=True, dynamic=False, backend="eager")
        torch._dynamo.utils.counters.clear()
        for _ in range(6):
            advance()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert_same(Hypotheses(search.ended, search.ended_scores), expected)


def test_looking_at_all_the_room_there_is_changes_nothing(monkeypatch):
    """As on a GPU, where to ask how much is filled would be to wait."""
    model, source = lively(), sentences(6, 3, 1, 8)
    expected = beam_search(model, source, best=4), greedy(model, source)
    monkeypatch.setattr(State, "length", lambda self: None)
    assert_same(beam_search(model, source, best=4), expected[0])
    assert_same(greedy(model, source), expected[1])


def test_dropout_is_off_and_training_goes_on_afterwards():
    model, source = lively(dropout=0.5), sentences(6, 3)
    expected = beam_search(model, source, constant=5), greedy(model, source, constant=5)
    model.train()
    assert_same(beam_search(model, source, constant=5), expected[0])
    assert_same(greedy(model, source, constant=5), expected[1])
    assert model.training
    assert model.decoder[0].training


@KIND
def test_sixteen_bits_will_do(kind):
    model, source, target = KINDS[kind](), sentences(6, 3, 1, 8), sentences(4, 4, 4, 4)
    with torch.no_grad():
        expected = model(source, target).logits
        with torch.autocast("cpu", torch.bfloat16):
            state = model.begin(model.encode(source), 1, 5)
            logits = torch.stack([model.score(model.step(target[:, n : n + 1], state))[:, 0] for n in range(4)], dim=1)
            assert beam_search(model, source, constant=6).scores.isfinite().all()
    assert logits.dtype == torch.bfloat16
    assert (logits - expected).abs().max() < 0.03 * expected.abs().max()


def test_learned_positions_end_a_sentence_in_time():
    model = lively(positions="learned", length=9)
    assert beam_search(model, sentences(6, 3)).words.shape == (2, 1, 9)


def test_no_sentence_has_no_translation():
    nothing = torch.empty(0, 4, dtype=torch.long)
    for model in (lively(), recurrent(), recurrent(cell="gru")):
        assert greedy(model, nothing, constant=4).words.shape == (0, 1, 8)
        assert beam_search(model, nothing, constant=4).words.shape == (0, 1, 8)


def test_an_empty_source_and_a_single_word_are_sentences_too():
    model = lively()
    assert greedy(model, torch.tensor([[PADDING], [5]]), constant=4).scores.isfinite().all()
    assert beam_search(model, torch.tensor([[PADDING], [5]]), constant=4).scores.isfinite().all()


@pytest.mark.parametrize("arguments", [{"beams": 0}, {"best": 5}, {"best": 0}, {"penalty": -1.0}])
def test_searches_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ConfigError):
        beam_search(lively(), sentences(3), **arguments)
