"""The part of the report where the reader asks: a layer, a head, a patch, and where it looked."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from typing import Any

from regard.weights import Run


def attention_explorer(run: Run, items: list[dict[str, Any]]) -> str:
    """HTML, data and script for the explained images whose attention was kept; nothing for runs that kept none.

    Without JavaScript the section stays hidden, and the page's pictures are as they were.
    """
    shown, missing = [], []
    for number, item in enumerate(items, start=1):
        path = run.path / "explain" / f"attention-{number:02d}.json"
        if not path.is_file():
            continue
        record = run.read_json(f"explain/{path.name}")
        if "left_out" in record:
            missing.append(f"{item['name']} ({record['left_out']})")
        else:
            shown.append({"name": named(item), **record})
    return interactive("explorer", "attention_explorer.js", _SECTION, shown, missing)


def named(item: dict[str, Any]) -> str:
    """An explained input by name, with its prediction and, where there is one, its label."""
    true = "" if item["label"] is None else f", true {item['label']}"
    return f"{item['name']}: predicted {item['predicted']}{true}"


def interactive(name: str, script: str, section: str, shown: list[dict[str, Any]], missing: list[str]) -> str:
    """A section with its data and script, or a note on what is missing where nothing is shown."""
    note = f"<p>Not shown here: {escape('; '.join(missing))}.</p>" if missing else ""
    if not shown:
        return note
    # Inside a script only "<" could end it; as an escape it is the same string to JSON.
    data = json.dumps(shown, ensure_ascii=False).replace("<", "\\u003c")
    return f"""{section}{note}
<script type="application/json" id="{name}-data">{data}</script>
<script>{_code(script)}</script>"""


def scripts() -> list[str]:
    """All that a report may run."""
    return [_code(name) for name in ("attention_explorer.js", "word_explorer.js", "volume_explorer.js")]


def _code(script: str) -> str:
    shared, own = ((files("regard.report") / file).read_text(encoding="utf-8") for file in ("explorer.js", script))
    return f'\n"use strict";\n(() => {{\n{shared}{own}}})();\n'


_SECTION = """<section id="explorer" hidden>
<h3>Ask it yourself</h3>
<p>Click a patch to see where it looks, or press Tab to reach a picture and move with the arrow keys; with Shift they
move the place that is read out. Layers, heads, rows and columns count from 0. The weights are the network’s own, to one
part in 255 of the largest.</p>
<div class="controls">
<label>image <select id="explorer-image"></select></label>
<label>layer <select id="explorer-layer"></select></label>
<label>head <select id="explorer-head"></select></label>
<label id="explorer-slices">slice <input id="explorer-slice" type="range" min="0" value="0">
<output id="explorer-at"></output></label>
<span id="explorer-prefix"></span>
</div>
<div class="pair">
<figure><canvas id="explorer-input" tabindex="0" role="application" aria-label="input: choose the patch that asks">
</canvas><figcaption>input; the framed patch asks</figcaption></figure>
<figure><canvas id="explorer-map" tabindex="0" role="application" aria-label="attention: choose the patch that asks">
</canvas><figcaption>where it looks: <span class="scale"></span> 0 to <span id="explorer-top"></span></figcaption>
</figure>
</div>
<p id="explorer-says" aria-live="polite"></p>
</section>
"""
