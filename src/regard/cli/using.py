"""Commands that use what was made: to measure, predict, explain and convert."""

from __future__ import annotations

import sys
from collections.abc import Sequence, Sized
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from regard import tasks
from regard.cli.flags import Parser, Switch, add_opening, add_options, checked_options, parse
from regard.cli.making import require_path
from regard.console import Progress, columns, interval, shown
from regard.drawing import require_ending
from regard.errors import ConfigError, DataError, RegardError, refuse_failed
from regard.setting_groups import Group, LandscapeOptions, setting
from regard.tasks.image_options import InspectOptions, LoadOptions

FORMATS = ("regard", "timm", "hf", "torchvision", "google", "dinov2", "microsoft", "detr")
"""What `regard convert` writes."""


@dataclass(frozen=True)
class ConvertOptions(Group):
    title: ClassVar[str] = "weights"
    model: str | None = setting(
        None, "Name of the model, where the file must hold it. Default: as the file's shapes say."
    )
    classes: int | None = setting(None, "Number of classes of a new head, which is all zeros.", least=1)
    size: int | tuple[int, ...] | None = setting(
        None, "Resample positions for inputs of this size: one number, or height and width."
    )
    heads: int | None = setting(None, "Attention heads, where neither the file nor the name says.", least=1)


def _options(parser: Parser, kind: str) -> set[str]:
    """The flags of all tasks for a command and for loading a model, and their names."""
    groups = [getattr(entry.settings, name) for name in (kind, "LoadOptions") for entry in tasks.TASKS]
    return add_options(parser, ((group.title, group) for group in groups))


def _of_task(run: str, kind: str, given: dict[str, Any]) -> tuple[tasks.Entry, dict[str, Any], dict[str, Any]]:
    """The run's task, the options for loading its model and those of the command; the others are refused."""
    require_path(run)
    entry = tasks.of_run(run)
    if entry is None:
        from regard.run.using import task_of

        entry = task_of(run)
    loading, rest = tasks.part_options(entry, given)
    return (
        entry,
        checked_options(entry.settings.LoadOptions, loading, entry.name),
        checked_options(getattr(entry.settings, kind), rest, entry.name),
    )


def run_eval(words: Sequence[str]) -> None:
    """Figures with 95 % intervals for a trained model on data."""
    parser = Parser("eval", run_eval.__doc__)
    parser.add_argument("run", help="Run folder or checkpoint file.")
    parser.add_argument("data", help="Data with labels, or with references.")
    help = "train, val, test, all, or a test set's name. Default: the test split, else all that the run has not seen."
    parser.add_argument("--split", metavar="SPLIT", help=help)
    help = "Folder to make for figures and predictions, which `regard compare` reads; or a .json for the figures."
    parser.add_argument("--out", metavar="PATH", help=help)
    help = "Another cohort: overlap with the training data, calibration, the run's own figures beside. Takes folds too."
    parser.add_argument("--external", action=Switch, help=help)
    there = _options(parser, "EvalOptions")
    opening = add_opening(parser, (entry.config for entry in tasks.TASKS), there)
    given = parse(parser, words)
    how = {name: given.pop(name) for name in opening & given.keys()}
    run, data, out = given.pop("run"), given.pop("data"), given.pop("out", None)
    split, quiet, external = given.pop("split", None), given.pop("quiet", False), given.pop("external", False)
    if out and Path(out).suffix not in (".json", ""):
        do = "give --out a folder, or end it in .json"
        raise ConfigError(f"figures are not written as {Path(out).suffix}", do=do)
    entry, loading, options = _of_task(run, "EvalOptions", given)
    for name in sorted(how.keys() - entry.config.opening().keys()):
        flag = f"--{name.replace('_', '-')}"
        raise ConfigError(f"{flag} is not for {entry.name}", do=f"leave {flag} out")
    tasks.require_data(data)
    from regard import api
    from regard.weights import to_json, write_text

    file = Path(out) if out and Path(out).suffix else None
    asked = {"split": split, "out": None if file else out, "external": external, "quiet": quiet}
    result = api.evaluate(run, data, **asked, **loading, **how, **options)
    if file:
        write_text(file, to_json(result.to_json()))
    if external:
        return print(result.describe())
    rows = list[tuple[str, ...]]()
    for name, figure in result.figures.items():
        form = f".{entry.decimals(name)}f"
        rows.append((name, f"{figure.value:{form}}", interval(figure._asdict(), form), f"{figure.n:,}"))
    print(columns(("figure", "value", "95 % interval", "n"), rows))
    if more := result.describe():
        print(f"\n{more}")


def run_predict(words: Sequence[str]) -> None:
    """Predict: label images, estimate numbers, translate sentences."""
    parser = Parser("predict", run_predict.__doc__)
    parser.add_argument("run", help=" or ".join(["Run folder or checkpoint file", *tasks.helps("run")]) + ".")
    images = "Files, folders or globs of images; of scans also a table or case folders."
    parser.add_argument("inputs", nargs="*", help=" ".join([images, *tasks.helps("inputs")]))
    parser.add_argument("--out", metavar="FILE", help="Write a .csv or .json here instead of printing.")
    _options(parser, "PredictOptions")
    given = parse(parser, words)
    run, inputs, out = given.pop("run"), given.pop("inputs", []), given.pop("out", None)
    if out and Path(out).suffix not in (".csv", ".json"):
        what = f"predictions are not written as {Path(out).suffix or 'nothing'}"
        raise ConfigError(what, do="end --out in .csv or .json")
    quiet = given.pop("quiet", False)
    entry, loading, options = _of_task(run, "PredictOptions", given)
    kinds = fields(entry.settings.PredictOptions)
    printed = {f.name: options.pop(f.name) for f in kinds if f.metadata["shows"] and f.name in options}
    if out and printed:
        what = f"--{' and --'.join(printed)} is for printed predictions: a file holds all of them"
        raise ConfigError(what, do=f"leave out --{next(iter(printed))} or --out")
    from regard import api

    predictor: Any = api.load(run, quiet=quiet, **loading)
    failed: list[DataError] = []
    together = {"batch_size": 1} if inputs == ["-"] and sys.stdin.isatty() else {}
    chosen = predictor.inputs(inputs)
    made = predictor.predict_many(chosen, failed=failed, **together, **options)
    if out or isinstance(chosen, Sized):  # piped sentences are answered as they come
        kept: list[Any] = []
        try:
            total = len(chosen) if isinstance(chosen, Sized) else None
            with Progress(quiet or total is None).bar("predicting", total or 0) as tick:
                for prediction in made:
                    kept.append(prediction)
                    tick(len(kept) + len(failed))
        finally:  # also when it is stopped
            if out and kept:
                print(predictor.save(kept, Path(out)))
        made = kept
    if not out:
        predictor.show(made, **printed, **options)
    _say_seen(predictor, quiet)
    refuse_failed(failed)


def _say_seen(predictor: Any, quiet: bool) -> None:
    """Whether pictures were among those it learnt from."""
    if not quiet and hasattr(predictor, "seen_note") and (note := predictor.seen_note()):
        print(note, file=sys.stderr)


def run_explain(words: Sequence[str]) -> None:
    """Show what a prediction was based on: input beside attention, and scores of the map."""
    parser = Parser("explain", run_explain.__doc__)
    parser.add_argument("run", help="Run folder or checkpoint file.")
    parser.add_argument(
        "inputs", nargs="+", help="Files, folders or globs; of scans also a table; of a translator, sentences."
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="Picture to write: .png, .svg or .pdf (default: explanation.png); of a scan also its map, .nii.gz.",
    )
    _options(parser, "ExplainOptions")
    given = parse(parser, words)
    run, inputs, quiet = given.pop("run"), given.pop("inputs"), given.pop("quiet", False)
    if (Path(run).expanduser() / "folds.json").is_file():
        return _explain_folds(run, inputs, given, quiet)
    out = Path(given.pop("out", "explanation.png"))
    _, loading, options = _of_task(run, "ExplainOptions", given)
    if not out.name.lower().endswith((".nii", ".nii.gz")):
        require_ending(out)
    from regard import api

    predictor: Any = api.load(run, quiet=quiet, **loading)
    try:
        predictor.explain_inputs(inputs, out, quiet=quiet, **options)
    finally:
        _say_seen(predictor, quiet)


def _explain_folds(folder: str, inputs: list[str], given: dict[str, Any], quiet: bool) -> None:
    """Maps of several folds against the masks of the table: each subject by the network that has not seen it."""
    out = given.pop("out", None)
    if out is not None and not str(out).lower().endswith((".nii", ".nii.gz")):
        what = "--out is for pictures of one run; of several folds it is for maps as NIfTI"
        raise ConfigError(what, where=folder, do="end --out in .nii.gz, leave it out, or explain one of the folds")
    _, loading, options = _of_task(str(Path(folder).expanduser() / "fold1"), "ExplainOptions", given)
    if len(inputs) != 1 or loading:
        raise ConfigError("folds are explained on the table they were trained on", do="give that table alone")
    from regard.explain.mask_scores import score_table
    from regard.run.fold_masks import explain_folds

    scores = explain_folds(folder, inputs[0], quiet=quiet, out=out, **options)
    if scores:
        print(columns(*score_table(scores)), Path(folder) / "report.html", sep="\n")


def run_compare(words: Sequence[str]) -> None:
    """Whether runs are better than a first one, by paired tests on the same samples."""
    parser = Parser("compare", run_compare.__doc__, quiet=False)
    about = "Runs, folders of --folds, or of `regard eval --out`; all others are compared with the first."
    parser.add_argument("runs", nargs="+", help=about)
    runs = parse(parser, words)["runs"]
    if len(runs) < 2:
        raise ConfigError("there is nothing to compare with", do="give two runs or more")
    for run in runs:
        require_path(run)
    from regard import api
    from regard.run.comparing import overview, predicted_by

    rows, verdicts = list[tuple[str, ...]](), list[str]()
    compared = api.compare(*runs)
    for name in predicted_by(runs[0])[1].load().overview(list(next(iter(compared.values())))):
        _print_overview(overview(runs, name), name, f".{predicted_by(runs[0])[1].decimals(name)}f")
    for other, figures in compared.items():
        entry = predicted_by(other)[1]
        for name, made in figures.items():
            decimals = entry.decimals(name)
            form, difference = f"+.{decimals}f", made.difference
            tests = ", ".join(f"{test} {p:.4f}" for test, p in made.tests.items())
            limits = interval(difference._asdict(), form)
            rows.append((other, name, f"{difference.value:{form}}", limits, tests))
            verdicts.append(f"{other}, {name}: {made.verdict(decimals)}")
    print(f"difference to {runs[0]}")
    print(columns(("run", "figure", "difference", "95 % interval", "p"), rows))
    print("", *verdicts, sep="\n")


def _print_overview(scored: Sequence[Any], name: str, form: str) -> None:
    """Models × inputs, as the deck's Table 4."""
    rows = list[tuple[str, ...]]()
    for run, model, inputs, figure, folds in scored:
        over = "–"
        if folds:
            mean, std, variance = (shown(folds[part], form) for part in ("mean", "std", "variance"))
            over = f"{mean} ± {std} (variance {variance})"
        value, limits = f"{figure['value']:{form}}", interval(figure, form)
        rows.append((run, model, inputs, value, limits, over, f"{figure['n']:,}"))
    print(columns(("run", "model", "input", name, "95 % interval", "over folds", "n"), rows), end="\n\n")


def run_probe(words: Sequence[str]) -> None:
    """How good a network's features are, without training it: few-shot, linear and nearest-neighbour probes."""
    parser = Parser("probe", run_probe.__doc__)
    parser.add_argument("run", help="Run folder or weights file of any known format, with or without a head.")
    help = "Data with labels. What it calls train, val and test is kept; what it lacks is cut as `regard train` does."
    parser.add_argument("data", help=help)
    probed = [entry for entry in tasks.TASKS if entry.probes]
    groups = [entry.probes for entry in probed] + [entry.settings.LoadOptions for entry in probed]
    there = add_options(parser, ((group.title, group) for group in groups))
    add_opening(parser, (entry.config for entry in probed), there)
    given = parse(parser, words)
    run, data = given.pop("run"), given.pop("data")
    require_path(run)
    entry, _ = tasks.choose(data, {})
    if not entry.probes:
        raise ConfigError(f"probes need images with labels, and this data is for {entry.name}", where=data)
    loading, rest = tasks.part_options(entry, given)
    names = {field.name for field in fields(entry.probes)}
    asked = checked_options(entry.probes, {name: rest.pop(name) for name in names & rest.keys()}, entry.name)
    loading = checked_options(entry.settings.LoadOptions, loading, entry.name)
    options = entry.probes(**asked).keywords()
    from regard import api

    result = api.probe(run, data, **options, **loading, **rest)
    print(columns(("probe", "shots", "accuracy", "95 % interval", "n", "over draws", "strength"), [
        (row.probe, row.shots or "all", f"{f.value:.4f}", f"{f.low:.4f} to {f.high:.4f}", f"{f.n:,}",
         "" if row.deviation is None else f"± {row.deviation:.4f}",
         "" if row.strength is None else f"{row.strength:g}")
        for row in result.rows for f in (row.accuracy,)
    ]))  # fmt: skip
    if "keep" in asked:
        print(asked["keep"])


def run_inspect(words: Sequence[str]) -> None:
    """Look into a network: filters, positions, attention distance (the ViT paper's Figure 7) and token norms."""
    parser = Parser("inspect", run_inspect.__doc__)
    parser.add_argument("run", help="Run folder or checkpoint file.")
    help = "Files, folders or globs. Default: up to 32 test images of the run's own data, if it is still there."
    parser.add_argument("inputs", nargs="*", help=help)
    add_options(parser, [(group.title, group) for group in (InspectOptions, LoadOptions)])
    for name, kind, help in (
        ("class", str, "Draw the input that most excites each of these classes."),
        ("head", int, "The same for attention heads: pairs of layer and head, both from 0."),
        ("token", int, "The same for patches: pairs of layer and patch, both from 0."),
    ):
        parser.add_argument(f"--excite-{name}", nargs="+", type=kind, metavar=name.upper(), help=help)
    given = parse(parser, words)
    run, inputs, quiet = given.pop("run"), given.pop("inputs", []), given.pop("quiet", False)
    excited: list[dict[str, Any]] = [{"target": name} for name in _several(given.pop("excite_class", ()))]
    for name in ("head", "token"):
        numbers = _several(given.pop(f"excite_{name}", ()))
        if len(numbers) % 2:
            what = f"--excite-{name} takes pairs of numbers, and {len(numbers)} are given"
            raise ConfigError(what, do=f"give layer and {name}, both from 0")
        excited += [{"layer": layer, name: n} for layer, n in zip(numbers[::2], numbers[1::2], strict=True)]
    require_path(run)
    loading = {field.name: given.pop(field.name) for field in fields(LoadOptions) if field.name in given}
    loading = checked_options(LoadOptions, loading, "inspect")
    options = InspectOptions(**checked_options(InspectOptions, given, "inspect"))
    require_ending(Path(options.out))
    from regard import api
    from regard.data import find_images
    from regard.explain.inspection import own_pictures

    predictor: Any = api.load(run, quiet=quiet, **loading)
    if not hasattr(predictor, "inspect"):
        predicts = predictor.model.config.predicts
        raise ConfigError(f"`regard inspect` is not for networks that predict {predicts}", where=run)
    images = find_images(inputs) if inputs else []
    if not inputs:
        try:
            most = {name: value for name, value in loading.items() if name == "max_megapixels"}
            images = own_pictures(run, predictor.preparation, **most)
        except RegardError as error:
            print(f"only what needs no images is shown: {error.what}", file=sys.stderr)
    inspection = predictor.inspect(images, registers=options.registers, quiet=quiet)
    inspection = inspection.with_excited(*(predictor.visualise(quiet=quiet, **what) for what in excited))
    if options.registers and inspection.attends and inspection.registered is None:
        print("there are no outlier tokens that registers could take", file=sys.stderr)
    print(inspection.save(options.out))
    print(inspection.describe())


def _several(values: Any) -> tuple[Any, ...]:
    """The values of a flag, of which `parse` gives a single one by itself."""
    return values if isinstance(values, tuple) else (values,)


def run_landscape(words: Sequence[str]) -> None:
    """Draw the training loss around a run's weights, in filter-normalised directions (Li et al. 2018)."""
    parser = Parser("landscape", run_landscape.__doc__)
    parser.add_argument("run", help="Run folder, with its checkpoints.")
    add_options(parser, [(LandscapeOptions.title, LandscapeOptions)])
    given = parse(parser, words)
    run, quiet = given.pop("run"), given.pop("quiet", False)
    options = checked_options(LandscapeOptions, given, "landscape")
    require_path(run)
    from regard import api

    surface = api.landscape(run, quiet=quiet, **options)
    losses = surface.losses
    print(f"loss {surface.centre:.4g} at the weights, {losses.min():.4g} to {losses.max():.4g} around them")
    print(surface.folder / "landscape.png")


def run_report(words: Sequence[str]) -> None:
    """Draw a run's figures and report anew from its files."""
    parser = Parser("report", run_report.__doc__, quiet=False)
    parser.add_argument("run", help="Run folder.")
    run = parse(parser, words)["run"]
    require_path(run)
    from regard import api
    from regard.run.folds import is_folds
    from regard.weights import Run

    folder = Run(Path(run)) if is_folds(run) else Run.open(run)
    api.report(folder)
    print(folder.path / "report.html")


def run_convert(words: Sequence[str]) -> None:
    """Write weights of any known format in another library's: its names, its shapes, its kind of file."""
    parser = Parser("convert", run_convert.__doc__, quiet=False)
    help = "Weights file (.safetensors, .npz, .pth, .pt, .bin, .ckpt), transformers folder, or run folder."
    parser.add_argument("file", help=help)
    parser.add_argument("out", help="What to write: .npz for google, a folder for hf, .safetensors for the others.")
    parser.add_argument("--to", choices=FORMATS, required=True, help="Format to write.")
    add_options(parser, [(ConvertOptions.title, ConvertOptions)])
    given = parse(parser, words)
    file, out, to = given.pop("file"), given.pop("out"), given.pop("to")
    options = checked_options(ConvertOptions, given, "convert")
    require_path(file)
    from regard.weights import convert

    report, written = convert(file, out, to, options.pop("model", None), options.pop("classes", None), **options)
    print(*report.lines(), sep="\n")
    print(f"{out}: {to} names, {'; '.join(written)}")


def run_models(words: Sequence[str]) -> None:
    """List the models."""
    parse(Parser("models", run_models.__doc__, quiet=False), words)
    from regard.registry import MODELS

    rows = [(n, f"{e.parameters:,}", "×".join(map(str, e.size)) or "words", e.paper) for n, e in MODELS.items()]
    print(columns(("name", "parameters (1000 classes, 37,000 words)", "input", "from"), rows))
