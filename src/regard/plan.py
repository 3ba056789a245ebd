"""What a run is made of, whatever it learns from: the loop and the run folder know it by this alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.config import Origin, RunConfig
from regard.networks.base import Network
from regard.nn.lora import merged
from regard.tasks import Learning
from regard.training import ALONE, Feed, World
from regard.weights import Kept, Run, Start


@dataclass
class Plan(ABC):
    """A run before its first step."""

    config: RunConfig
    origins: dict[str, Origin]
    splits: list[str]
    note: str
    model: Network
    parameters: int
    start: Start | None

    @property
    def device(self) -> torch.device:
        return torch.device(self.config.device)

    @property
    def tested(self) -> str:
        return "test" if "test" in self.splits else "val"

    @property
    def network(self) -> Network:
        """What the run is for: the network that its checkpoints hold."""
        return self.model

    def part(self, name: str) -> list[int]:
        return [number for number, its in enumerate(self.splits) if its == name]

    def keep(self, run: Run, name: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Of the trained weights those that a checkpoint holds; what else is needed is written beside it."""
        return merged(weights)

    @property
    def named_splits(self) -> list[str]:
        return ["train", "val", "test"]

    samples: ClassVar[str]
    """What it learns from, in the plural."""

    @property
    @abstractmethod
    def step_size(self) -> str:
        """How much a step takes in, in words."""

    @abstractmethod
    def few(self) -> tuple[int, Any]:
        """A few validation samples: how many, and a loader of them."""

    @property
    @abstractmethod
    def reads(self) -> str:
        """What the network is given, in a few words."""

    @abstractmethod
    def key(self, number: int) -> str:
        """What a sample is called."""

    @abstractmethod
    def task(self) -> Learning: ...

    @abstractmethod
    def feed(self, world: World) -> Feed:
        """What training is fed with."""

    @abstractmethod
    def loader(self, part: str, world: World = ALONE) -> Any:
        """Samples of one part as they are, for evaluation."""

    @abstractmethod
    def judge(self, model: nn.Module, validation: Any, tick: Callable[..., None], world: World) -> dict[str, float]:
        """Validation figures: weights are kept by the highest accuracy, or if there is none by the lowest loss."""

    @abstractmethod
    def checkpoint(self, progress: dict[str, Any], weights: dict[str, Tensor]) -> Kept:
        """What is kept of the network, with all that is needed to use it."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What a state needs beside tensors, to build the same network again."""
