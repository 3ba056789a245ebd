"""The report and the card of a run whose files were tampered with: what files say is text, never markup."""

import base64
import hashlib
import json
import re
import shlex
import shutil
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from regard.api import report
from regard.cli.flags import Parser, add_settings, parse
from regard.errors import RunError
from regard.tasks.classification.settings import Config
from regard.weights import Run

pytestmark = pytest.mark.whole_runs

BAD = "\"'><script>bad()</script><img src=x onerror=bad()>\n# [go](javascript:bad) | `x`"


def tainted(value: Any) -> Any:
    """Every text in a JSON value with markup at its end."""
    if isinstance(value, dict):
        return {key: tainted(held) for key, held in value.items()}
    if isinstance(value, list):
        return [tainted(held) for held in value]
    return value + BAD if isinstance(value, str) else value


@pytest.fixture
def hostile(run_folder, tmp_path) -> Run:
    """A run in whose files every text that the report may show holds markup."""
    run = Path(shutil.copytree(run_folder, tmp_path / "run"))

    def spoil(name: str, *keys: str) -> None:
        held = json.loads((run / name).read_text(encoding="utf-8"))
        held = tainted(held) if not keys else held | {key: tainted(held[key]) for key in keys}
        (run / name).write_text(json.dumps(held), encoding="utf-8")

    spoil("environment.json")
    spoil("summary.json", "split")
    spoil("config.json", "data")
    spoil("data.json", "name", "recognised_by", "splits", "fingerprint", "samples", "findings")
    images = json.loads((run / "explain" / "explanations.json").read_text(encoding="utf-8"))
    for item in (item for maps in images for item in maps):
        item |= {key: tainted(item[key]) for key in ("name", "method", "verdict", "predicted")} | {"correct": None}
    (run / "explain" / "explanations.json").write_text(json.dumps(images), encoding="utf-8")
    (run / "command.txt").write_text(BAD + "\n```\n" + BAD, encoding="utf-8")
    return Run.open(run)


def test_what_files_say_is_escaped_in_the_report(hostile):
    report(hostile)
    html = (hostile.path / "report.html").read_text(encoding="utf-8")
    assert "bad()" in html
    tags: list[tuple[str, set[str]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append((tag, {name for name, _ in attrs}))
    parser.feed(html)
    assert [tag for tag, _ in tags].count("script") == 2  # the explorer's and its data
    assert not [tag for tag, names in tags if any(name.startswith("on") for name in names)]
    assert {frozenset(names) for tag, names in tags if tag == "img"} == {frozenset({"alt", "src"})}


def test_what_files_say_is_escaped_in_the_card(hostile):
    report(hostile)
    card = (hostile.path / "model_card.md").read_text(encoding="utf-8")
    text, commands = card.split("**Made by**")
    assert "bad()" in text
    assert "<" not in text
    assert not re.search(r"(?<!\\)[\[`]", text)
    assert [line for line in text.splitlines() if line.startswith("#")] == [text.splitlines()[0]]
    assert all(not line or line.startswith("    ") for line in commands.splitlines())


def test_the_report_runs_its_own_scripts_and_no_others(run_folder):
    html = (run_folder / "report.html").read_text(encoding="utf-8")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-" in policy[1]
    assert html.index("Content-Security-Policy") < html.index("<style>")
    run = re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL)
    assert run
    for code in run:
        assert f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'" in policy[1]
    assert not re.search(r"<[^>]+\son\w+=", re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL))
    assert not re.search(r'(?:src|href)="(?!data:|#)', html)


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium")
def test_a_browser_shows_what_the_scripts_make_and_refuses_nothing(run_folder):
    import subprocess

    words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    shown = subprocess.run([*words, f"file://{run_folder}/report.html"], capture_output=True, text=True, check=True)
    assert '<section id="explorer">' in shown.stdout, "no longer hidden"
    assert "Content Security Policy" not in shown.stderr


def test_the_command_to_reproduce_a_run_names_its_epochs_and_no_folder(run_folder, tmp_path):
    run = Path(shutil.copytree(run_folder, tmp_path / "run"))
    held = json.loads((run / "config.json").read_text(encoding="utf-8"))
    changes = {"optim": {"minutes": 2.5, "lr": 1e-05}, "model": {"size": [12, 8]}, "augment": {"flip": False}}
    for group, values in changes.items():
        held["settings"][group] |= {name: {"value": value, "origin": "flag"} for name, value in values.items()}
    held["settings"]["optim"]["epochs"]["origin"] = held["settings"]["data"]["batch_size"]["origin"] = "auto"
    held["data"] = "my --out 'digits\n"
    (run / "config.json").write_text(json.dumps(held), encoding="utf-8")
    report(Run.open(run))
    shown = re.search(r"To reproduce</h2><pre>(.*?)</pre>", (run / "report.html").read_text(encoding="utf-8"))
    assert shown, "one line"
    words = shlex.split(unescape(shown[1]).replace(r"$'my --out \U00000027digits\U0000000a'", "DATA"))
    assert words[:3] == ["regard", "train", "DATA"]
    given = {"explain": 2, "epochs": 4, "lr": 1e-05, "size": (12, 8), "flip": False, "batch_size": 32}
    parser = Parser("train")
    add_settings(parser, [Config])
    assert parse(parser, words[3:]) == given


@pytest.mark.parametrize("name", ["environment.json", "summary.json", "data.json", "explain/explanations.json"])
def test_a_file_of_another_kind_is_an_error_that_names_the_run(run_folder, tmp_path, name):
    run = Path(shutil.copytree(run_folder, tmp_path / "run"))
    before = (run / "report.html").read_bytes()
    (run / name).write_text("[3]" if "explain" not in name else "[[3]]")
    with pytest.raises(RunError, match="damaged"):
        report(Run.open(run))
    assert (run / "report.html").read_bytes() == before
