"""Commands that use what was made: to measure, predict, explain and convert."""

from __future__ import annotations

import sys
from collections.abc import Sequence, Sized
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from regard import tasks
from regard.cli.flags import Parser, Switch, add_opening, add_options, checked_options, parse
from regard.cli.making import Quiet, require_path
from regard.console import Progress, columns, interval, shown
from regard.errors import ConfigError, DataError, RegardError, refuse_failed
from regard.tasks.image_options import check_probe_options


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
        what = f"--{' and --'.join(printed)} is for what is printed: a file has the label and everything behind it"
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
    refuse_failed(failed)


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
    from regard import api
    from regard.data.volumes import is_nifti
    from regard.explain.draw import check_ending

    if not is_nifti(out):
        check_ending(out)
    predictor: Any = api.load(run, quiet=quiet, **loading)
    if not hasattr(predictor, "explain_inputs"):
        raise ConfigError("there is nothing to explain", where=run)
    predictor.explain_inputs(inputs, out, quiet=quiet, **options)


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


@dataclass
class Compare:
    """Whether runs are better than a first one, by paired tests on the same samples."""

    runs: Positional[tuple[str, ...]]
    """Runs, folders of --folds, or of `regard eval --out`; all others are compared with the first."""

    def run(self) -> None:
        for run in self.runs:
            require_path(run)
        from regard import api
        from regard.run.comparing import overview, predicted_by

        rows, verdicts = list[tuple[str, ...]](), list[str]()
        compared = api.compare(*self.runs)
        names = [name for name, made in next(iter(compared.values())).items()]
        for name in predicted_by(self.runs[0])[1].load().overview(names):
            self.print_overview(overview(self.runs, name), name)
        for other, figures in compared.items():
            entry = predicted_by(other)[1]
            for name, made in figures.items():
                decimals = entry.decimals(name)
                form, difference = f"+.{decimals}f", made.difference
                tests = ", ".join(f"{test} {p:.4f}" for test, p in made.tests.items())
                limits = interval(difference._asdict(), form)
                rows.append((other, name, f"{difference.value:{form}}", limits, tests))
                verdicts.append(f"{other}, {name}: {made.verdict(decimals)}")
        print(f"difference to {self.runs[0]}")
        print(columns(("run", "figure", "difference", "95 % interval", "p"), rows))
        print("", *verdicts, sep="\n")

    @staticmethod
    def print_overview(scored: Sequence[Any], name: str) -> None:
        """Models × inputs, as the deck's Table 4."""
        rows = list[tuple[str, ...]]()
        for run, model, inputs, figure, folds in scored:
            over = "–"
            if folds:
                mean, std, variance = (shown(folds[part]) for part in ("mean", "std", "variance"))
                over = f"{mean} ± {std} (variance {variance})"
            rows.append((run, model, inputs, f"{figure['value']:.4f}", interval(figure), over, f"{figure['n']:,}"))
        print(columns(("run", "model", "input", name, "95 % interval", "over folds", "n"), rows), end="\n\n")


@dataclass
class Probe:
    """How good a network's features are, without training it: few-shot, linear and nearest-neighbour probes."""

    run_folder: Positional[str]
    """Run folder or weights file of any known format, with or without a head."""
    data: Positional[str]
    """Data with labels. What it calls train, val and test is kept; what it lacks is cut as `regard train` does."""
    methods: str = "few_shot,linear,neighbours"
    """Which probes, with commas."""
    shots: str | None = None
    """Training images per class, with commas: 1,5,10. Default: as many of 1,5,10,25,50,100 as there are."""
    draws: int | None = None
    """How often the shots are drawn. Default: 5."""
    neighbours: int | None = None
    """Nearest training images that vote. Default: 20."""
    seed: int | None = None
    """Decides which images are drawn. Default: 0."""
    size: tuple[int, ...] | None = None
    """Size of the network's input: one number, or height and width. Default: as the weights say."""
    heads: int | None = None
    """Attention heads, where the file does not say."""
    image_column: str | None = None
    """Column of the table that holds the paths."""
    label_column: str | None = None
    """Column of the table that holds the labels."""
    label_pattern: str | None = None
    """Labels from file names: a regular expression whose first group is the label."""
    max_megapixels: float | None = None
    """Largest image that is decoded, in millions of pixels."""
    out: str | None = None
    """Folder to make for probe.json, probe.csv and probe.svg."""
    keep: str | None = None
    """Folder to make for a run of this network with the linear probe as its head: predict, eval and explain take it."""
    quiet: Quiet = False

    def run(self) -> None:
        require_path(self.run_folder)
        tasks.require_data(self.data)
        try:
            shots = None if self.shots is None else [int(word) for word in self.shots.split(",")]
        except ValueError:
            raise ConfigError(f"--shots {self.shots} are not numbers", do="give some with commas: 1,5,10") from None
        methods = self.methods.split(",")
        options = {"shots": shots, "draws": self.draws, "neighbours": self.neighbours, "seed": self.seed}
        check_probe_options(methods, **options)
        from regard import api

        result = api.probe(
            self.run_folder, self.data, methods=methods, **options, out=self.out, keep=self.keep,
            quiet=self.quiet, **_fields(self.size, self.heads), **self._how(),
        )  # fmt: skip
        print(columns(("probe", "shots", "accuracy", "95 % interval", "n", "over draws", "strength"), [
            (row.probe, row.shots or "all", f"{f.value:.4f}", f"{f.low:.4f} to {f.high:.4f}", f"{f.n:,}",
             "" if row.deviation is None else f"± {row.deviation:.4f}",
             "" if row.strength is None else f"{row.strength:g}")
            for row in result.rows for f in (row.accuracy,)
        ]))  # fmt: skip
        if self.keep:
            print(self.keep)

    def _how(self) -> dict[str, Any]:
        """How the data is read, as far as it is said."""
        names = ("image_column", "label_column", "label_pattern", "max_megapixels")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass
class Inspect:
    """Look into a network: filters, positions, attention distance (the ViT paper's Figure 7) and token norms."""

    run_folder: Positional[str]
    """Run folder or checkpoint file."""
    inputs: Positional[tuple[str, ...]] = ()
    """Files, folders or globs. Default: up to 32 test images of the run's own data, if it is still there."""
    registers: int = 0
    """Add this many test-time registers and show token norms before and after, where there are outliers."""
    excite_class: tuple[str, ...] = ()
    """Draw the input that most excites each of these classes."""
    excite_head: tuple[tuple[int, int], ...] = ()
    """The same for attention heads: pairs of layer and head, both from 0."""
    excite_token: tuple[tuple[int, int], ...] = ()
    """The same for patches: pairs of layer and patch, both from 0."""
    size: tuple[int, ...] | None = None
    """Input size in pixels: one number, or height and width. Default: as the weights say."""
    heads: int | None = None
    """Attention heads, where a weights file does not say."""
    max_megapixels: float | None = None
    """Largest image that is decoded, in millions of pixels. Default: 64, or as the run has it for its own."""
    out: str = "inspect.png"
    """Picture to write (.png, .svg or .pdf)."""
    quiet: Quiet = False

    def run(self) -> None:
        require_path(self.run_folder)
        from regard.data import find_images
        from regard.explain.draw import check_ending
        from regard.explain.inspection import own_pictures

        check_ending(Path(self.out))
        most: dict[str, Any] = {} if self.max_megapixels is None else {"max_megapixels": self.max_megapixels}
        predictor = _images(self.run_folder, quiet=self.quiet, **most, **_fields(self.size, self.heads))
        images = find_images(self.inputs) if self.inputs else []
        if not self.inputs:
            try:
                images = own_pictures(self.run_folder, predictor.preparation, **most)
            except RegardError as error:
                print(f"only what needs no images is shown: {error.what}", file=sys.stderr)
        inspection = predictor.inspect(images, registers=self.registers, quiet=self.quiet)
        wanted: list[dict[str, Any]] = [{"target": name} for name in self.excite_class]
        wanted += [{"layer": layer, "head": head} for layer, head in self.excite_head]
        wanted += [{"layer": layer, "token": token} for layer, token in self.excite_token]
        inspection = inspection.with_excited(*(predictor.visualise(quiet=self.quiet, **what) for what in wanted))
        if self.registers and inspection.attends and inspection.registered is None:
            print("there are no outlier tokens that registers could take", file=sys.stderr)
        print(inspection.save(self.out))
        print(inspection.describe())


@dataclass
class Landscape:
    """Draw the training loss around a run's weights, in filter-normalised directions (Li et al. 2018)."""

    run_folder: Positional[str]
    """Run folder, with its checkpoints."""
    directions: Literal[1, 2] = 2
    """Random directions: 2 for a surface, 1 for a line."""
    points: int = 17
    """Points along each direction, an odd number."""
    span: float = 1.0
    """How far to go: 1 is as far as the weights themselves are long."""
    samples: int = 256
    """The loss is the mean over so many samples, in whole batches."""
    split: Literal["train", "val"] = "train"
    """Whose samples; they are augmented as in training."""
    seed: int = 0
    """Seed of the directions."""
    data: str | None = None
    """The run's data, if it has been moved."""
    out: str | None = None
    """Folder for landscape.png, .svg, .csv and .json. Default: landscape in the run folder."""
    device: str = "auto"
    """cpu, cuda or auto."""
    quiet: Quiet = False

    def run(self) -> None:
        require_path(self.run_folder)
        from regard import api

        surface = api.landscape(
            self.run_folder, directions=self.directions, points=self.points, span=self.span, samples=self.samples,
            split=self.split, seed=self.seed, data=self.data, out=self.out, device=self.device, quiet=self.quiet,
        )  # fmt: skip
        losses = surface.losses
        print(f"loss {surface.centre:.4g} at the weights, {losses.min():.4g} to {losses.max():.4g} around them")
        print(surface.folder / "landscape.png")


@dataclass
class Report:
    """Draw a run's figures and report anew from its files."""

    run_folder: Positional[str]
    """Run folder."""

    def run(self) -> None:
        require_path(self.run_folder)
        from regard import api
        from regard.run.folds import is_folds
        from regard.weights import Run

        folder = Run(Path(self.run_folder)) if is_folds(self.run_folder) else Run.open(self.run_folder)
        api.report(folder)
        print(folder.path / "report.html")


@dataclass
class Convert:
    """Write weights of any known format in another library's: its names, its shapes, its kind of file."""

    file: Positional[str]
    """Weights file (.safetensors, .npz, .pth, .pt, .bin, .ckpt), transformers folder, or run folder."""
    out: Positional[str]
    """What to write: .npz for google, a folder for hf, .safetensors for the others."""
    to: Literal["regard", "timm", "hf", "torchvision", "google", "dinov2", "microsoft", "detr"]
    """Format to write."""
    model: str | None = None
    """Name of the model, where the file must hold it. Default: as the file's shapes say."""
    classes: int | None = None
    """Make a new head, of zeros, for so many classes."""
    size: tuple[int, ...] | None = None
    """Resample positions for inputs of this size: one number, or height and width."""
    heads: int | None = None
    """Attention heads, where neither the file nor the name says."""

    def run(self) -> None:
        require_path(self.file)
        from regard.weights import convert

        fields = _fields(self.size, self.heads)
        report, written = convert(self.file, self.out, self.to, self.model, self.classes, **fields)
        print(*report.lines(), sep="\n")
        print(f"{self.out}: {self.to} names, {'; '.join(written)}")


@dataclass
class Models:
    """List the models."""

    def run(self) -> None:
        from regard.registry import MODELS

        rows = [(n, f"{e.parameters:,}", "×".join(map(str, e.size)) or "words", e.paper) for n, e in MODELS.items()]
        print(columns(("name", "parameters (1000 classes, 37,000 words)", "input", "from"), rows))


def _fields(size: tuple[int, ...] | None, heads: int | None) -> dict[str, Any]:
    """Fields of the config that are given; one number is the size along every axis."""
    fields = {"size": size[0] if size and len(size) == 1 else size, "heads": heads}
    return {name: value for name, value in fields.items() if value is not None}


def _images(run: str, **options: Any) -> Any:
    """A predictor that can be inspected."""
    from regard import api

    predictor: Any = api.load(run, **options)
    if not hasattr(predictor, "inspect"):
        raise ConfigError("`regard inspect` is for networks that take images", where=run)
    return predictor
