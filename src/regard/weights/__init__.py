"""What lies on disk: checkpoints and run folders. Safetensors and JSON, written aside and renamed; no pickle."""

from regard.weights.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from regard.weights.run import Run, write_text

__all__ = ["Checkpoint", "Run", "load_checkpoint", "save_checkpoint", "write_text"]
