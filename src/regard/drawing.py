"""What all figures share: the palette, fonts that have the text's letters, axes, pictures and SVG."""

import io
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from regard.errors import ConfigError

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#888888"  # Okabe & Ito (2008), safe for colour-blind
COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", GREY)
GOOD, BAD, SOFT = "#006b4e", "#b34700", "#555555"  # of text on white
INK = "#123457"  # stands for the page's text colour, whatever that is
DPI = 130
ENDINGS = (".png", ".svg", ".pdf")
"""Of pictures that are written."""

# After the default: fonts with Korean, Chinese and Japanese letters, on Linux, Windows and macOS.
_FONTS = ("DejaVu Sans", "Noto Sans CJK KR", "Noto Sans KR", "NanumGothic", "Malgun Gothic", "Apple SD Gothic Neo")


def require_ending(path: Path) -> None:
    """An error for a picture's name whose ending is none of those that are written."""
    if path.suffix.lower() not in ENDINGS:
        named = f"as {path.suffix}" if path.suffix else f"to {path.name}, which has no ending"
        do = f"end in {', '.join(ENDINGS)}; maps of scans also in .nii.gz"
        raise ConfigError(f"pictures are not written {named}", do=do)


@contextmanager
def style() -> Iterator[None]:
    """Around (or decorating) what draws and saves: a $ is a dollar, and letters stay letters in SVG."""
    import matplotlib

    settings: Any = {
        "text.parse_math": False,
        "font.family": _fonts(),
        "svg.hashsalt": "regard",
        "svg.fonttype": "none",
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def canvas(width: float, height: float, background: str = "none") -> Any:
    """An empty figure, its size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor=background)


def dress(ax: Any, x: str, y: str, ink: str = INK, fontsize: float | None = None) -> None:
    """Axes with names and a light grid; in the page's colour of text, unless `ink` is given."""
    ax.set_facecolor("none")
    ax.set_xlabel(x, color=ink, fontsize=fontsize)
    ax.set_ylabel(y, color=ink, fontsize=fontsize)
    ax.tick_params(colors=ink, labelsize=None if fontsize is None else fontsize - 1)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(ink)
    ax.grid(color=GREY, alpha=0.25, linewidth=0.6)


def colour_bar(ax: Any, painted: Any, label: str, ink: str = "black", width: float = 0.045, shrink: float = 1.0) -> Any:
    """The scale of a painted field beside it; small where it stands on white. `width` is a share of the field's.

    It belongs to the field's axes: one with axes of its own would lie on a field wider than its place.
    """
    small = ink == "black"
    place = ax.inset_axes((1 + 0.7 * width, (1 - shrink) / 2, width, shrink))
    bar = ax.figure.colorbar(painted, cax=place)
    bar.set_label(label, color=ink, fontsize=8 if small else None)
    bar.ax.tick_params(colors=ink, labelsize=7 if small else None)
    return bar


def show(ax: Any, picture: Any) -> None:
    """A picture (H, W, 1 or 3) in 0..1."""
    ax.imshow(picture if picture.shape[-1] == 3 else picture[..., 0], cmap="gray", vmin=0, vmax=1)
    no_ticks(ax)


def no_ticks(*axes: Any) -> None:
    for ax in axes:
        ax.set_xticks([])
        ax.set_yticks([])


def flat(picture: Any, index: int | None = None) -> tuple[Any, str]:
    """An array (channels, *size) as (H, W, 1 or 3), and which slice of a volume, the middle one by default, it is."""
    note = ""
    if picture.ndim == 4:
        depth = picture.shape[1]
        at = depth // 2 if index is None else min(index, depth - 1)
        picture, note = picture[:, at], f", slice {at + 1} of {depth}"
    if picture.ndim == 2:
        picture = picture[:, None]
    if len(picture) not in (1, 3):
        picture = picture.mean(0, keepdims=True)
    return picture.transpose(1, 2, 0), note


def shorten(text: str, length: int) -> str:
    """
    >>> shorten("a long name", 7), shorten("short", 7)
    ('a long…', 'short')
    """
    return text if len(text) <= length else text[: length - 1] + "…"


def to_svg(figure: Any) -> str:
    """The figure as SVG that takes the colour of the text around it."""
    text = io.StringIO()
    with style():
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    svg = text.getvalue()
    return svg[svg.index("<svg") :].replace(INK, "currentColor")


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

    paths = (font_manager.findfont(name, fallback_to_default=True) for name in _fonts())
    return [set(font_manager.get_font(path).get_charmap()) for path in paths]


@cache
def _fonts() -> list[str]:
    from matplotlib import font_manager

    there = set(font_manager.get_font_names())
    return [name for name in _FONTS if name in there] or ["sans-serif"]
