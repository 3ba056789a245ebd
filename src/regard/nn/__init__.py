"""The parts every network is made of. `attention` comes first: everything else stands around it."""

from regard.nn.attention import MultiHeadAttention, Tape, attend, attention_weights, capture, recording
from regard.nn.blocks import MLP, DropPath, EncoderBlock, LayerScale
from regard.nn.patches import (
    ConditionalPositions,
    ConvStem,
    GridPositions,
    PatchEmbed,
    patchify,
    resample_grid,
    sinusoid,
    sinusoid_grid,
    unpatchify,
)

__all__ = [
    "MLP",
    "ConditionalPositions",
    "ConvStem",
    "DropPath",
    "EncoderBlock",
    "GridPositions",
    "LayerScale",
    "MultiHeadAttention",
    "PatchEmbed",
    "Tape",
    "attend",
    "attention_weights",
    "capture",
    "patchify",
    "recording",
    "resample_grid",
    "sinusoid",
    "sinusoid_grid",
    "unpatchify",
]
