"""What lies on disk: checkpoints and run folders. Safetensors and JSON, written aside and renamed; no pickle."""

from regard.weights.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, write_aside
from regard.weights.run import Run, to_json, write_text

__all__ = ["Checkpoint", "Run", "load_checkpoint", "save_checkpoint", "to_json", "write_aside", "write_text"]
