"""What a task is: the one protocol by which the runner, the loop, the report and the fronts know all of them.

A task is a folder `tasks/NAME/` and a row in `tasks.TASKS`. Its `settings.py` (free of torch) holds a subclass of
`RunConfig`, its recipes and `recognise`; its `task.py` holds a subclass of `Task`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from regard.settings import Origin, RunConfig

if TYPE_CHECKING:
    from regard.console import Progress
    from regard.data.batch import Batch, Tensors
    from regard.data.dataset import Dataset

Tick = Callable[..., None]


class Objective(Protocol):
    """What a training step minimises."""

    @property
    def divisible(self) -> bool:
        """Whether a batch may be split into pieces with the same result."""
        ...

    def forward(self, model: Callable[..., Any], batch: Batch) -> Any: ...

    def loss(self, output: Any, targets: Tensors) -> Tensor:
        """No host synchronisation: the step is recorded as a CUDA graph."""
        ...

    def num_targets(self, targets: Tensors) -> Tensor | int:
        """The number of equal parts that `loss` is the mean of."""
        ...


class Section(NamedTuple):
    """A part of report.html."""

    title: str
    html: str


@dataclass
class Page:
    """What a task says of a run in report.html and model_card.md; the frame around it is shared."""

    title: str
    headline: str
    """The main figure: HTML."""
    headline_text: str
    """The same for the model card."""
    figures: list[tuple[str, str, str, str]]
    """Rows of name, value, 95 % interval and meaning."""
    chosen_by: str
    """The validation figure that chose the weights."""
    warnings: list[str] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    limits: str = ""
    """Use and limits, for the model card; without it there is no card."""
    medical: bool = False
    """Whether the card has the checklists for medical models."""


class Result(Protocol):
    """What an evaluation found."""

    @property
    def figures(self) -> dict[str, Any]:
        """Each with value, low, high and n."""
        ...

    def predictions(self) -> list[dict[str, Any]]:
        """Rows of predictions.csv."""
        ...

    def to_json(self) -> dict[str, Any]: ...

    def describe(self) -> str:
        """Beside the figures, for the screen."""
        ...


class Predictor(Protocol):
    """What `regard.load` gives, for any task."""

    @property
    def predict(self) -> Callable[..., Any]:
        """One prediction of one input."""
        ...

    @property
    def predict_many(self) -> Callable[..., Any]:
        """Predictions in the order of the inputs, in batches."""
        ...

    def require_answers(self) -> None:
        """An error if there is nothing to predict."""
        ...

    def data_settings(self, data: str | Path) -> dict[str, Any]:
        """The settings by which other data is read as the model's own was."""
        ...

    @property
    def explain(self) -> Callable[..., Any]:
        """Why a prediction was made, with scores that say whether to believe it."""
        ...

    @property
    def explain_inputs(self) -> Callable[..., None]:
        """Explain the inputs of words on the command line, into a file."""
        ...

    def inputs(self, words: Sequence[str]) -> Any:
        """The inputs that words on the command line stand for."""
        ...

    @property
    def show(self) -> Callable[..., None]:
        """Print predictions."""
        ...

    def save(self, predictions: Any, path: Path) -> Path:
        """Write predictions as .csv or .json."""
        ...


class Choice(NamedTuple):
    """A recipe, the settings of it that the data decides, and the reason in one line."""

    recipe: str
    values: Mapping[str, Any] = MappingProxyType({})
    why: str = ""


@dataclass
class Job:
    """A run before its first step: settings, where each came from, data, splits, and the weights it starts from."""

    config: RunConfig
    origins: dict[str, Origin]
    dataset: Dataset
    splits: list[str]
    note: str = ""
    start: Any = None
    why: str = ""
    """Why these defaults: one line."""

    @property
    def device(self) -> torch.device:
        return torch.device(self.config.machine.device)

    def part(self, name: str) -> list[int]:
        return [number for number, its in enumerate(self.splits) if its == name]


@dataclass(frozen=True)
class Folds:
    """The predictions of every sample by the network of the fold that had not seen it, for a task to add up."""

    rows: list[dict[str, str]]
    """Of predictions.csv, with `fold` and `patient`."""
    validation: list[list[dict[str, str]]]
    """By fold: predictions of the part of its training data that chose its weights. Thresholds are chosen here."""
    covariates: dict[str, np.ndarray] = field(default_factory=dict)
    """What is known of each sample that no network should learn from, such as its site: features (N, F)."""
    details: list[dict[str, Any]] = field(default_factory=list)
    """By fold: what its checkpoint keeps for the task beside the weights."""

    @property
    def fold(self) -> np.ndarray:
        return np.array([int(row["fold"]) for row in self.rows])

    @property
    def groups(self) -> np.ndarray:
        """Of each sample its patient, or itself."""
        return np.array([row["patient"] or f"sample {number}" for number, row in enumerate(self.rows)])

    def numbers(self, column: str) -> np.ndarray:
        return np.array([float(row[column]) for row in self.rows])


class Task(ABC):
    """One kind of work, bound to one run's job."""

    name: ClassVar[str]
    best: ClassVar[tuple[str, Literal["max", "min"]]]
    """The validation figure that chooses the weights."""
    headline: ClassVar[tuple[str, ...]]
    """The figures that are printed at the end of a run."""
    identity: ClassVar[tuple[str, ...]] = ("name", "label")
    """Columns of predictions.csv that two rows of one sample have in common, whatever was predicted."""
    files: ClassVar[tuple[str, ...]] = ()
    """Names of what `write` puts in the run folder."""

    def __init__(self, job: Job):
        self.job = job
        self.model: Any = None
        self.parameters = 0
        self.blueprint: Any = None
        """Model and objective without values, for counting operations (`training/compute.py`)."""

    @property
    def config(self) -> Any:
        return self.job.config

    @property
    def device(self) -> torch.device:
        return self.job.device

    # Before the run: data and settings.

    @classmethod
    @abstractmethod
    def open(cls, data: str | Path, config: RunConfig, progress: Progress) -> Dataset:
        """Read the data, saying what it is."""

    @classmethod
    def start(cls, config: RunConfig, model: str | None, dataset: Dataset) -> Any:
        """The weights that the run starts from, if not random ones; `model` is the name asked for, if any."""
        return None

    @classmethod
    @abstractmethod
    def choose(
        cls, dataset: Any, start: Any, asked: Mapping[str, Any], gpu: bool, given: list[str | None] | None = None
    ) -> Choice:
        """The recipe that is asked for, or else the one for this data, and what the data changes in it.

        `given` are splits in place of the data's own.
        """

    @classmethod
    @abstractmethod
    def from_data(cls, config: Any, dataset: Any) -> dict[str, Any]:
        """Values for the settings that may be left open."""

    @classmethod
    def split(cls, dataset: Any, config: Any, given: list[str | None] | None = None) -> tuple[list[str], str]:
        """The split of each sample, and where it comes from; `given` replaces what the data says."""
        from regard.data.splits import split

        return split(dataset, config.data.split_seed, config.data.holdout, given=given)

    # The run: network, batches, loss.

    @abstractmethod
    def prepare(self, progress: Progress, about: dict[str, Any] | None, folder: Path | None) -> None:
        """What the network's inputs need: computed, or as a running run (`about`, `folder`) has it."""

    @abstractmethod
    def build(self, about: dict[str, Any] | None) -> Any:
        """The network to train; the runner has seeded the generator."""

    def network(self) -> Any:
        """The network that checkpoints hold."""
        return self.model

    def batch_settings(self, progress: Progress) -> dict[str, Any]:
        """Settings of a fresh run that depend on data and model, such as a smaller batch."""
        return {}

    def adapt(self) -> None:
        """Freeze what is to stay as it is; then the model is in training mode."""
        self.model.train()

    @abstractmethod
    def batches_per_epoch(self) -> int: ...

    @abstractmethod
    def feed(self, world: Any) -> Any:
        """Batches for training, augmented, on the device."""

    @abstractmethod
    def loader(self, part: str, world: Any = None, limit: int | None = None) -> Any:
        """The samples of one part as they are, for evaluation."""

    @property
    @abstractmethod
    def objective(self) -> Objective:
        """What is minimised."""

    @abstractmethod
    def validate(self, model: nn.Module, loader: Any, tick: Tick, world: Any) -> dict[str, float]:
        """Figures of the validation split, `loss` and the one named in `best` among them."""

    # What is kept.

    @abstractmethod
    def checkpoint(self, progress: dict[str, Any], weights: dict[str, Tensor]) -> Any: ...

    def kept_weights(self, run: Any, name: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Of the trained weights those that a checkpoint holds; what else is needed is written beside it."""
        return weights

    def about(self) -> dict[str, Any]:
        """What a saved state needs beside tensors, to build the same network again."""
        return {}

    def write(self, run: Any, progress: Progress) -> None:  # noqa: B027 - most tasks have none
        """Files of the run folder that only this task has: those of `files`."""

    def plan_rows(self) -> list[tuple[str, str]]:
        """What a dry run says of the data beside its size: rows of a table."""
        return []

    # Words for the screen.

    @property
    def input_words(self) -> str:
        return ""

    @property
    def step_words(self) -> str:
        return ""

    # After training.

    @property
    def tests(self) -> list[str]:
        """The splits to test on, the main one first."""
        return sorted({name for name in self.job.splits if name.startswith("test")}) or ["val"]

    @abstractmethod
    def trained(self, run: Any) -> Any:
        """What is tested: the run's best weights."""

    @abstractmethod
    def evaluate(self, trained: Any, part: str, tick: Tick) -> Result: ...

    def extra_summary(self, result: Any) -> dict[str, Any]:
        """What summary.json says beside the figures of `result`, the main test's."""
        return {}

    def explain(self, run: Any, trained: Any, result: Any, progress: Progress) -> None:  # noqa: B027
        """Explain a few tested samples, for the report."""

    @staticmethod
    @abstractmethod
    def page(run: Any, config: Any, data: dict[str, Any], summary: dict[str, Any]) -> Page:
        """What report.html and model_card.md say, from the files of the run folder."""

    # Several folds.

    pools: ClassVar[bool] = False
    """Whether out-of-fold predictions can be added up: then there is `pool`, and `pool_page` for the report."""

    @classmethod
    def fold_settings(cls, dataset: Any, index: list[int], config: Any) -> dict[str, Any]:
        """Settings that all folds must share for their predictions to be added up, from the samples in the folds."""
        return {}

    @staticmethod
    def confounded(dataset: Any) -> list[str]:
        """What is known beside the samples, such as their site, and predicts the outcome without a look at them."""
        return []

    @staticmethod
    def fold_doubts(dataset: Any, numbers: list[int]) -> list[str]:
        """What speaks against these folds, before anything is trained; `numbers` are the folds of the samples."""
        return []

    @staticmethod
    def pool(folds: Folds, data: dict[str, Any]) -> dict[str, Any]:
        """For summary.json: `figures`, `per_fold` (by figure a `Spread`), `headline`, `warnings`, and what is drawn."""
        raise NotImplementedError

    @staticmethod
    def pool_page(run: Any, data: dict[str, Any], summary: dict[str, Any]) -> Page:
        """What the report of several folds says, from its folder."""
        raise NotImplementedError

    # Trained models.

    @classmethod
    def predictor(cls, path: str | Path, device: torch.device, options: Any, progress: Progress) -> Predictor:
        """A trained model; `options` are the task's `LoadOptions`."""
        from regard.errors import ConfigError

        raise ConfigError(f"{cls.name} has nothing to predict", where=path)

    @classmethod
    def stored_settings(cls, run: str | Path, data: str | Path) -> dict[str, Any]:
        """How the run's own data was read, as far as that is for other data too."""
        return {}

    @classmethod
    def open_for(cls, predictor: Any, data: str | Path, config: Any, progress: Progress) -> Dataset:
        """Read data to test a trained model on; what it cannot be tested on is refused early."""
        return cls.open(data, config, progress)

    @classmethod
    def evaluate_on(cls, predictor: Any, dataset: Any, index: list[int], options: Any, progress: Progress) -> Result:
        """Figures of a trained model on other data; `options` are the task's `EvalOptions`."""
        from regard.errors import ConfigError

        raise ConfigError(f"{cls.name} has no evaluation on other data")

    @classmethod
    def ensemble(cls, results: Sequence[Any]) -> Any:
        """The result of the mean of several models' predictions of the same samples."""
        from regard.errors import ConfigError

        raise ConfigError(f"predictions of {cls.name} have no mean")

    @classmethod
    def recalibration(cls, result: Any) -> dict[str, Any]:
        """Figures that say whether predictions are too high or too extreme on other data; none of many tasks."""
        return {}

    @classmethod
    def without(cls, result: Any, seen: set[int]) -> Any:
        """The result without the samples that the model has seen, which keeps the whole one beside it."""
        return result

    @staticmethod
    def doubts(summary: dict[str, Any]) -> list[str]:
        """What in a summary speaks against the model, in sentences."""
        return []

    @classmethod
    def overview(cls, figures: Sequence[str]) -> Sequence[str]:
        """Of the figures that are compared those that each run is shown with, beside its network and inputs."""
        return figures[:1]

    @classmethod
    def compare(cls, first: Sequence[Any], second: Sequence[Any], data: dict[str, Any]) -> dict[str, Any]:
        """By figure, how far the second run is ahead of the first: paired tests on rows of predictions.csv.

        The rows are of the same samples; `data` is the first run's data.json.
        """
        from regard.errors import ConfigError

        raise ConfigError(f"{cls.name} has no paired comparison")
