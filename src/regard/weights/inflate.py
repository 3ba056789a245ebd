"""Weights trained on pictures, made ready for volumes: what has two axes is repeated along a third, the last.

Carreira and Zisserman, "Quo Vadis, Action Recognition?" (2017), section 2.1; bias tables as in Liu et al., "Video Swin
Transformer" (2022), section 3.4. Of scans the last axis leads upward (superior): the kernels see axial slices, as
they saw pictures.

A volume that is the same in every slice then gives the tokens of the picture, in every slice:

- of a Swin, where depth and windows need no padding: a key that is there n times in a window weighs as much as once;
- of a ViT without class token and registers, or on a volume as deep as one patch;
- of a ViT with them as far as the first attention, where each patch is a key once per slice, and the class token is
  one key: patches weigh more, as if log(slices) were added to their scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from regard.geometry import grid_of
from regard.networks.swin.config import SwinConfig
from regard.networks.vit.config import ViTConfig
from regard.nn.patches import GridPositions
from regard.weights.notes import Notes

Inflation = Literal["mean", "centre"]
PATCHES = "patches.project.weight"


def inflate_kernel(kernel: Tensor, depth: int, how: Inflation) -> Tensor:
    """A kernel (…, rows, columns) with a third axis of `depth`: the mean over slices, or the middle one alone.

    >>> kernel = torch.tensor([[4.0]])
    >>> inflate_kernel(kernel, 4, "mean").flatten().tolist(), inflate_kernel(kernel, 4, "centre").flatten().tolist()
    ([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 4.0, 0.0])
    """
    if how == "mean":
        return (kernel / depth)[..., None].repeat_interleave(depth, dim=-1)
    deep = kernel.new_zeros(*kernel.shape, depth)
    deep[..., depth // 2] = kernel
    return deep


def change_channels(state: dict[str, Tensor], before: int, after: int, notes: Notes) -> None:
    """The patch projection for another number of channels: its sum over the old ones, shared by the new ones.

    An input whose channels are all alike answers as one did before.
    """
    total = state[PATCHES].unflatten(1, (before, -1)).sum(dim=1)
    state[PATCHES] = (total / after).repeat(1, after)
    if (before, after) == (3, 1):
        notes.changed.append("the patch projection is summed over colours: grey input answers as grey in colour did")
    else:
        notes.changed.append(
            f"the patch projection is summed over {before} channels, and each of {after} has an equal share of it: "
            "equal channels answer as before"
        )


def as_table(state: Mapping[str, Tensor], config: ViTConfig, notes: list[str]) -> Tensor:
    """Positions of any kind as the learned table that others have."""
    if config.positions == "learned":
        return state["positions.table"]
    grid, prefix = grid_of(config.size, config.patch), config.prefix
    positions = GridPositions(config.positions, grid, config.width, prefix)
    positions.load_state_dict({k.removeprefix("positions."): v for k, v in state.items() if k.startswith("positions.")})
    notes.append(f"{config.positions} positions are written as a table")
    with torch.no_grad():
        return positions(torch.zeros(1, prefix + grid[0] * grid[1], config.width), grid)[0]


def inflate_vit(
    state: dict[str, Tensor], config: ViTConfig, like: ViTConfig, how: Inflation, notes: Notes
) -> ViTConfig:
    """Change a ViT's state in place, at its own rows and columns, to the depth and patch of `like`; its config."""
    _inflate_patches(state, config, like, how, notes)
    slices = grid_of(like.size, like.patch)[-1]
    positions = config.positions
    if positions == "conditional":
        for key in [key for key in state if key.endswith("positions.kernel")]:
            state[key] = inflate_kernel(state[key], 3, "centre")  # the mean would read the padding above and below
        notes.changed.append("convolutions of positions read the slice they are on")
    elif positions != "none":
        table, first = as_table(state, config, notes.changed), config.prefix
        for key in [key for key in state if key.startswith("positions.axes")]:
            del state[key]
        state["positions.table"] = torch.cat([table[:first], table[first:].repeat_interleave(slices, dim=0)])
        positions = "learned"
        notes.changed.append(f"positions are repeated along {slices} patches of depth")
    return replace(config, size=(*config.size, like.size[-1]), patch=like.patch, positions=positions)


def inflate_swin(
    state: dict[str, Tensor], config: SwinConfig, like: SwinConfig, how: Inflation, notes: Notes
) -> SwinConfig:
    """Change a Swin's state in place, at its own rows and columns, to the depth, patch and window of `like`."""
    _inflate_patches(state, config, like, how, notes)
    offsets = 2 * like.window[-1] - 1
    for key, tensor in state.items():
        if key.endswith("positions.table"):
            state[key] = tensor.repeat_interleave(offsets, dim=0)
        elif ".merge." in key:  # the neighbours below follow those above, and are as many
            state[key] = tensor.repeat(2) if tensor.ndim == 1 else tensor.repeat(1, 2) / 2
    notes.changed.append(f"relative position biases are repeated along {offsets} offsets of depth")
    notes.changed.append("merges read the mean of two slices")
    if config.small_grid != "axis":
        notes.changed.append("windows shrink along short axes only (small_grid='axis'): volumes are often flat")
    return replace(
        config,
        size=(*config.size, like.size[-1]),
        patch=like.patch,
        window=(*config.window, like.window[-1]),
        small_grid="axis",
    )


def _inflate_patches(
    state: dict[str, Tensor], config: ViTConfig | SwinConfig, like: ViTConfig | SwinConfig, how: Inflation, notes: Notes
) -> None:
    depth = like.patch[-1]
    kernel = state[PATCHES].unflatten(1, (config.channels, *config.patch))
    state[PATCHES] = inflate_kernel(kernel, depth, how).flatten(1)
    words = {"mean": f"each of {depth} slices has 1/{depth} of them", "centre": f"the middle one of {depth} slices"}
    notes.changed.append(f"inflated from pictures to volumes: kernels of patches along the last axis, {words[how]}")
