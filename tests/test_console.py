"""What is said while one waits."""

import time

from regard.console import Lines, Progress


def test_lines_say_how_much_time_is_left(monkeypatch, capsys):
    """Of work that goes on from step 100: what was done before tells nothing about speed."""
    clock = iter([0.0, 1.0, 31.0, 32.0, 91.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    tick = Lines(Progress(), "step", 400)
    for done in (100, 200, 201, 400):
        tick(done, "loss 1")
    assert capsys.readouterr().err.splitlines() == ["step 200/400  about 60 s left  loss 1", "step 400/400  loss 1"]
