"""Survival against lifelines, scikit-survival and torchsurv, on public data sets and on generated ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

lifelines = pytest.importorskip("lifelines")

from lifelines.datasets import load_gbsg2, load_lung, load_rossi  # noqa: E402  # pyright: ignore
from lifelines.statistics import logrank_test  # noqa: E402  # pyright: ignore
from lifelines.utils import concordance_index  # noqa: E402  # pyright: ignore
from sksurv import metrics as sksurv  # noqa: E402  # pyright: ignore
from sksurv.util import Surv  # noqa: E402  # pyright: ignore
from torchsurv.loss.cox import neg_partial_log_likelihood  # noqa: E402  # pyright: ignore

from regard.metrics import Concordance, breslow, kaplan_meier, log_rank  # noqa: E402
from regard.metrics.survival import auc, brier_scores, integrated, observed_share, time_grid  # noqa: E402
from regard.task import Folds  # noqa: E402
from regard.tasks.survival.clinical import fit_cox  # noqa: E402
from regard.tasks.survival.curves import Curves  # noqa: E402
from regard.tasks.survival.folds import over_time  # noqa: E402
from regard.tasks.survival.loss import cox_loss  # noqa: E402

Cohort = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def cohort(name: str) -> Cohort:
    """Time, event, features and a group of a public data set, or of generated times with many ties."""
    if name == "ties":
        draw = np.random.default_rng(3)
        x = draw.normal(size=(150, 2))
        return draw.integers(1, 9, 150).astype(float), draw.random(150) < 0.6, x, x[:, 0] > 0
    table: Any
    if name == "rossi":
        table = load_rossi()
        x = table[["fin", "age", "race", "prio"]]
        return table.week.to_numpy(float), table.arrest.to_numpy(bool), x.to_numpy(float), table.fin.to_numpy(bool)
    if name == "gbsg2":
        table = load_gbsg2()
        x = table[["age", "tsize", "pnodes", "progrec"]].to_numpy(float)
        return table.time.to_numpy(float), table.cens.to_numpy(bool), x, (table.horTh == "yes").to_numpy()
    table = load_lung()[["time", "status", "age", "sex", "ph.ecog"]].dropna()
    x = table[["age", "sex", "ph.ecog"]].to_numpy(float)
    return table.time.to_numpy(float), table.status.to_numpy(bool), x, (table.sex == 1).to_numpy()


@pytest.fixture(params=["rossi", "gbsg2", "lung", "ties"])
def data(request: pytest.FixtureRequest) -> Cohort:
    return cohort(request.param)


def fitted(data: Cohort) -> tuple[Any, np.ndarray, Any]:
    """lifelines' Cox model, its log-hazards and the table it was fitted on."""
    import pandas

    time, event, x, _ = data
    table = pandas.DataFrame(x, columns=[f"x{n}" for n in range(x.shape[1])]).assign(t=time, e=event)
    model = lifelines.CoxPHFitter().fit(table, "t", "e")
    return model, model.predict_log_partial_hazard(table).to_numpy(), table


def test_kaplan_meier_and_its_interval_are_lifelines(data: Cohort) -> None:
    time, event, _, _ = data
    theirs, mine = lifelines.KaplanMeierFitter().fit(time, event), kaplan_meier(time, event)
    np.testing.assert_allclose(mine.survival, theirs.survival_function_at_times(mine.times), atol=1e-12)
    interval = theirs.confidence_interval_.loc[mine.times].to_numpy()
    np.testing.assert_allclose(np.c_[mine.low, mine.high], interval, atol=1e-8)
    assert mine.median == pytest.approx(theirs.median_survival_time_, nan_ok=True) or np.isinf(
        theirs.median_survival_time_
    )


def test_the_log_rank_test_is_lifelines(data: Cohort) -> None:
    time, event, _, group = data
    theirs = logrank_test(time[group], time[~group], event[group], event[~group])
    assert log_rank(time, event, group) == pytest.approx((theirs.test_statistic, theirs.p_value))


def test_the_c_index_is_that_of_both(data: Cohort) -> None:
    time, event, _, _ = data
    _, risk, _ = fitted(data)
    for own in (risk, risk.round(1)):  # the second has ties
        mine = Concordance(time, event).of(own)
        assert mine == pytest.approx(concordance_index(time, -own, event))
        assert mine == pytest.approx(sksurv.concordance_index_censored(event, time, own)[0])


def test_the_resampled_c_index_is_that_of_the_resample(data: Cohort) -> None:
    time, event, _, _ = data
    _, risk, _ = fitted(data)
    drawn = np.random.default_rng(0).integers(len(time), size=len(time))
    weights = np.bincount(drawn, minlength=len(time))[None].astype(float)
    mine = float(Concordance(time, event).resampled(risk, weights)[0])
    assert mine == pytest.approx(concordance_index(time[drawn], -risk[drawn], event[drawn]))


def test_cox_loss_is_torchsurvs(data: Cohort) -> None:
    time, event, _, _ = data
    draw = torch.Generator().manual_seed(0)
    h = torch.randn(len(time), generator=draw, dtype=torch.float64)
    when, seen = torch.from_numpy(time), torch.from_numpy(event)
    for ties in ("efron", "breslow"):
        theirs = neg_partial_log_likelihood(h[:, None], seen, when, ties_method=ties, reduction="sum")
        mine = cox_loss(h, when, seen, ties) * event.sum()
        assert float(mine) == pytest.approx(float(theirs), rel=1e-5)


def test_coefficients_and_likelihood_are_lifelines(data: Cohort) -> None:
    time, event, x, _ = data
    model, risk, _ = fitted(data)
    mine = fit_cox((x - x.mean(0)) / x.std(0), time, event, ridge=0.0) / x.std(0)
    np.testing.assert_allclose(mine, model.params_.to_numpy(), rtol=1e-5, atol=1e-7)
    h, when, seen = (torch.as_tensor(own, dtype=torch.float64) for own in (risk, time, event))
    lost = cox_loss(h, when, seen)
    assert -float(lost) * event.sum() == pytest.approx(model.log_likelihood_, rel=1e-9)


def test_baseline_and_curves_are_lifelines(data: Cohort) -> None:
    time, event, _, _ = data
    model, risk, table = fitted(data)
    times, hazard = breslow(time, event, risk)
    np.testing.assert_allclose(hazard, model.baseline_cumulative_hazard_.loc[times].to_numpy()[:, 0], atol=1e-12)
    curves = Curves("cox", 1.0).fit(risk[:, None], time, event)  # its own centre: the curves do not depend on it
    when = np.unique(time)[1::3]
    theirs = model.predict_survival_function(table, times=when).to_numpy().T
    np.testing.assert_allclose(curves.survival(risk[:, None], when), theirs, atol=1e-10)
    medians = model.predict_median(table)
    mine = [curves.median(row[None, None]) for row in risk[:40]]
    assert [np.inf if m is None else m for m in mine] == np.asarray(medians)[:40].tolist()


def test_brier_score_and_auc_are_scikit_survivals(data: Cohort) -> None:
    time, event, _, _ = data
    model, risk, table = fitted(data)
    event = event & (time < time.max())  # scikit-survival refuses events after which nobody is observed
    known, grid = Surv.from_arrays(event, time), time_grid(time, event)
    survival = model.predict_survival_function(table, times=grid).to_numpy().T
    scores = brier_scores(time, event, survival, grid)
    np.testing.assert_allclose(scores.mean(0), sksurv.brier_score(known, known, survival, grid)[1], atol=1e-12)
    theirs = sksurv.integrated_brier_score(known, known, survival, grid)
    assert integrated(scores, grid).mean() == pytest.approx(theirs)
    for own in (risk, risk.round(1)):
        np.testing.assert_allclose(
            auc(time, event, own, grid), sksurv.cumulative_dynamic_auc(known, known, own, grid)[0], atol=1e-12
        )


def test_figures_over_folds_are_scikit_survivals(data: Cohort) -> None:
    """Pairs are of one fold, and weights of all: its AUC of each fold, weighted by its pairs."""
    time, event, _, _ = data
    model, risk, table = fitted(data)
    event = event & (time < time.max())
    known, grid = Surv.from_arrays(event, time), time_grid(time, event)[::5]
    fold = np.arange(len(time)) % 3
    share = np.maximum(observed_share(time, event).at(time), 1e-9)  # 0 of the last one only, who is censored
    right, pairs = np.zeros((2, len(grid)))
    for number in range(3):
        own = fold == number
        died = (time[own, None] <= grid) & event[own, None]
        count = (died / share[own, None]).sum(0) * (time[own, None] > grid).sum(0)
        inside = (grid >= time[own].min()) & (grid < time[own].max()) & (count > 0)
        each = sksurv.cumulative_dynamic_auc(known, Surv.from_arrays(event[own], time[own]), risk[own], grid[inside])
        right[inside] += each[0] * count[inside]
        pairs[inside] += count[inside]
    np.testing.assert_allclose(auc(time, event, risk, grid, fold), right / pairs, atol=1e-12)
    curves = Curves("cox", float(grid[len(grid) // 2])).fit(risk[:, None], time, event)
    rows = [
        {"name": str(n), "time": str(time[n]), "event": str(int(event[n])), "patient": "", "fold": str(fold[n] + 1)}
        | curves.to_row(risk[n : n + 1])
        for n in range(len(time))
    ]
    folds = Folds(rows, [], {}, [{"curves": curves.to_json()}] * 3)
    made = over_time(folds, time, event, curves.risk(risk[:, None]), np.ones((2, len(time))))
    grid = time_grid(time, event)
    survival = model.predict_survival_function(table, times=grid).to_numpy().T
    theirs = sksurv.integrated_brier_score(known, known, survival, grid)
    assert made["figures"]["integrated_brier"]["value"] == pytest.approx(theirs, rel=1e-4)
