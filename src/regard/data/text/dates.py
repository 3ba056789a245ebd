"""The corpus of the demo: English dates and numbers, in many spellings, to German and Korean, from Unicode's CLDR.

- A source begins with `<de>` or `<ko>`, the target language. The rest is a date or number as people write it.
- A target is the long form of its language, with the weekday or the time if the source has them. Numbers are words.
- Names and patterns are from Babel. The words between date and time, and numbers as words (num2words), are not in CLDR.
- No-break spaces, as in CLDR's English times, become plain spaces, as people type them.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from regard.data.random import uniforms
from regard.data.text.corpus import TextDataset
from regard.errors import ConfigError, missing

CODES = ("<de>", "<ko>")
PAIRS = 24_000
SHARES = {"val": 0.05, "test": 0.05}

_FIRST, _LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)
_DAYS = (_LAST - _FIRST).days + 1
_MOST = 6  # digits of a number
_SMALL = 100  # smaller numbers are parts of larger ones: always in training
_DATE, _NUMBER = 8, 9  # the `use` of random numbers; smaller ones are used elsewhere in data


def dates_corpus(seed: int = 0, pairs: int = PAIRS) -> TextDataset:
    """Half dates of 1900 to 2099, half numbers below a million, each to both languages, in random spellings.

    No date or number is in two splits, in any spelling or language.

    >>> corpus = dates_corpus(pairs=1000)
    >>> len(corpus), corpus.source, corpus.target
    (1000, 'en', 'de+ko')
    >>> corpus.sources[0], corpus.targets[0]
    ('<de> April 18, 1968 at 2:21 AM', '18. April 1968 um 02:21 Uhr')
    """
    each = pairs // 4
    if not 1000 <= pairs <= 200_000:
        raise ConfigError(f"{pairs} pairs cannot be made", do="ask for 1,000 to 200,000")
    sources, targets, splits = [], [], []
    kinds = (
        (_draw_days(seed, each), _DATE, _date_forms(), _date_words),
        (_draw_numbers(seed, each), _NUMBER, _number_forms(), _number_words),
    )
    for meanings, use, forms, words in kinds:
        names = _splits(meanings, seed, use)
        chance = uniforms(seed, 1, meanings, 2 * len(CODES), use=use)
        for meaning, name, row in zip(meanings.tolist(), names, chance, strict=True):
            for n, code in enumerate(CODES):
                spell, weekday, timed = forms[int(row[2 * n] * len(forms))]
                minute = int(row[2 * n + 1] * 1440) if timed else None
                sources.append(f"{code} {_plain(spell(meaning, minute))}")
                targets.append(_plain(words(code, meaning, weekday, minute)))
                splits.append(name)
    why = f"dates and numbers from CLDR and num2words, made with seed {seed}"
    lines = list(range(1, len(sources) + 1))
    return TextDataset("dates", "made", why, "en", "de+ko", sources, targets, splits, lines, codes=CODES)


def _splits(meanings: np.ndarray, seed: int, use: int) -> list[str]:
    chance = uniforms(seed, 2, meanings, 1, use=use)[:, 0]
    names = np.where(chance < SHARES["val"], "val", np.where(chance < sum(SHARES.values()), "test", "train"))
    if use == _NUMBER:
        names[meanings < _SMALL] = "train"
    return names.tolist()


def _draw_days(seed: int, count: int) -> np.ndarray:
    """Different days, counted from the first."""
    days = np.arange(_DAYS)
    return days[np.argsort(uniforms(seed, 0, days, 1, use=_DATE)[:, 0], kind="stable")][:count]


def _draw_numbers(seed: int, count: int) -> np.ndarray:
    """Different numbers: about equally many of each length, and all small ones."""
    drawn = np.arange(min(_SMALL, count))
    for digits in range(3, _MOST + 1):
        low, high = 10 ** (digits - 1), 10**digits
        share = (count - len(drawn)) // (_MOST + 1 - digits)
        u = uniforms(seed, digits, np.arange(2 * share), 1, use=_NUMBER)[:, 0]
        new = np.unique((low + u * (high - low)).astype(np.int64))
        keep = np.argsort(uniforms(seed, digits, new, 1, use=_NUMBER)[:, 0], kind="stable")[:share]
        drawn = np.concatenate([drawn, new[keep]])
    return drawn


def _plain(text: str) -> str:
    return text.replace("\u202f", " ").replace("\xa0", " ")


@cache
def _babel() -> tuple[Any, Any, dict[str, Any]]:
    try:
        from babel import Locale, dates, numbers
    except ImportError:
        raise missing("Babel", "text") from None
    return dates, numbers, {name: Locale.parse(name) for name in ("en_US", "en_GB", "de", "ko")}


def _spelt(number: int, lang: str, to: str = "cardinal") -> str:
    try:
        from num2words import num2words
    except ImportError:
        raise missing("num2words", "text") from None
    return str(num2words(number, lang=lang, to=to))


_Form = tuple[Callable[[int, int | None], str], bool, bool]
"""A function that writes a date or number, whether it includes the weekday, and whether it includes the time."""


def _date_forms() -> list[_Form]:
    dates, _, locales = _babel()

    def pattern(form: str, locale: str = "en_US") -> Callable[[int, int | None], str]:
        def write(day: int, minute: int | None) -> str:
            text = dates.format_date(_date(day), form, locale=locales[locale])
            if minute is None:
                return text
            return f"{text} at {dates.format_time(_time(minute), 'short', locale=locales['en_US'])}"

        return write

    def ordinal(form: str) -> Callable[[int, int | None], str]:
        def write(day: int, minute: int | None) -> str:
            date = _date(day)
            month = dates.format_date(date, "MMMM", locale=locales["en_US"])
            return form.format(day=_spelt(date.day, "en", to="ordinal_num"), month=month, year=date.year)

        return write

    return [
        (pattern("full"), True, False),
        (pattern("long"), False, False),
        (pattern("medium"), False, False),
        (pattern("full", "en_GB"), True, False),
        (pattern("long", "en_GB"), False, False),
        (pattern("y-MM-dd"), False, False),
        (pattern("M/d/y"), False, False),
        (ordinal("the {day} of {month}, {year}"), False, False),
        (ordinal("{month} {day}, {year}"), False, False),
        (pattern("full"), True, True),
        (pattern("long"), False, True),
    ]


def _date_words(code: str, day: int, weekday: bool, minute: int | None) -> str:
    dates, _, locales = _babel()
    locale = locales[code[1:3]]
    text = dates.format_date(_date(day), "full" if weekday else "long", locale=locale)
    if minute is None:
        return text
    if code == "<de>":
        return f"{text} um {dates.format_time(_time(minute), 'HH:mm', locale=locale)} Uhr"
    return f"{text} {dates.format_time(_time(minute), 'aaaa h:mm', locale=locale)}"


def _number_forms() -> list[_Form]:
    _, numbers, locales = _babel()

    def words(number: int, _: int | None) -> str:
        return _spelt(number, "en")

    def fewer_words(number: int, _: int | None) -> str:
        return _spelt(number, "en").replace(" and ", " ").replace(",", "")

    def digits(number: int, _: int | None) -> str:
        return numbers.format_decimal(number, locale=locales["en_US"])

    return [(words, False, False), (fewer_words, False, False), (digits, False, False)]


def _number_words(code: str, number: int, weekday: bool, minute: int | None) -> str:
    return _spelt(number, code[1:3])


def _date(day: int) -> datetime.date:
    return _FIRST + datetime.timedelta(days=day)


def _time(minute: int) -> datetime.time:
    return datetime.time(minute // 60, minute % 60)
