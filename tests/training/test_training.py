"""The loop: reproducible to the bit, accumulation and averaging as defined, stoppable, honest about NaN."""

import csv
import json
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import regard
from regard.errors import ConfigError, RunError
from regard.tasks.classification import task as classification
from regard.tasks.classification.loss import CrossEntropy
from regard.training import Average, Muon, make_optimizers
from regard.training.step import Step
from tests.conftest import SMALL_TRANSLATOR, settings_of


def final_weights(run, name="last"):
    return load_file(run.checkpoint(name))


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def quick(data, out, **settings):
    base = {
        "model": "vit_nano",
        "depth": 2,
        "epochs": 2,
        "batch_size": 8,
        "explain": 0,
        "quiet": True,
        "size": 16,
        "device": "cpu",
    }
    return regard.train(data, out=str(out), **base | settings)


@pytest.mark.parametrize("augmented", [False, True])
def test_the_same_seed_gives_the_same_weights_with_any_number_of_workers(
    picture_folder, tmp_path, monkeypatch, augmented
):
    monkeypatch.setattr("regard.data.scanner.CACHE_SIDE", 1)  # so that images are read by the workers
    strong = {
        "crop": "resized", "flip": True, "policy": "trivial", "erase": 0.5, "mixup": 0.3, "cutmix": 0.3,
        "dropout": 0.1, "drop_path": 0.2,
    }  # fmt: skip
    settings = strong if augmented else {"crop": "none"}
    runs, figures = [], classification.quick_figures
    for number, workers in enumerate((0, 2, 1)):
        # Whatever else draws from the global generator, before or during the run, must not matter.
        torch.manual_seed(number)
        monkeypatch.setattr(classification, "quick_figures", lambda *a, n=number: (torch.rand(n), figures(*a))[1])
        runs.append(quick(picture_folder, tmp_path / str(number), workers=workers, **settings))
    first = final_weights(runs[0])
    assert all(same(first, final_weights(run)) for run in runs[1:])
    assert not same(first, final_weights(quick(picture_folder, tmp_path / "other", seed=1, workers=0, **settings)))


def use_sgd(monkeypatch) -> None:
    """Plain gradient descent, since Adam hides a gradient of the wrong size."""
    import regard.training.gradients as gradients

    monkeypatch.setattr(
        gradients, "make_optimizers", lambda model, *_: [torch.optim.SGD(model.parameters(), 0.05, fused=True)]
    )


def test_accumulating_two_batches_is_one_of_twice_the_size(picture_folder, tmp_path, monkeypatch):
    use_sgd(monkeypatch)
    plain = {
        "crop": "none",
        "flip": False,
        "ema": 0.0,
        "epochs": 2,
        "mixup": 0.0,
        "drop_path": 0.0,
        "clip": 0.0,
        "lr": 0.05,
        "stem": "patch",
        "cutmix": 0.0,
        "policy": "none",
    }
    one = final_weights(quick(picture_folder, tmp_path / "one", batch_size=8, **plain))
    two = final_weights(quick(picture_folder, tmp_path / "two", batch_size=4, accumulate=2, **plain))
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=1e-5, rtol=1e-4)


def test_the_average_is_an_average():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = Average(model, 0.9)
    expected, values = 0.0, [1.0, 2.0, 3.0]
    for number, value in enumerate(values, start=1):
        nn.init.constant_(model.weight, value)
        average.update()
        decay = min(0.9, number / (number + 10))
        expected = decay * expected + (1 - decay) * value
    average.swap()
    assert model.weight.item() == pytest.approx(expected)
    average.swap()
    assert model.weight.item() == 3.0


def test_only_matrices_decay():
    model = regard.create("vit_nano", classes=3, size=16, registers=1, layer_scale=0.1)
    decayed, plain = make_optimizers(model, "adamw", 0.1, 0.05)[0].param_groups
    assert decayed["weight_decay"] == 0.05
    assert plain["weight_decay"] == 0.0
    kept = {id(p) for p in plain["params"]}
    for name, p in model.named_parameters():
        free = p.ndim == 1 or name in ("class_token", "registers", "positions.table")
        assert (id(p) in kept) == free, name


def test_muon_takes_the_matrices_of_the_blocks():
    model = regard.create("vit_nano", classes=3, size=16)
    rest, muon = make_optimizers(model, "muon", 0.1, 0.05)
    taken = {id(p) for p in muon.param_groups[0]["params"]}
    for name, p in model.named_parameters():
        assert (id(p) in taken) == (name.startswith("blocks.") and p.ndim == 2), name
    assert len(taken) + sum(len(g["params"]) for g in rest.param_groups) == len(list(model.parameters()))


@pytest.mark.parametrize("shape", [(8, 8), (24, 8), (8, 32)])
def test_muon_against_torch(shape):
    """torch's works in bf16 and one matrix at a time; ours on the CPU in fp32 and all at once."""
    torch.manual_seed(0)
    start, grads = torch.randn(2, *shape), torch.randn(4, 2, *shape)
    own, other = ([nn.Parameter(w.clone()) for w in start] for _ in range(2))
    ours = Muon(own, 0.02, 0.1)
    theirs = torch.optim.Muon(other, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for step in grads:
        for a, b, g in zip(own, other, step, strict=True):
            a.grad, b.grad = g.clone(), g.clone()
        ours.step()
        theirs.step()
    moved = torch.stack(list(other)) - start
    assert (torch.stack(list(own)) - torch.stack(list(other))).norm() < 0.01 * moved.norm()


@pytest.mark.parametrize(("choose", "epoch"), [("best", 2), ("last", 3)])
def test_the_weights_of_the_best_epoch_or_of_the_last_are_the_run_s(
    picture_folder, tmp_path, monkeypatch, choose, epoch
):
    accuracies = iter([0.5, 0.7, 0.6])
    monkeypatch.setattr(classification, "quick_figures", lambda *_: {"accuracy": next(accuracies), "loss": 1.0})
    run = quick(picture_folder, tmp_path / "run", epochs=3, keep=3, choose=choose)
    assert run.read_json("summary.json")["best_epoch"] == epoch
    assert same(final_weights(run, "best"), final_weights(run, f"epoch-{epoch:04d}"))
    reason = {"best": "by validation accuracy", "last": "the last"}[choose]
    assert f"epoch {epoch} of 3, {reason}" in (run.path / "report.html").read_text()


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_good_weights(picture_folder, tmp_path, monkeypatch):
    import regard.training.loop as loop

    original = loop.learning_rate
    monkeypatch.setattr(loop, "learning_rate", lambda s, *rest: float("nan") if s >= 3 else original(s, *rest))
    with pytest.raises(RunError, match="not a number"):
        quick(picture_folder, tmp_path / "run", epochs=10, ema=0.0)
    weights = load_file(tmp_path / "run" / "checkpoints" / "last.safetensors")
    assert all(torch.isfinite(w).all() for w in weights.values())


def test_the_run_folder_holds_what_the_design_says(run_folder):
    names = {p.relative_to(run_folder).as_posix() for p in run_folder.rglob("*") if p.is_file()}
    assert names >= {
        "config.json", "command.txt", "environment.json", "data.json", "splits.csv", "metrics.csv", "predictions.csv",
        "summary.json", "checkpoints/best.safetensors", "checkpoints/last.safetensors", "figures/curves.svg",
        "figures/confusion.svg", "figures/reliability.svg", "explain/01.png", "explain/explanations.json",
        "model_card.md", "report.html",
    }  # fmt: skip
    stored = json.loads((run_folder / "config.json").read_text())
    assert (stored["data"], stored["task"]) == ("digits", "classification")
    assert stored["settings"]["optim"]["epochs"] == {"value": 4, "origin": "flag"}
    config = settings_of(run_folder)
    assert config["epochs"] == {"value": 4, "origin": "flag"}
    assert config["mixup"]["origin"] == "recipe"
    assert config["size"] == {"value": [8, 8], "origin": "auto"}
    assert config["clip"] == {"value": 1.0, "origin": "default"}
    splits = list(csv.DictReader((run_folder / "splits.csv").open()))
    predicted = list(csv.DictReader((run_folder / "predictions.csv").open()))
    assert {row["name"] for row in predicted} == {row["name"] for row in splits if row["split"] == "test"}
    hits = np.mean([row["label"] == row["predicted"] for row in predicted])
    assert json.loads((run_folder / "summary.json").read_text())["figures"]["accuracy"]["value"] == pytest.approx(hits)


def test_the_kept_weights_give_the_reported_figures(run_folder):
    result = regard.evaluate(run_folder, "digits", quiet=True)
    reported = json.loads((run_folder / "summary.json").read_text())["figures"]
    assert result.figures["accuracy"].value == reported["accuracy"]["value"]
    assert result.figures["log_loss"].value == pytest.approx(reported["log_loss"]["value"], abs=1e-6)


def test_volumes_train_evaluate_and_explain(tmp_path):
    draw = np.random.default_rng(0)
    labels = np.arange(40) % 2
    volumes = draw.integers(0, 60, (40, 8, 8, 8), dtype=np.uint8)
    volumes[labels == 1, :4] += 150
    np.savez(tmp_path / "v.npz", images=volumes, labels=labels)
    settings = {"model": "vit3d_nano", "patch": 4, "epochs": 8, "batch_size": 8, "explain": 1, "quiet": True}
    run = regard.train(tmp_path / "v.npz", out=tmp_path / "run", **settings)
    assert run.read_json("summary.json")["figures"]["accuracy"]["value"] > 0.9
    explained = regard.load(run.path).explain(torch.from_numpy(volumes[1])[None])
    assert explained.map.shape == (8, 8, 8)
    assert explained.save(tmp_path / "map.png").stat().st_size > 1000


def test_a_picture_model_refuses_volumes(tmp_path):
    np.savez(tmp_path / "v.npz", images=np.zeros((9, 8, 8, 8), np.uint8), labels=np.arange(9) % 2)
    with pytest.raises(regard.RegardError, match="2 axes and the data has 3"):
        regard.train(tmp_path / "v.npz", model="vit_nano", out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_what_was_read_before_is_not_read_again(picture_folder, tmp_path, monkeypatch):
    dataset = regard.check(picture_folder, quiet=True)
    other = regard.check("digits", quiet=True)
    monkeypatch.setattr("regard.tasks.images.scan", lambda *_: pytest.fail("read again"))
    assert quick(picture_folder, tmp_path / "run", dataset=dataset).read_json("summary.json")["figures"]
    with pytest.raises(ConfigError, match=r"not what `regard\.check` has read"):
        quick(picture_folder, tmp_path / "wrong", dataset=other)
    assert not (tmp_path / "wrong").exists()
    with pytest.raises(ConfigError, match=r"not what `regard\.check` has read"):
        regard.train("dates", dataset=dataset, out=tmp_path / "words", quiet=True)
    with pytest.raises(ConfigError, match=r"max_megapixels=64\.0, and max_megapixels=9\.0 is asked for"):
        quick(picture_folder, tmp_path / "wrong", dataset=dataset, max_megapixels=9)


class Steps:
    """What every step of a training was given and did: batches, rates, the weights after it, how far they moved."""

    def __init__(self, monkeypatch):
        self.images: list[tuple[int, ...]] = []
        self.targets: list[torch.Tensor] = []
        self.rates: list[float] = []
        self.skipped: list[bool] = []
        self.weights: list[dict[str, torch.Tensor]] = []
        self.moves: list[float] = []
        original = Step.train_step

        def watched(step, batches):
            model = step.gradients.model
            if not self.weights:
                self.weights.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
            self.images.append(tuple(batches[0].inputs["image"].shape[2:]))
            self.targets.append(torch.cat([batch.targets["probabilities"] for batch in batches]))
            self.rates.append(float(step.optimizers[0].param_groups[0]["lr"]))
            loss, bad = original(step, batches)
            before, after = self.weights[-1], {name: tensor.clone() for name, tensor in model.state_dict().items()}
            self.moves.append(sum(float((after[name] - before[name]).square().sum()) for name in after) ** 0.5)
            self.weights.append(after)
            self.skipped.append(bool(bad))
            return loss, bad

        monkeypatch.setattr(Step, "train_step", watched)

    def average(self, decay: float) -> dict[str, torch.Tensor]:
        """The moving average of the weights, by hand: of steps that were made."""
        mean, updates = {name: tensor.clone() for name, tensor in self.weights[0].items()}, 0
        for weights, skipped in zip(self.weights[1:], self.skipped, strict=True):
            if not skipped:
                updates += 1
                old = min(decay, updates / (updates + 10))
                mean = {name: old * tensor + (1 - old) * weights[name] for name, tensor in mean.items()}
        return mean


PLAIN: dict[str, Any] = {
    "crop": "none", "flip": False, "mixup": 0.0, "cutmix": 0.0, "drop_path": 0.0, "label_smoothing": 0.0, "ema": 0.0,
    "clip": 0.0, "warmup": 0.0, "optimizer": "adamw", "workers": 0, "stem": "patch",
}  # fmt: skip


def test_clipping_bounds_how_far_a_step_goes(picture_folder, tmp_path, monkeypatch):
    use_sgd(monkeypatch)
    free, bound = Steps(monkeypatch), 1e-3
    quick(picture_folder, tmp_path / "free", **PLAIN | {"lr": 0.05})
    assert min(move / rate for move, rate in zip(free.moves, free.rates, strict=True)) > 10 * bound
    clipped = Steps(monkeypatch)
    quick(picture_folder, tmp_path / "clipped", **PLAIN | {"lr": 0.05, "clip": bound})
    for move, rate in zip(clipped.moves, clipped.rates, strict=True):
        assert move / rate == pytest.approx(bound, rel=0.01)


def test_smoothing_takes_from_the_label_and_gives_to_all_classes(picture_folder, tmp_path, monkeypatch):
    seen, original = [], CrossEntropy.loss

    def loss(objective, output, targets):
        value = original(objective, output, targets)
        if not value.is_meta:  # counting operations calls it without numbers
            seen.append((output.logits.detach(), targets["probabilities"], value))
        return value

    monkeypatch.setattr(CrossEntropy, "loss", loss)
    quick(picture_folder, tmp_path / "run", **PLAIN | {"lr": 1e-2, "label_smoothing": 0.2})
    logits, given, value = seen[-1]
    spread = torch.where(given == 1, 0.9, 0.1)
    assert value.item() == pytest.approx(-(spread * logits.log_softmax(1)).sum(1).mean().item(), abs=1e-6)
    assert value.item() != pytest.approx(-(given * logits.log_softmax(1)).sum(1).mean().item(), abs=1e-3)


def test_translators_learn_from_smoothed_labels(pairs_folder, tmp_path):
    settings: dict[str, Any] = SMALL_TRANSLATOR | {"explain": 0, "epochs": 1}
    plain, smooth = (
        regard.train(pairs_folder, **settings | {"label_smoothing": share, "out": tmp_path / str(share)})
        for share in (0.0, 0.3)
    )
    assert plain.read_rows("metrics.csv")[0]["train_loss"] != smooth.read_rows("metrics.csv")[0]["train_loss"]


@pytest.mark.parametrize("bad", [None, 2])
def test_the_kept_weights_are_the_average_of_the_steps_that_were_made(picture_folder, tmp_path, monkeypatch, bad):
    calls, original = iter(range(1, 100)), CrossEntropy.loss

    def loss(objective, output, targets):
        value = original(objective, output, targets)
        return value * float("nan") if value.requires_grad and next(calls) == bad else value

    monkeypatch.setattr(CrossEntropy, "loss", loss)
    steps = Steps(monkeypatch)
    run = quick(picture_folder, tmp_path / "run", **PLAIN | {"ema": 0.6, "lr": 1e-2, "nonfinite": "skip"})
    assert steps.skipped.count(True) == (bad is not None)
    kept, mean = final_weights(run), steps.average(0.6)
    for name, tensor in kept.items():
        torch.testing.assert_close(tensor, mean[name], atol=1e-6, rtol=1e-5)
    assert not same(kept, steps.weights[-1])


@pytest.mark.parametrize("schedule", ["cosine", "inverse_sqrt"])
def test_the_rate_rises_and_falls_as_the_schedule_says(picture_folder, tmp_path, monkeypatch, schedule):
    steps = Steps(monkeypatch)
    wanted = PLAIN | {"epochs": 5, "lr": 0.01, "warmup": 0.4, "schedule": schedule}
    quick(picture_folder, tmp_path / "run", **wanted)
    count = len(steps.rates)
    rise = round(0.4 * count)
    assert rise >= 4
    expected = [0.01 * (n + 1) / rise for n in range(rise)]
    if schedule == "cosine":
        turn = np.pi * np.arange(count - rise) / (count - rise)
        expected += list(0.005 * (1 + np.cos(turn)))
    else:
        expected += [0.01 * (rise / (n + 1)) ** 0.5 for n in range(rise, count)]
    assert steps.rates == pytest.approx(expected)


def test_stochastic_depth_changes_what_is_learnt(picture_folder, tmp_path):
    without = final_weights(quick(picture_folder, tmp_path / "without", **PLAIN))
    again = final_weights(quick(picture_folder, tmp_path / "again", **PLAIN))
    dropped = final_weights(quick(picture_folder, tmp_path / "with", **PLAIN | {"drop_path": 0.5}))
    assert same(without, again)
    assert not same(without, dropped)


def test_images_are_mixed_until_the_last_epochs(picture_folder, tmp_path, monkeypatch):
    steps = Steps(monkeypatch)
    quick(picture_folder, tmp_path / "run", **PLAIN | {"epochs": 4, "mixup": 1.0, "mixup_off": 0.5})
    mixed = [bool(((given > 0) & (given < 1)).any()) for given in steps.targets]
    half = len(mixed) // 2
    assert mixed == [True] * half + [False] * half


def test_the_first_epochs_are_of_low_resolution(picture_folder, tmp_path, monkeypatch):
    steps = Steps(monkeypatch)
    quick(picture_folder, tmp_path / "run", **PLAIN | {"epochs": 4, "low_res": 0.5})
    half = len(steps.images) // 2
    assert set(steps.images[half:]) == {(16, 16)}
    assert len(set(steps.images[:half])) == 1
    assert max(steps.images[0]) < 16


def test_progress_tells_each_epoch_when_it_has_ended(picture_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("regard.console.Lines.EVERY", 0.0)  # every step
    run = quick(picture_folder, tmp_path / "run", epochs=3, quiet=False)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("training step")]
    rows = run.read_rows("metrics.csv")
    ends = {int(row["step"]): row for row in rows}
    for step, row in ends.items():
        told = [line for line in lines if line.startswith(f"training step {step}/")]
        assert f"epoch {row['epoch']} " in told[-1]
        assert f"val accuracy {float(row['val_accuracy']):.4f}" in told[-1]
    assert sum(line.startswith(f"training step {max(ends)}/") for line in lines) == 1
