"""Swin Transformers in the names of Microsoft's code, timm, torchvision and transformers."""

from __future__ import annotations

from torch import Tensor

from regard.networks.swin.config import SwinConfig
from regard.weights.names import INDEX, Format, Row, Shape, both

TABLE, ROWS, MASK = "attention.positions.table", "attention.rows", "mask"
"""Of a block: the bias table, and two buffers that other libraries keep and ours computes."""
MOST_STAGES = 8
"""Stages for which torchvision's numbers are listed."""


def _kernel(t: Tensor, config: SwinConfig) -> Tensor:
    return t.reshape(len(t), -1, *config.patch)


PATCH = Shape(lambda t: t, _kernel)  # flattened to a matrix once its sides have been read off
FLAT_ROWS = Shape(lambda t: t, lambda t, _: t.flatten())

_WRAPPED = (r"^(module\.|_orig_mod\.|backbone\.|model\.)+", "")


def _stem(patches: str, norm: str) -> tuple[Row, ...]:
    first = Row("patches.project.weight", f"{patches}.weight", PATCH), Row("patches.project.bias", f"{patches}.bias")
    return (*first, *both("patch_norm", norm))


def _merge(ours: str, theirs: str) -> tuple[Row, ...]:
    return (*both(f"{ours}.norm", f"{theirs}.norm"), Row(f"{ours}.project.weight", f"{theirs}.reduction.weight"))


def _block(ours: str, theirs: str, up: str, down: str) -> tuple[Row, ...]:
    return (
        *both(f"{ours}.norm1", f"{theirs}.norm1"),
        Row(f"{ours}.{TABLE}", f"{theirs}.attn.relative_position_bias_table"),
        *both(f"{ours}.attention.qkv", f"{theirs}.attn.qkv"),
        *both(f"{ours}.attention.out", f"{theirs}.attn.proj"),
        *both(f"{ours}.norm2", f"{theirs}.norm2"),
        *both(f"{ours}.mlp.up", f"{theirs}.mlp.{up}"),
        *both(f"{ours}.mlp.down", f"{theirs}.mlp.{down}"),
    )


_OURS, _LAYER = "stages.{s}.blocks.{b}", "layers.{s}.blocks.{b}"
_TABLE_SIGN = "layers.0.blocks.0.attn.relative_position_bias_table"

MICROSOFT = Format(
    "microsoft",
    (
        *_stem("patch_embed.proj", "patch_embed.norm"),
        *_block(_OURS, _LAYER, "fc1", "fc2"),
        Row(f"{_OURS}.{ROWS}", f"{_LAYER}.attn.{INDEX}"),
        Row(f"{_OURS}.{MASK}", f"{_LAYER}.attn_mask"),
        *_merge("stages.{s}.merge", "layers.{s}.downsample"),
        *both("norm", "norm"),
        *both("head", "head"),
    ),
    sign=("patch_embed.proj.weight", _TABLE_SIGN, "layers.0.downsample.reduction.weight|head.weight"),
    spellings=(_WRAPPED,),
    spare=r"mask_token",
    eps=1e-5,
)

TIMM_SWIN = Format(
    "timm",
    (
        *_stem("patch_embed.proj", "patch_embed.norm"),
        *_block(_OURS, _LAYER, "fc1", "fc2"),
        *_merge("stages.{s}.merge", "layers.{s+1}.downsample"),
        *both("norm", "norm"),
        *both("head", "head.fc"),
    ),
    sign=("patch_embed.proj.weight", _TABLE_SIGN),
    spellings=(_WRAPPED,),
    eps=1e-5,
)

# Stem, stage, merge, stage, merge, … are numbered through.
TORCHVISION_SWIN = Format(
    "torchvision",
    (
        *_stem("features.0.0", "features.0.2"),
        *(
            row
            for s in range(MOST_STAGES)
            for row in (
                *_block(f"stages.{s}.blocks.{{b}}", f"features.{2 * s + 1}.{{b}}", "0", "3"),
                Row(f"stages.{s}.blocks.{{b}}.{ROWS}", f"features.{2 * s + 1}.{{b}}.attn.{INDEX}", FLAT_ROWS),
                *_merge(f"stages.{s}.merge", f"features.{2 * s + 2}"),
            )
        ),
        *both("norm", "norm"),
        *both("head", "head"),
    ),
    sign=("features.0.0.weight", "features.1.0.attn.relative_position_bias_table"),
    spellings=((r"^(module\.|_orig_mod\.|model\.)+", ""),),
    eps=1e-5,
)

_HF_BLOCK = "encoder.layers.{s}.blocks.{b}"

HF_SWIN = Format(
    "hf",
    (
        *_stem("embeddings.patch_embeddings.projection", "embeddings.norm"),
        *both(f"{_OURS}.norm1", f"{_HF_BLOCK}.layernorm_before"),
        Row(f"{_OURS}.{TABLE}", f"{_HF_BLOCK}.attention.self.relative_position_bias_table"),
        Row(f"{_OURS}.{ROWS}", f"{_HF_BLOCK}.attention.self.{INDEX}"),
        *both(f"{_OURS}.attention.qkv", f"{_HF_BLOCK}.attention.self.[query|key|value]"),
        *both(f"{_OURS}.attention.out", f"{_HF_BLOCK}.attention.output.dense"),
        *both(f"{_OURS}.norm2", f"{_HF_BLOCK}.layernorm_after"),
        *both(f"{_OURS}.mlp.up", f"{_HF_BLOCK}.intermediate.dense"),
        *both(f"{_OURS}.mlp.down", f"{_HF_BLOCK}.output.dense"),
        *_merge("stages.{s}.merge", "encoder.layers.{s}.downsample"),
        *both("norm", "layernorm"),
        *both("head", "classifier"),
    ),
    sign=(
        "embeddings.patch_embeddings.projection.weight",
        "encoder.layers.0.blocks.0.attention.self.relative_position_bias_table",
    ),
    # Version 5 keeps shorter names in memory and in some files; on disk it usually writes version 4's.
    spellings=(
        (r"^(module\.|_orig_mod\.|swin\.)+", ""),
        (r"\.attention\.q_proj\.", ".attention.self.query."),
        (r"\.attention\.k_proj\.", ".attention.self.key."),
        (r"\.attention\.v_proj\.", ".attention.self.value."),
        (r"\.attention\.o_proj\.", ".attention.output.dense."),
        (r"\.attention\.relative_position_bias\.", ".attention.self."),
        (r"\.mlp\.fc1\.", ".intermediate.dense."),
        (r"\.mlp\.fc2\.", ".output.dense."),
    ),
    spare=r"embeddings\.mask_token|decoder\..*",
    eps=1e-5,
)

SWIN_FORMATS = (MICROSOFT, TIMM_SWIN, TORCHVISION_SWIN, HF_SWIN)
"""In the order they are tried: timm's names are Microsoft's but for merges and head."""
