"""Translation figures are sacreBLEU's own, and so are their intervals and tests."""

import time
from typing import Any, cast

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, estimate_ci

from regard.errors import ConfigError, DataError
from regard.metrics import compare_translations, perplexity, summarise_translation
from regard.metrics import translation as module

TEXT = "Ein Hund läuft über die große Wiese und zwei Männer sehen ihm zu , während Kinder spielen ."
WORDS = TEXT.split()


def sentences(n: int, seed: int = 0) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(3, 14))) for _ in range(n)]


def damaged(texts: list[str], share: float, seed: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS) if draw.random() < share else w for w in text.split()) for text in texts]


@pytest.fixture(scope="module")
def systems() -> tuple[list[str], list[str], list[str]]:
    references = sentences(150)
    return damaged(references, 0.3, 1), damaged(references, 0.26, 2), references


def test_values_and_intervals_are_sacrebleus(systems):
    hypotheses, _, references = systems
    made = summarise_translation(hypotheses, references)
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        score = metric.corpus_score(hypotheses, [references], n_bootstrap=1000)
        figure = made.figures[name]
        assert figure.value == pytest.approx(score.score, abs=1e-9)
        assert figure.n == 150
        assert (figure.high - figure.low) / 2 == pytest.approx(score._ci, rel=0.03)
        assert (figure.high + figure.low) / 2 == pytest.approx(score._mean, rel=0.01)
        signature = str(metric.get_signature())
        assert made.signatures[name] == signature.replace("|bs:1000", "").replace("|seed:12345", "")


def test_draws_are_sacrebleus(systems):
    """The same resamples: their rule for an interval gives the same numbers, to the precision of their sums."""
    hypotheses, _, references = systems
    scores = module._Scores(BLEU(), hypotheses, references)
    drawn = np.concatenate([scores.of(weights @ scores.counts) for weights in module._resamples(150, 1000)])
    theirs = BLEU().corpus_score(hypotheses, [references], n_bootstrap=1000)
    assert estimate_ci(drawn) == pytest.approx((theirs._mean, theirs._ci), abs=1e-4)


def test_blocks_of_draws_change_nothing(monkeypatch):
    whole = np.concatenate(list(module._resamples(30, 100)))
    swaps = np.concatenate(list(module._swaps(32, 100)))
    monkeypatch.setattr(module, "_BLOCK", 320)
    assert np.array_equal(np.concatenate(list(module._resamples(30, 100))), whole)
    assert np.concatenate(list(module._swaps(32, 100))).shape == swaps.shape


def test_paired_tests_agree_with_sacrebleus(systems):
    first, second, references = systems
    made = compare_translations(first, second, references, trials=2000)
    for kind in ("bs", "ar"):
        test = PairedTest(
            [("a", first), ("b", second)], {"BLEU": BLEU(), "chrF2": CHRF()}, [references], test_type=kind,
            n_samples=1000 if kind == "bs" else 2000,
        )  # fmt: skip
        _, theirs = test()
        for name, key in (("bleu", "BLEU"), ("chrf", "chrF2")):
            a, b = cast(list[Any], theirs[key])
            assert made[name].difference.value == pytest.approx(b.score - a.score, abs=1e-9)
            ours = made[name].tests["bootstrap" if kind == "bs" else "randomisation"]
            assert ours == pytest.approx(b.p_value, abs=0.002)
    assert 0.001 < made["bleu"].tests["randomisation"] < 0.5, (
        "neither certain nor nothing, so that agreement means something"
    )
    assert made["bleu"].difference.low < made["bleu"].difference.value < made["bleu"].difference.high


def test_a_system_is_no_better_than_itself_and_better_than_noise(systems):
    first, _, references = systems
    itself = compare_translations(first, first, references, trials=200)["bleu"]
    assert itself.difference[:3] == (0.0, 0.0, 0.0)
    assert itself.tests == {"randomisation": 1.0, "bootstrap": 1.0}
    better = compare_translations(damaged(references, 0.9, 3), first, references, trials=200)["chrf"]
    assert better.difference.low > 0
    assert better.tests["randomisation"] == pytest.approx(1 / 201)


def test_exact_matches():
    figure = summarise_translation(["a b", "c", "d"], ["a b", "c", "D"]).figures["exact_match"]
    assert figure.value == pytest.approx(2 / 3)
    assert 0 < figure.low < figure.value < figure.high < 1


def test_perfect_and_empty_translations():
    references = sentences(20)
    assert summarise_translation(references, references).figures["bleu"].value == pytest.approx(100)
    assert summarise_translation([""] * 20, references).figures["bleu"][:3] == (0.0, 0.0, 0.0)


def test_perplexity_is_a_ratio_of_sums_with_an_interval_over_sentences():
    draw = np.random.default_rng(0)
    tokens = draw.integers(5, 30, 400)
    likelihoods = -tokens * draw.normal(1.5, 0.3, 400)
    figure = perplexity(likelihoods, tokens)
    assert figure.value == pytest.approx(np.exp(-likelihoods.sum() / tokens.sum()))
    # The delta method: the variance of a ratio of sums.
    mean = -likelihoods.sum() / tokens.sum()
    error = np.sqrt((((-likelihoods - mean * tokens) / tokens.mean()) ** 2).mean() / 400)
    assert (figure.high - figure.low) / 2 == pytest.approx(1.96 * error * figure.value, rel=0.1)
    with pytest.raises(DataError, match="no perplexity"):
        perplexity(np.zeros(2), np.zeros(2))


def test_unequal_numbers_are_refused():
    with pytest.raises(DataError, match="2 translations cannot be compared with 1 references"):
        summarise_translation(["a", "b"], ["a"])
    with pytest.raises(DataError, match="0 references"):
        compare_translations([], [], [])


def test_a_missing_extra_names_the_command(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(ConfigError, match=r"pip install 'regard\[text\]'"):
        summarise_translation(["a"], ["a"])


def test_resampling_is_quick_beside_scoring():
    """A thousand resamples of a thousand sentences take less than ten scorings of them."""
    references = sentences(1000)
    hypotheses = damaged(references, 0.3, 1)
    clock = time.perf_counter()
    BLEU().corpus_score(hypotheses, [references])
    CHRF().corpus_score(hypotheses, [references])
    once = time.perf_counter() - clock
    clock = time.perf_counter()
    summarise_translation(hypotheses, references)
    print(f"scored once in {once:.2f} s, with intervals in {time.perf_counter() - clock:.2f} s")
    assert time.perf_counter() - clock < 10 * once
