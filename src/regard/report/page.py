"""report.html and model_card.md: the frame around what a task says of its run, from the run folder's files alone."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import Any

from regard.errors import counted
from regard.settings import RunConfig
from regard.task import Page
from regard.weights import Run, write_text


def write_report(run: Run, config: RunConfig, origins: dict[str, Any], task: Any) -> None:
    """Draw the figures, then write model_card.md and report.html."""
    data, summary = run.read_json("data.json"), run.read_json("summary.json")
    page: Page = task.page(run, config, data, summary)
    stored = run.read_json("config.json")
    where, defaults = stored["data"], stored.get("why", "")
    if page.limits:
        write_text(run.path / "model_card.md", _card(run, where, config, data, summary, page))
    write_text(run.path / "report.html", _page(run, where, config, origins, data, summary, page, str(defaults)))


def _page(
    run: Run, where: str, config: RunConfig, origins: dict[str, Any], data: Any, summary: Any, page: Page, defaults: str
) -> str:
    environment = run.read_json("environment.json")
    settings = [(n, plain(v), origins.get(n, "default")) for n, v in config.flat().items() if v is not None]
    chosen = [row for row in settings if row[2] != "default"]
    rest = [row for row in settings if row[2] == "default"]
    threads = counted(environment["threads"], "threads")
    why = "the last" if config.optim.choose == "last" else f"by validation {page.chosen_by}"
    parts = [
        f"<h1>{escape(page.title)}</h1>",
        page.headline,
        *(f'<p class="warning">{escape(line)}</p>' for line in page.warnings),
        facts([
            ("parameters", f"{summary['parameters']:,}"),
            ("training", duration(summary["seconds"])),
            ("weights kept", f"epoch {summary['best_epoch']} of {config.optim.epochs}, {why}"),
            ("device", environment["accelerator"] or f"{environment['device']}, {threads}"),
            *page.facts,
        ]),
        "<h2>Figures</h2>",
        table(("figure", "value", "95 % interval", "meaning"), page.figures),
        *(f"<h2>{escape(section.title)}</h2>{section.html}" for section in page.sections if section.html),
        "<h2>Data</h2>",
        f"<p>{escape(where)}: {escape(data['recognised_by'])}. {escape(data['splits'])}.</p>",
        table(("split", data["samples"]), [(name, f"{total(count):,}") for name, count in data["counts"].items()]),
        f"<p>Fingerprint: <code>{escape(data['fingerprint'][:16])}</code>. {escape(' '.join(data['findings']))}</p>",
        "<h2>Settings</h2>",
        f"<p>Defaults {escape(defaults)}.</p>" if defaults else "",
        table(("setting", "value", "from"), chosen),
        f"<details><summary>{len(rest)} defaults</summary>{table(('setting', 'value', 'from'), rest)}</details>",
        f"<h2>To reproduce</h2><pre>{escape(_command(run))}</pre>",
        f"<p>regard {escape(environment['regard'])}, torch {escape(environment['torch'])}, "
        f"Python {escape(environment['python'])}, {escape(environment['platform'])}.</p>",
    ]  # fmt: skip
    style = (files("regard.report") / "style.css").read_text(encoding="utf-8")
    return _SHELL.format(title=escape(page.title), style=style, body="\n".join(parts))


def _card(run: Run, where: str, config: RunConfig, data: Any, summary: Any, page: Page) -> str:
    rows = "\n".join(f"| {name} | {value} | {interval} |" for name, value, interval, _ in page.figures)
    counts = ", ".join(f"{name} {total(count):,}" for name, count in data["counts"].items())
    warnings = " ".join(page.warnings) or "None found."
    return f"""# {page.title}

**Model.** {config.model.model}: {summary["parameters"]:,} parameters.

{_origin(run)}**Data.** {where} ({data["recognised_by"]}); {counts}. {data["splits"]}.
Fingerprint `{data["fingerprint"]}`.
{" ".join(data["findings"])}

**Figures.** {page.headline_text}, with 95 % intervals:

| figure | value | interval |
|---|---|---|
{rows}

**Warnings.** {warnings}

**Use and limits.** {page.limits}

**Made by** `{_command(run)}`
"""


def _command(run: Run) -> str:
    return (run.path / "command.txt").read_text(encoding="utf-8").strip()


def total(count: Any) -> int:
    """Of a number per class, the sum."""
    return sum(count.values()) if isinstance(count, dict) else count


def _origin(run: Run) -> str:
    """Where the weights come from, if the run did not start from random ones."""
    if not (run.path / "transfer.json").is_file():
        return ""
    told = run.read_json("transfer.json")
    changed = "; ".join([*told["changed"], *told["untrained"]])
    return f"**Pre-training.** Started from {told['source']} ({told['format']} names): {changed}.\n\n"


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
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head><body>
{body}
</body></html>
"""
