"""Residual networks: published counts, shapes, training, and answers equal to transformers'."""

from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F

import regard
from regard.errors import ConfigError
from regard.networks.resnet.config import VARIANTS, ResNetConfig
from regard.networks.resnet.network import BatchNorm, ResNet
from regard.registry import MODELS
from regard.weights.resnet import HF_BIT, HF_RESNET
from tests.weights.parity import assert_close, picture, randomise

# He et al. (2016) as torchvision counts them; BiT's from transformers (below).
PUBLISHED = {"resnet18": 11_689_512, "resnet34": 21_797_672, "resnet50": 25_557_032, "resnet101": 44_549_160}


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name):
    with torch.device("meta"):
        assert count(regard.create(name)) == MODELS[name].parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", VARIANTS)
def test_counts_are_those_of_transformers(name):
    kind, width, blocks, side = VARIANTS[name]
    sizes = [width * 2**n * (1 if kind == "basic" else 4) for n in range(len(blocks))]
    fields = {"embedding_size": width, "hidden_sizes": sizes, "depths": list(blocks), "num_labels": 1000}
    with torch.device("meta"):
        if kind == "bit":
            theirs = transformers.BitForImageClassification(transformers.BitConfig(**fields))
        else:
            theirs = transformers.ResNetForImageClassification(transformers.ResNetConfig(**fields, layer_type=kind))
    stem = (49 - 9) * 3 * width if side <= 64 else 0
    assert count(theirs) - stem == MODELS[name].parameters


def small(kind: str = "basic", **changes) -> ResNet:
    fields = {"size": (32, 48), "width": 32 if kind == "bit" else 8, "blocks": (2, 1, 1), "kind": kind, "classes": 5}
    return randomise(ResNet(ResNetConfig(**fields | changes)))


@pytest.mark.parametrize("kind", ["basic", "bottleneck", "bit"])
@pytest.mark.parametrize("stem", ["large", "small"])
@pytest.mark.parametrize("size", [(32, 48), (33, 17), (8, 8), (5, 70)])
def test_tokens_stand_where_the_map_says(kind, stem, size):
    model = small(kind, stem=stem)
    out, where = model(torch.randn(2, 3, *size)), model.token_map(size)
    assert out.logits.shape == (2, 5)
    assert out.tokens.shape == (2, where.tokens, model.config.features)
    assert where.cell == ((4, 4) if stem == "small" else (16, 16))
    torch.testing.assert_close(out.features, out.tokens.mean(1))


@pytest.mark.parametrize("kind", ["basic", "bit"])
def test_a_token_sees_its_own_cell_most(kind):
    """The gradient of a token is centred on the box that the map gives it."""
    model = small(kind, stem="small", size=(32, 32))
    x = torch.randn(1, 3, 32, 32, requires_grad=True)
    where = model.token_map()
    token = where.grid[1] * 3 + 5
    slopes = torch.autograd.grad(model(x).tokens[0, token].sum(), x)[0].abs().sum((0, 1))
    places = torch.arange(32.0)
    centre = [float((slopes.sum(1 - axis) * places).sum() / slopes.sum()) for axis in (0, 1)]
    for at, (start, stop) in zip(centre, where.box(token), strict=True):
        assert start - 2 <= at <= stop + 1, (centre, where.box(token))


@pytest.mark.parametrize(("size", "stem"), [(32, "small"), (64, "small"), ((64, 65), "large"), (224, "large")])
def test_the_stem_follows_the_size_unless_it_is_said(size, stem):
    with torch.device("meta"):
        assert regard.create("resnet18", size=size).config.stem == stem
        assert regard.create("resnet18", size=size, stem="large").config.stem == "large"
        assert regard.create("resnet18", size=size, stem="small").root.kernel_size == (3, 3)


def test_wrong_inputs_and_fields_are_refused():
    with pytest.raises(ConfigError, match="does not fit"):
        small()(torch.randn(2, 1, 32, 32))
    with pytest.raises(ConfigError, match="ResNetConfig has no field 'patch'"):
        regard.create("resnet18", patch=4)
    with pytest.raises(ConfigError, match="at least 1 block"):
        regard.create("resnet18", blocks=(2, 0))
    with pytest.raises(ConfigError, match="multiple of 32"):
        regard.create("bit_r50x1", width=48)
    with pytest.raises(ConfigError, match="size="):
        regard.create("resnet18", size=(8, 8, 8))


@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
@pytest.mark.parametrize("size", [(64, 48), (33, 70)])
def test_against_transformers_resnet(kind, size):
    widths = [8, 16, 32] if kind == "basic" else [32, 64, 128]
    fields = {"embedding_size": 8, "hidden_sizes": widths, "depths": [2, 1, 1], "layer_type": kind, "num_labels": 5}
    theirs = randomise(transformers.ResNetForImageClassification(transformers.ResNetConfig(**fields)))
    ours = small(kind, stem="large")
    ours.load_state_dict(HF_RESNET.read(theirs.state_dict())[0])
    with torch.no_grad():
        out, expected = ours(picture(*size)), theirs(picture(*size), output_hidden_states=True)
    assert_close(out.logits, expected.logits)
    assert_close(out.tokens, expected.hidden_states[-1].flatten(2).transpose(1, 2))


@pytest.mark.parametrize("size", [(64, 48), (33, 70)])
def test_against_transformers_bit(size):
    fields = {"embedding_size": 32, "hidden_sizes": [128, 256, 512], "depths": [2, 1, 1], "num_labels": 5}
    theirs = randomise(transformers.BitForImageClassification(transformers.BitConfig(**fields)))
    ours = small("bit", stem="large")
    ours.load_state_dict(HF_BIT.read(theirs.state_dict())[0])
    with torch.no_grad():
        out, expected = ours(picture(*size)), theirs(picture(*size))
        last = theirs.bit(picture(*size)).last_hidden_state
    assert_close(out.logits, expected.logits)
    assert_close(out.tokens, last.flatten(2).transpose(1, 2))


def test_one_picture_of_one_cell_does_not_stop_training():
    """A last batch of one has no variance where the feature map is a single cell."""
    norm, x = BatchNorm(3).train(), torch.randn(1, 3, 1, 1)
    torch.testing.assert_close(norm(x), x / (1 + norm.eps) ** 0.5)
    assert norm.num_batches_tracked == 0
    assert not torch.allclose(norm(torch.randn(2, 3, 1, 1)), x)
    assert norm.num_batches_tracked == 1
    small(stem="large", size=(8, 8)).train()(torch.randn(1, 3, 8, 8))


@pytest.mark.parametrize("kind", ["basic", "bottleneck", "bit"])
def test_compiled_and_exported_equal_eager(kind):
    model, x = small(kind), torch.randn(2, 3, 32, 48)
    expected = model(x).logits
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager")
    torch.testing.assert_close(compiled(x).logits, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x).logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["resnet_nano", "mlp_nano", "bit"])
def test_overfits_one_batch(name):
    torch.manual_seed(0)
    fields = {"width": 32, "blocks": (1, 1)} if name == "bit" else {}
    model = regard.create("bit_r50x1" if name == "bit" else name, size=(16, 16), classes=4, **fields).train()
    x, y = torch.randn(8, 3, 16, 16), torch.arange(8) % 4
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss = torch.tensor(torch.inf)
    for _ in range(40):
        loss = F.cross_entropy(model(x).logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05


def test_stochastic_depth_rises_to_the_last_block():
    model = small(drop_path=0.3)
    blocks: list[Any] = model.repeated()
    rates = [float(block.drop_path.rate) for block in blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3])
    x = torch.randn(4, 3, 32, 48)
    assert torch.equal(model(x).logits, model(x).logits)


@pytest.mark.parametrize("name", ["resnet34", "resnet101", "bit_r50x1", "mlp"])
def test_blocks_compile_to_no_more_graphs_than_dynamo_keeps(name):
    """Blocks of one shape share a graph; beyond its limit, blocks would silently stay uncompiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    fields = {} if name == "mlp" else {"width": 32 if name == "bit_r50x1" else 8, "drop_path": 0.1}
    model = regard.create(name, classes=3, size=32, **fields).train()
    for block in model.repeated():
        block.compile(dynamic=False, backend="eager")
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        model(torch.randn(2, 3, 32, 32))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
    torch._dynamo.reset()
