"""Every field of DETR's modern mode trains with the set loss."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regard.data.batch import Batch
from regard.networks.detr.config import configure
from regard.networks.detr.network import DETR
from regard.tasks.objects.loss import SetLoss
from tests.networks.test_detr_modern import BOXES, FIELDS, LABELS, MASK
from tests.weights.parity import scene

SIZES = {"queries": 6, "width": 32, "mlp": 32, "backbone_width": 8, "blocks": (1, 1, 1, 1), "dropout": 0.0}


@pytest.mark.parametrize("changes", [{}, *FIELDS], ids=lambda fields: "+".join(fields) or "plain")
def test_one_step_along_the_gradient_lowers_the_loss(changes):
    torch.manual_seed(0)
    model = DETR(configure("detr_nano", classes=5, **SIZES, **changes)).train()
    objective, targets = SetLoss.of(model.config), {"boxes": BOXES, "labels": LABELS}
    batch = Batch({"image": scene(64, 80), "mask": MASK}, targets)

    def loss() -> torch.Tensor:
        torch.manual_seed(1)  # the same noise
        return objective.loss(objective.forward(model, batch), targets)

    before = loss()
    before.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 1e-4 * parameter.grad / (parameter.grad.norm() + 1e-9)
    assert loss().detach() < before.detach()


class Operations(TorchDispatchMode):
    """The names of all operations inside the block."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("changes", [{}, *FIELDS], ids=lambda fields: "+".join(fields) or "plain")
def test_a_step_has_no_operation_that_waits_for_a_gpu(changes):
    """A CUDA graph could not record a value that the host asks for, or a tensor that the host makes."""
    model = DETR(configure("detr_nano", classes=5, **SIZES, **changes)).train()
    objective, targets = SetLoss.of(model.config), {"boxes": BOXES, "labels": LABELS}
    with Operations() as seen:
        objective.loss(
            objective.forward(model, Batch({"image": scene(64, 80), "mask": MASK}, targets)), targets
        ).backward()
    assert {"assign", "convolution_backward"} <= seen.names
    assert not seen.names & {
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "index",
        "index_put_",
        "lift_fresh",
        "item",
    }
