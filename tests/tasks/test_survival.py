"""Risk over time: losses, training, errors in tables, resuming, explanations, clinical columns, other cohorts."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.data.batch import Batch
from regard.errors import ConfigError, DataError, RunError
from regard.explain import METHODS
from regard.tasks.survival.clinical import Column, fit_cox
from regard.tasks.survival.curves import Curves, discrete_targets, make_edges
from regard.tasks.survival.evaluation import compare_risks
from regard.tasks.survival.loss import Hazards, SurvivalLoss, cox_loss, discrete_loss
from regard.tasks.survival.page import doubts
from regard.tasks.survival.predictor import SurvivalPredictor
from regard.training import World
from regard.weights import Run, open_weights
from tests.conftest import whole_runs
from tests.training.test_distributed import launch, told

SETTINGS: dict[str, Any] = {
    "time": "days",
    "event": "died",
    "model": "vit_nano",
    "recipe": "survival_plain",
    "depth": 1,
    "width": 32,
    "heads": 2,
    "mlp": 64,
    "size": 16,
    "crop": "none",
    "explain": 0,
    "quiet": True,
    "device": "cpu",
}


def write_cohort(folder: Path, count: int = 160, seed: int = 0, names: tuple[str, str] = ("days", "died")) -> Path:
    """Pictures of discs, whose radius and the subjects' age and sex decide the hazard; times are whole days."""
    draw = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [["path", *names, "age", "sex", "other", "coin", "note"]]
    for n in range(count):
        radius, age, sex = draw.uniform(2, 7), draw.normal(60, 10), draw.integers(2)
        hazard = np.exp(1.0 * (radius - 4.5) + 0.07 * (age - 60) + 0.5 * sex)
        death, end = draw.exponential(200 / hazard), draw.uniform(50, 1000)
        y, x = np.mgrid[:16, :16]
        pixels = ((x - 8) ** 2 + (y - 8) ** 2 < radius**2) * 180 + draw.integers(0, 40, (16, 16))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{n:03d}.png")
        time, seen = f"{np.ceil(min(death, end)):.0f}", str(int(death <= end))
        chance = f"{draw.exponential(200):.1f}", str(int(draw.random() < 0.7))
        rows.append([f"{n:03d}.png", time, seen, "" if n % 9 == 0 else f"{age:.1f}", "fm"[sex], *chance, "seen"])
    with (folder / "subjects.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder / "subjects.csv"


@pytest.fixture(scope="session")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cohort(tmp_path_factory.mktemp("cohort"))


@pytest.fixture(scope="session")
@whole_runs()
def run(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With clinical columns, and two subjects explained."""
    out = tmp_path_factory.mktemp("runs") / "risk"
    return regard.train(cohort, epochs=15, clinical="age,sex", out=out, **{**SETTINGS, "explain": 2}).path


# The losses.


def test_cox_loss_by_hand() -> None:
    """Times 1, 1, 2, 3 with hazards 2, 3, 4, 1; all but the last have the event."""
    h, time = torch.log(torch.tensor([2.0, 3.0, 4.0, 1.0])), torch.tensor([1.0, 1.0, 2.0, 3.0])
    event = torch.tensor([1.0, 1.0, 1.0, 0.0])
    both = math.log(2) + math.log(3) + math.log(4)
    efron = math.log(10) + math.log(10 - 5 / 2) + math.log(5)
    breslow = 2 * math.log(10) + math.log(5)
    assert float(cox_loss(h, time, event)) == pytest.approx((efron - both) / 3)
    assert float(cox_loss(h, time, event, "breslow")) == pytest.approx((breslow - both) / 3)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_cox_loss_is_finite_at_large_log_hazards_and_its_gradient_exact(ties: Any) -> None:
    draw = torch.Generator().manual_seed(0)
    time, event = torch.randint(1, 6, (64,), generator=draw).float(), torch.rand(64, generator=draw) < 0.6
    large = (torch.randint(0, 2, (64,), generator=draw) * 200.0 - 100).requires_grad_()
    (gradient,) = torch.autograd.grad(cox_loss(large, time, event, ties), large)
    exact = large.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(cox_loss(exact, time, event, ties), exact)
    assert gradient.isfinite().all()
    torch.testing.assert_close(gradient.double(), wanted, atol=1e-5, rtol=1e-4)
    h = torch.randn(12, dtype=torch.float64, generator=draw, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: cox_loss(x, time[:12].double(), event[:12], ties), h)


def test_a_batch_without_events_gives_zero_that_trains() -> None:
    h = torch.randn(5, requires_grad=True)
    loss = cox_loss(h, torch.arange(5.0), torch.zeros(5))
    loss.backward()
    assert loss.item() == 0
    assert h.grad is not None
    assert torch.equal(h.grad, torch.zeros(5))


@pytest.mark.parametrize("kind", ["cox", "discrete"])
def test_losses_read_nothing_back_from_the_device(kind: Any) -> None:
    """On a device without numbers: what depends on them, such as a shape, fails, and could not be recorded."""
    with torch.device("meta"):
        output = Hazards(torch.randn(8, 3, requires_grad=True), torch.ones(8))
        targets = {"rank": torch.ones(8), "event": torch.ones(8)}
        if kind == "discrete":
            targets = {"at_risk": torch.ones(8, 3), "died": torch.ones(8, 3)}
        SurvivalLoss(kind).loss(output, targets).backward()


def test_discrete_loss_by_hand() -> None:
    """Death in the second of three intervals; censored in the second, so followed through the first only."""
    time, event = np.array([1.5, 1.5, 9.0]), np.array([True, False, True])
    at_risk, died = map(torch.from_numpy, discrete_targets(time, event, (1.0, 2.0, 3.0)))
    assert at_risk.tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]
    assert died.tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 1]], "an event after the last interval counts there"
    end = discrete_targets(np.array([2.0, 2.0]), np.array([True, False]), (1.0, 2.0, 3.0))
    assert end[0].tolist() == [[1, 1, 0], [1, 1, 0]], "who is censored at its end was followed through the interval"
    hazard = torch.tensor([[0.1, 0.3, 0.5], [0.2, 0.4, 0.5], [0.5, 0.5, 0.25]])
    lost = -math.log(0.9 * 0.3) - math.log(0.8) - math.log(0.5 * 0.5 * 0.25)
    assert float(discrete_loss(hazard.logit(), at_risk, died)) == pytest.approx(lost / 3)


def test_only_discrete_hazards_may_be_cut_into_pieces() -> None:
    assert not SurvivalLoss("cox").divisible
    discrete, logits = SurvivalLoss("discrete"), torch.randn(6, 3)
    assert discrete.divisible
    at_risk, died = torch.randint(0, 2, (2, 6, 3)).float()
    targets = {"at_risk": at_risk, "died": died}
    parts = Batch({"x": logits}, targets).chunk(3)
    mean = sum(discrete_loss(part.inputs["x"], *part.targets.values()) for part in parts) / 3
    torch.testing.assert_close(mean, discrete_loss(logits, *targets.values()))


# Curves and columns.


def test_survival_of_discrete_hazards_by_hand() -> None:
    curves = Curves("discrete", 1.0, (1.0, 3.0), times=(1.0,), reference=(0.5,))
    logits = torch.tensor([[0.2, 0.5]]).logit().double().numpy()
    made = curves.survival(logits, np.array([0.0, 1.0, 2.0, 3.0, 9.0]))[0]
    assert made.tolist() == pytest.approx([1, 0.8, 0.8 * math.sqrt(0.5), 0.4, 0.4], rel=1e-6)
    halved = 1 + 2 * math.log(0.8 / 0.5) / math.log(2)
    assert curves.median(logits) == pytest.approx(halved, rel=1e-6)
    assert curves.median(logits - 5) is None


def test_a_baseline_belongs_to_the_median_risk() -> None:
    logits, time = np.log([[1.0], [2.0], [4.0]]), np.array([1.0, 2.0, 3.0])
    curves = Curves("cox", 1.0).fit(logits, time, np.array([True, True, False]))
    assert curves.risk(logits).tolist() == pytest.approx([-math.log(2), 0, math.log(2)])
    assert curves.hazard == pytest.approx((1 / 3.5, 1 / 3.5 + 1 / 3))
    assert curves.survival(logits, np.array([1.5]))[:, 0].tolist() == pytest.approx(np.exp([-1 / 7, -2 / 7, -4 / 7]))
    assert curves.reference == pytest.approx((2 / 3, 1 / 3))


def test_intervals_have_equally_many_events() -> None:
    draw = np.random.default_rng(0)
    time, event = draw.exponential(10, 400), draw.random(400) < 0.5
    edges = make_edges(time, event, 4)
    counts = np.histogram(time[event], [-1, *edges])[0]
    assert counts.max() - counts.min() <= 2
    with pytest.raises(DataError, match="3 intervals need as many different times"):
        make_edges(np.array([1.0, 2.0]), np.array([True, True]), 3)


def test_columns_are_standardised_one_hot_and_missing_values_marked() -> None:
    age = Column.fit("age", ["10", "20", "NA", "30"], "t")
    assert age.features == ["age", "age missing"]
    np.testing.assert_allclose(age.encode(["20", "", "30"]), [[0, 0], [0, 1], [10 / age.std, 0]])
    grade = Column.fit("grade", ["II", "III", "II", "IV"], "t")
    assert grade.features == ["grade III", "grade IV"]
    assert grade.encode(["IV", "II", "V"]).tolist() == [[0, 1], [0, 0], [0, 0]]
    with pytest.raises(DataError, match="the same for everyone"):
        Column.fit("centre", ["a", "a", ""], "t")
    with pytest.raises(DataError, match="21 categories"):
        Column.fit("name", [f"p{n}" for n in range(21)], "t")


def test_coxs_coefficient_of_one_column_by_hand() -> None:
    """Two subjects, the one with x = 1 dies first: without a penalty the best coefficient is infinite, with one not."""
    (beta,) = fit_cox(np.array([[1.0], [0.0]]), np.array([1.0, 2.0]), np.array([True, True]), ridge=0.1)
    # The gradient of log(1 + e^-b), half as two events share it, plus 0.1 b is zero.
    assert 0.1 * beta == pytest.approx(0.5 / (1 + math.exp(beta)))


# Whole runs.


def test_it_learns_the_risk_and_writes_a_whole_run(run: Path, cohort: Path) -> None:
    summary = Run(run).read_json("summary.json")
    assert summary["task"] == "survival"
    assert summary["figures"]["c_index"]["low"] > 0.5
    assert summary["log_rank"]["p"] < 0.05
    assert summary["figures"]["integrated_brier"]["value"] < summary["reference_brier"]
    assert summary["clinical_only"]["coefficients"].keys() == {"age", "age missing", "sex m"}
    assert summary["image_adds"]["value"] > 0
    page = (run / "report.html").read_text(encoding="utf-8")
    for words in ("C-index", "low risk", "at risk", "log-rank", "what the image adds", "Brier", "Why it decided so"):
        assert words in page
    assert f"There are only {summary['events']} events" in page
    rows = list(csv.DictReader((run / "predictions.csv").open()))
    assert {row["group"] for row in rows} == {"low", "high"}


def test_a_prognosis_is_that_of_the_evaluation(run: Path, cohort: Path) -> None:
    predictor = regard.load(run)
    assert isinstance(predictor, SurvivalPredictor)
    rows = {row["path"]: row for row in csv.DictReader(cohort.open())}
    for row in list(csv.DictReader((run / "predictions.csv").open()))[:3]:
        known = {name: rows[row["name"]][name] for name in ("age", "sex")}
        made = predictor.predict(cohort.parent / row["name"], clinical=known)
        assert made.risk == pytest.approx(float(row["risk"]), abs=1e-4)
        assert made.survival(float(row["horizon"])) == pytest.approx(float(row["survival"]), abs=1e-4)
        curve = made.survival([0, 50, 100, 500])
        assert curve[0] == 1
        assert (np.diff(curve) <= 0).all()
        if made.median is not None:
            assert made.survival(made.median) <= 0.5 < made.survival(made.median - 1e-6)
    with pytest.raises(ConfigError, match="no clinical column 'agge'"):
        predictor.predict(cohort.parent / "000.png", clinical={"agge": 3})


def test_an_older_subject_has_a_higher_risk(run: Path, cohort: Path) -> None:
    predictor: Any = regard.load(run)
    young, old = (predictor.predict(cohort.parent / "004.png", clinical={"age": a, "sex": "f"}) for a in (40, 80))
    assert old.risk > young.risk
    assert old.survival(100) < young.survival(100)


def test_the_command_line_predicts_tables_and_compares(run: Path, cohort: Path, cli: Any, tmp_path: Path) -> None:
    code, out, _ = cli("predict", run, cohort, "--out", tmp_path / "made.csv")
    assert code == 0, out
    made = {Path(row["name"]).name: row for row in csv.DictReader((tmp_path / "made.csv").open())}
    tested = next(csv.DictReader((run / "predictions.csv").open()))
    assert float(made[tested["name"]]["risk"]) == pytest.approx(float(tested["risk"]), abs=1e-4)
    code, out, _ = cli("predict", run, cohort.parent / "000.png")
    assert "count as missing" in out


def test_every_method_explains_the_risk(run: Path, cohort: Path) -> None:
    predictor: Any = regard.load(run)
    for method in METHODS:
        made = predictor.explain(cohort.parent / "004.png", method=method, checks="none")
        assert made.target == "risk"
        assert made.tokens.isfinite().all()
        assert made.to_json()["correct"] is None
    with pytest.raises(ConfigError, match="no 'death' to explain"):
        predictor.explain(cohort.parent / "004.png", target="death")


def test_evaluation_agrees_with_the_run_and_scores_another_cohort(run: Path, cohort: Path, tmp_path: Path) -> None:
    stored = Run(run).read_json("summary.json")["figures"]["c_index"]
    again = regard.evaluate(run, cohort, quiet=True).figures["c_index"]
    assert (again.value, again.n) == (pytest.approx(stored["value"]), stored["n"])
    other = write_cohort(tmp_path / "other", 90, seed=7, names=("months", "dead"))
    made = regard.evaluate(run, other, time="months", event="dead", horizon=80.0, out=tmp_path / "a", quiet=True)
    assert made.figures["c_index"].n == 90
    assert made.figures["c_index"].low > 0.5
    assert Run(tmp_path / "a").read_json("evaluation.json")["horizon"] == 80
    assert regard.compare(tmp_path / "a", tmp_path / "a")[str(tmp_path / "a")]["c_index"].difference.value == 0
    with pytest.raises(ConfigError, match="the clinical columns of the run are: age, sex"):
        regard.evaluate(run, other, time="months", event="dead", clinical="age", quiet=True)


def test_a_better_ranking_is_better() -> None:
    draw = np.random.default_rng(0)
    rows = [{"time": str(t), "event": "1", "risk": f"{-t}"} for t in range(60)]
    worse = [row | {"risk": str(draw.normal())} for row in rows]
    made = compare_risks(worse, rows)["c_index"]
    assert made.difference.low > 0
    assert made.tests["paired bootstrap"] < 0.01


def test_discrete_hazards_learn_too_and_random_times_are_chance(cohort: Path, tmp_path: Path) -> None:
    made = regard.train(cohort, loss="discrete", bins=4, epochs=15, out=tmp_path / "bins", **SETTINGS)
    assert made.read_json("summary.json")["figures"]["c_index"]["low"] > 0.5
    predictor: Any = regard.load(made.path)
    assert len(predictor.classes) == 5
    assert predictor.explain(cohort.parent / "001.png", checks="none").completeness_error < 0.05
    settings = SETTINGS | {"time": "other", "event": "coin", "epochs": 4}
    figure = regard.train(cohort, out=tmp_path / "chance", **settings).read_json("summary.json")
    assert figure["figures"]["c_index"]["low"] < 0.5 < figure["figures"]["c_index"]["high"]
    assert "holds 0.5" in doubts(figure)[0]


def test_a_stopped_run_resumes_to_the_same_weights_and_knows_risks_only(
    cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.run import writer

    settings = SETTINGS | {"epochs": 3, "save_every": 0.0, "clinical": "sex"}
    whole = regard.train(cohort, out=tmp_path / "whole", **settings)
    real, count = writer.save_state, 0

    def killed(*arguments: Any) -> None:
        nonlocal count
        real(*arguments)
        count += 1
        if count == 9:
            raise RuntimeError("killed")

    monkeypatch.setattr(writer, "save_state", killed)
    with pytest.raises(RuntimeError, match="killed"):
        regard.train(cohort, out=tmp_path / "stopped", **settings)
    monkeypatch.undo()
    early: Any = regard.load(tmp_path / "stopped").predict(cohort.parent / "000.png")
    assert math.isfinite(early.risk)
    with pytest.raises(RunError, match="the baseline is estimated at the end"):
        early.survival(100)
    again = regard.resume(tmp_path / "stopped", quiet=True)
    first, second = (open_weights(r.path)[0] for r in (whole, again))
    assert all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)
    assert first.details == second.details


def test_rows_that_only_fill_up_are_in_no_risk_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when other processes have fewer subjects, or one that counts elsewhere."""
    logits, rank, event = torch.randn(6, 1), torch.tensor([3.0, 1, 1, 2, 0, 3]), torch.tensor([1.0, 1, 1, 0, 1, 0])
    filled = torch.tensor([[0.0, 0, 0, 0], [50, 9, 1, 0]])
    monkeypatch.setattr("regard.tasks.survival.loss.gather_rows", lambda rows, *_: torch.cat([rows, filled]))
    output, targets = Hazards(logits, torch.ones(6)), {"rank": rank, "event": event}
    made = [SurvivalLoss("cox", world=World(size=size)).loss(output, targets) for size in (1, 2)]
    torch.testing.assert_close(*made)


@pytest.mark.long
def test_several_processes_have_the_risk_sets_of_one(cohort: Path, tmp_path: Path) -> None:
    """Batches of 9 for three processes: the last one has fewer subjects, and of a last batch of 4 none."""
    settings = SETTINGS | {"epochs": 1, "batch_size": 9, "clinical": "age", "workers": 0}
    settings.pop("quiet")
    for ranks in (1, 3):
        assert launch(ranks, cohort, tmp_path / str(ranks), usual=settings) == ([0] * ranks, "")
    one, many = told(tmp_path / "1", 1), told(tmp_path / "3", 3)
    assert one["losses"].keys() == many["losses"].keys()
    for update, loss in one["losses"].items():
        assert many["losses"][update] == pytest.approx(loss, abs=1e-5), update
    torch.testing.assert_close(torch.tensor(many["gradient"]), torch.tensor(one["gradient"]), atol=1e-6, rtol=1e-4)


# What is refused.


def changed(cohort: Path, tmp_path: Path, change: Any) -> Path:
    rows = list(csv.DictReader(cohort.open()))
    for n, row in enumerate(rows):
        row |= {"path": str(cohort.parent / row["path"])} | change(n, row)
    with (tmp_path / "changed.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return tmp_path / "changed.csv"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda n, row: {"days": "-3"} if n == 4 else {}, "1 values are no times or events: row 6 .*days is '-3'"),
        (lambda n, row: {"days": "soon"} if n < 9 else {}, "9 values are no times or events: .*and 4 more"),
        (lambda n, row: {"died": "2"} if n == 0 else {}, "died is '2'"),
        (lambda n, row: {"died": "0"}, "no subject has the event: died is 0 everywhere"),
        (lambda n, row: {"days": "30"}, "all subjects have the same time: days is 30"),
        (lambda n, row: {"died": str(int(n == 0))}, "too few independent images"),
        (lambda n, row: {"age": "60"}, "age is the same for everyone"),
    ],
)
def test_tables_that_cannot_be_learnt_from_are_refused(cohort: Path, tmp_path: Path, change: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        regard.train(changed(cohort, tmp_path, change), clinical="age", epochs=1, **SETTINGS)


def test_subjects_without_a_time_or_an_event_are_left_out_and_named(cohort: Path, tmp_path: Path, cli: Any) -> None:
    blank = {2: {"days": ""}, 5: {"died": "NA"}, 7: {"days": "unknown", "died": ""}, 9: {"age": ""}}
    table = changed(cohort, tmp_path, lambda n, row: blank.get(n, {}))
    checked: list[Any] = [regard.check(t, time="days", event="died", quiet=True) for t in (cohort, table)]
    whole, dataset = checked
    kept = [n for n in range(len(whole)) if n not in (2, 5, 7)]
    assert dataset.time.tolist() == whole.time[kept].tolist()
    assert dataset.event.tolist() == whole.event[kept].tolist()
    told = "".join(cli("check", table, "--time", "days", "--event", "died")[1:])
    assert "2 rows without days: " in told
    assert "1 row without died: " in told
    with pytest.raises(DataError, match="no row has a value in days and died"):
        regard.check(changed(cohort, tmp_path, lambda n, row: {"days": "?"}), time="days", event="died", quiet=True)


def test_true_and_false_are_events_and_few_of_them_warned_of(cohort: Path, tmp_path: Path) -> None:
    table = changed(cohort, tmp_path, lambda n, row: {"died": ("False", "TRUE")[n % 16 == 0]})
    dataset: Any = regard.check(table, time="days", event="died", clinical="age,sex", quiet=True)
    assert dataset.event.sum() == 10
    assert "median survival" in dataset.describe()
    splits = ["train"] * 140 + ["test"] * 20
    assert dataset.warnings(splits) == [
        "only 9 events to train on, fewer than 10 for the image and each of 2 clinical columns: expect nothing of it",
        "only 1 events to test on: figures are uncertain below 100",
    ]


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"event": ""}, ConfigError, "--event is missing"),
        ({"event": "days"}, ConfigError, "time and event are both 'days'"),
        ({"time": "day"}, DataError, "no column 'day'"),
        ({"clinical": "age,days"}, ConfigError, "or the time or event"),
        ({"clinical": "height"}, DataError, "no column 'height'"),
        ({"accumulate": 2}, ConfigError, "accumulate would cut the risk sets"),
        ({"batch_size": 1}, ConfigError, "no risk set"),
        ({"mixup": 0.3}, ConfigError, "survival has no setting 'mixup'"),
        ({"loss": "discrete", "ties": "efron"}, ConfigError, "ties is for Cox's loss only"),
        ({"bins": 4}, ConfigError, "bins is for discrete hazards only"),
        ({"column": "age"}, ConfigError, "survival has no setting 'column'"),
    ],
)
def test_what_makes_no_sense_is_refused(cohort: Path, settings: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        regard.train(cohort, **{**SETTINGS, "epochs": 1, "recipe": None, **settings})
