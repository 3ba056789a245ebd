"""How good features are, without training the network that made them: three probes on feature matrices.

Few-shot: regularised least squares from K images a class to targets in {-1, 1} (Dosovitskiy et al., 2021, section
4.1). Linear: logistic regression on all training features. Neighbours: the k nearest by cosine, each with a vote of
exp(similarity / 0.07) (Wu et al., 2018; Caron et al., 2021).

As in big_vision's evaluator, features are standardised by the images learnt from, and of one draw the fewer shots
are among the more. Departures from it: the bias is not penalised at all, and the strength of the penalty is chosen
on validation images, not fixed. Letters in shapes: N images, D features, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from regard.data import order
from regard.errors import ConfigError, DataError
from regard.metrics import Figure, repeated, wilson

METHODS = ("few_shot", "linear", "neighbours")
SHOTS = (1, 5, 10, 25, 50, 100)
DRAWS = 5
NEIGHBOURS = 20
TEMPERATURE = 0.07
SIMILARITIES = 2**24  # at a time: 64 MiB
RIDGE_STRENGTHS = tuple(2.0**power for power in range(-10, 21))
LINEAR_STRENGTHS = tuple(10.0**power for power in range(5, -4, -1))  # a weaker one starts from the stronger's answer


class Labelled(NamedTuple):
    """features (N, D) and labels (N,) of one split."""

    features: np.ndarray
    labels: np.ndarray


class Parts(NamedTuple):
    """What a probe learns from, chooses its strength by, and is tested on."""

    train: Labelled
    val: Labelled
    test: Labelled

    @staticmethod
    def of(features: np.ndarray, labels: np.ndarray, numbers: np.ndarray, index: dict[str, list[int]]) -> Parts:
        """Features of samples known by their `numbers`, parted as `index` says."""
        rows = {name: np.isin(numbers, own) for name, own in index.items()}
        return Parts(*(Labelled(features[rows[name]], labels[rows[name]]) for name in Parts._fields))


class Head(NamedTuple):
    """A linear layer on features as the network gives them: weight (C, D) and bias (C,)."""

    weight: np.ndarray
    bias: np.ndarray

    @staticmethod
    def of(model: Any, mean: np.ndarray, std: np.ndarray) -> Head:
        """From a logistic regression on standardised features; of two classes it has one row, for the second."""
        weight, bias = model.coef_.astype(np.float64), model.intercept_.astype(np.float64)
        if len(bias) == 1:
            weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
        weight = weight / std.astype(np.float64)
        return Head(weight, bias - weight @ mean.astype(np.float64))


@dataclass(frozen=True)
class Row:
    """One probe's figure. `deviation` is over draws; `strength` is the L2 penalty that validation images chose."""

    probe: str
    accuracy: Figure
    shots: int | None = None
    draws: int | None = None
    deviation: float | None = None
    strength: float | None = None
    neighbours: int | None = None
    head: Head | None = field(default=None, compare=False, repr=False)
    """Of the linear probe: what it has learnt."""

    def to_json(self) -> dict[str, Any]:
        value, low, high, n = self.accuracy
        rest = {name: getattr(self, name) for name in ("draws", "deviation", "strength", "neighbours")}
        return {"probe": self.probe, "shots": self.shots, "accuracy": value, "low": low, "high": high, "n": n, **rest}


@dataclass(frozen=True)
class Probe:
    """All figures of one network's features on one data set, and what they were measured on."""

    rows: tuple[Row, ...]
    about: dict[str, Any]

    def row(self, probe: str, shots: int | None = None) -> Row:
        """The row of a probe; a few-shot one by its shots."""
        return next(row for row in self.rows if (row.probe, row.shots) == (probe, shots))

    def to_json(self) -> dict[str, Any]:
        """The figures and what they are of, ready for probe.json."""
        return self.about | {"probes": [row.to_json() for row in self.rows]}


def check_amounts(
    methods: Sequence[str],
    shots: Sequence[int] | None,
    draws: int,
    k: int,
    labels: Sequence[int],
    classes: Sequence[str],
    where: object = None,
) -> None:
    """Refuse what cannot be probed with these training labels, before any feature is computed."""
    for name, value in (("draws", draws), ("neighbours", k)):
        if value < 1:
            raise ConfigError(f"{name}={value} probes nothing", do=f"give {name} at least 1")
    if "few_shot" in methods:
        usable_shots(shots, labels, classes, where)
    if "neighbours" in methods and k > len(labels):
        raise ConfigError(
            f"{k} neighbours are more than the {len(labels)} training images",
            where=where,
            do=f"give --neighbours of at most {len(labels)}",
        )


def usable_shots(
    shots: Sequence[int] | None, labels: Sequence[int], classes: Sequence[str], where: object = None
) -> tuple[int, ...]:
    """The shots asked for, in order, if every class has that many images; if none are, the usual ones that fit."""
    counts = np.bincount(labels, minlength=len(classes))
    least = int(counts.min())
    if shots is None:
        return tuple(k for k in SHOTS if k <= least)
    if not shots or min(shots) < 1:
        raise ConfigError(f"shots={','.join(map(str, shots))} probes nothing", do="give numbers from 1 on: 1,5,10")
    if max(shots) > least:
        few = [f"{name} {n}" for name, n in zip(classes, counts, strict=True) if n < max(shots)]
        more = f" and {len(few) - 10} more" if len(few) > 10 else ""
        raise DataError(
            f"{max(shots)} shots are more training images than some classes have: {', '.join(few[:10])}{more}",
            where=where,
            do=f"give --shots of at most {least}, or add images to these classes",
        )
    return tuple(sorted(set(shots)))


def run_probes(
    parts: Parts,
    classes: Sequence[str],
    *,
    methods: Sequence[str] = METHODS,
    shots: Sequence[int] | None = None,
    draws: int = DRAWS,
    k: int = NEIGHBOURS,
    seed: int = 0,
    device: torch.device | str = "cpu",
    tick: Callable[[int, str], None] = lambda done, note="": None,
) -> tuple[Row, ...]:
    """The rows of every method asked for, in the order of `METHODS`."""
    check_amounts(methods, shots, draws, k, parts.train.labels.tolist(), classes)
    work: dict[str, Callable[[], list[Row]]] = {
        "few_shot": lambda: ridge_shots(parts, classes, shots, draws, seed),
        "linear": lambda: [linear(parts)],
        "neighbours": lambda: [neighbours(parts, len(classes), k, device)],
    }
    rows: list[Row] = []
    for done, method in enumerate((method for method in METHODS if method in methods), start=1):
        rows += work[method]()
        tick(done, method)
    return tuple(rows)


def ridge_shots(
    parts: Parts, classes: Sequence[str], shots: Sequence[int] | None = None, draws: int = DRAWS, seed: int = 0
) -> list[Row]:
    """Few-shot accuracy, the mean over draws; each number of shots has one strength, chosen over all its draws."""
    train, val, test = parts
    _require_validation(val)
    rows: list[Row] = []
    for count in usable_shots(shots, train.labels.tolist(), classes):
        fits = [ridge(_take(train, draw_shots(train.labels, count, seed, d)), len(classes)) for d in range(draws)]
        chosen = np.stack([fit.accuracies(val, RIDGE_STRENGTHS) for fit in fits]).mean(0)
        strength = _best(RIDGE_STRENGTHS, chosen)
        accuracies = np.array([fit.accuracies(test, (strength,))[0] for fit in fits])
        deviation = float(accuracies.std(ddof=1)) if draws > 1 else None
        rows.append(Row("few_shot", repeated(accuracies, len(test.labels)), count, draws, deviation, strength))
    return rows


def draw_shots(labels: np.ndarray, count: int, seed: int, draw: int) -> np.ndarray:
    """Which images: `count` of each class. More shots of the same draw hold the fewer."""
    shuffled = order(seed, draw, np.arange(len(labels)))
    return np.concatenate([shuffled[labels[shuffled] == label][:count] for label in np.unique(labels)])


@dataclass(frozen=True)
class Ridge:
    """Least squares solved for every strength at once, through the singular values of the centred features."""

    mean: np.ndarray
    std: np.ndarray
    directions: np.ndarray
    """(R, D), the right singular vectors."""
    values: np.ndarray
    """(R,), the singular values."""
    targets: np.ndarray
    """(R, C), the centred targets along the left singular vectors."""
    bias: np.ndarray

    def weights(self, strength: float) -> np.ndarray:
        """(D, C), for standardised features."""
        return self.directions.T @ self._shrunk(strength)

    def accuracies(self, on: Labelled, strengths: Sequence[float]) -> np.ndarray:
        along = ((on.features - self.mean) / self.std) @ self.directions.T
        hits = [(along @ self._shrunk(strength) + self.bias).argmax(1) == on.labels for strength in strengths]
        return np.array([right.mean() for right in hits])

    def _shrunk(self, strength: float) -> np.ndarray:
        return (self.values / (self.values**2 + strength))[:, None] * self.targets


def ridge(train: Labelled, classes: int) -> Ridge:
    """Minimises ‖xW + b − y‖² + strength · ‖W‖² for standardised x and y in {-1, 1}; b is free."""
    features = train.features.astype(np.float64)
    mean, std = _scale(features)
    targets = 2 * np.eye(classes)[train.labels] - 1
    bias = targets.mean(0)
    left, values, directions = np.linalg.svd((features - mean) / std, full_matrices=False)
    return Ridge(mean, std, directions, values, left.T @ (targets - bias), bias)


def linear(parts: Parts) -> Row:
    """Logistic regression on all training features; minimises the summed log loss + strength / 2 · ‖W‖²."""
    from sklearn.linear_model import LogisticRegression

    train, val, test = parts
    _require_validation(val)
    mean, std = _scale(train.features)
    x_train, x_val, x_test = ((part.features - mean) / std for part in parts)
    model = LogisticRegression(max_iter=1000, warm_start=True)
    best, strength, predicted, head = -1.0, 0.0, np.empty(0), None
    for tried in LINEAR_STRENGTHS:
        model.set_params(C=1 / tried).fit(x_train, train.labels)
        accuracy = float(np.equal(model.predict(x_val), val.labels).mean())
        if accuracy > best:
            best, strength, predicted, head = accuracy, tried, model.predict(x_test), Head.of(model, mean, std)
    hits = int(np.equal(predicted, test.labels).sum())
    return Row("linear", wilson(hits, len(test.labels)), strength=strength, head=head)


def neighbours(parts: Parts, classes: int, k: int = NEIGHBOURS, device: torch.device | str = "cpu") -> Row:
    """The vote of the k nearest training images; nothing is chosen, so validation images are not used."""
    predicted = votes(parts.train, parts.test.features, classes, k, device).argmax(1)
    hits = int((predicted == parts.test.labels).sum())
    return Row("neighbours", wilson(hits, len(predicted)), neighbours=k)


@torch.inference_mode()
def votes(train: Labelled, features: np.ndarray, classes: int, k: int, device: torch.device | str) -> np.ndarray:
    """(N, C): for each class the sum of exp(cosine / temperature) over those of the k nearest that are of it."""
    known, asked = (F.normalize(torch.from_numpy(x).to(device).float()) for x in (train.features, features))
    labels, counted = torch.from_numpy(train.labels).to(device), []
    for some in asked.split(max(1, SIMILARITIES // len(known))):
        similarity, nearest = (some @ known.T).topk(k)
        none = torch.zeros(len(some), classes, device=device)
        counted.append(none.scatter_add(1, labels[nearest], (similarity / TEMPERATURE).exp()).cpu())
    return torch.cat(counted).numpy()


def _require_validation(val: Labelled) -> None:
    if not len(val.labels):
        raise DataError(
            "there are no validation images to choose the strength of the penalty by",
            do="add a split called val, or probe with neighbours alone, which need none",
        )


def _take(part: Labelled, index: np.ndarray) -> Labelled:
    return Labelled(part.features[index], part.labels[index])


def _scale(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each feature; one that never varies is left as it is, zero once centred."""
    return features.mean(0), features.std(0) + 1e-5


def _best(strengths: Sequence[float], accuracies: np.ndarray) -> float:
    """The strength of the highest accuracy; of equals the strongest."""
    return max(zip(accuracies.tolist(), strengths, strict=True))[1]
