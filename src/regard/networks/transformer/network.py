"""The Transformer: translation by attention alone.

Vaswani et al., "Attention Is All You Need" (2017), sections 3 and 5.4.

Options that the paper does not have:

- Pre-norm, with one more norm after each stack, as in the decks' code.
- Learned positions, with one table for the encoder and one for the decoder.
- Embedding matrices that are not shared; then source and target may have different vocabularies.
- A bias of the output layer.

Dropout is where section 5.4 has it: on the output of every branch and on the sums of embeddings and positions.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard.geometry import AttentionStep
from regard.networks.transformer.config import TransformerConfig, configure
from regard.networks.translator import Memory, State, Translator
from regard.nn import BlockConfig, DecoderBlock, EncoderBlock, KeyValueCache, MultiHeadAttention, WordPositions


class Transformer(Translator):
    """Encoder and decoder: logits of each next word of the target, from source and target sentences.

    >>> model = Transformer(TransformerConfig(vocabulary=50, width=32, depth=2, heads=4, mlp=64))
    >>> source, target = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[1, 8, 9]])
    >>> model(source, target).logits.shape
    torch.Size([1, 3, 50])
    """

    BLOCKS = (EncoderBlock, DecoderBlock)

    config: TransformerConfig

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        width, heads = config.width, config.heads
        shape = BlockConfig(
            width,
            heads,
            config.mlp,
            norm=config.norm,
            activation=config.activation,
            dropout=config.dropout,
            key_width=config.key_width,
            value_width=width // heads if config.value_width is None else config.value_width,
            eps=config.eps,
        )
        self.source_positions = WordPositions(config.positions, config.length, width)
        self.positions = WordPositions(config.positions, config.length, width)
        self.longest = config.length if config.positions == "learned" else None
        self.drop = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderBlock(shape) for _ in range(config.depth))
        self.decoder = nn.ModuleList(DecoderBlock(shape) for _ in range(config.decoder_depth or config.depth))
        final = config.norm == "pre" if config.final_norm is None else config.final_norm
        self.encoder_norm = nn.LayerNorm(width, eps=config.eps) if final else nn.Identity()
        self.decoder_norm = nn.LayerNorm(width, eps=config.eps) if final else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier for each of the paper's matrices (queries, keys and values separately); zeros for biases."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, MultiHeadAttention):
                for part in module.qkv.weight.split(module.parts):
                    nn.init.xavier_uniform_(part)
        self.reset_embeddings()

    def encode(self, source: Tensor) -> Memory:
        mask = self.mask(source)
        words = self.drop(self.source_positions(self.source_vectors(source) * self.config.width**0.5))
        for block in self.encoder:
            words = self.run_block(block, words, mask[:, None, None])
        return Memory(self.encoder_norm(words), mask)

    def decode(self, target: Tensor, memory: Memory) -> Tensor:
        words = self.drop(self.positions(self.embedding(target) * self.config.width**0.5))
        for block in self.decoder:
            words = self.run_block(block, words, memory.words, memory.mask[:, None, None])
        return self.decoder_norm(words)

    def begin(self, memory: Memory, beams: int, length: int) -> State:
        source = [part for block in self.decoder for part in block.cross.project_keys_values(memory.words)]  # pyright: ignore
        # Created from the source's keys and values, to have their sizes and the dtype that autocast chose.
        shape = (len(memory.words), length, beams, self.config.heads)
        past = [part.new_zeros(*shape, part.shape[-1]) for part in source]
        at = torch.zeros((), dtype=torch.long, device=memory.words.device)
        writer = at.new_zeros(length, len(memory.words) * beams)  # the beam that wrote each word of a beam's sentence
        positions = self.positions.rows(length).to(memory.words.dtype)
        return State(at, (writer,), (memory.mask[:, None, None], *past, *source), (positions,))

    def step(self, words: Tensor, state: State) -> Tensor:
        (writer,), (mask, *cached), (positions,) = state.per_beam, state.per_sentence, state.shared
        past, source = cached[: len(cached) // 2], cached[len(cached) // 2 :]
        x = self.embedding(words) * self.config.width**0.5 + positions.index_select(0, state.at.view(1))
        beams = torch.arange(past[0].shape[2], device=words.device)
        writer.index_copy_(0, state.at.view(1), beams.repeat(1, len(words)))
        count = state.length()
        wrote = writer[: None if count is None else count + 1].unflatten(1, (len(words), len(beams)))  # (T, B, K)
        beam_mask = wrote.permute(1, 2, 0)[..., None] == beams  # (B, K, T, K)
        if count is None:
            beam_mask &= (torch.arange(len(writer), device=words.device) <= state.at)[:, None]
        beam_mask = beam_mask.flatten(2)[:, None]
        for n, block in enumerate(self.decoder):
            pair = slice(2 * n, 2 * n + 2)  # keys and values of this block
            x = block.step(x, KeyValueCache(*past[pair], *source[pair]), state.at, beam_mask, mask)  # pyright: ignore[reportCallIssue]
        state.at.add_(1)
        return self.decoder_norm(x)

    def token_flow(self, size: tuple[int, ...] | None = None) -> tuple[AttentionStep, ...]:
        steps = [AttentionStep(f"encoder.{n}.attention", "source") for n in range(len(self.encoder))]
        for n in range(len(self.decoder)):
            steps.append(AttentionStep(f"decoder.{n}.attention", "target"))
            steps.append(AttentionStep(f"decoder.{n}.cross", "target", reads="source"))
        return tuple(steps)


def build(name: str, **changes: Any) -> Transformer:
    return Transformer(configure(name, **changes))
