"""Swin both ways with timm and torchvision; in three dimensions, a block of MONAI's."""

from functools import partial
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

timm = pytest.importorskip("timm")
models = pytest.importorskip("torchvision.models")
swin_unetr = pytest.importorskip("monai.networks.nets.swin_unetr")

from timm.models.swin_transformer import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    SwinTransformer,
    checkpoint_filter_fn,
)

import regard  # noqa: E402
from regard.networks.swin.config import SwinConfig  # noqa: E402
from regard.networks.swin.network import Swin  # noqa: E402
from regard.nn.windows import WindowBlock, WindowBlockConfig, Windows, relative_rows, shift_mask  # noqa: E402
from regard.registry import MODELS  # noqa: E402
from regard.weights import convert  # noqa: E402
from regard.weights.swin_names import TIMM_SWIN, TORCHVISION_SWIN  # noqa: E402
from tests.weights.parity import assert_close, assert_equal, picture, randomise, save_own  # noqa: E402

SHAPE: dict[str, Any] = {"embed_dim": 8, "depths": (2, 3), "num_heads": (2, 4), "mlp_ratio": 2.0, "num_classes": 5}


def of_timm(size: tuple[int, int], window: Any = 3, **fields: Any) -> SwinTransformer:
    return randomise(SwinTransformer(img_size=size, patch_size=4, window_size=window, **SHAPE | fields))


def of_torchvision(window: tuple[int, int] = (3, 3)) -> Any:
    return randomise(models.SwinTransformer([4, 4], window_size=list(window), stochastic_depth_prob=0.0, **SHAPE))


# Whole windows; a second stage of 3 × 6 tokens, shifted along one axis; of 2 × 6, with smaller windows; windows that
# are not square; and, without shifts, windows and merges that need padding.
TIMM = [
    ((48, 48), 3, {}),
    ((24, 48), 3, {}),
    ((16, 48), 3, {"depths": (1, 3)}),
    ((24, 48), (3, 4), {"depths": (2, 1)}),
    ((40, 56), 3, {"depths": (1, 1)}),
]


@pytest.mark.parametrize(("size", "window", "fields"), TIMM, ids=str)
def test_timm_both_ways(size, window, fields, tmp_path):
    theirs = of_timm(size, window, **fields)
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    read = partial(regard.create, weights=tmp_path / "theirs.safetensors", quiet=True, size=size)
    ours = (read(window=window) if isinstance(window, tuple) else read()).eval()
    assert (ours.loaded.format, ours.config.size) == ("timm", size)
    with torch.no_grad():
        assert_close(ours(picture(*size)).logits, theirs(picture(*size)))
        assert_close(ours(picture(*size)).tokens, theirs.forward_features(picture(*size)).flatten(1, 2))
    asked: dict[str, Any] = {"window": window} if isinstance(window, tuple) else {}
    convert(tmp_path / "theirs.safetensors", tmp_path / "back.safetensors", to="timm", size=size, **asked)
    back = load_file(tmp_path / "back.safetensors")
    assert_equal(back, theirs.state_dict())
    theirs.load_state_dict(back, strict=True)


def test_timm_rolls_before_it_pads():
    """Why there is no parity with timm where shifted windows need padding: it differs from torchvision's as well.

    Its mask is that of a padded grid, but its tokens were rolled on the grid without padding.
    """
    other = of_torchvision()
    for size, padded in ((48, False), (40, True)):
        theirs = of_timm((size, size))
        state, _ = TIMM_SWIN.read(theirs.state_dict())
        written, _ = TORCHVISION_SWIN.write(state, SwinConfig(patch=(4, 4)))
        other.load_state_dict(written, strict=False)  # theirs has indices too
        with torch.no_grad():
            apart = (theirs(picture(size, size)) - other(picture(size, size))).abs().max()
        assert apart > 1e-2 if padded else apart < 1e-5


def test_timms_reader_of_microsofts_names_takes_our_file(tmp_path):
    theirs = of_timm((48, 48))
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    convert(tmp_path / "theirs.safetensors", tmp_path / "ms.safetensors", to="microsoft", size=48)
    microsoft = load_file(tmp_path / "ms.safetensors")
    assert {"layers.0.blocks.1.attn_mask", "layers.0.downsample.norm.weight", "head.weight"} <= set(microsoft)
    other = randomise(of_timm((48, 48)), seed=1)
    other.load_state_dict(checkpoint_filter_fn(microsoft, other), strict=True)
    assert_equal(other.state_dict(), theirs.state_dict())
    ours = regard.create(weights=tmp_path / "ms.safetensors", quiet=True).eval()
    assert ours.loaded.format == "microsoft"
    with torch.no_grad():
        assert_close(ours(picture(48, 48)).logits, theirs(picture(48, 48)))


# Whole windows; windows and merges that need padding; a grid of 2 × 5 tokens, smaller than a window.
TORCHVISION_SIZES = [(48, 48), (40, 52), (44, 56), (20, 40)]


@pytest.mark.parametrize("window", [(3, 3), (2, 4)], ids=str)
def test_torchvision_both_ways_at_every_size(window, tmp_path):
    theirs = of_torchvision(window)
    torch.save(theirs.state_dict(), tmp_path / "swin.pth")
    ours = regard.create(weights=tmp_path / "swin.pth", window=window, quiet=True).eval()
    assert (ours.loaded.format, ours.config.window, ours.config.small_grid) == ("torchvision", window, "pad")
    for size in TORCHVISION_SIZES:
        with torch.no_grad():
            assert_close(ours(picture(*size)).logits, theirs(picture(*size)))
    convert(tmp_path / "swin.pth", tmp_path / "back.safetensors", to="torchvision", window=window)
    back = load_file(tmp_path / "back.safetensors")
    assert_equal(back, theirs.state_dict())
    theirs.load_state_dict(back, strict=True)


def test_our_own_model_answers_the_same_in_each_library(tmp_path):
    """From ours to theirs: a rectangle with shifted windows."""
    ours = randomise(
        Swin(SwinConfig(size=(48, 72), width=8, depths=(2, 3), heads=(2, 4), window=(3, 3), mlp_ratio=2.0, classes=5))
    )
    save_own(ours, tmp_path / "ours.safetensors")
    for to, theirs in {"timm": of_timm((48, 72)), "torchvision": of_torchvision()}.items():
        convert(tmp_path / "ours.safetensors", tmp_path / f"{to}.safetensors", to=to)
        theirs.load_state_dict(load_file(tmp_path / f"{to}.safetensors"), strict=True)
        with torch.no_grad():
            assert_close(theirs(picture(48, 72)), ours(picture(48, 72)).logits)


def test_published_models_are_ours():
    """Names, shapes and counts of real variants, on no memory."""
    names = {
        "swin_tiny_patch4_window7_224": "swin_t",
        "swin_small_patch4_window7_224": "swin_s",
        "swin_base_patch4_window7_224": "swin_b",
        "swin_base_patch4_window12_384": "swin_b12",
        "swin_large_patch4_window7_224": "swin_l",
        "swin_large_patch4_window12_384": "swin_l12",
    }
    for name, called in names.items():
        with torch.device("meta"):
            theirs, ours = timm.create_model(name, num_classes=1000), regard.create(called)
            assert sum(p.numel() for p in theirs.parameters()) == MODELS[called].parameters
            written, unknown = TIMM_SWIN.write(ours.state_dict(), ours.config)
        assert not unknown
        assert {k: v.shape for k, v in written.items()} == {k: v.shape for k, v in theirs.state_dict().items()}
    for called in ("swin_t", "swin_s", "swin_b"):
        with torch.device("meta"):
            theirs = getattr(models, called)()
        assert sum(p.numel() for p in theirs.parameters()) == MODELS[called].parameters


@pytest.mark.parametrize("name", ["swinv2_tiny_window8_256", "swinv2_cr_tiny_224", "torchvision"])
def test_swin_v2_is_refused_by_name(name, tmp_path):
    if name == "torchvision":
        parts: Any = models.swin_transformer
        block, merge = parts.SwinTransformerBlockV2, parts.PatchMergingV2
        theirs = models.SwinTransformer([4, 4], 24, [1, 1], [1, 2], [4, 4], block=block, downsample_layer=merge)
    else:
        theirs = timm.create_model(name, embed_dim=24, depths=(1, 1, 1, 1), num_heads=(1, 2, 3, 4))
    save_file(theirs.state_dict(), tmp_path / "v2.safetensors")
    with pytest.raises(regard.RegardError, match="Swin V2, as its tensors are named"):
        regard.create(weights=tmp_path / "v2.safetensors")


@pytest.mark.parametrize("grid", [(8, 8, 8), (7, 9, 10), (3, 9, 6)], ids=str)
@pytest.mark.parametrize("shifted", [False, True])
def test_a_block_of_monai_in_three_dimensions(grid, shifted):
    """Padded or not, shifted or not; along a short axis it is not shifted."""
    window = (4, 4, 4) if grid[0] >= 4 else (3, 4, 4)
    wanted = tuple(side // 2 * shifted for side in window)
    theirs = randomise(swin_unetr.SwinTransformerBlock(8, 2, window, wanted, mlp_ratio=2.0))
    used, shift = swin_unetr.get_window_size(grid, window, wanted)
    assert used == window
    padded = tuple(-(-side // each) * each for side, each in zip(grid, window, strict=True))
    theirs_mask = swin_unetr.compute_mask(padded, used, shift, "cpu") if any(shift) else None
    block = WindowBlock(WindowBlockConfig(8, 2, 16, eps=1e-5, window=window)).eval()
    names = {"attn.qkv": "attention.qkv", "attn.proj": "attention.out", "mlp.linear1": "mlp.up",
             "mlp.linear2": "mlp.down", "attn.relative_position_bias_table": "attention.positions.table"}  # fmt: skip
    state = {}
    for key, tensor in theirs.state_dict().items():
        if key.endswith("relative_position_index"):
            assert torch.equal(tensor, relative_rows(window, window))
            continue
        for a, b in names.items():
            key = key.replace(a, b)
        state[key] = tensor
    block.load_state_dict(state)
    x = torch.randn(2, *grid, 8, generator=torch.Generator().manual_seed(7))
    windows = Windows(window, shift, relative_rows(window, window), shift_mask(grid, window, shift))
    with torch.no_grad():
        assert_close(block(x, windows), theirs(x, theirs_mask))
