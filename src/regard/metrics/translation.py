"""Translation figures, each with a 95 % interval: BLEU, chrF, exact matches and perplexity.

sacreBLEU (Post, 2018) computes the scores. Its counts per sentence are kept, so that a bootstrap resample is a sum.
Resamples use sacreBLEU's own seed, so that results agree with its tests.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.errors import DataError, missing
from regard.metrics.classification import Figure, wilson, with_percentiles
from regard.metrics.paired import Comparison

SEED = 12345
RESAMPLES = 1000
TRIALS = 10_000
_BLOCK = 4_000_000  # draws made at once


@dataclass(frozen=True)
class TranslationSummary:
    """Figures of one system's translations; a signature says how sacreBLEU came to its own."""

    figures: dict[str, Figure]
    signatures: dict[str, str]


class _Scores:
    """One metric of sacreBLEU on one system: counts of every sentence (N, counts), and a score of any sum of them."""

    def __init__(self, metric: Any, hypotheses: Sequence[str], references: Sequence[str]):
        self.metric = metric
        self.counts = np.array(metric._extract_corpus_statistics(hypotheses, [references]), dtype=np.float64)

    def of(self, sums: np.ndarray) -> np.ndarray:
        """Scores of summed counts (samples, counts)."""
        return np.array([self.metric._compute_score_from_stats(row.tolist()).score for row in sums])

    @property
    def value(self) -> float:
        return float(self.of(self.counts.sum(0, keepdims=True))[0])


def summarise_translation(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", resamples: int = RESAMPLES
) -> TranslationSummary:
    """BLEU and chrF (0 to 100, cased, on text that is not tokenised) and the share of exact matches.

    >>> made = summarise_translation(["Ein Hund schläft.", "Zwei Katzen"], ["Ein Hund schläft.", "Zwei Hunde"])
    >>> round(made.figures["chrf"].value, 1), made.figures["exact_match"].value
    (74.6, 0.5)
    >>> made.signatures["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    True
    """
    _require_as_many(hypotheses, references)
    n = len(references)
    exact = sum(a == b for a, b in zip(hypotheses, references, strict=True))
    figures, signatures = {"exact_match": wilson(exact, n)}, {}
    for name, metric in _metrics(tokenize).items():
        scores = _Scores(metric, hypotheses, references)
        drawn = np.concatenate([scores.of(weights @ scores.counts) for weights in _resamples(n, resamples)])
        figures[name] = with_percentiles(scores.value, drawn, n)
        signatures[name] = str(metric.get_signature())
    return TranslationSummary({name: figures[name] for name in ("bleu", "chrf", "exact_match")}, signatures)


def perplexity(log_likelihoods: np.ndarray, tokens: np.ndarray, *, resamples: int = RESAMPLES) -> Figure:
    """exp of the mean negative log-likelihood per token, from each sentence's sum (natural logarithms) and its tokens.

    The interval resamples sentences: tokens of one sentence are not independent.

    >>> perplexity(np.log([0.25, 0.25]), np.array([2, 2])).value
    2.0
    """
    if len(log_likelihoods) != len(tokens) or not len(tokens) or np.sum(tokens) <= 0:
        raise DataError(f"{len(log_likelihoods)} log-likelihoods and {len(tokens)} token counts give no perplexity")
    counts = np.stack([log_likelihoods, tokens], axis=1).astype(np.float64)

    def value(sums: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return np.exp(-sums[:, 0] / sums[:, 1])

    n = len(tokens)
    drawn = np.concatenate([value(weights @ counts) for weights in _resamples(n, resamples)])
    return with_percentiles(float(value(counts.sum(0, keepdims=True))[0]), drawn, n)


def compare_translations(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    *,
    tokenize: str = "13a",
    resamples: int = RESAMPLES,
    trials: int = TRIALS,
) -> dict[str, Comparison]:
    """Whether the second system is better than the first, in BLEU and chrF, on the same sentences.

    "randomisation" is sacreBLEU's approximate randomisation (Riezler & Maxwell, 2005), two-sided and the one to report;
    "bootstrap" its paired bootstrap (Koehn, 2004), one-sided.

    >>> made = compare_translations(["ein Hund"] * 9, ["ein Hund"] * 9, ["ein Haus"] * 9, trials=100)["chrf"]
    >>> made.difference.value, made.tests["randomisation"]
    (0.0, 1.0)
    """
    _require_as_many(first, references)
    _require_as_many(second, references)
    n, made = len(references), {}
    for name, metric in _metrics(tokenize).items():
        a, b = (_Scores(metric, system, references) for system in (first, second))
        ahead = b.value - a.value
        drawn = np.concatenate([b.of(w @ b.counts) - a.of(w @ a.counts) for w in _resamples(n, resamples)])
        swapped = np.concatenate([own @ (a.counts - b.counts) for own in _swaps(n, trials)])
        shuffled = b.of(a.counts.sum(0) - swapped) - a.of(b.counts.sum(0) + swapped)
        tests = {
            "randomisation": _tail(np.abs(shuffled), ahead),
            "bootstrap": _tail(np.abs(drawn) - np.abs(drawn).mean(), ahead),
        }
        made[name] = Comparison(with_percentiles(ahead, drawn, n), tests)
    return made


def _tail(samples: np.ndarray, ahead: float) -> float:
    """The share of samples at least as far apart, itself counted among them.

    sacreBLEU counts only those further apart, so that two equal systems would seem to differ for certain.
    """
    return (int((samples >= abs(ahead) - 1e-9).sum()) + 1) / (len(samples) + 1)


def _metrics(tokenize: str) -> dict[str, Any]:
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise missing("sacrebleu", "text") from None
    return {"bleu": BLEU(tokenize=tokenize), "chrf": CHRF()}


def _require_as_many(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references) or not references:
        raise DataError(
            f"{len(hypotheses)} translations cannot be compared with {len(references)} references",
            do="give one reference for every translation",
        )


def _resamples(n: int, count: int) -> Iterator[np.ndarray]:
    """How often each of n sentences was drawn, (samples, n), some samples at a time."""
    draw = np.random.default_rng(SEED)
    for size in _blocks(n, count):
        chosen = draw.choice(n, size=(size, n), replace=True) + np.arange(size)[:, None] * n
        yield np.bincount(chosen.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)


def _swaps(n: int, count: int) -> Iterator[np.ndarray]:
    """Whose translation of each sentence the first of two mixed systems has: 1 for the first's."""
    draw = np.random.default_rng(SEED)
    for size in _blocks(n, count):
        yield draw.integers(2, size=(size, n), dtype=bool).astype(np.float64)


def _blocks(n: int, count: int) -> list[int]:
    each = max(1, _BLOCK // n)
    return [min(each, count - at) for at in range(0, count, each)]
