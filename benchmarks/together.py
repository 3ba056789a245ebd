"""Starts a study once per model, all at the same time in one folder: small networks leave a GPU half idle."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.weights import Run


def together(module: str, models: Sequence[str], words: Sequence[object], plan: Path) -> None:
    """`python -m MODULE` with `words` and `--models MODEL` for each model, until all have ended.

    The first one writes the study's `plan`; the others start when it is there.
    """
    cores = max(1, (os.cpu_count() or 1) // len(models))
    surroundings = os.environ | {"OMP_NUM_THREADS": str(cores)}
    processes: list[Any] = []
    for model in models:
        command = [sys.executable, "-m", module, *map(str, words), "--models", model]
        processes.append(subprocess.Popen(command, env=surroundings))
        while not plan.is_file() and processes[0].poll() is None:
            time.sleep(0.1)
    codes = [process.wait() for process in processes]
    if failed := [model for model, code in zip(models, codes, strict=True) if code]:
        print(f"failed: {', '.join(failed)}; the same command makes the runs that are missing", file=sys.stderr)


def kept(study: Path) -> list[dict[str, Any]]:
    """The rows of all finished runs of a study."""
    return [Run(study).read_json(f"kept/{path.name}") for path in sorted((study / "kept").glob("*.json"))]
