"""The command line in one process: what it prints, what it writes, what it leaves when something is wrong."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from PIL import Image

import regard
from regard.cli.flags import MODEL_FIELDS, Parser, add_settings, parse
from regard.cli.using import FORMATS
from regard.data import open_source, read_image
from regard.explain import METHODS, inspection
from regard.tasks import TASKS
from regard.tasks.image_options import OWN_OPTIONS, MethodOptions
from regard.tasks.image_predictor import ImagePredictor
from regard.weights.families import NAMES


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_predictions_made_before_a_stop_are_kept(cli, run_folder, digit_files, tmp_path, monkeypatch, ending):
    read: list[Any] = []

    def reader(path: Path, *options: Any) -> Any:
        read.append(path)
        if len(read) == 4:
            raise KeyboardInterrupt
        return read_image(path, *options)

    whole = ImagePredictor.predict_many
    monkeypatch.setattr("regard.tasks.image_predictor.read_image", reader)
    monkeypatch.setattr(ImagePredictor, "predict_many", lambda self, *a, **k: whole(self, *a, batch_size=2, **k))
    code, _, err = cli("predict", run_folder, digit_files, "--out", tmp_path / f"kept.{ending}")
    assert (code, err.splitlines()[-1]) == (130, "stopped")
    text = (tmp_path / f"kept.{ending}").read_text()
    assert [f"{n}.png" in text for n in range(5)] == [True, True, False, False, False]


def test_predict_writes_csv_and_json_alike(cli, run_folder, digit_files, tmp_path):
    code, out, _ = cli("predict", run_folder, digit_files, "--out", tmp_path / "a.csv")
    assert code == 0
    assert out.strip() == str(tmp_path / "a.csv")
    assert cli("predict", run_folder, digit_files / "*.png", "--out", tmp_path / "a.json")[0] == 0
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    records = json.loads((tmp_path / "a.json").read_text())
    assert [r["label"] for r in rows] == [r["label"] for r in records]
    assert len(rows) == 5
    for row, record in zip(rows, records, strict=True):
        assert sum(float(row[f"p_{n}"]) for n in range(10)) == pytest.approx(1, abs=1e-4)
        assert float(row["p_7"]) == pytest.approx(record["probs"]["7"], abs=1e-6)
    code, out, err = cli("predict", run_folder, digit_files, "--top", "2")
    assert "predicting 5/5" in err
    assert len(out.splitlines()) == 6
    assert "#2" in out
    assert "#3" not in out


def test_help_has_what_each_task_says_of_a_command(cli):
    shown = " ".join(cli("predict", "--help")[1].split())
    said = [entry.help(about) for entry in TASKS for about in ("run", "inputs") if entry.help(about)]
    assert len(said) == 2
    assert all(text in shown for text in said)


def test_one_damaged_file_does_not_lose_the_others(cli, run_folder, digit_files, tmp_path):
    (tmp_path / "in").mkdir()
    for file in digit_files.iterdir():
        (tmp_path / "in" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "in" / "2.png").write_bytes(b"broken")
    code, _, err = cli("predict", run_folder, tmp_path / "in", "--out", tmp_path / "a.csv")
    assert code == 2
    assert "1 input could not be read (any others are done)" in err
    assert "2.png" in err
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 5
    code, out, err = cli("explain", run_folder, tmp_path / "in", "--out", tmp_path / "why.png")
    assert code == 2
    assert len(out.splitlines()) == 6
    assert (tmp_path / "why.png").stat().st_size > 5000


def test_a_wrong_ending_is_refused_before_any_work(cli, run_folder, digit_files, tmp_path, monkeypatch):
    for work in ("predict_many", "inspect", "explain", "explain_inputs"):
        monkeypatch.setattr(ImagePredictor, work, lambda *a, **k: pytest.fail("it worked first"))
    for command in ("predict", "explain", "inspect"):
        code, _, err = cli(command, run_folder, digit_files, "--out", tmp_path / "x.xyz")
        assert code == 2
        assert "not written as .xyz" in err


@pytest.mark.parametrize("name", ["digits", "translate", "scenes", "brain"])
def test_a_demo_checks_its_settings_before_it_makes_data(name, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for maker in ("data.objects.scenes.write_scenes", "run.brain_demo.write_brains"):
        monkeypatch.setattr(f"regard.{maker}", lambda *a, **k: pytest.fail("data was made"))
    code, _, err = cli("demo", name, "--epochs", 0)
    assert (code, "epochs=0 is too small" in err) == (2, True)
    assert not list(tmp_path.iterdir())


def test_a_map_is_told_with_its_checks_or_without(cli, run_folder, digit_files, tmp_path, monkeypatch):
    monkeypatch.setattr("regard.console.Lines.EVERY", 0.0)
    code, out, err = cli("explain", run_folder, digit_files / "3.png", "--out", tmp_path / "why.png")
    assert code == 0
    assert "completeness error (low)" in out
    for work in ("gradient 0 of 32", "check 0 of ", "random weights 1 of 2"):
        assert f"explaining 0/1  {work}" in err
    bare = ("explain", run_folder, digit_files / "3.png", "--checks", "none", "--out", tmp_path / "why.png")
    code, out, err = cli(*bare, "--method", "attention")
    assert code == 0
    assert "random weights" not in err
    assert "insertion" not in out
    assert out.rstrip().endswith("not checked")
    assert cli(*bare, "--checks", "some")[0] == 2


def test_a_map_that_does_not_depend_on_the_target_is_told(cli, run_folder, digit_files, tmp_path):
    words = ("explain", run_folder, digit_files / "3.png", "--target", "3", "--out", tmp_path / "why.png")
    for method, told in (("rollout", True), ("attention", True), ("chefer", False), ("integrated_gradients", False)):
        code, _, err = cli(*words, "--checks", "none", "--method", method)
        assert (code, f"{method} reads attention alone" in err) == (0, told)
        assert "only its checks are of 3" not in err
    assert "only its checks are of 3" in cli(*words, "--method", "rollout")[2]
    assert "reads attention alone" not in cli(*words[:3], "--checks", "none", "--method", "rollout", *words[-2:])[2]


def test_many_explanations_fill_several_pages(cli, run_folder, digit_files, tmp_path, monkeypatch):
    monkeypatch.setattr("regard.explain.draw.ROWS", 2)
    flags = ("--out", tmp_path / "why.svg", "--method", "attention", "--head", 1)
    code, out, err = cli("explain", run_folder, digit_files, *flags)
    assert code == 0
    before, *later = [line for line in err.splitlines() if "explaining" in line or "checks of" in line]
    assert (
        before == "5 images: attention, checks of each map, which take most of the time (--checks none leaves them out)"
    )
    assert later[-1].startswith("explaining 5/5"), "and progress"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["why-2.svg", "why-3.svg", "why.svg"]
    assert "random maps" in out


def test_eval_prints_and_writes_figures_with_intervals(cli, run_folder, tmp_path):
    code, out, _ = cli("eval", run_folder, "digits", "--out", tmp_path / "figures.json", "--quiet")
    assert code == 0
    for word in ("accuracy", "top5_accuracy", "auroc", "calibration_error", "recall", "confusion"):
        assert word in out
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["figures"]["accuracy"]["n"] == 355
    assert len(figures["confusion"]) == 10


def test_inspect_draws_and_prints_a_row_a_layer(cli, run_folder, digit_files, tmp_path):
    flags = ("--excite-class", 3, "--excite-head", 0, 1, "--excite-token", 1, 5)
    code, out, err = cli("inspect", run_folder, "--out", tmp_path / "own.png", "--registers", 1, *flags)
    assert code == 0
    assert "inspecting 32/32" in err
    assert err.count("visualising 256/256") == 3
    assert "no outlier tokens" in err
    assert out.splitlines()[0] == str(tmp_path / "own.png")
    assert [line.split()[0] for line in out.splitlines()[-4:]] == ["0", "1", "2", "3"]
    given = cli("inspect", run_folder, digit_files / "1.png", digit_files / "2.png", "--out", tmp_path / "given.svg")
    assert "0 of 32 tokens are outliers" in given[1]
    assert (tmp_path / "given.svg").stat().st_size > 5000


def test_inspect_without_images_shows_what_needs_none(cli, run_folder, tmp_path):
    file = run_folder / "checkpoints" / "best.safetensors"
    code, out, err = cli("inspect", file, "--out", tmp_path / "a.png", "--quiet")
    assert code == 0
    assert "only what needs no images is shown" in err
    assert "of the variance" in out
    assert "layer" not in out
    assert cli("inspect", file, "--excite-class", "dog", "--out", tmp_path / "b.png")[0] == 2
    assert not (tmp_path / "b.png").exists()


def test_values_are_no_flags_and_home_folders_are_understood(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli("train", "digits", "--epochs=1", "--depth", 1, "--explain", 0, "--out=~/batch_size", "--quiet")[0] == 0
    run = tmp_path / "batch_size"
    stored = json.loads((run / "config.json").read_text())
    assert (stored["data"], stored["task"]) == ("digits", "classification")
    groups = stored["settings"]
    assert groups["data"]["batch_size"] == {"value": 32, "origin": "recipe"}
    assert groups["model"]["depth"] == {"value": 1, "origin": "flag"}
    assert groups["optim"]["epochs"] == {"value": 1, "origin": "flag"}
    assert (run / "command.txt").read_text().startswith("regard train digits --epochs=1")
    assert (run / "report.html").is_file()


@pytest.mark.whole_runs
def test_names_with_dollars_and_html_are_only_names(cli, tmp_path):
    from tests.conftest import make_folder

    names = (r"$\frac$", "<script>alert(1)</script>".replace("/", "|"), "a,b\"c'd", "고양이")
    make_folder(tmp_path / "data", per_class=8, classes=names)
    (tmp_path / "data" / names[0] / "00.png").rename(tmp_path / "data" / names[0] / "$x^$.png")
    train = ("train", tmp_path / "data", "--model", "vit_nano", "--size", 16, "--depth", 1, "--epochs", 1)
    assert cli(*train, "--explain", 2, "--no-pixel-baseline", "--out", tmp_path / "run", "--quiet")[0] == 0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    # The page's own scripts are two: data, in which no "<" stands, and the explorer. Names are text everywhere.
    assert page.count("<script") == page.count("</script>") == 2
    data = page.split('id="explorer-data">')[1].split("</script>")[0]
    assert "<" not in data
    before = re.findall(r"(.{11})alert\(1\)", page.replace(data, ""))
    assert before
    assert set(before) == {"&lt;script&gt;"[-11:]}
    assert "고양이" in page
    rows = list(csv.DictReader((tmp_path / "run" / "splits.csv").open(encoding="utf-8")))
    assert {row["label"] for row in rows} == set(names)
    image = tmp_path / "data" / names[0] / "$x^$.png"
    assert cli("explain", tmp_path / "run", image, "--method", "attention", "--out", tmp_path / "why.png")[0] == 0


@pytest.mark.whole_runs
def test_the_report_can_be_drawn_again_from_the_folder(cli, run_folder, tmp_path):
    shutil.copytree(run_folder, tmp_path / "run")
    before = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    for name in ("report.html", "model_card.md", "figures/confusion.svg"):
        (tmp_path / "run" / name).unlink()
    assert cli("report", tmp_path / "run")[0] == 0
    assert (tmp_path / "run" / "report.html").read_text(encoding="utf-8") == before


def test_the_report_needs_nothing_from_outside(run_folder):
    page = (run_folder / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page.replace('xlink:href="#', 'xlink:href="#'))
    assert "@import" not in page
    assert page.count("<svg") >= 4
    assert page.count("<img") == 2


def test_check_of_good_data(cli, picture_folder):
    code, out, err = cli("check", picture_folder)
    assert code == 0
    assert "one folder per class" in err
    assert "20×20 (24)" in out
    assert "RGB (24)" in out


def test_version_and_help(cli):
    assert cli("--version")[1].strip() == regard.__version__
    assert "train" in cli()[1]


def test_ctrl_c_is_no_traceback(cli, monkeypatch):
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("regard.api.train", stopped)
    code, _, err = cli("train", "digits", "--out", "nowhere")
    assert code == 130
    assert err.strip() == "stopped"
    assert not Path("nowhere").exists()


def test_probe_prints_a_table_and_writes_only_where_asked(cli, run_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ("--shots", "1,5", "--draws", 2, "--neighbours", 7, "--quiet")
    code, out, err = cli("probe", run_folder, "digits", *flags)
    assert (code, err, list(tmp_path.iterdir())) == (0, "", [])
    lines = [line.split() for line in out.splitlines()]
    assert [line[:2] for line in lines[1:]] == [
        ["few_shot", "1"], ["few_shot", "5"], ["linear", "all"], ["neighbours", "all"],
    ]  # fmt: skip
    assert float(lines[1][3]) <= float(lines[1][2]) <= float(lines[1][5])
    some = ("--shots", "1,5", "--draws", 2, "--quiet", "--methods", "few_shot,linear", "--out", "found")
    assert cli("probe", run_folder, "digits", *some)[0] == 0
    assert {path.name for path in (tmp_path / "found").iterdir()} == {"probe.json", "probe.csv", "probe.svg"}
    rows = json.loads((tmp_path / "found" / "probe.json").read_text())["probes"]
    assert [f"{row['accuracy']:.4f}" for row in rows] == [line[2] for line in lines[1:4]]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--shots", "1,many"), "not numbers"),
        (("--shots", "900"), "where: digits\n  to do: give --shots of at most 119"),
        (("--methods", "nearest"), "no probe 'nearest'"),
        (("--neighbours", "5000"), "5000 neighbours are more"),
    ],
)
def test_probe_refuses_before_any_feature_is_computed(cli, run_folder, monkeypatch, flags, words):
    monkeypatch.setattr(
        "regard.tasks.classification.probing.features_of", lambda *a, **k: pytest.fail("it worked first")
    )
    code, _, err = cli("probe", run_folder, "digits", *flags)
    assert code == 2
    assert words in err
    assert "to do:" in err


def test_study_prints_the_table_and_what_it_means(cli, tmp_path):
    words = ("study", "data-size", "digits", "--models", "mlp_nano,resnet_nano", "--sizes", "40,80", "--seeds", "1")
    words = (*words, "--steps", "2", "--out", tmp_path / "study")
    code, out, err = cli(*words)
    assert code == 0
    assert out.splitlines()[0].split() == ["data-size", "images", "accuracy", "deviation", "seeds"]
    assert re.search(r"^mlp_nano +80 +0\.\d+ +– +1$", out, flags=re.MULTILINE)
    assert "the curves do not cross" in out or "images (by" in out
    assert "run 4/4: resnet_nano, 80 images, seed 0: test accuracy" in err
    code, _, err = cli(*words)
    assert code == 0
    assert "4 runs" in err
    assert "4 of them there already" in err
    code, _, err = cli("study", "data-size", "digits", "--model", "vit_nano")
    assert code == 2
    assert "give --models" in err
    code, _, err = cli("study", "data-size", "digits", "--sizes", "many")
    assert code == 2
    assert "sizes=many are not whole numbers" in err


@pytest.mark.parametrize("entry", TASKS, ids=lambda entry: entry.name)
def test_every_setting_of_a_task_is_a_flag_in_its_group(entry):
    parser = Parser("train")
    add_settings(parser, [entry.config])
    titles = {a.dest: group.title for group in parser._action_groups for a in group._group_actions}
    for group, setting, _ in entry.config.entries():
        assert titles[setting.name] == entry.config.groups()[group].title
    for name in entry.config.shape_fields():
        assert titles[name] == MODEL_FIELDS
    assert parse(parser, ["--lr", "0.5", "--seed=3"]) == {"lr": 0.5, "seed": 3}
    assert all(action.help for action in parser._actions)


def test_switches_sizes_and_both_spellings_are_read():
    parser = Parser("train")
    add_settings(parser, [entry.config for entry in TASKS if entry.command == "train"])
    for words, values in {
        ("--no-joint", "--rope"): {"joint": False, "rope": True},
        ("--no-flip", "--compile"): {"flip": False, "compile": True},
        ("--size", "16", "--patch", "2", "4"): {"size": 16, "patch": (2, 4)},
        ("--layer_decay", "0.75", "--weight-decay", "1e-3"): {"layer_decay": 0.75, "weight_decay": 1e-3},
        ("--from", "a.npz", "--freeze", "all"): {"weights": "a.npz", "freeze": "all"},
        ("--freeze", "2", "--batch-size", "auto"): {"freeze": 2, "batch_size": "auto"},
        ("--out", "3", "--crop", "none"): {"out": "3", "crop": "none"},
        ("--images", "None",): {"images": None},
    }.items():  # fmt: skip
        assert parse(parser, words) == values


def flags(text: str) -> set[str]:
    text = re.sub(r", --no-[a-z-]+", "", text)
    return set(re.findall(r"^  (?:--[a-z-]+, )?--([a-z-]+)", text, flags=re.MULTILINE))


@pytest.mark.parametrize("name", ["classification", "pretraining"])
def test_the_help_promises_no_default_that_recipe_or_data_replace(cli, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "200")
    entry = next(entry for entry in TASKS if entry.name == name)
    about = {part.split()[0]: " ".join(part.split()) for part in cli(entry.command, "--help")[1].split("\n  --")[1:]}
    usual = entry.config().flat()
    changed = {n for recipe in entry.recipes.values() for n, v in recipe().flat().items() if v != usual.get(n)}
    shown = {flag for flag in about if flag.replace("-", "_") in changed and "efault:" in about[flag]}
    assert {"epochs", "lr", "batch-size"} <= shown
    assert {"by recipe and data, else 100)" in about["epochs"], "(default: 0)" in about["seed"]} == {True}
    for flag in shown:
        assert re.search("default: by recipe and data, else|Default: (the recipe's|chosen by|colour)", about[flag])


def test_the_help_shows_what_most_people_set_and_help_all_the_rest(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    short, whole, text = (cli(*words)[1] for words in (
        ("train", "--help"), ("train", "digits", "--help-all"), ("train", "dates", "--help-all"),
    ))  # fmt: skip
    assert "SUPPRESS" not in short
    every = {"quiet", "resume", "dry-run", "recipe", "model", "size", "epochs", "minutes", "batch-size", "lr"}
    every |= {"out", "seed", "device"}
    named = {"label-column", "column", "time", "event", "source", "target"}
    assert flags(short) == every | named | {"weights", "seeds", "folds"}, "twenty or so; the others are for --help-all"
    assert flags(cli("pretrain", "--help")[1]) == every | {"mask"}
    assert {"mixup-off", "patch", "layer-decay"} < flags(whole)
    assert {"beam-size", "joint", "cell"} < flags(text)
    assert not flags(whole) & {"beam-size", "vocabulary", "cell"}
    assert not flags(text) & {"mixup", "patch", "batch-size", "workers"}
    assert "Alpha of mixup; 0: off (default: by recipe and data, else 0)." in whole
    assert all(line.count("efault: ") < 2 for line in re.split(r"\n  --|\n\n", whole))
    resnet = cli("train", "digits", "--model", "resnet_nano", "--help-all")[1]
    assert "blocks" in flags(resnet)
    assert "patch" not in flags(resnet)
    assert not flags(resnet) & {"shift", "bias-field", "scans", "spacing"}, "it takes pictures"
    assert {"retrain", "jobs", "ray", "shift", "scans", "label-column", "mixup"} < flags(whole)
    survival = cli("train", "digits", "--time", "days", "--event", "died", "--help-all")[1]
    assert {"ties", "rotate", "image-column"} < flags(survival)
    assert not flags(survival) & {"label-column", "label-pattern", "mixup", "cutmix", "mixup-off"}
    regression = cli("train", "digits", "--column", "age", "--help-all")[1]
    assert not flags(regression) & {"label-column", "label-pattern"}
    assert not flags(cli("pretrain", "digits", "--help-all")[1]) & {"label-column", "label-pattern", "mixup"}
    assert "fill" in cli("pretrain", "--help")[1]


def test_explain_prints_no_table_of_nothing(cli, run_folder, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"broken")
    code, out, err = cli("explain", run_folder, tmp_path / "broken.png", "--out", tmp_path / "why.png")
    assert (code, out) == (2, "")
    assert "1 input could not be read" in err


def test_a_name_longer_than_any_file_has_is_no_traceback(cli, run_folder):
    for words in (("predict", run_folder, "가" * 100), ("eval", "가" * 100, "digits"), ("train", "가" * 100)):
        code, _, err = cli(*words)
        assert code == 2
        assert err.startswith("error: ")


@pytest.mark.parametrize("flags", [("--size", 0), ("--size", 16, 0), ("--patch", 0), ("--width", 0), ("--heads", -1)])
def test_sizes_below_one_are_refused_before_any_data_is_read(cli, flags):
    code, _, err = cli("train", "digits", *flags)
    assert code == 2
    assert f"{flags[0][2:]} must be at least 1" in err
    assert "reading" not in err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("train digits --learning-rate 1", "it is called --lr"),
        ("train digits --flip=True", "--flip is a switch.*give --flip or --no-flip"),
        ("train digits --no-flip=1", "--no-flip is a switch.*give --flip or --no-flip"),
        ("train digits --flip True", "a switch takes no value"),
        ("eval RUN DATA --imgsz 32", "it is called --size"),
        ("eval --weights RUN DATA", "it is given without a flag: regard eval RUN DATA"),
        ("eval RUN DATA --mirror=True", "--mirror is a switch.*give --mirror or --no-mirror"),
        ("predict RUN DATA --image-size 32", "it is called --size"),
        ("explain RUN DATA --num-heads 3", "it is called --heads"),
        ("probe RUN DATA --imgsz=32", "it is called --size"),
        ("probe --checkpoint RUN --data-dir DATA", "it is given without a flag: regard probe RUN DATA"),
        ("probe RUN DATA --label_colum x", "did you mean --label-column"),
        ("inspect RUN --output x.png", "it is called --out"),
        ("inspect RUN --quiet=True", "--quiet is a switch.*give --quiet or --no-quiet"),
        ("convert FILE OUT --to timm --arch vit_b16", "it is called --model"),
        ("convert FILE OUT --to timm --num-classes 3", "it is called --classes"),
        ("compare --runs a b", "it is given without a flag: regard compare RUNS"),
        ("models --all", "see regard models --help"),
        ("models --quiet", "there is no flag --quiet here"),
        ("compare a b --quiet", "there is no flag --quiet here"),
    ],
)
def test_other_names_of_flags_are_answered_with_the_right_one(cli, words, answer):
    code, _, err = cli(*words.split())
    assert code == 2
    assert re.search(rf"(?s)\Aerror: .*{answer}", err), err


def test_inspect_reads_images_as_large_as_it_is_told_to(cli, run_folder, tmp_path, monkeypatch):
    Image.new("L", (40, 40)).save(tmp_path / "scan.png")
    code, _, err = cli("inspect", run_folder, tmp_path / "scan.png", "--max-megapixels", 0.001)
    assert code == 2
    assert "give --max-megapixels" in err
    flags = ("--max-megapixels", 0.002, "--out", tmp_path / "inspected.png")
    assert cli("inspect", run_folder, tmp_path / "scan.png", *flags)[0] == 0
    limits: list[float] = []

    def opened(data: Any, labels: bool, how: Any) -> Any:
        limits.append(how.max_megapixels)
        return open_source(data, labels, how)

    monkeypatch.setattr(inspection, "open_source", opened)
    assert cli("inspect", run_folder, "--max-megapixels", 3, "--out", tmp_path / "own.png")[0] == 0
    assert limits == [3.0], "the run's own images too"


def test_what_flags_offer_is_what_there_is():
    """Names that the command line must know before torch is imported."""
    (named, _) = get_args(get_type_hints(MethodOptions)["method"])
    assert set(get_args(named)) == set(METHODS)
    assert {name: method.options for name, method in METHODS.items() if method.options} == OWN_OPTIONS
    assert set(FORMATS) == set(NAMES)
