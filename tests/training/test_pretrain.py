"""Pre-training on images without labels: reproducible, stoppable anywhere, and of use to what comes after."""

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import regard
from regard.data import open_source, scan, split
from regard.errors import ConfigError, DataError
from regard.tasks.pretraining.loss import MaskedPatches
from regard.weights import open_weights
from tests import processes
from tests.conftest import make_folder, settings_of, whole_runs
from tests.run import killed
from tests.training.test_training import final_weights, same

SETTINGS = {
    "depth": 2, "epochs": 3, "batch_size": 8, "size": 16, "explain": 2, "device": "cpu", "dropout": 0.1,
    "drop_path": 0.2, "decoder_width": 32, "decoder_depth": 1, "decoder_heads": 2,
}  # fmt: skip


def quick(data, out, **settings):
    return regard.pretrain(data, out=str(out), quiet=True, **SETTINGS | settings)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Thirty pictures without a label, one of them in a folder of its own, each a disc of some colour on noise."""
    root, draw = tmp_path_factory.mktemp("data") / "pictures", np.random.default_rng(0)
    (root / "more").mkdir(parents=True)
    rows, columns = np.mgrid[:20, :20]
    for n in range(30):
        pixels = draw.integers(0, 60, (20, 20, 3), dtype=np.uint8)
        centre = draw.integers(5, 15, 2)
        pixels[(rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 < 25] = draw.integers(100, 255, 3)
        Image.fromarray(pixels).save(root / ("more" if n == 29 else "") / f"{n:02d}.png")
    return root


@pytest.fixture(scope="module")
@whole_runs()
def finished(pictures, tmp_path_factory):
    return quick(pictures, tmp_path_factory.mktemp("runs") / "whole")


def test_a_run_folder_says_what_was_done(finished):
    held = {p.relative_to(finished.path).as_posix() for p in finished.path.rglob("*") if p.is_file()}
    assert held == {
        "config.json", "command.txt", "environment.json", "data.json", "splits.csv", "metrics.csv", "summary.json",
        "predictions.csv", "report.html", "figures/curves.svg", "figures/reconstructions.png",
        "checkpoints/best.safetensors", "checkpoints/best-decoder.safetensors",
        "checkpoints/last.safetensors", "checkpoints/state.safetensors",
    }  # fmt: skip
    assert finished.read_config().task == "pretraining"
    rows, summary = finished.read_rows("metrics.csv"), finished.read_json("summary.json")
    assert summary["split"] == "val"
    best = min(rows, key=lambda row: float(row["val_loss"]))
    assert summary["best_epoch"] == int(best["epoch"])
    assert summary["figures"]["reconstruction_loss"]["value"] == pytest.approx(float(best["val_loss"]), abs=1e-5)
    assert {row["split"] for row in finished.read_rows("splits.csv")} == {"train", "val"}
    assert "regard.pretrain(" in (finished.path / "command.txt").read_text()


@pytest.mark.whole_runs
def test_a_report_is_drawn_anew_from_the_files(finished):
    before = (finished.path / "report.html").read_bytes()
    regard.api.report(finished)
    assert (finished.path / "report.html").read_bytes() == before


def test_it_learns_to_fill_in(pictures, tmp_path):
    rows = quick(pictures, tmp_path / "run", epochs=40, explain=0, drop_path=0.0, dropout=0.0).read_rows("metrics.csv")
    assert float(rows[-1]["val_loss"]) < 0.85 * float(rows[0]["val_loss"])


def test_the_best_is_chosen_by_the_smallest_loss(pictures, tmp_path, monkeypatch):
    given = iter([0.7, 0.5, 0.6])
    monkeypatch.setattr("regard.tasks.pretraining.task.Task.validate", lambda *_: {"loss": next(given)})
    run = quick(pictures, tmp_path / "run", explain=0, keep=3)
    assert run.read_json("summary.json")["best_epoch"] == 2
    assert same(final_weights(run, "best"), final_weights(run, "epoch-0002"))


def test_checkpoints_hold_the_encoder_for_what_comes_after(finished, tmp_path):
    weights = load_file(finished.checkpoint())
    assert not [name for name in weights if name.startswith(("head", "encoder", "mask_token"))]
    checkpoint, report = open_weights(finished.path, classes=5, size=24)
    assert "all zeros" in report.untrained[0]
    assert checkpoint.config["classes"] == 5
    assert checkpoint.preparation is not None
    assert checkpoint.preparation.size == (24, 24)
    assert same({k: v for k, v in checkpoint.weights.items() if not k.startswith("head.")}, weights), (
        "sinusoidal positions have no table to resample"
    )
    model = regard.create(weights=finished.path, classes=5, quiet=True)
    assert model(torch.zeros(1, 3, 16, 16)).logits.shape == (1, 5)
    found = regard.probe(
        finished.path, make_folder(tmp_path / "labelled"), methods=["few_shot"], shots=[1], draws=1, quiet=True
    )
    assert found.about["features"] == 64


def test_features_alone_predict_nothing_and_say_so(finished, pictures, picture_folder):
    predictor = regard.load(finished.path, quiet=True)
    for asked in (predictor.predict, predictor.explain):
        with pytest.raises(ConfigError, match="pre-trained without labels"):
            asked(pictures / "00.png")
    with pytest.raises(ConfigError, match="regard probe"):
        regard.evaluate(finished.path, picture_folder, quiet=True)


def test_the_same_seed_gives_the_same_weights_with_any_workers_and_any_batch_order(pictures, finished, tmp_path):
    again = quick(pictures, tmp_path / "again", workers=2)
    assert same(final_weights(finished), final_weights(again))
    assert not same(final_weights(finished), final_weights(quick(pictures, tmp_path / "other", seed=1, explain=0)))


@pytest.mark.parametrize("update", [4, 7])
def test_killed_and_resumed_it_ends_with_the_very_weights(pictures, finished, tmp_path, update):
    number = signal.SIGKILL if update == 7 else signal.SIGTERM
    settings = SETTINGS | {"pretrain": True}
    process = processes.start(
        killed.main, str(pictures), str(tmp_path / "run"), update, int(number), "training", settings,
        OMP_NUM_THREADS=torch.get_num_threads(),  # other sums would round otherwise
    )  # fmt: skip
    assert processes.finished(process) == [-number if number == signal.SIGKILL else 128 + number]
    run = regard.resume(tmp_path / "run", quiet=True)
    for name in ("best", "last", "best-decoder"):
        assert same(final_weights(finished, name), final_weights(run, name)), name
    ours, whole = (r.read_json("summary.json") for r in (run, finished))
    assert ours["figures"] == whole["figures"]


def test_accumulated_and_in_pieces_it_is_the_same_loss(pictures, tmp_path, monkeypatch):
    original = MaskedPatches.loss

    def scarce(task, output, targets):
        if len(targets["patch_order"]) > 4 and output.predicted.requires_grad:
            raise torch.OutOfMemoryError("out of memory")
        return original(task, output, targets)

    plain = {"epochs": 1, "explain": 0, "dropout": 0.0, "drop_path": 0.0}
    whole = quick(pictures, tmp_path / "whole", **plain).read_rows("metrics.csv")
    monkeypatch.setattr(MaskedPatches, "loss", scarce)
    pieces = quick(pictures, tmp_path / "pieces", **plain).read_rows("metrics.csv")
    assert float(pieces[0]["val_loss"]) == pytest.approx(float(whole[0]["val_loss"]), rel=1e-3)


def test_volumes_can_be_pretrained_on(tmp_path):
    volumes = np.random.default_rng(0).integers(0, 255, (12, 16, 16, 16), dtype=np.uint8)
    np.savez(tmp_path / "brains.npz", train_images=volumes[:9], val_images=volumes[9:])
    run = quick(tmp_path / "brains.npz", tmp_path / "run", model="vit3d_nano", epochs=1)
    assert open_weights(run.path)[0].config["size"] == (16, 16, 16)
    assert (run.path / "figures" / "reconstructions.png").stat().st_size > 5000


def test_labels_are_ignored_and_splits_are_kept(picture_folder, tmp_path):
    source = open_source(picture_folder, labels=False)
    assert source.classes == ("unlabelled",)
    assert len(source.samples) == 24
    assert open_source(picture_folder).classes == ("blue", "red"), "labelled loading is as it was"
    for name in ("train", "val", "test"):
        make_folder(tmp_path / "parted" / name, per_class=3)
    names, note = split(scan(open_source(tmp_path / "parted", labels=False)), seed=0)
    assert (names.count("train"), names.count("val"), names.count("test")) == (6, 6, 6)
    assert "the data's own" in note
    table = picture_folder / "list.csv"
    table.write_text("path,patient\n" + "\n".join(f"red/{n:02d}.png,p{n // 2}" for n in range(12)))
    assert open_source(table, labels=False).samples[3].group == "p1"
    with pytest.raises(DataError, match="no column for the label"):
        open_source(table)


def test_split_folders_may_hold_images_themselves(pictures, tmp_path):
    for name in ("train", "test"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for path in sorted(pictures.glob("*.png"))[:3]:
            (tmp_path / "data" / name / path.name).write_bytes(path.read_bytes())
    source = open_source(tmp_path / "data", labels=False)
    assert sorted((s.key, s.split) for s in source.samples) == sorted(
        (f"{name}/{n:02d}.png", name) for name in ("train", "test") for n in range(3)
    )
    with pytest.raises(DataError, match="`regard pretrain` takes images without labels"):
        open_source(tmp_path / "data" / "train")
    (tmp_path / "data" / "odd").mkdir()
    assert len(open_source(tmp_path / "data", labels=False).samples) == 6


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"stem": "conv"}, "stem='conv' cannot be pre-trained"),
        ({"mixup": 0.2}, "has no setting 'mixup'"),
        ({"recipe": "cifar"}, "'cifar' is not for this"),
        ({"mask": 1.5}, "mask=1.5"),
        ({"size": 4, "patch": 4}, "4 × 4 pixels has one patch only"),
        ({"size": 8, "patch": 4, "mask": 0.95}, "leaves 0 of 4 patches"),
        ({"decoder_width": 30, "decoder_heads": 4}, "width 30 does not divide"),
        ({"maks": 0.5}, "did you mean"),
    ],
)
def test_what_cannot_be_pretrained_says_so_and_writes_nothing(pictures, tmp_path, settings, what):
    with pytest.raises(ConfigError, match=what):
        quick(pictures, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_the_recipe_of_pretraining_is_not_for_training(picture_folder):
    with pytest.raises(ConfigError, match="regard pretrain"):
        regard.train(picture_folder, recipe="mae", quiet=True)


def test_no_images_is_an_error(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images here"):
        quick(tmp_path / "empty", tmp_path / "run")


def test_the_command_line_pretrains_and_resumes(pictures, tmp_path, cli):
    out = tmp_path / "run"
    flags = ("--depth", 1, "--size", 16, "--epochs", 1, "--mask", 0.5, "--explain", 1, "--quiet")
    code, said, err = cli("pretrain", pictures, "--out", out, *flags)
    assert code == 0, err
    assert "reconstruction loss" in said
    config = settings_of(out)
    assert config["mask"] == {"value": 0.5, "origin": "flag"}
    assert config["recipe"]["value"] == "mae_small"
    assert "regard pretrain" in (out / "command.txt").read_text()
    (out / "report.html").unlink()
    code, _, err = cli("resume", out)
    assert code == 0, err
    assert (out / "report.html").is_file()
    code, _, err = cli("pretrain", pictures, "--stem", "conv")
    assert code == 2
    assert "to do: use --stem patch" in err


def test_a_dry_run_writes_nothing(pictures, tmp_path, capsys):
    quick(pictures, tmp_path / "run", dry_run=True)
    assert "steps" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_a_handful_of_pictures_is_trained_on_to_the_report(tmp_path, cli):
    """One of them is left for validation: a figure without an interval."""
    data = make_folder(tmp_path / "few", per_class=5)
    flags = ("--depth", 1, "--size", 16, "--epochs", 1, "--decoder-depth", 1, "--explain", 1, "--out", tmp_path / "run")
    code, out, err = cli("pretrain", data, *flags)
    assert code == 0, err
    assert "(95 % interval –, n=1)" in out
    assert settings_of(tmp_path / "run")["workers"]["value"] == 0, "a process takes longer to start than to crop these"
    code, _, err = cli("pretrain", data, *flags, "--seeds", 2)
    assert code == 2
    assert "no flag --seeds" in err
    with pytest.raises(ConfigError, match="no setting 'seeds'"):
        regard.pretrain(data, seeds=2)


def test_what_uses_the_features_says_nothing_of_a_head(finished, pictures, picture_folder, tmp_path, cli):
    code, _, err = cli("inspect", finished.path, pictures / "00.png", "--out", tmp_path / "inside.png")
    assert (code, "head" in err) == (0, False)
    code, _, err = cli("probe", finished.path, picture_folder, "--methods", "neighbours", "--neighbours", 3)
    assert (code, "head" in err) == (0, False)


def test_on_its_own_pictures_there_is_advice_that_can_be_followed(finished, pictures, picture_folder, tmp_path, cli):
    code, _, err = cli("eval", finished.path, pictures, "--split", "all")
    assert code == 2
    assert "there is nothing to predict" in err
    assert "reading" not in err
    run = quick(picture_folder, tmp_path / "run", epochs=1, explain=0)
    with pytest.raises(DataError, match="put some of these into test/CLASS, the others into train/CLASS"):
        regard.probe(run.path, picture_folder, quiet=True)
    for file in sorted(picture_folder.rglob("*.png")):
        part = tmp_path / "parted" / ("test" if file.stem > "08" else "train") / file.parent.name
        part.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, part)
    run = quick(tmp_path / "parted", tmp_path / "anew", epochs=1, explain=0)
    probed = regard.probe(run.path, tmp_path / "parted", methods=["neighbours"], neighbours=3, quiet=True)
    assert probed.about["images"]["test"] == 6
