"""From scores of next words to sentences: the best word each time, or the best few sentences so far (beam search).

Vaswani et al., section 6.1, after Wu et al., "Google's Neural Machine Translation System" (2016), equation 14: a
sentence's score is its log-probability over ((5 + length) / 6)^α, its end counted. Letters in shapes as in
`translator`, and L: words there is room for.

Departures: of GNMT's penalties there is that of length alone. A sentence may end only if it is among the K best
continuations, and once K have ended a search is over, sooner where no other could be among those asked for; so a
beam of one is the greedy search. At the last word allowed nothing but the end is. Padding is never a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.networks.translator import Memory, Translator

CHECK = 8
"""Steps between two looks at whether all is done on a GPU, which has to be waited for."""

BLOCK = 64
"""Words of which a CPU first asks for the best one."""

DROP = 0.125
"""Share of sentences that are done, from which on it pays to go on without them: those left have to be moved."""


class Hypotheses(NamedTuple):
    """words (B, n, L), best first, each up to and with its end and then padding; scores (B, n)."""

    words: Tensor
    scores: Tensor


def length_penalty(length: Tensor | float, alpha: float) -> Tensor | float:
    """What log-probabilities are divided by.

    >>> length_penalty(1, 0.6), length_penalty(13, 1.0)
    (1.0, 3.0)
    """
    return ((5 + length) / 6) ** alpha


@torch.no_grad()
def greedy(
    model: Translator,
    source: Tensor,
    *,
    alpha: float = 0.6,
    ratio: float = 1.0,
    constant: int = 50,
    cached: bool = True,
) -> Hypotheses:
    """The likeliest word each time, for sources (B, S); at most ratio × words of the source + constant, as the paper.

    >>> import regard
    >>> model, source = regard.create("transformer_nano", vocabulary=20), torch.tensor([[5, 6, 7, 2]])
    >>> greedy(model, source, constant=8).words.shape
    torch.Size([1, 1, 12])
    """
    limit, length = limits(model, source, ratio, constant)
    words = source.new_full((len(source), length), model.config.padding)
    scores, count = torch.zeros(2, len(source), device=source.device)
    for n, (word, gained) in enumerate(_greedy_steps(model, source, limit, length, cached)):
        words[:, n] = word
        scores += gained
        count += word != model.config.padding
    return Hypotheses(words[:, None], (scores / length_penalty(count, alpha))[:, None])


@torch.no_grad()
def stream(
    model: Translator, source: Tensor, *, ratio: float = 1.0, constant: int = 50, cached: bool = True
) -> Iterator[Tensor]:
    """The words of `greedy` as they are found: (B,) at a time, padding for those that have ended."""
    for word, _ in _greedy_steps(model, source, *limits(model, source, ratio, constant), cached):
        yield word


def _greedy_steps(
    model: Translator, source: Tensor, limit: Tensor, length: int, cached: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each next word (B,) and its log-probability; padding and 0 after the end."""
    config = model.config
    with evaluating(model):
        steps = (_Cached if cached else _Recomputed)(model, model.encode(source), 1, length)
    word = source.new_full((len(source),), config.start)
    done = torch.zeros_like(word, dtype=torch.bool)
    for n in range(length):
        with evaluating(model):
            logits = steps.step(word[:, None])
        gained, word = _allowed(model, logits, limit <= n + 1)[:, 0].max(dim=-1)
        gained, word = gained.masked_fill(done, 0.0), word.masked_fill(done, config.padding)
        yield word, gained
        done = done | (word == config.end)
        if time_to_look(n, source) and bool(done.all()):
            return


@torch.no_grad()
def beam_search(
    model: Translator,
    source: Tensor,
    *,
    beams: int = 4,
    alpha: float = 0.6,
    best: int = 1,
    ratio: float = 1.0,
    constant: int = 50,
    cached: bool = True,
) -> Hypotheses:
    """The `best` few sentences of a search that goes on with the `beams` best beginnings, for sources (B, S).

    Uncached, every step computes all words anew: the same answer, for comparison.

    >>> import regard
    >>> model, source = regard.create("transformer_nano", vocabulary=20), torch.tensor([[5, 6, 7, 2]])
    >>> found = beam_search(model, source, best=2, constant=8)
    >>> found.words.shape, bool(found.scores[0, 0] >= found.scores[0, 1])
    (torch.Size([1, 2, 12]), True)
    """
    check_search(model, beams, alpha, best)
    limit, length = limits(model, source, ratio, constant)
    with evaluating(model):
        search = Search(model, source, limit, length, beams=beams, alpha=alpha, best=best, cached=cached)
        words, scores = search.ended[:, :best].clone(), search.ended_scores[:, :best].clone()
        going = torch.arange(len(source), device=source.device)
        for n in range(length):
            search.advance()
            if not time_to_look(n, source):
                continue
            done = int(search.done.sum())
            if done == len(going):
                break
            if done >= DROP * len(going):
                words[going], scores[going] = search.ended[:, :best], search.ended_scores[:, :best]
                left = (~search.done).nonzero()[:, 0]
                going = going[left]
                search.only(left)
        words[going], scores[going] = search.ended[:, :best], search.ended_scores[:, :best]
    return Hypotheses(words, scores)


def check_search(model: Translator, beams: int, alpha: float, best: int) -> None:
    """Refuse what no search can be."""
    if not 1 <= best <= beams or 2 * beams > beams * model.config.target_words:
        raise ConfigError(f"{best} best of {beams} beams cannot be had", do="give beams=4, and best= up to as many")
    if alpha < 0:
        raise ConfigError(f"alpha={alpha} would reward short sentences", do="give 0 or more, such as 0.6")


class Search:
    """A beam search between two steps. `advance` keeps every shape, writes in place and waits for no answer.

    So a GPU can record one `advance` and play it again and again, for other sentences too after a `restart`.
    """

    def __init__(
        self,
        model: Translator,
        source: Tensor,
        limit: Tensor,
        length: int,
        *,
        beams: int,
        alpha: float,
        best: int,
        cached: bool = True,
    ):
        config, shape = model.config, (len(source), beams)
        self.model, self.beams, self.alpha, self.best = model, beams, alpha, best
        self.steps = (_Cached if cached else _Recomputed)(model, model.encode(source), beams, length)
        self.limit = limit.clone()
        self.at = torch.zeros((), dtype=torch.long, device=source.device)
        self.newest = source.new_full(shape, config.start)
        self.running = source.new_full((*shape, length), config.padding)
        self.running_scores = torch.zeros(shape, device=source.device)
        self.ended = self.running.clone()
        self.ended_scores = self.running_scores.clone()
        self.done = torch.zeros(len(source), dtype=torch.bool, device=source.device)
        self._begin()

    def _begin(self) -> None:
        for words in (self.running, self.ended):
            words.fill_(self.model.config.padding)
        for scores in (self.running_scores, self.ended_scores):
            scores.fill_(float("-inf"))
        self.running_scores[:, 0] = 0.0  # all begin alike: only one of them is worth continuing
        self.newest.fill_(self.model.config.start)
        self.at.zero_()
        self.done.zero_()

    def held(self) -> int:
        """Bytes of what is remembered."""
        return self.steps.held()

    def restart(self, source: Tensor, limit: Tensor) -> None:
        """Begin anew with sources of the same shape, in the same memory."""
        self.steps.restart(self.model.encode(source))
        self.limit.copy_(limit)
        self._begin()

    def only(self, sentences: Tensor) -> None:
        """Go on with some sentences (numbers of them) alone, in other memory."""
        for name in ("limit", "newest", "running", "running_scores", "ended", "ended_scores", "done"):
            setattr(self, name, getattr(self, name)[sentences])
        self.steps.only(sentences)

    def advance(self) -> None:
        """One more word for every beam of every sentence."""
        count = self.beams
        scores, word, beam = self._candidates()
        sentences = _pick(self.running, beam).index_copy_(2, self.at.view(1), word[:, :, None])
        ends = word == self.model.config.end

        penalty = length_penalty(self.at + 1, self.alpha)
        new = (scores / penalty).masked_fill(~ends | self.done[:, None], float("-inf"))[:, :count]
        kept, chosen = torch.cat([self.ended_scores, new], dim=1).topk(count)
        self.ended.copy_(_pick(torch.cat([self.ended, sentences[:, :count]], dim=1), chosen))
        self.ended_scores.copy_(kept)

        left, chosen = scores.masked_fill(ends, float("-inf")).topk(count)
        self.running.copy_(_pick(sentences, chosen))
        self.running_scores.copy_(left)
        self.newest.copy_(word.gather(1, chosen))
        self.steps.reorder(beam.gather(1, chosen))

        # A score can only fall as words are added, and is divided by no more than the penalty of the last word allowed.
        hope = left[:, 0] / length_penalty(self.limit, self.alpha)
        full = kept[:, -1] > float("-inf")
        self.done.logical_or_(full | (kept[:, self.best - 1] >= hope))
        self.at.add_(1)

    def _candidates(self) -> tuple[Tensor, Tensor, Tensor]:
        """The 2K best continuations of each sentence, K of which at most end, so that K can go on: their scores,
        words, and which beam each continues, (B, 2K)."""
        config, count = self.model.config, self._unlike()
        logits = self.steps.step(self.newest[:, :count])  # (B, K, V)
        all_words = _log_sums(logits)
        logits[..., config.padding] = float("-inf")
        best, word = _best(logits, min(2 * self.beams, logits.shape[-1]))  # of each beam first: V is large
        last = (self.limit <= self.at + 1)[:, None, None]
        ends = logits[..., config.end, None].where(torch.arange(best.shape[-1], device=best.device) == 0, float("-inf"))
        best, word = torch.where(last, ends, best), torch.where(last, config.end, word)
        flat = (self.running_scores[:, :count, None] + (best - all_words)).flatten(1)
        scores, index = flat.topk(2 * self.beams)
        return scores, word.flatten(1).gather(1, index), index // best.shape[-1]

    def _unlike(self) -> int:
        """How many beams have to be asked: all begin alike, so one, if it has words enough. Not where a step is
        recorded or compiled, which is the same for all words."""
        enough = 2 * self.beams <= self.model.config.target_words
        fixed = self.at.device.type != "cpu" or torch.compiler.is_compiling()
        return 1 if enough and not fixed and int(self.at) == 0 else self.beams


class _Scored:
    """Scores of all words after features. A CPU writes them where the last ones were, for the system takes long to
    find fresh memory."""

    def __init__(self, model: Translator, memory: Memory, beams: int):
        self.model = model
        rows = len(memory.words) * beams if memory.words.device.type == "cpu" else 0
        self.room = model.embedding.weight.new_empty(rows, model.config.target_words)

    @torch.no_grad()
    def score(self, features: Tensor) -> Tensor:
        """(B, K, V) of features (B, K, width), valid until the next ones."""
        rows = features.shape[0] * features.shape[1]
        if len(self.room) < rows or self.room.dtype != features.dtype:  # on a GPU; where autocast left features rounded
            return self.model.score(features).float()
        return self.model.score(features, self.room[:rows]).float()


class _Cached(_Scored):
    """Steps with a past that is remembered."""

    def __init__(self, model: Translator, memory: Memory, beams: int, length: int):
        super().__init__(model, memory, beams)
        self.beams, self.length = beams, length
        self.state = model.begin(memory, beams, length)

    def restart(self, memory: Memory) -> None:
        self.state.restart(self.model.begin(memory, self.beams, self.length))

    def held(self) -> int:
        return sum(tensor.nbytes for tensor in (self.room, *self.state.tensors()))

    def step(self, words: Tensor) -> Tensor:
        return self.score(self.model.step(words, self.state))

    def reorder(self, beams: Tensor) -> None:
        self.state.reorder(beams)

    def only(self, sentences: Tensor) -> None:
        self.state = self.state.only(sentences, self.beams)


class _Recomputed(_Scored):
    """The same steps, each from the first word on."""

    def __init__(self, model: Translator, memory: Memory, beams: int, length: int):
        super().__init__(model, memory, beams)
        self.words = torch.empty(len(memory.words), beams, length, device=memory.words.device, dtype=torch.long)
        self.restart(memory)

    def restart(self, memory: Memory) -> None:
        beams = self.words.shape[1]
        words, mask = (t.repeat_interleave(beams, dim=0) for t in memory[:2])
        self.memory = Memory(words, mask, tuple(t.repeat_interleave(beams, dim=1) for t in memory.last))
        self.at = 0

    def held(self) -> int:
        return self.room.nbytes + self.words.nbytes

    def step(self, words: Tensor) -> Tensor:
        self.words[:, :, self.at] = words
        self.at += 1
        features = self.model.decode(self.words[:, :, : self.at].flatten(0, 1), self.memory)
        return self.score(features[:, -1].unflatten(0, self.words.shape[:2])[:, : words.shape[1]])

    def reorder(self, beams: Tensor) -> None:
        self.words = _pick(self.words, beams)

    def only(self, sentences: Tensor) -> None:
        beams = torch.arange(self.words.shape[1], device=sentences.device)
        rows = (sentences[:, None] * len(beams) + beams).flatten()
        self.words = self.words[sentences]
        words, mask, last = self.memory
        self.memory = Memory(words[rows], mask[rows], tuple(t[:, rows] for t in last))


def _log_sums(scores: Tensor) -> Tensor | float:
    """log Σ exp over the last axis, which is kept; a CPU takes it off the scores in place, and leaves 0."""
    if scores.device.type != "cpu":
        return scores.logsumexp(dim=-1, keepdim=True)
    torch.log_softmax(scores, dim=-1, out=scores)
    return 0.0


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """What `topk` gives; of many words on a CPU the best blocks first, then the best in these: a third of the time."""
    words, blocks = scores.shape[-1], scores.shape[-1] // BLOCK
    if scores.device.type != "cpu" or blocks < 4 * count:
        return scores.topk(count)
    places = torch.arange(words, device=scores.device)
    inside, rest = scores.split([blocks * BLOCK, words - blocks * BLOCK], dim=-1)
    inside = inside.unflatten(-1, (blocks, BLOCK))
    chosen = inside.amax(dim=-1).topk(count).indices[..., None]
    near = inside.gather(-2, chosen.expand(*chosen.shape[:-1], BLOCK)).flatten(-2)
    where = torch.cat([(chosen * BLOCK + places[:BLOCK]).flatten(-2), places[blocks * BLOCK :].expand_as(rest)], dim=-1)
    best, at = torch.cat([near, rest], dim=-1).topk(count)
    return best, where.gather(-1, at)


def _pick(sentences: Tensor, index: Tensor) -> Tensor:
    """Of sentences (B, N, L), those at index (B, M)."""
    return sentences.gather(1, index[:, :, None].expand(-1, -1, sentences.shape[2]))


def _allowed(model: Translator, logits: Tensor, last: Tensor) -> Tensor:
    """Log-probabilities (B, K, V); none for padding, and where it is the last word allowed, none but for the end."""
    config, scores = model.config, logits.log_softmax(dim=-1)
    number = torch.arange(scores.shape[-1], device=scores.device)
    banned = (number == config.padding) | (last[:, None, None] & (number != config.end))
    return scores.masked_fill(banned, float("-inf"))


def limits(model: Translator, source: Tensor, ratio: float, constant: int) -> tuple[Tensor, int]:
    """How long each target may be, its end counted (B,), and how long any of them: known without looking at words."""
    most = max(1, int(ratio * source.shape[1] + constant))
    most = most if model.longest is None else min(most, model.longest)
    words = model.mask(source).sum(dim=1)
    return (ratio * words + constant).long().clamp(1, most), most


def time_to_look(step: int, source: Tensor) -> bool:
    """Whether to ask if all is done, which on a GPU is to wait."""
    return source.device.type == "cpu" or (step + 1) % CHECK == 0


@contextmanager
def evaluating(model: Translator) -> Iterator[None]:
    """Without dropout, and then as it was."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()
