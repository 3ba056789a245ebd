"""Pixels, boxes and masks move by one frame each, and what is marked in a file is found there again."""

import numpy as np
import pytest
import torch

from regard.data.objects import Composer, ObjectDataset, ObjectImages, Objects, place
from regard.data.scanner import scan
from regard.data.source import Pixels, Sample, Source
from regard.geometry import Frame, TokenMap
from regard.image_groups import ObjectAugment
from regard.nn.boxes import to_corners

SHAPES = ((60, 90), (84, 50), (64, 64), (40, 100), (71, 53))
SIZE = (96, 128)
STILL = ObjectAugment(flip=False, scale_low=1, scale_high=1, crop_share=0, mosaic=0, mixup=0, colour=0)
KINDS = {
    "still": STILL,
    "flip": ObjectAugment(flip=True, scale_low=1, scale_high=1, crop_share=0),
    "scale": ObjectAugment(flip=False, scale_low=0.4, scale_high=2.5, crop_share=0),
    "crop": ObjectAugment(flip=True, scale_low=0.5, scale_high=1.5, crop_share=1),
    "mosaic": ObjectAugment(flip=True, mosaic=1),
    "mixup": ObjectAugment(flip=True, mixup=1),
}


def marked(seed: int = 0) -> ObjectDataset:
    """Black pictures with one filled rectangle each, which is its object; its outline is the same."""
    draw, arrays, objects = np.random.default_rng(seed), [], []
    for height, width in SHAPES:
        left, top = int(draw.integers(0, width - 24)), int(draw.integers(0, height - 24))
        right, bottom = left + int(draw.integers(9, 24)), top + int(draw.integers(9, 24))
        pixels = np.zeros((3, height, width), dtype=np.uint8)
        pixels[:, top:bottom, left:right] = 255
        arrays.append(pixels)
        outline = [[[left, top, right, top, right, bottom, left, bottom]]]
        objects.append(Objects.of([[left, top, right, bottom]], [len(objects)], segments=outline))
    samples = tuple(Sample(str(n), n) for n in range(len(SHAPES)))
    source = Source("marked", "arrays", "made", tuple("abcde"), samples, Pixels(arrays))
    return ObjectDataset(**vars(scan(source)), objects=objects, class_ids=(0, 1, 2, 3, 4))


def varied(config: ObjectAugment, seed: int = 0, **more) -> ObjectImages:
    dataset = marked(seed)
    boxes = [item.boxes for item in dataset.objects]
    composer = Composer(config, seed, dataset.shapes, boxes, range(len(SHAPES)))
    return ObjectImages(dataset, [SIZE, (128, 96)], 3, 8, composer=composer, **more)


def lit(image: torch.Tensor, region, level: float) -> list[int] | None:
    """The box of the pixels of a region that are brighter than a level, by looking at them."""
    (top, height), (left, width) = ((int(a), int(b)) for a, b in region)
    seen = image[0, top : top + height, left : left + width] > level
    if not seen.any():
        return None
    rows, columns = seen.any(1).nonzero()[:, 0], seen.any(0).nonzero()[:, 0]
    return [left + int(columns[0]), top + int(rows[0]), left + int(columns[-1]) + 1, top + int(rows[-1]) + 1]


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_are_where_the_warped_pixels_are(kind):
    """The oracle is the picture: the bounding box of what is bright in it."""
    images, seen = varied(KINDS[kind]), 0
    for epoch in range(12):
        for number in range(len(SHAPES)):
            composition = images.composition(epoch, number, number % 2)
            boxes, labels, chosen = images.targets(composition)
            image = composition.image(images.read, lambda x, size: torch.nn.functional.interpolate(
                x[None].float(), size=size, mode="bilinear", antialias=True)[0])  # fmt: skip
            assert len(boxes) == sum(map(len, chosen)) == len(labels)
            owners = [(owner, frame) for (owner, frame), own in zip(composition.all, chosen, strict=True) for _ in own]
            for box, label, (owner, frame) in zip(boxes.tolist(), labels.tolist(), owners, strict=True):
                assert label == owner
                if composition.blended:
                    continue  # two pictures in one: looked at below
                bright = lit(image, frame.filled, 127)
                assert bright is not None
                np.testing.assert_allclose(box, bright, atol=1.01)
                seen += 1
    assert seen > 40 or kind == "mixup"


def test_mixup_shows_both_pictures_at_half_their_brightness():
    images = varied(KINDS["mixup"])
    for number in range(len(SHAPES)):
        composition = images.composition(1, number, 0)
        assert composition.blended
        image = images[1, number, 0].image[0]
        one, other = (torch.zeros_like(image) for _ in range(2))
        for canvas, (owner, frame) in ((one, composition.parts[0]), (other, composition.blended)):
            left, top, right, bottom = (
                frame.boxes_to_input(images.dataset.objects[owner].boxes)[0].round().int().clamp_min(0).tolist()
            )
            canvas[:, top:bottom, left:right] = 255
            height, width = composition.filled
            canvas[:, height:], canvas[:, :, width:] = 0, 0
        away = (image.float() - (one.float() + other.float()) / 2).abs()
        assert float((away > 80).float().mean()) < 0.03, "but for the blurred edges"


@pytest.mark.parametrize("kind", KINDS)
def test_a_marked_corner_comes_back_to_its_pixel(kind):
    """File → input → augmentation → target → grid of the network → prediction → file."""
    images, back = varied(KINDS[kind], seed=3), 0
    for epoch in range(6):
        for number in range(len(SHAPES)):
            composition = images.composition(epoch, number, 0)
            sample = images[epoch, number, 0]
            height, width = composition.filled
            assert sample.filled.tolist() == [[height, width]]
            targets = sample.boxes[0][sample.labels[0] >= 0]
            predicted = to_corners(targets) * torch.tensor([width, height, width, height])  # a perfect prediction
            boxes, labels, _ = images.targets(composition)
            torch.testing.assert_close(predicted, boxes, atol=1e-3, rtol=0)
            for (owner, frame), (box, label) in product_of(composition.all, zip(boxes, labels.tolist(), strict=True)):
                whole = frame.boxes_to_input(images.dataset.objects[owner].boxes)[0]
                if owner != label or not torch.allclose(whole, box, atol=1e-4):
                    continue  # of another picture, or clipped
                grid = TokenMap(grid=(12, 16), cell=(8, 8), size=SIZE)
                corner = box[:2]  # the top left on the input, top right in the file if mirrored
                cells = torch.zeros(grid.grid)
                row, column = (min(int(x // 8), n - 1) for x, n in zip((corner[1], corner[0]), grid.grid, strict=True))
                cells[row, column] = 1
                heat = frame.map_to_file(grid.paint(cells.flatten()))
                left, top, right, _ = images.dataset.objects[owner].boxes[0].int().tolist()
                x = right - 1 if frame.mirrored else left
                assert heat[top, x] > 0, "the cell covers the corner in the file"
                back += 1
    assert back > 10


def product_of(parts, rows):
    rows = list(rows)
    return [(part, row) for part in parts for row in rows]


@pytest.mark.parametrize("kind", ["still", "flip", "crop", "mosaic"])
def test_masks_move_with_the_pixels(kind):
    images = varied(KINDS[kind], masks=True)
    for epoch in range(4):
        sample = images[epoch, 1, 1]
        assert sample.masks is not None
        masks, labels = sample.masks[0], sample.labels[0]
        assert masks.shape == (8, 32, 24)
        assert not masks[labels < 0].any()
        union = masks.any(0).float().repeat_interleave(4, 0).repeat_interleave(4, 1)
        for n in range(int((labels >= 0).sum())):
            ys, xs = masks[n].nonzero().unbind(1)
            scale = torch.tensor([sample.filled[0, 1], sample.filled[0, 0]] * 2)
            found = torch.stack((xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)) * 4
            torch.testing.assert_close(found.float(), to_corners(sample.boxes[0, n]) * scale, atol=4.0, rtol=0)
        dropped = images.targets(images.composition(epoch, 1, 1))[0].shape[0] < 1
        assert dropped or float(((sample.image[0, 0] > 127) & (union > 0)).sum()) > 0.5 * float(union.sum())


def test_run_length_codes_are_outlines_too():
    from faster_coco_eval import mask

    dataset = marked()
    want = dataset.outlines(1)
    code = mask.encode(np.asfortranarray(want[0].numpy().astype(np.uint8)))
    flat = want[0].T.flatten().int().tolist()
    runs, last = [], 0
    for value in [*flat, 2]:
        if not runs or value != last:
            runs.append(0) if runs or value == 0 else runs.extend([0, 0])
            last = value
        runs[-1] += 1
    for counts in (code["counts"], code["counts"].decode(), runs[:-1]):
        item = dataset.objects[1]
        dataset.objects[1] = Objects(
            item.boxes, item.labels, item.crowd, item.area, [{"size": [84, 50], "counts": counts}]
        )
        assert torch.equal(dataset.outlines(1), want)


def test_crops_keep_an_object_and_drop_what_is_hardly_seen():
    images = varied(KINDS["crop"])
    kept = [len(images.targets(images.composition(epoch, 0, 0))[0]) for epoch in range(40)]
    assert sum(kept) > 32, "crops are made around an object"
    item = images.dataset.objects[0]
    left, top, right, bottom = item.boxes[0].tolist()
    images.dataset.objects[0] = Objects.of([[left, top, right, bottom], [0, top, right, bottom]], [0, 1])
    frame = Frame(SHAPES[0], SIZE, ((0, 60), (left, right - left)), ((0, 96), (0, 30)))
    from regard.data.objects.composing import Composition

    boxes, labels, _ = images.targets(Composition(SIZE, (96, 30), ((0, frame),)))
    share = (right - left) / right
    assert labels.tolist() == ([0, 1] if share >= 0.3 else [0])
    assert boxes[:, 0].min() == 0
    assert boxes[:, 2].max() == 30


def test_an_image_is_placed_at_the_top_left_with_its_proportions():
    ramp = torch.arange(60.0).reshape(1, 1, 60).expand(3, 30, 60) / 60
    image, frame = place(ramp, (40, 40))
    assert frame.filled == ((0, 20), (0, 40))
    assert not image[:, 20:].any()
    torch.testing.assert_close(image[0, 0, 1:-1], (torch.arange(1, 39) + 0.5) * 1.5 / 60 - 0.5 / 60, atol=5e-3, rtol=0)
    box = torch.tensor([6.0, 3.0, 30.0, 21.0])
    torch.testing.assert_close(frame.boxes_to_input(box), box / 1.5)


def test_a_mirrored_region_is_resampled_both_ways():
    frame = Frame((6, 8), (12, 20), ((0, 6), (2, 6)), ((2, 6), (4, 12)), mirrored=True)
    field = torch.rand(6, 8)
    there = frame.mask_to_input(field)
    want = torch.zeros(12, 20)
    want[2:8, 4:16] = field[:, 2:].flip(1).repeat_interleave(2, 1)
    torch.testing.assert_close(there, want)
    torch.testing.assert_close(frame.nearest(field), want)
    back = frame.map_to_file(there)
    torch.testing.assert_close(back[:, 2:], field[:, 2:])
    assert not back[:, :2].any()
