"""Transfer (Dosovitskiy et al., section 3.2): weights trained on other data, made ready for these.

The head is removed and one of zeros for the new classes put in its place; positions are resampled to the
size asked for. Inputs keep the mean and deviation of the pre-training: the first layer was learnt for
those, and with others it would see darker or flatter pictures than it knows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from regard.config import MODEL_FIELDS, RunConfig
from regard.weights.checkpoint import Checkpoint
from regard.weights.load import open_weights
from regard.weights.notes import LoadReport

RATES = "dropout", "drop_path"
"""What no weights depend on."""
SHAPE = tuple(name for name in MODEL_FIELDS if name not in RATES)
"""What the weights decide about a run, unless asked otherwise; a recipe does not change it."""


@dataclass(frozen=True)
class Start:
    """Where a run starts from, and what was changed on the way here."""

    checkpoint: Checkpoint
    report: LoadReport

    @property
    def shape(self) -> dict[str, Any]:
        """The settings of a run that the weights decide."""
        return {"model": self.checkpoint.model} | {
            name: self.checkpoint.config[name] for name in SHAPE if name in self.checkpoint.config
        }

    def with_rates(self, config: RunConfig) -> Checkpoint:
        """The checkpoint with the run's dropout and stochastic depth."""
        rates = {name: getattr(config, name) for name in RATES}
        said = {name: rate for name, rate in rates.items() if rate is not None}
        return replace(self.checkpoint, config=self.checkpoint.config | said)

    def to_json(self) -> dict[str, Any]:
        """For the run folder's transfer.json."""
        preparation = self.checkpoint.preparation
        return asdict(self.report) | {"mean": preparation.mean, "std": preparation.std}


def open_start(path: str | Path, classes: int, settings: dict[str, Any]) -> Start:
    """Weights of any known format or a run's best, for so many classes and for what the settings ask."""
    asked = {name: value for name in SHAPE if (value := settings.get(name)) is not None}
    return Start(*open_weights(path, settings.get("model"), classes, new_head=True, **asked))
