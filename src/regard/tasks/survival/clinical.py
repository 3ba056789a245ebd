"""Clinical columns beside the image: as numbers, joined to the network, and alone as a baseline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.config import make
from regard.errors import ConfigError, DataError, RunError
from regard.networks.base import Network
from regard.tasks.survival.loss import Ties, cox_loss

MISSING = {"", ".", "?", "na", "n/a", "nan", "none", "null"}
MOST_LEVELS = 20
"""Categories of a column above which it looks like a name or a number of subjects."""
RIDGE = 1e-3
"""Penalty on the squared coefficients of standardised columns: without one, a column that parts the dead has none."""


def number(text: str) -> float:
    """A number; NaN if missing or no number."""
    try:
        return float(text) if text.strip().lower() not in MISSING else math.nan
    except ValueError:
        return math.nan


@dataclass(frozen=True)
class Column:
    """One column: a number with its mean and deviation, or categories, the first of which is the reference."""

    name: str
    levels: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    indicator: bool = False
    """Whether values were missing in the training set: then one feature says so."""

    @staticmethod
    def fit(name: str, texts: Sequence[str], where: object) -> Column:
        """From the training set. A column is a number if all of its values are."""
        held = [text.strip() for text in texts if text.strip().lower() not in MISSING]
        indicator, counts = len(held) < len(texts), Counter(held)
        if len(counts) < 2:
            raise DataError(f"{name} is the same for everyone to train on", where=where, do="leave it out")
        values = np.array([number(text) for text in held])
        if np.isfinite(values).all():
            return Column(name, (), float(values.mean()), float(values.std()), indicator)
        if len(counts) > MOST_LEVELS:
            what = f"{name} has {len(counts)} categories, more than {MOST_LEVELS}"
            raise DataError(what, where=where, do="leave it out, or group them; numbers must be numbers everywhere")
        return Column(name, tuple(sorted(counts, key=lambda level: (-counts[level], level))), indicator=indicator)

    @property
    def features(self) -> list[str]:
        own = [f"{self.name} {level}" for level in self.levels[1:]] if self.levels else [self.name]
        return [*own, f"{self.name} missing"] if self.indicator else own

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """(N, features). A missing value, or a category that training had not, counts as the mean or reference."""
        if self.levels:
            given = np.array([text.strip() for text in texts])
            own = np.stack([given == level for level in self.levels[1:]], axis=1).astype(float)
            missing = ~np.isin(given, self.levels)
        else:
            values = np.array([number(text) for text in texts])
            missing = ~np.isfinite(values)
            own = np.where(missing, 0.0, (values - self.mean) / self.std)[:, None]
        return np.c_[own, missing] if self.indicator else own


@dataclass(frozen=True)
class Clinical:
    """The columns, as the training set has them, and their effect on each output once it is known."""

    columns: tuple[Column, ...]
    weight: tuple[tuple[float, ...], ...] = ()
    """(outputs, features)."""

    @staticmethod
    def fit(texts: Mapping[str, Sequence[str]], train: Sequence[int], where: object) -> Clinical:
        return Clinical(tuple(Column.fit(name, [own[n] for n in train], where) for name, own in texts.items()))

    @property
    def features(self) -> list[str]:
        return [name for column in self.columns for name in column.features]

    def encode(self, texts: Mapping[str, Sequence[str]]) -> np.ndarray:
        """(N, features) of the columns' texts."""
        return np.concatenate([column.encode(texts[column.name]) for column in self.columns], axis=1)

    def effect(self, texts: Mapping[str, Sequence[str]]) -> np.ndarray:
        """What the columns add to the logits: (N, outputs)."""
        return self.encode(texts) @ np.array(self.weight).T

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(stored: Any, outputs: int) -> Clinical:
        try:
            columns = tuple(make(Column, dict(column)) for column in stored["columns"])
            weight = np.array(stored["weight"], dtype=float)
            made = Clinical(columns, tuple(map(tuple, weight.tolist())))
            if weight.shape != (outputs, len(made.features)) or not np.isfinite(weight).all():
                raise ValueError
            return made
        except (ConfigError, KeyError, TypeError, ValueError):
            raise RunError("the checkpoint is damaged: its clinical columns do not fit together") from None


class Joined(Network):
    """Mixed into a network's class: clinical features (B, features) beside the image's, before the head.

    A linear head on both together is the sum of one on each: the image's part stays the network as it was, so that
    it is explained and saved like any other.
    """

    clinical: nn.Linear

    def forward(self, x: Tensor, clinical: Tensor | None = None, **options: Any) -> Any:
        output = super().forward(x, **options)
        return output if clinical is None else output._replace(logits=output.logits + self.clinical(clinical))


def join(network: Network, coefficients: np.ndarray, outputs: int) -> Network:
    """The network with clinical features, whose effect begins at these coefficients."""
    network.clinical = nn.Linear(len(coefficients), outputs, bias=False)
    with torch.no_grad():
        network.clinical.weight.copy_(torch.from_numpy(coefficients).expand(outputs, -1))
    network.__class__ = type(f"Joined{type(network).__name__}", (Joined, type(network)), {})
    return network


def fit_cox(
    features: np.ndarray, time: np.ndarray, event: np.ndarray, ridge: float = RIDGE, ties: Ties = "efron"
) -> np.ndarray:
    """The coefficients of Cox's model (features,) of standardised features, by quasi-Newton steps (BFGS)."""
    from scipy.optimize import minimize

    x, when, seen = (torch.as_tensor(own, dtype=torch.float64) for own in (features, time, event))

    def lost(beta: np.ndarray) -> tuple[float, np.ndarray]:
        b = torch.from_numpy(beta.copy()).requires_grad_()
        value = cox_loss(x @ b, when, seen, ties) + ridge * b.square().sum() / 2
        return value.item(), torch.autograd.grad(value, b)[0].numpy()

    return minimize(lost, np.zeros(x.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-8}).x
