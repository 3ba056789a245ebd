"""Vision Transformers in the names of Google's JAX code, torchvision, transformers, DINOv2 and timm."""

from __future__ import annotations

from torch import Tensor

from regard.networks.vit.config import ViTConfig
from regard.weights.names import FLAT, HALF, Format, Row, Shape, both


def _kernel(t: Tensor, config: ViTConfig) -> Tensor:
    """The patch projection as a convolution: (width, channels, *patch), or 1 × 1 after a ResNet."""
    sides = (1, 1) if config.stem == "r50" else config.patch
    return t.reshape(len(t), -1, *sides)


ROWS = Shape(lambda t: t.flatten(0, -2), lambda t, _: t[None])  # (1, N, D) and (N, D)
PATCH = Shape(lambda t: t, _kernel)  # flattened to a matrix once its sides have been read off
# Flax keeps inputs first: dense (in, out), convolution (h, w, in, out), attention (in, heads, key), (heads, key, out).
DENSE = Shape(lambda t: t.transpose(0, 1), lambda t, _: t.T)
HWIO = Shape(lambda t: t.permute(3, 2, 0, 1), lambda t, _: t.permute(2, 3, 1, 0))
FLAX_PATCH = Shape(HWIO.read, lambda t, c: HWIO.write(_kernel(t, c), c))
HEADS_IN = Shape(lambda t: t.flatten(1).transpose(0, 1), lambda t, c: t.T.unflatten(1, (c.heads, -1)))
HEADS_BIAS = Shape(lambda t: t.flatten(), lambda t, c: t.unflatten(0, (c.heads, -1)))
HEADS_OUT = Shape(lambda t: t.flatten(0, 1).transpose(0, 1), lambda t, c: t.T.unflatten(0, (c.heads, -1)))


def _flax(ours: str, theirs: str, weight: str = "kernel", shape: Shape = DENSE) -> tuple[Row, Row]:
    return Row(f"{ours}.weight", f"{theirs}/{weight}", shape), Row(f"{ours}.bias", f"{theirs}/bias", FLAT)


def _flax_norm(ours: str, theirs: str) -> tuple[Row, Row]:
    return _flax(ours, theirs, "scale", FLAT)


_WRAPPED = ((r"^(module\.|_orig_mod\.|backbone\.|encoder\.(?=blocks|cls_token)|model\.)+", ""),)

_TIMM_BLOCKS = (
    *both("blocks.{n}.norm1", "blocks.{n}.norm1"),
    *both("blocks.{n}.attention.qkv", "blocks.{n}.attn.qkv"),
    *both("blocks.{n}.attention.out", "blocks.{n}.attn.proj"),
    Row("blocks.{n}.scale1.scale", "blocks.{n}.ls1.gamma"),
    *both("blocks.{n}.norm2", "blocks.{n}.norm2"),
    *both("blocks.{n}.mlp.up", "blocks.{n}.mlp.fc1"),
    *both("blocks.{n}.mlp.down", "blocks.{n}.mlp.fc2"),
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
        Row("distillation_token", "dist_token", ROWS),
        *_TIMM_BLOCKS,
        *both("norm", "norm"),
        *both("hidden", "pre_logits.fc"),
        *both("head", "head"),
        *both("head.teacher", "head_dist"),
        Row("patches.root.weight", _RESNET + "stem.conv.weight"),
        *both("patches.root_norm", _RESNET + "stem.norm"),
        Row("patches.stages.{s}.{u}.conv{c}.weight", _UNIT + "conv{c}.weight"),
        *both("patches.stages.{s}.{u}.norm{c}", _UNIT + "norm{c}"),
        Row("patches.stages.{s}.{u}.shortcut.weight", _UNIT + "downsample.conv.weight"),
        *both("patches.stages.{s}.{u}.shortcut_norm", _UNIT + "downsample.norm"),
    ),
    sign=("patch_embed.proj.weight", "blocks.0.attn.proj.weight", "pos_embed"),
    spellings=(*_WRAPPED, (r"\.gamma_([12])$", r".ls\1.gamma")),
    spare=r"mask_token|decoder_.*|(dino|ibot)_head\..*|head\.(mlp|last_layer)\d?\..*",
    prefix=("all", "none"),
    needs_class=False,
)

DINOV2 = Format(
    "dinov2",
    (*_TIMM_STEM, Row("registers", "register_tokens", ROWS), *_TIMM_BLOCKS, *both("norm", "norm")),
    sign=("patch_embed.proj.weight", "blocks.0.attn.proj.weight", "pos_embed", "mask_token|register_tokens"),
    absent=("decoder_embed.weight",),  # a masked autoencoder's
    spellings=(*_WRAPPED, (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.")),
    spare=r"mask_token|(dino|ibot)_head\..*|head\.(mlp|last_layer)\d?\..*",
    square=True,
)

TORCHVISION = Format(
    "torchvision",
    (
        Row("class_token", "class_token", ROWS),
        Row("positions.table", "encoder.pos_embedding", ROWS),
        Row("patches.project.weight", "conv_proj.weight", PATCH),
        Row("patches.project.bias", "conv_proj.bias"),
        *both("blocks.{n}.norm1", "encoder.layers.encoder_layer_{n}.ln_1"),
        Row("blocks.{n}.attention.qkv.weight", "encoder.layers.encoder_layer_{n}.self_attention.in_proj_weight"),
        Row("blocks.{n}.attention.qkv.bias", "encoder.layers.encoder_layer_{n}.self_attention.in_proj_bias"),
        *both("blocks.{n}.attention.out", "encoder.layers.encoder_layer_{n}.self_attention.out_proj"),
        *both("blocks.{n}.norm2", "encoder.layers.encoder_layer_{n}.ln_2"),
        *both("blocks.{n}.mlp.up", "encoder.layers.encoder_layer_{n}.mlp.0"),
        *both("blocks.{n}.mlp.down", "encoder.layers.encoder_layer_{n}.mlp.3"),
        *both("norm", "encoder.ln"),
        *both("hidden", "heads.pre_logits"),
        *both("head", "heads.head"),
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
    *both("blocks.{n}.attention.qkv", "encoder.layer.{n}.attention.attention.[query|key|value]"),
    *both("blocks.{n}.attention.out", "encoder.layer.{n}.attention.output.dense"),
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

_HF_BODY = (
    *_HF_STEM,
    Row("distillation_token", "embeddings.distillation_token", ROWS),
    *both("blocks.{n}.norm1", "encoder.layer.{n}.layernorm_before"),
    *_HF_ATTENTION,
    *both("blocks.{n}.norm2", "encoder.layer.{n}.layernorm_after"),
    *both("blocks.{n}.mlp.up", "encoder.layer.{n}.intermediate.dense"),
    *both("blocks.{n}.mlp.down", "encoder.layer.{n}.output.dense"),
    *both("norm", "layernorm"),
)
_HF_BODY_SPELLINGS = (
    *_HF_SPELLINGS,
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
)

HF_DEIT = Format(
    "hf",
    (*_HF_BODY, *both("head", "cls_classifier"), *both("head.teacher", "distillation_classifier")),
    sign=("embeddings.distillation_token", "encoder.layer.0.layernorm_before.weight", "distillation_classifier.weight"),
    spellings=_HF_BODY_SPELLINGS,
    eps=1e-12,
    prefix=("all",),
)

HF = Format(
    "hf",
    (*_HF_BODY, *both("head", "classifier")),
    sign=("embeddings.cls_token", "encoder.layer.0.layernorm_before.weight"),
    spellings=_HF_BODY_SPELLINGS,
    spare=r"pooler\..*|embeddings\.mask_token|decoder\..*",
    eps=1e-12,
    statistics=HALF,
    prefix=("all",),
)

HF_DINOV2 = Format(
    "hf",
    (
        *_HF_STEM,
        Row("registers", "embeddings.register_tokens", ROWS),
        *both("blocks.{n}.norm1", "encoder.layer.{n}.norm1"),
        *_HF_ATTENTION,
        Row("blocks.{n}.scale1.scale", "encoder.layer.{n}.layer_scale1.lambda1"),
        *both("blocks.{n}.norm2", "encoder.layer.{n}.norm2"),
        *both("blocks.{n}.mlp.up", "encoder.layer.{n}.mlp.fc1"),
        *both("blocks.{n}.mlp.down", "encoder.layer.{n}.mlp.fc2"),
        Row("blocks.{n}.scale2.scale", "encoder.layer.{n}.layer_scale2.lambda1"),
        *both("norm", "layernorm"),
        *both("head", "classifier"),
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

FORMATS = (GOOGLE, TORCHVISION, HF_DINOV2, HF_DEIT, HF, DINOV2, TIMM)
"""In the order they are tried: DINOv2's names are timm's and one more, those of a taught DeiT ViT's and more."""
