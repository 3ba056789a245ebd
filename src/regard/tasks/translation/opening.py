"""A trained translator from its run folder: checkpoint and tokenizers."""

from __future__ import annotations

from pathlib import Path

from regard import registry
from regard.data.text import Tokenizers
from regard.errors import RunError
from regard.networks.translator import Translator
from regard.weights import Checkpoint, find_file, open_weights

TOKENIZERS = "tokenizers"


def open_translator(path: str | Path) -> tuple[Checkpoint, Translator, Tokenizers]:
    """A run's best translator, or that of a checkpoint file in a run folder, with its tokenizers."""
    checkpoint, _ = open_weights(path)
    file = find_file(path)
    folder = file.parent.parent / TOKENIZERS
    languages = checkpoint.details.get("languages")
    if not isinstance(languages, list) or len(languages) != 2 or not all(isinstance(n, str) for n in languages):
        raise RunError("the checkpoint is damaged: it names no languages", where=file)
    if not folder.is_dir():
        raise RunError("its tokenizers are missing", where=folder, do="keep a checkpoint in its run folder")
    tokenizers = Tokenizers.load(folder)
    model: Translator = registry.build(checkpoint.model, **checkpoint.config)
    sizes, words = (
        (tokenizers.source.size, tokenizers.target.size),
        (model.config.source_words, model.config.target_words),
    )
    if sizes != words:
        raise RunError(f"tokenizers of {sizes} tokens do not fit a model of {words}", where=folder)
    model.load_state_dict(checkpoint.weights)
    return checkpoint, model, tokenizers
