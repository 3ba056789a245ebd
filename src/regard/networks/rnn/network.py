"""Recurrent translators: with attention, or with one context vector only.

The decks' "Seq2seq"; Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and Translate" (2015),
appendix A.2; Luong et al., "Effective Approaches to Attention-based Neural Machine Translation" (2015).

At each word the decoder asks the encoder's states with its previous state, reads the word together with the answer
(the context), and writes from context and new state. Options:

- `query="newest"`: the query is the state after the word, as in Luong et al., and the context is that of this state.
  Input feeding then gives the next word the features of this one (their section 3.3).
- `input_feeding=False`: the decoder reads words only, so all words of a target are decoded in one pass.
- `cells=False`: the decoder starts with the encoder's last hidden states and zero LSTM cells.

Departures:

- The dot product is not scaled, as in the decks.
- Each direction of the encoder has half the width, so encoder and decoder states match without a projection.
- With several layers the query is the state of the last one, and the context is read by the first.
- Features are tanh(W [context; state]), equation 5 of Luong et al., for every query; the decks have no layer there.
- Without attention, the encoder's last state is the context of every word (Cho et al., 2014).
- Embeddings are scaled and shared as in the Transformer.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

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

    def keys(self, words: Tensor) -> Tensor:
        """The encoder's states (B, S, width) as keys: the same for every word, so they are computed once."""
        return words if self.key is None else self.key(words)

    def forward(self, states: Tensor, keys: Tensor, memory: Memory, step: int = 0) -> Tensor:
        """Contexts (B, T, width) of decoder states (B, T, width): weighted means of the encoder's states.

        `step` numbers the calls of a decoder that asks word by word.
        """
        q, k, v = (x[:, None] for x in (states, keys, memory.words))  # one head
        mask = memory.mask[:, None, None]
        if self.query is None or self.vector is None:
            return attend(q, k, v, scale=1.0, mask=mask, step=step)[:, 0]
        return attend_additive(self.query(q), k, v, self.vector, mask=mask, step=step)[:, 0]


def _run_packed(layer: nn.Module, words: Tensor, lengths: Tensor) -> tuple[Tensor, Any]:
    """A recurrent layer on sentences of these lengths: its states, zero in the padding, and its last ones."""
    if not len(words):  # no sentences cannot be packed
        return layer(words)
    states, last = layer(pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False))
    return pad_packed_sequence(states, batch_first=True, total_length=words.shape[1])[0], last


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
        self.encoder = nn.ModuleList(
            cell(width, width // 2, batch_first=True, bidirectional=True) for _ in range(config.depth)
        )
        read = [(2 if config.input_feeding else 1) * width, *[width] * (config.depth - 1)]
        self.decoder = nn.ModuleList(cell(size, width, batch_first=True) for size in read)
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
        """States of each word, and the last hidden states (and cells) of every layer, both directions concatenated.

        Sentences are packed, so the backward direction starts at the last word and padding has no effect.
        """
        mask = self.mask(source)
        lengths = mask.sum(dim=1).clamp(min=1).cpu()
        words = self.drop(self.source_vectors(source) * self.config.width**0.5)
        last: list[tuple[Tensor, ...]] = []
        for layer in self.encoder:
            words, end = _run_packed(layer, words, lengths)
            words = self.drop(words)
            end = end if isinstance(end, tuple) else (end,)
            last.append(tuple(torch.cat([forwards, backwards], dim=-1) for forwards, backwards in end))
        handed = tuple(torch.stack(part) for part in zip(*last, strict=True))
        return Memory(words, mask, handed if self.config.cells else handed[:1])

    def decode(self, target: Tensor, memory: Memory) -> Tensor:
        words, states, keys = self._words(target), self._start(memory), self._keys(memory)
        if self.alignment is None or not self.config.input_feeding:
            return self._read(words, states, memory, keys)[0]
        features = []
        for step, word in enumerate(words.split(1, dim=1)):  # what is read next depends on the state before
            feature, states = self._read(word, states, memory, keys, step)
            features.append(feature)
        return torch.cat(features, dim=1)

    def _words(self, target: Tensor) -> Tensor:
        return self.drop(self.embedding(target) * self.config.width**0.5)

    def _keys(self, memory: Memory) -> Tensor:
        return memory.words if self.alignment is None else self.alignment.keys(memory.words)

    def _start(self, memory: Memory) -> tuple[Tensor, ...]:
        """The decoder's states before the first word: hidden (depth, B, width), cells of the same shape (LSTM), and the
        features of the word before (1, B, width), zeros, where those are read."""
        hidden, *cells = memory.last
        if self.config.cell == "lstm" and not cells:
            cells = [torch.zeros_like(hidden)]
        fed = [torch.zeros_like(hidden[:1])] if self._reads_features else []
        return (hidden, *cells, *fed)

    @property
    def _reads_features(self) -> bool:
        """Whether the decoder reads the features of the word before: the context of the newest state is in them."""
        return self.alignment is not None and self.config.input_feeding and self.config.query == "newest"

    def _read(
        self, words: Tensor, states: tuple[Tensor, ...], memory: Memory, keys: Tensor, step: int = 0
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Features (N, T, width) of embedded target words (N, T, width), and the states after the last of them.

        N is B · K: the beams of a sentence are queries of the same source, like the words of a target. Where an answer
        of the source is an input, T is 1.
        """
        feeding, previous = self.config.input_feeding, states[0][-1][:, None]
        context = None
        if self.alignment is None:
            context = memory.last[0][-1].repeat_interleave(len(words) // len(memory.words), 0)[:, None]
            context = context.expand(-1, words.shape[1], -1)
        elif feeding and self.config.query == "previous":
            context = self._context(previous, memory, keys, step)
        if feeding:
            words = torch.cat([words, states[-1][0][:, None] if context is None else context], dim=-1)
        outputs, after = self._run(words, states)
        newest = self.drop(outputs)
        if context is None:
            before = torch.cat([previous, outputs[:, :-1]], dim=1)
            context = self._context(newest if self.config.query == "newest" else before, memory, keys, step)
        features = self.drop(self.combine(torch.cat([context, newest], dim=-1)).tanh())
        return features, (*after, features[None, :, -1]) if self._reads_features else after

    def _context(self, queries: Tensor, memory: Memory, keys: Tensor, step: int) -> Tensor:
        assert self.alignment is not None
        rows, words, width = queries.shape
        beams = rows // max(1, len(keys))
        return self.alignment(queries.reshape(len(keys), beams * words, width), keys, memory, step).view_as(queries)

    def _run(self, words: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs (N, T, width) of the last layer, and hidden states (and cells), each (depth, N, width), after T."""
        after: list[tuple[Tensor, ...]] = []
        for n, layer in enumerate(self.decoder):
            words = self.drop(words) if n else words
            if self.config.cell == "lstm":
                words, (h, c) = layer(words, (states[0][n][None], states[1][n][None]))
                after.append((h[0], c[0]))
            else:
                words, h = layer(words, states[0][n][None])
                after.append((h[0],))
        return words, tuple(torch.stack(part) for part in zip(*after, strict=True))

    def begin(self, memory: Memory, beams: int, length: int) -> State:
        per_beam = tuple(part.repeat_interleave(beams, dim=1) for part in self._start(memory))
        at = torch.zeros((), dtype=torch.long, device=memory.words.device)
        keys = self._keys(memory)
        projected = () if keys is memory.words else (keys,)
        return State(at, per_beam, (memory.words, memory.mask, memory.last[0].transpose(0, 1), *projected))

    def step(self, words: Tensor, state: State) -> Tensor:
        source, mask, last, *projected = state.per_sentence
        memory, keys = Memory(source, mask, (last.transpose(0, 1),)), projected[0] if projected else source
        features, after = self._read(self._words(words.reshape(-1, 1)), state.per_beam, memory, keys)
        for old, new in zip(state.per_beam, after, strict=True):
            old.copy_(new)
        state.at.add_(1)
        return features.view(*words.shape, features.shape[-1])

    def token_flow(self, size: tuple[int, ...] | None = None) -> tuple[AttentionStep, ...]:
        """Attention only: what moves along the recurrent states is not part of it."""
        return () if self.alignment is None else (AttentionStep("alignment", "target", reads="source"),)


def build(name: str, **changes: Any) -> RNN:
    return RNN(configure(name, **changes))
