"""How far one place sees after n layers: attention reaches everything at once, convolutions grow.

The effective receptive field of Luo et al., "Understanding the effective receptive field" (2016): the gradient of a
layer's central place with respect to the input pixels. Beside it, where the network attends, the mean attention
distance of each block, as `regard inspect` measures it.

Statistics of GroupNorm are constants in the measurement: they depend on every pixel, so each place would see all of the
input after one block, faintly and equally, which is not the field of the convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard import registry
from regard.console import Progress
from regard.drawing import COLOURS, GREY, canvas, dress
from regard.errors import ConfigError
from regard.explain.explanation import attends
from regard.explain.inspect import attention_distance, hooked
from regard.nn import capture
from regard.study.images.finding import Finding
from regard.study.keep import keep_plan

MODELS = ("vit_nano", "swin_nano", "resnet_nano")


class Field(NamedTuple):
    """Of one layer: the share of pixels with any influence, and the mean distance of influence, in pixels."""

    reached: float
    distance: float


def receptive_fields(model: nn.Module, layers: Sequence[nn.Module], x: Tensor, channels_last: bool) -> list[Field]:
    """The receptive field of the central place after each layer, averaged over the images x (B, C, height, width).

    A layer gives (B, tokens, width) or, with places along two axes, (B, height, width, channels) if `channels_last`,
    else (B, channels, height, width).
    """
    x, kept = x.clone().requires_grad_(), list[Tensor]()
    hooks = [(layer, lambda _module, _args, output: kept.append(output)) for layer in layers]
    norms = [(module, _normalise) for module in model.modules() if isinstance(module, nn.GroupNorm)]
    with hooked([*norms, *hooks]):  # a block may be a norm
        model.eval()(x)
    return [_field(torch.autograd.grad(_centre(output, channels_last), x, retain_graph=True)[0]) for output in kept]


def _normalise(norm: nn.GroupNorm, inputs: tuple[Tensor], _output: Tensor) -> Tensor:
    """The output of a GroupNorm, through whose statistics no gradient flows."""
    (x,) = inputs
    groups = x.unflatten(1, (norm.num_groups, -1))
    variance, mean = torch.var_mean(groups.detach(), tuple(range(2, groups.ndim)), correction=0, keepdim=True)
    y = ((groups - mean) * torch.rsqrt(variance + norm.eps)).flatten(1, 2)
    shape = (1, -1, *[1] * (x.ndim - 2))
    return y * norm.weight.reshape(shape) + norm.bias.reshape(shape)


def _centre(output: Tensor, channels_last: bool) -> Tensor:
    """The sum of squares of the central place's channels: its gradient vanishes in no direction."""
    if output.ndim == 3:
        side = int((output.shape[1]) ** 0.5)  # a few prefix tokens come first
        output = output[:, output.shape[1] - side * side :].unflatten(1, (side, side))
    elif not channels_last:
        output = output.movedim(1, -1)
    place = output[:, output.shape[1] // 2, output.shape[2] // 2]
    return place.square().sum()


def _field(gradient: Tensor) -> Field:
    influence = gradient.abs().sum(1)
    reached = (influence > 0).double().mean()
    share = influence / influence.sum((1, 2), keepdim=True).clamp_min(1e-30)
    axes = [torch.arange(n, dtype=torch.float32) for n in influence.shape[1:]]
    at = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
    middle = (share[..., None] * at).sum((1, 2), keepdim=True)
    distance = ((at - middle).norm(dim=-1) * share).sum((1, 2)).mean()
    return Field(float(reached), float(distance))


def layers_of(model: Any) -> tuple[list[nn.Module], bool]:
    """Its blocks, in order, and whether their outputs have channels last."""
    layers = model.repeated()
    if not layers or model.config.family == "mlp":
        what = f"{type(model).__name__} has no blocks whose outputs have places"
        raise ConfigError(what, do="give a ViT, Swin or ResNet")
    return layers, model.config.family == "swin"


@torch.no_grad()
def attention_distances(model: Any, x: Tensor) -> list[float]:
    """The mean attention distance of each layer in pixels, over heads, on images x; empty without attention."""
    if not attends(model):
        return []
    with capture(model) as tape:
        model.eval()(x)
    return [float(heads.mean()) for heads in attention_distance(tape, model.input_map(), model.token_flow())]


def receptive_field_study(
    models: Sequence[str] = MODELS, *, size: int = 64, images: int = 8, out: str | Path = "studies/receptive-field",
    quiet: bool = False,
) -> Finding:  # fmt: skip
    """Networks with random weights, on random images: what the architecture allows, before any training."""
    rows, progress, place = list[dict[str, Any]](), Progress(quiet), Path(out).expanduser()
    for name in models:
        registry.find(name)
    keep_plan(place, {"kind": "receptive-field", "models": list(models), "size": size, "images": images})
    for name in models:
        torch.manual_seed(0)
        model = registry.build(name, size=(size, size), classes=2)
        layers, channels_last = layers_of(model)
        x = torch.rand(images, 3, size, size)
        fields, attention = receptive_fields(model, layers, x, channels_last), attention_distances(model, x)
        for number, (field, far) in enumerate(zip_longest(fields, attention), start=1):
            rows.append({
                "network": name, "layer": number, **field._asdict(), "attention_distance": far, "pixels": size
            })  # fmt: skip
        last = f"after {len(fields)} {fields[-1].reached:.1%}"
        progress.say(f"{name}: after one block {fields[0].reached:.1%} of the pixels, {last}")
    finding = Finding(
        "receptive-field",
        "Receptive field by layer",
        rows,
        _sentences(rows, models),
        lambda: _draw(rows, models),
        place,
    )
    finding.write()
    return finding


def _sentences(rows: list[dict[str, Any]], models: Sequence[str]) -> list[str]:
    lines = []
    for name in models:
        own = [row for row in rows if row["network"] == name]
        whole = next((row["layer"] for row in own if row["reached"] > 0.999), None)
        first, last = own[0], own[-1]
        near = first["attention_distance"]
        when = f"all of it from block {whole} on" if whole else f"{last['reached']:.0%} after the last of {len(own)}"
        lines.append(
            f"{name}: one place sees {first['reached']:.1%} of a {first['pixels']} pixel input after one block, "
            f"{when}; mean distance of influence {first['distance']:.1f} pixels after one, "
            f"{last['distance']:.1f} after the last"
            + (f"; mean attention distance {near:.1f} and {last['attention_distance']:.1f}." if near else ".")
        )
    return lines


def _draw(rows: list[dict[str, Any]], models: Sequence[str]) -> Any:
    figure = canvas(8.0, 3.6)
    left, right = figure.subplots(1, 2)
    for number, name in enumerate(models):
        own, colour = [row for row in rows if row["network"] == name], COLOURS[number % len(COLOURS)]
        x = [row["layer"] for row in own]
        left.plot(x, [100 * row["reached"] for row in own], "o-", color=colour, label=name, markersize=4)
        right.plot(x, [row["distance"] for row in own], "o-", color=colour, markersize=4)
        if own[0]["attention_distance"] is not None:
            right.plot(x, [row["attention_distance"] for row in own], "s--", color=colour, markersize=4)
    left.legend(frameon=False, labelcolor="linecolor")
    right.plot([], [], "o-", color=GREY, markersize=4, label="influence on one place, by gradients")
    right.plot([], [], "s--", color=GREY, markersize=4, label="attention of this block")
    right.set_ylim(0, 1.3 * right.get_ylim()[1])  # room for the legend
    right.legend(frameon=False, fontsize=8, loc="upper left")
    for ax in (left, right):
        ax.xaxis.get_major_locator().set_params(integer=True)
    dress(left, "blocks", "pixels with influence on one place (%)")
    dress(right, "blocks", "mean distance (pixels)")
    return figure
