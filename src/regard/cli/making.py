"""Commands that make something of data: runs, and studies of many."""

from __future__ import annotations

import io
import os
import sys
from argparse import SUPPRESS
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard import registry, tasks
from regard.cli.flags import (
    Parser,
    Shown,
    Switch,
    add_opening,
    add_setting,
    add_settings,
    at_least_one,
    at_least_two,
    parse,
    read_values,
)
from regard.cli.studying import KINDS, run_image_study
from regard.cli.transferring import KINDS as TRANSFERS
from regard.cli.transferring import run_transfer_study
from regard.console import columns, interval, quoted
from regard.errors import ConfigError, DataError, RunError, did_you_mean
from regard.run.settle import check_repeats, check_settings
from regard.settings import RunConfig


def run_demo(words: Sequence[str]) -> None:
    """The whole way on embedded data: train, evaluate, explain, report. No download."""
    parser = Parser("demo", run_demo.__doc__)
    parser.add_argument("name", nargs="?", help=f"Which demo: {', '.join(tasks.DEMOS)}. Default: digits.")
    helps = {
        "out": "Run folder to make.",
        "epochs": "Passes over the training data; fewer is quicker and worse.",
        "seed": "Seed of weights, order and augmentation.",
    }
    for _, entry, kind in RunConfig.entries():
        if entry.name in helps:
            add_setting(parser, entry.name, kind, helps[entry.name])
    given = parse(parser, words)
    name, quiet = given.pop("name", "digits"), given.pop("quiet", False)
    if name not in tasks.DEMOS:
        raise DataError(f"there is no demo called {name!r}", do=did_you_mean(name, tasks.DEMOS))
    RunConfig.of(given)
    from regard import api

    tell_run(api.demo(name, quiet=quiet, command=command_line(), **given))


DATA_HELP = """A folder of class folders, a .csv or .tsv with path and label (or numbers), a MedMNIST .npz, or digits;
of boxes a folder or file of COCO, YOLO or Pascal VOC;
of parallel text a folder with files such as train.en and train.de, a table of two columns, or dates."""

IMAGES_HELP = (
    "A folder of images, a .csv or .tsv with a column of paths, a MedMNIST .npz, or digits. Labels are not used."
)


@dataclass(frozen=True)
class Making:
    """A command that makes runs, and whether it can make several of the same settings."""

    command: str
    about: str | None
    data: str
    several: bool


def run_train(words: Sequence[str]) -> None:
    """Train a model and write a run folder with figures, explanations and a report."""
    _make(Making("train", run_train.__doc__, DATA_HELP, several=True), words)


def run_pretrain(words: Sequence[str]) -> None:
    """Train a model on images without labels, to fill in hidden patches; then fine-tune or probe it."""
    _make(Making("pretrain", run_pretrain.__doc__, IMAGES_HELP, several=False), words)


def _make(making: Making, words: Sequence[str]) -> None:
    """A run; of a command that can make several, also one per seed or fold."""
    command = making.command
    entries = tasks.of_command(command)[::-1]
    if "--help-all" in words:
        return _help_all(making, entries, [word for word in words if word != "--help-all"])
    given = parse(_parser(making, entries, "common"), words)
    data, ray = given.pop("data"), given.pop("ray", None)
    same: dict[str, Any] = {
        "quiet": given.pop("quiet", False),
        "command": command_line(),
        "resume": given.pop("resume", False),
    }
    dry_run, seeds = given.pop("dry_run", False), given.pop("seeds", 1)
    folds, jobs, retrain = given.pop("folds", 1), given.pop("jobs", 1), given.pop("retrain", 0)
    words = given.pop("nested", ())
    entry, _ = tasks.choose(data, given, command)
    check_settings(entry, given)
    nested = read_values(entry.config, [words] if isinstance(words, str) else words)
    if ray is not None:
        others = {"dry-run": dry_run, "seeds": seeds != 1, "jobs": jobs != 1}
        others |= {"retrain": retrain != 0 and folds == 1, "nested": bool(nested) and folds == 1}
        if unfit := [name for name, asked in others.items() if asked]:
            what = f"--ray trains one run or the folds of one, and does not go with --{' or --'.join(unfit)}"
            raise ConfigError(what, do="leave one of them out")
        from regard.run.ray import train_on_ray

        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # where Ray has its processes speak, into a file as well
        made = train_on_ray(data, processes=ray, folds=folds, retrain=retrain, nested=nested, **same, **given)
        return tell_run(made) if folds == 1 else tell_folds(made)
    check_repeats(seeds, folds, jobs, retrain, dry_run, bool(nested))
    from regard import api

    repeats: dict[str, Any] = {"seeds": seeds, "folds": folds, "jobs": jobs, "retrain": retrain, "nested": nested}
    repeats = repeats if making.several else {}
    made = getattr(api, command)(data, dry_run=dry_run, **repeats, **same, **given)
    if dry_run:
        return
    if folds != 1:
        return tell_folds(made)
    if seeds == 1:
        return tell_run(made)
    from regard.run.repeat import table

    print(table(made.read_json("summary.json")))
    print(made.path / "summary.json")


def _help_all(making: Making, entries: Sequence[tasks.Entry], words: Sequence[str]) -> None:
    """Every setting: of the task of the data and of the model, where the words name them."""
    model = None
    if words:
        given = parse(_parser(making, entries), words)
        entry, model = tasks.choose(given["data"], given, making.command)[0], given.get("model")
        check_settings(entry, {"model": model} if model else {})
        entries = [entry]
    _parser(making, entries, model=model).print_help()


def _parser(making: Making, entries: Sequence[tasks.Entry], shown: Shown = "all", model: str | None = None) -> Parser:
    more = f"""Recipes: {", ".join(name for entry in entries for name in entry.recipes)}.
A recipe may change the defaults; a run prints what it uses and writes it to config.json."""
    if shown == "common":
        more += f"\n`regard {making.command} DATA --help-all` shows every setting for that data."
    parser = Parser(making.command, making.about, more)
    parser.add_argument("data", help=making.data)
    parser.add_argument("--resume", action=Switch, help="If --out already holds a run, resume it.")
    parser.add_argument(
        "--dry-run", action=Switch, help="Build everything, make one step, print the plan, write nothing."
    )
    if making.several:
        parser.add_argument("--seeds", type=at_least_one, metavar="INT", help="Runs to make, each with the next seed.")
        parser.add_argument(
            "--folds",
            type=at_least_two,
            metavar="INT",
            help="Cross-validate: as many runs, each tested on its own fold.",
        )
        for name, help in (
            ("retrain", "With --folds: train all as many times again on exchanged outcomes, for the chance level."),
            ("jobs", "With --folds: folds at a time (default: 1)."),
            ("ray", "Train in this many processes, started by Ray; with --folds a fold in each. Needs --out."),
        ):
            about = SUPPRESS if shown == "common" else help
            kind = int if name == "retrain" else at_least_one
            parser.add_argument(f"--{name}", type=kind, metavar="INT", help=about)
        about = SUPPRESS if shown == "common" else "With --folds: each fold chooses among these values: lr=1e-3,5e-4."
        parser.add_argument("--nested", nargs="+", metavar="NAME=A,B", help=about)
    add_settings(parser, [entry.config for entry in entries], shown, model, _replaced(entries))
    return parser


def _replaced(entries: Sequence[tasks.Entry]) -> set[str]:
    """The settings whose defaults some recipe or the data changes."""
    names = {"epochs", "batch_size"}
    for entry in entries:
        usual = entry.config().flat()
        for recipe in entry.recipes.values():
            names |= {name for name, value in recipe().flat().items() if name in usual and value != usual[name]}
    return names


def run_check(words: Sequence[str]) -> None:
    """Read every sample of a data set and say what is there and what is wrong with it; refuse what train would."""
    parser = Parser("check", run_check.__doc__)
    parser.add_argument("data", help=DATA_HELP)
    add_opening(parser, (entry.config for entry in tasks.TASKS))
    _add_common(parser, "unreadable")
    given = parse(parser, words)
    data, quiet = given.pop("data"), given.pop("quiet", False)
    settings = check_settings(tasks.choose(data, given)[0], given)
    from regard import api

    try:
        dataset = api.check(data, quiet=quiet, **given)
    except DataError:
        _tell_dicom(Path(data))
        raise
    print(dataset.describe())
    dataset.require_usable(settings.data.unreadable)
    from regard.run.using import confounded, require_trainable

    for line in confounded(dataset, data, **given):
        print(f"warning: {line}")
    require_trainable(dataset, data, **given)


def _add_common(parser: Parser, *names: str) -> None:
    """Flags of settings that every task has."""
    for _, entry, kind in RunConfig.entries():
        if entry.name in names:
            add_setting(parser, entry.name, kind, entry.metadata["help"])


def _tell_dicom(folder: Path) -> None:
    """The series in a folder that has no table yet."""
    from regard.data.volumes.dicom import describe_dicom, dicom_folders

    if folders := dicom_folders(folder):
        print(describe_dicom(folder, folders))


def run_resume(words: Sequence[str]) -> None:
    """Resume a run exactly where it was stopped."""
    parser = Parser("resume", run_resume.__doc__)
    parser.add_argument("run", help="Run folder.")
    parser.add_argument("--data", metavar="DATA", help="Where its data is now. Default: where it was.")
    parser.add_argument("--workers", type=int, metavar="INT", help="Loader processes.")
    _add_common(parser, "device", "nonfinite", "timeout", "save_every")
    given = parse(parser, words)
    run, data, quiet = given.pop("run"), given.pop("data", None), given.pop("quiet", False)
    require_path(run)
    from regard import api

    tell_run(api.resume(run, data=data, quiet=quiet, command=command_line(), **given))


def run_study(words: Sequence[str]) -> None:
    """Compare over several runs: models by amount of data, positions, norms; or show why attention."""
    if words and words[0] in KINDS:
        return run_image_study(words)
    if words and words[0] in TRANSFERS:
        return run_transfer_study(words)
    about = """Compare over several runs: models by amount of data, position embeddings, or the placement of norms;
ablation: variations of the Transformer on parallel text (Table 3 of its paper); --minutes: start no run after so many.
Or show why attention: the context bottleneck, 1/√d_k, cost by length, and sinusoids. It takes no data."""
    more = """Any setting of `regard train` can be given too, such as --out, --steps, --recipe or --lr:
`regard train DATA --help-all` shows them.
Experiments with inputs of their own (`regard study KIND --help`): resolution, invariance, receptive-field,
batch-norm; transfer-size DATA OTHER (--how, --shots, --hold-classes, --tune-steps, --tune-epochs, --tune-lr) and
transfer DATA…: pre-training, and what it brings on other data."""
    parser = Parser("study", about, more)
    parser.add_argument(
        "kind", choices=("data-size", "positions", "norm", "ablation", "attention"), help="What to compare."
    )
    parser.add_argument("data", nargs="?", default="", help="Data as for train; none for attention.")
    parser.add_argument(
        "--models",
        help="data-size: the models, separated by commas. Default: vit_nano,resnet_nano or transformer_nano,rnn_nano.",
    )
    parser.add_argument("--sizes", help="Numbers of training images, or pairs, separated by commas.")
    parser.add_argument(
        "--seeds", type=at_least_one, metavar="INT", help="Runs of each, with seeds 0, 1, … (default: 3)."
    )
    parser.add_argument("--jobs", type=at_least_one, metavar="INT", help="Runs at a time (default: 1).")
    parser.add_argument("--quick", action=Switch, help="attention: a small version that takes seconds.")
    parser.add_argument(
        "--parts",
        help="attention: some of sinusoids,gradients,costs,scores,bottleneck; "
        "ablation: some of heads,keys,dropout,smoothing,positions. Default: all.",
    )
    add_settings(parser, [entry.config for entry in tasks.of_command("train")], "none")
    given = parse(parser, words)
    kind, data, quiet = given.pop("kind"), given.pop("data"), given.pop("quiet", False)
    if kind == "attention":
        return _attention(data, quiet, given)
    if not data:
        raise ConfigError(f"a study of {kind} needs data", do=f"give it: regard study {kind} DATA")
    if kind == "ablation":
        return _ablation(data, quiet, given)
    for name, kinds in {"quick": ("attention",), "parts": ("attention", "ablation")}.items():
        if name in given:
            where = " and ".join(f"`regard study {other}`" for other in kinds)
            raise ConfigError(f"--{name} is for {where}", do=f"leave --{name} out")
    jobs, models = given.pop("jobs", 1), _words(given.pop("models", ""))
    settings = given | {"sizes": whole_numbers("sizes", given.get("sizes", "")), "seeds": given.get("seeds", 3)}
    if kind == "data-size" and "model" in given:
        raise ConfigError("this study compares models", do="give --models instead of --model")
    if kind != "data-size" and models:
        raise ConfigError("--models is for `regard study data-size`", do="leave it out")
    tasks.require_data(data)
    for model in models:
        registry.find(model)
    from regard import study

    if kind == "data-size":
        plan = study.data_size(data, models, **settings)
    else:
        plan = {"positions": study.positions, "norm": study.norm}[kind](data, **settings)
    result = study.run_study(plan, jobs=jobs, quiet=quiet)
    for measure in plan.measures:
        print(columns((kind, plan.samples, measure.key, "deviation", "seeds"), [
            (p.arm, f"{p.images:,}", f"{p.mean:.4f}", "–" if p.deviation is None else f"{p.deviation:.4f}", p.seeds)
            for p in result.points_by(measure)
        ]))  # fmt: skip
    print(*result.summary(), sep="\n")
    print(plan.out / "study.md")


def _ablation(data: str, quiet: bool, given: dict[str, Any]) -> None:
    for name in sorted(given.keys() & {"quick", "models", "sizes"}):
        raise ConfigError(f"an ablation has no --{name}", do="leave it out")
    from regard.study import ablation

    if parts := _words(given.pop("parts", "")):
        given["rows"] = parts
    result = ablation(data, quiet=quiet, **given)
    print(*result.summary(), sep="\n")
    print(result.out / "study.md")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _attention(data: str, quiet: bool, given: dict[str, Any]) -> None:
    if data:
        raise ConfigError(f"the attention study makes its own data and takes no {data!r}", do="leave it out")
    for name in sorted(given.keys() - {"out", "device", "quick", "parts", "seeds"}):
        raise ConfigError(f"the attention study has no --{name.replace('_', '-')}", do="leave it out")
    from regard.study import attention_study

    if parts := _words(given.pop("parts", "")):
        given["parts"] = parts
    result = attention_study(quiet=quiet, **given)
    print(*result.summary(), sep="\n")
    print(result.out / "study.md")


def whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """From words such as 250,500,1000."""
    words = [word for word in str(text).replace(" ", ",").split(",") if word]
    if not all(word.isdecimal() and int(word) for word in words):
        raise ConfigError(
            f"{name}={text} are not whole numbers of at least 1", do=f"give --{name} such as 250,500,1000"
        )
    return tuple(map(int, words))


def require_path(path: str) -> None:
    """An error, before torch is imported, if a run or file of weights is not there."""
    if not Path(path).expanduser().exists():
        raise RunError("there is no such run or file", where=path, do="give the folder that `regard train` made")


def command_line() -> str:
    """What was typed, as one line for a shell."""
    return " ".join(["regard", *map(quoted, sys.argv[1:])])


def tell_folds(folder: Any) -> None:
    """The figures of every fold, and those of all."""
    from regard.run.folds import table

    print(table(folder.read_json("summary.json")))
    tell_run(folder)


def tell_run(run: Any) -> None:
    """The main figures and where the report is."""
    if os.environ.get("RANK", "0") != "0":
        return  # of several processes, the first one speaks
    summary = run.read_json("summary.json")
    for name in summary["headline"]:
        figure, form = summary["figures"][name], f".{tasks.find(summary['task']).decimals(name)}f"
        print(f"{name.replace('_', ' ')} {figure['value']:{form}} "
              f"(95 % interval {interval(figure, form)}, n={figure['n']})")  # fmt: skip
    if "whole" in summary:
        from regard.report.explanations import whole_figures

        print(whole_figures(summary))
    print(run.path / "report.html")
