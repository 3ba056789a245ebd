"""What the report says of a detector."""

from __future__ import annotations

import base64
from html import escape
from typing import Any

import numpy as np

from regard.console import interval, sentence, shown, with_interval
from regard.metrics.detection_errors import ERRORS
from regard.report import figures
from regard.report.explanations import explanations, image_warnings
from regard.report.page import table
from regard.task import Page, Section
from regard.tasks.objects.diagnostics import diagnose, diagnose_training
from regard.weights import Run, write_text

NAMES = {
    "ap": ("AP", "average precision, mean over classes and overlaps of 0.50 to 0.95 (COCO's)"),
    "ap50": ("AP50", "the same where an overlap of half is enough"),
    "ap75": ("AP75", "the same where an overlap of three quarters is needed"),
    "ar": ("AR", "share of the objects that are found, with 100 boxes per image, mean over overlaps"),
    "small": ("", "objects of less than 32² pixels"),
    "medium": ("", "objects of 32² to 96² pixels"),
    "large": ("", "objects of more than 96² pixels"),
}
DRAWN = "explain/boxes.json"
"""The images that are drawn with their boxes."""


def page(run: Run, config: Any, data: dict[str, Any], summary: dict[str, Any]) -> Page:
    names, rows = list(summary["per_class"]), run.read_rows("metrics.csv")
    drawn = {
        "curves": figures.curves(rows, summary["best_epoch"], "AP", "loss", "train"),
        "precision": figures.precision_recall(summary["curves"], names),
        "confusion": figures.confusion(np.array(summary["confusion"]), [*names, "background"]),
    }
    for name, svg in drawn.items():
        write_text(run.path / "figures" / f"{name}.svg", svg)
    main = summary["figures"].get("ap", {"value": None, "low": None, "high": None, "n": 0})
    half = summary["figures"].get("ap50", main)
    ap, ap50 = shown(main["value"], ".3f"), shown(half["value"], ".3f")
    on = f"on {main['n']:,} {summary['split']} images"
    return Page(
        title=f"{config.model.model} on {data['name']}",
        headline=f'<p class="big">{ap50} AP50, {ap} AP <span>{escape(on)}; '
        f"95 % interval of AP {interval(main, '.3f')}</span></p>",
        headline_text=f"{ap50} AP50 and {ap} AP {on}",
        figures=[_row(name, figure) for name, figure in summary["figures"].items()],
        chosen_by="AP",
        warnings=[
            *(sentence(line) for line in [*diagnose(summary), *diagnose_training(rows, config.optim.lr)]),
            *image_warnings(data, summary),
        ],
        facts=[
            ("boxes", f"{sum(row['ap']['n'] for row in summary['per_class'].values()):,} tested"),
            ("classes", f"{len(names)}"),
            ("score that counts", f"{summary['threshold']:.2f}, the best on validation images"),
        ],
        sections=[
            Section("Training", f"<figure>{drawn['curves']}</figure>"),
            Section("Precision and recall", f"<figure>{drawn['precision']}</figure>" + _precision_words()),
            Section("Kinds of errors", _errors(summary)),
            Section(
                "Where it is right and wrong", f"<figure>{drawn['confusion']}</figure>" + _confusion_words(summary)
            ),
            *_images(run),
            *explanations(run),
            Section("Classes", _classes(summary)),
        ],
        limits="The figures hold for images like those it was tested on, and for objects annotated as those were. They "
        "say nothing of other cameras, scanners, hospitals or populations: test there before relying on it.",
    )


def _precision_words() -> str:
    return "<p>From left to right more and more boxes count, the surest first; an overlap of half is enough.</p>"


def _errors(summary: dict[str, Any]) -> str:
    rows = [
        (kind, f"{error['count']:,}", f"{error['gain']:+.3f}", ERRORS[kind])
        for kind, error in sorted(summary["errors"].items(), key=lambda item: -item[1]["gain"])
    ]
    told = table(("error", "how often", "AP50 gained without it", "meaning"), rows)
    return (
        f"<p>Boxes with a score of at least {summary['threshold']:.2f} are counted; the gain is of all boxes. Kinds "
        f"and gains are TIDE’s (Bolya et al., 2020).</p>{told}"
    )


def _confusion_words(summary: dict[str, Any]) -> str:
    return (
        f"<p>Boxes with a score of at least {summary['threshold']:.2f}, each with the object that it overlaps most, by "
        "at least half. The last row are boxes where no object is, the last column objects without a box.</p>"
    )


def _images(run: Run) -> list[Section]:
    words = "<p>The images with the most errors. True boxes are blue and dashed, predicted ones orange.</p>"
    return image_cards(run, DRAWN, "boxes", "Worst images", words, "with true and predicted boxes")


def image_cards(run: Run, listed: str, files: str, title: str, words: str, shows: str) -> list[Section]:
    """The drawn images whose names the file `listed` holds, if it is there: explain/FILES-01.png and so on."""
    if not (run.path / listed).is_file():
        return []
    cards = []
    for number, name in enumerate(run.read_json(listed, list), start=1):
        png = base64.b64encode((run.path / "explain" / f"{files}-{number:02d}.png").read_bytes()).decode()
        cards.append(
            f'<figure class="card"><figcaption>{escape(str(name))}</figcaption>'
            f'<img alt="{escape(str(name))} {shows}" src="data:image/png;base64,{png}"></figure>'
        )
    return [Section(title, words + "\n".join(cards))]


def _classes(summary: dict[str, Any]) -> str:
    rows = [
        (name, f"{row['ap']['n']:,}", *(with_interval(row[measure]) for measure in ("ap", "ap50", "ar")))
        for name, row in summary["per_class"].items()
    ]
    return table(("class", "objects", "AP", "AP50", "AR"), rows)


def _row(name: str, figure: dict[str, Any]) -> tuple[str, str, str, str]:
    measure, _, size = name.partition("_")
    label, meaning = NAMES[measure]
    if size:
        label, meaning = f"{label}, {size}", NAMES[size][1]
    return label, shown(figure["value"], ".3f"), interval(figure, ".3f"), meaning
