"""The command line: flags in, API calls out, errors without tracebacks."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import OmitArgPrefixes, Positional, arg

from regard.config import PretrainConfig, RunConfig
from regard.console import Progress, columns
from regard.errors import ConfigError, DataError, RegardError, did_you_mean

Quiet = Annotated[bool, arg(help="Print results only.")]


@dataclass
class Demo:
    """The whole way on embedded data: train, evaluate, explain, report. No download."""

    name: Positional[str] = "digits"
    """Which demo: digits."""
    out: str | None = None
    """Run folder to make."""
    epochs: int | None = None
    """Passes over the training images; fewer is quicker and worse."""
    seed: int = 0
    """Seed of weights, order and augmentation."""
    quiet: Quiet = False

    def run(self) -> None:
        from regard import api

        settings = {"seed": self.seed, "out": self.out, "epochs": self.epochs}
        given = {name: value for name, value in settings.items() if value is not None}
        _tell_run(api.demo(self.name, quiet=self.quiet, command=_command(), **given))


@dataclass
class Check:
    """Read every image of a data set and say what is there, and what is wrong with it."""

    data: Positional[str]
    """A folder, .csv, .tsv, .npz, or digits."""

    def run(self) -> None:
        from regard import api

        found = api.check(self.data)
        print(found.describe())
        found.require_readable()


@dataclass
class Train:
    """Train a model and write a run folder with figures, explanations and a report."""

    data: Positional[str]
    """A folder of class folders, a .csv or .tsv with path and label, a MedMNIST .npz, or digits."""
    settings: OmitArgPrefixes[RunConfig]
    resume: bool = False
    """If --out already holds a run, go on with it."""
    dry_run: bool = False
    """Build everything, make one step and one batch of validation, print the plan, write nothing."""
    seeds: int = 1
    """Runs to make, each with the next seed, in OUT/seed0, OUT/seed1, … Those that have finished are kept."""
    ray: int | None = None
    """Train in so many processes that Ray starts, watches and replaces (docs/scaling.md). Needs --out."""
    quiet: Quiet = False

    def run(self) -> None:
        from regard import api

        given = {name: getattr(self.settings, name) for name in _flags(type(self.settings))}
        if self.ray is not None:
            from regard.scaling import train_on_ray

            if self.dry_run or self.seeds != 1 or not self.settings.labelled:
                raise ConfigError("--ray goes with neither --dry-run, --seeds nor pretrain", do="leave one of them out")
            same: dict[str, Any] = {"quiet": self.quiet, "command": _command(), "resume": self.resume}
            return _tell_run(train_on_ray(self.data, processes=self.ray, **same, **given))
        extra = {"quiet": self.quiet, "command": _command(), "resume": self.resume, "dry_run": self.dry_run}
        if not self.settings.labelled:
            made = api.pretrain(self.data, **extra, **given)
        else:
            made = api.train(self.data, seeds=self.seeds, **extra, **given)
        if self.dry_run:
            return
        if self.seeds == 1:
            _tell_run(made)
        else:
            from regard.evaluation import table

            print(table(made.read_json("summary.json")))
            print(made.path / "summary.json")


@dataclass
class Pretrain(Train):
    """Train a model on images without labels, to fill in hidden patches; then fine-tune or probe it."""

    data: Positional[str]
    """A folder of images, a .csv or .tsv with their paths, an .npz, or digits; labels are not used."""
    settings: OmitArgPrefixes[PretrainConfig]  # pyright: ignore[reportIncompatibleVariableOverride]


@dataclass
class Resume:
    """Go on with a run that was stopped, exactly where it was."""

    run_folder: Positional[str]
    """Run folder."""
    data: str | None = None
    """Where its data is now. Default: where it was."""
    workers: int | None = None
    """Loader processes. Default: as before, as the next settings."""
    device: Literal["auto", "cpu", "cuda", "mps"] | None = None
    """Where to run."""
    nonfinite: Literal["stop", "skip"] | None = None
    """A step whose loss or gradient is not finite is never made: stop there, or leave it out and count."""
    timeout: float | None = None
    """Seconds after which a process that does not answer the others is taken for lost."""
    quiet: Quiet = False

    def run(self) -> None:
        from regard import api

        changes = {name: getattr(self, name) for name in ("workers", "device", "nonfinite", "timeout")}
        given = {name: value for name, value in changes.items() if value is not None}
        _tell_run(api.resume(self.run_folder, data=self.data, quiet=self.quiet, command=_command(), **given))


@dataclass
class Eval:
    """Figures with 95 % intervals for a trained model on data."""

    run_folder: Positional[str]
    """Run folder or checkpoint file."""
    data: Positional[str]
    """Data with labels."""
    split: Literal["train", "val", "test", "all"] | None = None
    """Which images. Default: the test split if the data has one, else all that the run never trained on."""
    out: str | None = None
    """Write figures, per-class table and confusion matrix to this .json."""
    quiet: Quiet = False

    def run(self) -> None:
        from regard import api
        from regard.weights import to_json, write_text

        result = api.evaluate(self.run_folder, self.data, split=self.split, quiet=self.quiet)
        if self.out:
            write_text(Path(self.out), to_json(result.to_json()))
        print(columns(("figure", "value", "95 % interval", "n"), [
            (name, f"{f.value:.4f}", f"{f.low:.4f} to {f.high:.4f}", f"{f.n:,}") for name, f in result.figures.items()
        ]))  # fmt: skip
        print()
        measures = ("recall", "precision", "auroc")
        print(columns(("class", "n", *measures), [
            (name, row["recall"].n, *(_interval(row[m]) for m in measures))
            for name, row in result.summary.per_class.items()
        ]))  # fmt: skip
        if len(result.classes) <= 20:
            rows = [(name, *row) for name, row in zip(result.classes, result.summary.confusion, strict=True)]
            print("\nconfusion (rows true, columns predicted)")
            print(columns(("", *result.classes), rows))


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
    """Training images a class, with commas: 1,5,10. Default: as many of 1,5,10,25,50,100 as there are."""
    draws: int = 5
    """How often the shots are drawn."""
    neighbours: int = 20
    """Nearest training images that vote."""
    seed: int = 0
    """Decides which images are drawn."""
    size: tuple[int, ...] | None = None
    """Size of the network's input: one number, or height and width. Default: as the weights say."""
    heads: int | None = None
    """Attention heads, where the file does not say."""
    out: str | None = None
    """Folder to make for probe.json, probe.csv and probe.svg."""
    quiet: Quiet = False

    def run(self) -> None:
        from regard import api

        try:
            shots = None if self.shots is None else [int(word) for word in self.shots.split(",")]
        except ValueError:
            raise ConfigError(f"--shots {self.shots} are not numbers", do="give some with commas: 1,5,10") from None
        fields: dict[str, Any] = {"size": self.size and (self.size[0] if len(self.size) == 1 else self.size)}
        fields = {name: value for name, value in (fields | {"heads": self.heads}).items() if value is not None}
        result = api.probe(
            self.run_folder, self.data, methods=self.methods.split(","), shots=shots,
            draws=self.draws, neighbours=self.neighbours, seed=self.seed, out=self.out, quiet=self.quiet, **fields,
        )  # fmt: skip
        print(columns(("probe", "shots", "accuracy", "95 % interval", "n", "over draws", "strength"), [
            (row.probe, row.shots or "all", f"{f.value:.4f}", f"{f.low:.4f} to {f.high:.4f}", f"{f.n:,}",
             "" if row.deviation is None else f"± {row.deviation:.4f}",
             "" if row.strength is None else f"{row.strength:g}")
            for row in result.rows for f in (row.accuracy,)
        ]))  # fmt: skip


@dataclass
class Predict:
    """Label images."""

    run_folder: Positional[str]
    """Run folder or checkpoint file."""
    inputs: Positional[tuple[str, ...]]
    """Files, folders or globs."""
    out: str | None = None
    """Write a .csv or .json here instead of a table to the screen."""
    top: int = 3
    """Classes to show for each image."""

    def run(self) -> None:
        from regard import api
        from regard.data import find_images
        from regard.tasks import check_ending, save_predictions

        if self.out:
            check_ending(Path(self.out))
        failed: list[DataError] = []
        answers = list(api.load(self.run_folder).predict_many(find_images(self.inputs), failed=failed))
        if self.out and answers:
            print(save_predictions(answers, Path(self.out)))
        elif answers:
            top = min(self.top, len(answers[0].probs))
            rows = [(a.name, *(f"{c} {p:.1%}" for c, p in list(a.probs.items())[:top])) for a in answers]
            print(columns(("image", *(f"#{n + 1}" for n in range(top))), rows))
        _tell_failures(failed)


@dataclass
class Explain:
    """Show what a prediction was based on: input beside attention, and scores of the map."""

    run_folder: Positional[str]
    """Run folder or checkpoint file."""
    inputs: Positional[tuple[str, ...]]
    """Files, folders or globs."""
    method: str = "integrated_gradients"
    """integrated_gradients, attention, rollout, gradient_rollout, chefer, grad_cam or occlusion."""
    target: str | None = None
    """Class to explain. Default: the predicted one."""
    mask: str | None = None
    """Picture as large as the input, not zero where the cause is known to lie: the map is scored against it."""
    box: tuple[int, int, int, int] | None = None
    """The same as a box in pixels: top, left, bottom, right."""
    layer: int | None = None
    """attention: which layer, from 0; -1 is the last."""
    head: int | None = None
    """attention: which head. Default: the mean over heads."""
    identity: bool = True
    """rollout: count residual connections (Abnar & Zuidema); --no-identity is the ViT paper's D.8."""
    steps: int | None = None
    """integrated_gradients: points on the way from the mean picture to the input. Default: 32."""
    window: int | None = None
    """occlusion: tokens covered at a time along each axis. Default: 1."""
    out: str = "explanation.png"
    """Picture to write (.png, .svg or .pdf)."""
    quiet: Quiet = False

    def run(self) -> None:
        from regard import api
        from regard.data import find_images
        from regard.explain.draw import check_ending, draw_pages

        check_ending(Path(self.out))
        if self.mask and self.box:
            raise ConfigError("a mask and a box are given", do="give one of --mask and --box")
        options: dict[str, Any] = {
            "layer": self.layer, "head": self.head, "steps": self.steps, "window": self.window,
            "mask": self.mask or self.box,
        }  # fmt: skip
        options = {name: value for name, value in options.items() if value is not None}
        if not self.identity:
            options["identity"] = False
        predictor, made, failed, paths = api.load(self.run_folder), [], [], find_images(self.inputs)
        with Progress(self.quiet).bar("explaining", len(paths)) as tick:
            for number, path in enumerate(paths, start=1):
                try:
                    made.append(predictor.explain(path, method=self.method, target=self.target, **options))
                except DataError as error:
                    failed.append(error)
                tick(number)
        for page in draw_pages(made, Path(self.out)) if made else ():
            print(page)
        header = ("image", "predicted", "insertion (high)", "deletion (low)", "random map", "like random weights (low)")
        masked = ("map inside (area inside)",) if any(e.location for e in made) else ()
        print(columns((*header, *masked, "verdict"), [
            (e.prediction.name, f"{e.prediction.label} {e.prediction.confidence:.1%}", f"{e.scores.insertion:.3f}",
             f"{e.scores.deletion:.3f}", f"{e.scores.random:.3f}", f"{e.likeness:+.2f}",
             *(f"{e.location.share:.0%} ({e.location.area:.0%})" for _ in masked if e.location), e.verdict)
            for e in made
        ]))  # fmt: skip
        _tell_failures(failed)


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
    out: str = "inspect.png"
    """Picture to write (.png, .svg or .pdf)."""
    quiet: Quiet = False

    def run(self) -> None:
        from regard import api
        from regard.data import find_images
        from regard.explain.draw import check_ending
        from regard.explain.inspection import own_pictures

        check_ending(Path(self.out))
        predictor, images = api.load(self.run_folder), find_images(self.inputs) if self.inputs else []
        if not self.inputs:
            try:
                images = own_pictures(self.run_folder, predictor.preparation)
            except RegardError as error:
                print(f"only what needs no images is shown: {error.what}", file=sys.stderr)
        found = predictor.inspect(images, registers=self.registers, quiet=self.quiet)
        wanted: list[dict[str, Any]] = [{"target": name} for name in self.excite_class]
        wanted += [{"layer": layer, "head": head} for layer, head in self.excite_head]
        wanted += [{"layer": layer, "token": token} for layer, token in self.excite_token]
        found = found.with_excited(*(predictor.visualise(quiet=self.quiet, **what) for what in wanted))
        if self.registers and found.attends and found.registered is None:
            print("there are no outlier tokens that registers could take", file=sys.stderr)
        print(found.save(self.out))
        print(found.describe())


@dataclass
class Report:
    """Draw a run's figures and report anew from its files."""

    run_folder: Positional[str]
    """Run folder."""

    def run(self) -> None:
        from regard.report import write_report
        from regard.weights import Run

        folder = Run.open(self.run_folder)
        write_report(folder)
        print(folder.path / "report.html")


@dataclass
class Convert:
    """Write weights of any known format in another library's: its names, its shapes, its kind of file."""

    file: Positional[str]
    """Weights file (.safetensors, .npz, .pth, .pt, .bin, .ckpt), transformers folder, or run folder."""
    out: Positional[str]
    """What to write: .npz for google, a folder for hf, .safetensors for the others."""
    to: Literal["regard", "timm", "hf", "torchvision", "google", "dinov2"]
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
        from regard.weights import convert

        fields: dict[str, Any] = {
            "heads": self.heads,
            "size": self.size[0] if self.size and len(self.size) == 1 else self.size,
        }
        fields = {name: value for name, value in fields.items() if value is not None}
        report, written = convert(self.file, self.out, self.to, self.model, self.classes, **fields)
        print(*report.lines(), sep="\n")
        print(f"{self.out}: {self.to} names, {'; '.join(written)}")


@dataclass
class StudyCommand:
    """Compare over several runs: models by amount of data, position embeddings, or where the norms stand."""

    kind: Positional[Literal["data-size", "positions", "norm"]]
    """What to compare."""
    data: Positional[str]
    """Data as for train."""
    settings: OmitArgPrefixes[RunConfig]
    models: str = "vit_nano,resnet_nano"
    """data-size: the models, with commas between them."""
    sizes: str = ""
    """Numbers of training images, with commas. Default: for data-size all, a half, a quarter …; else all."""
    seeds: int = 3
    """Runs of each, with seeds 0, 1, …"""
    quiet: Quiet = False

    def run(self) -> None:
        from regard import study

        given = _flags(RunConfig)
        settings: dict[str, Any] = {
            f.name: getattr(self.settings, f.name) for f in fields(RunConfig) if f.name in given
        }
        settings |= {"sizes": _whole_numbers("sizes", self.sizes), "seeds": self.seeds}
        if self.kind == "data-size":
            if "model" in given:
                raise ConfigError("this study compares models", do="give --models instead of --model")
            plan = study.data_size(self.data, tuple(self.models.split(",")), **settings)
        else:
            plan = {"positions": study.positions, "norm": study.norm}[self.kind](self.data, **settings)
        result = study.run_study(plan, quiet=self.quiet)
        print(columns((self.kind, "images", "accuracy", "deviation", "seeds"), [
            (p.arm, f"{p.images:,}", f"{p.mean:.4f}", "–" if p.deviation is None else f"{p.deviation:.4f}", p.seeds)
            for p in result.points
        ]))  # fmt: skip
        print(*result.says(), sep="\n")
        print(plan.out / "study.md")


@dataclass
class Models:
    """List the models."""

    def run(self) -> None:
        from regard.registry import MODELS

        rows = [(n, f"{e.parameters:,}", "×".join(map(str, e.size)), e.paper) for n, e in MODELS.items()]
        print(columns(("name", "parameters, 1000 classes", "input", "from"), rows))


COMMANDS: dict[str, type] = {
    "demo": Demo, "check": Check, "train": Train, "pretrain": Pretrain, "resume": Resume, "eval": Eval,
    "probe": Probe, "predict": Predict, "explain": Explain, "inspect": Inspect, "report": Report,
    "convert": Convert, "study": StudyCommand, "models": Models,
}  # fmt: skip


def main() -> None:
    """Run one command. Errors the user can mend print without a traceback (unless --debug) and exit with 2."""
    words = sys.argv[1:]
    debug = "--debug" in words
    words = [_spelt(word) for word in words if word != "--debug"]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what is open is closed on the way
    try:
        if words == ["--version"]:
            from regard import __version__

            print(__version__)
            return
        if words and not words[0].startswith("-") and words[0] not in COMMANDS:
            raise ConfigError(f"there is no command {words[0]!r}", do=did_you_mean(words[0], COMMANDS))
        command: Any = tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="regard",
            description="Vision transformers: train, evaluate, predict, explain. --debug shows tracebacks.",
            args=words or ["--help"],
            config=(tyro.conf.PositionalMetavarFromFieldName,),
        )
        command.run()
    except RegardError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()


def _flags(cls: type) -> set[str]:
    """The fields of `cls` that the command line names, so that a flag can be told from a default."""
    flags = (_spelt(word) for word in sys.argv[2:] if word.startswith("--"))
    words = {flag.split("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_") for flag in flags}
    return words & {f.name for f in fields(cls)}


def _spelt(word: str) -> str:
    """`--from` for `--weights`: as Python's keyword it cannot be the name of a setting, and here it reads best."""
    flag, sign, value = word.partition("=")
    return f"--weights{sign}{value}" if flag == "--from" else word


def _whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """From words such as 250,500,1000."""
    words = [word for word in text.replace(" ", ",").split(",") if word]
    if not all(word.isdecimal() for word in words):
        raise ConfigError(f"{name}={text} are not whole numbers", do=f"give --{name} such as 250,500,1000")
    return tuple(map(int, words))


def _command() -> str:
    return shlex.join(["regard", *sys.argv[1:]])


def _interval(figure: Any) -> str:
    if figure.value != figure.value:
        return "–"
    return f"{figure.value:.3f} ({figure.low:.3f} to {figure.high:.3f})"


def _tell_failures(failed: list[DataError]) -> None:
    """After the good ones are done: which could not be, as one error."""
    if failed:
        lines = "\n".join(f"    {error.where}: {error.what}" for error in failed)
        raise DataError(f"{len(failed)} images could not be read (any others are done):\n{lines}")


def _tell_run(run: Any) -> None:
    if os.environ.get("RANK", "0") != "0":
        return  # of several processes, the first one speaks
    figures = run.read_json("summary.json")["figures"]
    name = "accuracy" if "accuracy" in figures else "reconstruction_loss"
    figure = figures[name]
    print(f"{name.replace('_', ' ')} {figure['value']:.4f} "
          f"(95 % interval {figure['low']:.4f} to {figure['high']:.4f}, n={figure['n']})")  # fmt: skip
    print(run.path / "report.html")
