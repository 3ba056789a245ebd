"""The training loop and what moves the weights."""

from regard.training.adapt import adapt, layer_numbers
from regard.training.loop import History, train
from regard.training.optim import Average, Muon, learning_rate, make_optimizers

__all__ = ["Average", "History", "Muon", "adapt", "layer_numbers", "learning_rate", "make_optimizers", "train"]
