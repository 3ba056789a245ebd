"""What the report says of a classifier."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from regard.console import sentence, with_interval
from regard.report import figures
from regard.report.explanations import explanations, image_warnings
from regard.report.page import table
from regard.task import Page, Section
from regard.tasks.classification.evaluation import doubts
from regard.weights import Run, write_text

NAMES = {
    "accuracy": ("Accuracy", "share of images whose likeliest class is the true one"),
    "top5_accuracy": ("Top-5 accuracy", "share whose true class is among the five likeliest"),
    "balanced_accuracy": ("Balanced accuracy", "mean of the classes' recalls"),
    "auroc": (
        "AUROC",
        "chance that a true image ranks above another; mean over classes, one against the rest",
    ),
    "calibration_error": (
        "Calibration error",
        "mean gap between confidence and accuracy, 15 bins; lower is better",
    ),
    "log_loss": ("Log loss", "mean −log p of the true class, in nats; lower is better"),
    "brier": ("Brier score", "mean squared distance to the truth, 0 to 2; lower is better"),
}
BESIDE = 15
"""Classes up to which a confusion matrix can be read in half of the page's width."""
SHARES = {"accuracy", "top5_accuracy", "balanced_accuracy"}


def page(run: Run, config: Any, data: dict[str, Any], summary: dict[str, Any]) -> Page:
    accuracy, classes = summary["figures"]["accuracy"], data["classes"]
    kind = chosen_by(config).replace("_", " ")
    pixels = "on pixels" if kind == "accuracy" else f"on pixels, {kind}"
    drawn = {
        "curves": figures.curves(run.read_rows("metrics.csv"), summary["best_epoch"], kind),
        "confusion": figures.confusion(np.array(summary["confusion"]), classes),
        "reliability": figures.reliability(np.array(summary["reliability"])),
    }
    if len(classes) <= 50:
        drawn["recalls"] = figures.recalls(summary["per_class"])
    for name, svg in drawn.items():
        write_text(run.path / "figures" / f"{name}.svg", svg)
    on = f"on {accuracy['n']:,} {summary['split']} images"
    interval = f"{_percent(accuracy['low'])} to {_percent(accuracy['high'])}"
    measures = ("recall", "precision", "auroc")
    return Page(
        title=f"{config.model.model} on {data['name']}",
        headline=f'<p class="big">{_percent(accuracy["value"])} accuracy '
        f"<span>{escape(on)}; 95 % interval {interval}</span></p>",
        headline_text=f"{_percent(accuracy['value'])} accuracy {on}",
        figures=[
            (NAMES[name][0], _value(name, f["value"]), f"{_value(name, f['low'])} to {_value(name, f['high'])}",
             NAMES[name][1])
            for name, f in summary["figures"].items()
        ],
        chosen_by=kind,
        warnings=_warnings(data, summary),
        facts=[
            ("always the commonest class", _percent(_commonest(summary))),
            *(
                (f"{name} {pixels}", f"{_percent(f['value'])} ({_percent(f['low'])} to {_percent(f['high'])})")
                for name, own in summary.get("pixel_baselines", {}).items()
                for f in own.values()
            ),
            ("data", f"{sum(sum(c.values()) for c in data['counts'].values()):,} images, {len(classes)} classes"),
        ],
        sections=[
            Section("Training", f"<figure>{drawn['curves']}</figure>"),
            Section("Where it is right and wrong", _mistakes(drawn, np.array(summary["confusion"]), classes)),
            Section(
                "Does it mean what it says?",
                f'<div class="pair"><figure>{drawn["reliability"]}</figure><p>Each dot is a bin of predictions '
                "of similar confidence. Above the line the model is too modest, below it too sure.</p></div>",
            ),
            *explanations(run),
            Section(
                "Classes",
                "<details><summary>Every class, with intervals</summary>"
                + table(("class", "images", "recall", "precision", "AUROC"), [
                    (name, f"{row['recall']['n']:,}", *(with_interval(row[m]) for m in measures))
                    for name, row in summary["per_class"].items()
                ]) + "</details>",
            ),
        ],
        medical=True,
        limits="The figures hold for images like those it was tested on. They say nothing of other cameras, scanners, "
        "hospitals or populations: test there before relying on it.",
    )  # fmt: skip


def _mistakes(drawn: dict[str, str], counts: np.ndarray, classes: list[str]) -> str:
    """The confusion matrix, beside the recalls where it is small; of many classes also the commonest mistakes."""
    recalls = drawn.get("recalls", "")
    if len(classes) <= BESIDE:
        return f'<div class="pair"><figure>{drawn["confusion"]}</figure><figure>{recalls}</figure></div>'
    pairs = figures.confused_pairs(counts, classes)
    rows = [(true, predicted, share) for true, predicted, _, share in pairs]
    common = "<p>The commonest mistakes:</p>" + table(("true", "predicted", "images"), rows) if rows else ""
    beside = f'<div class="pair"><div>{common}</div><figure>{recalls}</figure></div>'
    return f"<figure>{drawn['confusion']}</figure>{beside}"


def _warnings(data: Any, summary: Any) -> list[str]:
    lines = [*image_warnings(data, summary), *(sentence(line) for line in doubts(summary))]
    if (np.array(summary["confusion"]).sum(0) > 0).sum() == 1:
        lines.insert(0, "It gives the same answer for every image: it has learnt nothing yet.")
    if is_unbalanced(list(data["counts"].get("train", {}).values())):
        lines.append(
            "The largest class has more than ten times the training images of the smallest: accuracy says little of "
            "the small ones. Look at the balanced accuracy and at each class."
        )
    if data["conflicting_labels"]:
        same = [key for group in data["conflicting_labels"] for key in group]
        more = ", … (all in data.json)" if len(same) > 4 else ""
        lines.append(f"{len(same)} files are equal to others that have another label: {', '.join(same[:4])}{more}.")
    return lines


def chosen_by(config: Any) -> str:
    """The figure of the validation images that chooses the weights."""
    return "balanced_accuracy" if config.task.class_weights == "balanced" else "accuracy"


def is_unbalanced(counts: list[int]) -> bool:
    """Whether the largest class has more than ten times the images of the smallest."""
    return bool(counts) and max(counts) > 10 * min(counts)


def _percent(value: float) -> str:
    return f"{100 * value:.2f}\N{NO-BREAK SPACE}%"


def _value(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return _percent(value) if name in SHARES else f"{value:.4f}"


def _commonest(summary: Any) -> float:
    """What answering the commonest class every time would score."""
    counts = np.array(summary["confusion"]).sum(1)
    return float(counts.max() / counts.sum())
