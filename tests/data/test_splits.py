"""Splits keep what the data says, hold classes in proportion, and never part what belongs together."""

import numpy as np
import pytest
import torch
from sklearn.model_selection import StratifiedGroupKFold

from regard import tasks
from regard.data import Sample, Source, keep_some, open_source, scan, split
from regard.data.dataset import Dataset
from regard.data.scanner import ImageDataset
from regard.data.splits import assign_folds, fold_splits
from regard.data.text import TextDataset
from regard.errors import DataError
from tests.conftest import make_folder

TASK = tasks.find("classification")


def made(samples: list[Sample], classes=("a", "b"), digests=None) -> ImageDataset:
    source = Source("made", "made", "", classes, tuple(samples), lambda i: (torch.zeros(1, 2, 2), "L"))
    return ImageDataset(source, digests=digests or [str(n) for n in range(len(samples))])


def grouped(kind: str, groups: int = 60) -> tuple[Dataset, list[int]]:
    """Data of one kind in groups of two to five samples that must stay together, and the group of each sample."""
    group = [g for g in range(groups) for _ in range(2 + g % 4)]
    count = len(group)
    if kind == "images":
        return made([Sample(str(n), n % 2, group=f"patient {g}") for n, g in enumerate(group)]), group
    sources = [f"Sentence {g}" if n % 2 else f"sentence  {g}" for n, g in enumerate(group)]
    targets = [f"Satz {n}" for n in range(count)]
    return TextDataset("made", "made", "", "en", "de", sources, targets, [""] * count, list(range(count))), group


@pytest.mark.parametrize("kind", ["images", "text"])
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_one_splitter_for_images_and_text(kind, share):
    """Groups stay whole, the share is what was asked for, the seed alone decides."""
    data, group = grouped(kind)
    names, note = split(data, 0, share)
    assert len(set(zip(group, names, strict=True))) == len(set(group)), "no group is in two splits"
    for name in ("val", "test"):
        assert names.count(name) == pytest.approx(share * len(names), abs=4)
    assert names == split(data, 0, share)[0]
    assert names != split(data, 1, share)[0]
    assert note.startswith(f"the data names no splits; val ({names.count('val')} of {len(names)} {data.samples_word})")


@pytest.mark.parametrize(("name", "kind"), [("classification", "images"), ("translation", "text")])
def test_the_settings_holdout_and_split_seed_reach_the_splitter(name, kind):
    task, (data, _) = tasks.find(name), grouped(kind)
    for holdout in (0.05, 0.25):
        names, _ = task.load().split(data, task.config.of(holdout=holdout, split_seed=3))
        assert names == split(data, 3, holdout)[0]
        assert names.count("test") == pytest.approx(holdout * len(names), abs=4)


def test_three_way_split_in_proportion_and_the_same_every_time():
    found = made([Sample(str(n), int(n % 5 == 0)) for n in range(200)])
    names, note = split(found, seed=0)
    assert names == split(found, seed=0)[0]
    assert names != split(found, seed=1)[0]
    assert "names no splits" in note
    for name in ("val", "test"):
        assert names.count(name) == pytest.approx(30, abs=6)
        rare = sum(n == name and s.label for n, s in zip(names, found.source.samples, strict=True))
        assert rare == pytest.approx(names.count(name) / 5, abs=2)


def test_equal_pixels_are_never_parted():
    found = made([Sample(str(n), n % 2) for n in range(100)], digests=[str(n // 4) for n in range(100)])
    names, _ = split(found, seed=0)
    assert not found.crossing(names)


def test_every_class_reaches_every_split():
    found = made([Sample(str(n), 0) for n in range(60)] + [Sample(f"b{n}", 1) for n in range(3)])
    names, _ = split(found, seed=0)
    assert {names[60], names[61], names[62]} == {"train", "val", "test"}


def test_given_splits_are_kept(tmp_path):
    for name in ("train", "test"):
        make_folder(tmp_path / name, per_class=10 if name == "train" else 4)
    found = scan(open_source(tmp_path))
    names, note = split(found, seed=0)
    assert [n == "test" for n in names] == [s.split == "test" for s in found.source.samples]
    assert names.count("val") >= 2
    assert "val (4 of 28 images) cut with seed 0" in note


def test_without_a_test_split_the_note_warns():
    samples = [Sample(str(n), n % 2, "train" if n < 8 else "val") for n in range(12)]
    assert "no test split" in split(made(samples), 0)[1]


def test_too_few_images_of_a_class_are_named():
    with pytest.raises(DataError, match="class 'b' has too few independent images to train, choose and test on: 1"):
        split(made([Sample(str(n), int(n == 9)) for n in range(10)]), 0)


def test_without_training_data_there_is_nothing_to_do():
    with pytest.raises(DataError, match="no training split"):
        split(made([Sample(str(n), n % 2, "test") for n in range(10)]), 0)


def test_patients_with_images_of_both_classes_can_be_split():
    found = made([Sample(str(n), n % 2, group=f"patient {n // 4}") for n in range(80)])
    names, _ = split(found, 0)
    assert not found.groups_across_splits(names)
    for name in ("train", "val", "test"):
        assert {s.label for s, n in zip(found.source.samples, names, strict=True) if n == name} == {0, 1}


def test_patients_parted_by_the_data_itself_are_reported():
    samples = [Sample(str(n), n % 2, "train" if n < 30 else "test", group=f"p{n % 20}") for n in range(40)]
    assert made(samples).groups_across_splits([s.split or "" for s in samples]) == [
        f"p{n}" for n in sorted(map(str, range(10, 20)))
    ]


def test_six_images_a_class_are_enough():
    names, _ = split(made([Sample(str(n), n % 2) for n in range(12)]), 0)
    assert (names.count("test"), names.count("val")) == (2, 2)


def test_a_class_missing_from_training_is_named():
    samples = [Sample(str(n), n % 2, "train" if n % 2 == 0 else "test") for n in range(40)]
    with pytest.raises(DataError, match="classes without training images: b"):
        split(made(samples), 0)


def test_one_class_is_nothing_to_learn():
    with pytest.raises(DataError, match="one class only"):
        TASK.load().split(made([Sample(str(n), 0) for n in range(40)], classes=("a",)), TASK.config())


def test_the_split_is_quick_for_many_images_and_classes():
    found = made([Sample(str(n), n % 200) for n in range(20_000)], classes=tuple(str(n) for n in range(200)))
    names, _ = split(found, 0)
    assert names.count("test") == names.count("val") == 3000


def test_some_training_images_are_drawn_nested_and_as_many_of_each_class():
    """Class 1 has only four: it gives all of them, and the others make up the rest."""
    samples = [
        Sample(str(n), 0 if n < 60 else 2 if n < 96 else 1, "test" if n % 10 == 9 else "train") for n in range(100)
    ]
    found = made(samples, classes=("a", "b", "c"))
    given = [sample.split or "" for sample in samples]
    draws = {count: keep_some(found, given, count, seed=0) for count in (3, 9, 10, 40, given.count("train"))}
    before: set[int] = set()
    for count, names in draws.items():
        kept = {i for i, name in enumerate(names) if name == "train"}
        assert len(kept) == count
        assert before < kept
        before = kept
        assert [i for i, name in enumerate(names) if name == "test"] == list(range(9, 100, 10))
    tally = [[sum(samples[i].label == c and n == "train" for i, n in enumerate(names)) for c in range(3)]
             for names in draws.values()]  # fmt: skip
    assert tally[:2] == [[1, 1, 1], [3, 3, 3]]
    assert sorted(tally[2]) == [3, 3, 4]
    assert tally[3][1] == 3
    assert abs(tally[3][0] - tally[3][2]) <= 1
    assert draws[given.count("train")] == given
    assert keep_some(found, given, 9, seed=1) != draws[9]
    for wrong in (2, 91):
        with pytest.raises(DataError, match="cannot be drawn: there are 90, of 3 classes"):
            keep_some(found, given, wrong, seed=0)


def test_images_left_out_are_no_leak():
    found = made([Sample(str(n), n % 2, group="one") for n in range(4)], digests=["same"] * 4)
    names = ["train", "train", "unused", "unused"]
    assert not found.crossing(names)
    assert not found.groups_across_splits(names)
    assert found.crossing(["train", "test", "unused", "unused"])


def spread_of(folds: np.ndarray, labels: np.ndarray, count: int) -> float:
    """How far the folds' shares of a class are from equal, at most."""
    shares = [np.bincount(folds[labels == c], minlength=count) / (labels == c).sum() for c in np.unique(labels)]
    return float(np.abs(np.array(shares) - 1 / count).max())


@pytest.mark.parametrize("folds", [3, 5])
def test_folds_are_as_balanced_as_those_of_scikit_learn_and_part_no_patient(folds):
    draw, own, theirs = np.random.default_rng(0), [], []
    for seed in range(5):
        sizes = draw.integers(1, 6, 60)
        group, label = np.repeat(np.arange(60), sizes), np.repeat((draw.random(60) < 0.3).astype(int), sizes)
        samples = [
            Sample(str(n), int(c), group=f"patient {g}") for n, (g, c) in enumerate(zip(group, label, strict=True))
        ]
        numbers, note = assign_folds(made(samples), folds, seed)
        assert assign_folds(made(samples), folds, seed)[0] == numbers
        assert set(numbers) == set(range(1, folds + 1))
        assert len(set(zip(group.tolist(), numbers, strict=True))) == 60, "no patient is in two folds"
        assert f"in 60 patients or groups of equal contents in {folds} folds" in note
        own.append(spread_of(np.array(numbers) - 1, label, folds))
        split_by = StratifiedGroupKFold(folds, shuffle=True, random_state=seed).split(label, label, group)
        other = np.zeros(len(label), dtype=int)
        for fold, (_, tested) in enumerate(split_by):
            other[tested] = fold
        theirs.append(spread_of(other, label, folds))
    assert np.mean(own) <= np.mean(theirs) + 0.01


def test_folds_keep_equal_pixels_together_and_the_test_split_out():
    samples = [Sample(str(n), n % 2, "test" if n < 10 else "val" if n < 20 else "train") for n in range(70)]
    numbers, note = assign_folds(made(samples, digests=[str(n // 2) for n in range(70)]), 4, 0)
    assert numbers[:10] == [0] * 10
    assert all(numbers[n] == numbers[n + 1] for n in range(10, 70, 2))
    assert "own test split (10) stays out of the folds; the data's own val is part of them" in note
    assert fold_splits(numbers, 2).count("test") == numbers.count(2)
    assert fold_splits(numbers, 2)[:10] == ["unused"] * 10
    with pytest.raises(DataError, match="30 independent images cannot make 31 folds"):
        assign_folds(made(samples, digests=[str(n // 2) for n in range(70)]), 31, 0)


def test_images_that_cannot_be_read_are_not_taken_for_equal():
    dataset = made([Sample(str(n), n % 2, None, group=f"p{n}") for n in range(4)], digests=["x", None, None, "x"])
    ties = [set(dataset.ties(n)) for n in range(4)]
    assert ties[0] & ties[3] == {("pixels", "x")}
    assert not ties[1] & ties[2]
