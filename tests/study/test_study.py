"""Studies: which runs they make, that they go on where they were stopped, and what they say."""

import csv
import json
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest

import regard
from regard import api
from regard.errors import ConfigError, DataError, DivergedError, RunError
from regard.study import Result, Study, data_size, norm, positions, run_study
from regard.study.design import BLEU, PERPLEXITY
from regard.study.result import Gap, compare, crossing
from regard.weights import Run
from tests.conftest import make_folder, settings_of, write_pairs
from tests.loading import load_classifier

TINY: dict[str, Any] = {"steps": 2, "depth": 1, "width": 16, "heads": 2, "mlp": 16}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two models, two sizes, two seeds."""
    out = tmp_path_factory.mktemp("studies") / "sizes"
    return run_study(data_size("digits", ("mlp_nano", "resnet_nano"), (40, 90), seeds=2, steps=4, out=out), quiet=True)


def split_of(run: Run) -> dict[str, set[str]]:
    parts: dict[str, set[str]] = {}
    for row in run.read_rows("splits.csv"):
        parts.setdefault(row["split"], set()).add(row["name"])
    return parts


def test_draws_are_nested_balanced_and_leave_validation_and_test_alone(made):
    whole = split_of(regard.train("digits", out=made.study.out.parent / "whole", explain=0, quiet=True, **TINY))
    runs = {row["run"]: split_of(Run(made.study.out / row["run"])) for row in made.rows}
    for parts in runs.values():
        assert parts["val"] == whole["val"]
        assert parts["test"] == whole["test"]
        assert parts["train"] | parts["unused"] == whole["train"]
    for seed in (0, 1):
        small, large = (runs[f"runs/mlp_nano-{size}-{seed}"]["train"] for size in (40, 90))
        assert len(small) == 40
        assert len(large) == 90
        assert small < large
        assert small == runs[f"runs/resnet_nano-40-{seed}"]["train"]
    assert runs["runs/mlp_nano-40-0"]["train"] != runs["runs/mlp_nano-40-1"]["train"]
    for row in made.rows:
        counts = Run(made.study.out / row["run"]).read_json("data.json")["counts"]["train"].values()
        assert max(counts) - min(counts) <= 1


def test_every_run_takes_exactly_the_steps(made):
    assert [row["steps"] for row in made.rows] == [4] * 8
    settings = Run(made.study.out / made.rows[0]["run"]).read_config().settings
    assert (settings["data"]["batch_size"]["value"], settings["general"]["explain"]["value"]) == (32, 0)


@pytest.mark.whole_runs
def test_what_is_written_is_what_the_runs_say(made):
    out = made.study.out
    run_study(made.study, quiet=True)  # every run is finished: only files and figures are written, again
    with (out / "study.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    for row in rows:
        held = Run(out / row["run"]).read_json("summary.json")["figures"]["accuracy"]["value"]
        assert float(row["accuracy"]) == held
    stored = json.loads((out / "study.json").read_text())
    point = next(p for p in stored["points"] if (p["arm"], p["images"]) == ("mlp_nano", 90))
    values = [float(row["accuracy"]) for row in rows if (row["arm"], row["images"]) == ("mlp_nano", "90")]
    assert point["mean"] == pytest.approx(sum(values) / 2)
    assert point["deviation"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    text = (out / "study.md").read_text()
    assert f"| mlp_nano | 90 | {50 * sum(values):.2f} % |" in text
    assert "Some means are of 2 seeds only" in text
    assert "training images (log scale)" in (out / "study.svg").read_text()
    assert (out / "study.png").stat().st_size > 5000


def test_a_stopped_study_goes_on_and_keeps_what_is_finished(made, tmp_path, monkeypatch):
    out = tmp_path / "study"
    shutil.copytree(made.study.out, out)
    trials = made.study.trials()
    shutil.rmtree(out / "runs" / trials[5].name)
    (out / "runs" / trials[6].name / "report.html").unlink()  # stopped in the middle of this one
    kept = (out / "runs" / trials[0].name / "checkpoints" / "best.safetensors").stat().st_mtime_ns
    trained, train = [], api.train

    def once(data, **settings):
        trained.append(settings["out"].name)
        if len(trained) == 1:
            raise KeyboardInterrupt
        return train(data, **settings)

    monkeypatch.setattr(api, "train", once)
    plan = data_size("digits", ("mlp_nano", "resnet_nano"), (40, 90), seeds=2, steps=4, out=out)
    with pytest.raises(KeyboardInterrupt):
        run_study(plan, quiet=True)
    assert len(json.loads((out / "study.json").read_text())["points"]) == 4
    result = run_study(plan, quiet=True)
    assert trained == [trials[5].name, trials[5].name, trials[6].name]
    assert [row["accuracy"] for row in result.rows] == [row["accuracy"] for row in made.rows]
    assert (out / "runs" / trials[0].name / "checkpoints" / "best.safetensors").stat().st_mtime_ns == kept


@pytest.mark.long
def test_runs_made_some_at_a_time_are_those_made_one_by_one(made, tmp_path):
    plan = data_size("digits", ("mlp_nano", "resnet_nano"), (40,), seeds=1, steps=4, out=tmp_path / "s")
    alone = {(row["arm"], row["images"], row["seed"]): row["accuracy"] for row in made.rows}
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))  # fewer than there are images
    try:
        rows = run_study(plan, jobs=2, quiet=True).rows
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert [row["accuracy"] for row in rows] == [alone[row["arm"], 40, 0] for row in rows]
    assert len(rows) == 2
    with pytest.raises(ConfigError, match="jobs=0 must be at least 1"):
        run_study(plan, jobs=0)


def test_a_study_reads_its_data_as_its_settings_say(tmp_path):
    data = make_folder(tmp_path / "large", per_class=3, side=40)
    plan = norm(data, (4,), seeds=1, steps=1, max_megapixels=0.001, out=tmp_path / "study")
    with pytest.raises(DataError, match="6 of 6 images cannot be read"):
        run_study(plan, quiet=True)


def test_other_settings_or_a_foreign_folder_are_refused(made, tmp_path):
    with pytest.raises(RunError, match="its settings differ"):
        run_study(data_size("digits", ("mlp_nano",), (40,), seeds=1, steps=5, out=made.study.out), quiet=True)
    with pytest.raises(RunError, match="its kind and settings differ"):
        run_study(norm("digits", (40,), seeds=1, steps=5, out=made.study.out), quiet=True)
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(RunError, match="holds no study"):
        run_study(data_size("digits", ("mlp_nano",), (40,), seeds=1, out=tmp_path), quiet=True)
    assert (tmp_path / "letters.txt").read_text() == "dear"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sizes": (90, 40)}, "do not rise"),
        ({"sizes": (5, 40)}, "between 10 and 1225"),
        ({"sizes": (40, 5000)}, "between 10 and 1225"),
        ({"seeds": 0}, "must be at least 1"),
        ({"models": ("vit_nono",)}, "did you mean vit_nano"),
        ({"seed": 3}, "a study sets seed itself"),
        ({"model": "vit_nano"}, "model is compared by this study itself"),
        ({"patch": 2}, "resnet_nano has no patch"),
        ({"lr": "high"}, "lr cannot be 'high'"),
        ({"steps": 3, "epochs": 2}, "both steps and epochs"),
    ],
)
def test_what_cannot_be_studied_is_said_before_anything_runs(changes, says, tmp_path):
    wanted = {"models": ("vit_nano", "resnet_nano"), "sizes": (40, 90)} | changes
    with pytest.raises(ConfigError, match=says):
        run_study(data_size("digits", out=tmp_path / "study", **wanted), quiet=True)
    assert not (tmp_path / "study").exists()


@pytest.mark.long
@pytest.mark.whole_runs
def test_positions_and_norms_are_studied_with_the_same_machinery(tmp_path):
    result = run_study(positions("digits", seeds=1, out=tmp_path / "p", **TINY), quiet=True)
    assert [(row["arm"], row["images"]) for row in result.rows] == [
        (kind, 1225) for kind in ("learned", "none", "axial", "sinusoidal")
    ]
    counts = {row["arm"]: row["parameters"] for row in result.rows}
    assert counts["learned"] > counts["axial"] > counts["none"] == counts["sinusoidal"]
    assert len(result.summary()) == 7  # six pairs, and that one seed is a hint
    assert "each seed" in (tmp_path / "p" / "study.svg").read_text()
    result = run_study(norm("digits", seeds=1, out=tmp_path / "n", **TINY), quiet=True)
    assert [row["arm"] for row in result.rows] == ["pre", "post"]
    assert load_classifier(tmp_path / "n" / "runs" / "post-all-0", device="cpu").model.config.norm == "post"


@pytest.fixture(scope="module")
def translated(tmp_path_factory):
    """A Transformer and an LSTM with attention on two nested numbers of pairs."""
    root = tmp_path_factory.mktemp("translated")
    settings = {"width": 16, "depth": 1, "vocabulary": 280, "steps": 2, "device": "cpu"}
    plan = data_size(write_pairs(root / "pairs", 200), sizes=(20, 60), seeds=2, out=root / "study", **settings)
    return run_study(plan, quiet=True)


def test_pairs_of_sentences_are_studied_by_bleu_and_perplexity(translated):
    out, rows = translated.study.out, translated.rows
    assert [(row["arm"], row["images"]) for row in rows[:4]] == [
        (arm, n) for n in (20, 60) for arm in ("transformer_nano", "rnn_nano")
    ]
    for row in rows:
        figures = Run(out / row["run"]).read_json("summary.json")["figures"]
        assert (row["bleu"], row["perplexity"]) == (figures["bleu"]["value"], figures["perplexity"]["value"])
    small, large = (split_of(Run(out / f"runs/rnn_nano-{size}-0")) for size in (20, 60))
    assert (len(small["train"]), len(large["train"])) == (20, 60)
    assert small["train"] < large["train"]
    assert small["train"] == split_of(Run(out / "runs/transformer_nano-20-0"))["train"]
    assert small["train"] != split_of(Run(out / "runs/rnn_nano-20-1"))["train"]
    assert (small["val"], small["test"]) == (large["val"], large["test"])
    assert {settings_of(out / row["run"])["batch_tokens"]["value"] for row in rows} == {4096}
    text = (out / "study.md").read_text()
    assert "| | training pairs | test BLEU, mean | deviation over seeds | test perplexity, mean |" in text
    assert "images" not in text
    assert "accuracy" not in text
    with (out / "study.csv").open() as file:
        assert [int(row["pairs"]) for row in csv.DictReader(file)] == [row["images"] for row in rows]


@pytest.mark.whole_runs
def test_the_figure_of_sentences_has_a_panel_per_measure(translated):
    translated.write()
    drawn = (translated.study.out / "study.svg").read_text()
    assert all(f"{word}" in drawn for word in ("test BLEU", "test perplexity", "training pairs (log scale)"))


def test_less_perplexity_is_ahead():
    gaps = [Gap(10, 4.0, 0.1, 5), Gap(100, 2.0, 0.1, 5)]
    line = compare("a", "b", gaps, PERPLEXITY, "pairs")
    assert line.startswith("b is ahead of a at every size from 10 to 100 pairs, by 2.0 to 4.0 of perplexity")
    assert compare("a", "b", gaps[:1], BLEU, "pairs") == "a is ahead of b by 4.0 ± 0.1 BLEU."


def test_norms_and_positions_of_a_translator(tmp_path, cli):
    data = write_pairs(tmp_path / "pairs", 120)
    settings = ("--width", "16", "--depth", "1", "--vocabulary", "280", "--steps", "2", "--seeds", "1", "--quiet")
    code, out, err = cli("study", "norm", data, *settings, "--out", tmp_path / "n", "--device", "cpu")
    assert code == 0, err
    assert "perplexity" in out
    assert [row["arm"] for row in Run(tmp_path / "n").read_rows("study.csv")] == ["pre", "post"]
    assert settings_of(tmp_path / "n" / "runs" / "pre-all-0")["norm"]["value"] == "pre"
    assert list(positions(data).arms) == ["sinusoidal", "learned"]
    with pytest.raises(ConfigError, match="there are 60 training pairs"):
        run_study(data_size(data, sizes=(20, 600), seeds=1, out=tmp_path / "d"), quiet=True)


def test_a_run_that_diverges_is_counted_not_hidden(tmp_path, monkeypatch):
    train = api.train

    def fragile(data, **settings):
        if settings["model"] == "resnet_nano":
            raise DivergedError("the loss is not a number in epoch 1")
        return train(data, **settings)

    monkeypatch.setattr(api, "train", fragile)
    plan = data_size("digits", ("mlp_nano", "resnet_nano"), (40,), seeds=1, steps=2, out=tmp_path / "study")
    result = run_study(plan, quiet=True)
    assert [row["arm"] for row in result.rows] == ["mlp_nano"]
    assert "1 runs failed and are in no mean: resnet_nano-40-0." in result.summary()


def test_sizes_left_open_are_halves_of_what_there_is(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(api, "train", lambda data, **settings: sizes.append(settings["images"]) or _stop())
    with pytest.raises(KeyboardInterrupt):
        run_study(data_size("digits", ("mlp_nano",), seeds=1, out=tmp_path / "s"), quiet=True)
    assert sizes == [76]


def _stop():
    raise KeyboardInterrupt


def result_of(curves: dict[str, list[list[float]]], sizes: tuple[int, ...]) -> Result:
    """Accuracies by arm, size and seed."""
    rows = [
        {"arm": arm, "images": size, "seed": seed, "accuracy": value, "split": "test"}
        for arm, by_size in curves.items()
        for size, values in zip(sizes, by_size, strict=True)
        for seed, value in enumerate(values)
    ]
    return Result(Study("data-size", "digits", {arm: {} for arm in curves}, 3, Path("study"), sizes), rows, {})


def test_curves_that_cross_are_said_to_cross_where_they_do():
    cnn, vit = [[0.50, 0.52, 0.54], [0.60, 0.62, 0.64]], [[0.30, 0.32, 0.34], [0.80, 0.82, 0.84]]
    (line,) = result_of({"cnn": cnn, "vit": vit}, (100, 10_000)).summary()
    assert line == (
        "cnn is ahead up to about 1,000 images (by 20.0 ± 0.0 points at 100), "
        "vit beyond (by 20.0 ± 0.0 points at 10,000)."
    )


def test_a_crossing_within_the_noise_is_said_to_be_uncertain():
    cnn, vit = [[0.50, 0.60, 0.40], [0.60, 0.62, 0.64]], [[0.49, 0.45, 0.53], [0.80, 0.82, 0.84]]
    (line,) = result_of({"cnn": cnn, "vit": vit}, (100, 1000)).summary()
    assert "whether they cross is uncertain" in line
    assert compare("a", "b", [Gap(10, 0.1, None), Gap(20, -0.1, None)]).endswith("is uncertain.")


def test_curves_that_do_not_cross_are_not_said_to():
    assert crossing(Gap(100, 0.1, None), Gap(200, 0.0, None)) is None
    assert crossing(Gap(10, 0.03, None), Gap(1000, -0.01, None)) == pytest.approx(10**2.5)
    line = compare("a", "b", [Gap(10, -0.1, 0.01, 3), Gap(20, -0.01, 0.01, 3)])
    assert line.startswith("b is ahead of a at every size from 10 to 20 images, by 1.0 to 10.0 points")
    assert line.endswith("At 20 images it may be chance: the 95 % interval holds zero.")
    assert compare("a", "b", [Gap(10, -0.05, 0.01, 3)]) == "b is ahead of a by 5.0 ± 1.0 points."
    for seeds, sure in ((2, False), (3, False), (4, True)):  # Student's t: 12.7, 4.3 and 3.2 standard errors
        assert Gap(10, 0.04, 0.01, seeds).sure == sure
    assert compare("a", "b", [Gap(10, 0.04, 0.01, 3)]) == "a and b cannot be told apart: 4.0 ± 1.0 points for a."


def test_gaps_pair_the_seeds():
    result = result_of({"a": [[0.5, 0.9]], "b": [[0.4, 0.8]]}, (10,))
    (gap,) = result.gaps("a", "b")
    assert (gap.mean, gap.error) == (pytest.approx(0.1), pytest.approx(0.0, abs=1e-9))
