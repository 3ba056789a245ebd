"""Probes give what scikit-learn gives, draw what the seed says, and learn nothing from what they are tested on."""

import csv
import json
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as OracleRidge
from sklearn.neighbors import KNeighborsClassifier

import regard
from regard.console import Progress
from regard.data import open_source, scan
from regard.errors import ConfigError, DataError, RunError
from regard.evaluation import Parts, run_probes
from regard.evaluation.probe import (
    LINEAR_STRENGTHS,
    RIDGE_STRENGTHS,
    Labelled,
    draw_shots,
    linear,
    neighbours,
    ridge,
    ridge_shots,
    votes,
)
from regard.metrics import repeated, wilson
from regard.tasks.classification.probing import probe_parts
from regard.weights import convert
from tests.conftest import make_folder
from tests.loading import load_classifier

NAMES = ("ant", "bee", "cat", "dog")


def cloud(n: int, seed: int, spread: float = 2.0, width: int = 24) -> Labelled:
    """Four overlapping clouds, each feature on a scale of its own."""
    centres = np.random.default_rng(99).normal(size=(len(NAMES), width))
    draw = np.random.default_rng(seed)
    labels = draw.permutation(np.arange(n) % len(NAMES))
    features = (centres[labels] + spread * draw.normal(size=(n, width))) * np.logspace(-1, 1, width) + 3
    return Labelled(features.astype(np.float32), labels)


@pytest.fixture(scope="module")
def parts() -> Parts:
    return Parts(cloud(200, 0), cloud(120, 1), cloud(160, 2))


@pytest.mark.parametrize("n", [8, 200], ids=["fewer images than features", "more"])
@pytest.mark.parametrize("strength", [RIDGE_STRENGTHS[0], 1.0, RIDGE_STRENGTHS[-1]])
def test_ridge_against_scikit_learn(n, strength):
    train = cloud(n, 0)
    fit = ridge(train, len(NAMES))
    x = (train.features.astype(np.float64) - train.features.astype(np.float64).mean(0)) / fit.std
    targets = np.where(train.labels[:, None] == np.arange(len(NAMES)), 1.0, -1.0)
    oracle = OracleRidge(alpha=strength, solver="svd").fit(x, targets)
    assert fit.weights(strength) == pytest.approx(oracle.coef_.T, abs=1e-6)
    assert fit.bias == pytest.approx(oracle.intercept_, abs=1e-6)
    assert fit.std == pytest.approx(train.features.astype(np.float64).std(0), abs=2e-5)
    new = cloud(300, 5)
    predicted = oracle.predict((new.features - fit.mean) / fit.std).argmax(1)
    assert fit.accuracies(new, (7.0, strength))[1] == (predicted == new.labels).mean()


def test_few_shot_rows_add_up(parts):
    (row,) = ridge_shots(parts, NAMES, [3], draws=4, seed=1)
    assert row.strength is not None
    drawn = [draw_shots(parts.train.labels, 3, 1, d) for d in range(4)]
    fits = [ridge(Labelled(parts.train.features[i], parts.train.labels[i]), len(NAMES)) for i in drawn]
    by_strength = np.mean([fit.accuracies(parts.val, RIDGE_STRENGTHS) for fit in fits], axis=0)
    assert by_strength[RIDGE_STRENGTHS.index(row.strength)] == by_strength.max()
    tested = np.array([fit.accuracies(parts.test, (row.strength,))[0] for fit in fits])
    assert row.accuracy == repeated(tested, len(parts.test.labels))
    assert row.deviation == pytest.approx(np.sqrt(((tested - tested.mean()) ** 2).sum() / 3))
    assert (row.shots, row.draws, row.accuracy.n) == (3, 4, 160)


def test_more_shots_help_and_the_usual_ones_that_fit_are_taken(parts):
    rows = ridge_shots(parts, NAMES)
    assert [row.shots for row in rows] == [1, 5, 10, 25, 50]
    assert rows[0].accuracy.value + 0.1 < rows[-1].accuracy.value
    assert ridge_shots(parts, NAMES, [1], draws=1)[0].deviation is None


def test_shots_are_drawn_by_seed_and_nested(parts):
    labels = parts.train.labels
    few, more = draw_shots(labels, 2, seed=3, draw=1), draw_shots(labels, 5, seed=3, draw=1)
    assert np.bincount(labels[more]).tolist() == [5] * len(NAMES)
    assert set(few) < set(more)
    assert len(set(more)) == len(more)
    assert np.array_equal(more, draw_shots(labels, 5, seed=3, draw=1))
    assert set(more) != set(draw_shots(labels, 5, seed=3, draw=2))
    assert set(more) != set(draw_shots(labels, 5, seed=4, draw=1))
    same, other = ridge_shots(parts, NAMES, [1, 2], seed=3), ridge_shots(parts, NAMES, [1, 2], seed=4)
    assert same == ridge_shots(parts, NAMES, [1, 2], seed=3)
    assert same != other


def test_linear_against_scikit_learn(parts):
    mean, std = parts.train.features.mean(0), parts.train.features.std(0)
    x, x_val, x_test = ((part.features - mean) / std for part in parts)
    oracles = [
        LogisticRegression(C=1 / s, tol=1e-6, max_iter=5000).fit(x, parts.train.labels) for s in LINEAR_STRENGTHS
    ]
    chosen = [oracle.score(x_val, parts.val.labels) for oracle in oracles]
    row = linear(parts)
    assert row.strength == LINEAR_STRENGTHS[int(np.argmax(chosen))]
    hits = oracles[int(np.argmax(chosen))].predict(x_test) == parts.test.labels
    assert row.accuracy == wilson(int(hits.sum()), len(hits))


@pytest.mark.parametrize("k", [1, 20, 200])
def test_neighbours_against_scikit_learn(parts, k, monkeypatch):
    monkeypatch.setattr("regard.evaluation.probe.SIMILARITIES", 7 * len(parts.train.labels))  # 7 images a batch
    weights: Any = lambda distance: np.exp((1 - distance) / 0.07)  # noqa: E731 - its stub knows names alone
    oracle = KNeighborsClassifier(k, metric="cosine", weights=weights)
    oracle.fit(parts.train.features, parts.train.labels)
    counted = votes(parts.train, parts.test.features, len(NAMES), k, "cpu")
    shares = counted / counted.sum(1, keepdims=True)
    assert shares == pytest.approx(oracle.predict_proba(parts.test.features), abs=1e-4)
    row = neighbours(parts, len(NAMES), k)
    assert row.accuracy.value == pytest.approx(oracle.score(parts.test.features, parts.test.labels))
    assert row.neighbours == k


def test_the_choice_of_strength_does_not_see_the_test_images(parts):
    draw = np.random.default_rng(0)
    honest = [row.strength for row in run_probes(parts, NAMES, methods=("few_shot", "linear"))]
    for _ in range(3):
        test = Labelled(draw.permutation(parts.test.features), draw.permutation(parts.test.labels))
        scrambled = run_probes(parts._replace(test=test), NAMES, methods=("few_shot", "linear"))
        assert [row.strength for row in scrambled] == honest
        assert scrambled[-1].accuracy.value < 0.5
    val = Labelled(parts.val.features, draw.permutation(parts.val.labels))
    swayed = run_probes(parts._replace(val=val), NAMES, methods=("few_shot", "linear"))
    assert [row.strength for row in swayed] != honest


def test_a_feature_that_never_varies_does_no_harm(parts):
    flat = Parts(*(Labelled(np.pad(p.features, ((0, 0), (0, 1)), constant_values=5.0), p.labels) for p in parts))
    for row, other in zip(run_probes(parts, NAMES)[:-1], run_probes(flat, NAMES)[:-1], strict=True):
        assert row.accuracy.value == pytest.approx(other.accuracy.value, abs=0.02)


def test_the_interval_over_draws_counts_images_and_draws():
    shares = np.array([0.70, 0.74, 0.78])
    value, low, high, n = repeated(shares, 400)
    images, draws = wilson(0.74 * 400, 400), 4.302653 * 0.04 / 3**0.5  # Student's t for two degrees of freedom
    assert (value, n) == (pytest.approx(0.74), 400)
    assert low == pytest.approx(0.74 - np.hypot(0.74 - images.low, draws))
    assert high == pytest.approx(0.74 + np.hypot(images.high - 0.74, draws))
    assert repeated(shares[:1], 400) == wilson(280, 400)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shots": [1, 51]}, "51 shots are more(.|\n)*ant 50, bee 50(.|\n)*at most 50"),
        ({"shots": [0, 1]}, "shots=0,1"),
        ({"draws": 0}, "draws=0"),
        ({"k": 0}, "neighbours=0"),
        ({"k": 201}, "more than the 200 training images"),
    ],
)
def test_what_cannot_be_probed_is_said(parts, changes, words):
    with pytest.raises((ConfigError, DataError), match=words):
        run_probes(parts, NAMES, **changes)


@pytest.mark.parametrize("method", ["few_shot", "linear"])
def test_without_validation_images_nothing_is_chosen(parts, method):
    empty = Labelled(parts.val.features[:0], parts.val.labels[:0])
    with pytest.raises(DataError, match="no validation images"):
        run_probes(parts._replace(val=empty), NAMES, methods=[method])
    assert run_probes(parts._replace(val=empty), NAMES, methods=["neighbours"])


@pytest.mark.parametrize(
    ("methods", "words"),
    [(["few_shots"], "no probe 'few_shots'(.|\n)*did you mean few_shot"), ([], "no probe is asked for")],
)
def test_probes_that_there_are_not_are_refused(methods, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        regard.probe(tmp_path, "digits", methods=methods)


@pytest.mark.parametrize(
    "given", [{"shots": [1]}, {"draws": 3}, {"seed": 0}, {"neighbours": 5}, {"keep": "kept"}], ids=str
)
def test_options_of_probes_that_are_not_asked_for_are_refused(given, tmp_path):
    with pytest.raises(ConfigError, match=f"--{next(iter(given))} is for the probe"):
        regard.probe(tmp_path, "digits", methods=["neighbours" if "keep" in given else "linear"], **given)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on pictures whose splits are cut with a seed and share that are not the usual ones."""
    folder = tmp_path_factory.mktemp("probe")
    make_folder(folder / "data", per_class=20)
    regard.train(
        folder / "data", recipe="plain", model="vit_nano", depth=1, size=16, epochs=1, explain=0, split_seed=5,
        holdout=0.2, out=folder / "run", quiet=True,
    )  # fmt: skip
    return folder


def test_on_its_own_data_a_run_keeps_its_splits(trained, capsys):
    dataset = scan(open_source(trained / "data"))
    index, _ = probe_parts(dataset, trained / "run", Progress())
    rows = [row.split(",")[:2] for row in (trained / "run" / "splits.csv").read_text().splitlines()[1:]]
    for part, own in index.items():
        assert {dataset.source.samples[i].key for i in own} == {name for name, split in rows if split == part}
    assert "8 images the run never trained or chose on (0 others are left out)" in capsys.readouterr().err


def test_images_the_run_trained_on_are_never_tested_on(trained, tmp_path, capsys):
    make_folder(tmp_path / "train", per_class=8, side=24)
    make_folder(tmp_path / "test", per_class=3, side=26)
    used = [row.split(",") for row in (trained / "run" / "splits.csv").read_text().splitlines()]
    for split in ("train", "val"):
        name = next(row[0] for row in used if row[1:3] == [split, "red"])
        Image.open(trained / "data" / name).save(tmp_path / "test" / "red" / f"copy of {split}.bmp")
    result = regard.probe(trained / "run", tmp_path, shots=[1], neighbours=3)
    assert {row.accuracy.n for row in result.rows} == {6}
    assert result.about["images"]["test"] == 6
    assert "2 others are left out" in capsys.readouterr().err
    for file in (tmp_path / "test").rglob("*.png"):
        file.unlink()
    (tmp_path / "test" / "blue").rmdir()
    with pytest.raises(DataError, match="every one of the test images"):
        regard.probe(trained / "run", tmp_path, quiet=True)


def test_data_without_a_test_split_is_tested_on_val(trained, tmp_path, capsys):
    for part, side in (("train", 24), ("val", 26)):
        make_folder(tmp_path / part, per_class=8, side=side)
    result = regard.probe(trained / "run", tmp_path, methods=["neighbours"], neighbours=3)
    assert result.rows[0].accuracy.n == 16
    assert "no test split: the probe is tested on val" in capsys.readouterr().err


def test_features_are_what_the_head_sees_computed_once(trained, monkeypatch):
    seen, given = [], {}
    predictor = load_classifier(trained / "run")
    forward = type(predictor.model).forward
    monkeypatch.setattr(
        type(predictor.model), "forward", lambda m, x, **k: (seen.append(len(x)), forward(m, x, **k))[1]
    )
    monkeypatch.setattr(
        "regard.tasks.classification.probing.run_probes", lambda parts, *a, **k: given.update(parts=parts) or ()
    )
    regard.probe(trained / "run", trained / "data", batch_size=7, neighbours=3, quiet=True)
    assert sum(seen) == 40
    dataset = scan(open_source(trained / "data"))
    index, _ = probe_parts(dataset, trained / "run", Progress(quiet=True))
    for part, own in zip(given["parts"], index.values(), strict=True):
        with torch.inference_mode():
            x = torch.cat([predictor.prepare(trained / "data" / dataset.source.samples[i].key) for i in own])
            assert part.features == pytest.approx(predictor.model(x).features.numpy(), abs=1e-5)
        assert part.labels.tolist() == [dataset.source.samples[i].label for i in own]


@pytest.mark.whole_runs
def test_a_file_without_a_head_is_probed_at_another_size_and_written(trained, tmp_path):
    own = regard.save(regard.create("vit_nano", depth=1, size=32), tmp_path / "own.safetensors")
    bare, out = tmp_path / "bare.safetensors", tmp_path / "probed"
    convert(own, bare, "dinov2")
    settings = {"size": 16, "shots": [4, 1], "neighbours": 5, "quiet": True}
    result = regard.probe(bare, trained / "data", heads=4, out=out, **settings)
    assert result.rows == regard.probe(own, trained / "data", **settings).rows
    assert result.about["size"] == (16, 16)
    written = json.loads((out / "probe.json").read_text())
    assert written["probes"] == [row.to_json() for row in result.rows]
    rows = list(csv.DictReader((out / "probe.csv").open()))
    expected = [("few_shot", "1"), ("few_shot", "4"), ("linear", ""), ("neighbours", "")]
    assert [(row["probe"], row["shots"]) for row in rows] == expected
    assert all(float(row["low"]) <= float(row["accuracy"]) <= float(row["high"]) for row in rows)
    text = "".join(ElementTree.parse(out / "probe.svg").getroot().itertext())
    assert "training images a class" in text
    assert "linear, all images" in text
    with pytest.raises(RunError, match="not empty"):
        regard.probe(own, trained / "data", out=out, quiet=True)


def test_weights_for_larger_images_are_probed_at_a_size_that_suits_these(trained, tmp_path, capsys):
    large = regard.create("vit_nano", classes=3, size=320, patch=32, width=16, heads=2, mlp=16, depth=1)
    regard.save(large, tmp_path / "own.safetensors")
    convert(tmp_path / "own.safetensors", tmp_path / "large.safetensors", to="timm")
    result = regard.probe(tmp_path / "large.safetensors", trained / "data", methods=["neighbours"])
    assert tuple(result.about["size"]) == (224, 224)
    assert "input (224, 224)" in capsys.readouterr().err
    own = regard.probe(trained / "run", trained / "data", methods=["neighbours"], quiet=True)
    assert tuple(own.about["size"]) == (16, 16)


def test_red_and_blue_are_told_apart_by_any_features(trained):
    result = regard.probe(trained / "run", trained / "data", neighbours=5, quiet=True)
    assert result.row("linear").accuracy.value == 1
    assert result.row("few_shot", 10).accuracy.value == 1


def test_the_linear_head_is_kept_as_a_run_that_all_commands_take(trained, tmp_path, cli, capsys):
    kept, data = tmp_path / "kept", trained / "data"
    settings: dict[str, Any] = {"methods": ["linear"], "max_megapixels": 9.0, "quiet": True}
    result = regard.probe(trained / "run", data, keep=kept, out=kept, **settings)
    predictor, first = load_classifier(kept), load_classifier(trained / "run")
    assert predictor.classes == ("blue", "red")
    tested = regard.evaluate(kept, data, split="test", quiet=True)
    assert tested.figures["accuracy"].value == result.row("linear").accuracy.value
    assert tested.figures["accuracy"].n == result.row("linear").accuracy.n, "and never on what it has learnt from"
    head = result.row("linear").head
    assert head is not None
    for name, weight in first.model.state_dict().items():
        if not name.startswith("head."):
            assert torch.equal(weight, predictor.model.state_dict()[name]), name
    picture = data / "red" / "00.png"
    with torch.inference_mode():
        features = first.model(first.prepare(picture)).features.double().numpy()[0]
    logits = head.weight @ features + head.bias
    expected = np.exp(logits) / np.exp(logits).sum()
    assert list(predictor.predict(picture).probs.values()) == pytest.approx(sorted(expected, reverse=True), abs=1e-5)
    assert cli("explain", kept, picture, "--method", "attention", "--out", tmp_path / "why.png")[0] == 0
    assert cli("convert", kept, tmp_path / "a.safetensors", "--to", "timm")[0] == 0
    assert cli("predict", kept, picture, "--out", tmp_path / "a.csv")[0] == 0
    assert cli("inspect", kept, "--out", tmp_path / "a.png")[0] == 0
    code, _, err = cli("resume", kept)
    assert (code, "Traceback" in err) == (2, False)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_kept_head_gives_the_probabilities_of_logistic_regression(parts, classes):
    train, val, test = (Labelled(p.features[p.labels < classes], p.labels[p.labels < classes]) for p in parts)
    row = linear(Parts(train, val, test))
    assert row.head is not None
    assert row.head.weight.shape == (classes, 24)
    mean, std = train.features.mean(0), train.features.std(0)
    oracle = LogisticRegression(C=1 / (row.strength or 1), tol=1e-6, max_iter=5000)
    oracle.fit((train.features - mean) / std, train.labels)
    logits = test.features @ row.head.weight.T + row.head.bias
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert shares == pytest.approx(oracle.predict_proba((test.features - mean) / std), abs=0.01)


def test_what_cannot_be_kept_is_said_before_any_work(trained):
    with pytest.raises(RunError, match="not empty"):
        regard.probe(trained / "run", trained / "data", keep=trained, quiet=True)
