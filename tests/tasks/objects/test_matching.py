"""The assignment is SciPy's."""

import os
from importlib.util import find_spec

import pytest
import torch
from scipy.optimize import linear_sum_assignment

from regard.tasks.objects.matching import assign, assign_by_kernel, match

CASES = [(3, 20, 8), (4, 7, 12), (5, 13, 13), (2, 100, 24), (3, 1, 1), (2, 1, 4)]
"""Problems, queries, targets; some with more targets than queries."""


def problems(count: int, queries: int, targets: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(count * queries * targets)
    cost = torch.randn(count, queries, targets, generator=draw)
    return cost, torch.rand(count, targets, generator=draw) < 0.7


def test_every_image_of_every_block_is_matched_by_itself_and_padding_is_not():
    cost, valid = torch.randn(3, 2, 9, 5), torch.tensor([[True, False, True, True, False], [False] * 5])
    chosen = match(cost, valid)
    assert chosen.shape == (3, 2, 5)
    assert (chosen[:, 1] == -1).all()
    for block in range(3):
        queries, targets = linear_sum_assignment(cost[block, 0][:, valid[0]].numpy())
        wanted = torch.full((5,), -1)
        wanted[valid[0].nonzero()[targets, 0]] = torch.from_numpy(queries)
        assert torch.equal(chosen[block, 0], wanted)


def test_a_cost_that_is_no_number_is_matched_last_and_raises_nothing():
    cost = torch.tensor([[torch.nan, torch.inf], [0.0, 1.0], [2.0, -torch.inf]])
    assert match(cost, torch.tensor([True, True])).tolist() == [2, 1]
    assert sorted(match(torch.full((3, 2), torch.nan), torch.tensor([True, True])).tolist()) == [0, 1]


def test_the_operation_fits_torchs_rules_for_operations():
    torch.library.opcheck(assign, problems(2, 6, 4), test_utils=("test_schema", "test_faketensor"))


def agrees(device: str) -> None:
    for case in CASES:
        cost, valid = problems(*case)
        assert torch.equal(assign_by_kernel(cost.to(device), valid.to(device)).cpu(), assign(cost, valid)), case
    cost, valid = torch.randint(0, 3, (6, 9, 6)).float(), torch.ones(6, 6, dtype=torch.bool)
    chosen = assign_by_kernel(cost.to(device), valid.to(device)).cpu()  # many optima: their cost is one
    least = cost.gather(1, assign(cost, valid)[:, None]).sum((1, 2))
    assert torch.equal(cost.gather(1, chosen[:, None]).sum((1, 2)), least)
    assert all(len(set(row)) == 6 for row in chosen.tolist())
    assign_by_kernel(torch.full_like(cost, torch.nan).to(device), valid.to(device))  # wrong, but ends


if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton"):  # by hand, where Triton is installed

    def test_the_kernel_agrees_with_scipy_in_tritons_interpreter():
        agrees("cpu")


@pytest.mark.gpu
def test_the_kernel_agrees_with_scipy_and_a_graph_records_it():
    agrees("cuda")
    cost, valid = (tensor.cuda() for tensor in problems(48, 100, 32))
    match(cost, valid)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # an error where anything waits for the host
        chosen = match(cost, valid)
    cost.copy_(torch.randn(cost.shape))
    graph.replay()
    assert torch.equal(chosen.cpu(), assign(cost.cpu(), valid.cpu()))
