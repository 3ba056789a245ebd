"""Transfer (Dosovitskiy et al., section 3.2): weights trained on other data, made ready for these.

The head is replaced by one of zeros for the new classes, and positions are resampled to the new size. Inputs are
normalised with the mean and standard deviation of the pre-training, which the first layer was trained on; volumes,
for which weights of pictures are inflated, with their own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from regard.weights.checkpoint import Checkpoint
from regard.weights.inflate import Inflation
from regard.weights.load import open_weights
from regard.weights.notes import LoadReport

RATES = "dropout", "drop_path"
"""What no weights depend on."""


@dataclass(frozen=True)
class Start:
    """The weights that a run starts from, and the report on how they were read."""

    checkpoint: Checkpoint
    report: LoadReport

    @property
    def shape(self) -> dict[str, Any]:
        """The settings of a run that the weights decide."""
        held = self.checkpoint.config.items()
        return {"model": self.checkpoint.model} | {n: value for n, value in held if n not in (*RATES, "classes")}

    def with_rates(self, fields: dict[str, Any]) -> Checkpoint:
        """The checkpoint with the run's dropout and stochastic depth."""
        said = {name: fields[name] for name in RATES if name in fields and name in self.checkpoint.config}
        return replace(self.checkpoint, config=self.checkpoint.config | said)

    def to_json(self) -> dict[str, Any]:
        """For the run folder's transfer.json."""
        preparation = self.checkpoint.preparation
        assert preparation is not None
        shared = {} if self.report.inflated else {"mean": preparation.mean, "std": preparation.std}
        return asdict(self.report) | shared


def open_start(
    path: str | Path,
    classes: int,
    fields: dict[str, Any],
    model: str | None,
    predicts: str = "classes",
    inflation: Inflation | None = None,
) -> Start:
    """Weights of any known format or a run's best, for so many classes and with these fields of the config."""
    asked = {name: value for name, value in fields.items() if name not in RATES}
    return Start(*open_weights(path, model, classes, new_head=True, predicts=predicts, inflation=inflation, **asked))
