"""Energy that an NVIDIA GPU has used, as its driver counts it (NVML's total energy consumption).

NVML is a C library that comes with the driver, so no package is needed. Other devices do not report their energy, and
then there is no figure: nothing is estimated.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

MEASURED = (
    "NVML's energy counter of each GPU, from the first to the last step, validation and other work on that GPU included"
)
_LIBRARY = "libnvidia-ml.so.1"


class EnergyMeter:
    """Reads the counter of one device; on a device without one it reads None."""

    def __init__(self, device: torch.device):
        self.library: Any = None
        self.handle = ctypes.c_void_p()
        if device.type != "cuda":
            return
        try:
            library = _open_library()
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
            if library.nvmlInit_v2() == 0 and library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(self.handle)) == 0:
                self.library = library
        except (OSError, AttributeError, RuntimeError):  # no driver, one without NVML, or a device without an identity
            return

    def joules(self) -> float | None:
        """Since the driver was loaded; differences are what counts."""
        if self.library is None:
            return None
        millijoules = ctypes.c_ulonglong()
        try:
            failed = self.library.nvmlDeviceGetTotalEnergyConsumption(self.handle, ctypes.byref(millijoules))
        except AttributeError:
            return None
        return None if failed else millijoules.value / 1000


def _open_library() -> Any:
    return ctypes.CDLL(_LIBRARY)
