"""A run folder: nothing outside of it is written to, and it is a run or it is not."""

import shutil
from pathlib import Path

import pytest

import regard
from regard.errors import RunError
from regard.weights import Run, write_text
from regard.weights.run import SETUP


@pytest.fixture
def hostile(run_folder, tmp_path) -> Path:
    """A copy of a finished run, and beside it a file that it must not reach."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "rc").write_text("mine")
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


def report(run: Path) -> None:
    from regard.api import report

    report(Run.open(run))


def precious(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_links_under_the_names_of_files_are_replaced_not_followed(hostile, tmp_path):
    for name in ("command.txt", "model_card.md", "report.html", "figures/curves.svg"):
        for planted in (hostile / name, (hostile / name).with_name(f".{Path(name).name}.part")):
            planted.unlink(missing_ok=True)
            planted.symlink_to(tmp_path / "precious" / "rc")
    report(hostile)
    assert precious(tmp_path / "precious") == {"rc": "mine"}
    assert not (hostile / "report.html").is_symlink()
    (hostile / "report.html").unlink()
    regard.resume(hostile, quiet=True)
    assert precious(tmp_path / "precious") == {"rc": "mine"}


def test_nobody_can_prepare_the_place_where_a_file_is_written(tmp_path):
    """It lies in a new folder, of a random name, that only its owner may enter."""
    from regard.weights import write_aside

    seen = []

    def write(aside: Path) -> None:
        assert aside.parent.stat().st_mode & 0o777 == 0o700
        seen.append(aside)
        aside.write_text("x")

    for _ in range(2):
        write_aside(tmp_path / "file", write)
    assert seen[0].parent != seen[1].parent
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["figures", "checkpoints", "explain", "checkpoints/state-00000001"])
@pytest.mark.parametrize("there", [True, False])
def test_a_linked_folder_in_a_run_is_refused(hostile, tmp_path, name, there):
    shutil.rmtree(hostile / name, ignore_errors=True)
    (hostile / name).symlink_to(tmp_path / ("precious" if there else "nowhere"), target_is_directory=True)
    (hostile / "report.html").unlink()
    for use in (report, lambda run: regard.resume(run, quiet=True)):
        with pytest.raises(RunError, match="is a link"):
            use(hostile)
    assert precious(tmp_path / "precious") == {"rc": "mine"}


def test_a_command_is_one_line_that_a_shell_takes_for_one(hostile, cli, monkeypatch):
    (hostile / "report.html").unlink()
    before = (hostile / "command.txt").read_text().splitlines()
    regard.resume(hostile, data="digits", quiet=True, command="regard resume 'x\nrm -rf y'\r")
    (hostile / "report.html").unlink()
    regard.resume(hostile, quiet=True)
    *held, given, called = (hostile / "command.txt").read_text().splitlines()
    assert held == before
    assert given == "regard resume 'x rm -rf y' "
    assert called.startswith("# in Python: regard.resume(")


def test_a_folder_is_new_if_it_holds_nothing_but_what_a_killed_process_left(tmp_path):
    (tmp_path / ".settings.json.abc.regard-part").mkdir()
    Run.require_new(tmp_path)
    write_text(tmp_path / "notes.txt", "x")
    with pytest.raises(RunError, match="not empty"):
        Run.require_new(tmp_path, ("data.json",))


def test_an_unfinished_set_up_is_made_anew_only_if_it_is_one(tmp_path):
    files = ("data.json", "words/a.json")
    (tmp_path / "words").mkdir()
    for name in ("data.json", "words/a.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(RunError, match="not empty"):  # the user's own, for all one knows
        Run.create(tmp_path, files)
    (tmp_path / SETUP).touch()
    with pytest.raises(RunError, match="not empty") as caught:
        Run.create(tmp_path)
    assert "--resume" in str(caught.value)
    with pytest.raises(RunError, match="before its set-up was complete"):
        Run.open(tmp_path)
    (tmp_path / "words" / "mine.txt").write_text("x")
    with pytest.raises(RunError, match="not empty"):
        Run.create(tmp_path, files)
    assert (tmp_path / "words" / "a.json").exists()
    (tmp_path / "words" / "mine.txt").unlink()
    assert list(Run.create(tmp_path, files).path.iterdir()) == []
