"""Decoder blocks against PyTorch's own, word by word against all words at once; positions of words."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.errors import ConfigError, RegardError
from regard.nn import (
    BlockConfig,
    DecoderBlock,
    KeyValueCache,
    MultiHeadAttention,
    WordPositions,
    attend_additive,
    capture,
    sinusoid,
)
from regard.nn.attention import Attention

NAMES = {
    "self_attn.in_proj_": "attention.qkv.",
    "self_attn.out_proj.": "attention.out.",
    "multihead_attn.in_proj_": "cross.qkv.",
    "multihead_attn.out_proj.": "cross.out.",
    "linear1.": "mlp.up.",
    "linear2.": "mlp.down.",
}


def block(**fields: Any) -> DecoderBlock:
    torch.manual_seed(0)
    fields = {"norm": "post", "activation": "relu"} | fields
    made = DecoderBlock(BlockConfig(16, 4, 40, **fields))
    for p in made.parameters():
        nn.init.normal_(p, std=0.3)
    return made.eval()


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_decoder_block_against_torch(norm):
    ours = block(norm=norm, eps=1e-5)
    theirs = nn.TransformerDecoderLayer(16, 4, 40, dropout=0.0, batch_first=True, norm_first=norm == "pre")
    state = {}
    for key in theirs.state_dict():
        own = key
        for a, b in NAMES.items():
            own = own.replace(a, b)
        state[key] = ours.state_dict()[own]
    theirs.load_state_dict(state)
    x, memory, padded = torch.randn(2, 5, 16), torch.randn(2, 7, 16), torch.tensor([[0] * 7, [0] * 4 + [1] * 3]).bool()
    past = nn.Transformer.generate_square_subsequent_mask(5)
    expected = theirs(x, memory, tgt_mask=past, tgt_is_causal=True, memory_key_padding_mask=padded)
    torch.testing.assert_close(ours(x, memory, ~padded[:, None, None]), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("sizes", [{}, {"key_width": 3, "value_width": 5}])
def test_word_by_word_equals_all_at_once_and_beams_are_apart(norm, sizes):
    """Two sentences of three beams each: what one beam said must not reach another."""
    ours, room = block(norm=norm, **sizes), 6
    x, memory = torch.randn(2, 3, 4, 16), torch.randn(2, 7, 16)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3]).bool()[:, None, None]
    d, e = sizes.get("key_width", 4), sizes.get("value_width", 4)
    keys, values = (torch.full((2, room, 3, 4, size), 9.0) for size in (d, e))
    cache, steps = KeyValueCache(keys, values, *ours.cross.project_keys_values(memory)), []
    for n in range(4):
        own = torch.eye(3).bool()[:, None] & (torch.arange(room) <= n)[:, None]  # (K, T, K)
        steps.append(ours.step(x[:, :, n], cache, torch.tensor(n), own.flatten(1).expand(2, 1, 3, -1), mask))
    for beam in range(3):
        expected = ours(x[:, beam], memory, mask)
        torch.testing.assert_close(torch.stack(steps, 2)[:, beam], expected, atol=1e-5, rtol=1e-5)


def test_key_and_value_sizes_are_the_papers():
    """Table 3 (B): keys of 16 leave the values at 64."""
    layer = MultiHeadAttention(512, 8, key_width=16, value_width=64)
    assert layer.qkv.weight.shape == (8 * (16 + 16 + 64), 512)
    assert layer.out.weight.shape == (512, 8 * 64)
    x = torch.randn(1, 3, 512)
    torch.testing.assert_close(layer(x), layer(x, x, x), atol=1e-5, rtol=1e-5)


class Additive(Attention):
    def __init__(self):
        super().__init__()
        self.vector = nn.Parameter(torch.randn(8))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return attend_additive(q, k, v, self.vector, mask=mask)


def test_additive_attention_and_its_capture_equal_arithmetic_by_hand():
    torch.manual_seed(0)
    model = Additive()
    q, k, v = torch.randn(2, 1, 3, 8), torch.randn(2, 1, 5, 8), torch.randn(2, 1, 5, 4)
    mask = torch.tensor([[1] * 5, [1] * 3 + [0] * 2]).bool()[:, None, None]
    weights = torch.zeros(2, 3, 5, dtype=torch.float64)
    for b, i in [(b, i) for b in range(2) for i in range(3)]:
        scores = [(q[b, 0, i] + k[b, 0, j]).double().tanh() @ model.vector.double() for j in range((5, 3)[b])]
        top = torch.stack(scores).exp()
        weights[b, i, : len(scores)] = top / top.sum()
    with capture(model) as tape:
        out = model(q, k, v, mask)
    torch.testing.assert_close(out[:, 0], (weights @ v[:, 0].double()).float(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(tape.attention(0, 0), weights.float(), atol=1e-6, rtol=0)


def test_a_layer_of_the_tape_may_be_meant_by_its_name():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = MultiHeadAttention(8, 2), MultiHeadAttention(8, 2)

        def forward(self, x):
            return self.second(self.first(x))

    model = Two()
    with capture(model) as tape:
        model(torch.randn(1, 3, 8))
    assert torch.equal(tape.attention("second", 1), tape.attention(1, 1))
    assert tape.heads("first") == 2
    with pytest.raises(RegardError, match="did you mean second"):
        tape.attention("secnod")


def test_positions_of_words():
    words = torch.zeros(1, 5, 8)
    interleaved = WordPositions("sinusoidal", 4, 8)(words)[0]  # longer than its table
    torch.testing.assert_close(interleaved, sinusoid(torch.arange(5), 8))
    halves = WordPositions("halves", 9, 8)(words)[0]
    torch.testing.assert_close(halves, torch.cat([interleaved[:, 0::2], interleaved[:, 1::2]], 1))
    learned = WordPositions("learned", 6, 8)
    assert torch.equal(learned(words)[0], learned.table[:5])
    with pytest.raises(ConfigError, match="longer than the 6"):
        learned(torch.zeros(1, 7, 8))
    with pytest.raises(ConfigError, match="odd"):
        WordPositions("sinusoidal", 4, 7)
