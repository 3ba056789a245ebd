"""Recurrent translators: with attention, or with one context vector only.

Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and Translate" (2015); Luong et al.,
"Effective Approaches to Attention-based Neural Machine Translation" (2015), equations 5 to 8; the decks' "Seq2seq".

Departures:

- The query is the decoder's newest state, as in Luong et al., and not the one before it; for additive scores too.
- The context is not an input of the next state. So all words of a target are decoded in one pass.
- The dot product is not scaled, as in the decks.
- Each direction of the encoder has half the width, so encoder and decoder states match without a projection.
- The decoder starts with the encoder's last hidden states, and with zero LSTM cells.
- Without attention, the encoder's last state is the context of every word.
- Embeddings are scaled and shared as in the Transformer.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.geometry import AttentionStep
from regard.networks.rnn.config import RNNConfig, configure
from regard.networks.translator import Memory, State, Translator
from regard.nn import Attention, attend, attend_additive

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}


class Alignment(Attention):
    """Attention to the source: query = decoder state, keys and values = encoder states."""

    def __init__(self, width: int, additive: bool):
        super().__init__()
        self.query = nn.Linear(width, width, bias=False) if additive else None
        self.key = nn.Linear(width, width, bias=False) if additive else None
        self.vector = nn.Parameter(torch.empty(width)) if additive else None

    def reset_parameters(self) -> None:
        if self.vector is not None:
            nn.init.uniform_(self.vector, -(len(self.vector) ** -0.5), len(self.vector) ** -0.5)

    def forward(self, states: Tensor, memory: Memory) -> Tensor:
        """Contexts (B, T, width) of decoder states (B, T, width): weighted means of the encoder's states."""
        q, k, v = (x[:, None] for x in (states, memory.words, memory.words))  # one head
        mask = memory.mask[:, None, None]
        if self.query is None or self.key is None or self.vector is None:
            return attend(q, k, v, scale=1.0, mask=mask)[:, 0]
        return attend_additive(self.query(q), self.key(k), v, self.vector, mask=mask)[:, 0]


class Bidirectional(nn.Module):
    """One bidirectional layer of the encoder: each direction has half of the width."""

    def __init__(self, cell: type[nn.LSTM] | type[nn.GRU], width: int):
        super().__init__()
        self.forwards = cell(width, width // 2, batch_first=True)
        self.backwards = cell(width, width // 2, batch_first=True)

    def forward(self, words: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """States (B, S, width) at each word, and the last states of both directions, concatenated (B, width).

        The backward direction starts at the last word, not in the padding. Padding has no effect on the states.
        """
        index = torch.arange(words.shape[1], device=words.device)
        reverse = lengths[:, None] - 1 - index
        reverse = torch.where(reverse < 0, index, reverse)[:, :, None]  # padding keeps its position
        forward = self.forwards(words)[0]
        backward = self.backwards(words.gather(1, reverse.expand_as(words)))[0]
        last = torch.cat([_last(forward, lengths), _last(backward, lengths)], dim=-1)
        states = torch.cat([forward, backward.gather(1, reverse.expand_as(backward))], dim=-1)
        return states, last


def _last(states: Tensor, lengths: Tensor) -> Tensor:
    """The state (B, width) at the last word of each sentence."""
    index = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, states.shape[-1])
    return states.gather(1, index)[:, 0]


class RNN(Translator):
    """A recurrent encoder and decoder: logits of each next word of the target.

    >>> model = RNN(RNNConfig(vocabulary=50, width=32, depth=2))
    >>> source, target = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[1, 8, 9]])
    >>> model(source, target).logits.shape
    torch.Size([1, 3, 50])
    """

    config: RNNConfig

    def __init__(self, config: RNNConfig):
        super().__init__(config)
        width, cell = config.width, CELLS[config.cell]
        if width % 2:
            raise ConfigError(
                f"width={width} is odd; each direction of the encoder has half of it", do="give an even width"
            )
        self.drop = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(Bidirectional(cell, width) for _ in range(config.depth))
        self.decoder = nn.ModuleList(cell(width, width, batch_first=True) for _ in range(config.depth))
        self.alignment = None if config.attention == "none" else Alignment(width, config.attention == "additive")
        self.combine = nn.Linear(2 * width, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier for each gate, zeros for biases, ones for an LSTM's forget gate, so that it starts by remembering."""
        for module in self.modules():
            if isinstance(module, nn.RNNBase):
                gates = 4 if isinstance(module, nn.LSTM) else 3
                for name, parameter in module.named_parameters():
                    if parameter.ndim == 1:
                        nn.init.zeros_(parameter)
                        if gates == 4 and name.startswith("bias_ih"):
                            nn.init.ones_(parameter.chunk(4)[1])
                    else:
                        for gate in parameter.chunk(gates):
                            nn.init.xavier_uniform_(gate)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, Alignment):
                module.reset_parameters()
        self.reset_embeddings()

    def encode(self, source: Tensor) -> Memory:
        mask = self.mask(source)
        lengths = mask.sum(dim=1)
        words = self.drop(self.source_vectors(source) * self.config.width**0.5)
        last = []
        for layer in self.encoder:
            words, end = layer(words, lengths)
            words = self.drop(words)
            last.append(end)
        return Memory(words, mask, (torch.stack(last),))

    def decode(self, target: Tensor, memory: Memory) -> Tensor:
        states, _ = self._run(target, memory.last[0], None)
        return self._with_context(states, memory)

    def _run(self, target: Tensor, hidden: Tensor, cells: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Decoder states (N, T, width) of target words (N, T), and (h, c), each (depth, N, width), after the last."""
        words = self.drop(self.embedding(target) * self.config.width**0.5)
        after: list[tuple[Tensor, ...]] = []
        for n, layer in enumerate(self.decoder):
            if self.config.cell == "lstm":
                before = torch.zeros_like(hidden[n]) if cells is None else cells[n]
                words, (h, c) = layer(words, (hidden[n][None], before[None]))
                after.append((h[0], c[0]))
            else:
                words, h = layer(words, hidden[n][None])
                after.append((h[0],))
            words = self.drop(words)
        return words, tuple(torch.stack(part) for part in zip(*after, strict=True))

    def _with_context(self, states: Tensor, memory: Memory) -> Tensor:
        """Luong et al., equation 5: tanh(W [context; state]). Without attention the context is always the same."""
        if self.alignment is None:
            context = memory.last[0][-1][:, None].expand_as(states)
        else:
            context = self.alignment(states, memory)
        return self.drop(self.combine(torch.cat([context, states], dim=-1)).tanh())

    def begin(self, memory: Memory, beams: int, length: int) -> State:
        hidden = memory.last[0].repeat_interleave(beams, dim=1)
        per_beam = (hidden, torch.zeros_like(hidden)) if self.config.cell == "lstm" else (hidden,)
        at = torch.zeros((), dtype=torch.long, device=hidden.device)
        return State(at, per_beam, (memory.words, memory.mask, *(t.transpose(0, 1) for t in memory.last)))

    def step(self, words: Tensor, state: State) -> Tensor:
        source, mask, *last = state.per_sentence
        cells = state.per_beam[1] if self.config.cell == "lstm" else None
        states, after = self._run(words.reshape(-1, 1), state.per_beam[0], cells)
        for old, new in zip(state.per_beam, after, strict=True):
            old.copy_(new)
        state.at.add_(1)
        # The beams of a sentence are queries of the same source, like the words of a target in `decode`.
        memory = Memory(source, mask, tuple(t.transpose(0, 1) for t in last))
        return self._with_context(states.view(*words.shape, states.shape[-1]), memory)

    def token_flow(self, size: tuple[int, ...] | None = None) -> tuple[AttentionStep, ...]:
        """Attention only: what moves along the recurrent states is not part of it."""
        return () if self.alignment is None else (AttentionStep("alignment", "target", reads="source"),)


def build(name: str, **changes: Any) -> RNN:
    return RNN(configure(name, **changes))
