"""Which tested images a report explains, and their explanations: maps, attention, volumes, scores with masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from regard.console import Progress
from regard.data import Images, Source
from regard.data.volumes import Prepared
from regard.data.volumes.reader import VolumeReader
from regard.errors import DataError
from regard.explain import Explanation, attends, reported
from regard.explain.attention_store import BUDGET, keep_attention
from regard.explain.draw import draw
from regard.explain.mask_scores import mask_rows, score_masks
from regard.explain.volume_store import BUDGET as VOLUMES
from regard.explain.volume_store import keep_volume
from regard.weights import Run


def choose_examples(groups: Sequence[Sequence[int]], count: int, same: Callable[[int], object]) -> list[int]:
    """Up to `count` samples, as many of each group as of the others while they last, in the order of the groups.

    No two of them are the `same`.

    >>> choose_examples([[7], [1, 2, 3], [1, 4, 5, 6]], 5, same=lambda n: n)
    [7, 1, 2, 4, 5]
    """
    chosen, seen, waiting = [list[int]() for _ in groups], set[object](), [iter(group) for group in groups]
    while len(seen) < count:
        before = len(seen)
        for own, group in zip(chosen, waiting, strict=True):
            fresh = next((n for n in group if same(n) not in seen), None)
            if fresh is not None and len(seen) < count:
                own.append(fresh)
                seen.add(same(fresh))
        if len(seen) == before:
            break
    return [n for own in chosen for n in own]


def explain_images(
    run: Run, predictor: Any, images: Images, samples: Sequence[tuple[int, str, str]], progress: Progress,
    targets: Sequence[str | None] = (),
) -> None:  # fmt: skip
    """Explain tested images, given by number, key and true label, and keep their attention for the report.

    `targets` are what is explained of each; if none are given, what is predicted.
    """
    done, room = list[list[Explanation]](), BUDGET
    methods = reported(predictor.model)
    with progress.bar("explaining", len(samples)) as tick:
        for place, (number, key, truth) in enumerate(samples, start=1):
            say = partial(tick, place - 1)
            image = _explained(images.source, number)
            image = _with_usable_mask(predictor, image, progress)
            target = targets[place - 1] if targets else None
            made = [predictor.explain(image, method=method, target=target, say=say) for method in methods]
            done.append([item.about(key, truth) for item in made])
            draw(done[-1], run.path / "explain" / f"{place:02d}.png")
            keep_volume(run, place, done[-1], predictor.preparation.scans, VOLUMES // len(samples))
            x = predictor.prepare(image)
            if attends(predictor.model):
                room -= keep_attention(run, place, predictor.model, x, _explored(done[-1][0]), room)
            tick(place)
    if done:
        run.write_json("explain/explanations.json", [[e.to_json() for e in maps] for maps in done])
        write_mask_scores(run, [e for maps in done for e in maps])


def write_mask_scores(run: Run, explained: Sequence[Explanation]) -> None:
    """How the maps lie on the masks, where there are any: masks.json, which the report shows."""
    if rows := mask_rows(explained):
        scores = [score.to_json() for score in score_masks(explained)]
        run.write_json("explain/masks.json", {"scores": scores, "subjects": [row._asdict() for row in rows]})


def _with_usable_mask(predictor: Any, image: Any, progress: Progress) -> Any:
    """A scan without its masks, if they cannot be used: a run is finished without them."""
    if not isinstance(image, Prepared) or not image.masks:
        return image
    try:
        predictor.check_mask(image)
    except DataError as error:
        progress.say(f"warning: the mask of {image.name} is not used: {error.what}")
        return image._replace(masks=())
    return image


def _explained(source: Source, number: int) -> Any:
    """The file's own pixels, which the predictor fits and draws on; of a scan, its input and where that lies."""
    reader = source.reader
    return reader.prepared(number) if isinstance(reader, VolumeReader) else source.read(number)[0]


def _explored(item: Explanation) -> Tensor:
    """The picture on which attention is explored: fine, but of volumes, whose slices are many."""
    return item.seen if item.picture.ndim == 3 else item.picture
