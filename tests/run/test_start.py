"""What a run that is asked for may not be: refused before anything is written."""

import pytest

import regard
from regard.errors import ConfigError, RunError


def test_resuming_refuses_what_would_be_ignored(run_folder, picture_folder):
    with pytest.raises(ConfigError, match="resume needs the run folder"):
        regard.train("digits", resume=True, quiet=True)
    with pytest.raises(ConfigError, match="begun with lr="):
        regard.train("digits", out=run_folder, resume=True, lr=0.5, quiet=True)
    with pytest.raises(RunError, match="the data has changed"):
        regard.train(picture_folder, out=run_folder, resume=True, quiet=True)
    with pytest.raises(ConfigError, match="a run of classification, not of translation"):
        regard.train("dates", out=run_folder, resume=True, quiet=True)
    with pytest.raises(ConfigError, match="a dry run resumes nothing"):
        regard.train("digits", out=run_folder, resume=True, dry_run=True, quiet=True)


def test_a_dry_run_of_several_seeds_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="a dry run is of one seed"):
        regard.train("digits", seeds=2, dry_run=True, out=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()
