"""Predicted numbers of a whole split, and the figures they add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regard.errors import ConfigError
from regard.evaluation import left_out_words, whole_json
from regard.metrics import Comparison, Figure, paired_bootstrap
from regard.metrics.folds import bootstrap_figure, patient_weights

RESAMPLES = 2000


@dataclass(frozen=True)
class NumberEvaluation:
    """Figures with intervals, and every prediction behind them: true and predicted numbers (N, columns)."""

    columns: tuple[str, ...]
    keys: list[str]
    index: np.ndarray
    truth: np.ndarray
    predicted: np.ndarray
    figures: dict[str, Figure]
    """MAE, RMSE and R² of each column; of one column alone, without its name."""
    whole: NumberEvaluation | None = None
    """With the samples that the model has seen, where these are left out."""

    def without(self, seen: set[int]) -> NumberEvaluation:
        """The same without these samples of the dataset."""
        kept = np.flatnonzero(~np.isin(self.index, list(seen)))
        keys = [self.keys[n] for n in kept]
        made = NumberEvaluation.of(self.columns, keys, self.index[kept], self.truth[kept], self.predicted[kept])
        return replace(made, whole=self)

    @staticmethod
    def mean_of(each: Sequence[NumberEvaluation]) -> NumberEvaluation:
        """Of the mean of several models' predictions."""
        first = each[0]
        predicted = np.mean([own.predicted for own in each], axis=0)
        return NumberEvaluation.of(first.columns, first.keys, first.index, first.truth, predicted)

    def recalibration(self) -> dict[str, Figure]:
        """The mean of true minus predicted numbers, and the slope of the true on the predicted ones."""
        made: dict[str, Figure] = {}
        for n, name in enumerate(self.columns):
            suffix = f"_{name}" if len(self.columns) > 1 else ""
            truth, guess = self.truth[:, n], self.predicted[:, n]
            weights = patient_weights(np.arange(len(truth)))
            weights = weights / weights.sum(1, keepdims=True)
            means = weights @ truth, weights @ guess
            spread = weights @ guess**2 - means[1] ** 2
            slope = (weights @ (truth * guess) - means[0] * means[1]) / np.where(spread > 0, spread, np.nan)
            made[f"calibration_intercept{suffix}"] = bootstrap_figure(means[0] - means[1], len(truth))
            made[f"calibration_slope{suffix}"] = bootstrap_figure(slope, len(truth))
        return made

    @staticmethod
    def of(
        columns: tuple[str, ...], keys: list[str], index: np.ndarray, truth: np.ndarray, predicted: np.ndarray
    ) -> NumberEvaluation:
        made: dict[str, Figure] = {}
        for n, column in enumerate(columns):
            suffix = f"_{column}" if len(columns) > 1 else ""
            own = number_figures(truth[:, n], predicted[:, n])
            made |= {f"{name}{suffix}": figure for name, figure in own.items()}
        return NumberEvaluation(columns, keys, index, truth, predicted, made)

    def predictions(self) -> list[dict[str, Any]]:
        return [
            {"name": key}
            | {name: f"{value:.10g}" for name, value in zip(self.columns, true, strict=True)}
            | {f"predicted_{name}": f"{value:.10g}" for name, value in zip(self.columns, guess, strict=True)}
            for key, true, guess in zip(self.keys, self.truth, self.predicted, strict=True)
        ]

    def examples(self) -> list[list[int]]:
        """Samples by what they tell, the most telling first: large errors, then at even distances of the truth."""
        errors = np.abs(self.predicted - self.truth)[:, 0]
        ranked = np.argsort(self.truth[:, 0], kind="stable")
        # Halves, quarters, eighths of the way: any number of first ones lie at about even distances.
        shares = [
            (place + 0.5) / 2**level for level in range(len(ranked).bit_length() + 1) for place in range(2**level)
        ]
        even = list(dict.fromkeys(int(share * len(ranked)) for share in shares))
        return [np.argsort(-errors, kind="stable").tolist(), ranked[even].tolist()]

    def describe(self) -> str:
        if not self.whole:
            return ""
        maes = [f"{name} {f.value:.4g}" for name, f in self.whole.figures.items() if name.startswith("mae")]
        return left_out_words(self.whole, len(self.keys), ", ".join(maes))

    def to_json(self) -> dict[str, Any]:
        figures = {name: figure._asdict() for name, figure in self.figures.items()}
        return {"figures": figures} | ({"whole": whole_json(self.whole, len(self.keys))} if self.whole else {})


def number_figures(
    truth: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None = None, seed: int = 0
) -> dict[str, Figure]:
    """Mean absolute error, root mean squared error and R², each with its bootstrap interval.

    `weights` (1 + resamples, N) count the samples, a row of ones first; without them samples are drawn one by one.

    >>> figures = number_figures(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.0, 3.0, 2.0]))
    >>> round(figures["mae"].value, 3), round(figures["rmse"].value, 3), round(figures["r2"].value, 3)
    (0.5, 1.0, 0.2)
    """
    n, error = len(truth), predicted - truth
    if weights is None:
        draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
        weights = np.vstack([np.ones(n), draws])
    weights = weights / weights.sum(1, keepdims=True)
    squared = weights @ error**2
    spread = weights @ truth**2 - (weights @ truth) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        r2 = np.where(spread > 1e-12 * (weights @ truth**2), 1 - squared / spread, np.nan)
    samples = {"mae": weights @ np.abs(error), "rmse": np.sqrt(squared), "r2": r2}
    return {name: _figure(values, n) for name, values in samples.items()}


def _figure(values: np.ndarray, n: int) -> Figure:
    drawn = values[1:][np.isfinite(values[1:])]
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (np.nan, np.nan)
    return Figure(float(values[0]), float(low), float(high), n)


def compare_numbers(
    first: Sequence[Mapping[str, str]], second: Sequence[Mapping[str, str]], names: Sequence[str]
) -> dict[str, Comparison]:
    """How far the second's errors are from the first's, column by column: the paired bootstrap over images."""
    made: dict[str, Comparison] = {}
    common = [name for name in names if second and f"predicted_{name}" in second[0]]
    if not common:
        what = f"the second run does not predict {', '.join(names)}"
        raise ConfigError(what, do="compare runs of the same --column")
    many = sum(name.startswith("predicted_") for name in (*first[0], *second[0])) > 2
    for name in common:
        truth = np.array([float(row[name]) for row in first])
        errors = [np.abs([float(row[f"predicted_{name}"]) for row in rows] - truth) for rows in (first, second)]
        suffix = f"_{name}" if many else ""

        def mae(index: np.ndarray, errors: Any = errors) -> float:
            return float((errors[1][index] - errors[0][index]).mean())

        def rmse(index: np.ndarray, errors: Any = errors) -> float:
            one, other = (float(np.sqrt((own[index] ** 2).mean())) for own in errors)
            return other - one

        for label, measure in (("mae", mae), ("rmse", rmse)):
            difference, p = paired_bootstrap(len(truth), measure)
            made[f"{label}{suffix}"] = Comparison(difference, {"paired bootstrap": p}, less_is_better=True)
    return made
