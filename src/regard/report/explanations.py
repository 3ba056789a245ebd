"""The part of a report that shows explained images, each map with its checks."""

from __future__ import annotations

import base64
from html import escape
from typing import Any

import numpy as np

from regard.report.attention_explorer import attention_explorer
from regard.task import Section
from regard.weights import Run

TITLE = "Why it decided so"
METHODS = {
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
    images = run.read_json("explain/explanations.json")
    if not all(isinstance(maps, list) for maps in images):
        return [Section(TITLE, "<p>Explained by an earlier version, in a form this one does not show.</p>")]
    pictures = []
    for number, maps in enumerate(images, start=1):
        png = base64.b64encode((run.path / "explain" / f"{number:02d}.png").read_bytes()).decode()
        name, word = escape(maps[0]["name"]), escape(_word(maps[0]))
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
    html = (
        f"<p>{' '.join(METHODS[name] for name in gains if name in METHODS)} "
        "Every map is tested: <em>deletion</em> removes the places it calls important and should make the answer "
        "fall early (low is good), <em>insertion</em> brings them back and should make it rise early (high "
        "is good); random maps score the same on both. And it is drawn again for the same network with random weights, "
        f"where it must be another. Over these images insertion exceeds deletion by {means}.</p>"
        + attention_explorer(run, [maps[0] for maps in images])
        + "\n".join(pictures)
    )
    return [Section(TITLE, html)]


def _word(item: dict[str, Any]) -> str:
    if item["correct"] is None:
        return "predicted " + item["predicted"]
    return "right" if item["correct"] else "wrong"


def image_warnings(data: dict[str, Any], summary: dict[str, Any]) -> list[str]:
    """What makes the figures of images too good."""
    lines = []
    if summary["split"] == "val":
        lines.append(
            "There was no test split: these figures are on the validation images that also chose the weights, "
            "and so are optimistic."
        )
    for name, what in (("leaks", "images occur"), ("groups_across_splits", "patients (groups) have images")):
        if data[name]:
            count = len(data[name])
            lines.append(f"{count} {what} in more than one split: the figures may be too good. data.json lists them.")
    return lines
