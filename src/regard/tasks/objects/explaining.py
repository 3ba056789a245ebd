"""Why a detector found a box, and where its encoder looks from a point: what predictors of objects share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.console import Progress, columns
from regard.data import to_float
from regard.data.objects import prepare
from regard.errors import ConfigError, DataError, counted, did_you_mean, refuse_failed
from regard.explain import DEFAULT, Explanation, Start, check_method, explain, random_twins, target_note
from regard.explain.attention_store import BUDGET, keep_attention
from regard.explain.draw import draw, draw_pages
from regard.explain.explanation import Checks
from regard.geometry import Frame
from regard.networks.base import Network
from regard.tasks.image_predictor import Image, PicturePredictor, explanation_table, small
from regard.tasks.objects.decoding import Boxes, decode, to_file
from regard.tasks.objects.loss import scores
from regard.weights import Run

REPORTED = ("attention", "chefer", "integrated_gradients", "occlusion")
"""Methods that a report shows of a box: where its query looks, by what way it was found, and what its score needs."""
COVERED = 640
"""Tokens up to which a report covers them one by one without a GPU: that is a forward pass for each."""


@dataclass(frozen=True)
class Subject:
    """What is explained, in words."""

    name: str
    words: str

    def __str__(self) -> str:
        return self.words

    def named(self, name: str) -> Subject:
        return replace(self, name=name)

    def is_right(self, label: str) -> bool | None:
        """One box of an image is not simply right or wrong."""
        return None


class Shown(NamedTuple):
    """An image as the network sees it: x (1, C, H, W) and mask (1, H, W); the same in 0..1; where it lies in its file;
    and the file's pixels."""

    name: str
    x: Tensor
    mask: Tensor
    picture: Tensor
    frame: Frame
    pixels: Tensor


class BoxExplainer(PicturePredictor):
    """A predictor of boxes that can say why."""

    threshold: float = 0.5
    """The score from which on a box counts."""

    def shown(self, image: Image) -> Shown:
        name, pixels = self._read(image)
        item = self.prepared(pixels)
        frame = Frame.placed(item.size, tuple(item.image.shape[1:]))
        filled = torch.tensor([item.filled], device=self.device)
        x, mask = prepare(item.image[None].to(self.device), filled, self.preparation.mean, self.preparation.std)
        return Shown(name, x, mask, to_float(item.image), frame, pixels)

    def detections(self, output: Any) -> Boxes:
        """The boxes of one image, in the order of the predictions."""
        return decode(output, self.model.config.classification)

    @torch.inference_mode(False)
    def explain(
        self,
        image: Image,
        method: str = DEFAULT,
        target: str | None = None,
        *,
        box: int = 0,
        checks: Checks = "all",
        say: Callable[[str], None] = lambda text: None,
        **options: Any,
    ) -> Explanation:
        """Why a box was found: a map over the image and its scores.

        `box` is its number in the order of the predictions, surest first, from 0. `target` is the class whose score of
        this box is explained, the predicted one if not said. The box is the region that the map is compared with.
        """
        self.require_answers()
        check_method(method, options, self.model)
        shown, kind = self.shown(image), self.model.config.classification
        with torch.no_grad():
            output = self.model(shown.x, shown.mask)
            detections = self.detections(output)
        count = len(detections.scores[0])
        if not 0 <= box < count:
            raise ConfigError(f"there is no box {box}", do=f"give 0 to {count - 1}, the surest first")
        if target is not None and target not in self.classes:
            raise ConfigError(f"the model has no class {target!r}", do=did_you_mean(target, self.classes))
        query = int(detections.queries[0, box])
        number = int(detections.labels[0, box]) if target is None else self.classes.index(target)
        corners = to_file(detections.boxes[0, box].cpu(), shown.frame.file_size)
        label, score = self.classes[int(detections.labels[0, box])], float(detections.scores[0, box])
        words = f"box {box}: {label} {score:.0%} at {' '.join(f'{side:.0f}' for side in corners.tolist())}"
        if checks == "all":
            self.random_models = self.random_models or random_twins(self.model)
        return explain(
            self.model, shown.x, shown.picture, prediction=Subject(shown.name, words), target=self.classes[number],
            score=lambda out: out.logits[:, query, number].float(),
            answer=lambda out: scores(out.logits, kind)[:, query, number],
            method=method, checks=checks, mask=_inside(shown, corners), frame=shown.frame, photo=small(shown.pixels),
            twins=self.random_models, start=Start("queries", query), run=partial(as_shown, shown.mask, output.anchors),
            visible=shown.mask[0].cpu(), say=say, **options,
        )  # fmt: skip

    @torch.inference_mode(False)
    def attention_from_point(
        self, image: Image, point: Sequence[float], layer: int | None = None, head: int | None = None
    ) -> Explanation:
        """Where the encoder looks from a point (x, y), in pixels of the file: Figure 3 of Carion et al. (2020).

        In the last layer of the encoder, or in another, from 0; the mean over heads, or one.
        """
        shown = self.shown(image)
        height, width = shown.frame.file_size
        if len(point) != 2 or not (0 <= point[0] < width and 0 <= point[1] < height):
            where = " ".join(f"{side:g}" for side in point)
            raise ConfigError(f"the point {where} is not on the image", do=f"give x below {width} and y below {height}")
        x, y = shown.frame.boxes_to_input(torch.tensor([*point, *point], dtype=torch.float64)).tolist()[:2]
        where = self.model.token_map(tuple(shown.x.shape[2:]))
        token = int(y // where.cell[0]) * where.grid[1] + int(x // where.cell[1])
        (top, bottom), (left, right) = where.box(token)
        cell = torch.zeros(shown.x.shape[2:], dtype=torch.bool)
        cell[top:bottom, left:right] = True
        with torch.no_grad():
            detections = self.detections(self.model(shown.x, shown.mask))
        words = ", ".join(
            self.classes[n] for n in detections.labels[0, detections.scores[0] >= self.threshold].tolist()
        )
        asked = {"layer": layer, "head": head}
        options: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        return explain(
            self.model, shown.x, shown.picture, prediction=Subject(shown.name, words or "no box"),
            target=f"the point {point[0]:g} {point[1]:g}", score=lambda out: out.logits[:, 0, 0],
            answer=lambda out: out.logits[:, 0, 0], method="attention", checks="none", mask=cell, frame=shown.frame,
            photo=small(shown.pixels), start=Start("tokens", token), run=partial(as_shown, shown.mask, None),
            visible=shown.mask[0].cpu(), **options,
        )  # fmt: skip

    def explain_inputs(
        self, words: Sequence[str], out: Path, *, box: int = 0, point: Sequence[float] | None = None,
        quiet: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        """Pages of pictures, and a table with the scores of each map."""
        made, failed, paths, progress = list[Explanation](), list[DataError](), self.inputs(words), Progress(quiet)
        method = "the encoder's attention" if point else options.get("method", DEFAULT)
        progress.say(f"{counted(len(paths), 'images')}: {method}")
        if note := target_note(method, options.get("target"), options.get("checks") != "none"):
            progress.say(note)
        with progress.bar("explaining", len(paths)) as tick:
            for number, path in enumerate(paths):
                try:
                    if point is not None:
                        made.append(self.attention_from_point(path, point, options.get("layer"), options.get("head")))
                    else:
                        made.append(self.explain(path, box=box, say=partial(tick, number), **options))
                except DataError as error:
                    failed.append(error)
                tick(number + 1)
        if made:
            print(*draw_pages(made, out), columns(*explanation_table(made)), sep="\n")
        refuse_failed(failed)


def explain_boxes(run: Run, predictor: BoxExplainer, samples: Sequence[tuple[str, Tensor]], progress: Progress) -> None:
    """Explain the surest box of tested images, given by key and pixels; keep the encoder's attention for the report."""
    done, room = list[list[Explanation]](), BUDGET
    with progress.bar("explaining", len(samples)) as tick:
        for place, (key, pixels) in enumerate(samples, start=1):
            say, shown = partial(tick, place - 1), predictor.shown(pixels)
            few = predictor.model.token_map(tuple(shown.x.shape[2:])).tokens <= COVERED
            methods = REPORTED if few or predictor.device.type != "cpu" else REPORTED[:-1]
            done.append([predictor.explain(pixels, method=method, say=say).about(key) for method in methods])
            draw(done[-1], run.path / "explain" / f"{place:02d}.png")
            room -= keep_attention(run, place, predictor.model, shown.x, shown.picture, room, shown.mask)
            tick(place)
    if done:
        run.write_json("explain/explanations.json", [[each.to_json() for each in maps] for maps in done])


def as_shown(mask: Tensor, anchors: Tensor | None, network: Network, x: Tensor) -> Any:
    """A network's output for changed copies of one image: queries start from the boxes of the unchanged one, so that
    each stays what it was."""
    kept = {} if anchors is None else {"anchors": anchors.expand(len(x), -1, -1)}
    return network(x, mask.expand(len(x), -1, -1), **kept)


def _inside(shown: Shown, box: Tensor) -> Tensor:
    """The pixels of the input (H, W) whose centres lie in a box of the file; at least one."""
    left, top, right, bottom = shown.frame.boxes_to_input(box.double()).tolist()
    rows, columns = (torch.arange(side) + 0.5 for side in shown.x.shape[2:])
    down = ((rows >= top) & (rows < bottom)) | (rows == min(int((top + bottom) / 2), len(rows) - 1) + 0.5)
    across = ((columns >= left) & (columns < right)) | (columns == min(int((left + right) / 2), len(columns) - 1) + 0.5)
    return down[:, None] & across
