"""Graceful and forced stop: the first Ctrl-C or SIGTERM lets training save, a second Ctrl-C stops at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

STOP_FILE = "REGARD_STOP"
"""The environment variable that names a file. If the file exists, training stops as after Ctrl-C. For processes that
cannot get a signal."""
SAME = 0.5
"""Seconds within which a second Ctrl-C is the first one: `timeout` signals a process and then its group, with it in."""
MESSAGE = "stopping as soon as all is saved; a second Ctrl-C stops at once\n"


class Halt(Exception):
    """Raised between two steps when a stop is requested."""


class Stop:
    """Handles SIGINT and SIGTERM inside the block. `wanted` is the number of the signal that came, or 0."""

    def __init__(self, quiet: bool = False):
        self.quiet, self.wanted, self.since = quiet, 0, 0.0
        self.file, self.looked = os.environ.get(STOP_FILE), 0.0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():  # signals can only be handled there
            self.before = {n: signal.signal(n, self._on_signal) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:  # of a second SIGTERM nothing more can be meant: what stops at once is SIGKILL
            if number == signal.SIGINT and time.monotonic() - self.since > SAME:
                self.wanted = number
                self.leave()
            return
        self.wanted, self.since = number, time.monotonic()
        if not self.quiet:
            os.write(2, MESSAGE.encode())  # print is not safe in a signal handler

    def asked(self) -> bool:
        """Whether a signal came or the stop file exists, which is checked once per second."""
        if self.file and not self.wanted and time.monotonic() - self.looked > 1:
            self.looked = time.monotonic()
            if Path(self.file).exists():
                self.wanted = self.wanted or signal.SIGINT  # a signal may have come in the meantime
        return bool(self.wanted)

    def leave(self) -> NoReturn:
        """End as after the signal itself: KeyboardInterrupt for Ctrl-C, exit code 143 for SIGTERM."""
        if self.wanted == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt
