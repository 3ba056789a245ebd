"""Running a model over data to see how good it is."""

from regard.evaluation.classify import Evaluation, evaluate, predict_loader, quick_figures
from regard.evaluation.seeds import repeat, table
from regard.evaluation.unseen import choose_samples, seen_samples

__all__ = [
    "Evaluation",
    "choose_samples",
    "evaluate",
    "predict_loader",
    "quick_figures",
    "repeat",
    "seen_samples",
    "table",
]
