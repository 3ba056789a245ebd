"""The command line: flags in, API calls out, errors without tracebacks."""

from __future__ import annotations

import signal
import sys
from typing import Any

import tyro

from regard.cli.making import Check, Demo, Pretrain, Resume, StudyCommand, Train, spelt
from regard.cli.using import Convert, Eval, Explain, Inspect, Models, Predict, Probe, Report
from regard.cli.words import Compare
from regard.errors import ConfigError, RegardError, did_you_mean

COMMANDS: dict[str, type] = {
    "demo": Demo, "check": Check, "train": Train, "pretrain": Pretrain, "resume": Resume, "eval": Eval,
    "probe": Probe, "predict": Predict, "explain": Explain, "inspect": Inspect, "report": Report,
    "convert": Convert, "compare": Compare, "study": StudyCommand, "models": Models,
}  # fmt: skip


def main() -> None:
    """Run one command. Errors the user can mend print without a traceback (unless --debug) and exit with 2."""
    words = sys.argv[1:]
    debug = "--debug" in words
    words = [spelt(word) for word in words if word != "--debug"]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what is open is closed on the way
    try:
        if words == ["--version"]:
            from regard import __version__

            print(__version__)
            return
        if words and not words[0].startswith("-") and words[0] not in COMMANDS:
            raise ConfigError(f"there is no command {words[0]!r}", do=did_you_mean(words[0], COMMANDS))
        command: Any = tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="regard",
            description="Vision transformers: train, evaluate, predict, explain. --debug shows tracebacks.",
            args=words or ["--help"],
            config=(tyro.conf.PositionalMetavarFromFieldName,),
        )
        command.run()
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
