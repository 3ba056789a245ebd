"""What all parity tests do: random weights everywhere, one comparison, one check that nothing is lost."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from regard.config import to_dict
from regard.data import Preparation
from regard.networks.base import Network
from regard.weights import Checkpoint, save_checkpoint
from regard.weights.load import name_of

TOLERANCE = 1e-5
Model = TypeVar("Model", bound=nn.Module)


def randomise(model: Model, seed: int = 0) -> Model:
    """Every parameter, also those that start at zero or one, so that nothing can be forgotten unseen.

    BatchNorm's statistics and counts too. Where these follow convolutions, which then no longer normalise, the
    kernels keep the size of what passes through.
    """
    draw = torch.Generator().manual_seed(seed)
    fixed = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    with torch.no_grad():
        for p in model.parameters():
            scale = 0.5 if p.ndim == 1 else (2 / p[0].numel()) ** 0.5 if fixed and p.ndim == 4 else 0.3
            p.copy_(torch.randn(p.shape, generator=draw) * scale)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(torch.randn(buffer.shape, generator=draw) * 0.3)
            elif name.endswith("running_var"):
                buffer.copy_(torch.rand(buffer.shape, generator=draw) + 0.5)
            elif name.endswith("num_batches_tracked"):
                buffer.fill_(17)
    return model.eval()


def spread(model: Model) -> Model:
    """Random weights of a detector under which its queries, and the cells of an image, answer differently.

    Also the scale and shift of fixed batch norms, which are buffers; convolutions keep the size of what passes through.
    """
    randomise(model)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 4:  # a residual network grows, and its last map would drown positions
                scale = 0.02 if "project" in name else 1.0
                p.copy_(torch.randn(p.shape, generator=draw) * scale * (2 / p[0].numel()) ** 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith((".weight", ".bias")):
                buffer.copy_(torch.rand(buffer.shape, generator=draw) + (0.5 if name.endswith(".weight") else -0.5))
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.add_(0.3)
            if isinstance(module, (nn.LayerNorm, nn.Linear)) and module.bias is not None:
                module.bias.mul_(0.1)
            if isinstance(module, nn.Embedding):
                module.weight.mul_(5)
    return model


def scene(*size: int) -> Tensor:
    """Two pictures of large patches of strong colours, for detectors."""
    return nn.functional.interpolate(5 * picture(4, 6), size)


def save_own(model: Network, path: Path) -> None:
    config = model.config
    preparation = Preparation(config.size, config.channels, (0.5,) * config.channels, (0.5,) * config.channels)
    names = tuple(f"class {n}" for n in range(config.classes))
    save_checkpoint(path, Checkpoint(name_of(config), to_dict(config), names, preparation, {}, model.state_dict()))


def picture(*size: int, batch: int = 2, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, *size, generator=torch.Generator().manual_seed(7))


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.abs().max() > 0.1, "an answer of nothing proves nothing"
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=TOLERANCE)


def assert_equal(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], but: tuple[str, ...] = ()) -> None:
    """The same names and, to the bit, the same numbers, but for names that end in one of `but`."""
    assert set(ours) == set(theirs)
    for name in theirs:
        if not name.endswith(but or "\0"):
            assert ours[name].shape == theirs[name].shape, name
            assert torch.equal(ours[name], theirs[name]), name


def gradients(model: nn.Module) -> Tensor:
    """All of them in a row; each parameter must have one."""
    found = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    assert len(found) == len(list(model.parameters()))
    return torch.cat(found)
