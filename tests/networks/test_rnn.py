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
RECORDED = {"dot": 1.149055, "additive": 1.149910, "none": 1.110098}
KINDS = [
    {},
    {"cell": "gru"},
    {"attention": "additive"},
    {"cell": "gru", "attention": "none"},
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
    assert MODELS[name].parameters == 37_000 * d + c.depth * (encoder + decoder) + 2 * d * d + d


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


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_encoder_is_torchs_packed_bidirectional_one(cell):
    model, source = small(cell=cell), sentences(7, 2, 5)
    lengths = torch.tensor([7, 2, 5])
    theirs = {"lstm": nn.LSTM, "gru": nn.GRU}[cell](16, 8, num_layers=2, bidirectional=True, batch_first=True)
    state = {}
    layers: Any = model.encoder
    for n, layer in enumerate(layers):
        for side, suffix in ((layer.forwards, ""), (layer.backwards, "_reverse")):
            for name, parameter in side.named_parameters():
                state[name.replace("_l0", f"_l{n}") + suffix] = parameter
    theirs.load_state_dict(state)
    packed = nn.utils.rnn.pack_padded_sequence(
        model.embedding(source) * 4, lengths, batch_first=True, enforce_sorted=False
    )
    states, last = theirs(packed)
    expected, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True)
    memory, hidden = model.encode(source), last[0] if cell == "lstm" else last
    torch.testing.assert_close(memory.words * memory.mask[..., None], expected, atol=1e-5, rtol=1e-5)
    expected = torch.stack([torch.cat([hidden[2 * n], hidden[2 * n + 1]], -1) for n in range(2)])
    torch.testing.assert_close(memory.last[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ["dot", "additive"])
def test_the_captured_alignment_and_the_features_equal_arithmetic_by_hand(attention):
    model, source, target = small(attention=attention), sentences(7, 4), sentences(5, 5)
    with regard.capture(model) as tape:
        out = model(source, target)
    assert torch.equal(out.logits, model(source, target).logits)
    assert tape.names == ["alignment"]
    memory = model.encode(source)
    states = model._run(target, memory.last[0], None)[0].double()
    for sentence, length in enumerate((7, 4)):
        keys = memory.words[sentence, :length].double()
        if attention == "dot":
            scores = states[sentence] @ keys.T
        else:
            alignment: Any = model.alignment
            q, k = (m.weight.double() for m in (alignment.query, alignment.key))
            both = (states[sentence] @ q.T)[:, None] + (keys @ k.T)[None]
            scores = both.tanh() @ alignment.vector.double()
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        captured = tape.attention("alignment", 0)[sentence]
        torch.testing.assert_close(captured[:, :length], weights.float(), atol=1e-6, rtol=0)
        assert captured[:, length:].abs().sum() == 0
        joined = torch.cat([weights @ keys, states[sentence]], -1).float()
        torch.testing.assert_close(out.features[sentence], model.combine(joined).tanh(), atol=1e-5, rtol=1e-5)


def test_without_attention_the_source_is_one_vector():
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


def test_an_lstm_begins_by_remembering():
    lstm = regard.create("rnn_nano", vocabulary=30).decoder[0]
    assert torch.equal(lstm.bias_ih_l0.chunk(4)[1] + lstm.bias_hh_l0.chunk(4)[1], torch.ones(128))


def test_an_odd_width_is_refused():
    with pytest.raises(ConfigError, match="width=15 is odd"):
        small(width=15)
