"""Bipartite matching of object queries to objects: the assignment of least cost (Carion et al., 2020, equation 1).

On a CPU by SciPy. On a GPU by a kernel of our own, if Triton is installed, so that no step waits for the host and a
CUDA graph can record it; else by SciPy on the host.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

LARGEST = 1e9
"""The cost in place of one that is not finite: such a pair is matched last."""


@torch.no_grad()
def match(cost: Tensor, valid: Tensor) -> Tensor:
    """The query (…, T) of each target; -1 for padding, and for targets beyond the number of queries.

    cost (…, Q, T) of every pair; valid (…, T), false where a target is padding. Each leading index is a problem of its
    own. A cost that is not finite counts as a very large one: the loss, not the matching, then says what is wrong.

    >>> match(torch.tensor([[3.0, 1.0], [2.0, 9.0], [9.0, 9.0]]), torch.tensor([True, True]))
    tensor([1, 0])
    """
    queries, targets = cost.shape[-2:]
    cost = cost.float().nan_to_num(LARGEST, LARGEST, LARGEST).clamp(-LARGEST, LARGEST)
    flat = cost.reshape(-1, queries, targets)
    chosen = assign(flat, valid.expand(*cost.shape[:-2], targets).reshape(-1, targets))
    return chosen.reshape(*cost.shape[:-2], targets)


@torch.library.custom_op("regard::assign", mutates_args=())
def assign(cost: Tensor, valid: Tensor) -> Tensor:
    """The query (P, T) of each target of P problems, from finite costs (P, Q, T); one operation for torch."""
    from scipy.optimize import linear_sum_assignment

    costs, wanted = cost.cpu().numpy(), valid.cpu().numpy()
    chosen = torch.full(valid.shape, -1)
    for own, mask, result in zip(costs, wanted, chosen, strict=True):
        queries, targets = linear_sum_assignment(own[:, mask])
        result[torch.from_numpy(mask.nonzero()[0][targets])] = torch.from_numpy(queries)
    return chosen.to(cost.device)


@assign.register_fake
def _(cost: Tensor, valid: Tensor) -> Tensor:
    return valid.new_empty(valid.shape, dtype=torch.int64)


if find_spec("triton"):

    @assign.register_kernel("cuda")
    def _(cost: Tensor, valid: Tensor) -> Tensor:
        return assign_by_kernel(cost, valid)


def assign_by_kernel(cost: Tensor, valid: Tensor) -> Tensor:
    """The same by the Triton kernel."""
    from regard.tasks.objects.matching_kernel import shortest_paths

    queries, targets = cost.shape[1:]
    if targets > queries:  # stand-ins that cost more than any choice of real queries: what gets one stays unmatched
        dear = (2 * targets * cost.abs().amax((1, 2), keepdim=True) + 1).expand(-1, targets - queries, targets)
        cost = torch.cat((cost, dear), dim=1)
    chosen = shortest_paths(cost.transpose(1, 2).contiguous(), valid)
    return torch.where(chosen < queries, chosen, -1)
