"""Which images a model may honestly be tested on: not those it was trained on or chosen by."""

from pathlib import Path

from regard.console import Progress
from regard.data import Scan
from regard.errors import DataError
from regard.weights import Run


def seen_samples(found: Scan, run: str | Path, progress: Progress) -> set[int]:
    """The samples that the run trained on or chose its weights by: the same pixels, or the same patient."""
    path = Path(run).expanduser()
    folder = path.parent.parent if path.is_file() else path
    if not (folder / "splits.csv").is_file():
        progress.say("warning: without its run folder, images this model was trained on cannot be told")
        return set()
    used = [row for row in Run(folder).read_rows("splits.csv") if row["split"] in ("train", "val")]
    pixels, groups = {row["pixels"] for row in used}, {row["group"] for row in used} - {""}
    return {i for i, sample in enumerate(found.source.samples) if found.digests[i] in pixels or sample.group in groups}


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
