"""From the computer's memory to a device."""

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, without waiting for what a GPU still has to do: an ordinary copy would."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
