"""The assignment problem on a GPU: shortest augmenting paths with potentials, one problem per program.

Jonker & Volgenant (1987); the Hungarian method of Kuhn (1955) in its O(T² Q) form. Targets are inserted one after the
other; the queries are the lanes. Arithmetic is in double precision, as SciPy's.
"""
# pyright: reportMissingImports=false

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _shortest_paths(costs, valids, chosen, queries, targets, lanes: tl.constexpr):
    """Letters as in SciPy's sources: u, v are the potentials of targets and queries.

    `owner` is each query's target, -1 for none; `u` is kept beside it, by query. `reached` are the queries of the
    tree of alternating paths, `distance` is how far each other one is from it, `before` the query that it comes after
    on its path (-1: the new target itself).
    """
    problem = tl.program_id(0).to(tl.int64)
    costs += problem * queries * targets
    valids += problem * targets
    chosen += problem * targets
    lane = tl.arange(0, lanes)
    inside = lane < queries
    owner = tl.full((lanes,), -1, tl.int32)
    u = tl.zeros((lanes,), tl.float64)
    v = tl.zeros((lanes,), tl.float64)
    for target in range(targets):
        if tl.load(valids + target) != 0:
            distance = tl.full((lanes,), float("inf"), tl.float64)
            before = tl.full((lanes,), -1, tl.int32)
            reached = lane < 0
            own = 0.0 * tl.sum(v)  # the new target's potential, a double
            row = target
            row_u = own
            last = -1
            steps = 0
            searching = True
            while searching:
                step = tl.load(costs + row * queries + lane, mask=inside, other=0.0).to(tl.float64) - row_u - v
                nearer = (step < distance) & inside & (~reached)
                distance = tl.where(nearer, step, distance)
                before = tl.where(nearer, last, before)
                open_ = tl.where(reached | (~inside), float("inf"), distance)
                delta = tl.min(open_, axis=0)
                last = tl.argmin(open_, axis=0).to(tl.int32)
                u = tl.where(reached, u + delta, u)
                v = tl.where(reached, v - delta, v)
                own += delta
                distance = tl.where(reached, distance, distance - delta)
                here = lane == last
                reached = reached | here
                row = tl.sum(tl.where(here, owner, 0), axis=0)
                row_u = tl.sum(tl.where(here, u, 0.0), axis=0)
                steps += 1
                searching = (row >= 0) & (steps < queries)
            # Along the path back to the new target, every query takes over the target of the one before.
            steps = 0
            while (last >= 0) & (steps <= queries):
                here = lane == last
                earlier = tl.sum(tl.where(here, before, 0), axis=0)
                ahead = lane == earlier
                passed = tl.where(earlier < 0, target, tl.sum(tl.where(ahead, owner, 0), axis=0))
                passed_u = tl.where(earlier < 0, own, tl.sum(tl.where(ahead, u, 0.0), axis=0))
                owner = tl.where(here, passed, owner)
                u = tl.where(here, passed_u, u)
                last = earlier
                steps += 1
    tl.store(chosen + owner, lane.to(tl.int64), mask=inside & (owner >= 0))


def shortest_paths(cost: Tensor, valid: Tensor) -> Tensor:
    """The query (P, T) of each target from contiguous costs (P, T, Q), T ≤ Q; -1 where `valid` (P, T) is false."""
    problems, targets, queries = cost.shape
    chosen = torch.full((problems, targets), -1, dtype=torch.int64, device=cost.device)
    lanes = triton.next_power_of_2(queries)
    if problems and targets:
        warps = max(1, min(8, lanes // 256))
        _shortest_paths[(problems,)](cost, valid.to(torch.int8), chosen, queries, targets, lanes, num_warps=warps)  # pyright: ignore
    return chosen
