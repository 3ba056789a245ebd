"""The recurrent translators against PyTorch's own layers, against arithmetic by hand, and against their own purpose."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import regard
from regard.errors import ConfigError
from regard.networks.rnn.config import VARIANTS, RNNConfig
from regard.networks.rnn.network import RNN
from regard.registry import MODELS
from tests.networks.test_transformer import END, PADDING, START, sentences

# Loss after three steps of the test below, by attention; it changes only when the arithmetic does.
RECORDED = {"dot": 1.136001, "additive": 1.095624, "none": 1.127091}
SIMPLE = {"query": "newest", "input_feeding": False, "cells": False}
"""Luong's query, words alone as input, hidden states alone handed over: all words in one pass."""
RECORDED_SIMPLE = {"dot": 1.149055, "additive": 1.149910}
KINDS = [
    {},
    {"cell": "gru"},
    {"attention": "additive"},
    {"attention": "none"},
    {"query": "newest"},
    {"query": "newest", "attention": "additive", "cell": "gru"},
    {"input_feeding": False},
    {"input_feeding": False, "query": "newest", "cells": False},
    {"cell": "gru", "attention": "none", "input_feeding": False},
    {"vocabulary": (23, 19), "embeddings": "tied"},
    {"embeddings": "separate", "output_bias": True},
]
KIND = pytest.mark.parametrize("changes", KINDS)


def small(**changes) -> RNN:
    torch.manual_seed(0)
    fields = {"vocabulary": 23, "width": 16, "depth": 2, "dropout": 0.0}
    model = RNN(RNNConfig(**fields | changes)).eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.4)
    return model


@pytest.mark.parametrize("name", VARIANTS)
def test_counts_follow_from_the_shape(name):
    """Added up by hand: words, two directions of half the width, the decoder, what joins context and state."""
    with torch.device("meta"):
        c = regard.create(name).config
    d, half = c.width, c.width // 2
    encoder = 2 * 4 * (d * half + half * half + 2 * half)
    decoder = 4 * (2 * d * d + 2 * d)
    context = 4 * d * d  # read beside the word by the first layer
    assert MODELS[name].parameters == 37_000 * d + c.depth * (encoder + decoder) + context + 2 * d * d + d


def test_with_and_without_attention_are_of_one_size():
    assert MODELS["rnn_attention"].parameters == MODELS["rnn_plain"].parameters


@KIND
def test_shapes_whatever_the_lengths(changes):
    model = small(**changes)
    out = model(sentences(7, 1, 5), sentences(1, 4, 3, words=19))
    assert out.logits.shape == (3, 4, model.config.target_words)
    assert out.features.shape == (3, 4, 16)
    assert out.memory.shape == (3, 7, 16)


@KIND
def test_more_padding_changes_nothing(changes):
    model, source, target = small(**changes), sentences(7, 2), sentences(4, 3, words=19)
    expected = model(source, target).logits
    padded = model(F.pad(source, (0, 3)), F.pad(target, (0, 2))).logits[:, :4]
    torch.testing.assert_close(padded, expected, atol=1e-5, rtol=1e-5)
    alone = model(source[1:, :2], target[1:, :3]).logits
    torch.testing.assert_close(alone, expected[1:, :3], atol=1e-5, rtol=1e-5)


@KIND
def test_no_word_knows_of_those_after_it_and_all_know_the_source(changes):
    model, source, target = small(**changes), sentences(7), sentences(6, words=19)
    expected = model(source, target).logits
    for n in range(5):
        other = target.clone()
        other[:, n + 1 :] = 3 + (other[:, n + 1 :] - 2) % 16
        changed = model(source, other).logits
        assert torch.equal(changed[:, : n + 1], expected[:, : n + 1])
        assert (changed[:, n + 1 :] - expected[:, n + 1 :]).abs().amax(-1).min() > 1e-3
    for n in range(7):
        other = source.clone()
        other[:, n] = 3 + (other[:, n] - 2) % 20
        assert (model(other, target).logits - expected).abs().max() > 1e-5


def cell_of(layer: nn.RNNBase, suffix: str = "") -> nn.LSTMCell | nn.GRUCell:
    """One step of a layer, in double precision: torch's own cell with its weights."""
    kind = nn.LSTMCell if isinstance(layer, nn.LSTM) else nn.GRUCell
    cell = kind(layer.input_size, layer.hidden_size)
    cell.load_state_dict({name: getattr(layer, f"{name}_l0{suffix}") for name in cell.state_dict()})
    return cell.double()


def advance(cell: Any, word: torch.Tensor, state: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Hidden state (and cell) after one more word."""
    return cell(word[None], state) if isinstance(cell, nn.LSTMCell) else (cell(word[None], state[0]),)


def encode_by_hand(model: RNN, source: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
    """States (S, width) of one sentence without padding, and the last states of every layer: a cell, word by word."""
    words, last = model.embedding(source).double() * 4, []
    parts = 2 if model.config.cell == "lstm" else 1
    layers: Any = model.encoder
    for layer in layers:
        ways, ends = [], []
        for suffix, order in (("", range(len(source))), ("_reverse", reversed(range(len(source))))):
            state, states = tuple(torch.zeros(1, 8).double() for _ in range(parts)), {}
            for n in order:
                state = advance(cell_of(layer, suffix), words[n], state)
                states[n] = state[0][0]
            ways.append(torch.stack([states[n] for n in range(len(source))]))
            ends.append(state)
        words = torch.cat(ways, -1)
        last.append(tuple(torch.cat(both, -1) for both in zip(*ends, strict=True)))
    return words, last


@pytest.mark.parametrize("changes", KINDS[:9])  # the others look up their words elsewhere
@torch.no_grad()
def test_every_step_and_its_captured_weights_equal_the_papers_by_hand(changes):
    """Bahdanau et al., appendix A.2, Luong et al., sections 3.1 and 3.3, and Cho et al., with torch's own cells."""
    model = small(**changes)
    config, alignment = model.config, model.alignment
    source, target = sentences(7, 4), sentences(5, 5)
    parts: Any = alignment
    with regard.capture(model) as tape:
        out = model(source, target)
    assert torch.equal(out.logits, model(source, target).logits)
    assert tape.names == ([] if alignment is None else ["alignment"])
    layers: Any = model.decoder
    for sentence, length in enumerate((7, 4)):
        keys, handed = encode_by_hand(model, source[sentence, :length])
        torch.testing.assert_close(out.memory[sentence, :length].double(), keys, atol=1e-5, rtol=1e-5)
        states: list[Any] = handed if config.cells else [(hidden, 0 * cells) for hidden, cells in handed]
        fixed, features, weights = states[-1][0][0], torch.zeros(16).double(), torch.empty(0)

        def ask(query: torch.Tensor, keys: torch.Tensor = keys) -> tuple[torch.Tensor, torch.Tensor]:
            if config.attention == "additive":
                both = query @ parts.query.weight.double().T + keys @ parts.key.weight.double().T
                scores = both.tanh() @ parts.vector.double()
            else:
                scores = keys @ query
            weights = scores.exp() / scores.exp().sum()
            return weights, weights @ keys

        for n, word in enumerate(model.embedding(target[sentence]).double() * 4):
            context = fixed
            if alignment is not None and config.query == "previous":
                weights, context = ask(states[-1][0][0])
            fed = features if alignment is not None and config.query == "newest" else context
            given = torch.cat([word, fed]) if config.input_feeding else word
            for depth, layer in enumerate(layers):
                states[depth] = advance(cell_of(layer), given, states[depth])
                given = states[depth][0][0]
            if alignment is not None and config.query == "newest":
                weights, context = ask(given)
            joined = torch.cat([context, given]) @ model.combine.weight.double().T + model.combine.bias.double()
            features = joined.tanh()
            torch.testing.assert_close(out.features[sentence, n].double(), features, atol=1e-5, rtol=1e-5)
            if alignment is not None:
                captured = tape.attention("alignment", 0)[sentence, n]
                torch.testing.assert_close(captured[:length].double(), weights, atol=2e-6, rtol=0)
                assert captured[length:].abs().sum() == 0


@pytest.mark.parametrize("changes", [{}, {"attention": "additive"}, {"query": "newest"}, SIMPLE])
def test_the_tapes_gradients_are_those_of_the_weights(changes):
    """Moved by hand: values in the encoder's states, and so the weights' effect, of each step on all after it."""
    model, source, target = small(**changes).double(), sentences(4), sentences(3)
    with regard.capture(model, gradients=True) as tape:
        model(source, target).logits[0, :2].sum().backward()
    gradient = tape.gradient("alignment", 0)[0]
    assert gradient.shape == (3, 4)
    assert gradient[2].abs().sum() == 0, "nothing asked for depends on the last word's weights"
    values, alignment = model.encode(source).words[0], model.alignment
    for step in range(2):
        for moved in range(4):
            results = []
            for sign in (1, -1):

                def nudge(module, inputs, context, step=step, moved=moved, sign=sign):
                    now = inputs[3] if model.config.input_feeding else 0
                    if now == step:
                        context = context.clone()
                        context[0, 0] += sign * 1e-5 * values[moved]
                        return context
                    if not model.config.input_feeding:
                        context = context.clone()
                        context[0, step] += sign * 1e-5 * values[moved]
                    return context

                assert alignment is not None
                handle = alignment.register_forward_hook(nudge)
                with torch.no_grad():
                    results.append(float(model(source, target).logits[0, :2].sum()))
                handle.remove()
            assert float(gradient[step, moved]) == pytest.approx((results[0] - results[1]) / 2e-5, abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"attention": "none", "query": "newest"}, "nothing is asked"), ({"cell": "gru", "cells": False}, "has none")],
)
def test_an_option_of_what_is_not_there_is_refused(changes, says):
    with pytest.raises(ConfigError, match=says):
        small(**changes)


def test_without_attention_the_source_is_one_vector():
    """And the states that the decoder starts with."""
    model, target = small(attention="none"), sentences(5)
    memory = model.encode(sentences(7))
    other = memory._replace(words=torch.randn_like(memory.words))
    assert torch.equal(model.decode(target, memory), model.decode(target, other))
    attending = small()
    memory = attending.encode(sentences(7))
    other = memory._replace(words=torch.randn_like(memory.words))
    assert not torch.equal(attending.decode(target, memory), attending.decode(target, other))


def steps(count: int, rate: float, **fields) -> list[float]:
    torch.manual_seed(0)
    model = regard.create("rnn_nano", vocabulary=40, dropout=0.0, **fields)
    source, target = sentences(6, 3, 5, 6, words=40), sentences(5, 5, 4, 2, words=40, seed=1)
    given = F.pad(target, (1, 0), value=START)
    wanted = F.pad(target, (0, 1), value=PADDING)
    wanted[torch.arange(4), (target != PADDING).sum(1)] = END
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=rate), []
    for _ in range(count):
        loss = F.cross_entropy(model(source, given).logits.flatten(0, 1), wanted.flatten(), ignore_index=PADDING)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("attention", RECORDED)
def test_overfits_one_batch_and_gives_the_recorded_loss(attention):
    losses = steps(60, 5e-3, attention=attention)
    assert losses[0] == pytest.approx(math.log(40), abs=0.6)
    assert losses[3] == pytest.approx(RECORDED[attention], abs=2e-4)
    assert losses[-1] < 0.1


@pytest.mark.parametrize("attention", RECORDED_SIMPLE)
def test_the_parallel_decoder_gives_the_loss_recorded_when_it_was_the_only_one(attention):
    assert steps(4, 5e-3, attention=attention, **SIMPLE)[3] == pytest.approx(RECORDED_SIMPLE[attention], abs=2e-4)


def test_an_lstm_begins_by_remembering():
    lstm = regard.create("rnn_nano", vocabulary=30).decoder[0]
    assert torch.equal(lstm.bias_ih_l0.chunk(4)[1] + lstm.bias_hh_l0.chunk(4)[1], torch.ones(128))


def test_an_odd_width_is_refused():
    with pytest.raises(ConfigError, match="width=15 is odd"):
        small(width=15)
