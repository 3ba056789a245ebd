"""Running a model over data to see how good it is."""

from regard.evaluation.classify import Evaluation, evaluate, predict_loader, quick_figures

__all__ = ["Evaluation", "evaluate", "predict_loader", "quick_figures"]
