"""Evaluation never counts an image the model has learnt from, and says what it left out; runs are compared."""

import json
import shutil
import warnings
from typing import Any

import numpy as np
import pytest
from PIL import Image

import regard
from regard.errors import ConfigError, DataError, RunError
from regard.metrics.paired import mcnemar
from regard.tasks.classification.evaluation import doubts
from regard.weights import Run
from tests.conftest import make_folder
from tests.loading import evaluate_classifier


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    make_folder(folder / "data")
    regard.train(
        folder / "data", model="vit_nano", depth=1, size=16, epochs=3, explain=0, out=folder / "run", quiet=True
    )
    return folder


def test_on_its_own_data_only_the_test_images_count(pictures, capsys):
    result = evaluate_classifier(pictures / "run", pictures / "data")
    rows = (pictures / "run" / "splits.csv").read_text().splitlines()[1:]
    tested = {row.split(",")[0] for row in rows if row.split(",")[1] == "test"}
    assert set(result.keys) == tested
    assert "left out" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["predict", "explain"])
def test_pictures_that_were_learnt_are_named_where_they_are_used(leaking, tmp_path, cli, command):
    """By pixels: under another name, and of the two only the copy; weights alone do not know."""
    data, more = leaking / "data", {"explain": ("--checks", "none", "--out", tmp_path / "map.png")}.get(command, ())
    copy, fresh = tmp_path / "copy.png", data / "test" / "red" / "test14.png"
    shutil.copy(data / "val" / "blue" / "val12.png", copy)
    told = cli(command, leaking / "run", copy, fresh, *more)[2]
    assert f"note: {copy} is among the images that the run trained on or chose its weights by" in told
    both = cli(command, leaking / "run", copy, data / "train" / "red" / "train3.png", *more)[2]
    assert "and 1 more are among the images" in both
    assert "among the images" not in cli(command, leaking / "run", fresh, *more)[2]
    assert "among the images" not in cli(command, leaking / "run", copy, *more, "--quiet")[2]
    weights = next((leaking / "run" / "checkpoints").glob("*.safetensors"))
    shutil.copy(weights, tmp_path / "weights.safetensors")
    assert "among the images" not in cli(command, tmp_path / "weights.safetensors", copy, *more)[2]


def test_a_run_that_was_stopped_says_so_when_it_is_used(pictures, tmp_path, capsys):
    shutil.copytree(pictures / "run", tmp_path / "run")
    regard.load(tmp_path / "run")
    assert "not finished" not in capsys.readouterr().err
    (tmp_path / "run" / "summary.json").unlink()
    metrics = tmp_path / "run" / "metrics.csv"
    regard.load(tmp_path / "run")
    assert "not finished: it was not tested" in capsys.readouterr().err
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    regard.load(tmp_path / "run")
    assert "training stopped after epoch 2 of 3; `regard resume" in capsys.readouterr().err
    metrics.write_text(metrics.read_text().splitlines(keepends=True)[0])
    regard.load(tmp_path / "run")
    assert "training stopped after epoch 0 of 3" in capsys.readouterr().err


def test_check_and_probe_leave_out_as_many_damaged_images_as_train(tmp_path, run_folder, cli):
    data = make_folder(tmp_path / "data", per_class=60, side=16)
    (data / "red" / "broken.png").write_bytes(b"broken")
    code, out, _ = cli("check", data)
    assert code == 0
    assert "red/broken.png" in out
    code, _, err = cli("check", data, "--unreadable", "0")
    assert code == 2
    assert "1 of 121 images cannot be read" in err
    code, _, err = cli("probe", run_folder, data, "--methods", "neighbours")
    assert code == 0, err


def test_copies_of_training_images_are_known_by_their_pixels(pictures, tmp_path):
    make_folder(tmp_path / "new", per_class=3, side=24)
    trained = next(
        r.split(",")[0] for r in (pictures / "run" / "splits.csv").read_text().splitlines() if ",train," in r
    )
    Image.open(pictures / "data" / trained).save(tmp_path / "new" / "red" / "copy.bmp")
    result = evaluate_classifier(pictures / "run", tmp_path / "new", quiet=True)
    assert len(result.keys) == 6
    assert "red/copy.bmp" not in result.keys
    assert len(evaluate_classifier(pictures / "run", tmp_path / "new", split="all", quiet=True).keys) == 7


def test_nothing_but_training_images_is_an_error(pictures, tmp_path):
    for row in (pictures / "run" / "splits.csv").read_text().splitlines()[1:]:
        name, split, label = row.split(",")[:3]
        if split == "train":
            (tmp_path / label).mkdir(exist_ok=True)
            (tmp_path / name).write_bytes((pictures / "data" / name).read_bytes())
    with pytest.raises(DataError, match="trained or chosen on every one"):
        evaluate_classifier(pictures / "run", tmp_path, quiet=True)


def test_classes_are_matched_by_name_not_by_number(pictures, tmp_path):
    make_folder(tmp_path, per_class=2, classes=("red",), side=24)
    result = evaluate_classifier(pictures / "run", tmp_path, quiet=True)
    assert result.classes == ("blue", "red")
    assert set(result.labels) == {1}
    assert np.array_equal(result.summary.confusion[0], [0, 0])


def test_data_is_read_as_the_run_read_its_own(tmp_path, capsys):
    make_folder(tmp_path / "data")
    rows = [f"{c}/{n:02d}.png,{c},{n}" for c in ("red", "blue") for n in range(12)]
    (tmp_path / "data" / "t.csv").write_text("img,colour,label\n" + "\n".join(rows))
    run = regard.train(
        tmp_path / "data" / "t.csv", image_column="img", label_column="colour", model="vit_nano", depth=1, size=16,
        epochs=1, explain=0, out=tmp_path / "run", quiet=True,
    )  # fmt: skip
    assert evaluate_classifier(run.path, tmp_path / "data" / "t.csv", quiet=True).classes == ("blue", "red")
    with pytest.raises(DataError, match="does not know: 0, 1"):
        evaluate_classifier(run.path, tmp_path / "data" / "t.csv", label_column="label")
    assert "reading" not in capsys.readouterr().err, "the classes are compared before any image is read"
    (tmp_path / "data" / "t.csv").unlink()
    assert evaluate_classifier(run.path, tmp_path / "data", split="all", quiet=True).classes == ("blue", "red")


def test_splits_that_the_run_cut_itself_can_be_named(pictures, capsys):
    rows = Run(pictures / "run").read_rows("splits.csv")
    for part in ("val", "test", "train"):
        result = evaluate_classifier(pictures / "run", pictures / "data", split=part)
        assert set(result.keys) == {row["name"] for row in rows if row["split"] == part}
        assert f"{part} as the run cut it" in capsys.readouterr().err
    with pytest.raises(DataError, match="no split 'vall'"):
        evaluate_classifier(pictures / "run", pictures / "data", split="vall", quiet=True)


@pytest.fixture(scope="module")
def leaking(tmp_path_factory):
    """A run on data with train, val and test, of whose 12 test images 8 occur in train or val."""
    folder = tmp_path_factory.mktemp("leaking")
    make_folder(folder / "all", per_class=20, side=16)
    for colour in ("red", "blue"):
        for part, numbers in {"train": range(10), "val": range(10, 14), "test": (0, 1, 2, 10, 14, 15)}.items():
            (folder / "data" / part / colour).mkdir(parents=True)
            for n in numbers:
                shutil.copy(
                    folder / "all" / colour / f"{n:02d}.png", folder / "data" / part / colour / f"{part}{n}.png"
                )
    settings: Any = {"model": "vit_nano", "depth": 1, "size": 16, "epochs": 1, "explain": 0}
    regard.train(folder / "data", **settings, out=folder / "run", quiet=True)
    return folder


def test_training_and_evaluation_give_the_same_two_answers(leaking, cli):
    summary = json.loads((leaking / "run" / "summary.json").read_text())
    code, said, told = cli("eval", leaking / "run", leaking / "data", "--out", leaking / "figures.json")
    assert code == 0
    stored = json.loads((leaking / "figures.json").read_text())
    assert summary["figures"] == stored["figures"]
    assert summary["whole"] == stored["whole"]
    assert (summary["figures"]["accuracy"]["n"], summary["whole"]["n"], summary["whole"]["seen"]) == (4, 12, 8)
    assert "8 of 12 test images occur in training or validation" in told
    assert "8 of 12 samples occur in training or validation and are left out; on all 12: accuracy" in said
    report = (leaking / "run" / "report.html").read_text()
    assert "8 of 12 test images occur in training or validation and are left out of these figures; on all 12" in report
    rows = Run(leaking / "run").read_rows("predictions.csv"), Run(leaking / "run").read_rows("predictions-all.csv")
    assert [len(own) for own in rows] == [4, 12]
    assert "8 of 12 test images occur in training or validation" in cli("check", leaking / "data")[1]


def test_without_a_test_split_validation_images_are_used_and_this_is_said(leaking, tmp_path, cli):
    data = tmp_path / "data"
    shutil.copytree(leaking / "data", data)
    shutil.rmtree(data / "test")
    shutil.copy(data / "train" / "red" / "train0.png", data / "val" / "red" / "leak.png")
    code, said, told = cli("eval", leaking / "run", data)
    assert code == 0, told
    assert "no test split: the figures are on val" in told
    assert "1 of 9 samples occur in training" in said
    code, said, told = cli("probe", leaking / "run", data, "--methods", "neighbours", "--neighbours", "3")
    assert code == 0, told
    assert "tested on val" in told


def test_figures_that_speak_against_a_model_are_said():
    figures = {"accuracy": {"value": 0.3, "low": 0.2, "high": 0.4, "n": 100}}
    summary = {"figures": figures, "split": "test", "confusion": [[10, 60], [10, 20]], "val_accuracy": 0.9}
    below, far = doubts(summary)
    assert "30.0%, less than always giving the commonest class: 70.0%" in below
    assert "far below the 90.0% on val" in far
    assert doubts(summary | {"val_accuracy": 0.44, "confusion": [[20, 5]] * 4}) == []
    balanced = {"value": 0.45, "low": 0.35, "high": 0.55, "n": 100}
    weighed = {**summary, "figures": {**figures, "balanced_accuracy": balanced}, "val_balanced_accuracy": 0.9}
    del weighed["val_accuracy"]
    below, far, simple = doubts(weighed | {"pixel_baselines": {"forest": {"balanced_accuracy": {"value": 0.5}}}})
    assert "balanced accuracy on test is 45.0%, less than always giving the commonest class: 50.0%" in below
    assert "far below the 90.0% on val" in far
    assert "a simple model of raw pixels has balanced accuracy 50.0%" in simple


def test_eval_says_the_same_against_a_model_as_train(leaking, tmp_path, cli):
    """Of a run that is told to have been right on all validation images, on images whose classes are exchanged."""
    run, data = tmp_path / "run", tmp_path / "data"
    shutil.copytree(leaking / "run", run)
    (run / "summary.json").write_text(json.dumps(Run(run).read_json("summary.json") | {"val_accuracy": 1.0}))
    model = regard.load(run)
    for name in ("red", "blue"):
        (data / "test" / name).mkdir(parents=True)
    for number, file in enumerate(sorted(make_folder(tmp_path / "new", 12, side=16).rglob("*.png"))):
        wrong = {"red": "blue", "blue": "red"}[model.predict(file).label]
        shutil.copy(file, data / "test" / wrong / f"{number}.png")
    code, _, told = cli("eval", run, data)
    assert code == 0, told
    assert "warning: accuracy on test is 0.0%, less than always giving the commonest class" in told
    assert "warning: accuracy on test is 0.0%, far below the 100.0% on val" in told


def test_a_checkpoint_file_finds_its_run_and_one_alone_says_so(pictures, tmp_path, capsys):
    inside = pictures / "run" / "checkpoints" / "best.safetensors"
    assert len(evaluate_classifier(inside, pictures / "data").keys) < 24
    (tmp_path / "alone.safetensors").write_bytes(inside.read_bytes())
    assert len(evaluate_classifier(tmp_path / "alone.safetensors", pictures / "data").keys) == 24
    assert "it is not known which" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pixels", "words"),
    [
        (np.zeros((3, 16, 16), np.int64), "int64"),
        (np.full((3, 16, 16), np.nan), "NaN"),
        (np.full((3, 16, 16), 255.0), "0 to 1"),
        (np.zeros((4, 16, 16), np.uint8), "1 or 3 channels"),
        (np.zeros((16, 16, 4), np.uint8), "1 or 3 channels"),
        (np.zeros((2, 3, 16, 16), np.uint8), "several: predict_many"),
        (np.zeros((0, 16, 3), np.uint8), "1 or 3 channels"),
        (np.full((16, 16), "x"), "type <U1"),
        (["a.png", "b.png"], "predict_many"),
    ],
)
def test_pixels_that_cannot_be_right_are_refused(pictures, pixels, words):
    with pytest.raises(DataError, match=words):
        regard.load(pictures / "run").predict(pixels)


def test_arrays_tensors_and_files_give_the_same_answer(pictures):
    file = pictures / "data" / "red" / "00.png"
    pixels = np.asarray(Image.open(file)).transpose(2, 0, 1).copy()
    predictor = regard.load(pictures / "run")
    read_only = np.asarray(Image.open(file))
    assert not read_only.flags.writeable
    mirrored = pixels[:, :, ::-1].copy()[:, :, ::-1]
    floats = pixels.astype(np.float64) / 255
    given = (file, str(file), Image.open(file), pixels, floats, read_only, mirrored, floats.astype(">f4"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answers = [predictor.predict(image) for image in given]
    grey = read_only[..., 0]
    assert (
        predictor.predict(grey).probs == predictor.predict(grey[None]).probs == predictor.predict(grey[..., None]).probs
    )
    for answer in answers[1:]:
        assert answer.probs == pytest.approx(answers[0].probs, abs=1e-3)


def test_other_images_of_training_patients_are_left_out(tmp_path, capsys):
    draw = np.random.default_rng(0)
    for part in ("first", "later"):
        (tmp_path / part).mkdir()
        rows = ["path,label,patient"]
        for n in range(48):
            Image.fromarray(draw.integers(0, 255, (16, 16), dtype=np.uint8)).save(tmp_path / part / f"{n}.png")
            rows.append(f"{n}.png,{'ab'[n % 2]},p{n // 4}")
        (tmp_path / part / "t.csv").write_text("\n".join(rows))
    run = regard.train(
        tmp_path / "first" / "t.csv", model="vit_nano", depth=1, epochs=1, explain=0, out=tmp_path / "run", quiet=True
    )
    kept = {row["group"] for row in run.read_rows("splits.csv") if row["split"] == "test"}
    result = evaluate_classifier(run.path, tmp_path / "later" / "t.csv", quiet=True)
    assert {f"p{int(key.split('.')[0]) // 4}" for key in result.keys} == kept
    evaluate_classifier(run.path, tmp_path / "later" / "t.csv", split="all")
    assert "warning: this model was trained or chosen on" in capsys.readouterr().err


def test_with_the_mirror_image_it_is_the_mean_of_both(pictures, tmp_path):
    make_folder(tmp_path / "new", per_class=3, side=16)
    for path in (tmp_path / "new").rglob("*.png"):
        turned = tmp_path / "turned" / path.relative_to(tmp_path / "new")
        turned.parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(turned)
    plain, turned = (
        evaluate_classifier(pictures / "run", tmp_path / n, split="all", quiet=True) for n in ("new", "turned")
    )
    both = evaluate_classifier(pictures / "run", tmp_path / "new", split="all", mirror=True, quiet=True)
    assert not np.allclose(plain.probs, turned.probs, atol=1e-4)
    np.testing.assert_allclose(both.probs, (plain.probs + turned.probs) / 2, atol=1e-6)


@pytest.fixture(scope="module")
def weaker(tmp_path_factory, run_folder):
    """A run on the data of `run_folder`, trained for less."""
    out = tmp_path_factory.mktemp("compare") / "weaker"
    return regard.train("digits", epochs=1, depth=1, explain=0, out=out, quiet=True).path


def test_runs_are_compared_on_the_samples_that_both_were_tested_on(run_folder, weaker, cli):
    made = regard.compare(weaker, run_folder)[str(run_folder)]
    before, after = (json.loads((run / "summary.json").read_text())["figures"] for run in (weaker, run_folder))
    for name in ("accuracy", "log_loss"):
        difference = made[name].difference
        assert difference.value == pytest.approx(after[name]["value"] - before[name]["value"], abs=1e-4)
        assert difference.low < difference.value < difference.high
        assert difference.n == after["accuracy"]["n"]
    assert made["accuracy"].difference.low > 0 > made["log_loss"].difference.high
    right = [
        np.array([row["label"] == row["predicted"] for row in Run(run).read_rows("predictions.csv")])
        for run in (weaker, run_folder)
    ]
    tests = made["accuracy"].tests
    assert tests["McNemar"] == mcnemar(right[0], right[1]) < 0.001
    assert tests["paired bootstrap"] == made["log_loss"].tests["paired bootstrap"] == pytest.approx(2 / 2001)
    code, said, _ = cli("compare", weaker, run_folder)
    assert code == 0
    assert f"difference to {weaker}" in said
    assert f"accuracy  {made['accuracy'].difference.value:+.4f}" in said
    assert f"McNemar {tests['McNemar']:.4f}, paired bootstrap 0.0010" in said


def test_a_run_is_not_better_than_itself(weaker):
    made = regard.compare(weaker, weaker)[str(weaker)]
    for comparison in made.values():
        assert comparison.difference[:3] == (0, 0, 0)
        assert set(comparison.tests.values()) == {1}


def test_runs_that_cannot_be_compared_say_why(weaker, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(weaker, other)
    lines = (other / "predictions.csv").read_text().splitlines(keepends=True)
    (other / "predictions.csv").write_text("".join(lines[:-1]))
    with pytest.raises(ConfigError, match=r"not tested on the same samples(.|\n)*355 and 354 samples"):
        regard.compare(weaker, other)
    (other / "predictions.csv").unlink()
    with pytest.raises(RunError, match="not finished"):
        regard.compare(weaker, other)
    with pytest.raises(ConfigError, match="nothing to compare with"):
        regard.compare(weaker)


def test_what_evaluations_wrote_is_compared_too(run_folder, weaker, tmp_path, cli):
    """On any split, in words, with the direction of each figure."""
    for run, name in ((weaker, "a"), (run_folder, "b")):
        code, _, err = cli("eval", run, "digits", "--split", "train", "--out", tmp_path / name, "--quiet")
        assert code == 0, err
        held = {path.name for path in (tmp_path / name).iterdir()}
        assert held == {"evaluation.json", "data.json", "predictions.csv"}
    made = regard.compare(tmp_path / "a", tmp_path / "b")[str(tmp_path / "b")]
    rows = Run(tmp_path / "a").read_rows("predictions.csv")
    assert made["accuracy"].difference.n == len(rows) > 1000
    code, out, _ = cli("compare", tmp_path / "a", tmp_path / "b")
    assert code == 0
    better = f"{made['accuracy'].difference.value:.4f}"
    assert f"{tmp_path / 'b'}, accuracy: better by {better}, 95 % interval " in out
    assert f"{tmp_path / 'b'}, log_loss: better by {-made['log_loss'].difference.value:.4f}" in out
    assert "accuracy: worse by" in cli("compare", tmp_path / "b", tmp_path / "a")[1]
    assert "accuracy: no clear difference: +0.0000" in cli("compare", tmp_path / "b", tmp_path / "b")[1]
    with pytest.raises(ConfigError, match=r"not tested on the same samples(.|\n)*--out FOLDER"):
        regard.compare(tmp_path / "a", run_folder)
    code, _, err = cli("eval", weaker, "digits", "--out", tmp_path / "a")
    assert code == 2
    assert "reading" not in err


def test_a_folder_of_seeds_says_which_runs_it_holds(weaker, tmp_path, cli):
    for name in ("seed0", "seed1"):
        shutil.copytree(weaker, tmp_path / "all" / name)
    for words in (("compare", weaker, tmp_path / "all"), ("predict", tmp_path / "all", "a.png")):
        code, _, err = cli(*words)
        assert code == 2
        assert f"2 runs of different seeds\n  where: {tmp_path / 'all'}\n  to do: give one of them: " in err
        assert str(tmp_path / "all" / "seed1") in err
