"""AdamW, Muon or SGD for the weights, a warmed-up cosine for their rate, and a moving average of where they went."""
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from regard.networks.base import Network
from regard.nn import MultiHeadAttention
from regard.training.adapt import layer_numbers
from regard.training.distributed import gather_like, local_shard, shard_like

# Single vectors and tokens are not weight matrices: decaying them only moves the origin.
_UNDECAYED = ("class_token", "distillation_token", "registers", "positions")


def make_optimizers(
    model: Network, kind: str, lr: float, weight_decay: float, layer_decay: float = 1.0, backbone_rate: float = 1.0
) -> list[torch.optim.Optimizer]:
    """AdamW or SGD for everything; or Muon for the blocks' matrices and AdamW for the rest. One rate serves all.

    Every parameter that trains is in one group, and every group says by which `factor` its rate differs:
    `layer_decay` from block to block, `backbone_rate` in the network that makes a detector's feature maps.
    """
    blocks = model.hidden_layers() if kind == "muon" else []
    hidden = {p for block in blocks for p in block.parameters() if p.ndim > 1}
    depths = layer_numbers(model) if layer_decay != 1 else {}
    last = max(depths.values(), default=0)
    groups: dict[tuple[int, bool, str], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            matrix = parameter.ndim > 1 and not any(part in _UNDECAYED for part in name.split("."))
            use = "plain" if not matrix else "muon" if parameter in hidden else "decayed"
            inside = backbone_rate != 1 and name.startswith("backbone.")
            groups.setdefault((depths.get(name, 0), inside, use), []).append(parameter)

    def chosen(*uses: str) -> list[dict[str, Any]]:
        return [
            {
                "params": groups[depth, inside, use],
                "weight_decay": 0.0 if use == "plain" else weight_decay,
                "factor": layer_decay ** (last - depth) * (backbone_rate if inside else 1.0),
            }
            for depth, inside, use in sorted(groups)
            if use in uses
        ]

    rest, matrices = chosen("decayed", "plain"), chosen("muon")
    if kind == "sgd":
        return [torch.optim.SGD(rest, lr=lr, momentum=0.9, fused=True)]
    # A second moment over 100 steps, not 1,000: many runs here are only a few thousand steps long.
    adamw = torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.99), fused=True)
    attentions = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]
    parts = {m.qkv.weight: m.parts for m in attentions if isinstance(m.qkv, nn.Linear)}
    return [adamw, Muon(matrices, lr, weight_decay, parts=parts)] if matrices else [adamw]


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised (Jordan et al., 2024), for matrices; scaled to AdamW's size of step
    (Liu et al., "Muon is scalable", 2025), so that AdamW's rate and decay serve.

    Matrices of one shape, lying or standing, are orthogonalised as one batch: one by one, they would leave a GPU
    waiting. The kernels of a convolution are the rows of one matrix. `parts` says of a parameter that it is several
    matrices, of so many rows each, as that which makes queries, keys and values is. Of sharded weights every process
    gathers the moves, for a part of a matrix cannot be orthogonalised, and keeps its share of them.
    """

    def __init__(
        self,
        params: list[nn.Parameter] | list[dict[str, Any]],
        lr: float,
        weight_decay: float,
        momentum: float = 0.95,
        parts: Mapping[Tensor, tuple[int, ...]] = MappingProxyType({}),
    ):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self.parts = parts

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One move; none at all where `found_inf`, the flag that torch's own optimizers know too, is 1."""
        bad = getattr(self, "found_inf", None)
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                if not self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            weights, means = [local_shard(p) for p in params], [local_shard(self.state[p]["momentum"]) for p in params]
            grads = [local_shard(p.grad) for p in params if p.grad is not None]
            keep = 1.0 if bad is None else 1 - bad
            if bad is not None:  # what is not finite must not even be multiplied by zero
                grads = [torch.where(bad > 0, torch.zeros_like(g), g) for g in grads]
            # torch has no public form of these: one kernel for all matrices, where a loop would launch one for each.
            ahead = torch._foreach_sub(grads, means)
            torch._foreach_mul_(ahead, (1 - group["momentum"]) * keep)
            torch._foreach_add_(means, ahead)
            ahead = torch._foreach_lerp(grads, means, group["momentum"])
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"] * keep)
            moves = [gather_like(a, like=p).flatten(1) for p, a in zip(params, ahead, strict=True)]
            pieces = [piece for p, m in zip(params, moves, strict=True) for piece in m.split(self.parts.get(p, len(m)))]
            for shape in {_lying(piece).shape for piece in pieces}:
                same = [_lying(piece) for piece in pieces if _lying(piece).shape == shape]
                straight = orthogonalised(torch.stack(same)).to(params[0].dtype) * (0.2 * max(shape) ** 0.5)
                torch._foreach_copy_(same, list(straight))  # the pieces are views of what is then added
            torch._foreach_mul_(moves, -group["lr"] * keep)
            shares = [local_shard(shard_like(m.view(p.shape), like=p)) for p, m in zip(params, moves, strict=True)]
            torch._foreach_add_(weights, shares)


def _lying(matrix: Tensor) -> Tensor:
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix


def orthogonalised(matrices: Tensor) -> Tensor:
    """Matrices (N, rows, columns) with their singular values brought near one, by five Newton–Schulz steps."""
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    if tall := x.shape[1] > x.shape[2]:
        x = x.mT
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp_min(1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.mT if tall else x


def learning_rate(step: int, steps: int, peak: float, warmup: float, kind: str = "cosine") -> float:
    """Linear from 0 over the first `warmup` share of steps, then half a cosine down to 0.

    "inverse_sqrt" then falls with one over the root of the step (Vaswani et al., 2017, equation 3); "drop" stays the
    same, and is a tenth of it in the last third (Carion et al., 2020).

    >>> [round(learning_rate(s, 100, 1.0, 0.1), 3) for s in (0, 9, 10, 55, 99)]
    [0.1, 1.0, 1.0, 0.5, 0.0]
    """
    rise = round(warmup * steps)
    if step < rise:
        return peak * (step + 1) / rise
    if kind == "inverse_sqrt":
        return peak * (max(rise, 1) / (step + 1)) ** 0.5
    if kind == "drop":
        return peak * (1.0 if step < steps * 2 / 3 else 0.1)
    return peak * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1)))


class Average:
    """An exponential moving average of a model's weights; young averages forget faster."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        floating = {name: t for name, t in model.state_dict().items() if t.is_floating_point()}
        self.averages = {name: t.detach().clone() for name, t in floating.items()}
        self.source = [local_shard(t) for t in floating.values()]
        self.shadow = [local_shard(t) for t in self.averages.values()]
        self.updates = torch.zeros((), device=self.shadow[0].device)

    @torch.no_grad()
    def update(self, skipped: Tensor | float = 0.0) -> None:
        """Take in the weights after a step; nothing at all where `skipped`, the flag of a step not made, is 1.

        The flag stays on the device, so that a GPU need not wait for Python.
        """
        made = 1 - skipped
        self.updates += made
        share = (1 - (self.updates / (self.updates + 10)).clamp(max=self.decay)) * made
        # torch has no public form of these; some at once: few launches, and little memory.
        for n in range(0, len(self.source), 32):
            mean = self.shadow[n : n + 32]
            ahead = torch._foreach_sub(self.source[n : n + 32], mean)
            torch._foreach_mul_(ahead, share)
            torch._foreach_add_(mean, ahead)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's weights with the average; a second call undoes it."""
        for n in range(0, len(self.source), 32):
            live, mean = self.source[n : n + 32], self.shadow[n : n + 32]
            held = [tensor.clone() for tensor in live]
            torch._foreach_copy_(live, mean)
            torch._foreach_copy_(mean, held)
