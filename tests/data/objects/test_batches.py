"""Batches of a few sizes: the same for any number of workers and processes, and resumed where they stopped."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from regard.data.objects import (
    Composer,
    ObjectFeed,
    ObjectImages,
    ObjectLoader,
    Objects,
    bucket_of,
    choose_buckets,
    target_slots,
)
from regard.data.source import Files
from regard.errors import ConfigError, DataError
from regard.image_groups import ObjectAugment
from regard.nn.boxes import to_corners
from tests.data.objects.scenes import BOXES, opened, write_coco

AUGMENT = ObjectAugment(mosaic=0.5, mixup=0.3, crop_share=0.5)
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    root = tmp_path_factory.mktemp("boxes")
    write_coco(root, count=14)
    return opened(root)


def composer_of(dataset, augment, **more) -> Composer:
    boxes = [item.boxes[item.targets] for item in dataset.objects]
    return Composer(augment, 5, dataset.shapes, boxes, range(len(dataset)), **more)


def feed(dataset, augment: ObjectAugment | None = AUGMENT, batch=4, masks=False, **more) -> ObjectFeed:
    index = range(len(dataset))
    buckets = choose_buckets([dataset.shapes[n] for n in index], (128, 128))
    composer = composer_of(dataset, augment) if augment else None
    slots = target_slots(dataset, index, 20, augment)
    images = ObjectImages(dataset, buckets, 3, slots, composer=composer, masks=masks)
    loader = ObjectLoader(images, index, batch, shuffle=5 if augment else None, **more)
    return ObjectFeed(loader, MEAN, STD, torch.device("cpu"), augment, seed=5)


def tensors(batch):
    return {**batch.inputs, **batch.targets}


def by_sample(batches) -> dict[int, dict[str, torch.Tensor]]:
    held = [(n, {name: t[row] for name, t in tensors(b).items()}) for b in batches for row, n in enumerate(b.numbers)]
    assert len({n for n, _ in held}) == len(held), "each sample once"
    return dict(held)


def test_batches_have_a_few_sizes_and_evaluation_is_plain(dataset):
    evaluated = feed(dataset, augment=None, batch=3, masks=True)
    buckets = evaluated.loader.images.buckets
    assert buckets == ((96, 128), (128, 96), (128, 128))
    batches = list(evaluated.epoch(0))
    assert len(batches) == len(evaluated)
    for batch in batches:
        (size,) = {tuple(batch.inputs["image"].shape[2:])}
        assert size in buckets
        for row, number in enumerate(batch.numbers):
            height, width = dataset.shapes[number]
            assert buckets[bucket_of((height, width), buckets)] == size
            mask, image = batch.inputs["mask"][row], batch.inputs["image"][row]
            assert not image[:, ~mask].any()
            filled = int(mask.any(1).sum()), int(mask.any(0).sum())
            assert int(mask.sum()) == filled[0] * filled[1]
            assert filled[0] / filled[1] == pytest.approx(height / width, rel=0.05)
            boxes = to_corners(batch.targets["boxes"][row, :2]) * torch.tensor([width, height] * 2)
            torch.testing.assert_close(boxes, torch.tensor([box for box, _ in BOXES]).float(), atol=1e-3, rtol=0)
            assert batch.targets["labels"][row].tolist() == [0, 1] + [-1] * 6
            assert batch.targets["masks"].shape == (len(batch), 8, size[0] // 4, size[1] // 4)
    assert sorted(n for b in batches for n in b.numbers) == list(range(14))
    others = by_sample(feed(dataset, augment=None, batch=5).epoch(0))
    for number, own in by_sample(batches).items():
        assert all(torch.equal(own[name], t) for name, t in others[number].items()), "whatever the batch"


def test_only_one_training_batch_per_epoch_is_smaller(dataset):
    trained = feed(dataset)
    for epoch in (1, 2):
        lengths = sorted(map(len, trained.epoch(epoch)))
        assert lengths == [2, 4, 4, 4], "of 5, 5 and 4 images of three sizes"
        assert len(trained) == 4
    assert trained.loader.order.plan(1)[0][1].tolist() != trained.loader.order.plan(2)[0][1].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_neither_workers_nor_memory_nor_resuming_change_a_batch(dataset, workers):
    whole = list(feed(dataset, masks=True).epoch(3))
    uncached = replace(dataset, cache={})
    assert isinstance(uncached.source.reader, Files)
    other = feed(uncached, masks=True, workers=workers)
    for start in (0, 4, 8):
        rest = list(other.epoch(3, start))
        done = 0
        for batch in whole:
            if done >= start:
                again = rest.pop(0)
                assert again.numbers == batch.numbers
                assert again.total == len(batch)
                assert all(torch.equal(a, tensors(again)[name]) for name, a in tensors(batch).items())
            done += batch.total
        assert not rest
    other.close()


def test_a_started_batch_is_resumed_with_the_rest_of_it(dataset):
    whole, rest = list(feed(dataset).epoch(2)), list(feed(dataset).epoch(2, 5))
    numbers = [n for batch in whole for n in batch.numbers]
    assert [n for batch in rest for n in batch.numbers] == numbers[5:]


def test_processes_divide_each_batch(dataset):
    alone = list(feed(dataset).epoch(1))
    parts = [list(feed(dataset, rank=rank, ranks=2).epoch(1)) for rank in range(2)]
    for batch, first, second in zip(alone, *parts, strict=True):
        own = [part for part in (first, second) if part.share]
        assert [n for part in own for n in part.numbers] == batch.numbers
        assert sum(part.share for part in own) == pytest.approx(1)
        for name, tensor in tensors(batch).items():
            torch.testing.assert_close(torch.cat([tensors(part)[name] for part in own]), tensor)


def test_epochs_and_seeds_differ_and_samples_do_not_depend_on_their_batch(dataset):
    images = feed(dataset).loader.images
    one, again = images[1, 3, 0], images[1, 3, 0]
    assert torch.equal(one.image, again.image)
    assert not torch.equal(one.image, images[2, 3, 0].image)
    off = composer_of(dataset, AUGMENT, mixed=1)
    assert any(len(off(1, n, (64, 64)).all) > 1 for n in range(14))
    assert all(len(off(2, n, (64, 64)).all) == 1 for n in range(14)), "neither mosaics nor mixup at the end"


def test_colours_vary_within_bounds_and_padding_stays_zero(dataset):
    plain = ObjectAugment(flip=False, scale_low=1, scale_high=1, crop_share=0, colour=0)
    still, coloured = (next(iter(feed(dataset, a).epoch(1))) for a in (plain, replace(plain, colour=0.4)))
    assert still.numbers == coloured.numbers
    assert not torch.equal(still.inputs["image"], coloured.inputs["image"])
    assert torch.equal(still.targets["boxes"], coloured.targets["boxes"])
    assert not coloured.inputs["image"].permute(0, 2, 3, 1)[~coloured.inputs["mask"]].any()


def test_buckets_follow_the_proportions_of_the_data():
    assert choose_buckets([(480, 640)] * 5, (640, 640)) == ((480, 640),)
    assert choose_buckets([(480, 640)] * 5, (800, 1333)) == ((800, 1088),)
    assert choose_buckets([(480, 640), (640, 480)], (640, 640)) == ((480, 640), (640, 480))
    many = [(100, 100 + 10 * n) for n in range(20)] + [(150, 100)] * 7
    chosen = choose_buckets(many, (320, 320), most=3)
    assert len(chosen) == 3
    for height, width in chosen:
        assert height % 32 == width % 32 == 0
        assert max(height, width) == 320
    padded = [bucket_of(shape, chosen) for shape in many]
    assert len(set(padded)) == 3
    assert choose_buckets([], (64, 64)) == ((64, 64),)


def test_targets_are_capped_and_crowds_left_out(dataset):
    boxes = [[n, n, n + 8, n + 10 + n % 3] for n in range(12)]
    crowded = replace(dataset, objects=[Objects.of(boxes, [0] * 12, [n == 4 for n in range(12)])] * len(dataset))
    assert target_slots(crowded, range(14), 100) == 16
    assert target_slots(crowded, range(14), 100, AUGMENT) == 56
    assert target_slots(crowded, range(14), 9) == 9
    loader = feed(crowded, augment=None).loader
    loader.images.slots = 6
    assert len(loader.crowded) == 14
    sample = loader.images[0, 0, 0]
    assert (sample.labels >= 0).all()
    areas = sample.boxes[0, :, 2:].prod(1)
    assert float(areas.min()) >= sorted(np.array([(b[2] - b[0]) * (b[3] - b[1]) for b in boxes]))[5] / 1200 - 1e-6
    everything = feed(crowded, augment=None).loader.images[0, 0, 0]
    assert int((everything.labels >= 0).sum()) == 11


def test_masks_that_the_data_does_not_have_are_refused(dataset):
    bare = replace(dataset, objects=[replace(item, segments=None) for item in dataset.objects])
    with pytest.raises(ConfigError, match="objects without outlines"):
        feed(bare, masks=True)
    item = dataset.objects[0]
    wrong = replace(item, segments=[{"size": [30, 40], "counts": "zz"}] * 2)
    with pytest.raises(DataError, match="an outline cannot be read"):
        replace(dataset, objects=[wrong]).outlines(0)
