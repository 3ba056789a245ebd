"""Feature visualisation: the input that most excites a class, a head or a token.

Olah, Mordvintsev & Schubert, "Feature Visualization" (2017): gradient ascent on a picture with four regularisers:

- the picture is made in Fourier space with amplitudes 1/frequency, so that coarse shapes come as easily as fine ones;
- it is seen under small random shifts, rotations and zooms;
- total variation is penalised;
- so is the distance from the mean of the training data.

Departures: channels are not decorrelated (their correlation differs between datasets); volumes are not rotated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.console import Step
from regard.errors import ConfigError, did_you_mean
from regard.explain.inspect import blocks, hooked, layer_maps
from regard.explain.methods import require_gradients
from regard.networks.base import Network
from regard.nn import MultiHeadAttention

STEPS = 256

Excitement = Callable[[Tensor], Tensor]
"""From normalised inputs (B, C, *size) to how strongly each one excites the target: (B,)."""


@dataclass(frozen=True)
class Visualisation:
    """`picture` (channels, *size) in 0..1, and how strongly it excites the target."""

    picture: Tensor
    target: str
    before: float
    """The excitement of the picture that the search began with, nearly the mean of the data."""
    noise: float
    """The mean excitement of natural noise (waves of strength 1/frequency, as contrasty as the data)."""
    after: float

    def save(self, path: str | Path) -> Path:
        """Draw it into a PNG, SVG or PDF."""
        from regard.explain.inspect_draw import draw_excited

        return draw_excited([self], Path(path))


def class_excitement(model: nn.Module, classes: tuple[str, ...], name: str) -> Excitement:
    """The logit of the class called `name`."""
    if name not in classes:
        raise ConfigError(f"there is no class called {name!r}", do=did_you_mean(name, classes))
    number = classes.index(name)
    return lambda x: model(x).logits[:, number]


def head_excitement(model: nn.Module, layer: int, head: int) -> Excitement:
    """The norm of what one head hands on, averaged over tokens."""
    attentions = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    if not attentions:
        raise ConfigError(f"{type(model).__name__} has no attention heads to excite", do="excite a class")
    attention = attentions[_number("layer", layer, len(attentions))]
    head = _number("head", head, attention.heads)
    part = attention.inner // attention.heads

    def excitement(x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        with hooked([(attention.out, lambda _module, args, _output: kept.append(args[0]))]):
            model(x)
        return kept[0][..., head * part : (head + 1) * part].norm(dim=-1).reshape(len(x), -1).mean(-1)

    return excitement


def token_excitement(model: Network, layer: int, token: int, channel: int | None = None) -> Excitement:
    """The norm, or one channel, of the placed token number `token` (from 0, in raster order) after a block."""
    stack = blocks(model)
    layer = _number("layer", layer, len(stack))
    block, where = stack[layer], layer_maps(model.input_map(), model.token_flow())[layer][0]
    at = len(where.prefix) + _number("token", token, where.places)
    if channel is not None:
        channel = _number("channel", channel, block.mlp.down.out_features)

    def excitement(x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        with hooked([(block, lambda _module, _args, tokens: kept.append(tokens.flatten(1, -2)[:, at]))]):
            model(x)
        return kept[0].norm(dim=-1) if channel is None else kept[0][:, channel]

    return excitement


def _number(what: str, number: int, count: int) -> int:
    if not -count <= number < count:
        raise ConfigError(f"there is no {what} {number}", do=f"{what}s are numbered 0 to {count - 1}")
    return number % count


@torch.inference_mode(False)
def visualise(
    model: Network,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    classes: tuple[str, ...] = (),
    *,
    target: str | None = None,
    layer: int | None = None,
    head: int | None = None,
    token: int | None = None,
    channel: int | None = None,
    **settings: Any,
) -> Visualisation:
    """The input that most excites a class (`target`), a head (`layer`, `head`) or a token (`layer`, `token`).

    `mean` and `std` are those the network's inputs are normalised with; `settings` are `most_exciting`'s.

    >>> import regard
    >>> model = regard.create("vit_nano", classes=2, size=(16, 24))
    >>> result = visualise(model, (0.5,) * 3, (0.25,) * 3, layer=3, head=1, steps=20)
    >>> result.picture.shape, result.target, result.after > result.before
    (torch.Size([3, 16, 24]), 'layer 3, head 1', True)
    """
    require_gradients(model)
    where = model.token_map()
    if target is not None and layer is head is token is channel is None:
        excitement, name = class_excitement(model, classes, target), f"class {target!r}"
    elif target is None and layer is not None and head is not None and token is channel is None:
        excitement, name = head_excitement(model, layer, head), f"layer {layer}, head {head}"
    elif target is None and layer is not None and token is not None and head is None:
        excitement = token_excitement(model, layer, token, channel)
        name = f"layer {layer}, token {token}" + ("" if channel is None else f", channel {channel}")
    else:
        raise ConfigError("what to excite is not clear", do="give target, or layer and head, or layer and token")
    training = model.training
    model.eval()
    settings = {"device": next(model.parameters()).device} | settings
    try:
        return most_exciting(excitement, where.size, mean, std, name, **settings)
    finally:
        model.train(training)


def most_exciting(
    excitement: Excitement,
    size: tuple[int, ...],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    name: str = "",
    *,
    steps: int = STEPS,
    rate: float = 0.05,
    views: int = 4,
    jitter: float = 1 / 16,
    turn: float = 5.0,
    zoom: float = 0.05,
    variation: float = 0.01,
    pull: float = 0.05,
    seed: int = 0,
    device: torch.device | str = "cpu",
    tick: Step | None = None,
) -> Visualisation:
    """Search for the picture of greatest `excitement`, `steps` steps of Adam with step size `rate`.

    Each step sees `views` copies, each shifted by up to `jitter` of the side, turned by up to `turn`
    degrees and zoomed by up to `zoom`. Excitement is counted in standard deviations over natural noise, so
    that `variation` and `pull`, the weights of total variation and of the distance from the mean, mean the
    same for every target. The same seed gives the same picture.
    """
    if len(size) not in (2, 3):
        raise ConfigError(f"inputs with {len(size)} axes are not visualised", do="use a network for images or volumes")
    draw, axes = torch.Generator().manual_seed(seed), (len(mean), *[1] * len(size))
    centre, spread = (torch.tensor(values, device=device).reshape(axes) for values in (mean, std))
    strength = _strength(size).to(device)

    def waves(count: int) -> Tensor:
        return torch.randn(count, len(mean), *strength.shape, 2, generator=draw).to(device)

    def field(spectrum: Tensor) -> Tensor:
        return torch.fft.irfftn(torch.view_as_complex(spectrum) * strength, s=size, norm="ortho")

    def paint(spectrum: Tensor) -> Tensor:
        """Spectra (B, C, *frequencies, 2) as pictures in 0..1, zero being the mean of the data."""
        return torch.sigmoid(torch.logit(centre.clamp(0.02, 0.98)) + field(spectrum))

    with torch.no_grad():
        natural = field(waves(16))
        noise = excitement(natural / natural.std())
    spectrum = (0.01 * waves(1)).requires_grad_()
    optimiser = torch.optim.Adam([spectrum], lr=rate)
    unit = noise.std().clamp_min(1e-6)
    before = 0.0
    for step in range(steps):
        picture = paint(spectrum)
        inputs = (picture - centre) / spread
        if step == 0:
            with torch.no_grad():
                before = float(excitement(inputs)[0])
        seen = _varied(inputs.expand(views, *inputs.shape[1:]), jitter, turn, zoom, draw)
        # A picture of n pixels excites at best in proportion to √n: so must the penalties grow.
        paid = variation * total_variation(inputs) + pull * inputs.square().mean()
        loss = paid * inputs.numel() ** 0.5 - excitement(seen).mean() / unit
        # Not backward(): the network's own parameters must gather no gradients.
        (spectrum.grad,) = torch.autograd.grad(loss, [spectrum])
        optimiser.step()
        if tick is not None:
            tick(step + 1)
    with torch.no_grad():
        picture = paint(spectrum)
        after = float(excitement((picture - centre) / spread)[0])
    return Visualisation(picture[0].cpu(), name, before, float(noise.mean()), after)


def total_variation(x: Tensor) -> Tensor:
    """The mean absolute difference of neighbours along each axis of (B, C, *size), added over axes.

    >>> total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]))
    tensor(1.)
    """
    return torch.stack([x.diff(dim=axis).abs().mean() for axis in range(2, x.ndim)]).sum()


def _strength(size: tuple[int, ...]) -> Tensor:
    """1/frequency for every wave of a real Fourier transform, the lowest finite; of unit power on average."""
    rates = [torch.fft.fftfreq(n) for n in size[:-1]] + [torch.fft.rfftfreq(size[-1])]
    grid = torch.meshgrid(*rates, indexing="ij")
    frequency = torch.stack(grid).square().sum(0).sqrt()
    strength = 1 / frequency.clamp_min(1 / max(size))
    return strength / strength.square().mean().sqrt()


def _varied(x: Tensor, jitter: float, turn: float, zoom: float, draw: torch.Generator) -> Tensor:
    """Each of x (B, C, *size) shifted, zoomed and (in two dimensions) turned at random; edges are mirrored."""
    dims = x.ndim - 2
    u = 2 * torch.rand(len(x), 2 + dims, generator=draw) - 1
    angle, scale = u[:, 0] * math.radians(turn), 1 + zoom * u[:, 1]
    matrix = torch.zeros(len(x), dims, dims + 1)
    matrix[:, range(dims), range(dims)] = scale[:, None].expand(-1, dims)
    if dims == 2:
        # Coordinates run from -1 to 1 on both sides, so a turn of a rectangle must know its proportions.
        tall = x.shape[2] / x.shape[3]
        matrix[:, 0, 0] = matrix[:, 1, 1] = scale * angle.cos()
        matrix[:, 0, 1], matrix[:, 1, 0] = -scale * angle.sin() * tall, scale * angle.sin() / tall
    matrix[:, :, dims] = 2 * jitter * u[:, 2:]
    grid = F.affine_grid(matrix.to(x), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)
