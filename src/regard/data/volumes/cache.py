"""Prepared volumes on disk: one uncompressed array and its frame per subject, under a hash of files and settings."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from regard.errors import DataError

VERSION = 1
"""Of the preparation: raised when the same settings give other numbers."""
MAX_JSON = 2**20


def cache_folder(named: str | None) -> Path:
    """The folder that is named; else the user's, which XDG_CACHE_HOME moves."""
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard" / "volumes"


def signature(path: str) -> Any:
    """What tells one state of a file or DICOM folder from another: names, sizes and times of change."""
    folder = Path(path) if Path(path).exists() else Path(path.partition("#")[0])
    try:
        files = sorted(p for p in folder.iterdir() if p.is_file()) if folder.is_dir() else [folder]
        stats = [(file.name, file.stat()) for file in files]
    except OSError:
        return [str(path), "missing"]
    return [os.path.abspath(path), [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]]


@dataclass(frozen=True)
class Cache:
    """Files of a folder that only this user may enter: scans are of patients."""

    folder: Path

    def key(self, paths: tuple[str, ...], settings: Any) -> str:
        about = json.dumps([VERSION, [signature(path) for path in paths], settings])
        return hashlib.sha256(about.encode()).hexdigest()[:40]

    def read_json(self, key: str) -> Any:
        """What was kept under this key; None if nothing was, or if it is damaged."""
        path = self.folder / f"{key}.json"
        try:
            if path.stat().st_size > MAX_JSON:
                return None
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None

    def write_json(self, key: str, held: Any) -> None:
        self._write(f"{key}.json", lambda file: file.write(json.dumps(held).encode()))

    def read_array(self, key: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """The float32 array of this shape that was kept; None if there is none, or if it is damaged.

        Plain numbers: NumPy parses its own headers as Python, which Python 3.11 cannot do in several threads at once.
        """
        path = self.folder / f"{key}.f32"
        try:
            if path.stat().st_size != 4 * math.prod(shape):
                return None
            return np.fromfile(path, "<f4").reshape(shape)
        except (OSError, ValueError):
            return None

    def write_array(self, key: str, array: np.ndarray) -> None:
        self._write(f"{key}.f32", lambda file: file.write(np.ascontiguousarray(array, "<f4").tobytes()))

    def _write(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        """Into a file beside, then in place: a reader never sees half of it."""
        aside = ""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            number, aside = tempfile.mkstemp(".part", dir=self.folder)
            with os.fdopen(number, "wb") as file:
                write(file)
            os.replace(aside, self.folder / name)
        except OSError as error:
            if aside:
                Path(aside).unlink(missing_ok=True)
            raise DataError(
                f"prepared volumes cannot be kept: {error}",
                where=self.folder,
                do="make room there, or name another folder by --cache-folder",
            ) from None
