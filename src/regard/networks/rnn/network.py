"""The recurrent translators that the Transformer replaced: with attention, and through one context vector alone.

Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and Translate" (2015); Luong et al.,
"Effective Approaches to Attention-based Neural Machine Translation" (2015), equations 5 to 8; the decks' "Seq2seq".

Departures: the query is the decoder's newest state, as Luong's, and not the one before it, for additive scores too;
what was looked at is not fed to the next state. So all words of a target are decoded in one pass. The dot product is
not scaled, as in the decks. Each direction of the encoder has half the width, so that states of encoder and decoder
meet without a projection. The decoder begins with the hidden states the encoder ended with, and empty LSTM cells.
Without attention, the one context vector (where the encoder ended) stands in the place of what would have been
looked at. Embeddings are scaled and shared as the Transformer's.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.networks.rnn.config import RNNConfig, configure
from regard.networks.translator import Memory, State, Translator
from regard.nn import Attention, attend, attend_additive

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}


class Alignment(Attention):
    """Where in the source each target word looks: query = decoder state, keys and values = encoder states."""

    def __init__(self, width: int, additive: bool):
        super().__init__()
        self.query = nn.Linear(width, width, bias=False) if additive else None
        self.key = nn.Linear(width, width, bias=False) if additive else None
        self.vector = nn.Parameter(torch.empty(width)) if additive else None

    def reset_parameters(self) -> None:
        if self.vector is not None:
            nn.init.uniform_(self.vector, -(len(self.vector) ** -0.5), len(self.vector) ** -0.5)

    def forward(self, states: Tensor, memory: Memory) -> Tensor:
        """(B, T, width) of states (B, T, width): each a mean of the encoder's states, weighted by how well they fit."""
        q, k, v = (x[:, None] for x in (states, memory.words, memory.words))  # one head
        mask = memory.mask[:, None, None]
        if self.query is None or self.key is None or self.vector is None:
            return attend(q, k, v, scale=1.0, mask=mask)[:, 0]
        return attend_additive(self.query(q), self.key(k), v, self.vector, mask=mask)[:, 0]


class Bidirectional(nn.Module):
    """One layer of the encoder: one half of the width reads forwards, the other backwards."""

    def __init__(self, cell: type[nn.LSTM] | type[nn.GRU], width: int):
        super().__init__()
        self.forwards = cell(width, width // 2, batch_first=True)
        self.backwards = cell(width, width // 2, batch_first=True)

    def forward(self, words: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """States (B, S, width) at each word, and where it ended (B, width): the last of each half side by side.

        Backwards begins at the last word, not in the padding; nothing after a sentence's end reaches its states.
        """
        order = torch.arange(words.shape[1], device=words.device)
        back = lengths[:, None] - 1 - order
        back = torch.where(back < 0, order, back)[:, :, None]  # padding stays where it is
        ahead = self.forwards(words)[0]
        behind = self.backwards(words.gather(1, back.expand_as(words)))[0]
        last = torch.cat([_at(ahead, lengths), _at(behind, lengths)], dim=-1)
        states = torch.cat([ahead, behind.gather(1, back.expand_as(behind))], dim=-1)
        return states, last


def _at(states: Tensor, lengths: Tensor) -> Tensor:
    """The state (B, width) at the last word of each sentence."""
    index = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, states.shape[-1])
    return states.gather(1, index)[:, 0]


class RNN(Translator):
    """Sentences in, scores of each next word out, one state after another.

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
            raise ConfigError(f"a width of {width} has no halves", do="give an even width")
        self.drop = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(Bidirectional(cell, width) for _ in range(config.depth))
        self.decoder = nn.ModuleList(cell(width, width, batch_first=True) for _ in range(config.depth))
        self.alignment = None if config.attention == "none" else Alignment(width, config.attention == "additive")
        self.combine = nn.Linear(2 * width, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier for each gate, zeros for biases, ones for an LSTM's forget gate: it begins by remembering."""
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
        return self._look(states, memory)

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

    def _look(self, states: Tensor, memory: Memory) -> Tensor:
        """Luong's equation 5, tanh(W [context; state]); the context is what was looked at, or always the same."""
        if self.alignment is None:
            context = memory.last[0][-1][:, None].expand_as(states)
        else:
            context = self.alignment(states, memory)
        return self.drop(self.combine(torch.cat([context, states], dim=-1)).tanh())

    def begin(self, memory: Memory, beams: int, length: int) -> State:
        hidden = memory.last[0].repeat_interleave(beams, dim=1)
        kept = (hidden, torch.zeros_like(hidden)) if self.config.cell == "lstm" else (hidden,)
        at = torch.zeros((), dtype=torch.long, device=hidden.device)
        return State(at, kept, (memory.words, memory.mask, *(t.transpose(0, 1) for t in memory.last)))

    def step(self, words: Tensor, state: State) -> Tensor:
        source, mask, *last = state.fixed
        cells = state.kept[1] if self.config.cell == "lstm" else None
        states, after = self._run(words.reshape(-1, 1), state.kept[0], cells)
        for old, new in zip(state.kept, after, strict=True):
            old.copy_(new)
        state.at.add_(1)
        # The beams of a sentence are queries of one source, as the words of a target are in `decode`.
        memory = Memory(source, mask, tuple(t.transpose(0, 1) for t in last))
        return self._look(states.view(*words.shape, states.shape[-1]), memory)


def build(name: str, **changes: Any) -> RNN:
    return RNN(configure(name, **changes))
