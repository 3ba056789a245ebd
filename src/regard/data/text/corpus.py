"""A dataset of parallel text: sentence pairs, their problems, duplicates, and leaks between splits."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from regard.console import columns
from regard.data.dataset import LISTED, UNUSED, listed
from regard.errors import DataError, counted


class Trouble(NamedTuple):
    """A pair that was left out: where (file and line), kind of the problem, details."""

    split: str
    where: str
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True)
class TextDataset:
    """Sentence pairs. `splits` holds train, val and test names, or "" where the data names none.

    There may be several test sets, each called test or test_something.
    """

    name: str
    kind: str
    why: str
    source: str
    """The source language, or the name of its column."""
    target: str
    sources: list[str] = field(repr=False)
    targets: list[str] = field(repr=False)
    splits: list[str] = field(repr=False)
    lines: list[int] = field(repr=False)
    """The line of the file or table of each pair."""
    trouble: tuple[Trouble, ...] = ()
    ignored: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    """First words of sources that ask for something, such as a language; tokenizers never split them."""

    path: str = ""
    """As it was given, if a task opened it."""
    reading: dict[str, Any] = field(default_factory=dict, repr=False)
    """The settings that it was read by."""
    samples_word: ClassVar[str] = "pairs"
    whole_tests: ClassVar[bool] = True

    @property
    def tested(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.sources)

    def given_splits(self) -> list[str | None]:
        return [name or None for name in self.splits]

    def strata(self) -> list[int]:
        return [0] * len(self)

    def traits(self) -> np.ndarray | None:
        return None

    def stratum_name(self, stratum: int) -> str:
        return "the text"

    def ties(self, number: int) -> list[Hashable]:
        """Source and target sentence, without case and spacing."""
        return [(0, _plain(self.sources[number])), (1, _plain(self.targets[number]))]

    def require_trainable(self, splits: Sequence[str]) -> None: ...

    def summary(self) -> str:
        return f"{self.why}; {counted(len(self), 'pairs')}, {self.source} to {self.target}"

    def warnings(self, splits: Sequence[str]) -> list[str]:
        left = [f"{counted(len(self.trouble), 'pairs')} left out (data.json lists them)"] if self.trouble else []
        return [*left, *leak_lines(self.overlap(list(splits)))]

    def split_rows(self, splits: Sequence[str]) -> list[dict[str, Any]]:
        return [
            {"name": self.key(n), "split": name, "source": sentence_key(self.sources[n])}
            for n, name in enumerate(splits)
        ]

    def seen(self, rows: Sequence[Mapping[str, str]]) -> set[int]:
        """Pairs with the same source sentence, without case and spacing."""
        known = {row["source"] for row in rows}
        return {n for n, sentence in enumerate(self.sources) if sentence_key(sentence) in known}

    def key(self, number: int) -> str:
        """The name of a pair in tables of predictions."""
        return f"{self.splits[number] or self.name}:{self.lines[number]}"

    def index(self, split: str, splits: list[str] | None = None) -> list[int]:
        """The numbers of the pairs of one split."""
        return [i for i, name in enumerate(splits or self.splits) if name == split]

    def duplicates(self) -> int:
        """Pairs that are the same as an earlier one."""
        return len(self) - len(set(zip(self.sources, self.targets, strict=True)))

    def overlap(self, splits: list[str] | None = None) -> dict[str, dict[str, int]]:
        """For each split but train: the number of its pairs, and of its source sentences, that are also in train."""
        names = splits or self.splits
        train = self.index("train", names)
        pairs, sources = {(self.sources[i], self.targets[i]) for i in train}, {self.sources[i] for i in train}
        overlap: dict[str, dict[str, int]] = {}
        for i, name in enumerate(names):
            if name and name not in ("train", UNUSED):
                counts = overlap.setdefault(name, {"pairs": 0, "sources": 0})
                counts["pairs"] += (self.sources[i], self.targets[i]) in pairs
                counts["sources"] += self.sources[i] in sources
        return overlap

    def fingerprint(self) -> str:
        """One hash of all sentences and the splits the data names."""
        total = hashlib.sha256()
        for row in zip(self.splits, self.sources, self.targets, strict=True):
            total.update("\0".join((*row, "\n")).encode())
        return total.hexdigest()

    def require_usable(self, share: float = 0.01) -> None:
        """Raise an error if more than this share of a split's pairs was left out."""
        bad, good = Counter(t.split for t in self.trouble), Counter(self.splits)
        for split, count in bad.items():
            total = count + (good[split] if split or not any(good) else len(self))
            if count > share * total:
                lines = "\n".join(listed([str(t) for t in self.trouble if t.split == split], 10))
                raise DataError(
                    f"{count} of {total} pairs{f' of {split}' if split else ''} cannot be used:\n{lines}",
                    where=self.name,
                    do=f"repair or remove them in both languages, or let more be left out: {count / total:.2g} of them",
                )

    def describe(self) -> str:
        """The report of `regard check`, for people."""
        names = sorted(set(self.splits) | {t.split for t in self.trouble}, key=_rank)
        sizes, bad = Counter(self.splits), Counter(t.split for t in self.trouble)
        lengths = {name: [len(self.sources[i].split()) for i in self.index(name)] for name in names}
        rows = [(n or "all", sizes[n], f"{np.mean(lengths[n] or [0]):.1f}", max(lengths[n] or [0])) for n in names]
        parts = [f"{self.source} → {self.target}", ""]
        parts += [columns(("split", "pairs", "words", "longest"), rows), ""]
        parts.append(f"pairs that occur more than once: {self.duplicates()}")
        for name, counts in self.overlap().items():
            parts.append(f"of {name}, also in train (leaks): {counted(counts['pairs'], 'pairs')}, "
                         f"{counted(counts['sources'], 'sources')}")  # fmt: skip
        for kind, count in Counter(t.kind for t in self.trouble).items():
            parts.append(f"pairs left out, {kind}: {count}")
            parts += listed([str(t) for t in self.trouble if t.kind == kind])
        parts += [] if self.trouble else ["pairs left out: 0"]
        parts += [
            f"{name} lacks {bad[name]} of its pairs: its figures are not comparable with others'"
            for name in names
            if bad[name] and name.startswith("test")
        ]
        parts.append(f"files that are not part of the data: {len(self.ignored)}")
        return "\n".join([*parts, *(f"    {name}" for name in self.ignored[:LISTED])])

    def to_json(self, splits: list[str], note: str) -> dict[str, Any]:
        """data.json: counts, hashes and problems of the dataset."""
        return {
            "name": self.name,
            "kind": self.kind,
            "recognised_by": self.why,
            "languages": [self.source, self.target],
            "fingerprint": self.fingerprint(),
            "counts": dict(sorted(Counter(splits).items(), key=lambda item: _rank(item[0]))),
            "splits": note,
            "duplicates": self.duplicates(),
            "leaks": self.overlap(splits),
            "trouble": [t._asdict() for t in self.trouble],
            "ignored": list(self.ignored),
            "samples": self.samples_word,
            "findings": [f"Pairs that occur more than once: {self.duplicates():,}; left out: {len(self.trouble):,}."],
        }


def leak_lines(overlap: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A sentence for each split that has sentences of training; `overlap` as `TextDataset.overlap` counts it.

    >>> leak_lines({"val": {"pairs": 1, "sources": 2}, "test": {"pairs": 0, "sources": 0}})
    ['1 pair of val and 2 source sentences are in train too: weights are chosen by training sentences']
    """
    lines = []
    for part, counts in overlap.items():
        if counts["sources"]:
            pairs, sources = counted(counts["pairs"], "pairs"), counted(counts["sources"], "source sentences")
            worth = "weights are chosen by training sentences" if part == "val" else "figures may be too good"
            lines.append(f"{pairs} of {part} and {sources} are in train too: {worth}")
    return lines


def _rank(split: str) -> tuple[int, str]:
    return ({"train": 0, "val": 1}.get(split, 2), split)


def sentence_key(sentence: str) -> str:
    """A hash of a sentence that ignores case and spacing."""
    return hashlib.sha256(_plain(sentence).encode()).hexdigest()[:16]


def _plain(sentence: str) -> str:
    return " ".join(sentence.casefold().split())
