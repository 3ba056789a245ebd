"""report.html and model_card.md of several folds, in the frame of a run's report, from the folder's files alone."""

from __future__ import annotations

from html import escape
from typing import Any

from regard.console import shown
from regard.errors import RunError
from regard.report.checklist import chosen_inside
from regard.report.explanations import TITLE, masks_html
from regard.report.page import card_text, duration, facts, folds_flags, page_html, reproducing, settings_html, table
from regard.settings import RunConfig
from regard.task import Page
from regard.weights import Run, write_text


def write_folds_report(folder: Run, task: Any, config: RunConfig, origins: dict[str, Any], where: str) -> None:
    """`config` and `origins` are those of the first fold's run; the others differ in their splits alone."""
    data, summary = folder.read_json("data.json"), folder.read_json("summary.json")
    first = Run(folder.path / "fold1")
    try:
        page: Page = task.pool_page(folder, data, summary)
        folds = folder.read_json("folds.json")
        again = f"regard train {reproducing(where, config, origins, folds)}{folds_flags(folds)}"
        parts = _parts(page, where, config, origins, data, summary, again, folder)
        card = card_text(first, where, config, data, summary, page)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        what = f"the folder's files are damaged: {type(error).__name__}: {error}"
        raise RunError(what, where=folder.path, do="copy it again, or train a new run") from error
    write_text(folder.path / "model_card.md", card)
    write_text(folder.path / "report.html", page_html(page.title, parts))


def _parts(
    page: Page, where: str, config: RunConfig, origins: dict[str, Any], data: Any, summary: Any, again: str,
    folder: Run,
) -> list[str]:  # fmt: skip
    environment = Run(folder.path / "fold1").read_json("environment.json")
    device = str(environment["accelerator"] or environment["device"])
    epochs = ", ".join(map(str, summary["best_epochs"]))
    return [
        f"<h1>{escape(config.model.model)}: {escape(page.title)}</h1>",
        page.headline,
        *(f'<p class="warning">{escape(line)}</p>' for line in page.warnings),
        facts([
            ("parameters", f"{summary['parameters']:,}"),
            ("training, all folds", duration(summary["seconds"])),
            ("weights kept", f"epochs {epochs} of {config.optim.epochs}, by validation {page.chosen_by} in each fold"),
            *_nested(summary),
            ("device", device),
            *page.facts,
            *_retrained(summary),
        ]),
        "<h2>Figures</h2>",
        table(("figure", "value", "95 % interval", "meaning"), page.figures),
        "<h2>Folds</h2>",
        _fold_table(summary),
        *(f"<h2>{escape(section.title)}</h2>{section.html}" for section in page.sections if section.html),
        f"<h2>{TITLE}</h2>{masks}" if (masks := masks_html(folder)) else "",
        "<h2>Data</h2>",
        f"<p>{escape(where)}: {escape(str(data['recognised_by']))}. {escape(str(data['splits']))}. Each fold’s network "
        "was trained on the other folds, but for a part of them that chose its weights and thresholds. All that is "
        "computed from data (normalisation, class weights, thresholds) is from these alone.</p>",
        f"<p>Fingerprint: <code>{escape(str(data['fingerprint'])[:16])}</code>. "
        f"{escape(' '.join(data['findings']))}</p>",
        settings_html(config, origins),
        f"<h2>To reproduce</h2><pre>{escape(again)}</pre>",
        f"<p>regard {escape(str(environment['regard']))}, torch {escape(str(environment['torch']))}, "
        f"Python {escape(str(environment['python']))}, {escape(str(environment['platform']))}.</p>",
    ]  # fmt: skip


def _nested(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """What was chosen inside each fold, where something was."""
    values = [f"{name} {each}" for name, each in chosen_inside(summary).items()]
    if not values:
        return []
    return [
        (
            "settings chosen inside each fold",
            f"{'; '.join(values)}, by {summary['nested'][0]['figure']} on the next fold",
        )
    ]


def _retrained(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """What networks come to that were trained on outcomes without a meaning."""
    if "retrained" not in summary:
        return []
    made, values = summary["retrained"], summary["retrained"]["values"]
    text = f"{made['figure']} {sum(values) / len(values):.4f} on average, {len(values)} trainings, p {made['p']:.4f}"
    return [("trained anew on exchanged outcomes", text)]


def _fold_table(summary: dict[str, Any]) -> str:
    """Every figure per fold, with mean, deviation and variance over folds."""
    numbers = range(1, summary["folds"] + 1)
    rows = [
        (
            name.replace("_", " "),
            *map(shown, own["values"]),
            f"{shown(own['mean'])} ± {shown(own['std'])}",
            shown(own["variance"]),
        )
        for name, own in summary["per_fold"].items()
    ]
    links = ", ".join(f'<a href="fold{n}/report.html">fold {n}</a>' for n in numbers)
    made = table(("figure", *(f"fold {n}" for n in numbers), "mean ± deviation", "variance"), rows)
    return f"{made}<p>Deviation and variance are over folds (n − 1). Each fold’s own report: {links}.</p>"
