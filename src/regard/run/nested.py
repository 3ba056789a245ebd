"""Settings chosen inside each fold of a cross-validation, without a look at the samples that the fold is tested on.

Every combination of the named values is trained without the fold and the next one, and scored on the next one; with the
best, the fold's network is then trained on all other folds, and it alone is tested.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.data.dataset import Dataset
from regard.data.splits import fold_splits
from regard.errors import ConfigError
from regard.run.runner import start
from regard.run.settle import check_settings
from regard.tasks import Entry

FIXED_GROUPS = ("general", "data", "machine")
FIXED = ("model", "weights", "size")
"""What is the same for all folds: data is read and dealt out once, and the report is of one network."""


def combinations(nested: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """
    >>> combinations({"lr": [1e-3, 1e-4], "depth": [2]})
    [{'lr': 0.001, 'depth': 2}, {'lr': 0.0001, 'depth': 2}]
    """
    return [dict(zip(nested, values, strict=True)) for values in itertools.product(*nested.values())]


def require_choosable(
    entry: Entry, settings: Mapping[str, Any], nested: Mapping[str, Sequence[Any]], folds: int
) -> None:
    """An error before any data is read for what cannot be chosen inside a fold."""
    if not nested:
        return
    entries = entry.config.entries()
    fixed = {field.name for group, field, _ in entries if group in FIXED_GROUPS or field.metadata["opens"]}
    for name, values in nested.items():
        if name in fixed.union(FIXED):
            do = "choose settings of the network, its training or augmentation; `regard compare` compares networks"
            raise ConfigError(f"{name} cannot be chosen inside the folds: it is the same for all of them", do=do)
        if name in settings:
            raise ConfigError(f"{name} is given, and to be chosen", do=f"leave --{name.replace('_', '-')} out")
        if len(values) < 2 or any(value in values[:n] for n, value in enumerate(values)):
            raise ConfigError(f"of {name} there is nothing to choose", do=f"give it two different values, {name}=A,B")
    if folds < 3:
        do = "give --folds at least 3: one to test on, one to choose on, and one to train on"
        raise ConfigError(f"folds={folds} leaves no fold to choose settings on", do=do)
    for some in combinations(nested):
        check_settings(entry, {**settings, **some})


def inner_splits(numbers: list[int], fold: int) -> list[str | None]:
    """Of what `fold` may see, the next fold to score settings on; the fold itself is not used."""
    following = fold % max(numbers) + 1
    return fold_splits([0 if number == fold else number for number in numbers], following)


def choose_settings(
    data: str, settings: Mapping[str, Any], nested: Mapping[str, Sequence[Any]], folder: Path, given: list[str | None],
    dataset: Dataset, quiet: bool,
) -> dict[str, Any]:  # fmt: skip
    """The best of the combinations, and what each of them scored; trials that have finished are kept."""
    some, scores, figure = combinations(nested), list[float](), ""
    for number, chosen in enumerate(some, start=1):
        own = {**settings, **chosen, "explain": 0, "out": str(folder / str(number))}
        run = start("train", data, own, dataset=dataset, quiet=quiet, resume=True, given=given)
        summary = run.read_json("summary.json")
        figure = "auroc" if "auroc" in summary["figures"] else summary["headline"][0]
        value = summary["figures"][figure]["value"]
        scores.append(math.nan if value is None else value)
    known = [-math.inf if math.isnan(score) else sign_of(figure) * score for score in scores]
    return {"chosen": some[known.index(max(known))], "figure": figure, "scores": scores}


def sign_of(figure: str) -> int:
    """-1 for errors, of which less is better."""
    return -1 if figure.startswith("mae") else 1
