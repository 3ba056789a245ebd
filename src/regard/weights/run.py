"""A run folder: everything one training run was, did and found, in files a person can read."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.config import Origin, PretrainConfig, RunConfig, make, read_json, to_dict
from regard.config_text import TranslateConfig
from regard.errors import RunError
from regard.weights.checkpoint import write_aside


def write_text(path: Path, text: str) -> None:
    write_aside(path, lambda aside: aside.write_text(text, encoding="utf-8"))


def to_json(value: Any) -> str:
    """JSON that any reader takes: what is not a number becomes null."""
    return json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Run:
    """Paths of a run folder, and its files as values."""

    path: Path

    @staticmethod
    def create(path: Path) -> Run:
        """A new folder; an existing one that holds anything is never written over."""
        path = path.expanduser()
        Run.require_new(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"the run folder cannot be made: {error}", where=path) from None
        return Run(path)

    @staticmethod
    def require_new(path: Path) -> None:
        path = path.expanduser()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            do = "choose another --out; a run that was stopped goes on with `regard resume`"
            raise RunError("the run folder exists and is not empty", where=path, do=do)

    @staticmethod
    def open(path: str | Path) -> Run:
        run = Run(Path(path).expanduser())
        if not run.path.is_dir():
            raise RunError("there is no such run", where=run.path, do="give the folder that `regard train` made")
        if not (run.path / "config.json").is_file():
            do = "give the folder that `regard train` made; it comes before the data"
            raise RunError("the folder is not a run: it has no config.json", where=run.path, do=do)
        return run

    def checkpoint(self, name: str = "best") -> Path:
        return self.path / "checkpoints" / f"{name}.safetensors"

    def write_json(self, name: str, value: Any) -> None:
        write_text(self.path / name, to_json(value))

    def read_json(self, name: str) -> Any:
        return read_json(self.path / name, most=2**30)  # lists of every image and kept attention are large

    def write_rows(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        rows, text = list(rows), io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.path / name, text.getvalue())

    def read_rows(self, name: str) -> list[dict[str, str]]:
        if not (self.path / name).is_file():
            raise RunError("a file of the run is missing", where=self.path / name)
        with (self.path / name).open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def write_config(self, data: str, config: RunConfig, origins: dict[str, Origin]) -> None:
        values = {name: {"value": v, "origin": origins[name]} for name, v in to_dict(config).items()}
        self.write_json("config.json", {"data": data, **values})

    def read_config(self) -> tuple[str, RunConfig, dict[str, Origin]]:
        stored = self.read_json("config.json")
        data, where = stored.pop("data"), self.path / "config.json"
        kind = PretrainConfig if "mask" in stored else TranslateConfig if "tokens" in stored else RunConfig
        config = make(kind, {name: entry["value"] for name, entry in stored.items()}, where)
        return data, config, {name: entry["origin"] for name, entry in stored.items()}
