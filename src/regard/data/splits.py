"""Who trains, who chooses and who is only tested: splits that do not leak."""

import warnings

import numpy as np

from regard.data.scanner import Scan
from regard.errors import DataError


def split(scan: Scan, seed: int, share: float = 0.15) -> tuple[list[str], str]:
    """A split ("train", "val" or "test") for every sample, and a sentence saying where it comes from.

    What the source says is kept. What it lacks is cut from the training part: `share` of it, the classes
    in proportion, samples of one group (a patient) or with equal pixels never parted.
    """
    given = [sample.split for sample in scan.source.samples]
    if not any(given):
        names = ["train"] * len(given)
        _cut(scan, names, "test", share, seed, need=3)
        _cut(scan, names, "val", share / (1 - share), seed, need=2)
        return names, f"the data names no splits: test and val are about {share:.0%} each, cut with seed {seed}"
    names = [name or "train" for name in given]
    if "train" not in names:
        raise DataError("the data has no training split", where=scan.source.name, do="add one called train")
    if "val" in names:
        note = (
            "" if "test" in names else "; there is no test split, so figures are on val, which also chose the weights"
        )
        return names, f"train and val are the data's own{note}"
    _cut(scan, names, "val", share, seed, need=2)
    own = "train and test are" if "test" in names else "train is"
    return names, f"{own} the data's own; val is about {share:.0%} of train, cut with seed {seed}"


def _cut(scan: Scan, names: list[str], new: str, share: float, seed: int, need: int) -> None:
    """Move about `share` of the training samples to split `new`, in place; each class must have `need` to give."""
    from sklearn.model_selection import StratifiedGroupKFold

    samples = scan.source.samples
    pool = np.array([i for i, name in enumerate(names) if name == "train"])
    labels = np.array([samples[i].label for i in pool])
    # One owner per set of samples that must stay together: the same patient, or the same pixels.
    owner = {i: i for i in pool.tolist()}

    def root(i: int) -> int:
        while owner[i] != i:
            i = owner[i] = owner[owner[i]]
        return i

    together: dict[str, int] = {}
    for i in pool.tolist():
        group = samples[i].group
        for tag in ([f"group {group}"] if group else []) + [f"pixels {scan.digests[i]}"]:
            owner[root(i)] = root(together.setdefault(tag, i))
    groups = np.array([root(i) for i in pool.tolist()])
    for label in np.unique(labels):
        owners = len(set(groups[labels == label]))
        if owners < need:
            raise DataError(
                f"class {scan.source.classes[label]!r} has {owners} independent image{'s' * (owners != 1)}: "
                "too few to train, choose and test on",
                where=scan.source.name,
                do="add images to it, remove the class, or give the splits yourself (train/val/test folders)",
            )
    folds = min(max(2, round(1 / share)), len(set(groups)))
    splitter = StratifiedGroupKFold(n_splits=folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings():  # classes smaller than the number of folds are dealt with below
        warnings.simplefilter("ignore", UserWarning)
        _, chosen = next(iter(splitter.split(pool, labels, groups)))
    for label in set(labels) - set(labels[chosen]):  # its fold fell elsewhere: its smallest owner joins
        own = set(groups[labels == label])
        smallest = min(own, key=lambda g: (np.sum(groups == g), g))
        chosen = np.union1d(chosen, np.flatnonzero(groups == smallest))
    for i in pool[chosen].tolist():
        names[i] = new
