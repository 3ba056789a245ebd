"""Risks and survival curves of a whole split, and the figures they add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from regard.evaluation import left_out_words, whole_json
from regard.metrics import Comparison, Concordance, Figure, kaplan_meier, log_rank, paired_bootstrap, step
from regard.metrics.survival import auc, brier_scores, calibration, cox_slope, integrated, survival_figures, time_grid
from regard.tasks.survival.curves import Curves

CALIBRATION_GROUPS = 5
PER_GROUP = 10
"""Events that a group of the calibration curve needs."""
SHOWN_AT_RISK = 6


@dataclass(frozen=True)
class SurvivalEvaluation:
    """Figures with intervals, and every prediction behind them: time, event and logits (N, outputs)."""

    curves: Curves
    keys: list[str]
    index: np.ndarray
    time: np.ndarray
    event: np.ndarray
    logits: np.ndarray
    figures: dict[str, Figure]
    details: dict[str, Any] = field(repr=False, default_factory=dict)
    """Kaplan–Meier by risk group, log-rank test, calibration, and scores over time: what a report draws."""
    whole: SurvivalEvaluation | None = None
    """With the samples that the model has seen, where these are left out."""

    @property
    def risk(self) -> np.ndarray:
        return self.curves.risk(self.logits)

    def without(self, seen: set[int]) -> SurvivalEvaluation:
        """The same without these samples of the dataset."""
        kept = np.flatnonzero(~np.isin(self.index, list(seen)))
        keys = [self.keys[n] for n in kept]
        parts = (part[kept] for part in (self.index, self.time, self.event, self.logits))
        return replace(SurvivalEvaluation.of(self.curves, keys, *parts), whole=self)

    @staticmethod
    def mean_of(each: Sequence[SurvivalEvaluation]) -> SurvivalEvaluation:
        """Of the mean of several models' risks. Their survival curves have different baselines: there is none."""
        first, risk = each[0], np.mean([own.risk for own in each], axis=0)
        curves = Curves("cox", first.curves.horizon)
        return SurvivalEvaluation.of(curves, first.keys, first.index, first.time, first.event, risk[:, None])

    def recalibration(self) -> dict[str, Figure]:
        """The slope of the risk in Cox's model: 1 is right, below 1 risks are too extreme."""
        return {"calibration_slope": cox_slope(self.time, self.event, self.risk)}

    @staticmethod
    def of(
        curves: Curves, keys: list[str], index: np.ndarray, time: np.ndarray, event: np.ndarray, logits: np.ndarray
    ) -> SurvivalEvaluation:
        grid, horizon = time_grid(time, event), curves.horizon
        risk, survival = curves.risk(logits), None
        if curves.fitted:
            survival = curves.survival(logits, np.r_[grid, horizon])
        figures = survival_figures(time, event, risk, survival, grid, horizon)
        details: dict[str, Any] = {
            "horizon": horizon, "events": int(event.sum()), **risk_groups(time, event, risk > 0)
        }  # fmt: skip
        if survival is not None and len(grid):
            known = step(np.array(curves.times), np.array(curves.reference), grid)[None].repeat(len(time), 0)
            briers = [brier_scores(time, event, s, grid) for s in (survival[:, :-1], known)]
            details["over_time"] = {
                "times": grid.tolist(), "brier": briers[0].mean(0).tolist(), "reference": briers[1].mean(0).tolist(),
                "auc": auc(time, event, risk, grid).tolist(),
            }  # fmt: skip
            details["reference_brier"] = float(integrated(briers[1], grid).mean())
            groups = int(np.clip(event.sum() // PER_GROUP, 1, CALIBRATION_GROUPS))
            made = calibration(time, event, 1 - survival[:, -1], horizon, groups)
            details["calibration_groups"] = [group._asdict() for group in made]
        return SurvivalEvaluation(curves, keys, index, time, event, logits, figures, details)

    def predictions(self) -> list[dict[str, Any]]:
        known = self.curves.fitted
        survival = self.curves.survival(self.logits, np.array([self.curves.horizon]))[:, 0] if known else self.risk
        return [
            {"name": key, "time": f"{time:.10g}", "event": int(event), **self.curves.to_row(logits),
             "group": "high" if risk > 0 else "low"}
            | ({"horizon": f"{self.curves.horizon:.10g}", "survival": f"{alive:.10g}"} if known else {})
            for key, time, event, logits, risk, alive in zip(
                self.keys, self.time, self.event, self.logits, self.risk, survival, strict=True
            )
        ]  # fmt: skip

    def examples(self) -> list[list[int]]:
        """Samples by what they tell: early events by risk from low (surprises), from high; and those without."""
        early = np.flatnonzero(self.event)
        early = early[np.argsort(self.time[early], kind="stable")][: max(1, len(early) // 2)]
        late = np.flatnonzero(self.time >= np.median(self.time))
        ranked = early[np.argsort(self.risk[early], kind="stable")]
        return [ranked[::-1].tolist(), ranked.tolist(), late[np.argsort(self.risk[late], kind="stable")].tolist()]

    def describe(self) -> str:
        test = self.details["log_rank"]
        p = "not defined" if np.isnan(test["p"]) else f"{test['p']:.3g}"
        said = f"high against low risk, cut at the training set's median: log-rank p {p}"
        if not self.whole:
            return said
        c_index = f"c_index {self.whole.figures['c_index'].value:.4f}"
        return f"{said}\n{left_out_words(self.whole, len(self.keys), c_index)}"

    def to_json(self) -> dict[str, Any]:
        figures = {name: figure._asdict() for name, figure in self.figures.items()}
        whole = {"whole": whole_json(self.whole, len(self.keys))} if self.whole else {}
        return {"figures": figures, **self.details, **whole}


def risk_groups(time: np.ndarray, event: np.ndarray, high: np.ndarray) -> dict[str, Any]:
    """Kaplan–Meier of low and high risk with numbers at risk, and the log-rank test between them."""
    ticks, groups = np.linspace(0, time.max(), SHOWN_AT_RISK), {}
    for name, own in (("low", ~high), ("high", high)):
        if own.any():
            curve = kaplan_meier(time[own], event[own])
            groups[name] = {
                "n": int(own.sum()), "events": int(event[own].sum()), "median": curve.median,
                **{part: getattr(curve, part).tolist() for part in ("times", "survival", "low", "high")},
                "censored": np.unique(time[own & ~event]).tolist(),
                "at_risk": [int((time[own] >= tick).sum()) for tick in ticks],
            }  # fmt: skip
    return {"groups": groups, "at_risk_times": ticks.tolist(), "log_rank": log_rank(time, event, high)._asdict()}


def compare_risks(first: Sequence[Mapping[str, str]], second: Sequence[Mapping[str, str]]) -> dict[str, Comparison]:
    """How far the second's C-index is from the first's: the paired bootstrap over subjects.

    Of several folds, by pairs within the folds of each.
    """
    time, event = np.array([float(row["time"]) for row in first]), np.array([row["event"] == "1" for row in first])
    risks = [np.array([float(row["risk"]) for row in rows]) for rows in (first, second)]
    folds = [np.array([row.get("fold", "") for row in rows]) for rows in (first, second)]
    difference, p = concordance_difference(time, event, risks[0], risks[1], folds)
    return {"c_index": Comparison(difference, {"paired bootstrap": p})}


def concordance_within(
    time: np.ndarray, event: np.ndarray, risk: np.ndarray, fold: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Harrell's C from pairs of one fold only, for each row of sample weights."""
    right, pairs = np.zeros(len(weights)), np.zeros(len(weights))
    for number in np.unique(fold):
        own = fold == number
        counts = Concordance(time[own], event[own]).counts(risk[own], weights[:, own])
        right, pairs = right + counts[0], pairs + counts[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(pairs > 0, right / pairs, np.nan)


def concordance_difference(
    time: np.ndarray, event: np.ndarray, first: np.ndarray, second: np.ndarray,
    folds: Sequence[np.ndarray] | None = None,
) -> tuple[Figure, float]:  # fmt: skip
    """C-index of the second risks minus that of the first, with interval and p value; `folds` are those of each."""
    n = len(time)
    each = folds or [np.zeros(n)] * 2

    def measure(index: np.ndarray) -> float:
        weights = np.bincount(index, minlength=n)[None].astype(float)
        pairs = zip((first, second), each, strict=True)
        one, other = (float(concordance_within(time, event, risk, fold, weights)[0]) for risk, fold in pairs)
        return other - one

    return paired_bootstrap(n, measure)
