"""A test that skips for a reason that is not listed fails; one that is listed is named at the end."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
SKIPPING = """
import pytest

@pytest.fixture(autouse=True)
def seeded(): "In place of conftest's, which imports torch."

@pytest.fixture(scope="session", autouse=True)
def light_runs(): "Likewise."

@pytest.mark.skipif(True, reason="needs Chromium")
def test_allowed(): ...

def test_inside():
    pytest.skip("it is raining")

@pytest.mark.skip(reason="mended later")
def test_marked(): ...

@pytest.mark.xfail(reason="known")
def test_expected():
    assert False
"""


@pytest.fixture
def summary(tmp_path):
    """Run these tests beside a copy of conftest.py; the last lines that pytest prints."""
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    (tmp_path / "test_it.py").write_text(SKIPPING)
    (tmp_path / "test_module.py").write_text("import pytest\n\npytest.importorskip('not_installed')\n")

    def run(**environment: str) -> str:
        words = [sys.executable, "-m", "pytest", "-q", "-rsfE", "--continue-on-collection-errors", str(tmp_path)]
        done = subprocess.run(words, capture_output=True, text=True, env=os.environ | environment, cwd=tmp_path)
        assert done.returncode == 1, done.stdout
        return done.stdout

    return run


def test_an_unlisted_skip_is_a_failure(summary):
    said = summary(REGARD_ORACLES="0", COLUMNS="200")
    for reason in ("it is raining", "mended later", "could not import 'not_installed'"):
        assert f"may not skip for this reason: Skipped: {reason}" in said
    assert "SKIPPED [1] test_it.py:10: needs Chromium" in said
    assert said.splitlines()[-1].startswith("1 failed, 1 skipped, 1 xfailed, 2 errors"), said


def test_nothing_may_skip_beside_the_oracles(summary):
    assert summary(REGARD_ORACLES="1").splitlines()[-1].startswith("1 failed, 1 xfailed, 3 errors")
