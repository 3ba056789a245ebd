"""Deletion (Petsiuk et al., 2018) for sentences: is the order of relevant source words faithful?

- Source words are removed, the most relevant first, and the log-probability of the translation is followed.
- A faithful order makes it fall sooner than random orders do.
- Scores are means over the translation's tokens, in nats.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import ConfigError
from regard.explain.faithfulness import MIN_GAIN, against_random
from regard.explain.word_attention import WordAttention
from regard.networks.decoding import evaluating
from regard.networks.translator import Translator


@dataclass(frozen=True)
class WordDeletion:
    """What became of the translation's log-probability (nats per token) as words of the source were taken away."""

    removed: tuple[int, ...]
    """How many words were away at each point, from none to all."""
    curve: tuple[float, ...]
    """Log-probability there, the most relevant away first."""
    random: tuple[tuple[float, ...], ...]
    """The same for each random order."""
    order: tuple[str, ...]
    """The words, the most relevant first."""

    @property
    def area(self) -> float:
        """The mean log-probability along the way: lower is better."""
        return _area(self.removed, self.curve)

    @property
    def gains(self) -> tuple[float, ...]:
        """By how much each random order's mean is higher."""
        return tuple(_area(self.removed, curve) - self.area for curve in self.random)

    @property
    def gain(self) -> float:
        """The mean of these, in nats per token: zero for an order that knows nothing, positive for one that does."""
        return sum(self.gains) / len(self.gains)

    @property
    def spread(self) -> float:
        """The standard deviation over random orders."""
        return float(torch.tensor(self.gains, dtype=torch.float64).std())

    @property
    def trusted(self) -> bool:
        """Whether the gain is two deviations of random orders or more, and a hundredth at least."""
        return self.gain >= max(2 * self.spread, MIN_GAIN)

    @property
    def verdict(self) -> str:
        """In words, whether to believe the order."""
        if max(self.curve) - min(self.curve) < 1e-4 or max(self.gains) - min(self.gains) < 1e-6:
            return "cannot be tested: no order of taking words away differs from another"
        beaten = sum(gain > 0 for gain in self.gains)
        return against_random(beaten, len(self.gains), "orders", self.gain, self.trusted)


@torch.inference_mode()
def word_deletion(
    model: Translator,
    attention: WordAttention,
    relevance: Tensor | None = None,
    *,
    unknown: int | None = None,
    orders: int = 16,
    steps: int = 16,
    seed: int = 0,
    batch: int = 64,
) -> WordDeletion:
    """Scores of `relevance` (source words,), the rollout's by default, for the translation that `attention` has.

    Words are dropped, or with `unknown` replaced by that token, which a network should know from training: byte-level
    BPE never has one. The end, and codes such as a language's, stay. In at most `steps` steps.
    """
    values = attention.relevance() if relevance is None else relevance.detach().float().cpu()
    groups, names = torch.tensor(attention.source.groups), attention.source.words
    if len(values) != len(names):
        raise ConfigError(f"{len(values)} numbers for {len(names)} words", do="give one per word, special tokens too")
    if orders < 2 or steps < 1:
        raise ConfigError(f"orders={orders} and steps={steps} are too few", do="give at least 2 orders and 1 step")
    words = groups[torch.tensor([piece.word >= 0 for piece in attention.source.pieces])].unique()
    draw = torch.Generator().manual_seed(seed)
    mixed = words[torch.randperm(len(words), generator=draw)]  # equal values stand in random order
    ranked = mixed[torch.argsort(values[mixed], descending=True, stable=True)]
    every = [ranked, *(words[torch.randperm(len(words), generator=draw)] for _ in range(orders))]
    points = torch.linspace(0, len(words), min(steps, len(words)) + 1).round().long().tolist()
    away = torch.stack([torch.isin(groups, order[:count]) for order in every for count in points])
    scores = _log_probabilities(model, attention, away, unknown, batch).reshape(len(every), len(points))
    first, *rest = (tuple(row) for row in scores.tolist())
    return WordDeletion(tuple(points), first, tuple(rest), tuple(names[n] for n in ranked.tolist()))


def _log_probabilities(
    model: Translator, attention: WordAttention, away: Tensor, unknown: int | None, batch: int
) -> Tensor:
    """The translation's (N,), for the source without the tokens that are `away` (N, tokens)."""
    device, padding = next(model.parameters()).device, model.config.padding
    source = torch.tensor(attention.source.ids)
    if unknown is not None:
        sources = torch.where(away, unknown, source)
    else:
        left = torch.argsort(away.int(), dim=1, stable=True)  # what stays moves up, and padding fills the end
        sources = torch.where(away, padding, source).gather(1, left)
    read, written = (torch.tensor([side.ids], device=device) for side in (attention.read, attention.target))
    scores = []
    with evaluating(model):
        for part in sources.to(device).split(batch):
            logits = model(part, read.expand(len(part), -1)).logits.float()
            losses = F.cross_entropy(logits.transpose(1, 2), written.expand(len(part), -1), reduction="none")
            scores.append(-losses.mean(1).cpu())
    return torch.cat(scores)


def _area(removed: tuple[int, ...], curve: tuple[float, ...]) -> float:
    """Under straight lines between the points, over how far they reach."""
    area = torch.trapezoid(torch.tensor(curve, dtype=torch.float64), torch.tensor(removed))
    return float(area) / max(removed[-1], 1)
