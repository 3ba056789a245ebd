"""Reading parallel text: files such as train.en and train.de, or one table with two columns."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path

from regard.data.dataset import existing_path
from regard.data.text.corpus import TextDataset, Trouble
from regard.data.text.dates import dates_corpus
from regard.data.text.lines import Sentence, check_sentence, decode_lines, read_lines, read_sentence
from regard.errors import DataError
from regard.languages import CODES

_TABLES = (".tsv", ".csv", ".txt", ".tab")
_SPLIT = re.compile(r"(train|val|dev|test|newstest|newsdev)", re.IGNORECASE)
_SPLIT_NAMES = {"train": "train", "val": "val", "dev": "val", "newsdev": "val", "test": "test", "newstest": "test"}
_NO_LANGUAGES = "txt tsv csv md xml zip tar sh py log tex pdf doc spm bin pt npz gz xz bz"
_WORDS = """english german french spanish italian portuguese russian japanese
korean chinese dutch polish turkish arabic hindi czech ukrainian vietnamese swedish danish finnish greek hebrew
hungarian indonesian romanian"""
_ROLES = (frozenset({"source", "src", "input"}), frozenset({"target", "tgt", "trg", "output"}))
_HEADS = frozenset(CODES.split()) | frozenset(_WORDS.split()) | _ROLES[0] | _ROLES[1]


def open_pairs(path: str | Path, source: str | None = None, target: str | None = None) -> TextDataset:
    """The parallel text of a folder or a table, or the demo's corpus `dates`. `source` and `target` choose languages
    or columns.

    Pairs with a problem (a side that is empty, too long, not UTF-8, or has control characters) are left out and
    listed in `trouble`; `TextDataset.require_usable` raises an error if they are too many. Files with different
    numbers of lines are refused, because it is unknown which lines belong together.

    >>> for name, text in (("train.en", "One.\\nTwo.\\n"), ("train.de", "Eins.\\nZwei.\\n")):
    ...     _ = (tmp / name).write_text(text)
    >>> corpus = open_pairs(tmp)
    >>> corpus.source, corpus.target, corpus.sources, corpus.targets
    ('en', 'de', ['One.', 'Two.'], ['Eins.', 'Zwei.'])
    """
    if str(path) == "dates":
        made = dates_corpus()
        if (source or made.source, target or made.target) != (made.source, made.target):
            raise DataError(f"dates are translated from {made.source} to {made.target} only", where=path)
        return made
    path = existing_path(path, "a folder, .tsv, .csv or dates")
    if source is not None and source == target:
        raise DataError(f"source and target are both {source}", where=path, do="give two different ones")
    corpus = _folder(path, source, target) if path.is_dir() else _table(path, source, target)
    if not len(corpus):
        listed = "; ".join(str(t) for t in corpus.trouble[:5])
        raise DataError("there is no pair that can be used" + (f": {listed}" if listed else ""), where=path)
    return corpus


def _folder(root: Path, source: str | None, target: str | None) -> TextDataset:
    """Files called SPLIT.LANGUAGE or SPLIT.LANGUAGE.gz; files without a partner, and others, are ignored."""
    files: dict[str, dict[str, Path]] = {}
    visible = [p for p in sorted(root.iterdir()) if not p.name.startswith(".")]
    for path in visible:
        match = re.fullmatch(r"(.+)\.([A-Za-z]{2,3}(?:[-_][A-Za-z]{2,4})?)", path.name.removesuffix(".gz"))
        if match and path.is_file() and match[2].lower() not in _NO_LANGUAGES.split():
            if match[2] in files.setdefault(match[1], {}):
                raise DataError(
                    f"{files[match[1]][match[2]].name} and {path.name} are the same text",
                    where=root,
                    do="keep one of them",
                )
            files[match[1]][match[2]] = path
    lonely = [path for stem, names in files.items() if _SPLIT.match(stem) for path in names.values()]
    files = {stem: names for stem, names in files.items() if len(names) > 1}
    if lonely and not files:
        raise DataError(
            f"{lonely[0].name} has no partner in another language",
            where=root,
            do="put the same lines in the other language beside it: to train.en belongs train.de",
        )
    source, target, why = _direction(root, sorted({name for names in files.values() for name in names}), source, target)
    both = {stem: (names[source], names[target]) for stem, names in files.items() if {source, target} <= names.keys()}
    parts = _parts(root, list(both))
    rows = _Rows()
    for split, stem in parts.items():
        rows.add_files(split, *both[stem])
    used = {path for stem in parts.values() for path in both[stem]}
    why = f"files {', '.join(f'{stem}.{source}' for stem in parts.values())} with partners in {target}{why}"
    return rows.corpus(root.resolve().name, "folder", why, source, target, [p.name for p in visible if p not in used])


def _direction(root: Path, names: list[str], source: str | None, target: str | None) -> tuple[str, str, str]:
    if len(names) < 2:
        raise DataError(
            "there is no parallel text here",
            where=root,
            do="have two files with as many lines, such as train.en and train.de (or .gz), or give one .tsv or .csv",
        )
    for name in (source, target):
        if name is not None and name not in names:
            raise DataError(f"there is no text in {name!r}", where=root, do=_say_which(names))
    if source and target:
        return source, target, ""
    others = [name for name in names if name not in (source, target)]
    if (source or target) and len(others) == 1:
        return (source, others[0], "") if source else (others[0], str(target), "")
    if len(names) > 2:
        raise DataError(
            f"there is text in {len(names)} languages: {', '.join(names)}",
            where=root,
            do=_say_which(names),
        )
    source, target = sorted(names, key=lambda name: (name.split("-")[0].split("_")[0] not in ("en", "eng"), name))
    return source, target, f"; for the other direction give --source {target}"


def _say_which(names: Sequence[str]) -> str:
    return f"say which of {', '.join(names)} are meant by --source and --target"


def _parts(root: Path, stems: list[str]) -> dict[str, str]:
    """Split names, in order, with the stems of their files: stems that begin with a split's name, or the only stem."""
    kinds = {stem: _SPLIT_NAMES[match[1].lower()] for stem in stems if (match := _SPLIT.match(stem))}
    if not kinds and len(stems) == 1:
        return {"": stems[0]}
    parts: dict[str, str] = {}
    tests = [stem for stem, kind in kinds.items() if kind == "test"]
    for kind in ("train", "val"):
        own = [stem for stem, name in kinds.items() if name == kind]
        if len(own) > 1:
            raise DataError(
                f"{' and '.join(own)} are both called {kind}", where=root, do="join them, or move one elsewhere"
            )
        if own:
            parts[kind] = own[0]
    for stem in tests:
        parts["test" if len(tests) == 1 and stem.lower() == "test" else f"test_{_tail(stem)}"] = stem
    if not kinds:
        raise DataError(
            f"none of the texts is called train, val or test: {', '.join(stems[:10])}",
            where=root,
            do="rename them (train.en, val.en, test.en), or keep one, which is then cut by the seed",
        )
    return parts


def _tail(stem: str) -> str:
    """The part of a stem that names the test set.

    >>> _tail("test_2016_flickr"), _tail("newstest2014"), _tail("test")
    ('2016_flickr', 'newstest2014', 'test')
    """
    return re.sub(r"^test[._-]+", "", stem) or stem


MAX_TROUBLE = 100_000
"""Limit of pairs with problems; with more, the data is probably not parallel text."""


class _Rows:
    """Collects pairs: usable ones are kept, the others listed."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.targets: list[str] = []
        self.splits: list[str] = []
        self.lines: list[int] = []
        self.trouble: list[Trouble] = []

    def add(self, split: str, line: int, files: tuple[str, str], pair: tuple[Sentence, Sentence]) -> None:
        for file, sentence in zip(files, pair, strict=True):
            if sentence.kind:
                self.leave_out(Trouble(split, f"{file}, line {line}", sentence.kind, sentence.detail))
                return
        self.sources.append(pair[0].text)
        self.targets.append(pair[1].text)
        self.splits.append(split)
        self.lines.append(line)

    def leave_out(self, trouble: Trouble) -> None:
        self.trouble.append(trouble)
        if len(self.trouble) > MAX_TROUBLE:
            raise DataError(f"more than {MAX_TROUBLE:,} pairs cannot be used, the last for: {trouble}")

    def add_files(self, split: str, first: Path, second: Path) -> None:
        """Two files, line by line."""
        files, counts = (first.name, second.name), [0, 0]
        for line, pair in enumerate(zip_longest(read_lines(first), read_lines(second)), start=1):
            counts = [count + (text is not None) for count, text in zip(counts, pair, strict=True)]
            if counts[0] == counts[1]:
                self.add(split, line, files, (read_sentence(pair[0]), read_sentence(pair[1])))
        if counts[0] != counts[1]:
            raise DataError(
                f"{first.name} has {counts[0]:,} lines and {second.name} has {counts[1]:,}: which belong together?",
                where=first.parent,
                do="make them the same number of lines; lines end at \\n only, as `wc -l` counts them",
            )

    def corpus(
        self, name: str, kind: str, why: str, source: str, target: str, ignored: Iterable[str] = ()
    ) -> TextDataset:
        lists = self.sources, self.targets, self.splits, self.lines
        return TextDataset(name, kind, why, source, target, *lists, tuple(self.trouble), tuple(ignored))


def _table(path: Path, source: str | None, target: str | None) -> TextDataset:
    """Rows of a TSV or CSV. A TSV is split at tabs and its quotes have no meaning; a CSV's cells may be quoted."""
    name = path.name.lower().removesuffix(".gz")
    if not name.endswith(_TABLES):
        ending = path.suffix or "nameless"
        raise DataError(f"a {ending} file is no parallel text", where=path, do="give a folder, .tsv, .csv or .txt")
    rows, delimiter = _csv(path) if name.endswith(".csv") else (_tsv(path), "tabs")
    start = next(rows, None)
    if start is None:
        raise DataError("the table has no rows", where=path)
    head = start[1] if _is_header(start[1], source, target) else None
    at, names, unused = _columns(path, start[1], head, source, target)
    lowered = [cell.strip().lower() for cell in head or []]
    split_at = lowered.index("split") if "split" in lowered else None
    pairs, file = _Rows(), (path.name, path.name)
    for line, cells in rows if head else chain([start], rows):
        if len(cells) <= max(at):
            where = f"{path.name}, line {line}"
            pairs.leave_out(Trouble("", where, "too few columns", f"{len(cells)}, with {delimiter} between them"))
            continue
        split = "" if split_at is None else _split_of(cells, split_at, path, line)
        pairs.add(split, line, file, (check_sentence(cells[at[0]]), check_sentence(cells[at[1]])))
    why = f"a table with {delimiter} between columns; " + ("its header names them" if head else "it has no header")
    unused = [name for name in unused if name != "split"]
    why += f"; not used: {', '.join(unused)}" if unused else ""
    return pairs.corpus(path.name, "table", why, *names)


def _split_of(cells: list[str], at: int, path: Path, line: int) -> str:
    text = cells[at].strip() if at < len(cells) else ""
    match = _SPLIT.match(text)
    if not match:
        raise DataError(f"the split {text!r} is unknown", where=f"{path}, line {line}", do="call it train, val or test")
    return _SPLIT_NAMES[match[1].lower()]


def _is_header(cells: list[str], source: str | None, target: str | None) -> bool:
    """Whether a row is a header: it has the given names, or names of languages or roles.

    Language codes are all lower or all upper case: `no` is Norwegian, but `No` is a word.
    """
    texts = [cell.strip() for cell in cells]
    if source in texts or target in texts:
        return True

    def named(text: str) -> bool:
        return text.lower() in _HEADS and (len(text) > 3 or text in (text.lower(), text.upper()))

    return sum(named(text) for text in texts) >= 2 and len(set(texts)) == len(texts)


def _columns(
    path: Path, first: list[str], head: list[str] | None, source: str | None, target: str | None
) -> tuple[tuple[int, int], tuple[str, str], list[str]]:
    """Which two columns are read, what they are called, and which are not used."""
    if len(first) < 2:
        raise DataError(
            "the table has one column only",
            where=f"{path}, line 1",
            do="separate source and target by a tab, or commas",
        )
    texts = [cell.strip() for cell in head or []]
    if head is None:
        return (0, 1), (source or "source", target or "target"), [f"column {n + 1}" for n in range(2, len(first))]
    options = [n for n, text in enumerate(texts) if text.lower() in _HEADS]
    wanted = [_column(path, texts, name, roles) for name, roles in zip((source, target), _ROLES, strict=True)]
    free = [n for n in options if n not in wanted]
    if len(free) > wanted.count(None) > 0:
        raise DataError(
            f"there are {len(options)} columns with text: {', '.join(texts[n] for n in options)}",
            where=path,
            do=_say_which([texts[n] for n in options]),
        )
    a, b = (free.pop(0) if n is None and free else n for n in wanted)
    if a is None or b is None:
        raise DataError("only one column with text is known", where=path, do="say both, by --source and --target")
    return (a, b), (source or texts[a], target or texts[b]), [t for n, t in enumerate(texts) if n not in (a, b)]


def _column(path: Path, texts: list[str], name: str | None, roles: frozenset[str]) -> int | None:
    """The column of the language that is asked for: the one called so, or else by its role, such as source."""
    if name in texts:
        return texts.index(name)
    own = [n for n, text in enumerate(texts) if text.lower() in roles]
    if own or name is None:
        return own[0] if own else None
    raise DataError(f"there is no column {name!r}", where=path, do=_say_which(texts))


def _text(path: Path) -> Iterator[str]:
    """The lines of a table. Its bytes must be UTF-8 as a whole: a damaged line could hide where a cell ends."""
    return decode_lines(read_lines(path), path)


def _tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(_text(path), start=1):
        yield number, line.split("\t")


def _csv(path: Path) -> tuple[Iterator[tuple[int, list[str]]], str]:
    """The rows, split by the delimiter that gives the first hundred rows the most equal numbers of cells."""

    def rows(mark: str) -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader((line + "\n" for line in _text(path)), delimiter=mark, strict=True)
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise DataError(f"the table is not well formed: {error}", where=f"{path}, line {reader.line_num}") from None

    def evenness(mark: str) -> float:
        counts: Counter[int] = Counter()
        try:
            for _, row in islice(rows(mark), 100):
                counts[len(row)] += 1
        except DataError:
            return 0.0
        return max((n for width, n in counts.items() if width > 1), default=0) / max(1, counts.total())

    mark = max(",;\t", key=evenness)
    return rows(mark), {",": "commas", ";": "semicolons", "\t": "tabs"}[mark]
