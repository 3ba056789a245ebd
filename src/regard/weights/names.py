"""What others call our tensors: one table a format, read in both directions.

A row says our name, theirs and how the shape differs. `{n}` is a number (`{n+1}` counts from one), and
`[query|key|value]` names the parts that ours holds stacked. Beside the state dict's own names, ours are
`head` for the last linear layer and `hidden` for the one before it where the head has two, and
`distilled` for DeiT's second token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.config import ViTConfig

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def _kernel(t: Tensor, config: ViTConfig) -> Tensor:
    """The patch projection as a convolution: (width, channels, *patch), or 1 × 1 after a ResNet."""
    sides = (1, 1) if config.stem == "r50" else config.patch
    return t.reshape(len(t), -1, *sides)


class Shape(NamedTuple):
    """The same numbers in another shape: theirs to ours, and back."""

    read: Callable[[Tensor], Tensor]
    write: Callable[[Tensor, Any], Tensor]


SAME = Shape(lambda t: t, lambda t, _: t)
ROWS = Shape(lambda t: t.flatten(0, -2), lambda t, _: t[None])  # (1, N, D) and (N, D)
PATCH = Shape(lambda t: t, _kernel)  # flattened to a matrix once its sides have been read off
# Flax keeps inputs first: dense (in, out), convolution (h, w, in, out), attention (in, heads, key), (heads, key, out).
DENSE = Shape(lambda t: t.transpose(0, 1), lambda t, _: t.T)
HWIO = Shape(lambda t: t.permute(3, 2, 0, 1), lambda t, _: t.permute(2, 3, 1, 0))
FLAX_PATCH = Shape(HWIO.read, lambda t, c: HWIO.write(_kernel(t, c), c))
HEADS_IN = Shape(lambda t: t.flatten(1).transpose(0, 1), lambda t, c: t.T.unflatten(1, (c.heads, -1)))
HEADS_BIAS = Shape(lambda t: t.flatten(), lambda t, c: t.unflatten(0, (c.heads, -1)))
HEADS_OUT = Shape(lambda t: t.flatten(0, 1).transpose(0, 1), lambda t, c: t.T.unflatten(0, (c.heads, -1)))
FLAT = Shape(lambda t: t.flatten(), lambda t, _: t)


class Row(NamedTuple):
    ours: str
    theirs: str
    shape: Shape = SAME


def _both(ours: str, theirs: str) -> tuple[Row, Row]:
    """Weight and bias under the same two names."""
    return Row(f"{ours}.weight", f"{theirs}.weight"), Row(f"{ours}.bias", f"{theirs}.bias")


def _flax(ours: str, theirs: str, weight: str = "kernel", shape: Shape = DENSE) -> tuple[Row, Row]:
    return Row(f"{ours}.weight", f"{theirs}/{weight}", shape), Row(f"{ours}.bias", f"{theirs}/bias", FLAT)


def _flax_norm(ours: str, theirs: str) -> tuple[Row, Row]:
    return _flax(ours, theirs, "scale", FLAT)


@dataclass(frozen=True)
class Format:
    """How one library names and shapes a model; what is said of tokens is for Vision Transformers."""

    name: str
    rows: tuple[Row, ...]
    sign: tuple[str, ...]
    """Names that every file of this format has."""
    spellings: tuple[tuple[str, str], ...] = ()
    """Other versions' names (a regular expression) and how the rows spell them."""
    spare: str = r"(?!)"
    """Names that may be left out without changing the class token's answer, as a regular expression."""
    eps: float = 1e-6
    statistics: tuple[tuple[float, ...], tuple[float, ...]] = IMAGENET
    """Mean and standard deviation its images are usually normalised with."""
    prefix: tuple[str, ...] = ("class",)
    """Which tokens the position table may have rows for: "class", "all" (registers too) or "none"."""
    needs_class: bool = True
    """Its models always have a class token."""
    square: bool = False
    """Its models take only square grids."""

    def respell(self, name: str) -> str:
        for pattern, replacement in self.spellings:
            name = re.sub(pattern, replacement, name)
        return name

    def knows(self, name: str) -> bool:
        return _translate(self.respell(name), self.rows, "theirs") is not None

    def read(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
        """Our names and shapes, and the names that are of no use. A part that is missing leaves its whole out."""
        state: dict[str, Tensor] = {}
        parts: dict[str, dict[str, Tensor]] = {}
        origins: dict[tuple[str, str], str] = {}
        unknown: list[str] = []
        for original, tensor in tensors.items():
            found = _translate(self.respell(original), self.rows, "theirs")
            if found is None:
                unknown.append(original)
                continue
            row, ours, part = found
            first = origins.setdefault((ours, part), original)
            if first != original:  # two spellings in one file: neither is the right one
                unknown.append(f"{original} (a second {first})")
                continue
            try:
                value = row.shape.read(tensor)
            except (RuntimeError, IndexError):  # a shape this name cannot have; the comparison will say so
                value = tensor
            if part:
                parts.setdefault(ours, {})[part] = value
            else:
                state[ours] = value
        for ours, held in parts.items():
            order = _parts(next(row for row in self.rows if _pattern(row.ours).fullmatch(ours)).theirs)
            shapes = {tensor.shape for tensor in held.values()}
            floats = all(t.is_floating_point() and t.element_size() > 1 for t in held.values())  # others do not mix
            if set(held) == set(order) and len(shapes) == 1 and all(map(len, shapes)) and floats:
                state[ours] = torch.cat([held[part] for part in order])
            else:
                unknown += [f"{ours} ({', '.join(f'{part} {tuple(held[part].shape)}' for part in held)})"]
        return state, unknown

    def write(self, state: Mapping[str, Tensor], config: Any) -> tuple[dict[str, Tensor], list[str]]:
        """Their names and shapes, and those of our names they have no word for."""
        tensors: dict[str, Tensor] = {}
        unknown: list[str] = []
        for ours, tensor in state.items():
            found = _translate(ours, self.rows, "ours")
            if found is None:
                unknown.append(ours)
                continue
            row, theirs, _ = found
            names = _parts(theirs) or ("",)
            values = tensor.chunk(len(names)) if len(names) > 1 else (tensor,)
            for part, value in zip(names, values, strict=True):
                name = re.sub(r"\[.*\]", part, theirs)
                tensors[name] = row.shape.write(value, config).contiguous()
        return tensors, unknown

    def called(self, ours: str) -> str | None:
        """Their name for a tensor of ours, if they have one."""
        found = _translate(ours, self.rows, "ours")
        return found and found[1]


def _parts(pattern: str) -> tuple[str, ...]:
    group = re.search(r"\[(.*)\]", pattern)
    return tuple(group.group(1).split("|")) if group else ()


@cache
def _pattern(text: str) -> re.Pattern[str]:
    escaped = re.escape(text)
    escaped = re.sub(r"\\\{(\w)(\\\+1)?\\\}", r"(?P<\1>\\d{1,4})", escaped)
    escaped = re.sub(r"\\\[(.*)\\\]", lambda m: f"(?P<part>{m.group(1).replace(chr(92), '')})", escaped)
    return re.compile(escaped)


def _translate(name: str, rows: tuple[Row, ...], side: str) -> tuple[Row, str, str] | None:
    """The row that has `name` on one side, the name on the other side, and which part it is."""
    for row in rows:
        here, there = (row.ours, row.theirs) if side == "ours" else (row.theirs, row.ours)
        found = _pattern(here).fullmatch(name)
        if found:
            numbers = found.groupdict()
            part = numbers.pop("part", "") or ""
            for letter, number in numbers.items():
                value = int(number) - (f"{{{letter}+1}}" in here)
                there = there.replace(f"{{{letter}+1}}", str(value + 1)).replace(f"{{{letter}}}", str(value))
            return row, there, part
    return None


_WRAPPED = ((r"^(module\.|_orig_mod\.|backbone\.|encoder\.(?=blocks|cls_token)|model\.)+", ""),)

_TIMM_BLOCKS = (
    *_both("blocks.{n}.norm1", "blocks.{n}.norm1"),
    *_both("blocks.{n}.attention.qkv", "blocks.{n}.attn.qkv"),
    *_both("blocks.{n}.attention.out", "blocks.{n}.attn.proj"),
    Row("blocks.{n}.scale1.scale", "blocks.{n}.ls1.gamma"),
    *_both("blocks.{n}.norm2", "blocks.{n}.norm2"),
    *_both("blocks.{n}.mlp.up", "blocks.{n}.mlp.fc1"),
    *_both("blocks.{n}.mlp.down", "blocks.{n}.mlp.fc2"),
    Row("blocks.{n}.scale2.scale", "blocks.{n}.ls2.gamma"),
)

_TIMM_STEM = (
    Row("class_token", "cls_token", ROWS),
    Row("positions.table", "pos_embed", ROWS),
    Row("patches.project.weight", "patch_embed.proj.weight", PATCH),
    Row("patches.project.bias", "patch_embed.proj.bias"),
)

_RESNET = "patch_embed.backbone."
_UNIT = _RESNET + "stages.{s}.blocks.{u}."

TIMM = Format(
    "timm",
    (
        *_TIMM_STEM,
        Row("registers", "reg_token", ROWS),
        Row("distilled", "dist_token", ROWS),
        *_TIMM_BLOCKS,
        *_both("norm", "norm"),
        *_both("hidden", "pre_logits.fc"),
        *_both("head", "head"),
        Row("patches.root.weight", _RESNET + "stem.conv.weight"),
        *_both("patches.root_norm", _RESNET + "stem.norm"),
        Row("patches.stages.{s}.{u}.conv{c}.weight", _UNIT + "conv{c}.weight"),
        *_both("patches.stages.{s}.{u}.norm{c}", _UNIT + "norm{c}"),
        Row("patches.stages.{s}.{u}.shortcut.weight", _UNIT + "downsample.conv.weight"),
        *_both("patches.stages.{s}.{u}.shortcut_norm", _UNIT + "downsample.norm"),
    ),
    sign=("patch_embed.proj.weight", "blocks.0.attn.proj.weight", "pos_embed"),
    spellings=(*_WRAPPED, (r"\.gamma_([12])$", r".ls\1.gamma")),
    spare=r"head_dist\..*|mask_token|decoder_.*|(dino|ibot)_head\..*",
    prefix=("all", "none"),
    needs_class=False,
)

DINOV2 = Format(
    "dinov2",
    (*_TIMM_STEM, Row("registers", "register_tokens", ROWS), *_TIMM_BLOCKS, *_both("norm", "norm")),
    sign=("patch_embed.proj.weight", "blocks.0.attn.proj.weight", "pos_embed", "mask_token"),
    spellings=(*_WRAPPED, (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.")),
    spare=r"mask_token|(dino|ibot)_head\..*",
    square=True,
)

TORCHVISION = Format(
    "torchvision",
    (
        Row("class_token", "class_token", ROWS),
        Row("positions.table", "encoder.pos_embedding", ROWS),
        Row("patches.project.weight", "conv_proj.weight", PATCH),
        Row("patches.project.bias", "conv_proj.bias"),
        *_both("blocks.{n}.norm1", "encoder.layers.encoder_layer_{n}.ln_1"),
        Row("blocks.{n}.attention.qkv.weight", "encoder.layers.encoder_layer_{n}.self_attention.in_proj_weight"),
        Row("blocks.{n}.attention.qkv.bias", "encoder.layers.encoder_layer_{n}.self_attention.in_proj_bias"),
        *_both("blocks.{n}.attention.out", "encoder.layers.encoder_layer_{n}.self_attention.out_proj"),
        *_both("blocks.{n}.norm2", "encoder.layers.encoder_layer_{n}.ln_2"),
        *_both("blocks.{n}.mlp.up", "encoder.layers.encoder_layer_{n}.mlp.0"),
        *_both("blocks.{n}.mlp.down", "encoder.layers.encoder_layer_{n}.mlp.3"),
        *_both("norm", "encoder.ln"),
        *_both("hidden", "heads.pre_logits"),
        *_both("head", "heads.head"),
    ),
    sign=("conv_proj.weight", "encoder.pos_embedding", "encoder.ln.weight"),
    spellings=(
        (r"^(module\.|_orig_mod\.|model\.)+", ""),
        (r"\.mlp\.linear_1\.", ".mlp.0."),
        (r"\.mlp\.linear_2\.", ".mlp.3."),
    ),
    square=True,
)

_HF_STEM = (
    Row("class_token", "embeddings.cls_token", ROWS),
    Row("positions.table", "embeddings.position_embeddings", ROWS),
    Row("patches.project.weight", "embeddings.patch_embeddings.projection.weight", PATCH),
    Row("patches.project.bias", "embeddings.patch_embeddings.projection.bias"),
)
_HF_ATTENTION = (
    *_both("blocks.{n}.attention.qkv", "encoder.layer.{n}.attention.attention.[query|key|value]"),
    *_both("blocks.{n}.attention.out", "encoder.layer.{n}.attention.output.dense"),
)
# Version 5 keeps shorter names in memory and in some files; on disk it usually writes version 4's.
_HF_SPELLINGS = (
    (r"^(module\.|_orig_mod\.|vit\.|deit\.|dinov2\.|dinov2_with_registers\.)+", ""),
    (r"^layers\.(\d+)\.", r"encoder.layer.\1."),
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
)

HF = Format(
    "hf",
    (
        *_HF_STEM,
        Row("distilled", "embeddings.distillation_token", ROWS),
        *_both("blocks.{n}.norm1", "encoder.layer.{n}.layernorm_before"),
        *_HF_ATTENTION,
        *_both("blocks.{n}.norm2", "encoder.layer.{n}.layernorm_after"),
        *_both("blocks.{n}.mlp.up", "encoder.layer.{n}.intermediate.dense"),
        *_both("blocks.{n}.mlp.down", "encoder.layer.{n}.output.dense"),
        *_both("norm", "layernorm"),
        *_both("head", "classifier"),
    ),
    sign=("embeddings.cls_token", "encoder.layer.0.layernorm_before.weight"),
    spellings=(
        *_HF_SPELLINGS,
        (r"^cls_classifier\.", "classifier."),
        (r"\.mlp\.fc1\.", ".intermediate.dense."),
        (r"\.mlp\.fc2\.", ".output.dense."),
    ),
    spare=r"pooler\..*|distillation_classifier\..*|embeddings\.mask_token",
    eps=1e-12,
    statistics=HALF,
    prefix=("all",),
)

HF_DINOV2 = Format(
    "hf",
    (
        *_HF_STEM,
        Row("registers", "embeddings.register_tokens", ROWS),
        *_both("blocks.{n}.norm1", "encoder.layer.{n}.norm1"),
        *_HF_ATTENTION,
        Row("blocks.{n}.scale1.scale", "encoder.layer.{n}.layer_scale1.lambda1"),
        *_both("blocks.{n}.norm2", "encoder.layer.{n}.norm2"),
        *_both("blocks.{n}.mlp.up", "encoder.layer.{n}.mlp.fc1"),
        *_both("blocks.{n}.mlp.down", "encoder.layer.{n}.mlp.fc2"),
        Row("blocks.{n}.scale2.scale", "encoder.layer.{n}.layer_scale2.lambda1"),
        *_both("norm", "layernorm"),
        *_both("head", "classifier"),
    ),
    sign=("embeddings.cls_token", "encoder.layer.0.layer_scale1.lambda1"),
    spellings=_HF_SPELLINGS,
    spare=r"embeddings\.mask_token",
    square=True,
)

_BLOCK = "Transformer/encoderblock_{n}/"
_ATTENTION = _BLOCK + "MultiHeadDotProductAttention_1/"
_FLAX_UNIT = "block{s+1}/unit{u+1}/"

GOOGLE = Format(
    "google",
    (
        Row("class_token", "cls", ROWS),
        Row("positions.table", "Transformer/posembed_input/pos_embedding", ROWS),
        *_flax("patches.project", "embedding", shape=FLAX_PATCH),
        *_flax_norm("blocks.{n}.norm1", _BLOCK + "LayerNorm_0"),
        Row("blocks.{n}.attention.qkv.weight", _ATTENTION + "[query|key|value]/kernel", HEADS_IN),
        Row("blocks.{n}.attention.qkv.bias", _ATTENTION + "[query|key|value]/bias", HEADS_BIAS),
        *_flax("blocks.{n}.attention.out", _ATTENTION + "out", shape=HEADS_OUT),
        *_flax_norm("blocks.{n}.norm2", _BLOCK + "LayerNorm_2"),
        *_flax("blocks.{n}.mlp.up", _BLOCK + "MlpBlock_3/Dense_0"),
        *_flax("blocks.{n}.mlp.down", _BLOCK + "MlpBlock_3/Dense_1"),
        *_flax_norm("norm", "Transformer/encoder_norm"),
        *_flax("hidden", "pre_logits"),
        *_flax("head", "head"),
        Row("patches.root.weight", "conv_root/kernel", HWIO),
        *_flax_norm("patches.root_norm", "gn_root"),
        Row("patches.stages.{s}.{u}.conv{c}.weight", _FLAX_UNIT + "conv{c}/kernel", HWIO),
        *_flax_norm("patches.stages.{s}.{u}.norm{c}", _FLAX_UNIT + "gn{c}"),
        Row("patches.stages.{s}.{u}.shortcut.weight", _FLAX_UNIT + "conv_proj/kernel", HWIO),
        *_flax_norm("patches.stages.{s}.{u}.shortcut_norm", _FLAX_UNIT + "gn_proj"),
    ),
    sign=("embedding/kernel", "Transformer/encoder_norm/scale", "Transformer/encoderblock_0/LayerNorm_0/scale"),
    spellings=(
        (r"^(opt/target/|params/img/|params/)", ""),
        # big_vision counts its modules anew in each block
        (r"^pos_embedding$", "Transformer/posembed_input/pos_embedding"),
        (r"/MultiHeadDotProductAttention_0/", "/MultiHeadDotProductAttention_1/"),
        (r"/MlpBlock_0/", "/MlpBlock_3/"),
        (r"/LayerNorm_1/", "/LayerNorm_2/"),
    ),
    statistics=HALF,
    prefix=("class", "none"),
    needs_class=False,
)

FORMATS = (GOOGLE, TORCHVISION, HF_DINOV2, HF, DINOV2, TIMM)
"""In the order they are tried: DINOv2's names are timm's and one more."""
NAMES = ("regard", "timm", "hf", "torchvision", "google", "dinov2")


def detect(names: Mapping[str, object], formats: tuple[Format, ...] = FORMATS) -> Format | None:
    """The format whose signs are all there.

    >>> detect({"conv_proj.weight": 0, "encoder.pos_embedding": 0, "encoder.ln.weight": 0}).name
    'torchvision'
    """
    for candidate in formats:
        spelt = {candidate.respell(name) for name in names}
        if set(candidate.sign) <= spelt:
            return candidate
    return None
