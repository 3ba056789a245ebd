"""Processes for tests, forked from a server that has imported everything once: each starts in a moment."""

import importlib
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.preloaded"])


def start(target: Callable[..., None], *arguments: Any, said: Path | None = None, **environment: Any) -> Any:
    """Begin `target` in a process of its own, with one thread; what it prints as an error goes to the file `said`."""
    process = SERVER.Process(target=_work, args=(target, arguments, said, environment))
    process.start()
    return process


def finished(*processes: Any, timeout: float = 240) -> list[int]:
    """The exit codes: of a signal, minus its number."""
    for process in processes:
        process.join(timeout)
    return [process.exitcode for process in processes]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _work(target: Callable[..., None], arguments: tuple[Any, ...], said: Path | None, environment: dict) -> None:
    if said:
        with said.open("a") as file:
            os.dup2(file.fileno(), 2)
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - lives as long as the process
    multiprocessing.set_start_method("fork", force=True)  # as usual: its own processes must end when it is killed
    os.environ.update({name: str(value) for name, value in environment.items()})
    importlib.import_module("torch").set_num_threads(int(environment.get("OMP_NUM_THREADS", 1)))
    try:
        target(*arguments)
    except KeyboardInterrupt:
        sys.exit(130)
