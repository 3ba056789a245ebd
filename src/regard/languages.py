"""Codes of languages, and whether a folder's file names tell of parallel text. Free of torch."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

CODES = """af am ar az be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gl gu ha he hi hr hu hy id ig is it ja
ka kk km kn ko ky la lb lo lt lv mg mk ml mn mr ms mt my nb ne nl nn no pa pl ps pt ro ru rw si sk sl so sq sr sv sw ta
te tg th tk tl tr tt uk ur uz vi xh yo zh zu eng deu ger fra fre spa ita por rus jpn kor zho chi cmn nld pol tur ara hin
ces cze ukr vie swe dan fin ell heb hun ind ron rum"""


def looks_parallel(path: Path) -> bool:
    """Whether a folder holds one text in two languages, by the names of its files alone.

    >>> (tmp / "texts").mkdir()
    >>> for name in ("train.en", "train.de.gz"):
    ...     (tmp / "texts" / name).touch()
    >>> looks_parallel(tmp / "texts")
    True
    """
    stems: Counter[str] = Counter()
    for file in path.iterdir() if path.is_dir() else ():
        stem, _, language = file.name.removesuffix(".gz").rpartition(".")
        if re.split("[-_]", language)[0].lower() in CODES.split() and file.is_file():
            stems[stem] += 1
    return any(count > 1 for count in stems.values())
