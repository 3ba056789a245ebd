"""Distillation: a network learns from labels and from what a trained one, its teacher, says of the same images.

Touvron et al., "Training data-efficient image transformers & distillation through attention" (2021), section 4 and
equations 2 and 3. The class token learns the labels and the distillation token the teacher's answers; a network without
that token learns both with its one head, which is distillation as usual.

Departure from the authors' code: the divergence is the mean over images, as in the paper, not over images and classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data import Preparation
from regard.data.batch import Batch, Tensors
from regard.data.fitting import LUMINANCE
from regard.errors import ConfigError
from regard.networks.base import Network
from regard.tasks.classification.loss import CrossEntropy
from regard.weights import open_weights

RESIZE = {2: "bilinear", 3: "trilinear"}


class Taught(NamedTuple):
    """What the student and the teacher say of one batch."""

    output: Any
    teacher: Tensor


class Teacher(nn.Module):
    """A trained classifier that takes its student's inputs, and answers in the order of the student's classes.

    Images come augmented, sized and normalised for the student; here they are made what the teacher was trained on.
    Nothing waits for the device, so a step with a teacher can be recorded as a CUDA graph.
    """

    order: Tensor
    mean: Tensor
    std: Tensor
    own_mean: Tensor
    own_std: Tensor

    def __init__(
        self, model: Network, prepared: Preparation, classes: Sequence[str], student: Preparation, order: Sequence[str]
    ):
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self.own, self.student = prepared, student
        self.register_buffer("order", torch.tensor([list(classes).index(name) for name in order]))
        for name, own in (("", student), ("own_", prepared)):
            for kind, numbers in (("mean", own.mean), ("std", own.std)):
                self.register_buffer(name + kind, torch.tensor(numbers).reshape(-1, *(1,) * len(own.size)))

    def train(self, mode: bool = True) -> Teacher:
        """It never trains."""
        return self

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes) for the student's inputs."""
        return self.model(self.seen(x), class_token_only=True).logits.float()[:, self.order]

    def seen(self, x: Tensor) -> Tensor:
        """The teacher's input for a student's."""
        x = x.float() * self.std + self.mean
        if self.own.channels > self.student.channels:
            x = x.expand(-1, self.own.channels, *x.shape[2:])
        elif self.own.channels < self.student.channels:
            x = torch.stack([x[:, n] * share for n, share in enumerate(LUMINANCE)]).sum(0)[:, None]
        x = (x - self.own_mean) / self.own_std
        size = self.own.size
        if self.model.config.any_size:  # a part of the image, as epochs of low resolution show, stays a part
            sides = zip(x.shape[2:], self.own.size, self.student.size, strict=True)
            size = tuple(max(1, round(side * its / ours)) for side, its, ours in sides)
        if tuple(x.shape[2:]) == size:
            return x
        return F.interpolate(x, size=size, mode=RESIZE[len(size)], antialias=len(size) == 2)


@dataclass(frozen=True)
class Distillation:
    """(1 - weight) · loss against the labels + weight · loss against the teacher."""

    labels: CrossEntropy
    teacher: Teacher
    kind: Literal["hard", "soft"] = "hard"
    weight: float = 0.5
    temperature: float = 3.0
    divisible = True

    def forward(self, model: Callable[..., Any], batch: Batch) -> Taught:
        return Taught(self.labels.forward(model, batch), self.teacher(batch.inputs["image"]))

    def loss(self, output: Taught, targets: Tensors) -> Tensor:
        student, both = output.output, output.output.both
        own, learner = (student.logits, student.logits) if both is None else both.unbind(1)
        labelled = self.labels.loss(student._replace(logits=own), targets)
        return (1 - self.weight) * labelled + self.weight * self._taught(learner.float(), output.teacher)

    def _taught(self, logits: Tensor, teacher: Tensor) -> Tensor:
        if self.kind == "hard":  # equation 3: its decision is the label
            return F.cross_entropy(logits, teacher.argmax(-1))
        cold, warm = ((own / self.temperature).log_softmax(-1) for own in (logits, teacher))
        divergence = F.kl_div(cold, warm, reduction="batchmean", log_target=True)
        return self.temperature**2 * divergence  # equation 2

    def num_targets(self, targets: Tensors) -> int:
        return self.labels.num_targets(targets)


def open_teacher(path: str | Path, student: Preparation, classes: Sequence[str], device: torch.device) -> Teacher:
    """The classifier of a run or weights file as a teacher; one of other classes or inputs is refused."""
    checkpoint, _ = open_weights(path, predicts="classes")
    if checkpoint.task not in ("", "classification"):
        raise ConfigError(f"the teacher is a run of {checkpoint.task}", where=path, do="give one of classification")
    if set(checkpoint.classes) != set(classes):
        others = sorted(set(classes) ^ set(checkpoint.classes))
        what = f"the teacher has other classes than the data: {', '.join(others[:5])}{' …' * (len(others) > 5)}"
        raise ConfigError(what, where=path, do=f"give one that was trained on {', '.join(list(classes)[:5])} …")
    prepared, model = checkpoint.preparation, checkpoint.build()
    assert prepared is not None
    if len(prepared.size) != len(student.size) or prepared.scans != student.scans:
        what = f"the teacher takes inputs of {prepared.size}, prepared in another way than the data of {student.size}"
        raise ConfigError(what, where=path, do="give one that was trained on such data")
    if prepared.channels != student.channels and {prepared.channels, student.channels} != {1, 3}:
        raise ConfigError(f"the teacher takes {prepared.channels} channels, the student {student.channels}", where=path)
    if not model.get_submodule(model.config.last_layer).weight.any():
        raise ConfigError("the teacher has no trained head", where=path, do="give the run of a classifier")
    return Teacher(model, prepared, checkpoint.classes, student, classes).to(device)
