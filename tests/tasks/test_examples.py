"""Which tested images a report explains."""

import numpy as np

from regard.metrics import summarise
from regard.tasks.classification.evaluation import Evaluation
from regard.tasks.image_examples import choose_examples
from regard.tasks.regression.evaluation import NumberEvaluation


def evaluation() -> Evaluation:
    """Of three classes: samples 0 to 2 are wrong, 3 and 4 unsure, 5 to 9 right and sure."""
    sure = np.array([0.6, 0.99, 0.8, 0.35, 0.36, 0.91, 0.92, 0.93, 0.94, 0.95])
    labels = np.array([0, 1, 2, 0, 1, 0, 0, 0, 1, 2])
    guesses = np.array([1, 2, 0, 0, 1, 0, 0, 0, 1, 2])
    probs = np.repeat((1 - sure)[:, None] / 2, 3, axis=1)
    probs[np.arange(10), guesses] = sure
    classes = ("a", "b", "c")
    return Evaluation(summarise(probs, labels, classes), classes, list("0123456789"), np.arange(10), labels, probs)


def test_confident_mistakes_then_unsure_answers_then_confident_hits_of_each_class():
    assert choose_examples(evaluation().examples(), 9, same=lambda n: n) == [1, 2, 0, 3, 4, 5, 9, 8, 7]
    assert choose_examples(evaluation().examples(), 6, same=lambda n: n) == [1, 2, 3, 4, 9, 8]
    assert choose_examples(evaluation().examples(), 0, same=lambda n: n) == []
    assert sorted(choose_examples(evaluation().examples(), 99, same=lambda n: n)) == list(range(10))


def test_no_picture_is_explained_twice():
    twins = {2: "x", 1: "x", 9: "y", 8: "y"}
    chosen = choose_examples(evaluation().examples(), 6, same=lambda n: twins.get(n, n))
    assert len(chosen) == 6
    assert len({twins.get(n, n) for n in chosen}) == 6


def test_of_numbers_large_errors_and_then_all_of_the_range():
    truth = np.arange(32.0)[:, None]
    predicted = truth.copy()
    predicted[[3, 30]] += [[5.0], [9.0]]
    made = NumberEvaluation.of(("age",), [str(n) for n in range(32)], np.arange(32), truth, predicted)
    chosen = choose_examples(made.examples(), 8, same=lambda n: n)
    assert chosen[:2] == [30, 3]
    assert sorted(chosen[4:]) == [4, 8, 16, 24], "the middle, the quarters, the first eighth"
