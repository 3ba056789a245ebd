"""The README's commands run as written, and what the documents name exists."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

import regard
from benchmarks.trained_weights import CASES
from regard.cli import COMMANDS
from regard.tasks import TASKS
from tests.conftest import make_folder

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """The words of every `regard` command in blocks of shell commands."""
    lines = [line for block in blocks("bash", text) for line in block.splitlines() if line.startswith("regard ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder with `photos` of cats and dogs (of a kind) and `sentences`."""
    make_folder(tmp_path / "photos", per_class=20, classes=("cat", "dog"), side=40)
    (tmp_path / "sentences").mkdir()
    english, german = ["one", "two", "three", "four", "five"], ["eins", "zwei", "drei", "vier", "fünf"]
    numbers = [(a, b, c) for a in range(5) for b in range(5) for c in range(5)]
    for part, chosen in {"train": numbers[:85], "val": numbers[85:105], "test": numbers[105:]}.items():
        for language, words in {"en": english, "de": german}.items():
            lines = [" ".join(words[n] for n in line) for line in chosen]
            (tmp_path / "sentences" / f"{part}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def execute(program: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    exec(compile(program, "document", "exec"), {})
    return capsys.readouterr().out


@pytest.mark.long
def test_commands_and_programs_of_the_readme_run_as_written(cli, capsys, place):
    given = commands(README)
    assert len(given) == 17
    for words in given:
        code, _, err = cli(*words)
        assert code == 0, f"{words}\n{err}"
    assert (place / "answers.csv").read_text().count("\n") == 21
    assert (place / "why.png").stat().st_size > 5000
    assert (place / "inside.png").stat().st_size > 5000
    assert (place / "words.png").stat().st_size > 5000
    assert (place / "runs" / "photos" / "report.html").is_file()
    assert (place / "runs" / "words" / "report.html").is_file()
    programs = blocks("python")
    assert len(programs) == 4
    printed = [execute(program, capsys) for program in programs]
    assert (place / "map.png").stat().st_size > 5000
    promised = re.findall(r"# .*?(torch\.Size.*|\(\(.*?\)\))", programs[2])
    assert len(promised) == 2
    for value in promised:
        assert value.strip() in printed[2], "the README promises another output"


@pytest.mark.long
def test_commands_and_programs_of_the_transfer_page_run_as_written(cli, capsys, place):
    text = (ROOT / "docs" / "transfer.md").read_text(encoding="utf-8")
    given = commands(text)
    assert len(given) == 10
    for words in given:
        code, _, err = cli(*words)
        assert code == 0, f"{words}\n{err}"
    made = {path.parent.name for path in (place / "runs").glob("**/transfer.json")}
    assert made == {"first", "seed0", "seed1", "seed2", "decay", "probe", "upper", "lora"}
    (program,) = blocks("python", text)
    assert execute(program, capsys).split() == re.findall(r"# (\S+)", program)


DOCUMENTS = ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))]


def test_make_targets_of_the_readme_exist():
    for target in re.findall(r"^make (\w+)", "\n".join(blocks("bash")), flags=re.MULTILINE):
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_and_flags_that_are_named_exist(cli, document, monkeypatch):
    """Every flag after a `regard` command is one of that command's, whatever the task."""
    monkeypatch.setenv("COLUMNS", "100")
    text = (ROOT / document).read_text(encoding="utf-8")
    lines = re.findall(r"^(?:.*-m )?regard (\w.*)$", "\n".join(blocks("bash", text)), flags=re.MULTILINE)
    lines += re.findall(r"`regard (\w[^`]*)`", text)
    for line in lines:
        command, *words = line.split("#")[0].replace("\\", "").split()
        assert command in COMMANDS, line
        flags = {word.partition("=")[0] for word in words if word.startswith("--")} - {"--help", "--help-all"}
        missing = flags - known_flags(cli, command) if flags else set()
        assert not missing, f"{line}: no {missing} in {regard.__file__}"


def known_flags(cli, command: str) -> set[str]:
    """The flags of a command; those of training are any setting's."""
    words = (command, "--help-all") if command in ("train", "pretrain") else (command, "--help")
    code, out, err = cli(*words)
    assert code == 0, err
    more = known_flags(cli, "train") if command == "study" else set()
    return more | set(re.findall(r"(?<![\w-])--[a-z][\w-]*", out))


def test_the_model_table_of_the_readme_is_the_registry():
    from regard.registry import MODELS

    assert set(
        re.findall(r"`((?:vit|swin|detr_|resnet|bit|mlp|monai|transformer_|rnn_)\w*)`", README.split("## Models")[1])
    ) == set(MODELS)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_named_tests_exist(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert ((ROOT / document).parent / link).exists(), link
    tests = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("*.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in tests, name


def test_the_table_of_recipes_has_every_recipe():
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    table = text.split("| recipe | for |\n")[1].split("\n\n")[0]
    named = [name for line in table.splitlines()[1:] for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(named) == sorted(name for entry in TASKS for name in entry.recipes)


TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
MODULES = sorted(p.relative_to(ROOT) for p in (ROOT / "src" / "regard").rglob("*.py") if p.stem.strip("_") == p.stem)


def missing_from_tour(text: str, modules: list[Path]) -> list[str]:
    """Modules that are neither linked nor named in a line with a link to their folder, or to one between it and src."""
    lines = [(re.findall(r"\]\(\.\./([^)]+)\)", line), re.findall(r"`(\w+\.py)`", line)) for line in text.splitlines()]
    linked = {link for links, _ in lines for link in links}
    named = {(link, name) for links, names in lines for link in links for name in names}
    folders = {
        path: {parent.as_posix() for parent in path.parents if parent == path.parent or len(parent.parts) > 2}
        for path in modules
    }
    return [
        path.as_posix()
        for path in modules
        if path.as_posix() not in linked and not any((folder, path.name) in named for folder in folders[path])
    ]


def test_the_tour_names_every_module():
    assert not missing_from_tour(TOUR, MODULES)
    for path in (
        Path("src/regard/data/new.py"),
        Path("src/regard/run/errors.py"),
        Path("src/regard/tasks/survival/new.py"),
    ):
        assert missing_from_tour(TOUR, [*MODULES, path]) == [path.as_posix()]


def test_the_tour_names_no_module_that_is_gone_and_has_no_wall():
    rows = [line for line in TOUR.splitlines() if line.startswith("| [`")]
    assert len(rows) > 40
    for row in rows:
        folder, names = re.findall(r"\]\(\.\./([^)]+)\)", row)[0], re.findall(r"`(\w+\.py)`", row)
        for name in names:
            assert any(path.name == name and path.is_relative_to(folder) for path in MODULES), f"{folder}: {name}"
        assert len(row) < 300, row


@pytest.mark.parametrize("document", [*DOCUMENTS, "CHANGELOG.md"])
def test_paths_of_the_repository_that_are_named_exist(document):
    """Those that begin with one of its folders, and modules in backticks, which may begin inside the package."""
    text = (ROOT / document).read_text(encoding="utf-8")
    named = re.findall(r"(?<![\w/.])(?:benchmarks|docs|src|tests)/[\w./-]*\w", text)
    named += re.findall(r"`([\w./-]+/\w+\.py)`", text)
    for path in named:
        assert (ROOT / path).exists() or (ROOT / "src" / "regard" / path).exists(), path


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_no_large_or_foreign_files_are_kept():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, listed):
        path = ROOT / name
        if path.is_file():
            assert path.stat().st_size < 1_000_000, name
            assert path.suffix not in (".safetensors", ".pth", ".npz", ".pt"), name


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_commands_of_the_benchmark_of_weights_are_accepted(words, cli, monkeypatch):
    def accepted(*_: object, **settings: object) -> None:
        raise SystemExit(0)

    for name in ("train", "pretrain"):
        monkeypatch.setattr(f"regard.api.{name}", accepted)
    code, _, err = cli(*words)
    assert code == 0, err


def test_the_page_on_methods_is_what_its_script_writes():
    from benchmarks.explain import page

    results = json.loads((ROOT / "benchmarks" / "results" / "explain.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "methods.md").read_text(encoding="utf-8") == page(results)
