"""report.html and model_card.md: the frame around what a task says of its run, from the run folder's files alone."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib.resources import files
from typing import Any

from regard import registry
from regard.console import cost_words, quoted
from regard.errors import RunError, counted
from regard.report.attention_explorer import scripts
from regard.report.checklist import Facts, checklist
from regard.settings import RunConfig
from regard.task import Page
from regard.weights import Run, write_text


def write_report(run: Run, config: RunConfig, origins: dict[str, Any], task: Any, command: str) -> None:
    """Draw the figures, then write model_card.md and report.html; `command` is the one that trains such runs."""
    data, summary = run.read_json("data.json"), run.read_json("summary.json")
    try:
        page: Page = task.page(run, config, data, summary)
        stored = run.read_json("config.json")
        where, defaults = str(stored["data"]), str(stored.get("why", ""))
        card = card_text(run, where, config, data, summary, page) if page.limits else ""
        again = f"regard {command} {reproducing(where, config, origins, _around(run))}{_folds(run)}"
        html = _page(run, where, config, origins, data, summary, page, defaults, again)
    except (TypeError, ValueError, LookupError, AttributeError) as error:  # a file of the run is not as it was written
        what = f"the run's files are damaged: {type(error).__name__}: {error}"
        raise RunError(what, where=run.path, do="copy the run again, or train a new one") from error
    if card:
        write_text(run.path / "model_card.md", card)
    write_text(run.path / "report.html", html)


def _page(
    run: Run, where: str, config: RunConfig, origins: dict[str, Any], data: Any, summary: Any, page: Page,
    defaults: str, again: str,
) -> str:  # fmt: skip
    environment = {name: value and str(value) for name, value in run.read_json("environment.json").items()}
    threads = counted(int(environment["threads"]), "threads")
    why = "the last" if config.optim.choose == "last" else f"by validation {page.chosen_by}"
    parts = [
        f"<h1>{escape(page.title)}</h1>",
        page.headline,
        *(f'<p class="warning">{escape(line)}</p>' for line in page.warnings),
        facts([
            ("parameters", f"{summary['parameters']:,}"),
            ("training", duration(summary["seconds"])),
            *compute_facts(summary),
            ("weights kept", f"epoch {summary['best_epoch']} of {config.optim.epochs}, {why}"),
            ("device", environment["accelerator"] or f"{environment['device']}, {threads}"),
            *page.facts,
        ]),
        "<h2>Figures</h2>",
        table(("figure", "value", "95 % interval", "meaning"), page.figures),
        *(f"<h2>{escape(section.title)}</h2>{section.html}" for section in page.sections if section.html),
        "<h2>Data</h2>",
        f"<p>{escape(where)}: {escape(str(data['recognised_by']))}. {escape(str(data['splits']))}.</p>",
        table(("split", str(data["samples"])), [(name, f"{total(count):,}") for name, count in data["counts"].items()]),
        f"<p>Fingerprint: <code>{escape(str(data['fingerprint'])[:16])}</code>. "
        f"{escape(' '.join(data['findings']))}</p>",
        settings_html(config, origins, defaults),
        f"<h2>To reproduce</h2><pre>{escape(again)}</pre>",
        f"<p>regard {escape(environment['regard'])}, torch {escape(environment['torch'])}, "
        f"Python {escape(environment['python'])}, {escape(environment['platform'])}.</p>",
    ]  # fmt: skip
    return page_html(page.title, parts)


def compute_facts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """What training cost, and with the pre-training; runs of older versions do not say it."""
    compute = summary.get("compute")
    if not compute:
        return []
    facts = [("compute", cost_words(compute))]
    if before := compute.get("pre_training"):
        whole = cost_words(compute["in_all"]) if "in_all" in compute else f"not known: {before['unknown']}"
        facts.append(("compute with pre-training", whole))
    return facts


def page_html(title: str, parts: list[str]) -> str:
    """A page that opens offline."""
    style = (files("regard.report") / "style.css").read_text(encoding="utf-8")
    return _SHELL.format(policy=_policy(), title=escape(title), style=style, body="\n".join(parts))


def settings_html(config: RunConfig, origins: dict[str, Any], defaults: str = "") -> str:
    """The settings by where they come from; `defaults` says why these."""
    settings = [(n, plain(v), origins.get(n, "default")) for n, v in config.flat().items() if v is not None]
    chosen = [row for row in settings if row[2] != "default"]
    rest = [row for row in settings if row[2] == "default"]
    header = ("setting", "value", "from")
    return (
        "<h2>Settings</h2>"
        + (f"<p>Defaults {escape(defaults)}.</p>" if defaults else "")
        + table(header, chosen)
        + f"<details><summary>{len(rest)} defaults</summary>{table(header, rest)}</details>"
    )


def _policy() -> str:
    """What the page may load and run: its own pictures, styles and scripts, which are known by their hashes."""
    hashes = (base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in scripts())
    own = " ".join(f"'sha256-{value}'" for value in hashes)
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {own}; base-uri 'none'"


def card_text(run: Run, where: str, config: RunConfig, data: Any, summary: Any, page: Page) -> str:
    rows = "\n".join(f"| {' | '.join(markdown(cell) for cell in row[:3])} |" for row in page.figures)
    counts = ", ".join(f"{markdown(name)} {total(count):,}" for name, count in data["counts"].items())
    warnings = markdown(" ".join(page.warnings)) or "None found."
    commands = "\n".join(f"    {line}" for line in _command(run).splitlines())  # nothing can end an indented block
    return f"""# {markdown(page.title)}

**Model.** {registry.title(config.model.model, **config.model.fields())}: {summary["parameters"]:,} parameters.

{_compute(summary)}{_origin(run)}\
**Data.** {markdown(where)} ({markdown(data["recognised_by"])}); {counts}. {markdown(data["splits"])}.
Fingerprint {markdown(data["fingerprint"])}.
{markdown(" ".join(data["findings"]))}

**Figures.** {markdown(page.headline_text)}, with 95 % intervals:

| figure | value | interval |
|---|---|---|
{rows}

**Warnings.** {warnings}

**Use and limits.** {page.limits}
{_checklist(Facts(run, where, config, data, summary, page)) if page.medical else ""}
**Made by**

{commands}
"""


def _checklist(facts: Facts) -> str:
    rows = checklist(facts)
    known, lines = sum(row[-1] for row in rows), []
    for topic, claim, tripod, text, _ in rows:
        cells = (topic, claim or "–", tripod or "–", text)
        lines.append(f"| {' | '.join(markdown(cell) for cell in cells)} |")
    table = "\n".join(lines)
    return f"""
**For a medical report: CLAIM and TRIPOD+AI.** Drafted from the run: {known} of {len(rows)} topics are filled; the
others are for the authors. The numbers are those of the items in CLAIM (2020) and TRIPOD+AI (2024).

| topic | CLAIM | TRIPOD+AI | from this run, or missing |
|---|---|---|---|
{table}
"""


def markdown(text: Any) -> str:
    """Text from a file as one line in which nothing is markup.

    >>> markdown("a\\n# <b> [x](y) | `z`")
    'a # &lt;b&gt; \\\\[x\\\\](y) \\\\| \\\\`z\\\\`'
    """
    line = escape(" ".join(str(text).split()), quote=False)
    return "".join(f"\\{c}" if c in "\\`|[]" else c for c in line if c.isprintable() or c == "\N{NO-BREAK SPACE}")


def reproducing(data: str, config: RunConfig, origins: dict[str, Any], folds: dict[str, Any]) -> str:
    """Data and flags that make a run of the same settings in a new folder, also on a faster or larger machine.

    What was fitted to this machine is given as the number that it came to. Of one of several `folds` (folds.json), what
    was chosen inside of it is chosen again.
    """
    fitted = {"epochs": config.optim.minutes is not None, "batch_size": origins.get("batch_size") == "auto"}
    words, elsewhere = [data], ("out", "minutes", *folds.get("nested", ()))
    for name, value in config.flat().items():
        said = fitted.get(name) or (origins.get(name) == "flag" and name not in elsewhere)
        flag = name.replace("_", "-")
        if not said or value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, tuple | list) else (value,))]
    return " ".join(map(quoted, words))


def _around(run: Run) -> dict[str, Any]:
    """Of one fold's run, folds.json of the folder around it."""
    path = run.path.resolve()
    is_fold = path.name.removeprefix("fold").isdecimal() and (path.parent / "folds.json").is_file()
    return Run(path.parent).read_json("folds.json") if is_fold else {}


def _folds(run: Run) -> str:
    """Of one fold's run, the flags that cut its splits: alone it cannot be made."""
    folds = _around(run)
    return f"{folds_flags(folds)}  # this run is {run.path.resolve().name.replace('fold', 'fold ')}" if folds else ""


def folds_flags(folds: dict[str, Any]) -> str:
    """
    >>> folds_flags({"folds": 5, "nested": {"lr": [0.001, 0.0005], "rope": [True, False]}})
    ' --folds 5 --nested lr=0.001,0.0005 rope=True,False'
    """
    words = [f"{name}={','.join(map(str, values))}" for name, values in folds.get("nested", {}).items()]
    return f" --folds {int(folds['folds'])}" + (f" --nested {' '.join(map(quoted, words))}" if words else "")


def _command(run: Run) -> str:
    return run.read_text("command.txt").strip()


def total(count: Any) -> int:
    """Of a number per class, the sum."""
    return sum(count.values()) if isinstance(count, dict) else count


def _origin(run: Run) -> str:
    """Where the weights come from, if the run did not start from random ones."""
    if not (run.path / "transfer.json").is_file():
        return ""
    told = run.read_json("transfer.json")
    changed = markdown("; ".join([*told["changed"], *told["untrained"]]))
    source, names = markdown(told["source"]), markdown(told["format"])
    return f"**Pre-training.** Started from {source} ({names} names): {changed}.\n\n"


def _compute(summary: dict[str, Any]) -> str:
    told = "; ".join(f"{name.removeprefix('compute ')}: {words}" for name, words in compute_facts(summary))
    return f"**Compute.** {markdown(told.removeprefix('compute: '))}.\n\n" if told else ""


def table(header: tuple[str, ...], rows: list[tuple[Any, ...]], *, wrap: bool = False) -> str:
    """A table of short values; with `wrap` of sentences, which are broken into lines."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    kind = ' class="wrap"' if wrap else ""
    return f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def facts(pairs: list[tuple[str, str]]) -> str:
    return (
        '<dl class="facts">'
        + "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in pairs)
        + "</dl>"
    )


def plain(value: Any) -> str:
    return " × ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


_SHELL = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head><body>
{body}
</body></html>
"""
