"""What a model is for: a task turns outputs into losses while training and into predictions afterwards."""

from regard.tasks.classification import Classification, Prediction, Task, check_ending, save_predictions

__all__ = ["Classification", "Prediction", "Task", "check_ending", "save_predictions"]
