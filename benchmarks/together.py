"""Starts a benchmark once per model, all at the same time: small networks leave a GPU half idle."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence


def together(module: str, models: Sequence[str], words: Sequence[object]) -> None:
    """`python -m MODULE` with `words` and `--models MODEL` for each model, until all have ended."""
    cores = max(1, (os.cpu_count() or 1) // len(models))
    surroundings = os.environ | {"OMP_NUM_THREADS": str(cores)}
    started = [
        subprocess.Popen([sys.executable, "-m", module, *map(str, words), "--models", model], env=surroundings)
        for model in models
    ]
    codes = [process.wait() for process in started]
    if failed := [model for model, code in zip(models, codes, strict=True) if code]:
        raise SystemExit(f"failed: {', '.join(failed)}; the same command makes the runs that are missing")
