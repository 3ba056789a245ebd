"""Every setting of every task changes something that can be seen, or is refused by name: none is read and forgotten.

The settings are counted off the dataclasses: one without a row below fails.
"""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import regard
from regard import registry, tasks
from regard.data.objects.scenes import STUFF, THINGS, write_scenes
from regard.errors import ConfigError, DataError, DivergedError, RegardError
from regard.image_groups import VOLUMES_ONLY
from regard.networks import base as networks
from regard.run import runner
from regard.run.writer import NullWriter
from regard.training import ALONE
from tests.conftest import whole_runs, write_pairs
from tests.tasks.detection.made import write_boxes

SMALL = {"depth": 2, "heads": 2, "mlp": 16, "epochs": 2, "explain": 0, "device": "cpu", "lr": 1e-2, "warmup": 0.3}
IMAGES = SMALL | {
    "model": "vit_nano", "size": 16, "patch": 8, "width": 16, "batch_size": 8, "crop": "none", "flip": False, "ema": 0.9
}  # fmt: skip
BASES: dict[str, dict[str, Any]] = {
    "classification": IMAGES | {"recipe": "plain", "pixel_baseline": False},
    "regression": IMAGES | {"recipe": "regression_plain", "column": "age", "pixel_baseline": False},
    "multilabel": IMAGES | {"recipe": "multilabel_plain", "label_column": "kind,late", "pixel_baseline": False},
    "survival": IMAGES | {"recipe": "survival_plain", "time": "age", "event": "kind", "pixel_baseline": False},
    "pretraining": IMAGES | {"recipe": "mae_small", "patch": 4, "decoder_width": 16, "decoder_depth": 1},
    "detection": SMALL
    | {
        "model": "detr_nano",
        "recipe": "detection_plain",
        "size": 32,
        "width": 16,
        "decoder_depth": 1,
        "queries": 5,
        "backbone_width": 8,
        "blocks": (1, 1),
        "fused_stages": 1,
        "dilated": False,
        "batch_size": 4,
        "flip": False,
        "ema": 0.9,
        "scale_low": 1.0,
        "crop_share": 0.0,
        "schedule": "cosine",
        "workers": 0,
    },
    "panoptic": SMALL
    | {
        "model": "detr_nano_panoptic",
        "recipe": "panoptic_plain",
        "heads": 8,
        "size": 32,
        "width": 32,
        "depth": 1,
        "decoder_depth": 1,
        "queries": 8,
        "backbone_width": 8,
        "blocks": (1, 1, 1, 1),
        "batch_size": 4,
        "workers": 0,
    },
    "translation": SMALL
    | {"model": "transformer_nano", "width": 16, "vocabulary": 300, "batch_tokens": 512, "optimizer": "adamw"},
}


@dataclass(frozen=True)
class Row:
    """A changed setting, what shows it, and what else is set, for both; or the words by which it is refused."""

    value: Any
    shown_by: str = ""
    refused: str = ""
    beside: dict[str, Any] = field(default_factory=dict)
    data: str = ""


def weights(value: Any, **beside: Any) -> Row:
    """Shown by the weights after a few steps, those of the moving average included."""
    return Row(value, "weights", beside=beside)


def batch(value: Any, **beside: Any) -> Row:
    """Shown by the training batches of two epochs."""
    return Row(value, "batches", beside=beside)


MADE = "made"  # stands for weights that the test makes
TEACHER = "teacher"  # and these, with a head
EVERYWHERE = {
    "model": Row("vit_mini4", "network", beside=dict.fromkeys(("width", "depth", "heads", "mlp"))),
    "recipe": Row(None, "settings"),
    "out": Row("elsewhere", "folder"),
    "seed": weights(1),
    "explain": Row(1, "finished"),
    "epochs": Row(3, "steps"),
    "steps": Row(3, "steps", beside={"epochs": None}),
    "minutes": Row(0.05, "settings", beside={"epochs": None}),
    "accumulate": weights(2),
    "optimizer": weights("muon"),
    "lr": weights(2e-2),
    "weight_decay": weights(0.5),
    "warmup": weights(0.8),
    "schedule": weights("inverse_sqrt"),
    "ema": weights(0.1),
    "choose": Row("last", "best epoch"),
    "clip": weights(0.01),
    "device": Row("mps", refused="there is no device 'mps'"),
    "precision": weights("bf16"),
    "compile": Row(True, "compiled"),
    "checkpointing": Row(True, "recomputed"),
    "save_every": Row(0.0, "states"),
    "keep": Row(1, "kept"),
    "nonfinite": Row("skip", "nonfinite"),
    "timeout": Row(5.0, "timeout"),
    "split_seed": Row(1, "splits"),
    "holdout": Row(0.3, "splits"),
    "unreadable": Row(0.5, "opened", data="damaged"),
}
ON_IMAGES = EVERYWHERE | {
    "workers": Row(1, "workers", beside={"crop": "resized"}),
    "shard": Row(True, "said"),
    "batch_size": weights(4),
    "images": Row(12, "splits"),
    "image_column": Row("other", "samples", data="table"),
    "max_megapixels": Row(0.001, "opened"),
    # Of volumes, where tests/data/volumes/test_subjects.py sees them.
    "scans": Row("t1", refused="--scans is for volumes"),
    "spacing": Row(2.0, refused="--spacing is for volumes"),
    "foreground": Row(False, refused="--foreground is for volumes"),
    "intensity": Row("raw", refused="--intensity is for volumes"),
    "cache_folder": Row("there", refused="--cache-folder is for volumes"),
    "crop": batch("shift"),
    "flip": batch(True),
}
AUGMENTED = ON_IMAGES | {
    "weights": weights(MADE),
    "freeze": weights(1, weights=MADE),
    "lora": weights(2, weights=MADE),
    "layer_decay": weights(0.5),
    "inflation": Row("mean", refused="nothing to inflate", beside={"weights": MADE}),  # tests/weights/test_inflate.py
    "rotate": batch(30.0),
    "zoom": batch(0.5),
    "policy": batch("trivial"),
    "strength": batch(0.9, policy="rand"),
    "erase": batch(1.0),
    "low_res": batch(0.5, size=32),
    "pixel_baseline": Row(True, "summary"),
    # Of volumes, where tests/tasks/test_volumes.py sees them.
    **{
        name: Row("x" if name == "flip_axes" else 0.1, refused=f"--{name.replace('_', '-')} is for volumes")
        for name in VOLUMES_ONLY
    },
}
MIXED = AUGMENTED | {"mixup": batch(0.5), "cutmix": batch(1.0), "mixup_off": batch(0.5, mixup=0.5)}
ROWS: dict[str, dict[str, Row]] = {
    "classification": MIXED | {
        "label_column": Row("kind", "samples", data="table"),
        "label_pattern": Row("^.(.)", "samples", beside={"label_pattern": "^(.)"}, data="flat"),
        "recipe": Row("digits", "settings"),
        "loss": weights("bce"),
        "label_smoothing": weights(0.3),
        "class_weights": weights("balanced"),
        "teacher": weights(TEACHER),
        "distillation": weights("soft", teacher=TEACHER),
        "teacher_weight": weights(0.9, teacher=TEACHER),
        "temperature": weights(1.0, teacher=TEACHER, distillation="soft"),
    },
    "regression": MIXED | {
        "recipe": Row("regression", "settings"),
        "image_column": Row("other", "samples"),
        "column": Row("weight", "samples"),
        "loss": weights("squared"),
        "huber_delta": weights(0.1),
    },
    "multilabel": MIXED | {
        "recipe": Row("multilabel", "settings"),
        "label_column": Row("kind,label", "samples"),
        "image_column": Row("other", "samples"),
        "label_smoothing": weights(0.3),
        "class_weights": weights("balanced", label_column="kind,label"),
    },
    "survival": AUGMENTED | {
        "recipe": Row("survival", "settings"),
        "image_column": Row("other", "samples"),
        "accumulate": Row(2, refused="would cut the risk sets"),
        "time": Row("weight", "samples", beside={"time": "age"}),
        "event": Row("late", "samples", beside={"event": "kind"}),
        "clinical": weights("weight"),
        "loss": weights("discrete"),
        "ties": weights("breslow", time="tied"),
        "bins": weights(3, loss="discrete"),
        "horizon": Row(5.0, "horizon"),
    },
    "pretraining": ON_IMAGES | {
        "recipe": Row("mae", "settings"),
        "mask": weights(0.5),
        "decoder_width": weights(32),
        "decoder_depth": weights(2),
        "decoder_heads": weights(1),
        "normalise": weights(False),
    },
    "detection": EVERYWHERE | {
        "model": Row("detr_r50", "network"),
        "recipe": Row("detection", "settings"),
        "workers": Row(1, "workers"),
        "shard": Row(True, "said"),
        "batch_size": weights(2),
        "images": Row(6, "splits"),
        "max_megapixels": Row(0.001, "opened"),
        "schedule": weights("drop"),
        "weights": weights(MADE),
        "backbone_rate": weights(0.1),
        "flip": batch(True),
        "scale_low": batch(0.5),
        "scale_high": batch(2.0),
        "crop_share": batch(1.0),
        "mosaic": batch(1.0),
        "mixup": batch(1.0),
        "mixup_off": batch(0.5, mosaic=1.0),
        "colour": batch(0.5),
        "no_object": weights(0.5),
        "one_to_many": weights(2, two_stage=True),
        "class_weight": weights(4.0),
        "stuff": Row(True, "samples", data="scenes"),
    },
    "translation": EVERYWHERE | {
        "model": Row("rnn_nano", "network", beside={"heads": None, "mlp": None}),
        "recipe": Row("dates", "settings"),
        "split_seed": Row(1, "splits", data="one split"),
        "holdout": Row(0.3, "splits", data="one split"),
        "source": Row("fr", "samples", beside={"source": "en", "target": "de"}, data="three languages"),
        "target": Row("fr", "samples", beside={"source": "en", "target": "de"}, data="three languages"),
        "tokenizer": batch("wordpiece"),
        "weights": weights(MADE),
        "vocabulary": batch(280),
        "joint": batch(False),
        "batch_tokens": batch(128),
        "pairs": Row(20, "splits"),
        "max_length": batch(5),
        "beam_size": Row(2, "search"),
        "length_penalty": Row(2.0, "search"),
        "label_smoothing": weights(0.3),
    },
}  # fmt: skip
ROWS["panoptic"] = ROWS["detection"] | {
    "stuff": Row(False, "samples"),
    "mask_weight": weights(3.0),
    "dice_weight": weights(3.0),
    "freeze_boxes": weights(True, weights=MADE),
}
"""What is the same for detection is done by the same code, and seen there."""
CASES = [(task, name) for task in ROWS for name in ROWS[task] if task != "panoptic" or name not in ROWS["detection"]]
CASES.append(("panoptic", "stuff"))


@pytest.mark.parametrize("task", tasks.TASKS, ids=lambda entry: entry.name)
def test_every_setting_has_a_row(task):
    assert {entry.name for _, entry, _ in task.config.entries()} == ROWS[task.name].keys()


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Two kinds of pictures, as folders, as a flat folder, as a table, and with a damaged one; and sentences."""
    root, draw = tmp_path_factory.mktemp("settings"), np.random.default_rng(0)
    rows = ["path,label,other,kind,age,weight,late,tied"]
    (root / "flat").mkdir()
    for number in range(24):
        kind = "ab"[number % 3 == 0]
        pixels = draw.integers(0, 256, (40, 40, 3), dtype=np.uint8)
        for folder in (root / "folders" / kind, root / "damaged" / kind):
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{number}.png")
        Image.fromarray(pixels).save(root / "flat" / f"{kind}{'xy'[number % 2]}-{number}.png")
        numbers = f"{number % 2},{number},{number**2},{number // 2 % 2},{number // 4}"
        rows.append(f"folders/{kind}/{number}.png,{kind},damaged/{kind}/{number}.png,{numbers}")
    (root / "table.csv").write_text("\n".join(rows))
    (root / "damaged" / "a" / "bad.png").write_bytes(b"no picture")
    (root / "damaged.csv").write_text("\n".join([*rows, "damaged/a/bad.png,a,folders/a/1.png,0,3,4,0,1"]))
    write_pairs(root / "pairs", 120)
    write_pairs(root / "one split", 120)
    for file in (root / "one split").glob("[vt]*.[ed]?"):
        if not file.name.startswith("train"):
            file.unlink()
    write_pairs(root / "three languages", 120)
    for file in (root / "three languages").glob("*.de"):
        file.with_suffix(".fr").write_text(file.read_text().upper())
    for name in ("boxes", "damaged boxes"):
        write_boxes(root / name, {"": 16}, side=40)
    (root / "damaged boxes" / "images" / "image016.png").write_bytes(b"no picture")
    write_pairs(root / "damaged pairs", 120)
    file = root / "damaged pairs" / "train.en"
    file.write_text(file.read_text().replace("one", "\x00", 3))
    torch.manual_seed(5)
    made = regard.create("vit_nano", classes=2, size=16, patch=8, width=16, heads=2, mlp=16, depth=2)
    regard.save(made, root / "made.safetensors")
    nn.init.normal_(made.head.weight)
    regard.save(made, root / "teacher.safetensors", classes=("a", "b"))
    own = {f.name for f in fields(registry.config_class("detr_nano"))} & BASES["detection"].keys()
    detector = regard.create("detr_nano", classes=4, **{name: BASES["detection"][name] for name in own})
    regard.save(detector, root / "made-detection.safetensors")
    write_scenes(root / "scenes", train=8, val=2, test=2, size=32)
    own = {f.name for f in fields(registry.config_class("detr_nano"))} & BASES["panoptic"].keys()
    names = (*THINGS, *STUFF)
    segmenter = regard.create(
        "detr_nano_panoptic", classes=len(names), **{name: BASES["panoptic"][name] for name in own}
    )
    regard.save(segmenter, root / "made-panoptic.safetensors", classes=names)
    trained = BASES["translation"] | {"seed": 9, "explain": 0, "out": root / "made-translation"}
    regard.train(root / "pairs", quiet=True, **trained)
    return root


@pytest.fixture(scope="module")
def bases() -> dict[tuple[str, ...], Any]:
    """What was seen without a change, which serves many settings."""
    return {}


def data_of(place: Path, task: str, row: Row) -> Path:
    if task == "panoptic" or row.data == "scenes":
        return place / "scenes"
    if task == "detection":
        return place / ("damaged boxes" if row.data == "damaged" else "boxes")
    if task == "translation":
        return place / {"": "pairs", "damaged": "damaged pairs"}.get(row.data, row.data)
    kinds = {"": "folders", "table": "table.csv"}
    if task in ("regression", "survival", "multilabel"):
        kinds = {"": "table.csv", "table": "table.csv", "damaged": "damaged.csv"}
    return place / kinds.get(row.data, row.data)


class Built(Exception):
    """Ends a run where training would begin."""


class Seen:
    """A run of a task up to where training begins, and what can be observed of it."""

    def __init__(self, place: Path, out: Path, task: str, data: Path, settings: dict[str, Any], monkeypatch: Any):
        self.place, self.out, self.data, self.patch = place, out, data, monkeypatch
        self.settings: dict[str, Any] = {"out": str(out)} | settings
        self.command = regard.pretrain if task == "pretraining" else regard.train
        self.timeouts: list[float] = []
        self.lines: list[str] = []

    def start(self, stop: bool = True) -> Any:
        built: list[Any] = []

        def train(run: Any, task: Any, *_: Any) -> Any:
            built.append(task)
            raise Built

        real = runner.joined
        with self.patch.context() as patch:
            patch.setattr(
                runner, "joined", lambda device, timeout: self.timeouts.append(timeout) or real(device, timeout)
            )
            patch.setattr(runner.Progress, "say", lambda _, text: self.lines.append(text))
            patch.setattr(runner, "MEASURED_SECONDS", 0.01)
            if stop:
                patch.setattr(runner, "train", train)
            try:
                return self.command(self.data, **self.settings)
            except Built:
                return built[0]

    def training(self, figures: list[float] | None = None, writer: Any = None) -> Any:
        """The training loop, with these validation figures."""
        task, given = self.start(), itertools.cycle(figures or [0.5])

        def validate(*_: Any) -> dict[str, float]:
            return {task.best[0]: next(given), "loss": 1.0} if task.best[0] != "loss" else {"loss": next(given)}

        task.validate = validate
        progress = runner.Progress(quiet=True)
        return runner.make_training(task, None, writer or Recorder(), progress, ALONE)


class Recorder(NullWriter):
    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Tensor]] = {}
        self.states = 0

    def weights(self, name: str, weights: dict[str, Tensor], history: Any) -> None:
        self.kept[name] = weights

    def state(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        self.states += 1


def digest(tensors: dict[str, Tensor]) -> str:
    made = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        made.update(f"{name}{tuple(tensor.shape)}".encode() + tensor.detach().numpy().tobytes())
    return made.hexdigest()


def see_weights(seen: Seen) -> Any:
    training = seen.training()
    training.run()
    return digest(training.model.state_dict()), digest(training.writer.kept["last"])


def see_batches(seen: Seen) -> Any:
    feed = seen.start().feed(ALONE)
    made = [batch for epoch in (1, 2) for batch in feed.epoch(epoch, 0, iter)]
    return [digest(b.inputs) + digest(b.targets) for b in made]


def see_network(seen: Seen) -> Any:
    return digest(seen.start().model.state_dict())


def see_settings(seen: Seen) -> Any:
    config = seen.start().job.config
    return {name: value for name, value in config.flat().items() if name not in ("recipe", "out")}


def see_folder(seen: Seen) -> Any:
    seen.patch.chdir(seen.out.parent)
    seen.start()
    return Path("elsewhere").exists()


def see_finished(seen: Seen) -> Any:
    run = seen.start(stop=False)
    return sorted(
        p.name for p in run.path.rglob("*") if "explain" in p.parts[-2] or p.name == "words.json" or "reco" in p.name
    )


def see_steps(seen: Seen) -> Any:
    return seen.training().steps


def see_best_epoch(seen: Seen) -> Any:
    """Of two epochs, where the first is better."""
    better_first = [0.9, 0.1] if seen.start().best[1] == "max" else [0.1, 0.9]
    seen.settings["out"] += "-again"
    return seen.training(better_first).run().best["epoch"]


def see_compiled(seen: Seen) -> Any:
    compiled: list[Any] = []
    with seen.patch.context() as patch:
        patch.setattr(nn.Module, "compile", lambda module, **_: compiled.append(module))
        seen.training()
    return len(compiled)


def see_recomputed(seen: Seen) -> Any:
    calls, real = [], networks.checkpoint
    with seen.patch.context() as patch:
        patch.setattr(networks, "checkpoint", lambda *words, **more: calls.append(1) or real(*words, **more))
        seen.training().run()
    return len(calls)


def see_states(seen: Seen) -> Any:
    training = seen.training()
    training.run()
    return training.writer.states


def see_kept(seen: Seen) -> Any:
    training = seen.training()
    training.run()
    return sorted(training.writer.kept)


def see_nonfinite(seen: Seen) -> Any:
    """What becomes of a step whose gradient is not finite."""
    training = seen.training()
    training.unchecked = [(torch.ones(()), [0])]
    try:
        training._check_finite()
    except DivergedError:
        return "stopped"
    return training.history.skipped


def see_timeout(seen: Seen) -> Any:
    seen.start()
    return seen.timeouts


def see_splits(seen: Seen) -> Any:
    return seen.start().job.splits


def see_opened(seen: Seen) -> Any:
    try:
        seen.start()
    except DataError:
        return False
    return True


def see_samples(seen: Seen) -> Any:
    dataset = seen.start().job.dataset
    if hasattr(dataset, "targets"):
        return dataset.sources, dataset.targets
    values = dataset.values.tolist() if hasattr(dataset, "values") else dataset.source.classes
    if hasattr(dataset, "codes"):
        values = dataset.labels, dataset.codes.tolist()
    if hasattr(dataset, "event"):
        values = dataset.time.tolist(), dataset.event.tolist()
    return dataset.source.reader.paths, dataset.strata(), values


def see_horizon(seen: Seen) -> Any:
    return seen.start().curves.horizon


def see_workers(seen: Seen) -> Any:
    feed = seen.start().feed(ALONE)
    list(feed.epoch(1, 0, iter))
    try:
        return len(multiprocessing.active_children())
    finally:
        feed.close()


def see_said(seen: Seen) -> Any:
    seen.start()
    return [line for line in seen.lines if "warning" in line]


@whole_runs()
def see_summary(seen: Seen) -> Any:
    return seen.start(stop=False).read_json("summary.json").keys()


def see_search(seen: Seen) -> Any:
    return regard.load(seen.start(stop=False).path).search_settings(None, None)  # pyright: ignore[reportAttributeAccessIssue]


SEE: dict[str, Callable[[Seen], Any]] = {
    name.removeprefix("see_").replace("_", " "): function
    for name, function in list(globals().items())
    if name.startswith("see_")
}


@pytest.mark.parametrize(("task", "name"), CASES)
def test_a_setting_is_seen_or_refused(task, name, place, bases, tmp_path, monkeypatch):
    row = ROWS[task][name]

    def seen(**changes: Any) -> Seen:
        settings = BASES[task] | row.beside | changes
        own = {"detection": ".safetensors", "panoptic": ".safetensors", "translation": ""}
        made = f"made-{task}{own[task]}" if task in own else "made.safetensors"
        files = {MADE: str(place / made), TEACHER: str(place / "teacher.safetensors")}
        settings = {n: files.get(v, v) if isinstance(v, str) else v for n, v in settings.items()}
        settings = {n: v for n, v in settings.items() if v is not None or n in changes}
        out = tmp_path / ("changed" if changes else "base")
        return Seen(place, out, task, data_of(place, task, row), settings, monkeypatch)

    if row.refused:
        with pytest.raises(RegardError, match=row.refused):
            seen(**{name: row.value}).start()
        return
    see, same = SEE[row.shown_by], (task, row.shown_by, row.data, *sorted(map(str, row.beside.items())))
    if same not in bases:
        bases[same] = see(seen())
        if row.shown_by in ("weights", "batches", "network"):
            assert bases[same] == see(seen(out=str(tmp_path / "again"))), "the same settings give the same bits"
    assert bases[same] != see(seen(**{name: row.value})), f"{name} has no effect on {row.shown_by}"


# Fields of the models' configs, which are settings too.

MODELS: dict[str, dict[str, Any]] = {
    "vit_nano": {
        "size": (8, 8), "channels": 1, "patch": (2, 2), "width": 32, "depth": 1, "heads": 2, "mlp": 32, "pool": "mean",
        "positions": "sinusoidal", "registers": 2, "distilled": True, "head": "mlp", "dropout": 0.5,
        "drop_path": 0.9, "layer_scale": 0.1,
        "stem": "conv", "eps": 0.5, "norm": "post", "rope": True,
        "cnn": "monai_resnet10",
    },
    "resnet_nano": {
        "size": (8, 8), "channels": 1, "width": 8, "blocks": (1, 1), "kind": "bottleneck", "stem": "large",
        "drop_path": 0.9,
    },
    "swin_nano": {
        "size": (8, 8), "channels": 1, "patch": (4, 4), "width": 16, "depths": (1, 1), "heads": (1, 2),
        "window": (2, 2), "mlp_ratio": 2.0, "drop_path": 0.9, "eps": 0.5, "small_grid": "pad",
    },
    "monai_resnet10": {"size": (24, 16), "channels": 1, "kind": "resnet18"},
    "detr_nano": {
        "size": (8, 8), "channels": 1, "queries": 5, "width": 32, "depth": 1, "decoder_depth": 1, "heads": 4, "mlp": 32,
        "dropout": 0.5, "backbone_width": 8, "blocks": (1, 1), "kind": "bottleneck", "dilated": False, "masks": True,
        "frozen_norms": True, "norm": "pre", "stride": 8, "fused_stages": 2, "classification": "focal",
        "two_stage": True, "refine": True, "box_bias": True, "denoising": 2,
    },
    "mlp_nano": {"size": (8, 8), "channels": 1, "width": 8, "depth": 1, "dropout": 0.5},
    "transformer_nano": {
        "embeddings": "separate", "output_bias": True, "width": 32, "depth": 1, "dropout": 0.5, "heads": 2, "mlp": 32,
        "key_width": 4, "value_width": 4, "decoder_depth": 1, "positions": "halves", "length": 16, "norm": "pre",
        "final_norm": True, "activation": "gelu", "eps": 0.5,
    },
    "rnn_nano": {
        "embeddings": "separate", "output_bias": True, "width": 32, "depth": 2, "dropout": 0.5, "cell": "gru",
        "attention": "none", "query": "newest", "input_feeding": False, "cells": False,
    },
}  # fmt: skip
"""Another value of each field than the model's own."""
BESIDE = {"length": {"positions": "learned"}, "head": {"classes": 3}, "small_grid": {"window": (6, 6)},
          "stride": {"fused_stages": 3}}  # fmt: skip
"""What else is set, for both."""
FIELDS = [(model, name) for model in MODELS for name in MODELS[model]]


def test_every_field_of_every_family_has_a_value():
    decided = {name for entry in tasks.TASKS for name in entry.config.not_shape}
    families = {kind: name for name in MODELS for kind in [registry.config_class(name)]}
    assert families.keys() == {registry.config_class(name) for name in registry.MODELS}
    for kind, name in families.items():
        assert {f.name for f in fields(kind)} - decided == MODELS[name].keys() - decided


@cache
def made_of(model: str, changes: tuple[tuple[str, Any], ...]) -> str:
    """Names and shapes of a network's weights, and what it makes of an input in training, with the same seed."""
    text = registry.config_class(model).inputs == "text"
    usual = {"vocabulary": 20} if text else {"size": (16, 16), "classes": 3, "channels": 3}
    torch.manual_seed(0)
    network = registry.build(model, **usual | dict(changes)).train()
    shapes = {f"shape of {name}": torch.tensor(p.shape) for name, p in network.state_dict().items()}
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)  # heads begin with zeros, and show nothing
    torch.manual_seed(0)
    if text:
        words = torch.randint(3, 20, (2, 7))
        return digest(shapes | {"out": network(words, words).logits})
    output = network(torch.rand(2, network.config.channels, *network.config.size))
    return digest(shapes | {name: part for name, part in output._asdict().items() if isinstance(part, Tensor)})


@pytest.mark.parametrize(("model", "name"), FIELDS)
def test_a_field_of_a_model_changes_the_network(model, name):
    beside = BESIDE.get(name, {})
    if (model, name) == ("monai_resnet10", "kind"):  # the name says it
        with pytest.raises(ConfigError, match="kind='resnet18' contradicts monai_resnet10"):
            made_of.__wrapped__(model, (("kind", "resnet18"),))
        assert made_of(model, ()) == made_of(model, (("kind", "resnet10"),))
        return
    base, changed = (made_of(model, tuple((beside | more).items())) for more in ({}, {name: MODELS[model][name]}))
    assert base == made_of.__wrapped__(model, tuple(beside.items())), "the same twice"
    assert base != changed


@pytest.mark.parametrize("task", ROWS)
def test_fields_of_the_model_reach_the_network_of_a_task(task, place, tmp_path, monkeypatch):
    data = data_of(place, task, Row(None))
    widths = (32, 64) if task == "panoptic" else (16, 32)
    made = [Seen(place, tmp_path / str(n), task, data, BASES[task] | {"width": n}, monkeypatch) for n in widths]
    assert tuple(seen.start().network().config.width for seen in made) == widths


@pytest.mark.parametrize(
    ("task", "settings", "words"),
    [
        ("pretraining", {"head": "mlp"}, "--head has no effect"),
        ("pretraining", {"cnn": "monai_resnet10"}, "has no part in pre-training"),
        ("pretraining", {"rope": True}, "rope=True cannot be pre-trained"),
        ("pretraining", {"positions": "conditional"}, "cannot be pre-trained by masking"),
        ("pretraining", {"stem": "conv"}, "stem"),
        ("translation", {"length": 16}, "length is of learned positions only"),
        ("classification", {"strength": 0.5}, "strength is for RandAugment only"),
        ("classification", {"mixup": 0.0, "mixup_off": 0.5}, "mixup_off has no effect without mixup"),
        ("classification", {"temperature": 2.0}, "temperature needs a teacher"),
        ("classification", {"lr": 0.0}, "lr=0.0 is too small"),
        ("detection", {"mixup_off": 0.5}, "mixup_off has no effect without mosaic"),
        ("detection", {"one_to_many": 2}, "one_to_many is for the proposals of two_stage"),
        ("detection", {"no_object": 0.2, "classification": "focal"}, "no_object is of a softmax"),
        ("panoptic", {"mask_weight": 0.0, "dice_weight": 0.0}, "leave nothing to learn"),
        ("panoptic", {"freeze_boxes": True}, "would freeze random boxes"),
        ("panoptic", {"masks": False}, "has no mask head"),
        ("detection", {"freeze": "all"}, "detection has no setting 'freeze'"),
        ("regression", {"loss": "squared", "huber_delta": 2.0}, "huber_delta is for the Huber loss"),
    ],
)
def test_what_would_have_no_effect_is_refused(task, settings, words, place, tmp_path, monkeypatch):
    data = data_of(place, task, Row(None))
    with pytest.raises(ConfigError, match=words):
        Seen(place, tmp_path / "run", task, data, BASES[task] | settings, monkeypatch).start()


PRETRAINED = MODELS["vit_nano"].keys() - {"head", "rope", "stem", "cnn"}


@pytest.mark.parametrize("name", sorted(PRETRAINED))
def test_a_field_of_a_vit_is_seen_in_pretraining(name, place, bases, tmp_path, monkeypatch):
    """Where the network is another than the one that classifies: it has no head, and sees some patches only."""
    base, data = (
        BASES["pretraining"] | {"positions": "learned", "pool": "class", "heads": 1},
        data_of(place, "pretraining", Row(None)),
    )
    both = base, base | {name: MODELS["vit_nano"][name]}
    made = [Seen(place, tmp_path / str(n), "pretraining", data, given, monkeypatch) for n, given in enumerate(both)]
    if ("fields",) not in bases:
        bases["fields",] = see_weights(made[0])
    assert bases["fields",] != see_weights(made[1])
