"""Copies from CPU memory to a device."""

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, without synchronising with the GPU as an ordinary copy would."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.contiguous().pin_memory().to(device, non_blocking=True)  # contiguous, or it would be copied twice
