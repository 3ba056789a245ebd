"""References that are not in the tests' own environment: timm, torchvision and MONAI, in one built by `make oracles`.

There (REGARD_ORACLES=1) a test that skips is a failure (tests/conftest.py); elsewhere these tests skip.
"""

import importlib.util
import sys

import torch

_KEPT = []


def pytest_configure() -> None:
    """torchvision's wheel is built for another torch: its operators do not load, but their names must exist."""
    if not importlib.util.find_spec("torchvision"):
        return
    try:
        import torchvision  # noqa: F401  # pyright: ignore[reportMissingImports]
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define("nms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        library.define("qnms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        _KEPT.append(library)
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
