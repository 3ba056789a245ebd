"""Regard: vision transformers that can be trained, measured, explained and trusted.

The names below are loaded when first used, so importing the package does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.version import __version__

if TYPE_CHECKING:
    from regard.api import (
        check,
        compare,
        create,
        demo,
        evaluate,
        landscape,
        load,
        models,
        pretrain,
        probe,
        resume,
        save,
        train,
    )
    from regard.errors import RegardError
    from regard.geometry import TokenMap
    from regard.nn import attend, capture
    from regard.run.ray import train_on_ray
    from regard.task import Predictor


_HOME = {
    "Predictor": "regard.task",
    "RegardError": "regard.errors",
    "TokenMap": "regard.geometry",
    "attend": "regard.nn",
    "capture": "regard.nn",
    "check": "regard.api",
    "compare": "regard.api",
    "create": "regard.api",
    "demo": "regard.api",
    "evaluate": "regard.api",
    "landscape": "regard.api",
    "load": "regard.api",
    "models": "regard.api",
    "pretrain": "regard.api",
    "probe": "regard.api",
    "resume": "regard.api",
    "save": "regard.api",
    "train": "regard.api",
    "train_on_ray": "regard.run.ray",
}

__all__ = [
    "Predictor",
    "RegardError",
    "TokenMap",
    "__version__",
    "attend",
    "capture",
    "check",
    "compare",
    "create",
    "demo",
    "evaluate",
    "landscape",
    "load",
    "models",
    "pretrain",
    "probe",
    "resume",
    "save",
    "train",
    "train_on_ray",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
