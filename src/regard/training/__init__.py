"""The training loop and what moves the weights."""

from regard.training.loop import History, train
from regard.training.optim import Average, learning_rate, make_optimizer

__all__ = ["Average", "History", "learning_rate", "make_optimizer", "train"]
