"""The one kind of error a user should ever see: what is wrong, where, and what to do about it."""

import difflib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path


class RegardError(Exception):
    """Anything the user can put right. The command line prints it and exits with code 2.

    >>> print(RegardError("the image cannot be read", where="cats/1.jpg", do="replace or delete it"))
    the image cannot be read
      where: cats/1.jpg
      to do: replace or delete it
    """

    def __init__(self, what: str, *, where: object = None, do: str | None = None):
        self.what, self.where, self.do = what, None if where is None else str(where), do
        lines = [what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if do:
            lines.append(f"  to do: {do}")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Callable[..., Exception], tuple[str]]:
        """As it comes from another process: whole, not as a text about a text."""
        return partial(type(self), where=self.where, do=self.do), (self.what,)


class ConfigError(RegardError):
    """A name, field or value that does not exist or does not fit."""


class DataError(RegardError):
    """Input data that is missing, damaged, hostile or too little."""


class NoLabelError(DataError):
    """A table without a column for labels: it may have another target."""


class RunError(RegardError):
    """A run folder or checkpoint that cannot be written, found or read."""


class DivergedError(RunError):
    """A training whose loss became no number."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. On a CPU torch has no error of its own for it.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    True
    """
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))


def refuse_failed(failed: list[DataError]) -> None:
    """After the good ones are done: which inputs could not be read, as one error."""
    if failed:
        lines = "\n".join(f"    {error.where}: {error.what}" for error in failed)
        raise DataError(f"{counted(len(failed), 'inputs')} could not be read (any others are done):\n{lines}")


def missing(package: str, extra: str) -> ConfigError:
    """The error for an extra that is not installed.

    >>> missing("sacrebleu", "text").do
    "pip install 'regard[text]'"
    """
    return ConfigError(f"{package} is not installed", do=f"pip install 'regard[{extra}]'")


def counted(number: int, word: str) -> str:
    """A number with its word, which is given in the plural.

    >>> counted(1, "pairs"), counted(1, "classes"), counted(1, "processes"), counted(1200, "pairs")
    ('1 pair', '1 class', '1 process', '1,200 pairs')
    """
    one = word[:-2] if word.endswith("sses") else word.removesuffix("s")
    return f"{number:,} {one if number == 1 else word}"


def close_names(name: str, options: Iterable[str]) -> list[str]:
    """Those of the options that are a slip of the pen away.

    >>> close_names("digits", [".git", "digit"])
    ['digit']
    """
    options = sorted(options)
    near = difflib.get_close_matches(name, options, n=3, cutoff=0.75)
    return near or difflib.get_close_matches(name, options, n=1, cutoff=0.65)


def nearby_data(path: Path) -> str:
    """The hint for data that is not there: what lies beside it under a similar name, if anything does."""
    names = [p.name for p in path.parent.iterdir() if not p.name.startswith(".")] if path.parent.is_dir() else []
    close = close_names(path.name, names)
    return f"did you mean {' or '.join(close)}?" if close else ""


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """The hint for a misspelt name: its near matches, or all the options when nothing is near.

    >>> did_you_mean("vit_b61", ["vit_b16", "vit_b32", "swin_t"])
    'did you mean vit_b16?'
    """
    options = sorted(options)
    if close := close_names(name, options):
        return f"did you mean {' or '.join(close)}?"
    more = f" and {len(options) - 20} more" if len(options) > 20 else ""
    return f"choose from {', '.join(options[:20])}{more}"
