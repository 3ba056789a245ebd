"""`regard.load`, `regard.evaluate` and `regard.create` with the type that the test's model has."""

from pathlib import Path
from typing import Any

import regard
from regard.networks.translator import Translator as TranslatorNetwork
from regard.tasks.classification.evaluation import Evaluation
from regard.tasks.classification.predictor import Classifier
from regard.tasks.translation.predictor import Translator


def load_classifier(path: str | Path, device: str = "auto", **options: Any) -> Classifier:
    predictor = regard.load(path, device, **options)
    assert isinstance(predictor, Classifier)
    return predictor


def load_translator(path: str | Path, **options: Any) -> Translator:
    predictor = regard.load(path, **options)
    assert isinstance(predictor, Translator)
    return predictor


def evaluate_classifier(run: str | Path, data: str | Path, **options: Any) -> Evaluation:
    result = regard.evaluate(run, data, **options)
    assert isinstance(result, Evaluation)
    return result


def create_translator(name: str, **fields: Any) -> TranslatorNetwork:
    model = regard.create(name, **fields)
    assert isinstance(model, TranslatorNetwork)
    return model
