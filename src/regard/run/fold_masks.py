"""Maps of all folds against the masks: every subject is explained by the network that has not seen it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.console import Progress
from regard.errors import ConfigError, DataError, counted
from regard.explain import DEFAULT, Explanation, target_note
from regard.explain.mask_scores import MaskScore, mask_rows, score_masks
from regard.run.folds import is_folds, report_folds
from regard.run.using import load
from regard.tasks.image_predictor import save_maps
from regard.weights import Run


def explain_folds(
    folder: str | Path, data: str | Path, *, method: str = DEFAULT, most: int | None = None, device: str = "auto",
    quiet: bool = False, out: str | Path | None = None, **options: Any,
) -> list[MaskScore]:  # fmt: skip
    """Explain the tested subjects of each fold (`most` of them per fold) that have a mask, and score the maps.

    `data` is the table that the folds were trained on. Writes explain/masks.json into the folder and its report. With
    `out`, a NIfTI file, the maps of all tested subjects are written too, each under the subject's name. Other options
    are those of the method, and `checks="all"`, which takes most of the time.
    """
    if not is_folds(folder):
        raise ConfigError("this is no folder of folds", where=folder, do="train with --folds, or explain a run")
    place, progress = Run(Path(folder).expanduser()), Progress(quiet)
    if note := target_note(method, options.get("target"), options.get("checks") == "all"):
        progress.say(note)
    made = list[Explanation]()
    for fold in sorted(place.path.glob("fold*/summary.json")):
        made += _explain_fold(Run(fold.parent), data, method, most, device, progress, options, out is not None)
    rows, scores = mask_rows(made), score_masks(made)
    if out is not None and made:
        files = save_maps(made, Path(out))
        progress.say(f"{counted(len(files), 'maps')} written, {files[0]} and so on")
    elif not rows:
        raise DataError("no tested subject has a mask that marks anything", where=data, do="add a mask column")
    if not rows:
        return []
    held = {"scores": [s.to_json() for s in scores], "subjects": [row._asdict() for row in rows]}
    (place.path / "explain").mkdir(exist_ok=True)
    place.write_json("explain/masks.json", held)
    report_folds(place)
    return scores


def _explain_fold(
    run: Run, data: str | Path, method: str, most: int | None, device: str, progress: Progress, options: dict[str, Any],
    unmarked: bool,
) -> list[Explanation]:  # fmt: skip
    """Of the fold's tested subjects; those without a mask that marks anything only if `unmarked`."""
    predictor: Any = load(run.path, device, Progress(True))
    tested = {row["name"] for row in run.split_rows() if row["split"] == "test"}
    subjects = [s for s in predictor.inputs([str(data)]) if s.key in tested]
    subjects = [s for s in subjects if unmarked or any(path for _, path in s.masks)][:most]
    made = list[Explanation]()
    with progress.bar(f"explaining {run.path.name}", len(subjects)) as tick:
        for number, subject in enumerate(subjects, start=1):
            explanation = predictor.explain(subject, method, **({"checks": "none"} | options))
            if unmarked or explanation.location is not None:
                made.append(explanation)
            tick(number)
    return made
