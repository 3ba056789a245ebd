"""One prediction explained: the map, the scores that say whether to believe it, and a picture of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError, did_you_mean
from regard.explain.draw import draw
from regard.explain.faithfulness import Faithfulness, faithfulness
from regard.explain.methods import raw_attention, rollout
from regard.geometry import TokenMap
from regard.networks import Network
from regard.nn import capture
from regard.tasks import Prediction, Task

METHODS: dict[str, tuple[Callable[..., Tensor], frozenset[str]]] = {
    "attention": (raw_attention, frozenset({"layer", "head"})),
    "rollout": (rollout, frozenset({"identity"})),
}


@dataclass(frozen=True)
class Explanation:
    """`map` (*size) sums to one over the input; `scores` say how faithful it is; `target` what was explained."""

    map: Tensor
    tokens: Tensor
    """One value a placed token."""
    method: str
    options: dict[str, Any]
    target: str
    prediction: Prediction
    scores: Faithfulness
    picture: Tensor
    """What the network saw: (channels, *size) in 0..1."""
    where: TokenMap
    label: str | None = None
    """The true class, where it is known."""

    def save(self, path: str | Path) -> Path:
        """Draw input and attention side by side (the ViT paper's Figure 6) into a PNG, SVG or PDF."""
        return draw([self], Path(path))

    def about(self, name: str, label: str | None = None) -> Explanation:
        """The same, with the sample's name and its true class."""
        return replace(self, prediction=replace(self.prediction, name=name), label=label)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.prediction.name,
            "method": self.method,
            "options": self.options,
            "target": self.target,
            "label": self.label,
            "predicted": self.prediction.label,
            "confidence": self.prediction.confidence,
            "scores": {
                "deletion": self.scores.deletion,
                "insertion": self.scores.insertion,
                "gain": self.scores.gain,
                "random": self.scores.random,
                "random_spread": self.scores.random_spread,
                "beaten": self.scores.beaten,
                "verdict": self.scores.verdict,
            },
            "grid": list(self.where.grid),
            "tokens": [round(v, 6) for v in self.tokens.tolist()],
        }


def check_method(method: str, options: dict[str, Any]) -> None:
    if method not in METHODS:
        raise ConfigError(f"there is no method called {method!r}", do=did_you_mean(method, METHODS))
    for name in options:
        if name not in METHODS[method][1]:
            takes = ", ".join(sorted(METHODS[method][1]))
            raise ConfigError(f"{method} has no option {name!r}", do=f"it takes {takes}")


def explain(
    model: Network,
    task: Task,
    x: Tensor,
    picture: Tensor,
    name: str,
    classes: tuple[str, ...],
    *,
    method: str = "rollout",
    target: str | None = None,
    seed: int = 0,
    **options: Any,
) -> Explanation:
    """Explain one prepared input x (1, C, *size). `target` defaults to the predicted class."""
    check_method(method, options)
    if target is not None and target not in classes:
        raise ConfigError(f"there is no class called {target!r}", do=did_you_mean(target, classes))
    model.eval()
    with torch.inference_mode(), capture(model) as tape:
        probs = task.probabilities(model(x))[0]
    prediction = Prediction.of(name, probs.cpu(), classes)
    where = model.token_map(tuple(x.shape[2:]))
    values = METHODS[method][0](tape, where, **options)[0].cpu()
    number = classes.index(target or prediction.label)
    scores = faithfulness(lambda z: task.probabilities(model(z))[:, number], x, values, where, seed=seed)
    painted = where.paint(values)
    return Explanation(
        map=painted / painted.sum().clamp_min(1e-12),
        tokens=values,
        method=method,
        options=options,
        target=classes[number],
        prediction=prediction,
        scores=scores,
        picture=picture,
        where=where,
    )
