"""How good a network's features are, without training it: few-shot, linear and nearest-neighbour probes on images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from regard import registry
from regard.config import make
from regard.console import Progress
from regard.data import ImageDataset, Images, Loader
from regard.data.splits import split
from regard.errors import DataError
from regard.evaluation import Parts, Probe, check_amounts, features_of, run_probes
from regard.evaluation.probe import DRAWS, NEIGHBOURS
from regard.image_groups import LabelData
from regard.report import figures
from regard.setting_groups import Data
from regard.settings import Origin
from regard.tasks import find
from regard.tasks.classification.predictor import Classifier
from regard.tasks.classification.settings import PROBES, Config, check_probes
from regard.tasks.images import read_images
from regard.tasks.small_data import fitting_size
from regard.weights import Checkpoint, Run, find_run, open_weights, save_checkpoint, seen_samples, write_text


def probe(
    run: str | Path,
    data: str | Path,
    *,
    methods: Sequence[str] = PROBES,
    shots: Sequence[int] | None = None,
    draws: int | None = None,
    neighbours: int | None = None,
    seed: int | None = None,
    batch_size: int = 64,
    device: torch.device,
    out: str | Path | None = None,
    keep: str | Path | None = None,
    quiet: bool = False,
    **fields: Any,
) -> Probe:
    """How good a network's features are on data, without training it: few-shot, linear and nearest-neighbour probes.

    `shots` are training images a class, as many of 1, 5, 10, 25, 50 and 100 as there are if not said; `draws` how
    often they are drawn (5), by `seed`; `neighbours` how many vote (20). `fields` are of the config, such as `size`
    (positions are resampled) or `heads`. `out` is a new folder for probe.json, probe.csv and probe.svg; `keep` one for
    a run: the network with the linear probe as its head.
    """
    check_probes(methods, shots=shots, draws=draws, seed=seed, neighbours=neighbours, keep=keep)
    seed = seed or 0
    draws = DRAWS if draws is None else draws
    neighbours = NEIGHBOURS if neighbours is None else neighbours
    progress = Progress(quiet)
    for path in (out, keep):
        if path is not None:
            Run.require_new(Path(path))
    folder = find_run(run)
    how = {name: fields.pop(name) for name in Config.opening().keys() & fields.keys()}
    checkpoint, report = open_weights(run, predicts="classes", **fields)
    prepared = checkpoint.preparation
    own = prepared.reading() if prepared else {}
    reading = make(LabelData, (folder.reading(data) if folder else {}) | own | how)
    dataset = read_images(data, progress, how=reading, size=prepared.size if prepared and own else None)
    dataset.require_usable(reading.unreadable)
    if report.format != "regard":
        if "size" not in fields and (size := fitting_size(checkpoint.config, dataset)):
            fields["size"] = size
            checkpoint, report = open_weights(run, predicts="classes", **fields)
        for line in report.lines():  # of a run, only a head is new, which is not used
            progress.say(line)
    predictor = Classifier(checkpoint, device)
    progress.say(f"input {predictor.preparation.size}")
    classes, samples, preparation = dataset.source.classes, dataset.source.samples, predictor.preparation
    index, note = probe_parts(dataset, run, progress)
    check_amounts(methods, shots, draws, neighbours, [samples[i].label for i in index["train"]], classes, data)
    loader = Loader(Images(dataset, preparation.size, preparation.channels), list(chain(*index.values())), batch_size)
    with progress.bar("features", len(loader)) as tick:
        parts = Parts.of(*features_of(predictor.model, loader, preparation, predictor.device, tick), index)
    with progress.bar("probing", len(methods)) as tick:
        rows = run_probes(
            parts, classes, methods=methods, shots=shots, draws=draws, k=neighbours, seed=seed,
            device=predictor.device, tick=tick,
        )  # fmt: skip
    result = Probe(rows, {
        "weights": str(run), "data": str(data), "model": checkpoint.model, "size": preparation.size,
        "features": parts.train.features.shape[1], "classes": classes, "splits": note, "seed": seed,
        "images": {name: len(own) for name, own in index.items()},
    })  # fmt: skip
    made = {path: Run.create(Path(path)) for path in (out, keep) if path is not None}
    if out is not None:
        write_probe(made[out], result.to_json())
    if keep is not None:
        head = result.row("linear").head
        assert head is not None
        trained = open_weights(run, classes=len(classes), new_head=True, predicts="classes", **fields)[0]
        layers = registry.configure(trained.model, **trained.config).last_layers  # of two heads, the same for both
        parts = {name: torch.from_numpy(value).float() for name, value in head._asdict().items()}
        held = {f"{layer}.{name}": value.clone() for layer in layers for name, value in parts.items()}
        trained = replace(trained, classes=classes, task="classification", weights=trained.weights | held)
        write_run(made[keep], run, data, dataset, index, trained, how)
    return result


def write_run(
    folder: Run, weights: str | Path, data: str | Path, dataset: ImageDataset, index: dict[str, list[int]],
    checkpoint: Checkpoint, how: dict[str, Any],
) -> None:  # fmt: skip
    """A run folder that predict, eval, explain, inspect and convert take; `how` says how the data was read.

    What the network itself had seen of the test images counts as training images here.
    """
    names = {number: name for name, own in index.items() for number in own}
    folder.write_rows("splits.csv", dataset.split_rows([names.get(n, "train") for n in range(len(dataset))]))
    said = {"model": checkpoint.model, "weights": str(weights), "freeze": "all", **how}
    config = Config.of(said)
    origins: dict[str, Origin] = {name: "flag" if name in said else "default" for name in config.flat()}
    save_checkpoint(folder.checkpoint(), checkpoint)
    folder.write_config(str(data), config, origins)


def probe_parts(dataset: ImageDataset, run: str | Path, progress: Progress) -> tuple[dict[str, list[int]], str]:
    """The samples a probe learns from, chooses by and is tested on, and a sentence saying where they come from.

    They are split as the run was, or as a new run would be; no image that the run trained on or chose its weights
    by is tested on.
    """
    folder = find_run(run)
    data: Data = LabelData()
    if folder:
        stored = folder.read_config()
        data = find(stored.task).config.from_json(stored.settings, folder.path)[0].data
    given = dataset.given_splits()
    if "val" in given and "test" not in given:
        progress.say("the data has no test split: the probe is tested on val, and chooses on images cut from train")
        given = ["test" if name == "val" else name for name in given]
    names, note = split(dataset, data.split_seed, data.holdout, given=given)
    names = [name if digest else "unreadable" for name, digest in zip(names, dataset.digests, strict=True)]
    parts = {name: [i for i, n in enumerate(names) if n == name] for name in ("train", "val", "test")}
    if not parts["test"]:
        raise DataError("the data has no test split to probe on", where=dataset.source.name, do="name one test")
    progress.say(f"splits: {note}")
    for line in dataset.leak_lines(names):
        progress.say(f"warning: {line}")
    seen = seen_samples(dataset, run, progress)
    if folder and "test" not in dataset.given_splits() and "val" in dataset.given_splits():
        # The weights were chosen on these, which no other images can replace.
        seen = dataset.seen([row for row in folder.seen_rows() if row["split"] == "train"])
        note += "; tested on val, which may also have chosen the weights"
    new = [i for i in parts["test"] if i not in seen]
    if not new:
        what, do = "the model was trained or chosen on every one of the test images", "give data that it has not seen"
        if "test" not in dataset.given_splits():
            do += "; or put some of these into test/CLASS, the others into train/CLASS, and train a new run: images in "
            do += "test are never trained on"
        raise DataError(what, where=dataset.source.name, do=do)
    if folder:
        left = len(parts["test"]) - len(new)
        progress.say(f"tested on {len(new)} images the run never trained or chose on ({left} others are left out)")
        note += f"; {left} test images left out that the run had trained or chosen on"
    return parts | {"test": new}, note


def write_probe(folder: Run, result: dict[str, Any]) -> None:
    """Write probe.json, probe.csv and, where shots were drawn, probe.svg."""
    rows = result["probes"]
    folder.write_json("probe.json", result)
    folder.write_rows("probe.csv", rows)
    if any(row["probe"] == "few_shot" for row in rows):
        write_text(folder.path / "probe.svg", figures.shots(rows))
