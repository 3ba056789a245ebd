"""Start a translator from trained weights: a run, or a Marian model.

The network is that of the weights. Where the tokenizer is another, a token that both have (the same bytes, or the same
role if it is special) keeps its embedding, and the other tokens begin with random ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from regard.data.text import Tokenizer, Tokenizers
from regard.errors import ConfigError
from regard.networks.translator import Translator as Network
from regard.tasks.translation.predictor import open_tokenizers
from regard.weights import Checkpoint, LoadReport, find_file, open_weights

RATES = ("dropout",)
"""What no weights depend on."""
WORDS = ("vocabulary", "padding", "start", "end")
"""What the tokenizers decide."""
SHOWN = 20
"""New tokens that transfer.json lists as examples."""
ROLES = ("pad", "start", "end", "unknown")


@dataclass(frozen=True)
class TextStart:
    """Trained weights with their tokenizers, and the report on how they were read."""

    path: str
    checkpoint: Checkpoint
    report: LoadReport
    tokenizers: Tokenizers

    @property
    def shape(self) -> dict[str, Any]:
        """The settings of a run that the weights decide."""
        held = self.checkpoint.config.items()
        return {"model": self.checkpoint.model} | {n: v for n, v in held if n not in (*RATES, *WORDS)}

    def load_into(self, network: Network, new: Tokenizers) -> None:
        """Copy the weights; rows of tokens that they do not know stay as they are."""
        state, weights = network.state_dict(), self.checkpoint.weights
        source, target = (known_rows(*pair) for pair in self._pairs(new))
        rows = {"source_embedding.weight": source, **dict.fromkeys(("embedding.weight", "output.weight"), target)}
        for name, tensor in state.items():
            if name in rows or name == "output_bias":
                own, theirs = rows.get(name, target)
                tensor[own] = weights[name][theirs].to(tensor.dtype)
            else:
                tensor.copy_(weights[name])

    def lines(self, new: Tokenizers) -> list[str]:
        """For people."""
        lines = self.report.lines()
        for side, counts in self._counts(new).items():
            if counts["new"]:
                lines.append(
                    f"  {side} tokens: {counts['kept']:,} keep their embeddings, {counts['new']:,} are new and random, "
                    f"{counts['dropped']:,} of the weights' are not used (--tokenizer keep: the weights' own tokens)"
                )
        return lines

    def to_json(self, new: Tokenizers) -> dict[str, Any]:
        """For the run folder's transfer.json."""
        return asdict(self.report) | {"tokens": self._counts(new)}

    def _pairs(self, new: Tokenizers) -> tuple[tuple[Tokenizer, Tokenizer], tuple[Tokenizer, Tokenizer]]:
        return (self.tokenizers.source, new.source), (self.tokenizers.target, new.target)

    def _counts(self, new: Tokenizers) -> dict[str, Any]:
        counts: dict[str, Any] = {}
        for side, (old, own) in zip(("source", "target"), self._pairs(new), strict=True):
            kept = set(known_rows(old, own)[0].tolist())
            fresh = [name for n, name in enumerate(own.vocabulary) if n not in kept]
            used = len(set(known_rows(old, own)[1].tolist()))
            counts[side] = {
                "kept": len(kept), "new": len(fresh), "dropped": old.size - used, "some_new": fresh[:SHOWN]
            }  # fmt: skip
        return counts


def known_rows(old: Tokenizer, new: Tokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of tokens in `new` that `old` has too, and their numbers there.

    >>> from regard.data.text import train_tokenizer
    >>> old, new = train_tokenizer(["a tree"], 265), train_tokenizer(["a house"], 265)
    >>> own, theirs = known_rows(old, new)
    >>> len(own), new.size, old.size  # the bytes and special tokens, and " a"
    (261, 265, 265)
    """
    if old == new:
        every = torch.arange(new.size)
        return every, every
    pairs = {getattr(new, role): getattr(old, role) for role in ROLES}
    pairs |= {new.vocabulary.index(code): old.vocabulary.index(code) for code in new.codes if code in old.codes}
    for spelt, number in new.spelling.items():
        if spelt in old.spelling and number not in pairs:
            pairs[number] = old.spelling[spelt]
    own = sorted(pairs)
    return torch.tensor(own), torch.tensor([pairs[n] for n in own])


def open_text_start(path: str, model: str | None, fields: Mapping[str, Any]) -> TextStart:
    """The weights at `path`; what they decide and the settings contradict is an error."""
    checkpoint, report = open_weights(path, predicts="words")
    if model is not None and model != checkpoint.model:
        raise ConfigError(f"the weights are of {checkpoint.model}, not of {model}", where=path, do="leave --model out")
    for name, value in fields.items():
        held = checkpoint.config.get(name)
        if name not in RATES and held != value:
            what = f"{name} is {held} in the weights, not {value}"
            raise ConfigError(what, where=path, do=f"leave --{name.replace('_', '-')} out: the weights decide it")
    tokenizers = open_tokenizers(find_file(Path(path)), checkpoint.build(), report.format == "marian")
    return TextStart(path, checkpoint, report, tokenizers)
