"""The report's word explorer: a browser shows the weights that were recorded, and no text can break out of it."""

import json
import re

import pytest

from regard.explain.word_attention import record_words
from regard.report.word_explorer import word_explorer
from tests.explain.sentences import HOUSES, TOKENIZERS, translator
from tests.report.test_attention_explorer import BROWSER, browse

DRIVER = """
const part = (name) => document.getElementById("words-" + name);
const choose = (name, value) => { part(name).value = value; part(name).dispatchEvent(new Event("change")); };
const words = (side) => [...part(side).children];
const point = (side, at) => {
  words(side)[at].dispatchEvent(new PointerEvent("pointerenter"));
  const text = part("says").textContent;
  words(side)[at].dispatchEvent(new PointerEvent("pointerleave"));
  return text;
};
const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key }));
const cells = () => [...part("matrix").querySelectorAll("rect")].slice(0, -1);
const cell = (at) => {
  cells()[at].dispatchEvent(new PointerEvent("pointerenter"));
  const text = part("says").textContent;
  cells()[at].dispatchEvent(new PointerEvent("pointerleave"));
  return text;
};
const ready = async () => { while (!part("says").textContent) await new Promise((next) => setTimeout(next, 10)); };
(async () => {
  await ready();
  const result = [];
  try { %s } catch (error) { result.push(String(error)); }
  document.body.textContent = "RESULT" + btoa(unescape(encodeURIComponent(JSON.stringify(result)))) + "END";
})();
"""


def page_data(page: str) -> list[dict]:
    (text,) = re.findall(r'<script type="application/json" id="words-data">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(text)


def test_texts_cannot_break_out_of_the_page():
    hostile = "</script><script>alert('1')</script><!-- \" & a"
    item = record_words(translator().float(), TOKENIZERS, hostile, hostile).to_json()
    left = {"text": hostile, "translated": hostile, "left_out": "does not fit"}
    page = word_explorer([item | {"name": hostile, "verdict": hostile}, item, left])
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "<!--" not in page
    assert "&lt;/script&gt;&lt;script&gt;alert(&#x27;1&#x27;)" in page
    first, second = page_data(page)
    assert first["name"] == first["verdict"] == hostile
    assert second["name"] == f"{hostile} → {hostile}"
    assert first["sentences"]["source"]["words"] == list(item["sentences"]["source"]["words"])


def test_a_page_needs_nothing_from_elsewhere():
    page = word_explorer([record_words(translator().float(), TOKENIZERS, *HOUSES).to_json()])
    assert set(re.findall(r"https?://[^\s\"']+", page)) <= {"http://www.w3.org/2000/svg"}, "that is a name, not a place"
    assert not re.search(r"\b(src|href)=|fetch\(|import\(|innerHTML", page)


def weight(text: str, of: str) -> float:
    match = re.search(rf"([\d.]+)\s% (?:to|from) “{re.escape(of)}”", text)
    assert match, text
    return float(match[1]) / 100


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_browser_shows_the_weights_of_the_chosen_word(tmp_path):
    found = record_words(translator().float(), TOKENIZERS, *HOUSES)
    hostile = record_words(translator("rnn_nano").float(), TOKENIZERS, "<b>a</b> tree", "ein Baum")
    items = [found.to_json(), hostile.to_json() | {"verdict": "<i>x</i>"}]
    shown = browse(word_explorer(items), """
        result.push(document.getElementById("words").hidden, part("layer").value, part("says").textContent);
        choose("layer", 0); choose("head", 2);
        result.push(words("asks").map((_, n) => point("asks", n)), words("seen").map((_, n) => point("seen", n)));
        result.push(cell(1 * 4 + 2));
        choose("head", "mean"); result.push(point("asks", 1));
        choose("kind", "decoder"); result.push(point("asks", 1));
        choose("kind", "rollout"); result.push(part("layers").hidden, part("heads").hidden, point("asks", 2));
        part("parts").checked = true; part("parts").dispatchEvent(new Event("change"));
        result.push(words("seen").length, words("seen").map((word) => word.textContent.trim()));
        part("parts").checked = false; part("parts").dispatchEvent(new Event("change"));
        words("asks")[0].focus(); press("ArrowDown"); press("ArrowDown"); result.push(part("says").textContent);
        press("ArrowRight"); result.push(part("says").textContent);
        result.push([...document.querySelectorAll("#words-asks [tabindex='0'], #words-seen [tabindex='0']")].length);
        press("Escape"); result.push(part("says").textContent);
        part("says").textContent = ""; choose("sentence", 1); await ready();
        result.push(words("seen").map((word) => word.title), document.querySelectorAll("#words b, #words i").length,
                    part("verdict").textContent, part("kind").options.length);
    """, tmp_path, DRIVER)  # fmt: skip
    assert len(shown) == 21, shown
    hidden, layer, first, asks, seen, cell, mean, decoder, *rest = shown
    assert (hidden, layer) == (False, "1")
    assert first == "All words (cross-attention, layer 1, mean over heads): choose one to see its weights."
    exact = found.words("cross", 0, 2)
    bound = 0.51 / 255 + 0.5e-4
    for row, name in enumerate(exact.queries):
        assert asks[row].startswith(f"To write “{name}” (cross-attention, layer 0, head 2): ")
        for column, key in enumerate(exact.keys):
            expected = pytest.approx(float(exact.weights[row, column]), abs=bound)
            assert weight(asks[row], key) == expected
            assert weight(seen[column], name) == expected
    assert cell.endswith(" to “houses”.")
    assert weight(cell, "houses") == pytest.approx(float(exact.weights[1, 2]), abs=bound)
    assert weight(mean, "small") == pytest.approx(float(found.words("cross", 0).weights[1, 1]), abs=bound)
    assert weight(decoder, "<s>") == pytest.approx(float(found.words("decoder").weights[1, 0]), abs=bound)
    layers, heads, rollout, count, tokens, held, moved, stops, all_words, title, tags, verdict, kinds = rest
    assert (layers, heads) == (True, True)
    assert weight(rollout, "two") == pytest.approx(float(found.words("rollout").weights[2, 0]), abs=bound)
    assert count == len(found.source.ids)
    assert tokens == list(found.source.tokens)
    assert held == rollout
    assert moved.startswith("“houses” (rollout to the source) gets ")
    assert stops == 2, "Tab stops once in each column"
    assert all_words.startswith("All words")
    assert title == list(hostile.source.words)
    assert (tags, verdict, kinds) == (0, "<i>x</i>", 1)
