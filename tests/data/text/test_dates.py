"""The demo's corpus is right, the same every time, and its splits share no date and no number."""

import re
from collections import Counter

import pytest
from babel.dates import parse_date
from num2words import num2words

from regard.data.splits import split
from regard.data.text import TextDataset, dates_corpus, open_pairs, train_tokenizers
from regard.errors import ConfigError

MONTHS = ["Januar", "Februar", "März", "April", "Mai", "Juni", "Juli"]
MONTHS += ["August", "September", "Oktober", "November", "Dezember"]


@pytest.fixture(scope="module")
def corpus() -> TextDataset:
    return dates_corpus(seed=3, pairs=6000)


@pytest.fixture(scope="module")
def words() -> dict[str, int]:
    return {num2words(n, lang=lang): n for lang in ("de", "ko") for n in range(1_000_000) if n < 2000 or n % 97 == 0}


def meaning(target: str, words: dict[str, int]) -> tuple[int, ...] | str:
    """What a target says, read by rules that are not the generator's: a day, or a number where it is among `words`."""
    if found := re.search(r"(\d+)\. (\w+) (\d{4})", target):
        return int(found[3]), MONTHS.index(found[2]) + 1, int(found[1])
    if found := re.search(r"(\d{4})년 (\d+)월 (\d+)일", target):
        return tuple(int(part) for part in found.groups())
    return (words[target],) if target in words else target


def test_half_dates_half_numbers_each_to_both_languages(corpus):
    assert len(corpus) == 6000
    codes = Counter(source.split()[0] for source in corpus.sources)
    assert codes == {"<de>": 3000, "<ko>": 3000}
    assert corpus.codes == ("<de>", "<ko>")
    assert sum(bool(re.search(r"\d{4}", target)) for target in corpus.targets) == 3000
    assert corpus.duplicates() == 0
    assert len(set(corpus.sources)) == len(corpus), "no source has two answers"


def test_no_date_and_no_number_is_in_two_splits(corpus, words):
    held: dict[object, set[str]] = {}
    for i in range(0, len(corpus), 2):  # the same meaning in German and Korean
        german, korean = (meaning(corpus.targets[n], words) for n in (i, i + 1))
        assert german == korean or isinstance(german, str)
        assert corpus.splits[i] == corpus.splits[i + 1]
        held.setdefault(german, set()).add(corpus.splits[i])
    assert len(held) == 3000
    assert all(len(names) == 1 for names in held.values())
    shares = {name: corpus.splits.count(name) / len(corpus) for name in ("train", "val", "test")}
    assert shares == pytest.approx({"train": 0.9, "val": 0.05, "test": 0.05}, abs=0.015)
    names, note = split(corpus, seed=0)
    assert names == corpus.splits
    assert note == "train, val and test are the data's own"


def test_what_larger_numbers_are_made_of_is_trained_on(corpus, words):
    split_of = {meaning(t, words): split for t, split in zip(corpus.targets, corpus.splits, strict=True)}
    assert {split_of[n,] for n in range(100)} == {"train"}


def test_a_date_keeps_its_split_in_a_larger_corpus(corpus):
    split_of = dict(zip(corpus.sources, corpus.splits, strict=True))
    fewer = dates_corpus(seed=3, pairs=2000)
    both = [n for n, source in enumerate(fewer.sources) if source in split_of]
    assert len(both) > 1000
    assert all(split_of[fewer.sources[n]] == fewer.splits[n] for n in both)


def test_targets_say_what_sources_say(corpus, words):
    """Sources are read back by other means: numbers by their digits, dates in numbers or by Babel's parser."""
    checked = Counter[str]()
    for source, target in zip(corpus.sources, corpus.targets, strict=True):
        code, _, text = source.partition(" ")
        said = meaning(target, words)
        if re.fullmatch(r"[\d,]+", text):
            assert target == num2words(int(text.replace(",", "")), lang=code[1:3])
            checked["digits"] += 1
        elif found := re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)", text):
            assert said == tuple(int(part) for part in found.groups())
            checked["iso"] += 1
        elif re.fullmatch(r"\d+/\d+/\d{4}", text):
            date = parse_date(text, locale="en_US")
            assert said == (date.year, date.month, date.day)
            checked["american"] += 1
        if found := re.search(r"at (\d+):(\d\d) ([AP])M", text):
            hour = int(found[1]) % 12 + 12 * (found[3] == "P")
            if code == "<de>":
                assert target.endswith(f" um {hour:02d}:{found[2]} Uhr")
            else:
                assert target.endswith(f" {'오후' if hour >= 12 else '오전'} {found[1]}:{found[2]}")
            checked["time"] += 1
        day = "day, " in text
        assert day == bool(re.search("요일|(tag|Mittwoch),", target))
    assert min(checked.values()) > 100, checked


def test_text_is_what_a_keyboard_has(corpus):
    odd = {c for text in corpus.sources for c in text if not (c.isascii() and c.isprintable())}
    assert not odd
    assert not {c for text in corpus.targets for c in text if not (c.isprintable() or c == " ")}


def test_the_seed_decides(corpus):
    again, other = dates_corpus(seed=3, pairs=6000), dates_corpus(seed=4, pairs=1000)
    assert again == corpus
    assert other.sources[:100] != dates_corpus(seed=3, pairs=1000).sources[:100]


def test_it_opens_by_name_and_its_codes_are_tokens(corpus):
    few = slice(0, 600)
    pair = train_tokenizers(corpus.sources[few], corpus.targets[few], 500, codes=corpus.codes)
    ids = pair.source.encode(corpus.sources[few])
    assert {pair.source.vocabulary[row[0]] for row in ids} == {"<de>", "<ko>"}
    assert [pair.target.decode(row) for row in pair.target.encode(corpus.targets[few])] == corpus.targets[few]
    assert open_pairs("dates").name == "dates"


def test_too_few_or_too_many_cannot_be_made(monkeypatch):
    with pytest.raises(ConfigError, match="5 pairs cannot be made"):
        dates_corpus(pairs=5)
    monkeypatch.setitem(__import__("sys").modules, "num2words", None)
    with pytest.raises(ConfigError, match=r"num2words is not installed\n.*pip install 'regard\[text\]'"):
        dates_corpus(pairs=1000)
