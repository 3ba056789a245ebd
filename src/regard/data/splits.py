"""Splits that do not leak: one group-aware splitter for every kind of data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from typing import Any

import numpy as np

from regard.data.dataset import UNUSED, Dataset
from regard.data.random import uniforms
from regard.errors import ConfigError, DataError


def split(
    dataset: Dataset,
    seed: int,
    share: float = 0.15,
    most: int | None = None,
    given: list[str | None] | None = None,
) -> tuple[list[str], str]:
    """A split for every sample, and a sentence saying where it comes from; `given` replaces what the data says.

    Given splits are kept. Missing ones are cut from the training split: `share` of it (at most `most` samples), with
    the proportions of the strata. Samples of one group (a patient) or with equal contents stay in one split.
    """
    given = dataset.given_splits() if given is None else given
    names = [name or "train" for name in given]
    if "train" not in names:
        raise DataError("the data has no training split", where=dataset.name, do="add one called train")
    tests = sorted({name for name in names if name.startswith("test")})
    made: list[str] = []
    if not any(given) and dataset.tested:
        made, tests = ["test"], ["test"]
        _cut(dataset, names, "test", share, seed, most, need=3)
    if "val" not in names:
        made.append("val")
        _cut(dataset, names, "val", share / (1 - share) if len(made) == 2 else share, seed, most, need=2)
    own = [name for name in ("train", "val", *tests) if name in given]
    note = f"{_and(own)} {'are' if len(own) > 1 else 'is'} the data's own" if own else "the data names no splits"
    if made:
        total = f"{len(names)} {dataset.samples_word}"
        cut = _and([f"{name} ({names.count(name)} of {total})" for name in sorted(made, reverse=True)])
        note += f"; {cut} cut with seed {seed}"
    if not tests:
        note += "; there is no test split, so figures are on val, which also chose the weights"
    dataset.require_trainable(names)
    return names, note


def refuse_unused_cut(asked: Mapping[str, Any], given: Collection[str | None], where: object) -> None:
    """An error for settings of the cut that are asked for where the data names all splits, so that `split` cuts none.

    >>> refuse_unused_cut({"holdout": 0.3}, ["train", "test"], "data"), refuse_unused_cut({}, ["train", "val"], "data")
    (None, None)
    """
    for name in ("holdout", "split_seed"):
        if "val" in given and asked.get(name) is not None:
            flag = f"--{name.replace('_', '-')}"
            what = f"{flag} is not for this data: it names its own splits"
            raise ConfigError(what, where=where, do=f"leave {flag} out")


def _and(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def keep_some(dataset: Dataset, names: list[str], count: int, seed: int) -> list[str]:
    """The same splits with `count` training samples left; the others become "unused".

    As many per stratum as possible, drawn by `seed`; smaller subsets are nested in larger ones.
    """
    pool = np.array([i for i, name in enumerate(names) if name == "train"])
    strata = np.array(dataset.strata())[pool]
    if not len(set(strata.tolist())) <= count <= len(pool):
        word, least = dataset.samples_word, len(set(strata.tolist()))
        classes = f", of {least} classes" if least > 1 else ""
        raise DataError(
            f"{count} training {word} cannot be drawn: there are {len(pool)}{classes}",
            where=dataset.name,
            do=f"give --{word} a number from {least} to {len(pool)}",
        )
    chance = uniforms(seed, 0, pool, 1, use=5)[:, 0]
    rank = np.empty(len(pool), dtype=np.int64)  # every stratum's first comes before any stratum's second
    for stratum in np.unique(strata):
        own = np.flatnonzero(strata == stratum)
        rank[own[np.argsort(chance[own], kind="stable")]] = np.arange(len(own))
    kept = set(pool[np.lexsort((chance, rank))[:count]].tolist())
    return [UNUSED if name == "train" and i not in kept else name for i, name in enumerate(names)]


def assign_folds(dataset: Dataset, folds: int, seed: int) -> tuple[list[int], str]:
    """The fold of each sample, from 1 on, or 0 for the test split that the data names; and a sentence about it.

    Folds are alike in size and in the proportions of the strata. Samples of one group (a patient) or with equal
    contents are in one fold: the largest groups are dealt out first, each to the fold that lacks most of what it has.
    """
    given, marks = dataset.given_splits(), _marks(dataset)
    own = [i for i, name in enumerate(given) if not (name or "").startswith("test")]
    pool = [i for i in own if marks[i].any()]
    members = _members(dataset, pool)
    if len(members) < folds:
        what = f"{len(members)} independent {dataset.samples_word} cannot make {folds} folds"
        raise DataError(what, where=dataset.name, do="give fewer --folds, or more data")
    made = [0] * len(given)
    for owner, fold in _deal(dataset, members, marks, np.full(folds, 1 / folds), seed, use=6).items():
        for i in members[owner]:
            made[i] = fold + 1
    groups = "" if len(members) == len(pool) else f" in {len(members)} patients or groups of equal contents"
    note = f"{len(pool)} {dataset.samples_word}{groups} in {folds} folds of {_and(_sizes(made, folds))}"
    if bare := len(own) - len(pool):
        note += f"; {bare} without any label left out"
    if kept := len(given) - len(own):
        note += f"; the data's own test split ({kept}) stays out of the folds"
    if "val" in given:
        note += "; the data's own val is part of them"
    return made, note


def _marks(dataset: Dataset) -> np.ndarray:
    """(N, kinds): which strata or traits each sample has."""
    traits, strata = dataset.traits(), np.array(dataset.strata())
    return np.eye(strata.max() + 1)[strata] if traits is None else traits


def _members(dataset: Dataset, pool: list[int]) -> dict[int, list[int]]:
    """Samples that stay together, by the first of them."""
    members: dict[int, list[int]] = {}
    for i, owner in zip(pool, _owners(dataset, pool), strict=True):
        members.setdefault(owner, []).append(i)
    return members


def _deal(
    dataset: Dataset, members: dict[int, list[int]], marks: np.ndarray, shares: np.ndarray, seed: int, use: int
) -> dict[int, int]:
    """A part for each group of samples, so that every part has its share of the samples and of each mark.

    The largest groups are dealt out first, each to the part that lacks most of what it has. Of traits, which overlap,
    the owners of the rarest come first, so that as many parts as possible have it (Sechidis et al., 2011).
    """
    counts = {owner: marks[own].sum(0) for owner, own in members.items()}
    whole = np.sum(list(counts.values()), axis=0)
    total, samples, owners = np.maximum(whole, 1), sum(map(len, members.values())), np.array(list(members))
    chance = dict(zip(owners.tolist(), uniforms(seed, 0, owners, 1, use=use)[:, 0].tolist(), strict=True))
    rarest = dict.fromkeys(members, 0.0)
    if dataset.traits() is not None:
        rarest = {owner: float(whole[own > 0].min()) for owner, own in counts.items()}
    held, sizes, made = np.zeros((len(shares), marks.shape[1])), np.zeros(len(shares)), dict[int, int]()
    for owner in sorted(members, key=lambda o: (rarest[o], -len(members[o]), chance[o])):
        lack = ((held / total) @ counts[owner] + sizes / samples / 2) / shares
        part = int(np.argmin(np.round(lack, 12)))
        held[part] += counts[owner]
        sizes[part] += len(members[owner])
        made[owner] = part
    return made


def _sizes(made: list[int], folds: int) -> list[str]:
    return [str(made.count(fold + 1)) for fold in range(folds)]


def fold_splits(given: list[int], fold: int) -> list[str | None]:
    """What one fold's run is given: its own samples to test on, the others to train and choose on."""
    return [UNUSED if its == 0 else "test" if its == fold else "train" for its in given]


def _cut(dataset: Dataset, names: list[str], new: str, share: float, seed: int, most: int | None, need: int) -> None:
    """Move about `share` of each stratum's training samples to split `new`, in place.

    Groups move as a unit; a group larger than the number still needed stays. A stratum must
    have `need` independent members: at least one moves and `need` - 1 stay. Of overlapping traits, both parts get some
    of each where there are two; `require_trainable` has the last word.
    """
    strata, traits = dataset.strata(), dataset.traits()
    pool = [i for i, name in enumerate(names) if name == "train" and (traits is None or traits[i].any())]
    members = _members(dataset, pool)
    if traits is not None and len(members) >= need:
        part = share if most is None else min(share, most / len(pool))
        for owner, stays in _deal(dataset, members, traits, np.array([part, 1 - part]), seed, use=4).items():
            for i in members[owner] if not stays else ():
                names[i] = new
        return
    total, containing = Counter(strata[i] for i in pool), Counter[int]()
    owners_of: dict[int, list[int]] = {stratum: [] for stratum in sorted(total)}
    for owner, own in members.items():  # a patient with images of several classes counts for the rarest
        present = {strata[i] for i in own}
        containing.update(present)
        owners_of[min(present, key=lambda s: (total[s], s))].append(owner)
    for stratum, list_of_owners in owners_of.items():
        if containing[stratum] < need:
            raise DataError(
                f"{dataset.stratum_name(stratum)} has too few independent {dataset.samples_word} to train, choose and "
                f"test on: {containing[stratum]}",
                where=dataset.name,
                do="add some, leave these out, or give the splits yourself (train, val and test)",
            )
        owners = np.array(list_of_owners, dtype=np.int64)
        wanted = share * sum(len(members[o]) for o in owners)
        wanted = wanted if most is None else min(wanted, most)
        shuffled = owners[np.argsort(uniforms(seed, stratum, owners, 1, use=4)[:, 0], kind="stable")].tolist()
        fitting = [o for o in shuffled if len(members[o]) <= max(wanted, 1)] or [
            min(shuffled, key=lambda o: len(members[o]), default=0)
        ]
        taken = 0
        for position, owner in enumerate(fitting if shuffled else ()):
            enough = taken + len(members[owner]) / 2 > wanted or len(shuffled) - position < need
            if position and enough:
                break
            taken += len(members[owner])
            for i in members[owner]:
                names[i] = new


def _owners(dataset: Dataset, pool: list[int]) -> list[int]:
    """For each sample, the first sample of its group (union-find over `ties`)."""
    owner = {i: i for i in pool}

    def root(i: int) -> int:
        while owner[i] != i:
            owner[i] = owner[owner[i]]
            i = owner[i]
        return i

    first: dict[Hashable, int] = {}
    for i in pool:
        for tie in dataset.ties(i):
            a, b = sorted((root(i), root(first.setdefault(tie, i))))
            owner[b] = a
    return [root(i) for i in pool]
