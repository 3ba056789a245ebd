"""The part of a translation's report where the reader asks: a layer, a head, a word, and where it looked."""

from __future__ import annotations

from typing import Any

from regard.report.attention_explorer import interactive


def word_explorer(items: list[dict[str, Any]]) -> str:
    """HTML, data and script for sentences whose attention was kept; nothing where there is none.

    An item is what `WordAttention.to_json` gives; it may have a `name`, which is shown instead of the two sentences,
    and a `verdict` on what it says. Without JavaScript the section stays hidden.

    >>> word_explorer([])
    ''
    >>> word_explorer([{"text": "a < b", "translated": "c", "left_out": "does not fit"}])
    '<p>Not shown here: a &lt; b → c (does not fit).</p>'
    """
    shown, missing = [], []
    for item in items:
        name = item.get("name") or f"{item['text']} → {item['translated']}"
        if "left_out" in item:
            missing.append(f"{name} ({item['left_out']})")
        else:
            # Texts, spans and numbers of tokens stay in the file; the page needs what is seen.
            sides = {
                side: {part: sentence[part] for part in ("tokens", "words", "groups")}
                for side, sentence in item["sentences"].items()
            }
            kept = {part: item[part] for part in ("kinds", "data", "verdict") if part in item}
            shown.append({"name": name, "sentences": sides, **kept})
    return interactive("words", "word_explorer.js", _SECTION, shown, missing)


_SECTION = """<section id="words" hidden>
<h3>Where it looks, word by word</h3>
<p>Point at a word, or press Tab to reach the words and move with the arrow keys: on the left stands who asks, on the
right what is looked at, and lines are as strong as the weights. Escape shows all lines again. A word of the translation
stands for the moment it is written. Layers and heads count from 0. The weights are the network’s own, to one part in
255 of the largest.</p>
<div class="controls">
<label>sentence <select id="words-sentence"></select></label>
<label>attention <select id="words-kind"></select></label>
<label id="words-layers">layer <select id="words-layer"></select></label>
<label id="words-heads">head <select id="words-head"></select></label>
<label><input type="checkbox" id="words-parts"> parts of words</label>
</div>
<p id="words-verdict"></p>
<p id="words-says" aria-live="polite"></p>
<div class="words">
<div class="scroll"><div class="columns">
<div id="words-asks-name" class="soft"></div><div></div><div id="words-seen-name" class="soft"></div>
<div id="words-asks" role="group" aria-labelledby="words-asks-name"></div>
<svg id="words-lines" aria-hidden="true" preserveAspectRatio="none"></svg>
<div id="words-seen" role="group" aria-labelledby="words-seen-name"></div>
</div></div>
<figure class="scroll"><svg id="words-matrix" role="img" aria-label="matrix of the same weights"></svg>
<figcaption>rows ask, columns are looked at: <span class="scale"></span> 0 to <span id="words-top"></span></figcaption>
</figure>
</div>
</section>
"""
