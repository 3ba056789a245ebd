"""The parts every network is made of. `attention` comes first: everything else stands around it."""

from regard.nn.attention import (
    Attention,
    Tape,
    attend,
    attend_additive,
    attention_weights,
    capture,
    recording,
)
from regard.nn.blocks import MLP, Activation, DropPath, EncoderBlock, LastNorm, LayerScale, drop_rates
from regard.nn.decoder import DecoderBlock, Past
from regard.nn.multihead import MultiHeadAttention
from regard.nn.patches import (
    ConditionalPositions,
    ConvStem,
    GridPositions,
    PatchEmbed,
    patchify,
    resample_grid,
    rotations,
    sinusoid,
    sinusoid_grid,
    turned,
    unpatchify,
)
from regard.nn.words import WordOrder, WordPositions, word_table

__all__ = [
    "MLP",
    "Activation",
    "Attention",
    "ConditionalPositions",
    "ConvStem",
    "DecoderBlock",
    "DropPath",
    "EncoderBlock",
    "GridPositions",
    "LastNorm",
    "LayerScale",
    "MultiHeadAttention",
    "Past",
    "PatchEmbed",
    "Tape",
    "WordOrder",
    "WordPositions",
    "attend",
    "attend_additive",
    "attention_weights",
    "capture",
    "drop_rates",
    "patchify",
    "recording",
    "resample_grid",
    "rotations",
    "sinusoid",
    "sinusoid_grid",
    "turned",
    "unpatchify",
    "word_table",
]
