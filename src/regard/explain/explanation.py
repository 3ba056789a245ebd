"""An explained prediction: its map, the checks of the map, and its figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from regard.config import in_words
from regard.data.volumes import ScanFrame, is_nifti
from regard.errors import ConfigError, did_you_mean
from regard.explain import methods
from regard.explain.draw import draw
from regard.explain.faithfulness import Faithfulness, faithfulness
from regard.explain.flow import Start
from regard.explain.methods import STEPS, Attribution, Case, require_gradients
from regard.explain.sanity import MAX_CORRELATION, random_twins, rank_correlation
from regard.geometry import Frame, TokenMap
from regard.networks.base import Network
from regard.nn import MultiHeadAttention
from regard.weights import write_aside

Checks = Literal["all", "none"]


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

    function: Callable[..., Tensor | Attribution]
    reads: Literal["attention", "gradients", "model"]
    options: tuple[str, ...] = ()
    tokens: Literal["first", "last", "layer"] = "last"
    """Which tokens it gives values to: those of the first or last stage, or of the layer that was asked for."""

    def __call__(self, case: Case, **options: Any) -> Attribution:
        """One value for each placed token: (places,)."""
        where = self.where(case, options)
        if self.reads == "model":
            made = self.function(case, **options)
        else:
            tape = case.tape() if self.reads == "attention" else case.gradient_tape()
            made = self.function(tape, where, case.flow, start=case.start, **options)
        made = made if isinstance(made, Attribution) else Attribution(made)
        return made._replace(values=made.values[0].float().cpu())

    def where(self, case: Case, options: dict[str, Any]) -> TokenMap:
        """The map of these tokens."""
        if self.tokens == "layer":
            layer, stages = options.get("layer"), case.stages
            layer = -1 if layer is None else layer
            return stages[layer] if -len(stages) <= layer < len(stages) else case.where  # the tape refuses the layer
        return case.first if self.tokens == "first" else case.where


METHODS: dict[str, Method] = {
    "attention": Method(methods.raw_attention, "attention", ("layer", "head"), tokens="layer"),
    "rollout": Method(methods.rollout, "attention", ("identity",), tokens="first"),
    "gradient_rollout": Method(methods.gradient_rollout, "gradients", tokens="first"),
    "chefer": Method(methods.relevance, "gradients", tokens="first"),
    "grad_cam": Method(methods.grad_cam, "model"),
    "integrated_gradients": Method(methods.integrated_gradients, "model", ("steps",), tokens="first"),
    "occlusion": Method(methods.occlusion, "model", ("window",)),
}
FROM_ATTENTION = tuple(name for name, method in METHODS.items() if method.reads == "attention")
"""Methods whose maps are the same for every target."""
DEFAULT = "integrated_gradients"
"""Suits every network; docs/methods.md compares it with the others."""
REPORTED = ("rollout", "integrated_gradients")
"""Methods shown in a report: attention (the ViT paper's Figure 6), and attribution."""
WITHOUT_ATTENTION = ("integrated_gradients", "occlusion")
"""What any network can be asked; one whose tokens stand somewhere has a Grad-CAM too."""
MAX_INCOMPLETE = 0.05
"""Completeness error above which integrated gradients are not trusted."""


class Location(NamedTuple):
    """Overlap of a map with a region that is known to matter."""

    share: float
    """Share of the map inside the region."""
    pointing: bool
    """The pointing game: whether the map's peak is inside the region."""
    area: float
    """Share of the picture, or of a scan's foreground, that the region covers: the score of an uninformative map."""


@dataclass(frozen=True)
class Explanation:
    """`map` (*size) sums to one over the input, or is all zeros if nothing supports the target.

    `scores`, `random_correlation` and `completeness_error` say whether to believe it. The first two are of this map:
    evidence against the target, which it leaves out, counts nowhere.
    """

    map: Tensor
    """Evidence for the target; evidence against it (a negative value) is zero here."""
    tokens: Tensor
    """One value per placed token; below zero is evidence against the target."""
    method: str
    options: dict[str, Any]
    target: str
    """The output that is explained. Maps of methods that read attention alone are the same for every one."""
    prediction: Predicted
    scores: Faithfulness | None
    """None where checks were not asked for, or where the map is the same everywhere."""
    random_correlation: float | None
    """Rank correlation with the maps of the same model with random weights: near zero for a map of the model."""
    completeness_error: float | None
    """Of integrated gradients: how far they are from adding up to the score, as a share of it."""
    picture: Tensor
    """The network's input before normalisation: (channels, *size) in 0..1."""
    where: TokenMap
    """The tokens that have the values: which stage's depends on the method."""
    mask: Tensor | None = None
    """The region of the known cause, (*size), if given."""
    location: Location | None = None
    """Overlap of the map with the mask."""
    label: str | None = None
    """The true class, if known."""
    frame: Frame | None = None
    """Where the input lies in its file."""
    photo: Tensor | None = None
    """The file's own picture in 0..1, whole, at its own or a smaller size: (channels, *size)."""
    scan: ScanFrame | None = None
    """Of a scan: where the input lies in its file."""

    @property
    def badge(self) -> str | None:
        """A warning, if the map hardly depends on what the model has learnt."""
        if self.random_correlation is None or self.random_correlation <= MAX_CORRELATION:
            return None
        return "fails the randomisation check: much the same with random weights, so not about the model"

    @property
    def incomplete(self) -> str | None:
        """A warning, if integrated gradients do not add up to the score."""
        if self.completeness_error is None or self.completeness_error <= MAX_INCOMPLETE:
            return None
        return f"fails completeness: the values miss the score by {self.completeness_error:.0%}, more steps may help"

    @property
    def says_nothing(self) -> bool:
        """Whether the map is the same everywhere."""
        return bool(self.map.max() == self.map.min())

    @property
    def trusted(self) -> bool:
        """Whether the map passes all of its checks."""
        checked = self.scores is not None and self.scores.trusted and self.badge is None and self.incomplete is None
        return checked and not self.says_nothing

    @property
    def verdict(self) -> str:
        """In words, whether to believe the map."""
        if self.says_nothing:
            return f"the map is {'the same' if self.map.max() > 0 else 'zero'} everywhere and says nothing"
        scored = "not checked" if self.scores is None else self.scores.verdict
        return "; ".join(text for text in (scored, self.badge, self.incomplete) if text is not None)

    @property
    def file_map(self) -> Tensor:
        """The map on the file's pixels; zero outside of the network's input."""
        frame = self.scan or self.frame
        if frame is None:
            raise ConfigError("where this input lies in a file is not known")
        return frame.map_to_file(self.map)

    @property
    def seen(self) -> Tensor:
        """The part of the file's picture that the network saw, as fine as it is kept."""
        if self.photo is None or self.frame is None:
            return self.picture
        part = self.photo
        for axis, (start, length) in enumerate(self.frame.scaled(tuple(part.shape[1:])).window, start=1):
            part = part.narrow(axis, round(start), max(1, min(round(length), part.shape[axis] - round(start))))
        return part

    def save(self, path: str | Path) -> Path:
        """Draw picture and map side by side (the ViT paper's Figure 6) into a PNG, SVG or PDF.

        Of a scan also as .nii or .nii.gz: the map with the scan's own affine and shape, 1 being its average over what
        the network saw.
        """
        if not is_nifti(path):
            return draw([self], Path(path))
        if self.scan is None:
            raise ConfigError("only maps of scans are written as NIfTI", where=path, do="end in .png, .svg or .pdf")
        about = f"regard: {self.method} for {self.target}, 1 = mean"
        return self.scan.save(self.map.float().cpu() * self.map.numel(), Path(path), about, write_aside)

    def about(self, name: str, label: str | None = None) -> Explanation:
        """The same explanation with the sample's name and true class."""
        return replace(self, prediction=self.prediction.named(name), label=label)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.prediction.name,
            "method": self.method,
            "options": self.options,
            "target": self.target,
            "label": self.label,
            "predicted": str(self.prediction),
            "correct": None if self.label is None else self.prediction.is_right(self.label),
            "scores": None if self.scores is None else self.scores.to_json(),
            "random_correlation": None if self.random_correlation is None else round(self.random_correlation, 4),
            "completeness_error": self.completeness_error,
            "location": None if self.location is None else self.location._asdict(),
            "verdict": self.verdict,
            "trusted": self.trusted,
            "grid": list(self.where.grid),
            "tokens": [round(v, 6) for v in self.tokens.tolist()],
        }


def attends(model: Network) -> bool:
    """Whether the network has any attention."""
    return any(isinstance(module, MultiHeadAttention) for module in model.modules())


def joined(model: Network) -> bool:
    """Whether a convolutional network beside the tokens has a part in the prediction."""
    return bool(getattr(getattr(model, "config", None), "cnn", None))


def target_note(method: str, target: str | None, checked: bool = True) -> str | None:
    """What to say where a target is asked for and the map does not depend on it.

    >>> target_note("rollout", "cat"), target_note("chefer", "cat"), target_note("rollout", None)
    ('rollout reads attention alone: the map is the same for every target, and only its checks are of cat', None, None)
    """
    if target is None or method not in FROM_ATTENTION:
        return None
    checks = f", and only its checks are of {target}" if checked else ""
    return f"{method} reads attention alone: the map is the same for every target{checks}"


def sensible(model: Network) -> tuple[str, ...]:
    """The methods that make sense for a network.

    >>> import regard
    >>> sensible(regard.create("resnet_nano")), sensible(regard.create("mlp_nano"))
    (('grad_cam', 'integrated_gradients', 'occlusion'), ('integrated_gradients', 'occlusion'))
    """
    if joined(model):
        return WITHOUT_ATTENTION
    if attends(model):
        return tuple(METHODS)
    return (*(("grad_cam",) if model.TOKENS_ON_INPUT else ()), *WITHOUT_ATTENTION)


def reported(model: Network) -> tuple[str, ...]:
    """The methods that a report shows for a network."""
    if joined(model):
        return (DEFAULT,)
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
            raise ConfigError(f"{name}={options[name]!r} does not fit", do=f"give it {in_words(kind)}")
    if model is not None and joined(model) and method not in sensible(model):
        what = f"{method} explains the transformer alone, and {model.config.cnn} beside it predicts too"
        raise ConfigError(what, do=f"use {' or '.join(sensible(model))}, which explain both together")
    if model is not None and method not in sensible(model):
        lacks = "tokens in their places" if method == "grad_cam" else "attention"
        raise ConfigError(
            f"{method} reads {lacks}, and {type(model).__name__} has none", do=f"use {' or '.join(sensible(model))}"
        )


@torch.inference_mode(False)  # gradients are needed, also where the caller has switched them off for good
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
    checks: Checks = "all",
    mask: Tensor | None = None,
    frame: Frame | None = None,
    photo: Tensor | None = None,
    scan: ScanFrame | None = None,
    twins: Sequence[Network] | None = None,
    start: Start | None = None,
    run: Callable[[Network, Tensor], Any] | None = None,
    visible: Tensor | None = None,
    patient: Tensor | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Explanation:
    """Explain one prepared input x (1, C, *size).

    `score` gives the number that is explained, (B,), of the network's output; `answer` what the checks watch, such as
    the probability of `target`. `mask` (*size) is true where the cause is known to lie; `frame` is where the input lies
    in its file (`scan`, of a scan), and `photo` the file's picture. `twins` are the model with random weights, made
    here if not given. `checks="none"` leaves the scores and the twins out, which take most of the time. `say` is told
    how far it has come.
    `start` is the token that attention is followed from, if not the class token or all. `run` gives a network's output
    for inputs, where more than these is needed, such as a mask of padding. `visible` (*size) is that mask: the map is
    zero where it is false. `patient` (*size) is the foreground of a scan, in which a mask's size is measured.
    """
    check_method(method, options, model)
    require_gradients(model)
    model.eval()
    x = x.clone() if x.is_inference() else x
    quick: Callable[[Tensor], Any] = partial(model, class_token_only=True) if run is None else partial(run, model)
    run = run or (lambda network, z: network(z))
    case = Case(model, x, lambda z: score(run(model, z)), start, say)
    where, made = METHODS[method].where(case, options), METHODS[method](case, **options)
    if made.steps is not None:
        options["steps"] = made.steps
    real = torch.tensor(1.0) if visible is None else where.collect(visible.float().cpu()) > 0
    shown = made.values.clamp_min(0) * real
    scores, correlation = None, None
    if checks == "all" and shown.max() > shown.min():
        # What is shown is what is tested.
        scores = faithfulness(lambda z: answer(quick(z)), x, shown, where, seed=seed, say=say)
        twins = random_twins(model, seed=seed) if twins is None else twins
        others = []
        for number, twin in enumerate(twins, start=1):
            told = f"random weights {number} of {len(twins)}"
            say(told)
            tell = partial(_say_more, say, told)
            case = Case(twin, x, lambda z, network=twin: score(run(network, z)), start, tell)
            few = {"steps": STEPS} if method == "integrated_gradients" else {}  # a rank needs no exact sum
            others.append(METHODS[method](case, **(options | few)).values.clamp_min(0) * real)
        correlation = sum(rank_correlation(shown, other) for other in others) / max(len(others), 1)
    painted = where.paint(shown) * (1 if visible is None else visible.cpu())
    painted = painted / painted.sum().clamp_min(1e-30)
    return Explanation(
        map=painted,
        tokens=made.values * real,
        method=method,
        options=options,
        target=target,
        prediction=prediction,
        scores=scores,
        random_correlation=correlation,
        completeness_error=made.completeness_error,
        picture=picture,
        where=where,
        mask=mask,
        frame=frame,
        photo=photo,
        scan=scan,
        location=None if mask is None else locate(painted, mask, patient if visible is None else visible),
    )


def _say_more(say: Callable[[str], None], told: str, more: str) -> None:
    say(f"{told}: {more}")


def locate(painted: Tensor, mask: Tensor, within: Tensor | None = None) -> Location:
    """Share of a map (*size) inside `mask` (*size), and whether its peak is inside; `within` is where it could be."""
    share = float(painted[mask].sum() / painted.sum().clamp_min(1e-30))
    pointing = bool(painted.max() > painted.min() and mask[peak_of(painted)])
    area = mask.float().mean() if within is None else (mask & within.bool()).sum() / within.sum().clamp_min(1)
    return Location(share, pointing, float(area))


def peak_of(painted: Tensor) -> tuple[int, ...]:
    """Where a map is largest: the middle of the block of equal values that begins at its first largest one.

    >>> peak_of(torch.tensor([[0.0, 2, 2, 2], [0, 2, 2, 2]]))
    (1, 2)
    """
    at = list(torch.unravel_index(painted.argmax(), painted.shape))
    top, middle = painted.max(), []
    for axis in range(painted.ndim):
        line = painted[tuple(slice(int(n), None) if a == axis else int(n) for a, n in enumerate(at))]
        length = int((line == top).int().cumprod(0).sum())
        middle.append(int(at[axis]) + length // 2)
    return tuple(middle)
