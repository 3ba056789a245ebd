"""Stored settings and finished results of a study, from which it resumes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.config import read_json
from regard.errors import RunError
from regard.weights import to_json, write_text


def keep_plan(out: Path, plan: dict[str, Any]) -> None:
    """Write plan.json into a new folder; in an existing study's folder it must be the same, else an error."""
    plan = json.loads(to_json(plan))
    path = out / "plan.json"
    if path.is_file():
        stored = read_json(path)
        differ = [key for key in plan if stored.get(key) != plan[key]]
        if differ:
            what = f"the study there is another: its {' and '.join(differ)} differ"
            raise RunError(what, where=out, do="choose another --out, or give the settings it was begun with")
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError("the folder exists and holds no study", where=out, do="choose another --out")
    write_text(path, to_json(plan))


def cached(path: Path | None, settings: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of `make`: read from the file if it has the same settings, else computed and written to it.

    >>> made = [cached(tmp / "cell.json", {"steps": 3}, lambda: print("made") or {"loss": 0.5}) for _ in range(2)]
    made
    >>> made
    [{'loss': 0.5}, {'loss': 0.5}]
    """
    settings = json.loads(to_json(settings))
    if path is not None and path.is_file():
        stored = read_json(path)
        if stored.get("settings") == settings:
            return stored["result"]
    result = make()
    if path is not None:
        write_text(path, to_json({"settings": settings, "result": result}))
    return result


def kept_row(path: Path, folder: Path, make: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    """The row of a finished run, which `make` reads from its folder; None if it is not finished.

    It is kept in the file, so that a study resumes without the folders of its runs, which hold the weights.
    """
    if not folder.exists():
        return read_json(path) if path.is_file() else None
    row = make()
    if row is not None:
        write_text(path, to_json(row))
    return row
