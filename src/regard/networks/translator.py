"""What every translator offers: sentences in, scores of the next word out, all at once or one word at a time.

Letters in shapes: B sentences, S words of the source, T of the target, K beams of each sentence, V words there are.
Sentences are padded at their end.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.geometry import TokenMap
from regard.networks.base import Network
from regard.networks.config import TextConfig


class Translation(NamedTuple):
    """logits (B, T, V) of the word after each target word; features (B, T, width), what these are made of; memory
    (B, S, width), what the encoder makes of the source."""

    logits: Tensor
    features: Tensor
    memory: Tensor


class Memory(NamedTuple):
    """The encoder's output: words (B, S, width); mask (B, S), true where there is a word; recurrent states."""

    words: Tensor
    mask: Tensor
    last: tuple[Tensor, ...] = ()
    """Final states of a recurrent encoder: each (depth, B, width)."""


class State(NamedTuple):
    """The state of decoding between two steps. Shapes stay the same; steps write in place."""

    at: Tensor
    """Number of words seen, as a tensor, so that a recorded CUDA graph can count."""
    kept: tuple[Tensor, ...]
    """State per beam, reordered with the beams: each (n, B · K, …)."""
    fixed: tuple[Tensor, ...]
    """State per sentence, shared by its beams: each (B, …)."""
    common: tuple[Tensor, ...] = ()
    """State shared by all sentences."""

    def restart(self, fresh: State) -> None:
        """Copy another state of the same shapes into this one's memory, so that a recorded CUDA graph can use it."""
        for old, new in zip(self.tensors(), fresh.tensors(), strict=True):
            old.copy_(new)

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.at, *self.kept, *self.fixed, *self.common)

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())

    def filled(self) -> int | None:
        """Number of words seen; None where reading it would wait for the GPU or change a compiled shape."""
        return None if self.at.device.type != "cpu" or torch.compiler.is_compiling() else int(self.at)

    def reorder(self, beams: Tensor) -> None:
        """Beam k of each sentence becomes what beam `beams[:, k]` (B, K) of that sentence was."""
        first = torch.arange(0, beams.numel(), beams.shape[1], device=beams.device)
        index = (beams + first[:, None]).flatten()
        for tensor in self.kept:
            tensor.copy_(tensor.index_select(1, index))

    def select(self, sentences: Tensor, beams: int) -> State:
        """The state of some sentences, given by index, with so many beams each."""
        kept = (t.unflatten(1, (-1, beams)).index_select(1, sentences).flatten(1, 2) for t in self.kept)
        return State(self.at, tuple(kept), tuple(t.index_select(0, sentences) for t in self.fixed), self.common)


class Translator(Network):
    """An encoder that reads the source, and a decoder that scores each next word of the target."""

    longest: int | None = None
    """The most words a target may have; None: any number."""

    def __init__(self, config: TextConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.target_words, config.width)
        """Of the target; of source and output too, where they are shared."""
        self.source_embedding = (
            None if config.embeddings == "shared" else nn.Embedding(config.source_words, config.width)
        )
        self.output = (
            nn.Linear(config.width, config.target_words, bias=False) if config.embeddings == "separate" else None
        )
        self.output_bias = nn.Parameter(torch.empty(config.target_words)) if config.output_bias else None

    def reset_embeddings(self) -> None:
        """Initialise rows to unit length on average, so that scaled embeddings and tied logits have unit variance."""
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

    def score(self, features: Tensor) -> Tensor:
        """Logits (…, V) from features (…, width)."""
        matrix = self.embedding.weight if self.output is None else self.output.weight
        return F.linear(features, matrix, self.output_bias)

    def mask(self, source: Tensor) -> Tensor:
        """(B, S), true where there is a word."""
        return source != self.config.padding

    def source_vectors(self, source: Tensor) -> Tensor:
        """Embeddings (B, S, width) of the source."""
        return (self.embedding if self.source_embedding is None else self.source_embedding)(source)

    @abstractmethod
    def encode(self, source: Tensor) -> Memory:
        """What the decoder looks at, of sources (B, S)."""

    @abstractmethod
    def decode(self, target: Tensor, memory: Memory) -> Tensor:
        """Features (B, T, width) of each target word, from the source and the words before it."""

    @abstractmethod
    def begin(self, memory: Memory, beams: int, length: int) -> State:
        """The state before the first word, with room for `length` words of each of so many beams."""

    @abstractmethod
    def step(self, words: Tensor, state: State) -> Tensor:
        """Features (B, K, width), to be scored, of the word after each beam's newest, `words` (B, K); the state
        advances by one word."""

    def token_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        """Word by word: `size` is the number of words, such as (7,); 1 if not said, for any number will do."""
        size = size or (1,)
        return TokenMap(size, (1,), size)
