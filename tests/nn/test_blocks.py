"""Encoder blocks against PyTorch's own, and the small parts against their definitions."""

import pytest
import torch
from torch import nn

from regard.nn import MLP, BlockConfig, DropPath, EncoderBlock, LayerScale


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_encoder_block_against_torch(norm, activation):
    torch.manual_seed(0)
    ours = EncoderBlock(BlockConfig(16, 4, 40, norm=norm, activation=activation, eps=1e-5))
    theirs = nn.TransformerEncoderLayer(
        16, 4, 40, dropout=0.0, activation=activation, batch_first=True, norm_first=norm == "pre"
    )
    for p in ours.parameters():
        nn.init.normal_(p, std=0.3)
    names = {
        "self_attn.in_proj_": "attention.qkv.",
        "self_attn.out_proj.": "attention.out.",
        "linear1.": "mlp.up.",
        "linear2.": "mlp.down.",
        "norm1.": "norm1.",
        "norm2.": "norm2.",
    }
    own = ours.state_dict()
    mapped = {}
    for key in theirs.state_dict():
        prefix = next(p for p in names if key.startswith(p))
        mapped[key] = own.pop(names[prefix] + key.removeprefix(prefix))
    assert not own
    theirs.load_state_dict(mapped)
    x = torch.randn(3, 6, 16)
    padding = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]]).bool()
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=1e-5)
    masked = theirs(x, src_key_padding_mask=~padding)
    torch.testing.assert_close(ours(x, mask=padding[:, None, None])[padding], masked[padding], atol=1e-5, rtol=1e-5)


def test_drop_path_drops_whole_samples_and_keeps_the_mean():
    torch.manual_seed(0)
    layer, x = DropPath(0.3), torch.ones(20_000, 2, 3)
    out = layer(x)
    torch.testing.assert_close(out.unique(), torch.tensor([0.0, 1 / 0.7]))
    assert (out == out[:, :1, :1]).all()
    assert out.mean().item() == pytest.approx(1.0, abs=0.02)
    assert layer.eval()(x) is x


def test_layer_scale_starts_where_it_is_told():
    assert torch.equal(LayerScale(4, 0.1)(torch.ones(2, 4)), torch.full((2, 4), 0.1))


def test_mlp_works_on_each_token_by_itself():
    mlp, x = MLP(8, 16), torch.randn(1, 5, 8)
    torch.testing.assert_close(mlp(x)[:, 2], mlp(x[:, 2]))
