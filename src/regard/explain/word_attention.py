"""A translator's exact attention on one sentence and its translation, word by word, and its rollout.

In "decoder" and "cross" a query is named for the word it writes, not the word it was given: the decoder reads
"<s> ein Haus" and writes "ein Haus </s>". A row shows where the network looked to write that word (Bahdanau et al.,
2015, Figure 3); a decoder's keys are the words it had read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.text.tokens import Piece, Tokenizer, Tokenizers
from regard.errors import ConfigError, DataError, did_you_mean
from regard.explain.attention_store import pack
from regard.explain.flow import walk
from regard.geometry import AttentionStep
from regard.networks.decoding import beam_search, evaluating, greedy
from regard.networks.translator import Translator
from regard.nn import Attention, Tape, capture

KINDS = ("encoder", "decoder", "cross")
LONGEST = 512
"""Limit of tokens per sentence: more could not be shown in a picture or page."""
ROOM = 2_000_000
"""Limit of characters for the weights of one sentence in a report."""


class Sentence(NamedTuple):
    """A text with its tokens: their numbers and their pieces of the text."""

    text: str
    ids: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def groups(self) -> list[int]:
        """The group number of each token: the tokens of a word are one group, each special token is one."""
        groups: list[int] = []
        for n, piece in enumerate(self.pieces):
            joins = n > 0 and piece.word >= 0 and piece.word == self.pieces[n - 1].word
            groups.append(groups[-1] + (not joins) if groups else 0)
        return groups

    @property
    def tokens(self) -> tuple[str, ...]:
        """The text of each token; "␣" for a token that is only a space."""
        return tuple(piece.text or "␣" for piece in self.pieces)

    @property
    def words(self) -> tuple[str, ...]:
        """The text of each group."""
        spans: dict[int, tuple[int, int, str]] = {}
        for group, piece in zip(self.groups, self.pieces, strict=True):
            start, end, text = spans.get(group, (piece.start, piece.end, piece.text))
            spans[group] = min(start, piece.start), max(end, piece.end), text
        return tuple(self.text[start:end] or text for start, end, text in spans.values())


class WordMatrix(NamedTuple):
    """weights (queries, keys), whose rows sum to one, and the labels of queries and keys."""

    weights: Tensor
    queries: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class WordAttention:
    """All attention of one forward pass over a sentence and its translation."""

    source: Sentence
    """With its end token: the encoder's words, and the keys of "cross"."""
    target: Sentence
    """The translation with its end token: the queries of "decoder" and "cross"."""
    read: Sentence
    """The decoder's input: a start token, and the translation without its last token."""
    weights: dict[str, Tensor]
    """By kind, (layers, heads, queries, keys). A recurrent translator has only "cross", its alignment."""
    flow: tuple[AttentionStep, ...]
    """The translator's layers of attention, in order."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of attention; with "rollout" if there are several layers of attention."""
        return (*self.weights, *(["rollout"] if "encoder" in self.weights else []))

    def sides(self, kind: str) -> tuple[Sentence, Sentence]:
        """The sentences of the queries and of the keys."""
        if kind not in self.kinds:
            raise ConfigError(f"this translator has no attention {kind!r}", do=did_you_mean(kind, self.kinds))
        sides = {"encoder": (self.source, self.source), "decoder": (self.target, self.read)}
        return sides.get(kind, (self.target, self.source))

    def tokens(self, kind: str, layer: int = -1, head: int | None = None) -> WordMatrix:
        """One head of one layer, or the mean over heads, per token. Layer and head are ignored for "rollout"."""
        queries, keys = self.sides(kind)
        if kind == "rollout":
            return WordMatrix(self.rollout(), queries.tokens, keys.tokens)
        layers, heads = self.weights[kind].shape[:2]
        if not -layers <= layer < layers:
            raise ConfigError(f"{kind} has layers 0 to {layers - 1}; there is no layer {layer}")
        if head is not None and not -heads <= head < heads:
            raise ConfigError(f"{kind} has heads 0 to {heads - 1}; there is no head {head}")
        chosen = self.weights[kind][layer]
        return WordMatrix(chosen.mean(0) if head is None else chosen[head], queries.tokens, keys.tokens)

    def words(self, kind: str, layer: int = -1, head: int | None = None) -> WordMatrix:
        """As `tokens`, per word: weights are summed over the tokens of a key word, averaged over those of a query."""
        queries, keys = self.sides(kind)
        merged = merge(self.tokens(kind, layer, head).weights, queries.groups, keys.groups)
        return WordMatrix(merged, queries.words, keys.words)

    def rollout(self) -> Tensor:
        """Attention followed through all layers to the source's words: (target tokens, source tokens), rows of one.

        Abnar & Zuidema (2020), continued to two sentences in the manner of Chefer et al. (ICCV 2021, section 3.1),
        without gradients. Ā is the mean over heads, and each residual connection counts as much as its branch:

        - encoder, from E = I:                E ← ½ (I + Ā) E
        - decoder, from T = I and S = 0:      T ← ½ (I + Ā) T,  S ← ½ (I + Ā) S      (self-attention)
        -                                     T ← ½ T,          S ← ½ S + ½ Ā E      (cross-attention)

        The rows of T, over the words read, and of S, over the source, sum to one together. Only S is shown, and its
        rows are scaled to sum to one. Norms do not move anything between words, so pre-norm and post-norm have the same
        equations. An alignment alone is its own rollout.
        """
        layers = {kind: iter(weights.double().mean(1)) for kind, weights in self.weights.items()}
        means = {step.layer: next(layers[_kind(step)])[None] for step in self.flow}
        targets = torch.eye(len(self.target.ids), dtype=torch.float64)[None]
        shares = walk(self.flow, {"target": targets}, lambda layer, rows: means[layer][rows])["source"][0]
        return (shares / shares.sum(-1, keepdim=True)).float()

    def relevance(self) -> Tensor:
        """Relevance of each source word for the translation, (source words,): the mean of rollout over the target.

        Sums to one.
        """
        return merge(self.rollout(), [0] * len(self.target.ids), self.source.groups)[0]

    def to_json(self, room: int = ROOM) -> dict[str, Any]:
        """Sentences and weights, rollout too, ready for JSON and the report's explorer.

        `data` is what `pack` makes of the weights, by kind. What takes more than `room` characters is left out, and
        the record says why.
        """
        parts = {kind: self.weights.get(kind, self.rollout()[None, None]) for kind in self.kinds}
        data = pack(parts.values())
        record = {"text": self.source.text, "translated": self.target.text}
        if len(data) > room:
            tokens = len(self.source.ids) + len(self.target.ids)
            return record | {"left_out": f"the attention over {tokens} tokens does not fit"}
        sides = {"source": self.source, "target": self.target, "read": self.read}
        return record | {
            "sentences": {
                name: {
                    "text": side.text, "ids": side.ids, "pieces": side.pieces,
                    "tokens": side.tokens, "words": side.words, "groups": side.groups,
                }
                for name, side in sides.items()
            },
            "kinds": {kind: list(weights.shape) for kind, weights in parts.items()},
            "data": data,
        }  # fmt: skip


def merge(weights: Tensor, rows: list[int], columns: list[int]) -> Tensor:
    """Tokens (queries, keys) as groups: the weights of a group's keys added, those of its queries averaged.

    >>> merge(torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]), rows=[0, 0], columns=[0, 1, 1])
    tensor([[0.3000, 0.7000]])
    """
    asks, looked = (F.one_hot(torch.tensor(groups)).to(weights.dtype) for groups in (rows, columns))
    return (asks / asks.sum(0)).T @ weights @ looked


def record_words(
    model: Translator,
    tokenizers: Tokenizers,
    source: str,
    target: str | None = None,
    *,
    beams: int = 1,
    penalty: float = 0.6,
) -> WordAttention:
    """All attention of one pass over `source` and its translation: `target`, or what a search finds.

    That is greedy, or with more `beams` the best of a beam search with length penalty `penalty`.

    >>> import regard
    >>> from regard.data.text import train_tokenizers
    >>> tokenizers = train_tokenizers(["a tree", "a house"], ["ein Baum", "ein Haus"], 270)
    >>> model = regard.create("transformer_nano", vocabulary=tokenizers.source.size)
    >>> attention = record_words(model, tokenizers, "a house", "ein Haus")
    >>> attention.words("cross", layer=0, head=1).queries, attention.words("cross").keys
    (('ein', 'Haus', '</s>'), ('a', 'house', '</s>'))
    >>> attention.kinds, attention.weights["encoder"].shape
    (('encoder', 'decoder', 'cross', 'rollout'), torch.Size([2, 4, 7, 7]))
    """
    if not any(isinstance(module, Attention) for module in model.modules()):
        raise ConfigError("a translator without attention has no attention to show; rnn_attention has")
    for name, tokenizer, words in (
        ("source", tokenizers.source, model.config.source_words),
        ("target", tokenizers.target, model.config.target_words),
    ):
        if tokenizer.size > words:
            what = f"the {name} tokenizer has {tokenizer.size:,} tokens and the network knows {words:,}"
            raise ConfigError(what, do="use the tokenizers that the network was trained with")
    if not source.strip():
        raise DataError("there is no text to translate", do="give a sentence")
    device = next(model.parameters()).device
    asked = _checked(tokenizers.source.encode([source], end=True)[0])
    words = torch.tensor([asked], device=device)
    if target is not None:
        written = tokenizers.target.encode([target], end=True)[0]
    else:
        result = greedy(model, words) if beams == 1 else beam_search(model, words, beams=beams, penalty=penalty)
        written = result.words[0, 0].tolist()
        written = written[: written.index(model.config.end) + 1]
    read = [model.config.start, *_checked(written)[:-1]]
    with torch.inference_mode(), evaluating(model), capture(model) as tape:
        model(words, torch.tensor([read], device=device))
    return WordAttention(
        _sentence(tokenizers.source, asked),
        _sentence(tokenizers.target, written),
        _sentence(tokenizers.target, read),
        _by_kind(tape, model.token_flow()),
        model.token_flow(),
    )


def _checked(ids: list[int]) -> list[int]:
    if len(ids) > LONGEST:
        what = f"a sentence of {len(ids):,} tokens is too long to be shown; {LONGEST} are not"
        raise DataError(what, do="give one sentence at a time")
    return ids


def _sentence(tokenizer: Tokenizer, ids: list[int]) -> Sentence:
    return Sentence(tokenizer.decode(ids), tuple(ids), tuple(tokenizer.pieces(ids)))


def _by_kind(tape: Tape, flow: tuple[AttentionStep, ...]) -> dict[str, Tensor]:
    """(layers, heads, queries, keys) of what looks at the source, at the words so far, and at both from outside."""
    layers_of: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    for step in flow:
        heads = range(tape.heads(step.layer))
        layers_of[_kind(step)].append(torch.cat([tape.attention(step.layer, head).cpu() for head in heads]))
    return {kind: torch.stack(layers) for kind, layers in layers_of.items() if layers}


def _kind(step: AttentionStep) -> str:
    if step.reads is not None:
        return "cross"
    return "encoder" if step.stream == "source" else "decoder"
