"""One map from many masks: as the paper says, pixel by pixel."""

import numpy as np
import torch
from PIL import Image

from regard.tasks.panoptic.merging import merge_masks, nearest

THINGS = (True, True, False, False)


def slowly(masks, scores, labels, threshold, smallest):
    """The paper's words: filter by confidence, argmax per pixel, collapse stuff of a class, drop what is empty."""
    left = [q for q in range(len(scores)) if scores[q] > threshold]
    while True:
        owned = {}
        for y in range(masks.shape[1]):
            for x in range(masks.shape[2]):
                if left:
                    best = max(left, key=lambda q: (masks[q, y, x].item(), -q))
                    label = labels[best].item()
                    owned.setdefault(("thing", best) if THINGS[label] else ("stuff", label), set()).add((y, x))
        named = [(("thing", q) if THINGS[labels[q]] else ("stuff", labels[q].item())) for q in left]
        small = {name for name in named if len(owned.get(name, ())) <= smallest}
        if not small:
            return owned
        left = [q for q, name in zip(left, named, strict=True) if name not in small]


def test_merging_is_the_papers_on_drawn_masks():
    merged_stuff = dropped = 0
    for seed in range(40):
        draw = torch.Generator().manual_seed(seed)
        coarse = torch.randn(1, 8, 3, 3, generator=draw) * 3
        masks = torch.nn.functional.interpolate(coarse, (9, 7), mode="bilinear")[0]
        scores, labels = torch.rand(8, generator=draw), torch.randint(0, 4, (8,), generator=draw)
        made = merge_masks(masks, scores, labels, THINGS, threshold=0.4, smallest=4)
        expected = slowly(masks, scores, labels, 0.4, 4)
        detections = {}
        for number, (label, queries) in enumerate(zip(made.labels, made.queries, strict=True), start=1):
            name = ("thing", queries[0]) if THINGS[label] else ("stuff", label)
            detections[name] = {(int(y), int(x)) for y, x in (made.ids == number).nonzero()}
            merged_stuff += len(queries) > 1
            assert made.scores[number - 1] == scores[queries].max()
        assert detections == expected
        assert bool((made.ids > 0).all()) == bool(expected)
        dropped += len(expected) < len({(q if THINGS[k] else -k) for q, k in enumerate(labels.tolist())
                                        if scores[q] > 0.4})  # fmt: skip
    assert min(merged_stuff, dropped) > 5


def test_nothing_sure_enough_is_an_empty_map():
    made = merge_masks(torch.zeros(3, 4, 4), torch.full((3,), 0.85), torch.zeros(3, dtype=torch.long), THINGS, (8, 6))
    assert made.ids.shape == (8, 6)
    assert not made.ids.any()
    assert made.labels == []


def test_a_map_is_resized_as_pillow_does():
    ids = torch.randint(0, 9, (6, 8))
    for size in ((12, 16), (3, 4), (30, 24)):
        height, width = size
        theirs = Image.fromarray(ids.numpy().astype(np.uint8)).resize((width, height), Image.Resampling.NEAREST)
        assert (nearest(ids, size).numpy() == np.asarray(theirs)).all()
