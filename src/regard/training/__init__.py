"""The training loop and what moves the weights."""

from regard.training.loop import Stopped, train
from regard.training.optim import Average, learning_rate, make_optimizer

__all__ = ["Average", "Stopped", "learning_rate", "make_optimizer", "train"]
