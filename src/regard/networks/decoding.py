"""Greedy search and beam search.

Vaswani et al., section 6.1, after Wu et al., "Google's Neural Machine Translation System" (2016), equation 14: a
sentence's score is its log-probability divided by ((5 + length) / 6)^penalty; the length includes the end token.
Letters in shapes as in `translator`, and L: maximal number of words.

Departures:
- Of GNMT's penalties only the length penalty is used.
- A sentence may end only if it is among the K best continuations. The search is over once K sentences have ended, or
  earlier if no other sentence can become one of the `best`. So a beam of one is greedy search.
- The last allowed word is always the end token. Padding is never chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.networks.translator import Translator

CHECK_EVERY = 8
"""Steps on a GPU between two checks whether all sentences are done. Each check synchronises with the GPU."""

DROP = 0.125
"""Finished sentences are dropped from the batch once they are at least this share: dropping copies the others."""


class Hypotheses(NamedTuple):
    """words (B, n, L), best first, each ended and padded; scores (B, n)."""

    words: Tensor
    scores: Tensor


def length_penalty(length: Tensor | float, penalty: float) -> Tensor | float:
    """The divisor of log-probabilities.

    >>> length_penalty(1, 0.6), length_penalty(13, 1.0)
    (1.0, 3.0)
    """
    return ((5 + length) / 6) ** penalty


def greedy(
    model: Translator, source: Tensor, *, penalty: float = 0.6, ratio: float = 1.0, constant: int = 50
) -> Hypotheses:
    """Greedy search for sources (B, S): at most ratio × source words + constant words, as in the paper.

    >>> import regard
    >>> model, source = regard.create("transformer_nano", vocabulary=20), torch.tensor([[5, 6, 7, 2]])
    >>> greedy(model, source, constant=8).words.shape
    torch.Size([1, 1, 12])
    """
    return beam_search(model, source, beams=1, penalty=penalty, ratio=ratio, constant=constant)


@torch.no_grad()
def stream(model: Translator, source: Tensor, *, ratio: float = 1.0, constant: int = 50) -> Iterator[Tensor]:
    """The words of `greedy`, yielded one by one as (B,); padding for sentences that have ended."""
    limit, length = limits(model, source, ratio, constant)
    with evaluating(model):
        search = Search(model, source, limit, length, beams=1, penalty=0.0, best=1)
    for n in range(length):
        ended = search.done.clone()
        with evaluating(model):
            search.advance()
        word = torch.where(search.done, model.config.end, search.newest[:, 0])
        yield word.masked_fill(ended, model.config.padding)
        if time_to_check(n, source) and bool(search.done.all()):
            return


@torch.no_grad()
def beam_search(
    model: Translator,
    source: Tensor,
    *,
    beams: int = 4,
    penalty: float = 0.6,
    best: int = 1,
    ratio: float = 1.0,
    constant: int = 50,
) -> Hypotheses:
    """The `best` sentences of a beam search with `beams` beams, for sources (B, S).

    >>> import regard
    >>> model, source = regard.create("transformer_nano", vocabulary=20), torch.tensor([[5, 6, 7, 2]])
    >>> result = beam_search(model, source, best=2, constant=8)
    >>> result.words.shape, bool(result.scores[0, 0] >= result.scores[0, 1])
    (torch.Size([1, 2, 12]), True)
    """
    check_search(beams, penalty, best)
    limit, length = limits(model, source, ratio, constant)
    with evaluating(model):
        search = Search(model, source, limit, length, beams=beams, penalty=penalty, best=best)
        words, scores = (part.clone() for part in search.result())
        active = torch.arange(len(source), device=source.device)
        for n in range(length):
            search.advance()
            if not time_to_check(n, source):
                continue
            done = int(search.done.sum())
            if done == len(active):
                break
            if done >= DROP * len(active):
                words[active], scores[active] = search.result()
                left = (~search.done).nonzero()[:, 0]
                active = active[left]
                search.select(left)
        words[active], scores[active] = search.result()
    return Hypotheses(words, scores)


def check_search(beams: int, penalty: float, best: int) -> None:
    """Refuse invalid settings of a search."""
    if not 1 <= best <= beams:
        raise ConfigError(f"best={best} does not fit beams={beams}", do="give beams=4, and best from 1 to beams")
    if penalty < 0:
        raise ConfigError(f"penalty={penalty} would reward short sentences", do="give 0 or more, such as 0.6")


class Search:
    """The state of a beam search. `advance` changes no shape, writes in place and never synchronises with the device.

    So one `advance` can be recorded as a CUDA graph and replayed, also for other sentences after a `restart`.
    """

    def __init__(
        self, model: Translator, source: Tensor, limit: Tensor, length: int, *, beams: int, penalty: float, best: int
    ):
        config, shape = model.config, (len(source), beams)
        self.model, self.beams, self.penalty, self.best = model, beams, penalty, best
        self.length = length
        self.state = model.begin(model.encode(source), beams, length)
        self.limit = limit.clone()
        self.at = torch.zeros((), dtype=torch.long, device=source.device)
        self.newest = source.new_full(shape, config.start)
        self.running = source.new_full((*shape, length), config.padding)
        self.running_scores = torch.zeros(shape, device=source.device)
        self.ended = self.running.clone()
        self.ended_scores = self.running_scores.clone()
        self.done = torch.zeros(len(source), dtype=torch.bool, device=source.device)
        rows = self.newest.numel() if source.device.type == "cpu" else 0
        self.logits = torch.empty(rows, config.target_words, device=source.device)
        self._reset()

    def _reset(self) -> None:
        for words in (self.running, self.ended):
            words.fill_(self.model.config.padding)
        for scores in (self.running_scores, self.ended_scores):
            scores.fill_(float("-inf"))
        self.running_scores[:, 0] = 0.0  # all beams start equal, so only the first counts
        self.newest.fill_(self.model.config.start)
        self.at.zero_()
        self.done.zero_()

    def restart(self, source: Tensor, limit: Tensor) -> None:
        """Start a new search with sources of the same shape, in the same memory."""
        self.state.restart(self.model.begin(self.model.encode(source), self.beams, self.length))
        self.limit.copy_(limit)
        self._reset()

    def select(self, sentences: Tensor) -> None:
        """Continue with these sentences only (indices in the batch), in new memory."""
        for name in ("limit", "newest", "running", "running_scores", "ended", "ended_scores", "done"):
            setattr(self, name, getattr(self, name)[sentences])
        self.logits = self.logits[: self.newest.numel()]
        self.state = self.state.select(sentences, self.beams)

    def nbytes(self) -> int:
        return self.state.nbytes() + self.logits.nbytes

    def result(self) -> Hypotheses:
        """The best sentences so far, as views of memory that the next step overwrites."""
        return Hypotheses(self.ended[:, : self.best], self.ended_scores[:, : self.best])

    def advance(self) -> None:
        """One more word for every beam of every sentence."""
        count = self.beams
        scores, word, beam = self._candidates()
        sentences = _pick(self.running, beam).index_copy_(2, self.at.view(1), word[:, :, None])
        ends = word == self.model.config.end

        penalty = length_penalty(self.at + 1, self.penalty)
        new = (scores / penalty).masked_fill(~ends | self.done[:, None], float("-inf"))[:, :count]
        kept, chosen = torch.cat([self.ended_scores, new], dim=1).topk(count)
        self.ended.copy_(_pick(torch.cat([self.ended, sentences[:, :count]], dim=1), chosen))
        self.ended_scores.copy_(kept)

        left, chosen = scores.masked_fill(ends, float("-inf")).topk(count)
        self.running.copy_(_pick(sentences, chosen))
        self.running_scores.copy_(left)
        self.newest.copy_(word.gather(1, chosen))
        self.state.reorder(beam.gather(1, chosen))

        # Log-probabilities only fall as words are added, and the divisor is largest at the maximal length.
        upper_bound = left[:, 0] / length_penalty(self.limit, self.penalty)
        full = kept[:, -1] > float("-inf")
        self.done.logical_or_(full | (kept[:, self.best - 1] >= upper_bound))
        self.at.add_(1)

    def _candidates(self) -> tuple[Tensor, Tensor, Tensor]:
        """The 2K best continuations of each sentence: scores, newest words and beam indices, (B, 2K) each.

        At most K of them end, so at least K remain.
        """
        config, count = self.model.config, 2 * self.beams
        logits, total = self._score(self.model.step(self.newest, self.state))
        logits[..., config.padding] = float("-inf")
        best, word = logits.topk(min(count, logits.shape[-1]))  # per beam first, because V is large
        last = (self.limit <= self.at + 1)[:, None, None]
        ends = logits[..., config.end, None].where(torch.arange(best.shape[-1], device=best.device) == 0, float("-inf"))
        best, word = torch.where(last, ends, best), torch.where(last, config.end, word)
        scores, index = (self.running_scores[:, :, None] + (best - total)).flatten(1).topk(count)
        return scores, word.flatten(1).gather(1, index), index // best.shape[-1]

    def _score(self, features: Tensor) -> tuple[Tensor, Tensor | float]:
        """Logits (B, K, V), and what to subtract from them to have log-probabilities.

        A CPU writes both into the memory of the step before: allocating it anew takes an eighth of the search.
        """
        if self.logits.dtype != features.dtype or features.device.type != "cpu" or torch.compiler.is_compiling():
            logits = self.model.score(features).float()
            return logits, logits.logsumexp(dim=-1, keepdim=True)
        logits = self.model.score(features, out=self.logits)
        return torch.log_softmax(logits, dim=-1, out=logits), 0.0


def _pick(sentences: Tensor, index: Tensor) -> Tensor:
    """The sentences at `index` (B, M), of sentences (B, N, L)."""
    return sentences.gather(1, index[:, :, None].expand(-1, -1, sentences.shape[2]))


def limits(model: Translator, source: Tensor, ratio: float, constant: int) -> tuple[Tensor, int]:
    """The maximal length of each target, with its end token (B,), and of all targets: a number that depends on the
    shape of the source only."""
    most = max(1, int(ratio * source.shape[1] + constant))
    most = most if model.longest is None else min(most, model.longest)
    words = model.mask(source).sum(dim=1)
    return (ratio * words + constant).long().clamp(1, most), most


def time_to_check(step: int, source: Tensor) -> bool:
    """Whether to check after this step if all sentences are done, which synchronises with a GPU."""
    return source.device.type == "cpu" or (step + 1) % CHECK_EVERY == 0


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards the mode is restored."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
