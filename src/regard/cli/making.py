"""Commands that make something of data: runs, and studies of many."""

from __future__ import annotations

import io
import os
import shlex
import sys
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

from tyro.conf import Positional, arg

from regard.cli.groups import grouped, ungrouped
from regard.config import PretrainConfig, RunConfig
from regard.config_text import TranslateConfig
from regard.console import columns
from regard.errors import ConfigError

Quiet = Annotated[bool, arg(help="Print results only.")]


@dataclass
class Demo:
    """The whole way on embedded data: train, evaluate, explain, report. No download."""

    name: Positional[str] = "digits"
    """Which demo: digits or translate."""
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
        _tell_run(api.demo(self.name, quiet=self.quiet, command=command_line(), **given))


@dataclass
class Check:
    """Read every image or sentence of a data set and say what is there, and what is wrong with it."""

    data: Positional[str]
    """A folder, .csv, .tsv, .npz or digits; a folder of parallel text, or dates."""
    source: str | None = None
    """Of parallel text: the language, or of a table the column, to translate from."""
    target: str | None = None
    """Of parallel text: the language, or of a table the column, to translate to."""

    def run(self) -> None:
        from regard import api
        from regard.data import Scan

        found = api.check(self.data, source=self.source, target=self.target)
        print(found.describe())
        if isinstance(found, Scan):
            found.require_readable()
        else:
            found.require_sound()


@dataclass
class Train:
    """Train a model and write a run folder with figures, explanations and a report."""

    data: Positional[str]
    """A folder of class folders, a .csv or .tsv with path and label, a MedMNIST .npz, or digits; for translation a
    folder with files such as train.en and train.de, a table of two columns, or dates."""
    settings: grouped(TranslateConfig)  # pyright: ignore[reportInvalidTypeForm]
    resume: bool = False
    """If --out already holds a run, go on with it."""
    dry_run: bool = False
    """Build everything, make one step and one batch of validation, print the plan, write nothing."""
    seeds: int = 1
    """Runs to make, each with the next seed, in OUT/seed0, OUT/seed1, … Those that have finished are kept."""
    ray: int | None = None
    """Train in so many processes that Ray starts, watches and replaces (docs/scaling.md). Needs --out."""
    quiet: Quiet = False
    config: ClassVar[type[RunConfig]] = TranslateConfig

    def run(self) -> None:
        from regard import api

        values, labelled = ungrouped(self.settings), self.config.labelled
        given = {name: values[name] for name in _flags(self.config)}
        if self.ray is not None:
            from regard.scaling import train_on_ray

            if self.dry_run or self.seeds != 1 or not labelled:
                raise ConfigError("--ray goes with neither --dry-run, --seeds nor pretrain", do="leave one of them out")
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(line_buffering=True)  # where Ray has its processes speak, into a file as well
            same: dict[str, Any] = {"quiet": self.quiet, "command": command_line(), "resume": self.resume}
            return _tell_run(train_on_ray(self.data, processes=self.ray, **same, **given))
        extra = {"quiet": self.quiet, "command": command_line(), "resume": self.resume, "dry_run": self.dry_run}
        if not labelled:
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
    settings: grouped(PretrainConfig)  # pyright: ignore[reportInvalidTypeForm]
    config: ClassVar[type[RunConfig]] = PretrainConfig


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
        _tell_run(api.resume(self.run_folder, data=self.data, quiet=self.quiet, command=command_line(), **given))


@dataclass
class StudyCommand:
    """Compare over several runs: models by amount of data, position embeddings, or where the norms stand.

    Or show why attention: the context bottleneck, 1/√d_k, what layers cost by length, and sinusoids. It takes no data.
    """

    kind: Positional[Literal["data-size", "positions", "norm", "attention"]]
    """What to compare."""
    settings: grouped(RunConfig)  # pyright: ignore[reportInvalidTypeForm]
    data: Positional[str] = ""
    """Data as for train; none for attention."""
    models: str = "vit_nano,resnet_nano"
    """data-size: the models, with commas between them."""
    sizes: str = ""
    """Numbers of training images, with commas. Default: for data-size all, a half, a quarter …; else all."""
    seeds: int = 3
    """Runs of each, with seeds 0, 1, …"""
    jobs: int = 1
    """Runs made at a time: small networks leave a GPU, or many cores, half idle."""
    quick: bool = False
    """attention: a small form of it, in seconds."""
    parts: str = ""
    """attention: some of sinusoids,gradients,costs,bottleneck. Default: all."""
    quiet: Quiet = False

    def run(self) -> None:
        from regard import study

        given = _flags(RunConfig)
        if self.kind == "attention":
            return self._attention(given)
        if not self.data:
            raise ConfigError(f"a study of {self.kind} needs data", do=f"give it: regard study {self.kind} DATA")
        for name in _flags(StudyCommand) & {"quick", "parts"}:
            raise ConfigError(f"--{name} is for `regard study attention`", do="leave it out")
        settings = {name: value for name, value in ungrouped(self.settings).items() if name in given}
        settings |= {"sizes": _whole_numbers("sizes", self.sizes), "seeds": self.seeds}
        if self.kind == "data-size":
            if "model" in given:
                raise ConfigError("this study compares models", do="give --models instead of --model")
            plan = study.data_size(self.data, tuple(self.models.split(",")), **settings)
        else:
            plan = {"positions": study.positions, "norm": study.norm}[self.kind](self.data, **settings)
        result = study.run_study(plan, jobs=self.jobs, quiet=self.quiet)
        print(columns((self.kind, "images", "accuracy", "deviation", "seeds"), [
            (p.arm, f"{p.images:,}", f"{p.mean:.4f}", "–" if p.deviation is None else f"{p.deviation:.4f}", p.seeds)
            for p in result.points
        ]))  # fmt: skip
        print(*result.summary(), sep="\n")
        print(plan.out / "study.md")

    def _attention(self, given: set[str]) -> None:
        from regard.study import attention_study

        if self.data:
            raise ConfigError(f"the attention study makes its own data, and {self.data!r} is none", do="leave it out")
        for name in sorted(given - {"out", "device"} | (_flags(StudyCommand) & {"models", "sizes", "jobs"})):
            raise ConfigError(f"the attention study has no --{name.replace('_', '-')}", do="leave it out")
        more = {name: value for name, value in ungrouped(self.settings).items() if name in given}
        if parts := tuple(word.strip() for word in self.parts.split(",") if word.strip()):
            more["parts"] = parts
        if "seeds" in _flags(StudyCommand):
            more["seeds"] = self.seeds
        found = attention_study(quick=self.quick, quiet=self.quiet, **more)
        print(*found.summary(), sep="\n")
        print(found.out / "study.md")


def _flags(cls: type) -> set[str]:
    """The fields of `cls` that the command line names, so that a flag can be told from a default."""
    flags = (spelt(word) for word in sys.argv[2:] if word.startswith("--"))
    words = {flag.split("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_") for flag in flags}
    return words & {f.name for f in fields(cls)}


def spelt(word: str) -> str:
    """`--from` for `--weights`: as Python's keyword it cannot be the name of a setting, and here it reads best."""
    flag, sign, value = word.partition("=")
    return f"--weights{sign}{value}" if flag == "--from" else word


def _whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """From words such as 250,500,1000."""
    words = [word for word in text.replace(" ", ",").split(",") if word]
    if not all(word.isdecimal() for word in words):
        raise ConfigError(f"{name}={text} are not whole numbers", do=f"give --{name} such as 250,500,1000")
    return tuple(map(int, words))


def command_line() -> str:
    return shlex.join(["regard", *sys.argv[1:]])


def _tell_run(run: Any) -> None:
    if os.environ.get("RANK", "0") != "0":
        return  # of several processes, the first one speaks
    figures = run.read_json("summary.json")["figures"]
    names = [name for name in ("accuracy", "reconstruction_loss", "bleu", "exact_match") if name in figures]
    for name in names:
        figure = figures[name]
        print(f"{name.replace('_', ' ')} {figure['value']:.4f} "
              f"(95 % interval {figure['low']:.4f} to {figure['high']:.4f}, n={figure['n']})")  # fmt: skip
    print(run.path / "report.html")
