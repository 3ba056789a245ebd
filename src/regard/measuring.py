"""What is asked of data and of trained models: load, check, evaluate, compare, probe."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from regard.console import Progress
from regard.data import Images, Loader, Scan, open_source, scan
from regard.data.text import Corpus
from regard.errors import ConfigError, DataError
from regard.evaluation import (
    Evaluation,
    Parts,
    Probe,
    TranslationEvaluation,
    check_probes,
    choose_samples,
    features_of,
    probe_parts,
    run_probes,
    seen_samples,
)
from regard.evaluation import evaluate as run_evaluation
from regard.evaluation.probe import DRAWS, METHODS, NEIGHBOURS
from regard.interpreter import Interpreter
from regard.metrics import Comparison
from regard.predictor import Predictor
from regard.recipes.settle import pick_device
from regard.report import write_probe
from regard.translating import compare_text, evaluate_text, holds_text, open_text_data
from regard.weights import Run, is_marian, open_weights, translates


def load(
    path: str | Path, device: str = "auto", quiet: bool = False, heads: int | None = None, average: int = 0
) -> Predictor | Interpreter:
    """What predicts, from a run folder (its best weights) or from a weights file; on a GPU if there is one.

    Of a translator, also of a folder with an Opus-MT model, an `Interpreter`; of others a `Predictor`. `heads` is for
    files that do not say how many they have; `average` for translators that kept so many epochs: the mean of these.
    """
    if is_marian(path) or translates(path):
        return Interpreter.open(path, torch.device(pick_device(device)), average)
    return load_images(path, device, quiet, heads)


def load_images(path: str | Path, device: str = "auto", quiet: bool = False, heads: int | None = None) -> Predictor:
    """`load`, for what looks at images."""
    if is_marian(path) or translates(path):
        raise ConfigError("this is a translator: it reads sentences, not images", where=path)
    given: dict[str, Any] = {} if heads is None else {"heads": heads}
    checkpoint, report = open_weights(path, **given)
    for line in report.lines() if report.format != "regard" or report.untrained else ():
        Progress(quiet).say(line)
    return Predictor(checkpoint, torch.device(pick_device(device)))


def check(data: str | Path, quiet: bool = False, source: str | None = None, target: str | None = None) -> Scan | Corpus:
    """Read every sample once and say what is there; of parallel text, every pair of sentences.

    `source` and `target` say which languages, or columns of a table, are meant, and so that it is text.

    >>> found = check("digits", quiet=True)
    >>> len(found.source.samples), found.duplicates()
    (1797, [])
    """
    if source or target or holds_text(data):
        return open_text_data(data, {"source": source, "target": target})
    return look_at(data, Progress(quiet))


def look_at(data: str | Path, progress: Progress, labels: bool = True) -> Scan:
    """Read every image once, saying what they are."""
    source = open_source(data, labels)
    classes = f"{len(source.classes)} classes" if labels else "labels not used"
    progress.say(f"{data}: {source.kind} ({source.why}), {len(source.samples):,} images, {classes}")
    if source.ignored:
        progress.say(f"not part of the data: {len(source.ignored)} files (`regard check` lists them)")
    with progress.bar("reading", len(source.samples)) as tick:
        found = scan(source, lambda done, total: tick(done))
    found.path = str(data)
    return found


def read(data: str | Path, found: Scan | Corpus | None, progress: Progress, labels: bool = True) -> Scan:
    """What was found in these images before, or finds it."""
    if found is None:
        return look_at(data, progress, labels)
    if not isinstance(found, Scan) or found.path != str(data) or found.source.labelled != labels:
        raise ConfigError("found is not what `regard.check` has found in this data", where=data, do="leave it out")
    return found


def evaluate(
    run: str | Path,
    data: str | Path,
    *,
    split: str | None = None,
    batch: int = 64,
    mirror: bool = False,
    quiet: bool = False,
) -> Evaluation | TranslationEvaluation:
    """Figures of a trained model on data.

    With `mirror`, each image is judged together with its mirror image, by the mean of both probabilities: often a
    little better, for twice the work, where left and right do not matter.

    Which images: those of `split`, or "all". If not said, the test split if the data has one, else
    everything, but never an image that the run trained on or chose its weights by (known by its pixels).
    """
    loaded, progress = load(run), Progress(quiet)
    if isinstance(loaded, Interpreter):
        if mirror:
            raise ConfigError("sentences have no mirror image", do="leave --mirror out")
        return evaluate_text(loaded, run, data, split, progress)
    predictor = loaded
    predictor.require_classes()
    found = look_at(data, progress)
    found.require_readable()
    source = found.source
    unknown = sorted(set(source.classes) - set(predictor.classes))
    if unknown:
        raise DataError(
            f"the data has classes the model does not know: {', '.join(unknown)}",
            where=data,
            do=f"it knows {', '.join(predictor.classes)}",
        )
    index = choose_samples(found, split, seen_samples(found, run, progress), progress)
    preparation = predictor.preparation
    loader = Loader(Images(found, preparation.size, preparation.channels), index, batch)
    with progress.bar("evaluating", len(loader)) as tick:
        return run_evaluation(
            predictor.model,
            predictor.task,
            loader,
            preparation,
            source,
            predictor.classes,
            predictor.device,
            tick,
            mirror,
        )


def compare(first: str | Path, *others: str | Path) -> dict[str, dict[str, Comparison]]:
    """Whether other runs translate better than a first one: paired tests on the sentences that all were tested on.

    By run: BLEU's and chrF's difference with a 95 % interval, and how likely one as large is by chance.
    """
    if not others:
        raise ConfigError("there is nothing to compare with", do="give two runs or more")
    return {str(other): compare_text(Run.open(first), Run.open(other)) for other in others}


def probe(
    run: str | Path,
    data: str | Path,
    *,
    methods: Sequence[str] = METHODS,
    shots: Sequence[int] | None = None,
    draws: int = DRAWS,
    neighbours: int = NEIGHBOURS,
    seed: int = 0,
    batch: int = 64,
    out: str | Path | None = None,
    quiet: bool = False,
    **fields: Any,
) -> Probe:
    """How good a network's features are on data, without training it: few-shot, linear and nearest-neighbour probes.

    `shots` are training images a class, as many of 1, 5, 10, 25, 50 and 100 as there are if not said; `draws` how
    often they are drawn. `fields` are of the config, such as `size` (positions are resampled) or `heads`. `out` is
    a new folder for probe.json, probe.csv and probe.svg.

    >>> import regard
    >>> weights = regard.save(regard.create("vit_nano"), tmp / "random.safetensors")
    >>> found = probe(weights, "digits", shots=[1, 5], draws=2, quiet=True)
    >>> [(row.probe, row.shots) for row in found.rows]
    [('few_shot', 1), ('few_shot', 5), ('linear', None), ('neighbours', None)]
    """
    progress = Progress(quiet)
    if out is not None:
        Run.require_new(Path(out))
    checkpoint, report = open_weights(run, **fields)
    for line in report.lines() if report.format != "regard" or report.untrained else ():
        progress.say(line)
    predictor = Predictor(checkpoint, torch.device(pick_device("auto")))
    found = look_at(data, progress)
    found.require_readable()
    classes, samples, preparation = found.source.classes, found.source.samples, predictor.preparation
    index, note = probe_parts(found, run, progress)
    check_probes(methods, shots, draws, neighbours, [samples[i].label for i in index["train"]], classes, data)
    loader = Loader(Images(found, preparation.size, preparation.channels), list(chain(*index.values())), batch)
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
    if out is not None:
        write_probe(Run.create(Path(out)), result.to_json())
    return result
