"""The training loop and what moves the weights."""

from regard.training.loop import History, train
from regard.training.optim import Average, Muon, learning_rate, make_optimizers

__all__ = ["Average", "History", "Muon", "learning_rate", "make_optimizers", "train"]
