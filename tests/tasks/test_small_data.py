"""The defaults from scratch: chosen from the data, said, and used."""

import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard import tasks
from regard.errors import ConfigError
from regard.networks.resnet.network import Basic
from regard.run.runner import Timing
from regard.tasks.classification.loss import CrossEntropy
from regard.tasks.classification.task import Task
from regard.tasks.small_data import (
    Facts,
    choose_epochs,
    choose_finetune_epochs,
    choose_model,
    choose_regularisation,
    choose_shape,
)
from regard.training.optim import Muon, make_optimizers
from regard.training.step import Step
from regard.weights import Run
from tests.conftest import SMALL_TRANSLATOR, make_folder
from tests.training.test_training import quick


def tiny(**changes: Any) -> dict[str, Any]:
    return {"epochs": 1, "explain": 0, "depth": 1, "device": "cpu", "quiet": True} | changes


def network(run: Any) -> Any:
    loaded: Any = regard.load(run.path)
    return loaded.model


def settings_of(run) -> dict[str, Any]:
    groups = run.read_json("config.json")["settings"]
    return {name: held for group in groups.values() for name, held in group.items()}


class Begun(Exception):
    """Ends a run where training begins."""


def begin(data: Any, out: Path, **settings: Any) -> Run:
    """A run whose folder is written, with its settings and why they were chosen, and which is not trained."""

    def train(*_: Any) -> None:
        raise Begun

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.run.runner.train", train)
        with pytest.raises(Begun):
            regard.train(data, out=out, **settings)
    return Run(out)


def test_few_images_are_seen_more_often_but_many_are_seen_longer():
    counts = [200, 1_000, 5_000, 20_000, 100_000]
    epochs = [choose_epochs(Facts(n, (224, 224), gpu=True)) for n in counts]
    assert epochs == sorted(epochs, reverse=True)
    seen = [n * e for n, e in zip(counts, epochs, strict=True)]
    assert seen == sorted(seen)


def test_trained_weights_are_trained_for_less_than_random_ones():
    for n in (50, 1_000, 100_000):
        for gpu in (True, False):
            known = Facts(n, (224, 224), gpu)
            assert 5 <= choose_finetune_epochs(known) < choose_epochs(known)


def test_fine_tuning_chooses_length_and_size_from_the_data(tmp_path):
    for number in range(12):
        folder = tmp_path / "data" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 255, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
    model = regard.create("vit_nano", classes=3, size=320, patch=32, width=16, heads=2, mlp=16, depth=1)
    regard.save(model, tmp_path / "large.safetensors")
    choice = {"weights": tmp_path / "large.safetensors", "explain": 0, "device": "cpu", "quiet": True}
    run = begin(tmp_path / "data", tmp_path / "auto", **choice)
    used = settings_of(run)
    assert used["size"]["value"] == [224, 224], "weights for 320 pixels, pictures of 40"
    assert used["epochs"] == {"value": 50, "origin": "auto"}
    assert "trained weights" in run.read_json("config.json")["why"]
    head = settings_of(begin(tmp_path / "data", tmp_path / "head", freeze="all", epochs=1, **choice))
    assert head["lr"]["value"] > used["lr"]["value"], "a head alone can learn faster"
    asked = settings_of(begin(tmp_path / "data", tmp_path / "asked", size=320, epochs=1, **choice))
    assert (asked["size"]["value"], asked["epochs"]) == (320, {"value": 1, "origin": "flag"})


def test_a_cpu_trains_without_mixing_and_stochastic_depth(picture_folder, tmp_path):
    used = settings_of(begin(picture_folder, tmp_path / "cpu", **tiny()))
    assert [used[name]["value"] for name in ("mixup", "cutmix", "drop_path")] == [0, 0, 0]
    asked = settings_of(begin(picture_folder, tmp_path / "asked", mixup=0.5, **tiny()))
    assert asked["mixup"] == {"value": 0.5, "origin": "flag"}
    assert choose_regularisation(Facts(1_000, (32, 32), gpu=True), "vit_nano") == {}
    assert "drop_path" not in choose_regularisation(Facts(1_000, (32, 32), gpu=False), "mlp_nano")


def test_plain_takes_volumes_too(tmp_path):
    volumes = np.random.default_rng(0).integers(0, 255, (16, 8, 8, 8), dtype=np.uint8)
    labels = np.arange(16)[:, None] % 2
    np.savez(tmp_path / "v.npz", images=volumes, labels=labels)
    run = begin(tmp_path / "v.npz", tmp_path / "run", recipe="plain", **tiny())
    assert settings_of(run)["model"] == {"value": "vit3d_nano", "origin": "auto"}


def test_the_network_depends_on_size_axes_number_and_machine():
    sizes = {(32, 32): ("vit_mini4", "vit_nano"), (300, 200): ("vit_mini16", "vit_nano16")}
    for size, names in sizes.items():
        assert tuple(choose_model(Facts(1_000, size, gpu)) for gpu in (True, False)) == names
    assert choose_model(Facts(100_000, (300, 200), gpu=True)) == "vit_s16"
    assert choose_model(Facts(100, (32, 32, 32), gpu=True)) == "vit3d_nano"


@pytest.mark.parametrize(
    ("model", "asked", "stem", "rope"),
    [
        ("vit_b16", {}, "residual", True),
        ("vit_h14", {}, None, True),  # patches of 14 are no power of two
        ("vit_nano", {"patch": (4, 8)}, None, True),
        ("vit_r50_b16", {}, None, True),  # it has a stem of its own
        ("vit3d_nano", {}, None, True),
        ("vit_nano", {"width": 36, "heads": 4}, "residual", None),  # 9 channels per head cannot be rotated in pairs
    ],
)
def test_a_vit_gets_what_its_shape_allows(model, asked, stem, rope):
    shape = choose_shape(model, asked)
    assert (shape.get("stem"), shape.get("rope")) == (stem, rope)
    regard.create(model, classes=2, depth=1, **shape | asked | ({"size": 28} if model == "vit_h14" else {}))


def test_a_run_says_what_was_chosen_and_why(picture_folder, tmp_path, capsys):
    run = regard.train(picture_folder, out=tmp_path / "run", **tiny(quiet=False))
    stored, used = run.read_json("config.json"), settings_of(run)
    assert "training images" in stored["why"]
    assert "--recipe plain" in stored["why"]
    assert stored["why"] in capsys.readouterr().err
    assert stored["why"].split(":")[0] in (run.path / "report.html").read_text()
    assert (used["stem"], used["optimizer"]["value"]) == ({"value": "residual", "origin": "auto"}, "muon")
    assert used["model"]["origin"] == "auto"


def test_flags_win_over_the_choice_and_plain_keeps_the_published_network(picture_folder, tmp_path):
    flags = settings_of(begin(picture_folder, tmp_path / "a", stem="conv", pool="class", **tiny()))
    assert (flags["stem"]["value"], flags["pool"], flags["rope"]["value"]) == (
        "conv", {"value": "class", "origin": "flag"}, True,
    )  # fmt: skip
    plain = settings_of(begin(picture_folder, tmp_path / "b", recipe="plain", **tiny()))
    assert (plain["model"]["value"], plain["optimizer"]["value"], "stem" in plain) == ("vit_nano", "adamw", False)


def test_weights_keep_their_network_whatever_the_defaults_are(picture_folder, tmp_path):
    plain = regard.train(picture_folder, out=tmp_path / "plain", recipe="plain", **tiny())
    hybrid = regard.train(picture_folder, out=tmp_path / "hybrid", model="vit_nano", **tiny())
    for start, stem in ((plain, "patch"), (hybrid, "residual")):
        for name, asked in (("named", {"model": "vit_nano"}), ("open", {}), ("from scratch's", {"recipe": "default"})):
            more = tiny(weights=str(start.path), depth=None, **asked)
            run = regard.train(picture_folder, out=tmp_path / f"{stem}-{name}", **more)
            assert network(run).config.stem == stem
            assert "trained weights: their network" in run.read_json("config.json")["why"]


@pytest.mark.parametrize(
    ("sides", "with_gpu", "without"),
    [((100, 100), (100, 100), (100, 100)), ((100, 150), (224, 224), (128, 128)), ((40, 40), None, None)],
    ids=["photographs of one size", "of two", "small pictures"],
)
def test_a_small_resnet_sees_photographs_as_large_as_the_default_network_does(tmp_path, sides, with_gpu, without):
    for name, side in zip("ab", sides, strict=True):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.effect_noise((side, side), 30 + number).save(tmp_path / name / f"{number}.png")
    dataset: Any = regard.check(tmp_path, quiet=True)
    for gpu, size in ((True, with_gpu), (False, without)):
        assert Task.choose(dataset, None, {"model": "resnet_nano"}, gpu).values.get("size") == size
        assert "size" not in Task.choose(dataset, None, {"model": "resnet_nano", "size": 32}, gpu).values
        assert "size" not in Task.choose(dataset, None, {"model": "resnet18"}, gpu).values


@pytest.mark.parametrize(("side", "name"), [(32, "vit_nano"), (100, "vit_nano16")])
def test_the_default_vit_has_two_blocks_on_a_cpu_and_a_named_one_its_own(tmp_path, side, name):
    for label in "ab":
        (tmp_path / label).mkdir()
        for number in range(2):
            Image.effect_noise((side, side), 30 + number).save(tmp_path / label / f"{number}.png")
    dataset: Any = regard.check(tmp_path, quiet=True)

    def chosen(gpu: bool = False, **asked: Any) -> tuple[str | None, int | None]:
        values = Task.choose(dataset, None, asked, gpu).values
        return values.get("model"), values.get("depth")

    assert chosen() == (name, 2)
    assert f"{name} of 2 blocks" in Task.choose(dataset, None, {}, False).why
    assert chosen(depth=3) == (name, None)
    assert [made[1] for made in (chosen(model=name), chosen(recipe="plain"), chosen(gpu=True))] == [None] * 3


def test_a_resnet_has_the_same_recipe(picture_folder, tmp_path):
    used = settings_of(quick(picture_folder, tmp_path / "run", model="resnet_nano", epochs=1, depth=None))
    names = ("optimizer", "lr", "policy", "mixup", "cutmix", "drop_path")
    assert [used[name]["value"] for name in names] == ["muon", 2e-3, "trivial", 0.0, 0.0, 0.0]
    recipe = tasks.find("classification").recipes["default"]().flat()
    assert [recipe[name] for name in names] == ["muon", 2e-3, "trivial", 0.2, 1.0, 0.2], "with a GPU"


def test_muon_updates_the_kernels_of_a_residual_stem():
    model = regard.create("vit_nano", classes=3, stem="residual")
    _, muon = make_optimizers(model, "muon", 1e-3, 0.0)
    assert isinstance(muon, Muon)
    held = {p for group in muon.param_groups for p in group["params"]}
    kernels = {p for m in model.patches.modules() if isinstance(m, Basic) for p in m.parameters() if p.ndim == 4}
    assert kernels
    assert kernels <= held
    assert model.patches.root.weight not in held


def test_a_residual_stem_is_a_resnets_beginning():
    """The same weights in a ResNet-18 without its last stage give the same cells."""
    model = regard.create("vit_mini16", stem="residual", size=64, classes=3).eval()
    other = regard.create("resnet18", blocks=(2, 2, 2), size=96, classes=3).eval()
    other.root.load_state_dict(model.patches.root.state_dict())
    other.root_norm.load_state_dict(model.patches.root_norm.state_dict())
    other.stages.load_state_dict(model.patches.stages.state_dict())
    x = torch.rand(2, 3, 64, 48)
    torch.testing.assert_close(model.patches(x), model.patches.project(other(x).tokens))


def trained(run: Run) -> int:
    return [row["split"] for row in run.read_rows("splits.csv")].count("train")


def test_the_line_of_defaults_counts_training_images_and_tells_whose_size_it_is(picture_folder, tmp_path):
    run = begin(picture_folder, tmp_path / "own", **tiny())
    assert f"for {trained(run)} training images of" in run.read_json("config.json")["why"]
    asked = begin(picture_folder, tmp_path / "asked", size=16, images=7, **tiny())
    assert "for 7 training images at 16 × 16" in asked.read_json("config.json")["why"]
    some = make_folder(tmp_path / "some", per_class=3)  # of three, one each for val and test
    for split in (some, make_folder(tmp_path / "tested" / "train", per_class=20)):
        shutil.copytree(split, tmp_path / "tested" / "test", dirs_exist_ok=True)
    for number, data in enumerate((some, tmp_path / "tested")):  # val is cut from the training images of the second
        run = begin(data, tmp_path / f"run{number}", **tiny())
        assert f"for {trained(run)} training images" in run.read_json("config.json")["why"]


def test_folds_say_how_many_images_they_train_on_and_what_chose_the_weights(tmp_path):
    data, weights = make_folder(tmp_path / "data", per_class=20), {"class_weights": "balanced"}
    folds = regard.train(data, folds=2, out=tmp_path / "folds", **tiny(model="vit_nano", **weights))
    fold = Run(folds.path / "fold1")
    assert f"for {trained(fold)} training images" in fold.read_json("config.json")["why"]
    assert "by validation balanced accuracy in each fold" in (folds.path / "report.html").read_text()


def test_a_long_plan_on_a_cpu_names_what_is_shorter(picture_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("regard.run.runner.MEASURED_SECONDS", 0.0)
    for limit, told in ((1e9, False), (0.0, True)):
        monkeypatch.setattr("regard.run.runner.LONG_SECONDS", limit)
        regard.train(picture_folder, out=tmp_path / "none", dry_run=True, size=16, **tiny(model="vit_nano"))
        assert ("--minutes 10" in capsys.readouterr().out) == told


def test_the_figure_is_told_before_predictions_are_explained(picture_folder, tmp_path, capsys):
    regard.train(picture_folder, out=tmp_path / "run", size=16, **tiny(model="vit_nano", explain=1, quiet=False))
    lines = capsys.readouterr().err
    assert lines.index("--explain 0 leaves that out") < lines.index("explaining 1/1")


def test_minutes_set_the_number_of_epochs(picture_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("regard.run.runner.MEASURED_SECONDS", 0.0)
    small = tiny(size=16, batch_size=8, model="vit_nano")
    del small["epochs"], small["quiet"]
    few = regard.train(picture_folder, out=tmp_path / "few", minutes=0.01, **small)
    assert "min asked for" in capsys.readouterr().err
    epochs = settings_of(few)["epochs"]
    assert epochs["origin"] == "auto"
    assert len(few.read_rows("metrics.csv")) == epochs["value"]
    same = regard.train(picture_folder, out=tmp_path / "same", epochs=epochs["value"], quiet=True, **small)
    a, b = (network(run).state_dict() for run in (few, same))
    assert all(torch.equal(a[name], b[name]) for name in a), "measuring must leave no trace"
    with pytest.raises(ConfigError, match="minutes is given beside"):
        quick(picture_folder, tmp_path / "both", epochs=2, minutes=1)


@pytest.mark.parametrize("length", [{"minutes": 1.0}, {"steps": 3}, {"epochs": 2}, {}], ids=str)
def test_the_default_length_is_told_where_no_other_is_asked_for(length, picture_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("regard.run.runner.measure", lambda *_: Timing(0.0, 1.0, 0.0, 1.0, 150))
    asked = {key: value for key, value in tiny(model="vit_nano", size=16).items() if key != "epochs"} | length
    why = begin(picture_folder, tmp_path / "run", **asked).read_json("config.json")["why"]
    assert ("150 epochs" in why) == (not length)
    assert "two cores" not in why, "a network that was asked for has not been timed"


@pytest.mark.parametrize("asked", [{}, {"depth": 2}, {"epochs": 3}, {"minutes": 2}], ids=str)
def test_the_default_on_a_cpu_says_how_long_it_takes(asked, picture_folder):
    dataset: Any = regard.check(picture_folder, quiet=True)
    assert ("150 epochs, about 1 minute on two cores" in Task.choose(dataset, None, asked, False).why) == (not asked)
    assert "two cores" not in Task.choose(dataset, None, asked, True).why


@pytest.mark.parametrize("command", ["resume", "train"])
def test_a_resumed_run_keeps_the_epochs_that_its_minutes_gave(command, picture_folder, tmp_path, monkeypatch):
    """Its schedule ends where it was planned, however fast the machine is now."""
    asked = {key: value for key, value in tiny(model="vit_nano", size=16, minutes=1.0).items() if key != "epochs"}
    out = tmp_path / "run"
    for epoch in (20.0, 1.0):  # seconds, of 150 epochs of one step
        timing = Timing(first=0.0, step=epoch, validation=0.0, loss=1.0, steps=150)
        monkeypatch.setattr("regard.run.runner.measure", lambda *_, timing=timing: timing)
        if epoch == 20:
            begin(picture_folder, out, **asked)
        elif command == "resume":
            regard.resume(out, quiet=True)
        else:
            regard.train(picture_folder, out=out, resume=True, **asked)
    rows = Run(out).read_rows("metrics.csv")
    assert len(rows) == 3
    assert float(rows[-1]["lr"]) < 0.05 * 2e-3


def test_minutes_replace_the_steps_of_a_recipe(pairs_folder, tmp_path, monkeypatch, capsys):
    timing = Timing(first=0.0, step=1.0, validation=0.0, loss=1.0, steps=800)  # of 100 epochs, unless said otherwise
    monkeypatch.setattr("regard.run.runner.measure", lambda *_: timing)
    small = SMALL_TRANSLATOR | {"recipe": "translate", "batch_tokens": 512, "quiet": False}
    for minutes, epochs, told in ((1.0, 7, "7 epochs of about 8.0 s"), (0.1, 1, "more than the 0.1 min asked for")):
        used = settings_of(begin(pairs_folder, tmp_path / str(minutes), minutes=minutes, **small))
        said = capsys.readouterr().err
        assert (used["steps"]["value"], used["epochs"]["value"], told in said) == (None, epochs, True)
        assert "steps=" not in said


def test_minutes_count_the_shorter_steps_of_low_resolution(picture_folder, tmp_path, monkeypatch):
    """By a clock on which a step on 16 × 16 pixels takes a second, and all else no time."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    whole = Step.train_step

    def step(self, batches):
        clock.now += math.prod(batches[0].inputs["image"].shape[2:]) / 16**2
        return whole(self, batches)

    monkeypatch.setattr(Step, "train_step", step)
    monkeypatch.setattr("regard.run.runner.time", clock)
    small = tiny(model="vit_nano", size=16, batch_size=8, minutes=1.0)
    del small["epochs"]
    for share in (0.0, 0.5):
        run = begin(picture_folder, tmp_path / str(share), low_res=share, **small)
        steps = math.ceil([row["split"] for row in run.read_rows("splits.csv")].count("train") / 8)
        low = (12 / 16) ** 2
        first, mean = (1 + low, (1 + low) / 2) if share else (1, 1)
        assert settings_of(run)["epochs"]["value"] == int((60 - first) / (steps * mean))


def test_settings_of_the_cut_are_refused_where_the_data_names_all_splits(tmp_path):
    for part in ("train", "val", "test"):
        make_folder(tmp_path / "data" / part, per_class=4)
    for setting in ({"holdout": 0.4}, {"split_seed": 3}):
        with pytest.raises(ConfigError, match="is not for this data: it names its own splits"):
            regard.train(tmp_path / "data", out=tmp_path / "run", **tiny(**setting))
    assert not (tmp_path / "run").exists()
    cut = begin(tmp_path / "data" / "train", tmp_path / "cut", **tiny(split_seed=3, holdout=0.3))
    assert settings_of(cut)["holdout"]["value"] == 0.3
    of_recipe = begin(tmp_path / "data", tmp_path / "recipe", **tiny(recipe="cifar", model="vit_nano", size=16))
    assert settings_of(of_recipe)["holdout"] == {"value": 0.02, "origin": "recipe"}


def test_how_much_of_long_images_is_left_is_told(tmp_path, capsys):
    """And a size that shows all of them."""
    for side, asked, line in (
        (60, {}, "(16, 16) are cut at the centre, not stretched: 67% of 40 × 60 is left\n"),
        (400, {}, "warning: images of other proportions than (16, 16) are cut at the centre, not stretched: 10% of "
         "40 × 400 is left; --size 8 52 has their proportions\n"),
        (400, {"size": (8, 80)}, ""),
    ):  # fmt: skip
        for number in range(8):
            file = tmp_path / str(side) / "ab"[number % 2] / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.effect_noise((side, 40), 30).save(file)
        out = tmp_path / f"run{side}{len(asked)}"
        begin(tmp_path / str(side), out, **tiny(model="vit_nano", quiet=False) | {"size": 16} | asked)
        said = capsys.readouterr().err
        assert line in said
        assert ("is left" in said) == bool(line)


def test_grey_pictures_stored_as_colour_are_grey(tmp_path):
    draw = np.random.default_rng(0)
    for name, grey in (("grey", True), ("colour", False)):
        for label in "ab":
            (tmp_path / name / label).mkdir(parents=True)
            for n in range(12):
                pixels = draw.integers(0, 255, (24, 24, 1 if grey else 3)).repeat(3 if grey else 1, axis=2)
                Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / name / label / f"{n}.png")
    for name, expected in (("grey", (1, False)), ("colour", (3, True))):
        used = settings_of(begin(tmp_path / name, tmp_path / f"run-{name}", **tiny()))
        assert (used["channels"]["value"], used["flip"]["value"]) == expected


def test_a_size_that_is_asked_for_decides_what_is_small(picture_folder, tmp_path):
    used = settings_of(begin(picture_folder, tmp_path / "run", size=96, **tiny()))
    assert used["model"]["value"] == "vit_nano16"


def unbalanced(folder, large: int = 44, small: int = 4):
    draw = np.random.default_rng(0)
    for label, count in (("many", large), ("few", small)):
        for split, share in (("train", count), ("test", 6)):
            (folder / split / label).mkdir(parents=True)
            for n in range(share):
                pixels = draw.integers(0, 120, (16, 16, 3)) + (100 if label == "few" else 0)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / split / label / f"{n}.png")
    return folder


def test_unequal_classes_are_told_and_can_be_weighed(tmp_path, capsys):
    data = unbalanced(tmp_path / "data", large=80, small=6)
    plain = regard.train(data, out=tmp_path / "a", holdout=0.2, **tiny(quiet=False))
    assert "more than ten times" in capsys.readouterr().err
    assert plain.read_json("summary.json")["headline"] == ["accuracy", "balanced_accuracy"]
    assert "ten times the training images" in (plain.path / "report.html").read_text()
    regard.train(data, out=tmp_path / "b", holdout=0.2, class_weights="balanced", **tiny(quiet=False))
    assert "more than ten times" not in capsys.readouterr().err


@pytest.mark.parametrize("weights", ["equal", "balanced"])
def test_weighed_classes_choose_the_epoch_by_balanced_accuracy(weights, tmp_path, monkeypatch):
    """Else the epoch would be kept that always gives the commonest class, which the weights are there to prevent."""
    epochs = iter([(0.95, 0.5), (0.8, 0.9), (0.85, 0.7)])
    monkeypatch.setattr(
        "regard.tasks.classification.task.quick_figures",
        lambda *_: dict(zip(("accuracy", "balanced_accuracy"), next(epochs), strict=True)) | {"loss": 1.0},
    )
    data = unbalanced(tmp_path / "data", large=80, small=6)
    run = regard.train(data, out=tmp_path / "run", holdout=0.2, class_weights=weights, **tiny(epochs=3))
    summary = run.read_json("summary.json")
    name, kept, value = {"equal": ("accuracy", 1, 0.95), "balanced": ("balanced_accuracy", 2, 0.9)}[weights]
    assert (summary["best_epoch"], summary[f"val_{name}"]) == (kept, value)
    assert f"by validation {name.replace('_', ' ')}" in (run.path / "report.html").read_text()


def test_the_balanced_accuracy_of_an_epoch_is_the_mean_recall(tmp_path):
    data = unbalanced(tmp_path / "data", large=40, small=8)
    (data / "test").rename(data / "val")  # then the figures are on val too
    run = regard.train(data, out=tmp_path / "run", **tiny())
    row, figures = run.read_rows("metrics.csv")[0], run.read_json("summary.json")["figures"]
    for name in ("accuracy", "balanced_accuracy"):
        assert float(row[f"val_{name}"]) == pytest.approx(figures[name]["value"], abs=1e-5)


@pytest.mark.whole_runs
def test_pixel_baselines_are_weighed_as_the_network_is(tmp_path):
    """Noise: without weights a forest always gives the commonest class, and so is right for most of the images."""
    data, draw = unbalanced(tmp_path / "data", large=80, small=6), np.random.default_rng(1)
    for file in data.rglob("*.png"):
        Image.fromarray(draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(file)
    for file in sorted((data / "test" / "few").iterdir())[1:]:
        file.unlink()
    values = {}
    for weights in ("equal", "balanced"):
        run = regard.train(data, out=tmp_path / weights, holdout=0.2, class_weights=weights, **tiny())
        values[weights] = run.read_json("summary.json")["pixel_baselines"]["random forest"]
        values[weights] = {name: figure["value"] for name, figure in values[weights].items()}
        assert ("random forest on pixels, balanced accuracy" in (run.path / "report.html").read_text()) == (
            weights == "balanced"
        )
    assert values == {"equal": {"accuracy": 6 / 7}, "balanced": {"balanced_accuracy": 0.5}}


def test_balanced_weights_are_one_over_the_number_of_training_images(tmp_path, monkeypatch):
    used = list[Any]()

    def train(_, task: Any, *__: Any) -> None:
        used.append(task.objective.weights)
        raise Begun

    monkeypatch.setattr("regard.run.runner.train", train)
    data = unbalanced(tmp_path / "data", large=30, small=10)
    for weights in ("equal", "balanced"):
        with pytest.raises(Begun):
            regard.train(data, out=tmp_path / weights, holdout=0.2, class_weights=weights, **tiny())
    equal, balanced = used
    few, many = 8, 24  # after val is cut
    assert equal is None
    torch.testing.assert_close(balanced, torch.tensor([32 / (2 * few), 32 / (2 * many)]))


def test_class_weights_scale_the_loss_of_each_class():
    logits, wanted = torch.randn(5, 3), torch.eye(3)[[0, 1, 2, 2, 2]]
    weights = torch.tensor([5 / 3, 5 / 3, 5 / 9])
    out = type("Output", (), {"logits": logits})
    by_hand = -(weights * wanted * logits.log_softmax(1)).sum(1).mean()
    found = CrossEntropy(weights=weights).loss(out, {"probabilities": wanted})
    assert math.isclose(float(found), float(by_hand), rel_tol=1e-6)
    assert not math.isclose(float(CrossEntropy().loss(out, {"probabilities": wanted})), float(by_hand), rel_tol=1e-3)


@pytest.mark.whole_runs
def test_pixel_baselines_stand_beside_the_network(tmp_path, capsys):
    """Brightness tells these classes apart, which a forest finds at once and a network of one epoch does not."""
    data = unbalanced(tmp_path / "data", large=20, small=20)
    run = regard.train(data, out=tmp_path / "run", holdout=0.2, **tiny(quiet=False))
    told = capsys.readouterr().err
    summary, page = run.read_json("summary.json"), (run.path / "report.html").read_text()
    assert summary["pixel_baselines"]["random forest"]["accuracy"]["value"] == 1.0
    assert "random forest on pixels" in page
    beaten = summary["figures"]["accuracy"]["value"] >= 1.0
    assert ("the network adds nothing here yet" in page) or beaten
    assert ("the network adds nothing here yet" in told) or beaten
    without = regard.train(data, out=tmp_path / "none", holdout=0.2, pixel_baseline=False, **tiny())
    assert "pixel_baselines" not in without.read_json("summary.json")


@pytest.mark.whole_runs
def test_pixel_baselines_are_of_the_images_that_the_network_is_tested_on(tmp_path):
    data = unbalanced(tmp_path / "data", large=20, small=20)
    shutil.copy(data / "train" / "many" / "0.png", data / "test" / "many" / "leaked.png")
    summary = regard.train(data, out=tmp_path / "run", holdout=0.2, **tiny()).read_json("summary.json")
    tested = [own["accuracy"]["n"] for own in summary["pixel_baselines"].values()]
    assert tested == [summary["figures"]["accuracy"]["n"]] * 2 == [12, 12]
