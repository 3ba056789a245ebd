"""The hybrid's ResNet against arithmetic done by hand; tests/oracles compares it with timm's."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import regard
from regard.errors import ConfigError
from regard.networks.resnet.bit import HybridStem, StandardisedConv, pad_same
from regard.networks.vit import network as vit


@pytest.fixture
def hybrid(monkeypatch):
    monkeypatch.setitem(vit.STEMS, "r50", partial(HybridStem, blocks=(1, 1, 1), base=32))
    torch.manual_seed(0)
    return regard.create("vit_nano", stem="r50", patch=16, size=(32, 48), classes=4, depth=2)


def test_standardised_weights_have_mean_zero_and_variance_one():
    conv, x = StandardisedConv(3, 5, 3), torch.randn(2, 3, 8, 8)
    weight = conv.weight.detach().double().flatten(1)
    weight = (weight - weight.mean(1, keepdim=True)) / (weight.var(1, correction=0, keepdim=True) + 1e-8).sqrt()
    expected = F.conv2d(x.double(), weight.unflatten(1, (3, 3, 3)), padding=1)
    torch.testing.assert_close(conv(x).double(), expected, atol=1e-5, rtol=1e-5)
    before = conv(x)
    with torch.no_grad():
        conv.weight.mul_(7).add_(2)
    torch.testing.assert_close(conv(x), before, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("side", "kernel", "stride"), [(8, 3, 2), (7, 3, 2), (224, 7, 2), (5, 1, 2), (6, 3, 1)])
def test_same_padding_gives_every_stride_one_output(side, kernel, stride):
    padded = pad_same(torch.ones(1, 1, side, side + 1), kernel, stride)
    out = F.max_pool2d(padded, kernel, stride)
    assert out.shape[2:] == (-(-side // stride), -(-(side + 1) // stride))
    missing = padded.shape[2] - side
    middle = padded[0, 0, :, padded.shape[3] // 2]
    assert middle.tolist() == [0] * (missing // 2) + [1] * side + [0] * (missing - missing // 2)


@pytest.mark.parametrize("size", [(32, 48), (33, 17), (16, 16), (40, 70)])
def test_tokens_are_those_of_patches_of_sixteen(hybrid, size):
    out = hybrid.eval()(torch.randn(2, 3, *size))
    assert out.tokens.shape[1] == hybrid.token_map(size).tokens


def test_only_patches_of_sixteen():
    with pytest.raises(ConfigError, match=r"stem='r50' cannot make patches of \(4, 4\)"):
        regard.create("vit_nano", stem="r50")


def test_compiled_and_exported_equal_eager(hybrid):
    x = torch.randn(2, 3, 32, 48)
    nn.init.normal_(hybrid.eval().head.weight)
    expected = hybrid(x).logits
    compiled = torch.compile(hybrid, fullgraph=True, dynamic=False, backend="aot_eager")
    torch.testing.assert_close(compiled(x).logits, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.export.export(hybrid, (x,)).module()(x).logits, expected, atol=1e-5, rtol=1e-5)


def test_overfits_one_batch(hybrid):
    x, y = torch.randn(4, 3, 32, 48), torch.arange(4)
    optimizer = torch.optim.AdamW(hybrid.parameters(), lr=1e-3)
    loss = torch.tensor(torch.inf)
    for _ in range(80):
        loss = F.cross_entropy(hybrid(x).logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    assert hybrid.patches.root.weight.grad.abs().max() > 0
