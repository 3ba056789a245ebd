"""`regard study transfer-size` and `regard study transfer`: pre-training and what it brings on other data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard import registry, tasks
from regard.cli.flags import Parser, add_settings, at_least_one, parse
from regard.errors import ConfigError

KINDS = ("transfer-size", "transfer")
TUNE = "--tune-"


def run_transfer_study(words: Sequence[str]) -> None:
    """Transfer: how good a network is on other data than that which it was pre-trained on."""
    (_transfer_size if words[0] == "transfer-size" else _transfer)(words)


def _transfer_size(words: Sequence[str]) -> None:
    about = """Pre-train on growing subsets of data, then fine-tune on other data and probe there, for several models
(the ViT paper's Figures 3 and 4)."""
    more = """Any setting of the pre-training (`regard train` or `regard pretrain`) can be given, such as --steps,
--recipe, --lr or --size; those of the fine-tuning with --tune- before them: --tune-steps, --tune-epochs, --tune-lr.
--minutes: start no run after so many; the same command resumes."""
    parser = Parser("study", about, more)
    parser.add_argument("kind", choices=KINDS, help="What to compare.")
    parser.add_argument("data", nargs="+", help="Data to pre-train on, and data to transfer to.")
    _add_common(parser)
    parser.add_argument("--sizes", nargs="+", help="Numbers of pre-training images. Default: all, a half, a quarter, …")
    parser.add_argument(
        "--how", choices=("supervised", "masked"), help="Pre-train with labels, or by masking (ViT only)."
    )
    parser.add_argument("--shots", type=at_least_one, metavar="INT", help="Images per class of the probe (default: 5).")
    parser.add_argument(
        "--hold-classes", nargs="+", metavar="CLASS", help="Pre-train without these classes, and transfer to them."
    )
    add_settings(parser, [e.config for e in tasks.TASKS if e.config.takes == "image"], "none")
    plain, tuned = _without_tuning(words)
    given, tune = parse(parser, plain), _tuning(tuned)
    given.pop("kind")
    data, quiet = given.pop("data"), given.pop("quiet", False)
    if len(data) > 2:
        raise ConfigError(
            f"{len(data)} data sets are given", do="give the one to pre-train on and the one to transfer to"
        )
    from regard.cli.making import whole_numbers

    for path in data:
        tasks.require_data(path)
    options: dict[str, Any] = given
    if "models" in options:
        options["models"] = _list(options["models"])
    if "sizes" in options:
        options["sizes"] = whole_numbers("sizes", ",".join(_list(options["sizes"])))
    if "hold_classes" in options:
        options["hold_classes"] = _list(options["hold_classes"])
    if "model" in options:
        raise ConfigError("this study compares models", do="give --models instead of --model")
    from regard.study.transfer_curves import transfer_size

    _tell(transfer_size(*data, tune=tune, quiet=quiet, **options))


def _transfer(words: Sequence[str]) -> None:
    about = """Fine-tune several models on several data sets: mean ± deviation over runs, with compute (the ViT paper's
Table 2)."""
    more = """Any setting of `regard train` can be given, such as --steps, --epochs, --lr or --size.
--minutes: start no run after so many; the same command resumes."""
    parser = Parser("study", about, more)
    parser.add_argument("kind", choices=KINDS, help="What to compare.")
    parser.add_argument("data", nargs="+", help="Data sets, as for train.")
    _add_common(parser)
    add_settings(parser, _configs(), "none")
    given = parse(parser, words)
    given.pop("kind")
    data, quiet, models = given.pop("data"), given.pop("quiet", False), _list(given.pop("models", ()))
    if not models:
        raise ConfigError("no models are given", do="give --models with names, runs or files of weights")
    if "model" in given:
        raise ConfigError("this study compares models", do="give --models instead of --model")
    for path in data:
        tasks.require_data(path)
    for model in models:
        if not (Path(model).expanduser().exists() or Path(model).name != model or Path(model).suffix):
            registry.find(model)
    from regard.study.transfer_table import transfer

    _tell(transfer(data, models, quiet=quiet, **given))


def _add_common(parser: Parser) -> None:
    parser.add_argument("--models", nargs="+", help="Names of models; of `transfer` runs and files of weights too.")
    parser.add_argument(
        "--seeds", type=at_least_one, metavar="INT", help="Runs of each, with seeds 0, 1, … (default: 3)."
    )


def _configs() -> list[Any]:
    return [e.config for e in tasks.of_command("train") if e.config.takes == "image"]


def _without_tuning(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words without flags that begin with --tune- and their values, and those as flags of `regard train`."""
    plain, tuned, held = list[str](), list[str](), False
    for word in words:
        if word.startswith("--"):
            held = word.startswith(TUNE)
        (tuned if held else plain).append("--" + word[len(TUNE) :] if word.startswith(TUNE) else word)
    return plain, tuned


def _tuning(words: Sequence[str]) -> dict[str, Any]:
    parser = Parser("study", None)
    add_settings(parser, _configs(), "none")
    try:
        given = parse(parser, words)
    except ConfigError as error:
        raise ConfigError(f"of the fine-tuning (--tune-…): {error.what}", do=error.do) from None
    if "quiet" in given:
        raise ConfigError("--tune-quiet has no effect", do="give --quiet")
    return given


def _list(value: Any) -> tuple[str, ...]:
    """Words separated by spaces or commas."""
    words = [value] if isinstance(value, str) else list(value)
    return tuple(part for word in words for part in word.split(",") if part)


def _tell(result: Any) -> None:
    print(*result.summary(), sep="\n")
    print(result.out / "study.md")
