"""What is said on the screen: progress as a live bar on a terminal and plain lines elsewhere, and tables."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def sentence(words: str) -> str:
    """
    >>> sentence("nothing is learnt yet")
    'Nothing is learnt yet.'
    """
    return f"{words[0].upper()}{words[1:]}."


class Progress:
    """Says how far work has come. `quiet` says nothing at all."""

    def __init__(self, quiet: bool = False):
        self.quiet = quiet

    def say(self, text: str) -> None:
        """One line that stays."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Step]:
        """A bar of `total` steps; the yielded object is called with steps done and a note."""
        if self.quiet:
            yield Step()
        elif sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            with RichProgress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True)) as rich:
                task = rich.add_task(label, total=total, note="")
                yield Live(lambda done, note: rich.update(task, completed=done, note=note))
        else:
            yield Lines(self, label, total)


class Step:
    """Called with the number of steps done, and a note such as the current loss."""

    def __call__(self, done: int, note: str = "") -> None:
        pass


class Live(Step):
    def __init__(self, update: Callable[[int, str], None]):
        self.update = update

    def __call__(self, done: int, note: str = "") -> None:
        self.update(done, note)


class Lines(Step):
    """At most one line every few seconds, and one at the end."""

    EVERY = 5.0

    def __init__(self, progress: Progress, label: str, total: int):
        self.progress, self.label, self.total, self.last = progress, label, total, time.monotonic()
        self.first: tuple[int, float] | None = None
        """Where it began, which for work that goes on is not 0, and when."""

    def __call__(self, done: int, note: str = "") -> None:
        now = time.monotonic()
        self.first = self.first or (done, now)
        if now - self.last >= self.EVERY or done == self.total:
            self.last = now
            begun, when = self.first
            if begun < done < self.total:
                note = f"{time_left((now - when) / (done - begun) * (self.total - done))}  {note}"
            self.progress.say(f"{self.label} {done}/{self.total}  {note}".rstrip())


def time_left(seconds: float) -> str:
    """
    >>> time_left(99.6), time_left(150), time_left(9000)
    ('about 100 s left', 'about 2 min left', 'about 2.5 h left')
    """
    return f"about {rounded_time(seconds)} left"


def rounded_time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def operations(count: float) -> str:
    """A number of floating-point operations with a prefix.

    >>> operations(3.5494e9), operations(2.4e18)
    ('3.55 GFLOP', '2.4 EFLOP')
    """
    power = min(max(int(math.log10(count)) // 3, 0), 7) if count >= 1 else 0
    return f"{count / 1000**power:.3g} {' kMGTPEZ'[power].strip()}FLOP"


def cost_words(cost: Mapping[str, Any]) -> str:
    """What is known of operations, device-hours and energy, in one line.

    >>> cost_words({"flops": 2e15, "device_hours": 0.25, "energy_kwh": 0.12})
    '2 PFLOP, 0.25 device-hours, 0.12 kWh'
    """
    parts = [
        operations(cost["flops"]) if cost.get("flops") is not None else "operations not counted",
        f"{cost['device_hours']:.3g} device-hours" if cost.get("device_hours") is not None else "",
        f"{cost['energy_kwh']:.3g} kWh" if cost.get("energy_kwh") is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def columns(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """Plain aligned columns, as good for eyes as for pipes.

    >>> print(columns(("name", "n"), [("cat", 3), ("horse", 12)]))
    name   n
    cat    3
    horse  12
    """
    table = [tuple(map(str, row)) for row in (header, *rows)]
    widths = [max(len(row[n]) for row in table) for n in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    )


def shown(value: float | None, form: str = ".4f") -> str:
    """A figure's value, which may be unknown.

    >>> shown(0.25), shown(None), shown(math.nan)
    ('0.2500', '–', '–')
    """
    return "–" if value is None or math.isnan(value) else f"{value:{form}}"


def interval(figure: Mapping[str, Any], form: str = ".4f") -> str:
    """The 95 % interval of a figure; of a single sample there may be none.

    >>> interval({"low": 0.25, "high": 0.5}, ".2f"), interval({"low": None, "high": None})
    ('0.25 to 0.50', '–')
    """
    ends = [shown(figure[name], form) for name in ("low", "high")]
    return "–" if "–" in ends else " to ".join(ends)


def with_interval(figure: Mapping[str, Any], form: str = ".3f") -> str:
    """A figure's value and its 95 % interval, for the cell of a table.

    >>> with_interval({"value": 0.4, "low": 0.25, "high": 0.5}), with_interval({"value": None})
    ('0.400 (0.250 to 0.500)', '–')
    """
    value = shown(figure["value"], form)
    return value if value == "–" else f"{value} ({interval(figure, form)})"


def quoted(word: str) -> str:
    r"""A word for a shell; line breaks and other control characters as bash's $'…' writes them.

    >>> print(quoted("a b"), quoted("a\n'b"))
    'a b' $'a\U0000000a\U00000027b'
    """
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(c if c.isprintable() and c not in "\\'" else _escape(c) for c in word) + "'"


def _escape(character: str) -> str:
    byte = ord(character) - 0xDC00  # how Python keeps a byte of a file name that is not UTF-8
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else f"\\U{ord(character):08x}"
