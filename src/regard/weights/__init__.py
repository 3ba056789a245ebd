"""Files: checkpoints, run folders and weights of other libraries. Writes are atomic; reading never runs code."""

from regard.weights.average import average
from regard.weights.checkpoint import Checkpoint, save_checkpoint, write_aside
from regard.weights.convert import convert
from regard.weights.load import find_file, fingerprint, identify, name_of, open_weights
from regard.weights.notes import LoadReport
from regard.weights.run import Run, find_run, seen_samples, to_csv, to_json, write_text
from regard.weights.seq2seq import save_marian
from regard.weights.transfer import Start, open_start

__all__ = [
    "Checkpoint",
    "LoadReport",
    "Run",
    "Start",
    "average",
    "convert",
    "find_file",
    "find_run",
    "fingerprint",
    "identify",
    "name_of",
    "open_start",
    "open_weights",
    "save_checkpoint",
    "save_marian",
    "seen_samples",
    "to_csv",
    "to_json",
    "write_aside",
    "write_text",
]
