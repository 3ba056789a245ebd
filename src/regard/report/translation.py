"""The report of a run of translation: figures, the translations behind them, and how training went."""

from __future__ import annotations

from html import escape
from typing import Any

from regard.report import figures
from regard.report.page import duration, facts, kept, plain, table, whole_page
from regard.report.words import words_explorer
from regard.weights import Run, write_text

NAMES = {
    "bleu": ("BLEU", "words and phrases of up to four words that the reference has too, 0 to 100"),
    "chrf": ("chrF", "the same of characters, which is fairer to long words, 0 to 100"),
    "exact_match": ("Exact matches", "share of translations that are the reference to the letter"),
    "perplexity": (
        "Perplexity",
        "between how many tokens the network wavers at each of the reference; lower is better",
    ),
}
SHOWN = 12
WORDS = "explain/words.json"


def write_translation(run: Run) -> None:
    """Draw the curves, then write model_card.md and report.html, from the files of the run."""
    data, config, origins = run.read_config()
    about, summary = run.read_json("data.json"), run.read_json("summary.json")
    smoothed = "train (with dropout and smoothed labels)" if config.smoothing else "train (with dropout)"
    curves = figures.losses(run.read_rows("metrics.csv"), summary["best_epoch"], "nats a token", smoothed)
    write_text(run.path / "figures" / "curves.svg", curves)
    write_text(run.path / "model_card.md", _card(run, data, config, about, summary))
    write_text(run.path / "report.html", _page(run, data, config, origins, about, summary, curves))


def _page(run: Run, data: str, config: Any, origins: Any, about: Any, summary: Any, curves: str) -> str:
    bleu, (source, target) = summary["figures"]["bleu"], about["languages"]
    title = f"{config.model} on {about['name']}, {source} to {target}"
    command = (run.path / "command.txt").read_text(encoding="utf-8").strip()
    environment = run.read_json("environment.json")
    settings = [
        (name, plain(getattr(config, name)), origin) for name, origin in origins.items()
        if getattr(config, name) is not None
    ]  # fmt: skip
    sets = {summary["split"]: summary, **summary["others"]}
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="big">{bleu["value"]:.1f} BLEU <span>on {bleu["n"]:,} sentences of {escape(summary["split"])}; '
        f"95 % interval {bleu['low']:.1f} to {bleu['high']:.1f}</span></p>",
        _warnings(about, summary),
        facts([
            ("parameters", f"{summary['parameters']:,}"),
            ("training", duration(summary["seconds"])),
            ("weights kept", kept(config, summary, "loss")),
            ("device", environment["accelerator"] or f"{environment['device']}, {environment['threads']} threads"),
            ("padding", f"{summary['padding']:.0%} of the tokens trained on"),
            ("search", f"{config.beams} beams, length penalty {config.penalty}"),
        ]),
        "<h2>Figures</h2>",
        table(("set", "figure", "value", "95 % interval", "meaning"), [
            (part, NAMES[name][0], value(name, f["value"]), f"{value(name, f['low'])} to {value(name, f['high'])}",
             NAMES[name][1])
            for part, result in sets.items() for name, f in result["figures"].items()
        ]),
        f"<p>As sacreBLEU counts: <code>{escape(summary['signatures']['bleu'])}</code>, "
        f"<code>{escape(summary['signatures']['chrf'])}</code>.</p>",
        f"<h2>Training</h2><figure>{curves}</figure>",
        _examples(run),
        _reasons(run),
        "<h2>Data</h2>",
        f"<p>{escape(data)}: {escape(about['recognised_by'])}. {escape(about['splits'])}.</p>",
        table(("split", "pairs"), [(name, f"{count:,}") for name, count in about["counts"].items()]),
        f"<p>Fingerprint of all sentences: <code>{about['fingerprint'][:16]}</code>. Pairs that occur more than once: "
        f"{about['duplicates']:,}; left out: {len(about['trouble']):,}.</p>",
        "<h2>Settings</h2>",
        table(("setting", "value", "from"), [row for row in settings if row[2] != "default"]),
    ]  # fmt: skip
    return whole_page(title, parts, command, environment)


def _warnings(about: Any, summary: Any) -> str:
    lines = []
    if summary["split"] == "val":
        lines.append(
            "There was no test split: these figures are on the validation sentences that also chose the weights, "
            "and so are optimistic."
        )
    for part, counts in about["leaks"].items():
        if counts["pairs"]:
            lines.append(f"{counts['pairs']:,} pairs of {part} are in train too: its figures may be too good.")
    for part in {trouble["split"] for trouble in about["trouble"]}:
        if part.startswith("test"):
            lines.append(f"Pairs of {part} were left out: its figures are not comparable with others'.")
    return "".join(f'<p class="warning">{escape(line)}</p>' for line in lines)


def _examples(run: Run) -> str:
    """Some translations, at even distances: not the best, not the worst."""
    rows = run.read_rows("predictions.csv")
    chosen = [rows[n * len(rows) // SHOWN] for n in range(SHOWN)] if len(rows) > SHOWN else rows
    return (
        f"<h2>Translations</h2><p>{len(chosen)} of {len(rows):,}, at even distances; all are in predictions.csv.</p>"
        + (
            table(
                ("source", "translation", "reference"),
                [(r["source"], r["translation"], r["reference"]) for r in chosen],
            )
        )
    )


def _reasons(run: Run) -> str:
    if not (run.path / WORDS).is_file():
        return ""
    items = run.read_json(WORDS)
    trusted = sum(item["trusted"] for item in items)
    return (
        "<h2>Why it translated so</h2><p>Attention <em>rollout</em> says which words of the source a translation goes "
        "back to. It is tested: words are taken away, those it calls most relevant first, and the translation should "
        "lose its probability sooner than in random orders. That holds clearly for "
        f"{trusted} of {len(items)} sentences here.</p>" + words_explorer(items)
    )


def _card(run: Run, data: str, config: Any, about: Any, summary: Any) -> str:
    source, target = about["languages"]
    rows = "\n".join(
        f"| {NAMES[name][0]} | {value(name, f['value'])} | {value(name, f['low'])} to {value(name, f['high'])} |"
        for name, f in summary["figures"].items()
    )
    counts = ", ".join(f"{name} {count:,}" for name, count in about["counts"].items())
    return f"""# {config.model} on {about["name"]}, {source} to {target}

**Model.** {config.model}: {summary["parameters"]:,} parameters.

**Data.** {data} ({about["recognised_by"]}); {counts}. {about["splits"]}. Fingerprint `{about["fingerprint"]}`.

**Figures** on {summary["figures"]["bleu"]["n"]:,} sentences of {summary["split"]}, with 95 % intervals:

| figure | value | interval |
|---|---|---|
{rows}

BLEU: `{summary["signatures"]["bleu"]}`.

**Use and limits.** The figures hold for sentences like those it was tested on. It can say what the source does not:
have translations that matter read by a person.

**Made by** `{(run.path / "command.txt").read_text(encoding="utf-8").strip()}`
"""


def value(name: str, number: float) -> str:
    """A figure as people write it.

    >>> value("exact_match", 0.5), value("bleu", 38.123), value("perplexity", 4.5678)
    ('50.0\\xa0%', '38.1', '4.568')
    """
    if name == "exact_match":
        return f"{100 * number:.1f}\N{NO-BREAK SPACE}%"
    return f"{number:.3f}" if name == "perplexity" else f"{number:.1f}"
