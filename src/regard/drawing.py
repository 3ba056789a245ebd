"""How all figures are drawn: text as it is, in fonts that have its letters, without a display."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

# After the default: fonts with Korean, Chinese and Japanese letters, on Linux, Windows and macOS.
_FONTS = ("DejaVu Sans", "Noto Sans CJK KR", "Noto Sans KR", "NanumGothic", "Malgun Gothic", "Apple SD Gothic Neo")


@contextmanager
def style() -> Iterator[None]:
    """Around (or decorating) what draws: names appear as they are, and a $ is a dollar, not mathematics."""
    import matplotlib

    with matplotlib.rc_context({"text.parse_math": False, "font.family": _fonts()}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def canvas(width: float, height: float, background: str) -> Any:
    """An empty figure, its size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor=background)


def missing_letters(texts: Iterable[str]) -> str:
    """Letters that no font of our figures has here, each once: in a picture they would be boxes.

    >>> missing_letters(["größer", "ein Haus"])
    ''
    """
    letters = dict.fromkeys(letter for text in texts for letter in text if not letter.isspace())
    return "".join(letter for letter in letters if not any(ord(letter) in there for there in _letters()))


@cache
def _letters() -> list[set[int]]:
    from matplotlib import font_manager

    found = (font_manager.findfont(name, fallback_to_default=True) for name in _fonts())
    return [set(font_manager.get_font(path).get_charmap()) for path in found]


@cache
def _fonts() -> list[str]:
    from matplotlib import font_manager

    there = set(font_manager.get_font_names())
    return [name for name in _FONTS if name in there] or ["sans-serif"]
