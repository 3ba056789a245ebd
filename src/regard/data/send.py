"""Copies from CPU memory to a device."""

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, without waiting for what a GPU still has to do: an ordinary copy would."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.contiguous().pin_memory().to(device, non_blocking=True)  # with gaps it would be copied once more
