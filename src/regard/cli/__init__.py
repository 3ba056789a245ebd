"""The command line: flags in, API calls out, errors without tracebacks."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence

from regard.cli import making, using
from regard.errors import ConfigError, RegardError, did_you_mean

COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "demo": making.run_demo, "check": making.run_check, "train": making.run_train, "pretrain": making.run_pretrain,
    "resume": making.run_resume, "eval": using.run_eval, "probe": using.run_probe, "predict": using.run_predict,
    "explain": using.run_explain, "inspect": using.run_inspect, "landscape": using.run_landscape,
    "report": using.run_report, "convert": using.run_convert, "compare": using.run_compare, "study": making.run_study,
    "models": using.run_models,
}  # fmt: skip
"""Each reads its own words: its flags may depend on the task."""


def main() -> None:
    """Run one command. Errors the user can mend print without a traceback (unless --debug) and exit with 2."""
    words = sys.argv[1:]
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    signal.signal(signal.SIGTERM, _exit)
    try:
        if words == ["--version"]:
            from regard import __version__

            print(__version__)
            return
        if words and not words[0].startswith("-") and words[0] not in COMMANDS:
            raise ConfigError(f"there is no command {words[0]!r}", do=did_you_mean(words[0], COMMANDS))
        if not words or words[0].startswith("-"):
            print(_overview())
            sys.exit(0 if words in ([], ["--help"], ["-h"]) else 2)
        COMMANDS[words[0]](words[1:])
    except RegardError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
    except OSError as error:  # a name too long for a file, a folder that may not be read, a full disk
        if debug:
            raise
        print(f"error: {RegardError(error.strerror or str(error), where=error.filename)}", file=sys.stderr)
        sys.exit(2)


def _exit(number: int, frame: object) -> None:
    """End with what is open closed on the way, which the same signal, sent again to a whole group, must not disturb."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _overview() -> str:
    rows = [(name, str(run.__doc__).splitlines()[0]) for name, run in COMMANDS.items()]
    return "\n".join([
        "usage: regard COMMAND ...", "",
        "Vision transformers: train, evaluate, predict, explain. --debug shows tracebacks.", "",
        *(f"  {name:9} {about}" for name, about in rows), "", "regard COMMAND --help shows the flags of a command.",
    ])  # fmt: skip
