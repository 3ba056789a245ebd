"""The README's commands run as written, and what the documents name exists."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import make_folder
from tests.conftest import write_pairs

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with `photos` of cats and dogs (of a kind) and `sentences`, and `regard` on the path."""
    folder = tmp_path_factory.mktemp("readme")
    make_folder(folder / "photos", per_class=20, classes=("cat", "dog"), side=40)
    write_pairs(folder / "sentences", 200)
    (folder / "bin").mkdir()
    (folder / "bin" / "regard").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m regard "$@"\n')
    (folder / "bin" / "regard").chmod(0o755)
    return folder


def execute(words: list[str], place: Path) -> str:
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        words, cwd=place, capture_output=True, text=True, env=os.environ | {"PATH": path}, timeout=300
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_commands_and_programs_of_the_readme_run_as_written(place):
    commands = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("regard ")]
    assert len(commands) == 15
    for line in commands:
        execute(["sh", "-c", line], place)
    assert (place / "answers.csv").read_text().count("\n") == 21
    assert (place / "why.png").stat().st_size > 5000
    assert (place / "inside.png").stat().st_size > 5000
    assert (place / "words.png").stat().st_size > 5000
    assert (place / "runs" / "photos" / "report.html").is_file()
    assert (place / "runs" / "words" / "report.html").is_file()
    programs = blocks("python")
    assert len(programs) == 4
    printed = [execute([sys.executable, "-c", program], place) for program in programs]
    assert (place / "map.png").stat().st_size > 5000
    promised = re.findall(r"# .*?(torch\.Size.*|\(\(.*?\)\))", programs[2])
    assert len(promised) == 2
    for value in promised:
        assert value.strip() in printed[2], "the README promises another output"


@pytest.mark.long
def test_commands_and_programs_of_the_transfer_page_run_as_written(place):
    text = (ROOT / "docs" / "transfer.md").read_text(encoding="utf-8")
    commands = [line for block in blocks("bash", text) for line in block.splitlines() if line.startswith("regard ")]
    assert len(commands) == 7
    before = set((place / "runs").glob("**/transfer.json"))
    for line in commands:
        execute(["sh", "-c", line], place)
    made = {path.parent.name for path in set((place / "runs").glob("**/transfer.json")) - before}
    assert made == {"first", "seed0", "seed1", "seed2", "decay", "probe", "upper", "lora"}
    (program,) = blocks("python", text)
    assert execute([sys.executable, "-c", program], place).split() == re.findall(r"# (\S+)", program)


def test_every_other_command_in_the_readme_is_known():
    """Inline commands: `make` targets exist, `regard` commands answer --help."""
    for target in re.findall(r"^make (\w+)", "\n".join(blocks("bash")), flags=re.MULTILINE):
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    for words in set(re.findall(r"`regard (\w+)[^`]*`", README)):
        done = subprocess.run([sys.executable, "-m", "regard", words, "--help"], capture_output=True, text=True)
        assert done.returncode == 0, words


def test_the_model_table_of_the_readme_is_the_registry():
    from regard.registry import MODELS

    assert set(re.findall(r"`((?:vit|resnet|bit|mlp|transformer_|rnn_)\w*)`", README.split("## Models")[1])) == set(
        MODELS
    )


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_and_named_tests_exist(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert ((ROOT / document).parent / link).exists(), link
    tests = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("*.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in tests, name


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_no_large_or_foreign_files_are_kept():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, listed):
        path = ROOT / name
        if path.is_file():
            assert path.stat().st_size < 1_000_000, name
            assert path.suffix not in (".safetensors", ".pth", ".npz", ".pt"), name
