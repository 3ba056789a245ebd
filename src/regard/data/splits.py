"""Train, validation and test splits that do not leak."""

from collections import Counter

import numpy as np

from regard.data.random import uniforms
from regard.data.scanner import Scan
from regard.data.source import UNUSED
from regard.errors import DataError


def split(scan: Scan, seed: int, share: float = 0.15) -> tuple[list[str], str]:
    """A split ("train", "val" or "test") for every sample, and a sentence saying where it comes from.

    Splits of the source are kept. Missing ones are cut from the training split: `share` of it, the classes
    in proportion, samples of one group (a patient) or with equal pixels never separated. Images without labels
    are cut into train and val only: there is nothing to be tested on.
    """
    given = [sample.split for sample in scan.source.samples]
    names = [name or "train" for name in given]
    if scan.source.labelled and len(scan.source.classes) < 2:
        raise DataError("the data has one class only: there is nothing to tell apart", where=scan.source.name)
    if "train" not in names:
        raise DataError("the data has no training split", where=scan.source.name, do="add one called train")
    if not any(given) and not scan.source.labelled:
        _cut(scan, names, "val", share, seed, need=2)
        note = "the data names no splits"
    elif not any(given):
        _cut(scan, names, "test", share, seed, need=3)
        _cut(scan, names, "val", share / (1 - share), seed, need=2)
        note = "the data names no splits"
    elif "val" not in names:
        _cut(scan, names, "val", share, seed, need=2)
        note = "train and test are the data's own" if "test" in names else "train is the data's own"
    else:
        note = "train, val and test are the data's own" if "test" in names else "train and val are the data's own"
    made = [name for name in ("val", "test") if name in names and name not in given]
    if made:
        cut = " and ".join(f"{name} ({names.count(name)} of {len(names)} images)" for name in made)
        note += f"; {cut} cut with seed {seed}"
    if "test" not in names:
        note += "; there is no test split, so figures are on val, which also chose the weights"
    lacking = set(range(len(scan.source.classes))) - {
        s.label for s, name in zip(scan.source.samples, names, strict=True) if name == "train"
    }
    if lacking:
        raise DataError(
            f"classes without training images: {', '.join(scan.source.classes[n] for n in sorted(lacking))}",
            where=scan.source.name,
            do="add images of them to the training split, or remove them from the others",
        )
    return names, note


def keep_some(scan: Scan, names: list[str], count: int, seed: int) -> list[str]:
    """The same splits with `count` training samples left; the others become "unused".

    Balanced over classes, drawn by `seed`; smaller subsets are nested in larger ones.
    """
    pool = np.array([i for i, name in enumerate(names) if name == "train"])
    labels = np.array([scan.source.samples[i].label for i in pool])
    if not len(set(labels.tolist())) <= count <= len(pool):
        raise DataError(
            f"{count} training images cannot be drawn: there are {len(pool)}, of {len(set(labels.tolist()))} classes",
            where=scan.source.name,
            do="give --images a number between these two",
        )
    chance = uniforms(seed, 0, pool, 1, use=5)[:, 0]
    rank = np.empty(len(pool), dtype=np.int64)  # every class's first comes before any class's second
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        rank[own[np.argsort(chance[own], kind="stable")]] = np.arange(len(own))
    kept = set(pool[np.lexsort((chance, rank))[:count]].tolist())
    return [UNUSED if name == "train" and i not in kept else name for i, name in enumerate(names)]


def _cut(scan: Scan, names: list[str], new: str, share: float, seed: int, need: int) -> None:
    """Move about `share` of each class's training samples to split `new`, in place.

    What belongs together moves together. A class must have `need` independent members: at least one moves
    and `need` - 1 stay.
    """
    samples = scan.source.samples
    pool = [i for i, name in enumerate(names) if name == "train"]
    members: dict[int, list[int]] = {}
    for i, owner in zip(pool, _owners(scan, pool), strict=True):
        members.setdefault(owner, []).append(i)
    total, containing = Counter(samples[i].label for i in pool), Counter[int]()
    owners_of: dict[int, list[int]] = {label: [] for label in sorted(total)}
    for owner, own in members.items():  # a patient with images of several classes counts for the rarest
        labels = {samples[i].label for i in own}
        containing.update(labels)
        owners_of[min(labels, key=lambda c: (total[c], c))].append(owner)
    for label, list_of_owners in owners_of.items():
        if containing[label] < need:
            named = f"class {scan.source.classes[label]!r}" if scan.source.labelled else "the data"
            raise DataError(
                f"{named} has {containing[label]} independent "
                f"image{'s' * (containing[label] != 1)}: too few to train, choose and test on",
                where=scan.source.name,
                do="add images to it, remove the class, or give the splits yourself (train/val/test folders)",
            )
        owners = np.array(list_of_owners, dtype=np.int64)
        wanted, taken = share * sum(len(members[o]) for o in owners), 0
        shuffled = owners[np.argsort(uniforms(seed, label, owners, 1, use=4)[:, 0], kind="stable")].tolist()
        for position, owner in enumerate(shuffled):
            enough = taken + len(members[owner]) / 2 > wanted or len(shuffled) - position < need
            if position and enough:
                break
            taken += len(members[owner])
            for i in members[owner]:
                names[i] = new


def _owners(scan: Scan, pool: list[int]) -> list[int]:
    """For each sample, the first of those it must stay with: the same patient, or the same pixels."""
    owner = {i: i for i in pool}

    def root(i: int) -> int:
        while owner[i] != i:
            owner[i] = owner[owner[i]]
            i = owner[i]
        return i

    first: dict[str, int] = {}
    for i in pool:
        group = scan.source.samples[i].group
        for tag in ([f"group {group}"] if group else []) + [f"pixels {scan.digests[i]}"]:
            a, b = sorted((root(i), root(first.setdefault(tag, i))))
            owner[b] = a
    return [root(i) for i in pool]
