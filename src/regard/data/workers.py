"""Worker processes and the signals that end a program."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM)
"""Signals that a terminal, `timeout` and clusters send to every process; the parent decides when to stop."""


@contextmanager
def signals_held() -> Iterator[None]:
    """Processes that are started within never get these signals, not even in their first moment; the parent, later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
