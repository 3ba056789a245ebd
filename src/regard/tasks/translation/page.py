"""What the report says of a translator."""

from __future__ import annotations

from html import escape
from typing import Any

from regard.data.text.corpus import leak_lines
from regard.errors import counted
from regard.report import figures
from regard.report.page import table
from regard.report.word_explorer import word_explorer
from regard.task import Page, Section
from regard.weights import Run, write_text

NAMES = {
    "bleu": ("BLEU", "words and phrases of up to four words that the reference has too, 0 to 100"),
    "chrf": ("chrF", "the same of characters, which is fairer to long words, 0 to 100"),
    "exact_match": ("Exact matches", "share of translations that are the reference to the letter"),
    "perplexity": (
        "Perplexity",
        "effective branching factor per token of the reference; lower is better",
    ),
}
SHOWN = 12
WORDS = "explain/words.json"


def page(run: Run, config: Any, data: dict[str, Any], summary: dict[str, Any]) -> Page:
    smoothed = "train (with dropout and smoothed labels)" if config.task.label_smoothing else "train (with dropout)"
    curves = figures.losses(run.read_rows("metrics.csv"), summary["best_epoch"], "nats per token", smoothed)
    write_text(run.path / "figures" / "curves.svg", curves)
    bleu, (source, target) = summary["figures"]["bleu"], data["languages"]
    on = f"on {counted(bleu['n'], 'sentences')} of {summary['split']}"
    sets = {summary["split"]: summary, **summary["others"]}
    return Page(
        title=f"{config.model.model} on {data['name']}, {source} to {target}",
        headline=f'<p class="big">{bleu["value"]:.1f} BLEU <span>{escape(on)}; '
        f"95 % interval {bleu['low']:.1f} to {bleu['high']:.1f}</span></p>",
        headline_text=f"{bleu['value']:.1f} BLEU {on} ({summary['signatures']['bleu']})",
        figures=[
            (f"{NAMES[name][0]}, {part}" if len(sets) > 1 else NAMES[name][0], value(name, f["value"]),
             f"{value(name, f['low'])} to {value(name, f['high'])}", NAMES[name][1])
            for part, result in sets.items() for name, f in result["figures"].items()
        ],
        chosen_by="loss",
        warnings=_warnings(data, summary),
        facts=[
            ("padding", f"{summary['padding']:.0%} of the tokens trained on"),
            ("search", f"beam size {config.task.beam_size}, length penalty {config.task.length_penalty}"),
        ],
        sections=[
            Section(
                "Training",
                f"<p>As sacreBLEU counts: <code>{escape(summary['signatures']['bleu'])}</code>, "
                f"<code>{escape(summary['signatures']['chrf'])}</code>.</p><figure>{curves}</figure>",
            ),
            Section("Translations", _examples(run)),
            Section("Why it translated so", _reasons(run)),
        ],
        limits="The figures hold for sentences like those it was tested on. It can say what the source does not: have "
        "translations that matter read by a person.",
    )  # fmt: skip


def _warnings(data: Any, summary: Any) -> list[str]:
    lines = []
    if summary["split"] == "val":
        lines.append(
            "There was no test split: these figures are on the validation sentences that also chose the weights, "
            "and so are optimistic."
        )
    lines += [f"{line}." for line in leak_lines(data["leaks"])]
    for part in sorted({trouble["split"] for trouble in data["trouble"]}):
        if part.startswith("test"):
            lines.append(f"Pairs of {part} were left out: its figures are not comparable with others'.")
    return lines


def _examples(run: Run) -> str:
    """Some translations, at even distances: not the best, not the worst."""
    rows = run.read_rows("predictions.csv")
    chosen = [rows[n * len(rows) // SHOWN] for n in range(SHOWN)] if len(rows) > SHOWN else rows
    return f"<p>{len(chosen)} of {len(rows):,}, at even distances; all are in predictions.csv.</p>" + (
        table(
            ("source", "translation", "reference"),
            [(r["source"], r["translation"], r["reference"]) for r in chosen],
            wrap=True,
        )
    )


def _reasons(run: Run) -> str:
    if not (run.path / WORDS).is_file():
        return ""
    items = run.read_json(WORDS, list)
    trusted = sum(item["trusted"] for item in items)
    return (
        "<p>Attention <em>rollout</em> says which words of the source a translation goes "
        "back to. It is tested: words are taken away, those it calls most relevant first, and the translation should "
        "lose its probability sooner than in random orders. That holds clearly for "
        f"{trusted} of {len(items)} sentences here.</p>" + word_explorer(items)
    )


def value(name: str, number: float) -> str:
    """A figure as people write it.

    >>> value("exact_match", 0.5), value("bleu", 38.123), value("perplexity", 4.5678)
    ('50.0\\xa0%', '38.1', '4.568')
    """
    if name == "exact_match":
        return f"{100 * number:.1f}\N{NO-BREAK SPACE}%"
    return f"{number:.3f}" if name == "perplexity" else f"{number:.1f}"
