"""Translations of a whole split, and the figures they add up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batch import Batch
from regard.data.text import TextLoader, Tokenizers
from regard.metrics import Figure, perplexity, summarise_translation
from regard.networks.decoding import Hypotheses, beam_search, evaluating
from regard.networks.recorded import RecordedSearch
from regard.networks.translator import Translator
from regard.tasks.translation.loss import NextWord

AT_ONCE = 4096  # source tokens translated at a time, padding counted
ROUND = 8  # words: sources whose shapes are recorded are padded to a multiple of this


class Translated(NamedTuple):
    """A sentence's translation, and its score: log-probability over the length penalty."""

    source: str
    text: str
    score: float
    others: tuple[tuple[str, float], ...] = ()
    """The next best ones and their scores, where they were asked for."""


@dataclass(frozen=True)
class TranslationEvaluation:
    """Figures with intervals, and every translation behind them."""

    figures: dict[str, Figure]
    signatures: dict[str, str]
    keys: list[str]
    references: list[str]
    answers: list[Translated]

    def predictions(self) -> list[dict[str, Any]]:
        """One row per sentence."""
        return [
            {"name": key, "source": a.source, "reference": wanted, "translation": a.text, "score": f"{a.score:.4f}"}
            for key, wanted, a in zip(self.keys, self.references, self.answers, strict=True)
        ]

    def describe(self) -> str:
        return self.signatures["bleu"]

    def to_json(self) -> dict[str, Any]:
        """The figures, ready for summary.json."""
        figures = {name: figure._asdict() for name, figure in self.figures.items()}
        return {"figures": figures, "signatures": self.signatures}


def make_search(
    model: Translator, device: torch.device, *, beams: int, penalty: float, best: int = 1, **limits: Any
) -> Callable[[Tensor], Hypotheses]:
    """Beam search with these settings. On a GPU its step is recorded for each shape of sources, so keep it.

    `limits` are `ratio` and `constant` of the search, where its own will not do.
    """
    options: dict[str, Any] = {"beams": beams, "penalty": penalty, "best": best, **limits}
    return RecordedSearch(model, **options) if device.type == "cuda" else partial(beam_search, model, **options)


@torch.inference_mode()
def translate_all(
    model: Translator,
    tokenizers: Tokenizers,
    sources: Sequence[str],
    device: torch.device,
    search: Callable[[Tensor], Hypotheses],
    tick: Callable[[int], None] = lambda done: None,
) -> list[Translated]:
    """Translations in the order of the sources, found by a search of `make_search`; those of like length are
    translated together, on a GPU in few shapes."""
    encoded = tokenizers.source.encode(list(sources), end=True)
    answers: dict[int, Translated] = {}
    waiting = sorted(range(len(encoded)), key=lambda n: len(encoded[n]), reverse=True)
    while waiting:
        longest = len(encoded[waiting[0]])
        if device.type == "cuda" and model.longest is None:
            longest = -(-longest // ROUND) * ROUND
        some, waiting = waiting[: max(1, AT_ONCE // longest)], waiting[max(1, AT_ONCE // longest) :]
        rows = torch.full((len(some), longest), tokenizers.source.pad)
        for row, n in zip(rows, some, strict=True):
            row[: len(encoded[n])] = torch.tensor(encoded[n])
        result = search(rows.to(device))
        for n, words, scores in zip(some, result.words.tolist(), result.scores.tolist(), strict=True):
            (text, score), *others = (
                (tokenizers.target.decode(own), value) for own, value in zip(words, scores, strict=True)
            )
            answers[n] = Translated(sources[n], text, score, tuple(others))
        tick(len(answers))
    return [answers[n] for n in range(len(sources))]


@torch.inference_mode()
def likelihoods(
    model: nn.Module, loader: TextLoader, device: torch.device, tick: Callable[..., None] = lambda *_: None
) -> tuple[np.ndarray, np.ndarray]:
    """Of each sentence of this process's share: the log-likelihood of the reference, and its tokens."""
    task, sums, counts = NextWord(loader.pairs.tokenizers.target.pad), [], []
    with evaluating(model):
        for done, batch in enumerate(loader.epoch(0), start=1):
            target = batch.target.to(device)
            output = task.forward(model, Batch({"source": batch.source.to(device)}, {"target": target}))
            real = (batch.numbers >= 0).to(device)
            for parts, part in zip((sums, counts), task.log_likelihoods(output, target), strict=True):
                parts.append(part[real].double().cpu().numpy())
            tick(done)
    return np.concatenate(sums), np.concatenate(counts)


def evaluate_translator(
    model: Translator,
    tokenizers: Tokenizers,
    loader: TextLoader,
    keys: list[str],
    sources: list[str],
    references: list[str],
    device: torch.device,
    *,
    beams: int,
    penalty: float,
    tokenize: str = "13a",
    tick: Callable[[int], None] = lambda done: None,
) -> TranslationEvaluation:
    """BLEU, chrF and exact matches of translations, and the perplexity of the references."""
    search = make_search(model, device, beams=beams, penalty=penalty)
    answers = translate_all(model, tokenizers, sources, device, search, tick)
    made = summarise_translation([a.text for a in answers], references, tokenize=tokenize)
    figures = made.figures | {"perplexity": perplexity(*likelihoods(model, loader, device))}
    return TranslationEvaluation(figures, made.signatures, keys, references, answers)
