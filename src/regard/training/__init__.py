"""The training loop, optimizers, and the saved state from which a run resumes."""

from regard.training.adapt import adapt, layer_numbers
from regard.training.distributed import ALONE, World, joined
from regard.training.fits import largest_batch
from regard.training.gradients import autocast
from regard.training.loop import Feed, History, Training, Writer
from regard.training.optim import Average, Muon, learning_rate, make_optimizers
from regard.training.state import State, load_state, save_state
from regard.training.step import Step
from regard.training.stopping import Stop

__all__ = [
    "ALONE",
    "Average",
    "Feed",
    "History",
    "Muon",
    "State",
    "Step",
    "Stop",
    "Training",
    "World",
    "Writer",
    "adapt",
    "autocast",
    "joined",
    "largest_batch",
    "layer_numbers",
    "learning_rate",
    "load_state",
    "make_optimizers",
    "save_state",
]
