"""Building blocks of all networks: attention, encoder and decoder blocks, patches, positions."""

from regard.nn.attention import Attention, attend, attend_additive, attention_weights, recording
from regard.nn.blocks import MLP, Activation, BlockConfig, DropPath, EncoderBlock, LastNorm, LayerScale, drop_rates
from regard.nn.decoder import DecoderBlock, KeyValueCache
from regard.nn.multihead import MultiHeadAttention
from regard.nn.patches import (
    ConditionalPositions,
    ConvStem,
    GridPositions,
    PatchEmbed,
    apply_rope,
    pad_to,
    patchify,
    resample_grid,
    rope_table,
    sinusoid,
    sinusoid_grid,
    unpatchify,
)
from regard.nn.tape import Tape, capture
from regard.nn.text_positions import WordOrder, WordPositions, word_table

__all__ = [
    "MLP",
    "Activation",
    "Attention",
    "BlockConfig",
    "ConditionalPositions",
    "ConvStem",
    "DecoderBlock",
    "DropPath",
    "EncoderBlock",
    "GridPositions",
    "KeyValueCache",
    "LastNorm",
    "LayerScale",
    "MultiHeadAttention",
    "PatchEmbed",
    "Tape",
    "WordOrder",
    "WordPositions",
    "apply_rope",
    "attend",
    "attend_additive",
    "attention_weights",
    "capture",
    "drop_rates",
    "pad_to",
    "patchify",
    "recording",
    "resample_grid",
    "rope_table",
    "sinusoid",
    "sinusoid_grid",
    "unpatchify",
    "word_table",
]
