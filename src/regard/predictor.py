"""A trained model as people use it: images in, answers and reasons out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import registry
from regard.console import Progress
from regard.data import checked, find_images, read_image, read_mask, to_tensor
from regard.errors import ConfigError, DataError
from regard.explain import (
    DEFAULT,
    Explanation,
    Inspection,
    Visualisation,
    check_method,
    explain,
    inspect_model,
    random_twins,
    visualise,
)
from regard.explain.visualise import STEPS
from regard.networks import Network
from regard.tasks import Classification, Prediction
from regard.weights import Checkpoint


def build(checkpoint: Checkpoint) -> Network:
    """The network that a checkpoint holds."""
    model: Network = registry.build(checkpoint.model, **checkpoint.config)
    model.load_state_dict(checkpoint.weights)
    return model


Image = Any
"""A path, a Pillow image, or pixels (channels, *size) as array or tensor: uint8, or floating point in 0..1."""


class Predictor:
    """A trained model with its classes and preparation: images in, answers and reasons out."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device):
        self.classes, self.preparation, self.device = checkpoint.classes, checkpoint.preparation, device
        self.model = build(checkpoint)
        self.model.to(device).eval()
        self.task = Classification()
        self.twins: list[Network] = []

    def __repr__(self) -> str:
        return f"Predictor({type(self.model).__name__}, {len(self.classes)} classes, input {self.preparation.size})"

    def require_classes(self) -> None:
        """Refuse to answer where there is one answer only, such as a pre-trained network's that has no head."""
        if len(self.classes) < 2:
            raise ConfigError(
                "the network tells no classes apart: there is nothing to predict",
                do="one that was pre-trained without labels has features only: fine-tune it, or use `regard probe`",
            )

    def prepare(self, image: Image) -> Tensor:
        """What the network is given for an image, (1, channels, *size): fitted and normalised, on its device."""
        return self.preparation(self._read(image)[1]).to(self.device)

    def predict(self, image: Image) -> Prediction:
        """The answer for one image: a path, a Pillow image, or pixels (channels, *size), uint8 or float in 0..1."""
        return next(self.predict_many([image]))

    @torch.inference_mode()
    def predict_many(
        self, images: Iterable[Image], batch: int = 64, failed: list[DataError] | None = None
    ) -> Iterator[Prediction]:
        """Answers in the order of the images, computed `batch` at a time.

        An image that cannot be read is an error; given a list `failed`, the error goes there and the rest goes on.
        """
        self.require_classes()
        waiting: list[tuple[str, Tensor]] = []

        def answer() -> Iterator[Prediction]:
            x = torch.cat([prepared for _, prepared in waiting]).to(self.device)
            probs = self.task.probabilities(self.model(x, lean=True)).cpu()
            for (name, _), row in zip(waiting, probs, strict=True):
                yield Prediction.of(name, row, self.classes)
            waiting.clear()

        for image in images:
            try:
                name, pixels = self._read(image)
                waiting.append((name, self.preparation(pixels)))
            except DataError as error:
                if failed is None:
                    raise
                failed.append(error)
            if len(waiting) == batch:
                yield from answer()
        if waiting:
            yield from answer()

    def explain(
        self, image: Image, method: str = DEFAULT, target: str | None = None, *, mask: Any = None, **options: Any
    ) -> Explanation:
        """Why: a map over the image and its scores. `target` is the class to explain, the predicted if not said.

        `mask` is where the cause is known to lie: a picture or array as large as the image, not zero inside,
        or a box (top, left, bottom, right) in its pixels. The map is then also scored against it.
        """
        self.require_classes()
        check_method(method, options, self.model)
        name, pixels = self._read(image)
        picture = self.preparation.picture(pixels)
        region = None if mask is None else self.preparation.region(read_mask(mask, tuple(pixels.shape[1:])))
        x = self.preparation.normalised(picture[None]).to(self.device)
        self.twins = self.twins or random_twins(self.model)
        return explain(
            self.model, self.task, x, picture, name, self.classes, method=method, target=target, mask=region,
            frame=self.preparation.frame(tuple(pixels.shape[1:])), twins=self.twins, **options,
        )  # fmt: skip

    def inspect(self, images: Iterable[Image] = (), *, registers: int = 0, quiet: bool = True) -> Inspection:
        """What the network has learnt: filters, positions and, on images, attention distance and token norms.

        `registers` adds that many test-time registers and measures the norms again, where there are outliers.
        """
        images = find_images([str(images)]) if isinstance(images, str | Path) else images
        pictures = [self.preparation.picture(self._read(image)[1]) for image in images]
        with Progress(quiet).bar("inspecting", len(pictures)) as tick:
            together = torch.stack(pictures) if pictures else None
            return inspect_model(self.model, together, self.preparation.normalised, registers=registers, tick=tick)

    def visualise(self, target: str | None = None, *, quiet: bool = True, **wanted: Any) -> Visualisation:
        """The input that most excites a class (`target`), a head (`layer`, `head`) or a token (`layer`, `token`)."""
        mean, std = self.preparation.mean, self.preparation.std
        wanted = {"steps": STEPS, "target": target} | wanted
        with Progress(quiet).bar("visualising", wanted["steps"]) as tick:
            return visualise(self.model, mean, std, self.classes, tick=tick, **wanted)

    @staticmethod
    def _read(image: Image) -> tuple[str, Tensor]:
        if isinstance(image, str | Path):
            return str(image), read_image(Path(image).expanduser())[0]
        if hasattr(image, "getbands"):
            return "picture", to_tensor(image, "the given picture")
        if not isinstance(image, Tensor | np.ndarray):
            raise DataError(
                f"a {type(image).__name__} is no image",
                do="give a path, a Pillow image or pixels (several: predict_many)",
            )
        pixels = torch.as_tensor(image).cpu()
        if pixels.ndim < 3 or pixels.shape[0] not in (1, 3):
            raise DataError(
                f"pixels of shape {tuple(pixels.shape)} are not (channels, *size) with 1 or 3 channels",
                do="put the channels first: pixels.transpose(2, 0, 1), or volume[None]",
            )
        if pixels.is_floating_point():
            return "pixels", torch.from_numpy(checked(pixels.float().numpy(), "the given pixels"))
        if pixels.dtype != torch.uint8:
            raise DataError(f"pixels of type {pixels.dtype} are not understood", do="give uint8, or float in 0..1")
        return "pixels", pixels
