"""What a model is for: a task turns outputs into losses while training and into predictions afterwards."""

from regard.tasks.classification import Classification, Learning, Prediction, Task, check_ending, save_predictions
from regard.tasks.masking import MaskedPatches
from regard.tasks.translation import NextWord, Translated

__all__ = [
    "Classification", "Learning", "MaskedPatches", "NextWord", "Prediction", "Task", "Translated", "check_ending",
    "save_predictions",
]  # fmt: skip
