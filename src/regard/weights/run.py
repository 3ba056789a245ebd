"""A run folder: everything one training run was, did and found, in files a person can read."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from regard.config import read_json
from regard.console import Progress
from regard.data.dataset import Dataset
from regard.errors import RunError
from regard.image_groups import LabelData
from regard.settings import Origin, RunConfig
from regard.weights.checkpoint import ASIDE, write_aside

READING = tuple(entry.name for entry in fields(LabelData) if entry.metadata["opens"])
"""Settings that say how images and volumes are read."""


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


def to_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """A table whose columns are the keys of the first row."""
    rows, text = list(rows), io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


CONFIG = "config.json"
SETUP = ".setting-up"
"""Lies in a folder from before its first file until the last one, its settings, makes it a run."""


def _is_unfinished(path: Path) -> bool:
    return (path / SETUP).is_file() and not (path / CONFIG).exists()


def _is_foreign(path: Path, known: Collection[str]) -> bool:
    """Whether a path within a folder is none of the `known` files, nor their folders, nor left from writing aside."""
    folders = {parent.as_posix() for name in known for parent in Path(name).parents}
    return path.as_posix() not in {*known, *folders} and not any(part.endswith(ASIDE) for part in path.parts)


@dataclass(frozen=True)
class Run:
    """Paths of a run folder, and its files as values."""

    path: Path

    @staticmethod
    def create(path: Path, unfinished: Collection[str] = ()) -> Run:
        """A new folder; an existing one that holds anything is never written over.

        But for `unfinished`: the names of files that a set-up which was cut short may have left, and that are removed.
        """
        run = Run(path.expanduser())
        Run.require_new(run.path, unfinished)
        try:
            run.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"the run folder cannot be made: {error}", where=run.path) from None
        if unfinished:
            run.clear(unfinished)
        return run

    @staticmethod
    def require_new(path: Path, unfinished: Collection[str] = ()) -> None:
        path = path.expanduser()
        if not path.exists():
            return
        known = {SETUP, *unfinished} if unfinished and _is_unfinished(path) else ()
        if not path.is_dir() or any(_is_foreign(file.relative_to(path), known) for file in path.rglob("*")):
            do = "choose another --out; a run that was stopped is resumed by `regard resume`"
            if not unfinished and _is_unfinished(path):
                do = "choose another --out, or give --resume as well: its set-up was interrupted and is then repeated"
            raise RunError("the run folder exists and is not empty", where=path, do=do)

    def begin_setup(self) -> None:
        """Mark the folder as one that is not a run yet."""
        try:
            os.close(os.open(self.path / SETUP, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o666))
        except OSError as error:
            raise RunError(f"the run folder cannot be written to: {error}", where=self.path) from None

    def end_setup(self, data: str, config: RunConfig, origins: Mapping[str, Origin], why: str) -> None:
        """Make the folder a run, in one step: the settings are there, or they are not."""
        self.write_config(data, config, origins, why)
        (self.path / SETUP).unlink(missing_ok=True)

    def clear(self, names: Collection[str] = ()) -> None:
        """Remove these files, and what was left of files that were being written when the process was killed."""
        for path in sorted(self.path.rglob("*"), reverse=True):  # what a folder holds before the folder
            if not _is_foreign(path.relative_to(self.path), {SETUP, *names}):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)

    @staticmethod
    def open(path: str | Path) -> Run:
        run = Run(Path(path).expanduser())
        if not run.path.is_dir():
            raise RunError("there is no such run", where=run.path, do="give the folder that `regard train` made")
        if _is_unfinished(run.path):
            do = "give the same `regard train` command again with --resume: it starts from the beginning"
            raise RunError("the run was stopped before its set-up was complete", where=run.path, do=do)
        if not (run.path / CONFIG).is_file():
            for kind in ("seed", "fold"):
                if held := sorted(folder.parent.name for folder in run.path.glob(f"{kind}*/config.json")):
                    do = f"give one of them: {', '.join(str(run.path / name) for name in held[:5])}"
                    raise RunError(f"the folder holds {len(held)} runs of different {kind}s", where=run.path, do=do)
            do = "give the folder that `regard train` made; it comes before the data"
            raise RunError("the folder is not a run: it has no config.json", where=run.path, do=do)
        for file in run.path.rglob("*"):
            if file.is_symlink() and not file.is_file():
                what = "a folder in the run is a link: files written there would end up outside of the run"
                raise RunError(what, where=file, do="put the folder itself there; do not trust runs made by others")
        return run

    def checkpoint(self, name: str = "best") -> Path:
        return self.path / "checkpoints" / f"{name}.safetensors"

    def write_json(self, name: str, value: Any) -> None:
        write_text(self.path / name, to_json(value))

    def read_json(self, name: str, kind: type[dict[str, Any]] | type[list[Any]] = dict) -> Any:
        """What a file of the run holds, an object if no other `kind` is said."""
        value = read_json(self.path / name, most=2**30)  # lists of every image and kept attention are large
        if not isinstance(value, kind):
            raise RunError("a file of the run is damaged: it holds something else", where=self.path / name)
        return value

    def read_text(self, name: str, most: int = 2**20) -> str:
        """A text of up to `most` bytes."""
        path = self.path / name
        if not path.is_file() or path.stat().st_size > most:
            raise RunError(f"the file is missing, or has more than {most:,} bytes", where=path)
        return path.read_text(encoding="utf-8", errors="replace")

    def write_rows(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        write_text(self.path / name, to_csv(rows))

    def read_rows(self, name: str) -> list[dict[str, str]]:
        if not (self.path / name).is_file():
            raise RunError("a file of the run is missing", where=self.path / name)
        with (self.path / name).open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def write_config(self, data: str, config: RunConfig, origins: Mapping[str, Origin], why: str = "") -> None:
        """`why` says in one line how the defaults were chosen."""
        stored = {"data": data, "task": config.task_name, "why": why, "settings": config.to_json(origins)}
        self.write_json(CONFIG, stored)

    def read_config(self) -> StoredConfig:
        stored, where = self.read_json(CONFIG), self.path / CONFIG
        try:
            return StoredConfig(str(stored["data"]), str(stored["task"]), dict(stored["settings"]))
        except (KeyError, TypeError, ValueError):
            if "model_type" in stored:
                what = f"the folder holds weights of {stored['model_type']}, not a run"
                raise RunError(what, where=self.path, do="give the folder that `regard train` made") from None
            raise RunError("these are not the settings of a run of this version", where=where) from None

    def seen_rows(self) -> list[dict[str, str]]:
        """Of splits.csv the samples that the run trained on or chose its weights by."""
        return [row for row in self.split_rows() if row["split"] in ("train", "val")]

    def split_rows(self) -> list[dict[str, str]]:
        """The rows of splits.csv: every sample and its split."""
        rows = self.read_rows("splits.csv")
        if not rows or not {"name", "split"} <= rows[0].keys():
            raise RunError("a file of the run is damaged: it names no splits", where=self.path / "splits.csv")
        return rows

    def reading(self, data: str | Path | None = None) -> dict[str, Any]:
        """The settings by which flags said how the run's images are read; none for `data` of another kind of file."""
        stored = self.read_config()
        if data is not None and Path(stored.data).suffix.lower() != Path(data).suffix.lower():
            return {}
        held, names = stored.settings.get("data"), READING
        entries = {name: held.get(name) for name in names} if isinstance(held, dict) else {}
        return {n: e["value"] for n, e in entries.items() if isinstance(e, dict) and e.get("origin") == "flag"}


class StoredConfig(NamedTuple):
    """What config.json says: where the data is, which task it was, and the groups of settings."""

    data: str
    task: str
    settings: dict[str, Any]


def find_run(path: str | Path) -> Run | None:
    """The run folder that is meant or that a checkpoint lies in, if it says what the model was trained on."""
    path = Path(path).expanduser()
    folder = Run(path.parent.parent if path.is_file() else path)
    return folder if (folder.path / "splits.csv").is_file() else None


def seen_samples(dataset: Dataset, run: str | Path, progress: Progress) -> set[int]:
    """The samples that the run trained on or chose its weights by."""
    folder = find_run(run)
    if folder is None:
        progress.say(
            f"warning: without a run folder it is not known which {dataset.samples_word} the model was trained on"
        )
        return set()
    return dataset.seen(folder.seen_rows())
