"""Running a model over data to see how good it is."""

from regard.evaluation.classify import Evaluation, evaluate, predict_loader, quick_figures
from regard.evaluation.unseen import choose_samples, seen_samples

__all__ = ["Evaluation", "choose_samples", "evaluate", "predict_loader", "quick_figures", "seen_samples"]
