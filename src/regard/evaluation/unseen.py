"""Which images a model may honestly be tested on: not those it was trained on or chosen by."""

from pathlib import Path

from regard.config import RunConfig
from regard.console import Progress
from regard.data import Scan
from regard.data import split as split_data
from regard.errors import DataError
from regard.weights import Run


def seen_samples(found: Scan, run: str | Path, progress: Progress) -> set[int]:
    """The samples that the run trained on or chose its weights by: the same pixels, or the same patient."""
    folder = _folder_of(run)
    if folder is None:
        progress.say("warning: without its run folder, images this model was trained on cannot be told")
        return set()
    used = [row for row in folder.read_rows("splits.csv") if row["split"] in ("train", "val")]
    pixels, groups = {row["pixels"] for row in used}, {row["group"] for row in used} - {""}
    return {i for i, sample in enumerate(found.source.samples) if found.digests[i] in pixels or sample.group in groups}


def _folder_of(run: str | Path) -> Run | None:
    """The run folder that is meant or that a checkpoint lies in, if it says what the model was trained on."""
    path = Path(run).expanduser()
    folder = Run(path.parent.parent if path.is_file() else path)
    return folder if (folder.path / "splits.csv").is_file() else None


def probe_parts(found: Scan, run: str | Path, progress: Progress) -> tuple[dict[str, list[int]], str]:
    """The samples a probe learns from, chooses by and is tested on, and a sentence saying where they come from.

    They are split as the run was, or as a new run would be; no image that the run trained on or chose its weights
    by is tested on.
    """
    folder = _folder_of(run)
    config = folder.read_config()[1] if folder else RunConfig()
    names, note = split_data(found, config.split_seed, config.holdout)
    parts = {name: [i for i, n in enumerate(names) if n == name] for name in ("train", "val", "test")}
    if not parts["test"]:
        raise DataError(
            "the data has no test split to probe on",
            where=found.source.name,
            do="name one test; if that is what is now val, a new val is cut from train",
        )
    progress.say(f"splits: {note}")
    if leaks := len(found.crossing(names)):
        progress.say(f"warning: {leaks} images stand in more than one split (`regard check` lists them)")
    seen = seen_samples(found, run, progress)
    new = [i for i in parts["test"] if i not in seen]
    if not new:
        raise DataError(
            "the model was trained or chosen on every one of the test images",
            where=found.source.name,
            do="give other data, or the splits that the run had",
        )
    if folder:
        left = len(parts["test"]) - len(new)
        progress.say(f"tested on {len(new)} images the run never trained or chose on ({left} others are left out)")
        note += f"; {left} test images left out that the run had trained or chosen on"
    return parts | {"test": new}, note


def choose_samples(found: Scan, split: str | None, seen: set[int], progress: Progress) -> list[int]:
    """The samples to test on. Only if a split is asked for by name may some of them have been seen."""
    samples, name = found.source.samples, found.source.name
    if split is None:
        tested = any(sample.split == "test" for sample in samples)
        wanted = [i for i, sample in enumerate(samples) if sample.split == "test" or not tested]
        new = [i for i in wanted if i not in seen]
        if len(new) < len(wanted):
            progress.say(f"left out: {len(wanted) - len(new)} images that this model was trained or chosen on")
        if not new:
            raise DataError(
                "the model was trained or chosen on every one of these images",
                where=name,
                do="give other data, or --split all if figures on training images are what you want",
            )
        return new
    chosen = [i for i, sample in enumerate(samples) if split == "all" or sample.split == split]
    if not chosen:
        names = ", ".join(sorted({s.split for s in samples if s.split}))
        do = f"it has {names}" if names else "it names no splits: leave --split out"
        raise DataError(f"the data has no split {split!r}", where=name, do=do)
    if known := len(seen.intersection(chosen)):
        progress.say(f"warning: this model was trained or chosen on {known} of these {len(chosen)} images")
    return chosen
