"""The part of a report that shows explained images, each map with its checks."""

from __future__ import annotations

import base64
from html import escape
from typing import Any

import numpy as np

from regard.console import interval, sentence
from regard.errors import counted
from regard.report.attention_explorer import attention_explorer
from regard.report.page import table
from regard.report.volume_explorer import volume_explorer
from regard.task import Section
from regard.weights import Run

TITLE = "Why it decided so"
METHODS = {
    "attention": "<em>Attention</em> is the last layer’s, the mean over its heads: of a box, where its query looks.",
    "chefer": "<em>Relevance</em> (Chefer et al., 2021) follows attention, weighted by its gradients, through all "
    "layers: by what way the answer was found.",
    "rollout": "<em>Rollout</em> follows attention from the output to the input (the ViT paper’s Figure 6): where the "
    "network looked.",
    "integrated_gradients": "<em>Integrated gradients</em> share out the score among the pixels: what decided.",
    "grad_cam": "<em>Grad-CAM</em> weighs the last feature map by what raised the score: where the network looked.",
    "occlusion": "<em>Occlusion</em> covers one place after another and sees the score fall: what was needed.",
}


def explanations(run: Run) -> list[Section]:
    """Explained images, if the run has some."""
    if not (run.path / "explain" / "explanations.json").is_file():
        return []
    images = run.read_json("explain/explanations.json", list)
    if not all(isinstance(maps, list) for maps in images):
        return [Section(TITLE, "<p>Explained by an earlier version, in a form this one does not show.</p>")]
    pictures = []
    for number, maps in enumerate(images, start=1):
        png = base64.b64encode((run.path / "explain" / f"{number:02d}.png").read_bytes()).decode()
        name = escape(maps[0]["name"])
        verdicts = "; ".join(f"{escape(item['method'])}: {escape(item['verdict'])}" for item in maps)
        pictures.append(
            f'<figure class="card wide"><figcaption>{_word(maps[0])}{name}</figcaption>'
            f'<img alt="{name}, its maps, and whether to believe them: {verdicts}" '
            f'src="data:image/png;base64,{png}"></figure>'
        )
    gains = {item["method"]: [_gain(maps[n]) for maps in images] for n, item in enumerate(images[0])}
    means = ", ".join(f"{np.mean(values):+.2f} ({escape(name)})" for name, values in gains.items())
    html = (
        f"<p>{' '.join(METHODS[name] for name in gains if name in METHODS)} "
        "Every map is tested: <em>deletion</em> removes the places it calls important and should make the answer "
        "fall early (low is good), <em>insertion</em> brings them back and should make it rise early (high "
        "is good); random maps score the same on both. And it is drawn again for the same network with random weights, "
        f"where it must be another. Over these images insertion exceeds deletion by {means}.{_complete(images)} "
        "The most telling images come first.</p>"
        + masks_html(run)
        + volume_explorer(run, [maps[0] for maps in images])
        + attention_explorer(run, [maps[0] for maps in images])
        + "\n".join(pictures)
    )
    return [Section(TITLE, html)]


def masks_html(run: Run) -> str:
    """How the maps lie on masks of the known cause, where the data has them."""
    if not (run.path / "explain" / "masks.json").is_file():
        return ""
    held = run.read_json("explain/masks.json")
    header = ("method", "subjects", "map inside", "95 % interval", "peak inside", "95 % interval", "chance", "p")
    scores = held["scores"]
    rows = [(s["method"], s["share"]["n"], f"{s['share']['value']:.1%}", interval(s["share"], ".1%"),
             f"{s['hits']['value']:.0%}", interval(s["hits"], ".0%"), f"{s['chance']:.1%}", f"{s['hits_p']:.2g}")
            for s in scores]  # fmt: skip
    each = [(r["name"], r["method"], f"{r['share']:.1%}", "yes" if r["hit"] else "no", f"{r['chance']:.1%}")
            for r in held["subjects"]]  # fmt: skip
    return (
        "<h3>Maps against masks</h3><p>How much of each map lies in the subject’s mask, and whether its peak does. "
        "Chance is the mask’s share of the foreground; p is the probability of so many peaks inside by chance."
        f"{escape(_others(scores))}</p>"
        + table(header, rows)
        + f"<details><summary>{counted(len(each), 'maps')}</summary>"
        + table(("subject", "method", "map inside", "peak inside", "chance"), each)
        + "</details>"
    )


def _others(scores: list[dict[str, Any]]) -> str:
    parts = [
        f"{s['method']} {s['others_share']:.1%} (p {s['others_p']:.2g})" for s in scores if s["others_p"] is not None
    ]
    return f" Inside other subjects’ masks, permuted: {', '.join(parts)}." if parts else ""


def _gain(item: dict[str, Any]) -> float:
    """A map that says nothing gains nothing."""
    return item["scores"]["gain"] if item["scores"] else 0.0


def _complete(images: list[list[dict[str, Any]]]) -> str:
    """How well integrated gradients add up."""
    errors = [item["completeness_error"] for maps in images for item in maps]
    errors = [error for error in errors if error is not None]
    return f" Integrated gradients add up to the score to within {max(errors):.1%} at worst." if errors else ""


def _word(item: dict[str, Any]) -> str:
    """Whether it is right, where anything is."""
    word = {None: "", True: "right", False: "wrong"}[item["correct"]]
    return f'<b class="{word}">{word}</b> ' if word else ""


def image_warnings(data: dict[str, Any], summary: dict[str, Any]) -> list[str]:
    """What makes the figures of images too good."""
    lines = [f"{said}."] if (said := whole_figures(summary)) else []
    if summary["split"] == "val":
        lines.append(
            "There was no test split: these figures are on the validation images that also chose the weights, "
            "and so are optimistic."
        )
    tested = "" if whole_figures(summary) else ": the figures may be too good"
    lines += [f"{line}{tested}. data.json lists them." for line in data.get("leaked", ())]
    if count := len(data["groups_across_splits"]):
        lines.append(f"{count} patients (groups) have images in more than one split. data.json lists them.")
    return lines + [sentence(line) for line in data.get("confounded", ())]


def whole_figures(summary: dict[str, Any]) -> str:
    """The main figures on the whole test set, where images were left out that training or validation has too."""
    if "whole" not in summary:
        return ""
    whole = summary["whole"]
    figures = (f"{name.replace('_', ' ')} {whole['figures'][name]['value']:.4f}" for name in summary["headline"])
    return (
        f"{whole['seen']} of {whole['n']} {summary['split']} images occur in training or validation and are left out "
        f"of these figures; on all {whole['n']}: {', '.join(figures)}"
    )
