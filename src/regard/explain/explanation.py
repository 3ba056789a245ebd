"""An explained prediction: its map, the checks of the map, and its figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from regard.errors import ConfigError, did_you_mean
from regard.explain import methods
from regard.explain.draw import draw
from regard.explain.faithfulness import Faithfulness, faithfulness
from regard.explain.methods import Case
from regard.explain.sanity import MAX_CORRELATION, random_twins, rank_correlation
from regard.geometry import Frame, TokenMap
from regard.networks.base import Network
from regard.nn import MultiHeadAttention


class Predicted(Protocol):
    """A prediction; `str` of it is shown in figures."""

    @property
    def name(self) -> str: ...

    def named(self, name: str) -> Any:
        """The same prediction with another sample name."""
        ...

    def is_right(self, label: str) -> bool | None:
        """Whether it is the true label; None if predictions are not simply right or wrong."""
        ...


class Method(NamedTuple):
    """`reads` is the input of the function: a tape of attention, a tape with gradients, or the case itself."""

    function: Callable[..., Tensor]
    reads: Literal["attention", "gradients", "model"]
    options: tuple[str, ...] = ()

    def __call__(self, case: Case, **options: Any) -> Tensor:
        """One value per patch token: (places,)."""
        if self.reads == "model":
            values = self.function(case, **options)
        else:
            tape = case.tape() if self.reads == "attention" else case.gradient_tape()
            values = self.function(tape, case.where, **options)
        return values[0].float().cpu()


METHODS: dict[str, Method] = {
    "attention": Method(methods.raw_attention, "attention", ("layer", "head")),
    "rollout": Method(methods.rollout, "attention", ("identity",)),
    "gradient_rollout": Method(methods.gradient_rollout, "gradients"),
    "chefer": Method(methods.relevance, "gradients"),
    "grad_cam": Method(methods.grad_cam, "model"),
    "integrated_gradients": Method(methods.integrated_gradients, "model", ("steps",)),
    "occlusion": Method(methods.occlusion, "model", ("window",)),
}
DEFAULT = "integrated_gradients"
"""The most faithful on every data set tried (docs/methods.md)."""
REPORTED = ("rollout", "integrated_gradients")
"""Methods shown in a report: attention (the ViT paper's Figure 6), and attribution."""
WITHOUT_ATTENTION = ("integrated_gradients", "occlusion")
"""Methods for any network; networks whose tokens have positions on the input also have Grad-CAM."""


class Location(NamedTuple):
    """Overlap of a map with a region that is known to matter."""

    share: float
    """Share of the map inside the region."""
    pointing: bool
    """The pointing game: whether the map's peak is inside the region."""
    area: float
    """Share of the picture that the region covers: the expected score of an uninformative map."""


@dataclass(frozen=True)
class Explanation:
    """`map` (*size) sums to one over the input, or is all zeros if nothing supports the target.

    `scores` and `random_correlation` tell whether to trust it.
    """

    map: Tensor
    """Evidence for the target; evidence against it (a negative value) is zero here."""
    tokens: Tensor
    """One value per patch token."""
    method: str
    options: dict[str, Any]
    target: str
    prediction: Predicted
    scores: Faithfulness
    random_correlation: float
    """Rank correlation with the maps of the same model with random weights; should be near zero."""
    picture: Tensor
    """The network's input before normalisation: (channels, *size) in 0..1."""
    where: TokenMap
    mask: Tensor | None = None
    """The region of the known cause, (*size), if given."""
    location: Location | None = None
    """Overlap of the map with the mask."""
    label: str | None = None
    """The true class, if known."""
    frame: Frame | None = None
    """Position of the input on its file."""

    @property
    def badge(self) -> str | None:
        """A warning if the map hardly depends on the model's weights."""
        if self.random_correlation <= MAX_CORRELATION:
            return None
        return "fails the randomisation check: much the same with random weights, so not about the model"

    @property
    def trusted(self) -> bool:
        """Whether the map passes both of its checks."""
        return self.badge is None and self.scores.trusted and bool(self.tokens.max() > self.tokens.min())

    @property
    def verdict(self) -> str:
        """One sentence: whether to trust the map."""
        if self.tokens.max() == self.tokens.min():
            return "the map is the same everywhere and says nothing"
        return self.scores.verdict if self.badge is None else f"{self.scores.verdict}; {self.badge}"

    @property
    def file_map(self) -> Tensor:
        """The map on the file's pixels; zero outside of the network's input."""
        if self.frame is None:
            raise ConfigError("where this input lies in a file is not known")
        return self.frame.map_to_file(self.map)

    def save(self, path: str | Path) -> Path:
        """Draw input and attention side by side (the ViT paper's Figure 6) into a PNG, SVG or PDF."""
        return draw([self], Path(path))

    def about(self, name: str, label: str | None = None) -> Explanation:
        """The same explanation with the sample's name and true class."""
        return replace(self, prediction=self.prediction.named(name), label=label)

    def to_json(self) -> dict[str, Any]:
        scores = {name: value for name, value in asdict(self.scores).items() if not name.endswith("_curve")}
        return {
            "name": self.prediction.name,
            "method": self.method,
            "options": self.options,
            "target": self.target,
            "label": self.label,
            "predicted": str(self.prediction),
            "correct": None if self.label is None else self.prediction.is_right(self.label),
            "scores": scores | {"gain": self.scores.gain},
            "random_correlation": round(self.random_correlation, 4),
            "location": None if self.location is None else self.location._asdict(),
            "verdict": self.verdict,
            "trusted": self.trusted,
            "grid": list(self.where.grid),
            "tokens": [round(v, 6) for v in self.tokens.tolist()],
        }


def attends(model: Network) -> bool:
    """Whether the network has any attention."""
    return any(isinstance(module, MultiHeadAttention) for module in model.modules())


def sensible(model: Network) -> tuple[str, ...]:
    """The methods that make sense for a network.

    >>> import regard
    >>> sensible(regard.create("resnet_nano")), sensible(regard.create("mlp_nano"))
    (('grad_cam', 'integrated_gradients', 'occlusion'), ('integrated_gradients', 'occlusion'))
    """
    if attends(model):
        return tuple(METHODS)
    return (*(("grad_cam",) if model.TOKENS_ON_INPUT else ()), *WITHOUT_ATTENTION)


def reported(model: Network) -> tuple[str, ...]:
    """The methods that a report shows for a network."""
    return REPORTED if attends(model) else sensible(model)[:2]


def check_method(method: str, options: dict[str, Any], model: Network | None = None) -> None:
    """Refuse an unknown method, an unknown option, or a model that the method cannot explain."""
    if method not in METHODS:
        raise ConfigError(f"there is no method called {method!r}", do=did_you_mean(method, METHODS))
    for name in options:
        if name not in METHODS[method].options:
            takes = ", ".join(METHODS[method].options)
            raise ConfigError(
                f"{method} has no option {name!r}", do=f"it takes {takes}" if takes else "it takes no options"
            )
        kind = bool if name == "identity" else int
        if type(options[name]) is not kind and options[name] is not None:
            raise ConfigError(f"{name}={options[name]!r} does not fit", do=f"give a value of type {kind.__name__}")
    if model is not None and method not in sensible(model):
        lacks = "tokens in their places" if method == "grad_cam" else "attention"
        raise ConfigError(
            f"{method} reads {lacks}, and {type(model).__name__} has none", do=f"use {' or '.join(sensible(model))}"
        )


def explain(
    model: Network,
    x: Tensor,
    picture: Tensor,
    *,
    prediction: Predicted,
    target: str,
    score: Callable[[Any], Tensor],
    answer: Callable[[Any], Tensor],
    method: str = DEFAULT,
    mask: Tensor | None = None,
    frame: Frame | None = None,
    twins: Sequence[Network] | None = None,
    seed: int = 0,
    **options: Any,
) -> Explanation:
    """Explain one prepared input x (1, C, *size).

    `score` computes the explained number (B,) from the network's output. `answer` computes the number for the checks,
    such as the probability of `target`. `mask` (*size) is true in the region of the known cause. `frame` is the
    position of the input on its file. `twins` are copies of the model with random weights, made here if not given.
    """
    check_method(method, options, model)
    model.eval()

    def values_of(network: Network) -> Tensor:
        return METHODS[method](Case(network, x, lambda z: score(network(z))), **options)

    values, where = values_of(model), model.token_map(tuple(x.shape[2:]))
    others = [values_of(twin) for twin in (random_twins(model, seed=seed) if twins is None else twins)]
    scores = faithfulness(lambda z: answer(model(z, class_token_only=True)), x, values, where, seed=seed)
    painted = where.paint(values.clamp_min(0))
    painted = painted / painted.sum().clamp_min(1e-30)
    return Explanation(
        map=painted,
        tokens=values,
        method=method,
        options=options,
        target=target,
        prediction=prediction,
        scores=scores,
        random_correlation=sum(rank_correlation(values, other) for other in others) / max(len(others), 1),
        picture=picture,
        where=where,
        mask=mask,
        frame=frame,
        location=None if mask is None else locate(painted, mask),
    )


def locate(painted: Tensor, mask: Tensor) -> Location:
    """Share of a map (*size) inside `mask` (*size), and whether its peak is inside."""
    share = float(painted[mask].sum() / painted.sum().clamp_min(1e-30))
    pointing = bool(painted.max() > painted.min() and mask.flatten()[painted.argmax()])
    return Location(share, pointing, float(mask.float().mean()))
