"""From signals, images and volumes to tokens: patches, their projection, and position embeddings."""

import itertools
import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import ConfigError
from regard.geometry import grid_of

Positions = Literal["learned", "axial", "sinusoidal", "conditional", "none"]
CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def pad_to(x: Tensor, patch: tuple[int, ...]) -> Tensor:
    """Zeros after the end of each axis of (B, C, *size), so that whole patches cover it."""
    short = [-size % side for size, side in zip(x.shape[2:], patch, strict=True)]
    return F.pad(x, [n for after in reversed(short) for n in (0, after)]) if any(short) else x


def patchify(x: Tensor, patch: tuple[int, ...]) -> Tensor:
    """Cut (B, C, *size) into flat patches (B, N, C · Πpatch) in raster order, padding the last with zeros.

    >>> patchify(torch.zeros(1, 3, 224, 224), (16, 16)).shape
    torch.Size([1, 196, 768])
    """
    dims = len(patch)
    grid = grid_of(tuple(x.shape[2:]), patch)
    x = pad_to(x, patch)
    split = [n for pair in zip(grid, patch, strict=True) for n in pair]
    x = x.reshape(*x.shape[:2], *split)  # (B, C, g₁, p₁, g₂, p₂, …)
    order = [0, *range(2, 2 + 2 * dims, 2), 1, *range(3, 3 + 2 * dims, 2)]
    return x.permute(order).reshape(x.shape[0], math.prod(grid), -1)


def unpatchify(patches: Tensor, patch: tuple[int, ...], size: tuple[int, ...]) -> Tensor:
    """The inverse of `patchify`: (B, C, *size) from (B, N, C · Πpatch), without the padding.

    >>> x = torch.rand(2, 3, 30, 17)
    >>> torch.equal(unpatchify(patchify(x, (16, 8)), (16, 8), (30, 17)), x)
    True
    """
    dims, grid = len(patch), grid_of(size, patch)
    x = patches.reshape(len(patches), *grid, -1, *patch)  # (B, g₁, g₂, …, C, p₁, p₂, …)
    order = [0, 1 + dims, *(n for axis in range(dims) for n in (1 + axis, 2 + dims + axis))]
    x = x.permute(order).reshape(len(patches), x.shape[1 + dims], *(g * p for g, p in zip(grid, patch, strict=True)))
    return x[(..., *(slice(side) for side in size))]


class PatchEmbed(nn.Module):
    """The linear projection E of flattened patches (Dosovitskiy et al., equation 1), in 1, 2 or 3 dimensions.

    A convolution whose stride is its kernel computes the same; as a plain matrix it needs no case per
    dimension.
    """

    def __init__(self, patch: tuple[int, ...], channels: int, width: int):
        super().__init__()
        self.patch = patch
        self.project = nn.Linear(channels * math.prod(patch), width)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(patchify(x, self.patch))


class ConvStem(nn.Module):
    """Tokens by a few 3 × 3 convolutions of stride 2 and one of 1 × 1 (Xiao et al., "Early convolutions", 2021).

    As many tokens as with patches of the same size, each having seen a little around its patch. Patches of 2
    get a first convolution of stride 1: one alone sees too little. The paper's last 3 × 3 is left out.
    """

    def __init__(self, patch: tuple[int, ...], channels: int, width: int):
        super().__init__()
        side, halvings = patch[0], patch[0].bit_length() - 1
        if len(set(patch)) > 1 or len(patch) != 2 or side != 2**halvings or side < 2:
            raise ConfigError(
                f"stem='conv' cannot make patches of {patch}", do="use a square patch of 2, 4, 8, 16 or 32"
            )
        self.patch = patch
        strides = [1] * (halvings == 1) + [2] * halvings
        widths = [channels, *(width // 2**n for n in reversed(range(halvings)))]
        if halvings == 1:
            widths.insert(1, width // 4)
        layers: list[nn.Module] = []
        for stride, (before, after) in zip(strides, itertools.pairwise(widths), strict=True):
            layers += [nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.convolutions = nn.Sequential(*layers)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        # Channels side by side, as tokens have them: convolutions and norms are faster so, and nothing is moved after.
        x = pad_to(x, self.patch).contiguous(memory_format=torch.channels_last)
        return self.project(self.convolutions(x).flatten(2).transpose(1, 2))


def sinusoid(positions: Tensor, width: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/width)), PE(pos, 2i+1) = cos of the same: (N, width), width even.

    >>> sinusoid(torch.tensor([0.0, 1.0]), 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    steps = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    rates = torch.exp(steps * (-math.log(10000.0) / width))
    angles = positions.double()[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


def sinusoid_grid(grid: tuple[int, ...], width: int, device: torch.device | None = None) -> Tensor:
    """Sinusoids of each axis side by side (Π grid, width); channels that do not divide evenly stay zero."""
    share = width // (2 * len(grid)) * 2
    table = torch.cat([sinusoid(axis, share) for axis in _places(grid, device)], dim=1)
    return F.pad(table, (0, width - table.shape[1])).to(device)


def _places(grid: tuple[int, ...], device: torch.device | None) -> list[Tensor]:
    """Index of each token along each axis: (Π grid,) each. On a GPU they are made there, for nothing can be sent to
    one while its step is recorded; for other devices, which may have no fp64, on the CPU."""
    there = device if device is not None and device.type == "cuda" else None
    axes = torch.meshgrid(*(torch.arange(n, device=there) for n in grid), indexing="ij")
    return [axis.flatten() for axis in axes]


def resample_grid(table: Tensor, old: tuple[int, ...], new: tuple[int, ...]) -> Tensor:
    """A table (Π old, width) of values on one grid, interpolated to another: (Π new, width).

    Bicubic with antialiasing in two dimensions, as ViT's fine-tuning at higher resolution needs;
    (tri)linear in one and three, for which no bicubic exists.
    """
    if old == new:
        return table
    mode = {1: "linear", 2: "bicubic", 3: "trilinear"}[len(old)]
    field = table.float().T.reshape(1, -1, *old)
    field = F.interpolate(field, size=new, mode=mode, align_corners=False, antialias=mode == "bicubic")
    return field.flatten(2)[0].T.to(table.dtype)


class GridPositions(nn.Module):
    """Adds a position embedding to each token.

    "learned" is ViT's table with one row per token (prefix tokens too); "axial" is the two-dimensional
    variant of its appendix D.4, one learned table per axis, side by side; "sinusoidal" is fixed; "conditional"
    leaves it to the blocks, "none" leaves a bag of patches. For a grid other than its own the table is resampled.
    """

    fixed: Tensor

    def __init__(self, kind: Positions, grid: tuple[int, ...], width: int, prefix: int):
        super().__init__()
        if kind not in get_args(Positions):
            raise ConfigError(f"positions={kind!r} is not one of {', '.join(get_args(Positions))}")
        if kind == "axial" and width % len(grid):
            raise ConfigError(f"axial positions need a width ({width}) that divides by {len(grid)} axes")
        self.kind, self.grid, self.width, self.prefix = kind, grid, width, prefix
        if kind == "learned":
            self.table = nn.Parameter(torch.empty(prefix + math.prod(grid), width))
        elif kind == "axial":
            self.axes = nn.ParameterList(torch.empty(n, width // len(grid)) for n in grid)
        elif kind == "sinusoidal":
            self.register_buffer("fixed", sinusoid_grid(grid, width), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # The usual 0.02 drowns beside tokens of unit size: on 1,300 digits it costs ten points of accuracy
        # in sixty epochs (docs/LOG.md).
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.5)

    def forward(self, tokens: Tensor, grid: tuple[int, ...]) -> Tensor:
        """tokens (B, prefix + Π grid, width), with positions added."""
        if self.kind in ("conditional", "none"):
            return tokens
        if self.kind == "learned":
            table = self.table
            if grid != self.grid:
                table = torch.cat([table[: self.prefix], resample_grid(table[self.prefix :], self.grid, grid)])
            return tokens + table
        if self.kind == "axial":
            axes = [resample_grid(a, (n,), (m,)) for a, n, m in zip(self.axes, self.grid, grid, strict=True)]
            table = torch.cat(
                [
                    a.reshape(*[n if i == j else 1 for j in range(len(grid))], -1).expand(*grid, -1)
                    for i, (a, n) in enumerate(zip(axes, grid, strict=True))
                ],
                dim=-1,
            ).flatten(0, -2)
        else:
            table = self.fixed if grid == self.grid else sinusoid_grid(grid, self.width, tokens.device)
        return tokens + F.pad(table.to(tokens.dtype), (0, 0, self.prefix, 0))


def rope_table(grid: tuple[int, ...], width: int, prefix: int = 0, device: torch.device | None = None) -> Tensor:
    """Cosines and sines of the angles by which `apply_rope` rotates a head's channels: (2, prefix + Π grid, width).

    Rotary position embedding (Su et al., "RoFormer", 2021) on a grid, axis by axis (Heo et al., "Rotary position
    embedding for vision transformers", 2024). Channel i of the first half and channel i of the second are a pair. Pair
    i of the n pairs of an axis is rotated by the position times 100^(-i/n). Pairs left over when the axes do not divide
    the width evenly are not rotated, nor are prefix tokens.

    >>> rope_table((2,), 4)[0]
    tensor([[1.0000, 1.0000, 1.0000, 1.0000],
            [0.5403, 0.9950, 0.5403, 0.9950]])
    """
    share, places = width // (2 * len(grid)), _places(grid, device)
    rates = 100.0 ** (-torch.arange(share, dtype=torch.float64, device=places[0].device) / share)
    angles = torch.cat([place[:, None] * rates for place in places], dim=1)
    angles = F.pad(angles, (0, width // 2 - angles.shape[1], prefix, 0))
    rope = torch.stack([angles.cos().repeat(1, 2), torch.cat([-angles.sin(), angles.sin()], dim=1)])
    return rope.float().to(device)


def apply_rope(x: Tensor, rope: Tensor) -> Tensor:
    """Queries or keys (B, H, N, D), each rotated by its position; `rope` may have rows for more tokens.

    The product of a rotated query and key depends on their relative position alone.
    """
    cosine, sine = rope[:, : x.shape[2]]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * cosine + wide.roll(x.shape[3] // 2, dims=-1) * sine).to(x.dtype)


class ConditionalPositions(nn.Module):
    """Adds to each token a convolution of its neighbours, channel by channel, on a grid with zeros around it.

    Chu et al., "Conditional positional encodings" (2021); at the head of every block as in UniFormer (Li et al.,
    2022). The zero padding reveals the position; any grid will do. Prefix tokens are left alone.
    """

    def __init__(self, axes: int, width: int):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(width, 1, *(3,) * axes))
        self.bias = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.kernel, std=self.kernel[0].numel() ** -0.5)
        nn.init.zeros_(self.bias)

    def forward(self, tokens: Tensor, grid: tuple[int, ...]) -> Tensor:
        """tokens (B, prefix + Π grid, width), of any prefix."""
        prefix = tokens.shape[1] - math.prod(grid)
        placed = tokens[:, prefix:].unflatten(1, grid)  # (B, *grid, width)
        near = self._in_planes(placed) if len(grid) == 3 else self._convolved(placed)
        near = near.flatten(1, -2)
        return tokens + (F.pad(near, (0, 0, prefix, 0)) if prefix else near)

    def _convolved(self, placed: Tensor) -> Tensor:
        convolve = CONVOLUTIONS[placed.ndim - 2]
        near = convolve(placed.movedim(-1, 1), self.kernel, self.bias, padding=1, groups=placed.shape[-1])
        return near.movedim(1, -1)

    def _in_planes(self, placed: Tensor) -> Tensor:
        """The same of volumes, as convolutions of planes: torch's own of volumes, channel by channel, are slow."""
        width, depth = placed.shape[-1], placed.shape[1]
        planes = F.pad(placed, (0, 0, 0, 0, 0, 0, 1, 1)).flatten(0, 1).movedim(-1, 1)  # (B · (depth + 2), width, ...)
        parts = []
        for n in range(3):
            bias = self.bias if n == 1 else None
            near = F.conv2d(planes, self.kernel[:, :, n], bias, padding=1, groups=width)
            parts.append(near.movedim(1, -1).unflatten(0, (-1, depth + 2))[:, n : n + depth])
        return sum(parts[1:], parts[0])
