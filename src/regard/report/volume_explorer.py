"""The part of the report with three planes through every explained scan, its maps on them."""

from __future__ import annotations

from typing import Any

from regard.report.attention_explorer import interactive, named
from regard.weights import Run

PLANES = {
    "axial": "from below: the patient’s right on the left, front up",
    "coronal": "from the front: the patient’s right on the left",
    "sagittal": "from the left: front on the left",
}


def volume_explorer(run: Run, items: list[dict[str, Any]]) -> str:
    """HTML, data and script for the explained subjects whose volumes were kept; nothing for pictures."""
    shown = []
    for number, item in enumerate(items, start=1):
        path = run.path / "explain" / f"volume-{number:02d}.json"
        if path.is_file():
            record = run.read_json(f"explain/{path.name}")
            shown.append({"name": named(item), "about": _size(record), **record})
    return interactive("volumes", "volume_explorer.js", _SECTION, shown, [])


def _size(record: dict[str, Any]) -> str:
    """What is shown of the file, and that it was made smaller, where it was."""
    shown, seen = (" × ".join(map(str, record[name])) for name in ("size", "input"))
    of = f", made of a scan of {' × '.join(map(str, record['file']))}" if record["file"] else ""
    text = f"The network’s input of {seen} voxels{of}."
    if record["step"] > 1:
        text += f" To fit this page it is shown smaller: {shown} voxels, each the mean of {record['step']}³."
    return text


def _plane(name: str, about: str) -> str:
    return f"""<figure><canvas id="volumes-{name}" tabindex="0" role="application"
aria-label="{name} plane: arrow keys move in it, Page Up and Page Down through it"></canvas>
<figcaption><label>{name} <input id="volumes-{name}-slice" type="range" min="0" value="0"></label>
<output id="volumes-{name}-at"></output><br>{about}</figcaption></figure>
"""


_SECTION = f"""<section id="volumes" hidden>
<h3>Slice by slice</h3>
<p>Click or drag in a plane to move the other two there. With the keyboard: Tab reaches a plane, arrow keys move in it,
Page Up and Page Down through it. The orange line is the mask, where there is one.</p>
<div class="controls">
<label>subject <select id="volumes-subject"></select></label>
<label>method <select id="volumes-method"></select></label>
<label id="volumes-scans">scan <select id="volumes-scan"></select></label>
<label>opacity of the map <input id="volumes-opacity" type="range" min="0" max="100" value="55"></label>
<label id="volumes-masks"><input id="volumes-mask" type="checkbox" checked> mask</label>
<button type="button" id="volumes-peak">go to the map’s peak</button>
</div>
<div class="planes">
{"".join(_plane(name, about) for name, about in PLANES.items())}</div>
<p>map: <span id="volumes-least"></span> <span class="scale"></span> <span id="volumes-most"></span> times the average.
<span id="volumes-verdict"></span></p>
<p id="volumes-says" aria-live="polite"></p>
<p id="volumes-size" class="note"></p>
</section>
"""
