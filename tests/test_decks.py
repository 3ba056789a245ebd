"""The worked examples of the lecture decks, run through the package's own functions."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard.networks.rnn.config import RNNConfig
from regard.networks.rnn.network import RNN
from regard.networks.translator import Memory
from regard.nn import attend, capture, patchify, sinusoid
from regard.nn.multihead import MultiHeadAttention
from tests.nn.test_attention import One

STATES = torch.tensor([[0.1, 0.0, 0.8], [0.1, 0.9, 0.0], [0.0, 0.1, 0.8], [0.2, 0.1, 0.6], [0.9, 0.0, 0.1]])


def test_unscaled_context_vector_of_the_korean_sentence():
    """q = g⁵ over the five encoder states: weights, then the context vector. The deck does not scale."""
    query, model = torch.tensor([[0.2, 0.9, 0.0]]), One(scale=1.0)
    with capture(model) as tape:
        context = model(query, STATES, STATES)
    expected = torch.tensor([[[0.151, 0.340, 0.162, 0.169, 0.178]]])
    torch.testing.assert_close(tape.attention(0, 0), expected, atol=5e-4, rtol=0)
    torch.testing.assert_close(context, torch.tensor([[0.243, 0.339, 0.370]]), atol=5e-4, rtol=0)


def test_the_previous_state_of_a_decoder_asks_in_that_example():
    """ "At moment 6 the decoder gets g⁵ from moment 5": the query is the state before the word, and the decoder reads
    the context beside it. Here a decoder has just been handed g⁵, with h¹ to h⁵ as the encoder's states."""
    model = RNN(RNNConfig(vocabulary=9, width=4, depth=1)).eval()  # one number more: the width is even
    states, previous = F.pad(STATES, (0, 1))[None], torch.tensor([0.2, 0.9, 0.0, 0.0]).view(1, 1, 4)
    memory = Memory(states, torch.ones(1, 5, dtype=torch.bool), (previous, torch.zeros_like(previous)))
    seen = []
    layer: Any = model.decoder[0]
    layer.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0][0, 0]))
    model.decode(torch.tensor([[3]]), memory)
    context = torch.tensor([0.243, 0.339, 0.370, 0.0])
    torch.testing.assert_close(seen[0][4:], context, atol=5e-4, rtol=0)
    model.step(torch.tensor([[3]]), model.begin(memory, 1, 2))
    torch.testing.assert_close(seen[1], seen[0])


def test_hidden_state_and_cell_are_handed_over():
    """Of X (B × L × N) the encoder of an LSTM hands over H and C, each B × M."""
    model, source = RNN(RNNConfig(vocabulary=9, width=4, depth=1)).eval(), torch.tensor([[3, 4, 5], [6, 7, 0]])
    memory = model.encode(source)
    assert [part.shape for part in memory.last] == [(1, 2, 4), (1, 2, 4)]
    for part in (0, 1):
        zeros = tuple(torch.zeros_like(h) if n == part else h for n, h in enumerate(memory.last))
        other = model.decode(source, memory._replace(last=zeros))
        assert (other - model.decode(source, memory)).abs().amax(-1).min() > 1e-4


def test_scaling_would_change_that_example():
    context = attend(torch.tensor([[0.2, 0.9, 0.0]]), STATES, STATES)
    assert (context - torch.tensor([[0.243, 0.339, 0.370]])).abs().max() > 0.01


def test_scores_112_and_96_over_8_give_088_and_012():
    """Thinking Machines: d_k = 64, so the scores are divided by 8."""
    query = torch.zeros(1, 64)
    query[0, 0] = 1.0
    keys = torch.zeros(2, 64)
    keys[:, 0] = torch.tensor([112.0, 96.0])
    weights = attend(query, keys, torch.eye(2))
    torch.testing.assert_close(weights, torch.tensor([[0.88, 0.12]]), atol=5e-3, rtol=0)


def test_an_image_is_196_patches_of_768_numbers():
    image = torch.arange(3 * 224 * 224.0).reshape(1, 3, 224, 224)
    patches = patchify(image, (16, 16))
    assert patches.shape == (1, 196, 768)
    assert torch.equal(patches[0, 15], image[0, :, 16:32, 16:32].flatten())


def test_pixel_pairs_against_patch_pairs():
    with torch.device("meta"):
        model = regard.create("vit_b16")
    assert (3 * 224 * 224) ** 2 == 150_528**2 == 22_658_678_784  # the deck's "22 billion"
    assert model.token_map().places ** 2 == 196**2 == 38_416


def test_the_mri_batch_of_the_deck():
    """(10, 4, 224, 224, 224) at patch 16: 2744 patches and 2745 tokens of 768 numbers."""
    with torch.device("meta"):
        model = regard.create("vit3d_b16", size=224, channels=4)
        x = torch.empty(10, 4, 224, 224, 224)
        assert model.patches(x).shape == (10, 2744, 768)
        assert model.embed(x).shape == (10, 2745, 768)
        output = model(x)
    assert output.tokens.shape == (10, 2745, 768)
    assert (output.features.shape, output.logits.shape) == ((10, 768), (10, 1000))
    assert model.token_map().grid == (14, 14, 14)


def test_positions_are_linear_in_an_offset():
    """PE(pos + k) = M(k) PE(pos): one rotation for all positions."""
    width, offset = 32, 7
    here, there = sinusoid(torch.arange(50), width).double(), sinusoid(torch.arange(50) + offset, width).double()
    matrix = torch.linalg.lstsq(here, there).solution
    torch.testing.assert_close(here @ matrix, there, atol=1e-5, rtol=0)
    block = matrix[:2, :2]
    torch.testing.assert_close(block @ block.T, torch.eye(2).double(), atol=1e-4, rtol=0)


def test_wavelengths_run_from_2_pi_towards_10000_times_2_pi():
    """The exponent is 2i/d, not d/2i as one slide has it: channel 0 turns fastest, the last slowest."""
    table = sinusoid(torch.tensor([1.0]), 512)[0]
    angles = torch.atan2(table[0::2], table[1::2])
    assert torch.all(angles.diff() < 0)
    torch.testing.assert_close(angles[0], torch.tensor(1.0))
    torch.testing.assert_close(angles[-1], torch.tensor(10000.0 ** -(510 / 512)), atol=1e-6, rtol=1e-3)


def test_the_causal_mask_lets_a_word_see_itself():
    """One slide masks "the present and the future"; then the first word would see nothing."""
    model, q = One(causal=True), torch.randn(1, 1, 4, 8)
    with capture(model) as tape:
        model(q, q, q)
    weights = tape.attention(0, 0)[0]
    assert torch.all(weights.diagonal() > 0)
    assert torch.equal(weights, weights.tril())
    assert weights[0, 0] == 1


def test_eight_heads_cost_what_one_of_full_width_costs():
    """Each head has an eighth of the width: as many numbers and operations in all."""
    x, counts = torch.rand(2, 10, 64), []
    for heads in (1, 8):
        layer = MultiHeadAttention(64, heads)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            layer(x)
        counts.append((sum(p.numel() for p in layer.parameters()), counter.get_total_flops()))
    projections, pairs = 2 * 20 * 64 * 4 * 64, 2 * 2 * 2 * 10 * 10 * 64
    assert counts == [(4 * 64 * 65, projections + pairs)] * 2


def test_xavier_fades_through_relu_and_not_through_tanh():
    """With ReLU each layer halves the mean square; He's weights, of twice the variance, keep it."""
    torch.manual_seed(0)
    spread = {}
    he = partial(nn.init.kaiming_uniform_, nonlinearity="relu")
    for name, fill, function in (
        ("tanh", nn.init.xavier_uniform_, torch.tanh),
        ("relu", nn.init.xavier_uniform_, torch.relu),
        ("he", he, torch.relu),
    ):
        x = torch.randn(64, 256)
        for _ in range(30):
            weight = torch.empty(256, 256)
            fill(weight)
            x = function(x @ weight.T)
        spread[name] = float(x.square().mean().sqrt())
    assert spread["relu"] == pytest.approx(2**-15, rel=0.7)
    assert spread["tanh"] > 0.05
    assert spread["he"] == pytest.approx(1.0, rel=0.7)


def test_the_slides_masks_of_padding_are_for_one_sentence():
    """A mask (batch, words) with one more axis in front of the words lines up with heads, not with sentences."""
    scores, mask = torch.zeros(2, 8, 5, 5), torch.ones(2, 5)
    with pytest.raises(RuntimeError, match="must match"):
        scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
    mask[1, 3:] = 0
    weights = scores.masked_fill(mask[:, None, None] == 0, -1e9).softmax(-1)
    assert torch.all(weights[1, :, :, 3:] == 0)
    values = torch.rand(2, 8, 5, 4)
    ours = attend(torch.zeros(2, 8, 5, 4), torch.zeros(2, 8, 5, 4), values, mask=mask[:, None, None].bool())
    torch.testing.assert_close(ours, weights @ values)
