"""Commands that use what was made: to measure, predict, explain and convert."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from regard.cli.making import Quiet
from regard.cli.words import explain_words, translate
from regard.console import Progress, columns
from regard.errors import ConfigError, DataError, RegardError


@dataclass
class Eval:
    """Figures with 95 % intervals for a trained model on data."""

    run_folder: Positional[str]
    """Run folder or checkpoint file."""
    data: Positional[str]
    """Data with labels."""
    split: str | None = None
    """Which samples: train, val, test, all, or a test set's name. Default: the test split if the data has one, else all
    that the run never trained on."""
    mirror: bool = False
    """Judge each image together with its mirror image: often a little better, for twice the work."""
    int8: bool = False
    """For translators on a CPU: products of eight bits, faster and a little less exact."""
    out: str | None = None
    """Write figures, per-class table and confusion matrix to this .json."""
    quiet: Quiet = False

    def run(self) -> None:
        from regard import api
        from regard.evaluation import Evaluation
        from regard.weights import to_json, write_text

        asked: dict[str, Any] = {"split": self.split, "mirror": self.mirror, "int8": self.int8}
        result = api.evaluate(self.run_folder, self.data, quiet=self.quiet, **asked)
        if self.out:
            write_text(Path(self.out), to_json(result.to_json()))
        print(columns(("figure", "value", "95 % interval", "n"), [
            (name, f"{f.value:.4f}", f"{f.low:.4f} to {f.high:.4f}", f"{f.n:,}") for name, f in result.figures.items()
        ]))  # fmt: skip
        if not isinstance(result, Evaluation):
            print(result.signatures["bleu"])
            return
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
    """Label images, or translate sentences."""

    run_folder: Positional[str]
    """Run folder or checkpoint file; for translation also the folder of an Opus-MT model."""
    inputs: Positional[tuple[str, ...]]
    """Files, folders or globs; for translation sentences, text files with one a line, or - for what is piped in."""
    out: str | None = None
    """Write a .csv or .json here instead of a table to the screen."""
    top: int = 3
    """Classes to show for each image."""
    best: int = 1
    """Translations to show for each sentence."""
    beams: int = 4
    """Sentences that the search for a translation goes on with."""
    int8: bool = False
    """For translation on a CPU: products of eight bits, faster and a little less exact."""

    def run(self) -> None:
        from regard import api
        from regard.data import find_images
        from regard.interpreter import Interpreter
        from regard.tasks import check_ending, save_predictions

        if self.out:
            check_ending(Path(self.out))
        loaded = api.load(self.run_folder, int8=self.int8)
        if isinstance(loaded, Interpreter):
            return translate(loaded, self.inputs, self.out, self.best, self.beams)
        failed: list[DataError] = []
        answers = list(loaded.predict_many(find_images(self.inputs), failed=failed))
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
    """Files, folders or globs; of a translator, sentences."""
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
    kind: str = "cross"
    """Of a translator: encoder, decoder, cross or rollout; --layer and --head choose within it."""
    form: Literal["both", "lines", "matrix", "heads"] = "both"
    """Of a translator: lines between words, a matrix, both, or a small matrix of every head."""
    out: str = "explanation.png"
    """Picture to write (.png, .svg or .pdf)."""
    quiet: Quiet = False

    def run(self) -> None:
        from regard import api
        from regard.data import find_images
        from regard.explain.draw import check_ending, draw_pages

        check_ending(Path(self.out))
        if api.translates(self.run_folder):
            return explain_words(self.run_folder, self.inputs, self.out, self.kind, self.layer, self.head, self.form)
        if self.mask and self.box:
            raise ConfigError("a mask and a box are given", do="give one of --mask and --box")
        options: dict[str, Any] = {
            "layer": self.layer, "head": self.head, "steps": self.steps, "window": self.window,
            "mask": self.mask or self.box,
        }  # fmt: skip
        options = {name: value for name, value in options.items() if value is not None}
        if not self.identity:
            options["identity"] = False
        predictor, made, failed, paths = api.load_images(self.run_folder), [], [], find_images(self.inputs)
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
             f"{e.scores.deletion:.3f}", f"{e.scores.random:.3f}", f"{e.random_correlation:+.2f}",
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
        predictor, images = api.load_images(self.run_folder), find_images(self.inputs) if self.inputs else []
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
class Models:
    """List the models."""

    def run(self) -> None:
        from regard.registry import MODELS

        rows = [(n, f"{e.parameters:,}", "×".join(map(str, e.size)) or "words", e.paper) for n, e in MODELS.items()]
        print(columns(("name", "parameters (1000 classes, 37,000 words)", "input", "from"), rows))


def _interval(figure: Any) -> str:
    if figure.value != figure.value:
        return "–"
    return f"{figure.value:.3f} ({figure.low:.3f} to {figure.high:.3f})"


def _tell_failures(failed: list[DataError]) -> None:
    """After the good ones are done: which could not be, as one error."""
    if failed:
        lines = "\n".join(f"    {error.where}: {error.what}" for error in failed)
        raise DataError(f"{len(failed)} images could not be read (any others are done):\n{lines}")
