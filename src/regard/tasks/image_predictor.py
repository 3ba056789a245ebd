"""A trained model of images as people use it: images in, predictions and explanations out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from regard.console import Progress, columns, rounded_time
from regard.data import (
    checked,
    find_images,
    fit,
    read_image,
    read_mask,
    to_float,
    to_tensor,
)
from regard.data.scanner import pixel_digest
from regard.data.volumes import Prepared, ScanFrame, Subject, is_nifti
from regard.data.volumes.inputs import as_subject, find_subjects, marked, prepared_array, read_scan_mask
from regard.data.volumes.reader import read_prepared
from regard.errors import ConfigError, DataError, counted, refuse_failed
from regard.explain import (
    DEFAULT,
    Explanation,
    Inspection,
    Visualisation,
    check_method,
    explain,
    inspect_model,
    random_twins,
    target_note,
    visualise,
)
from regard.explain.cost import Passes, pass_seconds, passes
from regard.explain.draw import draw_pages
from regard.explain.explanation import Checks
from regard.explain.mask_scores import score_masks, score_table
from regard.explain.visualise import STEPS
from regard.image_groups import MAX_MEGAPIXELS
from regard.networks.base import Network
from regard.tasks.image_options import LoadOptions
from regard.weights import Checkpoint, Run, find_run, open_weights

PHOTO_SIDE = {2: 512, 3: 128}
"""Most pixels on a side of a picture or volume that is kept beside its map."""
LONG_SECONDS = 10.0
"""Explanations that take longer are announced."""

Image = Any
"""A path, a Pillow image, or pixels as array or tensor: uint8, or floating point in 0..1.

Pixels are (channels, *size) or (*size, channels) with 1 or 3 channels, or (*size) of grey ones.
"""


class PicturePredictor:
    """A trained model of images: images in, predictions out."""

    predicts: ClassVar[str] = "classes"
    """What its networks predict."""

    has_head: ClassVar[bool] = True
    """Whether it is used: one that was not trained is then reported."""

    @torch.inference_mode(False)  # weights that can be explained, wherever they are loaded
    def __init__(self, checkpoint: Checkpoint, device: torch.device):
        assert checkpoint.preparation is not None
        self.classes, self.preparation, self.device = checkpoint.classes, checkpoint.preparation, device
        self.model = checkpoint.build()
        self.model.to(device).eval()
        last = self.model.get_submodule(self.model.config.last_layer)
        self.headless = not checkpoint.task and not last.weight.any()
        """Weights that no run trained, with a head of zeros: it has nothing to say."""
        self.random_models: list[Network] = []
        self.run: Run | None = None
        """The run that the weights are of, where it is known."""
        self.met: dict[str, None] = {}
        """Files that were read whose pictures the run has learnt from."""
        self.max_megapixels = MAX_MEGAPIXELS

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({type(self.model).__name__}, {len(self.classes)} classes, input {self.preparation.size})"

    @classmethod
    def open(cls, path: str | Path, device: torch.device, progress: Progress, options: LoadOptions) -> Any:
        """From a run folder (its best weights) or a weights file of any known format."""
        checkpoint, report = open_weights(path, predicts=cls.predicts, **options.fields())
        for line in report.lines() if report.format != "regard" or (cls.has_head and report.untrained) else ():
            progress.say(line)
        predictor = cls(checkpoint, device)
        predictor.max_megapixels = options.max_megapixels
        predictor.run = find_run(path)
        return predictor

    @cached_property
    def learnt(self) -> set[str]:
        """Digests of the pictures that the run trained on or chose its weights by."""
        return {row["pixels"] for row in self.run.seen_rows() if row.get("pixels")} if self.run else set()

    def require_answers(self) -> None:
        """An error if there is nothing to predict."""

    def data_settings(self, data: str | Path) -> dict[str, Any]:
        return {}

    def prepared(self, pixels: Tensor) -> Any:
        """What a batch is made of, from decoded pixels."""
        raise NotImplementedError

    def answered(self, waiting: Sequence[tuple[str, Any]]) -> Iterator[Any]:
        """The predictions for some images, by name and as `prepared`."""
        raise NotImplementedError

    def predict(self, image: Image) -> Any:
        """The prediction for one image: a path, a Pillow image, or pixels (height, width, 3)."""
        return next(self.predict_many([image]))

    @torch.inference_mode()
    def predict_many(
        self, images: Iterable[Image], batch_size: int = 64, failed: list[DataError] | None = None
    ) -> Iterator[Any]:
        """Predictions in the order of the images, computed `batch_size` at a time.

        An image that cannot be read is an error; given a list `failed`, the error goes there and the rest continues.
        """
        self.require_answers()
        waiting: list[tuple[str, Any]] = []
        for image in images:
            try:
                name, pixels = self._read(image)
                waiting.append((name, self.prepared(pixels)))
            except DataError as error:
                if failed is None:
                    raise
                failed.append(error)
            if len(waiting) == batch_size:
                yield from self.answered(waiting)
                waiting = []
        if waiting:
            yield from self.answered(waiting)

    def inputs(self, words: Sequence[str]) -> Sequence[Image]:
        """Files, folders or globs."""
        return find_images(words)

    def _read(self, image: Image) -> tuple[str, Tensor]:
        if isinstance(image, str | Path):
            pixels = read_image(Path(image).expanduser(), self.max_megapixels)[0]
            if self.learnt and pixel_digest(pixels) in self.learnt:
                self.met[str(image)] = None
            return str(image), pixels
        if hasattr(image, "getbands"):
            return "picture", to_tensor(image, "the given picture")
        if not isinstance(image, Tensor | np.ndarray):
            raise DataError(
                f"this is no image but of the type {type(image).__name__}",
                do="give a path, a Pillow image or pixels (several: predict_many)",
            )
        pixels = self._channels_first(_to_tensor(image))
        if pixels.is_floating_point():
            return "pixels", torch.from_numpy(checked(pixels.float().numpy(), "the given pixels"))
        if pixels.dtype != torch.uint8:
            raise DataError(f"pixels of type {pixels.dtype} are not understood", do="give uint8, or float in 0..1")
        return "pixels", pixels

    def seen_note(self) -> str:
        """Which of the files that were read the run has learnt from, in a sentence; empty if none."""
        if not self.met:
            return ""
        more = len(self.met) - 1
        named = f"{next(iter(self.met))} and {more:,} more are" if more else f"{next(iter(self.met))} is"
        return (
            f"note: {named} among the images that the run trained on or chose its weights by: how right it is there "
            "says nothing about new ones"
        )

    def _channels_first(self, pixels: Tensor) -> Tensor:
        """(channels, *size) from that, from (*size, channels), or from (*size) of grey pixels."""
        shape, axes = tuple(pixels.shape), len(self.preparation.size)
        if len(shape) == axes:
            pixels = pixels[None]
        elif len(shape) == axes + 1 and shape[0] not in (1, 3) and shape[-1] in (1, 3):
            pixels = pixels.movedim(-1, 0)
        if pixels.ndim != axes + 1 or pixels.shape[0] not in (1, 3) or not pixels.numel():
            raise DataError(
                f"pixels of shape {shape} are no image with 1 or 3 channels",
                do="give (height, width, 3), (height, width), or (channels, *size); several: predict_many",
            )
        return pixels


class ImagePredictor(PicturePredictor):
    """A trained model of images: images in, predictions and explanations out."""

    # What a task decides.

    def answers(self, output: Any) -> Tensor:
        """What is predicted, (B, outputs)."""
        raise NotImplementedError

    def scores(self, output: Any) -> Tensor:
        """What is explained, (B, outputs)."""
        return output.logits.float()

    def watched(self, output: Any) -> Tensor:
        """What the checks of an explanation watch, (B, outputs)."""
        return self.answers(output)

    def prediction(self, name: str, answer: Tensor) -> Any:
        raise NotImplementedError

    def target_number(self, target: str | None, answer: Tensor) -> int:
        """Which output is explained."""
        raise NotImplementedError

    # The same for all.

    def data_settings(self, data: str | Path) -> dict[str, Any]:
        """Scans are prepared as the model's own were, whatever this data's own spacing and size."""
        prepared = self.preparation
        return prepared.reading() | ({"size": prepared.size} if prepared.scans else {})

    def prepare(self, image: Image) -> Tensor:
        """The network's input for an image, (1, channels, *size): fitted and normalised, on its device."""
        return self.preparation(self._read(image)[1]).to(self.device)

    def prepared(self, pixels: Tensor) -> Tensor:
        return self.preparation(pixels)

    def answered(self, waiting: Sequence[tuple[str, Tensor]]) -> Iterator[Any]:
        x = torch.cat([prepared for _, prepared in waiting]).to(self.device)
        rows = self.answers(self.model(x, class_token_only=True)).cpu()
        for (name, _), row in zip(waiting, rows, strict=True):
            yield self.prediction(name, row)

    @torch.inference_mode(False)
    def explain(
        self,
        image: Image,
        method: str = DEFAULT,
        target: str | None = None,
        *,
        mask: Any = None,
        checks: Checks = "all",
        say: Callable[[str], None] = lambda text: None,
        **options: Any,
    ) -> Explanation:
        """Why: a map over the image and its scores. `target` is the output to explain, the predicted one if not said.

        `mask` is where the cause is known to lie: a picture or array as large as the image, not zero inside,
        or a box (top, left, bottom, right) in its pixels. The map is then also scored against it. A subject of a table
        has its mask from there: of the first mask column, or of the one that `mask` names. `checks="none"`
        leaves out the scores, which take most of the time. `say` is told how far it has come.
        """
        self.require_answers()
        check_method(method, options, self.model)
        name, pixels, scan, masks = self._read_placed(image)
        picture, size = self.preparation.picture(pixels), tuple(pixels.shape[1:])
        region = None
        if scan is not None and (mask is None or (isinstance(mask, str) and mask in dict(masks))):
            region = self._marked(masks, scan, mask, name)
        elif mask is not None:
            inside = read_mask(mask, size) if scan is None else read_scan_mask(mask, scan)
            region = self.preparation.region(inside, scan)
        x = self.preparation.normalised(picture[None]).to(self.device)
        if checks == "all":
            self.random_models = self.random_models or random_twins(self.model)
        with torch.inference_mode():
            answer = self.answers(self.model(x, class_token_only=True))[0].cpu()
        number = self.target_number(target, answer)
        return explain(
            self.model, x, self.preparation.display(picture), prediction=self.prediction(name, answer),
            target=self.classes[number],
            score=lambda output: self.scores(output)[:, number], answer=lambda output: self.watched(output)[:, number],
            method=method, checks=checks, mask=region, scan=scan, twins=self.random_models, say=say,
            patient=self.preparation.patient(picture),
            frame=None if self.preparation.scans else self.preparation.frame(size),
            photo=None if self.preparation.scans else small(pixels), **options,
        )  # fmt: skip

    def check_mask(self, image: Prepared) -> None:
        """A `DataError` if a subject's mask cannot be used."""
        self._marked(image.masks, image.frame, None, image.name)

    def _marked(self, masks: Any, scan: ScanFrame, column: str | None, name: str) -> Tensor | None:
        """The region of a subject's own mask, if it has one; what is wrong with it is an error of the data."""
        try:
            inside = marked(masks, scan, column)
            return None if inside is None else self.preparation.region(inside, scan)
        except ConfigError as error:
            raise DataError(error.what, where=error.where or name, do=error.do) from None

    def inspect(self, images: Iterable[Image] = (), *, registers: int = 0, quiet: bool = True) -> Inspection:
        """What the network has learnt: filters, positions and, on images, attention distance and token norms.

        `registers` adds that many test-time registers and measures the norms again, where there are outliers.
        """
        images = self.inputs([str(images)]) if isinstance(images, str | Path) else images
        pictures = [self.preparation.picture(self._read(image)[1]) for image in images]
        with Progress(quiet).bar("inspecting", len(pictures)) as tick:
            together = torch.stack(pictures) if pictures else None
            return inspect_model(self.model, together, self.preparation.normalised, registers=registers, tick=tick)

    @torch.inference_mode(False)
    def visualise(self, target: str | None = None, *, quiet: bool = True, **wanted: Any) -> Visualisation:
        """The input that most excites a class (`target`), a head (`layer`, `head`) or a token (`layer`, `token`)."""
        mean, std = self.preparation.mean, self.preparation.std
        wanted = {"steps": STEPS, "target": target} | wanted
        with Progress(quiet).bar("visualising", wanted["steps"]) as tick:
            return visualise(self.model, mean, std, self.classes, tick=tick, **wanted)

    # For the command line.

    def inputs(self, words: Sequence[str]) -> Sequence[Image]:
        """Files, folders or globs; of scans, also tables and case folders."""
        scans = self.preparation.scans
        return find_subjects(words, scans) if scans else super().inputs(words)

    def explain_inputs(
        self, words: Sequence[str], out: Path, *, box: tuple[int, ...] | None = None, mask: Any = None,
        quiet: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        """Pages of pictures, and a table with the scores of each map."""
        if is_nifti(out) and not self.preparation.scans:
            raise ConfigError(
                "only maps of scans are written as NIfTI", where=out, do="end --out in .png, .svg or .pdf"
            )
        made, failed, paths, progress = list[Explanation](), list[DataError](), self.inputs(words), Progress(quiet)
        method = options.get("method", DEFAULT)
        its_own = {name: value for name, value in options.items() if name not in ("method", "target", "checks")}
        self.require_answers()
        check_method(method, its_own, self.model)
        checks = "checks of each map, which take most of the time (--checks none leaves them out)"
        unchecked = options.get("checks") == "none"
        progress.say(f"{counted(len(paths), 'images')}: {method}, {'no checks' if unchecked else checks}")
        if note := target_note(method, options.get("target"), not unchecked):
            progress.say(note)
        if time := self._expected_time(len(paths), unchecked, passes(self.model, method, **its_own)):
            progress.say(time)
        with progress.bar("explaining", len(paths)) as tick:
            for number, path in enumerate(paths):
                try:
                    say = partial(tick, number)
                    made.append(self.explain(path, mask=mask or box, say=say, **options))
                except DataError as error:
                    failed.append(error)
                tick(number + 1)
        if made:
            files = save_maps(made, out) if is_nifti(out) else draw_pages(made, out)
            print(*files, columns(*explanation_table(made)), sep="\n")
            if len(made) > 1 and (scores := score_masks(made)):
                print("\nmaps against masks", columns(*score_table(scores)), sep="\n")
        refuse_failed(failed)

    def _expected_time(self, images: int, unchecked: bool, needed: Passes) -> str:
        """How long explanations will take on a CPU, where that is long; with and without their checks."""
        if self.device.type != "cpu":
            return ""
        (least, most, checks), each = needed, pass_seconds(self.model)
        if images * each * (least + (0 if unchecked else checks)) < LONG_SECONDS:
            return ""

        def told(least: float, most: float) -> str:
            low, high = rounded_time(each * least), rounded_time(each * most)
            return low if low == high else f"{low} to {high}"

        bare = told(least, most)
        if unchecked:
            return f"about {bare} per image on this CPU"
        return f"about {told(least + checks, most + checks)} per image on this CPU; --checks none: {bare}"

    def _read_placed(self, image: Image) -> tuple[str, Tensor, ScanFrame | None, tuple[tuple[str, str], ...]]:
        """Name and pixels of an image; of a scan, also where it lies in its file, and its masks by column."""
        plan = self.preparation.plan
        if plan is None:
            return *self._read(image), None, ()
        if isinstance(image, Tensor | np.ndarray):
            return "volume", prepared_array(_to_tensor(image), plan), None, ()
        if not isinstance(image, Prepared):
            subject = image if isinstance(image, Subject) else as_subject(image, plan.scans)
            image = read_prepared(subject, plan, None, self.max_megapixels)
        return image.name, image.pixels, image.frame, image.masks

    def _read(self, image: Image) -> tuple[str, Tensor]:
        if self.preparation.scans:
            return self._read_placed(image)[:2]
        return super()._read(image)


def _to_tensor(image: Tensor | np.ndarray) -> Tensor:
    if isinstance(image, Tensor):
        return image.detach().cpu()
    try:  # torch takes neither read-only arrays nor negative strides nor foreign byte orders
        return torch.from_numpy(np.array(image, dtype=image.dtype.newbyteorder("="), order="C"))
    except TypeError:
        raise DataError(f"pixels of type {image.dtype} are not understood", do="give uint8, or float in 0..1") from None


def small(pixels: Tensor) -> Tensor:
    """A decoded picture in 0..1, made smaller where it is large."""
    size = tuple(pixels.shape[1:])
    scale = min(1.0, PHOTO_SIDE.get(len(size), 512) / max(size))
    return to_float(fit(pixels, tuple(max(1, round(side * scale)) for side in size)))


def save_maps(made: Sequence[Explanation], path: Path) -> list[Path]:
    """Maps of scans as NIfTI: one file, or one for each subject, whose name stands after the file's own."""
    stem, ending = path.name[: path.name.lower().rindex(".nii")], path.name[path.name.lower().rindex(".nii") :]
    bare = [re.sub(r"\.nii(\.gz)?$", "", Path(item.prediction.name).name, flags=re.IGNORECASE) for item in made]
    words = [re.sub(r"[^\w.-]+", "_", word) for word in bare]
    words = [word if words.count(word) == 1 else f"{word}-{n}" for n, word in enumerate(words, start=1)]
    names = [path] if len(made) == 1 else [path.with_name(f"{stem}-{word}{ending}") for word in words]
    return [item.save(name) for item, name in zip(made, names, strict=True)]


def explanation_table(made: Sequence[Explanation]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: the scores that the maps have, and their verdicts."""
    parts: dict[str, Callable[[Explanation], str | None]] = {
        "image": lambda e: e.prediction.name,
        "predicted": lambda e: str(e.prediction),
        "insertion (high)": lambda e: None if e.scores is None else f"{e.scores.insertion:.3f}",
        "deletion (low)": lambda e: None if e.scores is None else f"{e.scores.deletion:.3f}",
        "random map": lambda e: None if e.scores is None else f"{e.scores.random:.3f}",
        "like random weights (low)": lambda e: None if e.random_correlation is None else f"{e.random_correlation:+.2f}",
        "completeness error (low)": lambda e: None if e.completeness_error is None else f"{e.completeness_error:.1%}",
        "map inside (area inside)": lambda e: e.location and f"{e.location.share:.0%} ({e.location.area:.0%})",
        "verdict": lambda e: e.verdict,
    }
    cells = {name: [part(e) for e in made] for name, part in parts.items()}
    shown = {name: ["–" if cell is None else cell for cell in column] for name, column in cells.items() if any(column)}
    return tuple(shown), list(zip(*shown.values(), strict=True))
