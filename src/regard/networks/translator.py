"""Base class of translators: they score all words of a target at once, or one word at a time.

Letters in shapes: B sentences, S words of the source, T of the target, K beams per sentence, V vocabulary size.
Sentences are padded at the end.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.geometry import AttentionStep, TokenMap
from regard.networks.base import Network
from regard.networks.config import TextConfig


class Translation(NamedTuple):
    """logits (B, T, V) of the word after each target word; features (B, T, width), input of the output layer; memory
    (B, S, width), output of the encoder."""

    logits: Tensor
    features: Tensor
    memory: Tensor


class Memory(NamedTuple):
    """Output of the encoder: words (B, S, width); mask (B, S), true where there is a word; last states."""

    words: Tensor
    mask: Tensor
    last: tuple[Tensor, ...] = ()
    """Last states of a recurrent encoder: each (depth, B, width)."""


class State(NamedTuple):
    """The state of decoding between two words. Shapes are the same at every step; steps write in place."""

    at: Tensor
    """Number of words so far: a tensor of one number, so that a recorded step can increase it."""
    per_beam: tuple[Tensor, ...]
    """Tensors per beam, reordered with the beams: each (n, B · K, …)."""
    per_sentence: tuple[Tensor, ...]
    """Tensors per sentence, shared by its beams: each (B, …)."""
    shared: tuple[Tensor, ...] = ()
    """Tensors shared by all sentences."""

    def restart(self, fresh: State) -> None:
        """Copy a state of the same shapes into this memory, so that a recorded CUDA graph can be replayed on it."""
        for old, new in zip(self.tensors(), fresh.tensors(), strict=True):
            old.copy_(new)

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.at, *self.per_beam, *self.per_sentence, *self.shared)

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())

    def length(self) -> int | None:
        """Number of words so far; None on a GPU, where reading it would synchronise, and in compiled code, where it
        would change a shape."""
        return None if self.at.device.type != "cpu" or torch.compiler.is_compiling() else int(self.at)

    def reorder(self, beams: Tensor) -> None:
        """Beam k of each sentence becomes what beam `beams[:, k]` (B, K) of that sentence was."""
        first = torch.arange(0, beams.numel(), beams.shape[1], device=beams.device)
        index = (beams + first[:, None]).flatten()
        for tensor in self.per_beam:
            tensor.copy_(tensor.index_select(1, index))

    def select(self, sentences: Tensor, beams: int) -> State:
        """The state of these sentences only (indices in the batch), with `beams` beams each."""
        per_beam = (t.unflatten(1, (-1, beams)).index_select(1, sentences).flatten(1, 2) for t in self.per_beam)
        return State(
            self.at, tuple(per_beam), tuple(t.index_select(0, sentences) for t in self.per_sentence), self.shared
        )


class Translator(Network):
    """An encoder of the source, and a decoder that scores each next word of the target."""

    longest: int | None = None
    """Maximal number of words of a target; None: no limit."""

    def __init__(self, config: TextConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.target_words, config.width)
        """Of the target; also of source and output if embeddings are shared."""
        self.source_embedding = (
            None if config.embeddings == "shared" else nn.Embedding(config.source_words, config.width)
        )
        self.output = (
            nn.Linear(config.width, config.target_words, bias=False) if config.embeddings == "separate" else None
        )
        self.output_bias = nn.Parameter(torch.empty(config.target_words)) if config.output_bias else None

    def reset_embeddings(self) -> None:
        """Rows of unit length on average, so that embeddings scaled by √width, and tied logits, have unit variance."""
        for module in (self.embedding, self.source_embedding, self.output):
            if module is not None:
                nn.init.normal_(module.weight, std=self.config.width**-0.5)
        if self.output_bias is not None:
            nn.init.zeros_(self.output_bias)

    def forward(self, source: Tensor, target: Tensor) -> Translation:
        """source (B, S) and target (B, T) are word numbers; the target begins with `start` and lacks its last word."""
        memory = self.encode(source)
        features = self.decode(target, memory)
        return Translation(self.score(features), features, memory.words)

    def score(self, features: Tensor, out: Tensor | None = None) -> Tensor:
        """Logits (…, V) from features (…, width). They are written to `out` (rows, V) if given; without gradients."""
        matrix = self.embedding.weight if self.output is None else self.output.weight
        if out is None:
            return F.linear(features, matrix, self.output_bias)
        bias = matrix.new_zeros(1) if self.output_bias is None else self.output_bias
        torch.addmm(bias, features.flatten(0, -2), matrix.mT, out=out)
        return out.view(*features.shape[:-1], out.shape[-1])

    def mask(self, source: Tensor) -> Tensor:
        """(B, S), true where there is a word."""
        return source != self.config.padding

    def source_vectors(self, source: Tensor) -> Tensor:
        """Embeddings (B, S, width) of the source."""
        return (self.embedding if self.source_embedding is None else self.source_embedding)(source)

    @abstractmethod
    def encode(self, source: Tensor) -> Memory:
        """The encoder's output for sources (B, S)."""

    @abstractmethod
    def decode(self, target: Tensor, memory: Memory) -> Tensor:
        """Features (B, T, width) of each target word, computed from the words up to it and the source."""

    @abstractmethod
    def begin(self, memory: Memory, beams: int, length: int) -> State:
        """The state before the first word, with space for `length` words of each beam."""

    @abstractmethod
    def step(self, words: Tensor, state: State) -> Tensor:
        """Features (B, K, width) for the next word of each beam, given its newest, `words` (B, K). The state advances
        by one word."""

    @abstractmethod
    def token_flow(self, size: tuple[int, ...] | None = None) -> tuple[AttentionStep, ...]:
        """Layers of attention on the streams "source" and "target"."""

    def token_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        """One token per word: `size` is the number of words, such as (7,); default: (1,)."""
        size = size or (1,)
        return TokenMap(size, (1,), size)
