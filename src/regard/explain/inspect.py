"""What a network has learnt, as arrays; `inspect_draw.py` draws them.

- Filters, position similarity and attention distance: the ViT paper's Figure 7 (Dosovitskiy et al., 2021).
- Token norms: Darcet et al., "Vision Transformers Need Registers" (2024).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.explain.flow import stage_maps
from regard.geometry import AttentionStep, MergeStep, TokenMap
from regard.networks.base import Network
from regard.networks.mlp.network import FullyConnected
from regard.nn import EncoderBlock, GridPositions, PatchEmbed, Tape
from regard.nn.windows import RelativePositions


class Filters(NamedTuple):
    """pictures (count, channels, *patch), each in 0..1; shares (count,) of the variance; where they are from."""

    pictures: Tensor
    shares: Tensor
    source: str


def filters(model: nn.Module, count: int = 28) -> Filters:
    """Principal components of what turns pixels into tokens: the left of Figure 7.

    The filters are centred, not whitened, and each component is stretched to 0..1 for the eye, its largest
    number made positive (a component has no sign of its own). Where no linear projection stands first, the
    kernels of the first convolution are taken.

    >>> import regard
    >>> result = filters(regard.create("vit_nano", classes=3, size=16), count=5)
    >>> result.pictures.shape, result.source
    (torch.Size([5, 3, 4, 4]), 'patch embedding')
    """
    weights, source = _first_weights(model)
    flat = weights.detach().cpu().double().flatten(1)
    _, scale, axes = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    count = min(count, len(scale))
    peaks = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    axes = (axes * peaks.sign())[:count]
    low, high = axes.amin(1, keepdim=True), axes.amax(1, keepdim=True)
    pictures = (axes - low) / (high - low).clamp_min(1e-12)
    shares = scale.square() / scale.square().sum().clamp_min(1e-12)
    return Filters(pictures.reshape(count, *weights.shape[1:]).float(), shares[:count].float(), source)


def _first_weights(model: nn.Module) -> tuple[Tensor, str]:
    """(filters, channels, *patch) of the first layer that sees pixels, and its name."""
    if isinstance(model, FullyConnected):
        first = next(module for module in model.modules() if isinstance(module, nn.Linear))
        return first.weight.unflatten(1, (-1, *model.config.size)), "first layer"
    for module in model.modules():
        if isinstance(module, PatchEmbed):
            return module.project.weight.unflatten(1, (-1, *module.patch)), "patch embedding"
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            return module.weight, "first convolution"
    raise ConfigError(f"{type(model).__name__} has neither a patch embedding nor a convolution")


def position_similarity(model: Network) -> Tensor | None:
    """Cosine similarity of each place's position embedding to every other's, (*grid, *grid): Figure 7, centre.

    None where the network adds no positions.

    >>> import regard
    >>> position_similarity(regard.create("vit_nano", classes=3, size=(16, 24))).shape
    torch.Size([4, 6, 4, 6])
    """
    where = model.token_map()
    for positions in (m for m in model.modules() if isinstance(m, GridPositions)):
        if positions.kind in ("conditional", "none"):
            return None
        # Added to zeros, every kind of position shows itself.
        device = next(model.parameters()).device
        zeros = torch.zeros(1, positions.prefix + where.places, positions.width, device=device)
        with torch.inference_mode():
            rows = positions(zeros, where.grid)[0, positions.prefix :].cpu().double()
        rows = nn.functional.normalize(rows, dim=1)
        return (rows @ rows.T).reshape(*where.grid, *where.grid).float()
    return None


def bias_tables(model: nn.Module) -> tuple[Tensor, ...]:
    """The relative position bias of each layer, by the offset of query to key: (heads, *offsets). Empty without any.

    >>> import regard
    >>> [tuple(table.shape) for table in bias_tables(regard.create("swin_nano", classes=3))][1:3]
    [(2, 7, 7), (4, 7, 7)]
    """
    biases = [module for module in model.modules() if isinstance(module, RelativePositions)]
    return tuple(
        module.table.detach().float().cpu().T.unflatten(1, tuple(2 * side - 1 for side in module.window))
        for module in biases
    )


def layer_maps(where: TokenMap, flow: Sequence[AttentionStep | MergeStep]) -> list[tuple[TokenMap, Tensor | None]]:
    """The token map and the windows of each layer of attention; `where` is the map of the first stage's tokens."""
    maps = stage_maps(flow, where)
    return [(maps[step.layer], step.windows) for step in flow if isinstance(step, AttentionStep)]


def distances(where: TokenMap, windows: Tensor | None = None) -> Tensor:
    """Distance in input pixels between the centres of every two places of a window: (windows, places, places).

    Without `windows`, which are those of an attention step, all places are in one. NaN for padding.
    """
    axes = [torch.arange(n, dtype=torch.float64) * cell for n, cell in zip(where.grid, where.cell, strict=True)]
    centres = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)
    slots = torch.arange(len(centres))[None] if windows is None else windows
    placed = centres[slots.clamp_min(0)]
    real = slots >= 0
    return torch.cdist(placed, placed).masked_fill(~(real[:, :, None] & real[:, None, :]), torch.nan)


def uniform_distance(where: TokenMap, flow: Sequence[AttentionStep | MergeStep]) -> tuple[float, ...]:
    """The attention distance of each layer if it attended to all of a window alike.

    The windows are those of the first layer with the same tokens, which are not shifted: a shifted window reaches to
    both ends of the grid, and its tokens attend to their own end only.
    """
    layers, uniform = layer_maps(where, flow), dict[TokenMap, float]()
    for at, windows in layers:
        if at not in uniform:
            uniform[at] = float(distances(at, windows).nanmean())
    return tuple(uniform[at] for at, _ in layers)


def attention_distance(
    tape: Tape, where: TokenMap, flow: Sequence[AttentionStep | MergeStep] = ()
) -> tuple[Tensor, ...]:
    """How far each head looks, in input pixels: (heads,) of each layer. Figure 7, right; appendix D.7.

    As in the paper, the distance between query and key, weighted by attention, averaged over queries and
    images. Distances are between patch centres. The paper does not say what it does with the class token;
    here tokens without a place, and padding, are left out as queries and as keys, and what remains of each row is
    scaled to sum to one (a row that looks at no place at all counts as looking at itself).

    `flow` is the network's `token_flow` and `where` the map of its first tokens; without a flow, every layer reads all
    tokens.

    >>> import regard
    >>> model = regard.create("vit_nano", classes=3, size=16)
    >>> with regard.capture(model) as tape:
    ...     _ = model(torch.rand(2, 3, 16, 16))
    >>> len(attention_distance(tape, model.token_map())), attention_distance(tape, model.token_map())[0].shape
    (4, torch.Size([4]))
    """
    layers = layer_maps(where, flow) or [(where, None)] * len(tape)
    return tuple(_layer_distance(tape, layer, *at) for layer, at in enumerate(layers))


def _layer_distance(tape: Tape, layer: int, where: TokenMap, windows: Tensor | None) -> Tensor:
    apart, first = distances(where, windows), len(where.prefix)
    tokens = where.tokens if windows is None else windows.shape[1]
    heads = []
    for head in range(tape.heads(layer)):
        weights = tape.attention(layer, head)
        if weights.shape[-2:] != (tokens, tokens):
            raise ConfigError(f"layer {layer} looks from {weights.shape[-2]} tokens at {weights.shape[-1]}, "
                              f"the map has {tokens}")  # fmt: skip
        weights = weights[:, first:, first:].cpu().double().unflatten(0, (-1, len(apart)))
        weights = weights.masked_fill(apart.isnan(), 0)
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-12)
        reach = (weights * apart.nan_to_num()).sum(-1)
        heads.append(reach[:, ~apart.isnan().all(-1)].mean())
    return torch.stack(heads).float()


@dataclass(frozen=True)
class TokenNorms:
    """How long each token is after every block, and which stand out after the last."""

    norms: tuple[Tensor, ...]
    """(batch, tokens) after each layer, prefix tokens included."""
    threshold: float
    """Above it, a placed token of the last block is an outlier."""
    where: TokenMap
    """Of the last layer's tokens."""

    @property
    def placed(self) -> tuple[Tensor, ...]:
        """(batch, places) after each layer: the tokens that stand on the input."""
        return tuple(norms[:, len(self.where.prefix) :] for norms in self.norms)

    @property
    def outliers(self) -> Tensor:
        """(batch, places), true where a token is an outlier."""
        return self.placed[-1] > self.threshold


@torch.inference_mode()
def token_norms(model: Network, x: Tensor) -> TokenNorms:
    """L2 norm of every token of x (B, C, *size) after every block, and the outliers (see `outlier_threshold`).

    >>> import regard
    >>> result = token_norms(regard.create("vit_nano", classes=3, size=16), torch.rand(2, 3, 16, 16))
    >>> len(result.norms), result.norms[0].shape, result.outliers.shape, int(result.outliers.sum())
    (4, torch.Size([2, 17]), torch.Size([2, 16]), 0)
    """
    norms: list[Tensor] = []

    def keep(_module: nn.Module, _args: object, tokens: Tensor) -> None:
        norms.append(tokens.float().norm(dim=-1).flatten(1).cpu())

    with hooked([(block, keep) for block in blocks(model)]):
        model.eval()(x)
    where = model.token_map(tuple(x.shape[2:]))
    return TokenNorms(tuple(norms), outlier_threshold(norms[-1][:, len(where.prefix) :]), where)


def outlier_threshold(norms: Tensor) -> float:
    """From which norm on a token is an outlier: median + 6 deviations, and at least twice the median.

    Darcet et al. cut DINOv2 at 150, a number that fits no other network. Median and median absolute
    deviation (times 1.4826, that of a Gaussian) describe the ordinary tokens however large a few others
    are, as long as these are fewer than half; six deviations leave out one ordinary Gaussian token in a
    billion. Twice the median keeps networks whose norms hardly differ from having outliers.

    >>> ordinary = torch.tensor([9.0, 10.0, 11.0, 10.0, 10.5])
    >>> outlier_threshold(ordinary), outlier_threshold(torch.cat([ordinary, torch.tensor([400.0])]))
    (20.0, 20.5)
    """
    median = norms.double().quantile(0.5)
    deviation = 1.4826 * (norms.double() - median).abs().quantile(0.5)
    return float(torch.maximum(median + 6 * deviation, 2 * median))


def blocks(model: nn.Module) -> list[EncoderBlock]:
    """The network's encoder blocks, in order; none is an error."""
    stack = [module for module in model.modules() if isinstance(module, EncoderBlock)]
    if not stack:
        raise ConfigError(f"{type(model).__name__} has no encoder blocks")
    return stack


@contextmanager
def hooked(pairs: list[tuple[nn.Module, Callable[..., object]]]) -> Iterator[None]:
    """Forward hooks that are gone afterwards, whatever happens."""
    handles = [module.register_forward_hook(hook) for module, hook in pairs]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
