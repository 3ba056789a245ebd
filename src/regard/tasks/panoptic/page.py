"""What the report says of panoptic segmentation, beside what it says of boxes."""

from __future__ import annotations

from html import escape
from typing import Any

from regard.console import interval, shown, with_interval
from regard.report.page import table
from regard.task import Page, Section
from regard.tasks.objects.page import image_cards
from regard.tasks.objects.page import page as page_of_boxes
from regard.weights import Run

NAMES = {
    "pq": ("PQ", "panoptic quality: SQ × RQ, mean over classes (COCO's)"),
    "sq": ("SQ", "segmentation quality: mean overlap of the segments that were found"),
    "rq": ("RQ", "recognition quality: F1 of segments, an overlap above half being found"),
    "mask_ap": ("AP of masks", "average precision of the masks of things (COCO's)"),
    "mask_ap50": ("AP50 of masks", "the same where an overlap of half is enough"),
    "mask_ap75": ("AP75 of masks", "the same where an overlap of three quarters is needed"),
    "mask_ar": ("AR of masks", "share of the things that are found, mean over overlaps"),
}
GROUPS = {"things": "objects that can be counted", "stuff": "regions without number"}
DRAWN = "explain/maps.json"
"""The images whose maps are drawn."""


def page(run: Run, config: Any, data: dict[str, Any], summary: dict[str, Any]) -> Page:
    own = [name for name in summary["figures"] if name.split("_")[0] in ("pq", "sq", "rq", "mask")]
    of_boxes = {name: figure for name, figure in summary["figures"].items() if name not in own}
    made = page_of_boxes(run, config, data, summary | {"figures": of_boxes})
    main = "pq" if "pq" in own else "mask_ap"
    figure, (word, _) = summary["figures"].get(main, {"value": None, "low": None, "high": None, "n": 0}), NAMES[main]
    on = f"on {figure['n']:,} {summary['split']} images"
    made.headline = (
        f'<p class="big">{shown(figure["value"], ".3f")} {word} <span>{escape(on)}; 95 % interval '
        f"{interval(figure, '.3f')}</span></p>" + made.headline
    )
    made.headline_text = f"{shown(figure['value'], '.3f')} {word} {on}; boxes: {made.headline_text}"
    made.figures = [_row(name, summary["figures"][name]) for name in own] + made.figures
    made.chosen_by = word
    if "panoptic" in summary:
        made.facts.append(("score for the map", f"{summary['map_threshold']:.2f}, the best on validation images"))
    sections = [*_maps(run), *_classes(summary)]
    return _with(made, sections)


def _with(made: Page, sections: list[Section]) -> Page:
    """Maps come after the section on training, before what is said of boxes."""
    made.sections = [*made.sections[:1], *sections, *made.sections[1:]]
    return made


def _maps(run: Run) -> list[Section]:
    words = "<p>The image, its true segments and the predicted ones; first the worst image, then the best.</p>"
    return image_cards(run, DRAWN, "maps", "Segments", words, "with its segments")


def _classes(summary: dict[str, Any]) -> list[Section]:
    if "panoptic" not in summary:
        return []
    rows = [
        (
            name, "thing" if summary["things"][name] else "stuff",
            f"{row['true_positives'] + row['false_negatives']:,.0f}",
            *(with_interval(row[part]) for part in ("pq", "sq", "rq")),
        )
        for name, row in summary["panoptic"].items()
    ]  # fmt: skip
    return [Section("Segments by class", table(("class", "kind", "segments", "PQ", "SQ", "RQ"), rows))]


def _row(name: str, figure: dict[str, Any]) -> tuple[str, str, str, str]:
    measure, _, group = (name, "", "") if name in NAMES else name.partition("_")
    label, meaning = NAMES[measure]
    if group:
        label, meaning = f"{label}, {group}", GROUPS[group]
    return label, shown(figure["value"], ".3f"), interval(figure, ".3f"), meaning
