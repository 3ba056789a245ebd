"""report.html and model_card.md, from the files of a run folder and nothing else."""

from __future__ import annotations

import base64
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from regard.report import figures
from regard.report.explorer import explorer
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
METHODS = {
    "rollout": "<em>Rollout</em> follows attention from the output to the input (the ViT paper’s Figure 6): where the "
    "network looked.",
    "integrated_gradients": "<em>Integrated gradients</em> share out the score among the pixels: what decided.",
    "grad_cam": "<em>Grad-CAM</em> weighs the last feature map by what raised the score: where the network looked.",
    "occlusion": "<em>Occlusion</em> covers one place after another and sees the score fall: what was needed.",
}
SHARES = {"accuracy", "top5_accuracy", "balanced_accuracy"}


def write_training(run: Run) -> None:
    """Draw the figures, then write model_card.md and report.html."""
    data, config, origins = run.read_config()
    about, summary = run.read_json("data.json"), run.read_json("summary.json")
    drawn = {
        "curves": figures.curves(run.read_rows("metrics.csv"), summary["best_epoch"]),
        "confusion": figures.confusion(np.array(summary["confusion"]), about["classes"]),
        "reliability": figures.reliability(np.array(summary["reliability"])),
    }
    if len(about["classes"]) <= 50:
        drawn["recalls"] = figures.recalls(summary["per_class"])
    for name, svg in drawn.items():
        write_text(run.path / "figures" / f"{name}.svg", svg)
    write_text(run.path / "model_card.md", _card(run, data, config, about, summary))
    write_text(run.path / "report.html", _page(run, data, config, origins, about, summary, drawn))


def _page(run: Run, data: str, config: Any, origins: Any, about: Any, summary: Any, drawn: dict[str, str]) -> str:
    accuracy = summary["figures"]["accuracy"]
    title = f"{config.model} on {about['name']}"
    command = (run.path / "command.txt").read_text(encoding="utf-8").strip()
    settings = [
        (name, plain(getattr(config, name)), origin) for name, origin in origins.items()
        if getattr(config, name) is not None
    ]  # fmt: skip
    chosen = [row for row in settings if row[2] != "default"]
    rest = [row for row in settings if row[2] == "default"]
    environment = run.read_json("environment.json")
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="big">{_percent(accuracy["value"])} accuracy <span>on {accuracy["n"]:,} {summary["split"]} images; '
        f'95 % interval {_percent(accuracy["low"])} to {_percent(accuracy["high"])}</span></p>',
        _warnings(about, summary),
        facts([
            ("parameters", f"{summary['parameters']:,}"),
            ("training", duration(summary["seconds"])),
            ("weights kept", kept(config, summary, "accuracy")),
            ("device", environment["accelerator"] or f"{environment['device']}, {environment['threads']} threads"),
            ("always the commonest class", _percent(_commonest(summary))),
            ("data", f"{_images(about):,} images, {len(about['classes'])} classes"),
        ]),
        "<h2>Figures</h2>",
        table(("figure", "value", "95 % interval", "meaning"), [
            (NAMES[name][0], _value(name, f["value"]), _range(name, f), NAMES[name][1])
            for name, f in summary["figures"].items()
        ]),
        f"<h2>Training</h2><figure>{drawn['curves']}</figure>",
        "<h2>Where it is right and wrong</h2>",
        f'<div class="pair"><figure>{drawn["confusion"]}</figure><figure>{drawn.get("recalls", "")}</figure></div>',
        "<h2>Does it mean what it says?</h2>",
        f'<div class="pair"><figure>{drawn["reliability"]}</figure><p>Each dot is a bin of predictions of similar '
        "confidence. Above the line the model is too modest, below it too sure.</p></div>",
        _explanations(run),
        "<h2>Classes</h2>",
        "<details><summary>Every class, with intervals</summary>"
        + table(("class", "images", "recall", "precision", "AUROC"), [
            (name, f"{row['recall']['n']:,}", *(_interval(row[m]) for m in ("recall", "precision", "auroc")))
            for name, row in summary["per_class"].items()
        ]) + "</details>",
        "<h2>Data</h2>",
        f"<p>{escape(data)}: {escape(about['recognised_by'])}. {escape(about['splits'])}.</p>",
        table(("split", "images"), [(name, f"{sum(c.values()):,}") for name, c in about["counts"].items()]),
        f"<p>Fingerprint of names, labels and pixels: <code>{about['fingerprint'][:16]}</code>. "
        f"Images that occur more than once: {len(about['duplicates'])}; across splits: {len(about['leaks'])}; "
        f"with differing labels: {len(about['conflicting_labels'])}. Files ignored: {len(about['ignored'])}. "
        + (f"Patients or groups: {about['groups']}; across splits: {len(about['groups_across_splits'])}.</p>"
           if about["groups"] else "Patients or groups: not known.</p>"),
        "<h2>Settings</h2>",
        table(("setting", "value", "from"), chosen),
        f"<details><summary>{len(rest)} defaults</summary>{table(('setting', 'value', 'from'), rest)}</details>",
    ]  # fmt: skip
    return whole_page(title, parts, command, environment)


def whole_page(title: str, parts: list[str], command: str, environment: dict[str, Any]) -> str:
    """A page of these parts, ending in how to make its run again."""
    ending = [
        f"<h2>To reproduce</h2><pre>{escape(command)}</pre>",
        f"<p>regard {environment['regard']}, torch {escape(environment['torch'])}, Python {environment['python']}, "
        f"{escape(environment['platform'])}.</p>",
    ]
    style = (files("regard.report") / "style.css").read_text(encoding="utf-8")
    return _SHELL.format(title=escape(title), style=style, body="\n".join([*parts, *ending]))


def _warnings(about: Any, summary: Any) -> str:
    lines = []
    if (np.array(summary["confusion"]).sum(0) > 0).sum() == 1:
        lines.append("It gives the same answer for every image: it has learnt nothing yet.")
    if summary["split"] == "val":
        lines.append(
            "There was no test split: these figures are on the validation images that also chose the weights, "
            "and so are optimistic."
        )
    if about["leaks"]:
        lines.append(
            f"{len(about['leaks'])} images occur in more than one split: the figures may be too good. "
            "data.json lists them."
        )
    if about["groups_across_splits"]:
        lines.append(
            f"{len(about['groups_across_splits'])} patients (groups) have images in more than one split: the figures "
            "may be too good. data.json lists them."
        )
    if about["conflicting_labels"]:
        lines.append(f"{len(about['conflicting_labels'])} images occur with different labels. data.json lists them.")
    return "".join(f'<p class="warning">{escape(line)}</p>' for line in lines)


def _explanations(run: Run) -> str:
    if not (run.path / "explain" / "explanations.json").is_file():
        return ""
    images = run.read_json("explain/explanations.json")
    if not all(isinstance(maps, list) for maps in images):
        return "<h2>Why it decided so</h2><p>Explained by an earlier version, in a form this one does not show.</p>"
    pictures = []
    for number, maps in enumerate(images, start=1):
        png = base64.b64encode((run.path / "explain" / f"{number:02d}.png").read_bytes()).decode()
        name, word = escape(maps[0]["name"]), "right" if maps[0]["predicted"] == maps[0]["label"] else "wrong"
        verdicts = "".join(
            f'<br>{escape(item["method"])}: <span class="{"right" if item["trusted"] else "wrong"}">'
            f"{escape(item['verdict'])}</span>"
            for item in maps
        )
        pictures.append(
            f'<figure class="card"><figcaption><b class="{word}">{word}</b> {name}{verdicts}</figcaption>'
            f'<img alt="input and maps of {name}" src="data:image/png;base64,{png}"></figure>'
        )
    gains = {item["method"]: [maps[n]["scores"]["gain"] for maps in images] for n, item in enumerate(images[0])}
    means = ", ".join(f"{np.mean(values):+.2f} ({escape(name)})" for name, values in gains.items())
    return (
        f"<h2>Why it decided so</h2><p>{' '.join(METHODS[name] for name in gains if name in METHODS)} "
        "Every map is tested: <em>deletion</em> removes the places it calls important and should make the "
        "probability fall early (low is good), <em>insertion</em> brings them back and should make it rise early (high "
        "is good); random maps score the same on both. And it is drawn again for the same network with random weights, "
        f"where it must be another. Over these images insertion exceeds deletion by {means}.</p>"
        + explorer(run, [maps[0] for maps in images])
        + "\n".join(pictures)
    )


def _card(run: Run, data: str, config: Any, about: Any, summary: Any) -> str:
    rows = "\n".join(
        f"| {NAMES[name][0]} | {_value(name, f['value'])} | {_range(name, f)} |"
        for name, f in summary["figures"].items()
    )
    counts = ", ".join(f"{name} {sum(c.values()):,}" for name, c in about["counts"].items())
    classes = ", ".join(about["classes"][:20]) + (" …" if len(about["classes"]) > 20 else "")
    leaks = f"By pixels: {len(about['leaks'])} images in more than one split. By patient or group: " + (
        f"{len(about['groups_across_splits'])} of {about['groups']}."
        if about["groups"]
        else "not known, the data names none."
    )
    origin = _origin(run)
    return f"""# {config.model} on {about["name"]}

**Model.** {config.model}: {summary["parameters"]:,} parameters, input {plain(config.size)}, classes {classes}.

{origin}**Data.** {data} ({about["recognised_by"]}); {counts}. {about["splits"]}. Fingerprint `{about["fingerprint"]}`.

**Figures** on {summary["figures"]["accuracy"]["n"]:,} {summary["split"]} images, with 95 % intervals:

| figure | value | interval |
|---|---|---|
{rows}

**Leaks.** {leaks}

**Use and limits.** The figures hold for images like those it was tested on. They say nothing of other
cameras, scanners, hospitals or populations: test there before relying on it.

**Made by** `{(run.path / "command.txt").read_text(encoding="utf-8").strip()}`
"""


def _origin(run: Run) -> str:
    """Where the weights come from, if the run did not start from random ones."""
    if not (run.path / "transfer.json").is_file():
        return ""
    told = run.read_json("transfer.json")
    changed = "; ".join([*told["changed"], *told["untrained"]])
    return f"**Pre-training.** Started from {told['source']} ({told['format']} names): {changed}.\n\n"


def table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def facts(pairs: list[tuple[str, str]]) -> str:
    return (
        '<dl class="facts">'
        + "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in pairs)
        + "</dl>"
    )


def kept(config: Any, summary: Any, by: str) -> str:
    """Which epoch's weights, and why these."""
    why = "the last" if config.choose == "last" else f"by validation {by}"
    return f"epoch {summary['best_epoch']} of {config.epochs}, {why}"


def plain(value: Any) -> str:
    return " × ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _percent(value: float) -> str:
    return f"{100 * value:.2f}\N{NO-BREAK SPACE}%"


def _value(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return _percent(value) if name in SHARES else f"{value:.4f}"


def _range(name: str, figure: dict[str, float]) -> str:
    return f"{_value(name, figure['low'])} to {_value(name, figure['high'])}"


def _commonest(summary: Any) -> float:
    """What answering the commonest class every time would score."""
    counts = np.array(summary["confusion"]).sum(1)
    return float(counts.max() / counts.sum())


def _images(about: Any) -> int:
    return sum(sum(counts.values()) for counts in about["counts"].values())


def _interval(figure: dict[str, float]) -> str:
    if figure["value"] is None:
        return "–"
    return f"{figure['value']:.3f} ({figure['low']:.3f} to {figure['high']:.3f})"


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


_SHELL = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head><body>
{body}
</body></html>
"""
