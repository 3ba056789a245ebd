"""Batches are the same whoever loads them."""

import itertools
import multiprocessing
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from regard.data import Augmenter, Images, Loader, Preparation, fit, open_source, scan, statistics, with_channels
from regard.data.feed import ImageFeed
from regard.data.fitting import random_crop, simple_crop
from regard.errors import DataError
from regard.image_groups import Augment
from tests.conftest import make_folder


def batches(root, workers, crop, cached):
    found = scan(open_source(root))
    if not cached:
        found.cache.clear()
    loader = Loader(Images(found, (12, 10), 3, crop=crop, seed=4), list(range(24)), 5, shuffle=4, workers=workers)
    return [batch for epoch in (0, 1) for batch in loader.epoch(epoch)]


@pytest.mark.parametrize("crop", ["none", "resized", "simple"])
def test_workers_and_memory_change_nothing(picture_folder, crop):
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    expected = batches(picture_folder, 0, crop, cached=True)
    for workers, cached in ((0, False), (1, False), (2, False), (2, True)):
        got = batches(picture_folder, workers, crop, cached)
        for x, y in zip(expected, got, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(x[:3], y[:3], strict=True))
            assert x.steps == y.steps
    assert torch.equal(torch.random.get_rng_state(), before)


def test_reading_goes_on_into_the_next_epoch_and_begins_anew_anywhere_else(picture_folder, monkeypatch):
    """Epochs in a row are read in one pass; one left half-way, repeated or begun in its middle gets a new pass."""
    found, passes, begin = scan(open_source(picture_folder)), [], DataLoader.__iter__
    found.cache.clear()
    images = Images(found, (12, 10), 3, crop="resized", seed=4)
    ahead, plain = (Loader(images, list(range(24)), 5, shuffle=4, workers=workers) for workers in (2, 0))
    monkeypatch.setattr(DataLoader, "__iter__", lambda loader: (passes.append(1), begin(loader))[1])
    order = [(0, 0, 5, 1), (1, 0, 5, 1), (2, 0, 2, 1), (3, 0, 5, 2), (3, 0, 5, 3), (4, 10, 3, 4), (5, 0, 5, 4)]
    for epoch, start, count, passed in order:
        got, expected = [], list(plain.epoch(epoch, start=start))
        for batch in ahead.epoch(epoch, start=start):
            got.append(batch)
            if len(got) == count < len(expected):
                break
        assert len(passes) == passed
        for x, y in zip(expected[:count], got, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(x[:3], y[:3], strict=True))
    ahead.close()


def test_closing_ends_the_workers_at_once(picture_folder):
    data = scan(open_source(picture_folder))
    data.cache.clear()
    before = set(multiprocessing.active_children())
    loader = Loader(Images(data, (12, 10), 3), list(range(24)), 5, shuffle=4, workers=2)
    half_read: Any = loader.epoch(0)
    next(half_read)
    assert len(set(multiprocessing.active_children()) - before) == 2
    loader.close()
    assert not set(multiprocessing.active_children()) - before
    half_read.close()


def test_images_made_ahead_are_those_made_when_asked_for(picture_folder):
    """Whichever epoch follows, wherever it begins and whether or not the one before was read to its end."""
    images = Images(scan(open_source(picture_folder)), (12, 10), 3)
    settings = Augment(crop="shift", flip=True, policy="trivial", mixup=0.5)

    def feed(early):
        augment = Augmenter(settings, 0, (0.5,) * 3, (0.25,) * 3, 3, low_res=2, window=(8, 6))
        made = ImageFeed(Loader(images, list(range(24)), 5, shuffle=4), augment, torch.device("cpu"))
        assert not made.early  # on a CPU
        made.early = early
        return made

    ahead, plain = feed(True), feed(False)
    for epoch, start, count in (
        (1, 0, 5),
        (2, 0, 5),
        (3, 0, 2),
        (4, 0, 5),
        (4, 0, 5),
        (5, 10, 3),
        (6, 0, 5),
        (7, 24, 0),
    ):
        expected = list(plain.epoch(epoch, start, iter))
        got = list(itertools.islice(ahead.epoch(epoch, start, iter), count))
        for ours, theirs in zip(got, expected[:count], strict=True):
            assert torch.equal(ours.inputs["image"], theirs.inputs["image"])
            assert ours.inputs["image"].shape[2:] == ((8, 6) if epoch <= 2 else (12, 10))
            assert torch.equal(ours.targets["probabilities"], theirs.targets["probabilities"])
            assert (ours.numbers, ours.share, ours.total) == (theirs.numbers, theirs.share, theirs.total)
    assert ahead.next
    assert not plain.next


def test_each_epoch_is_a_new_order_of_every_sample(picture_folder):
    all_batches = batches(picture_folder, 0, "none", True)
    first, second = (torch.cat([b.numbers for b in part]) for part in (all_batches[:5], all_batches[5:]))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(24))
    assert first.tolist() != second.tolist()


def test_fit_covers_and_cuts_the_centre():
    image = torch.zeros(1, 10, 30)
    image[:, :, 10:20] = 1.0
    assert torch.equal(fit(image, (10, 10)), torch.ones(1, 10, 10))
    assert fit(torch.zeros(3, 7, 5), (16, 24)).shape == (3, 16, 24)
    assert fit(torch.zeros(1, 5, 6, 7), (4, 8, 8)).shape == (1, 4, 8, 8)
    with pytest.raises(DataError, match="axes"):
        fit(torch.zeros(1, 5, 5), (4, 4, 4))


def test_the_simple_crop_is_a_window_of_the_mirrored_picture():
    image = torch.arange(2 * 20 * 30, dtype=torch.float32).reshape(2, 20, 30) / 1200
    mirrored = torch.nn.functional.pad(image, (4, 4, 4, 4), mode="reflect")  # (2, 28, 38)
    starts = set()
    for down, right in ((0.0, 0.0), (0.5, 0.5), (0.999, 0.999)):
        got = simple_crop(image, (20, 20), np.array([0, 0, down, right, 0]))
        row, column = int(down * 9), int(right * 19)
        assert torch.equal(got, mirrored[:, row : row + 20, column : column + 20])
        starts.add((row, column))
    assert starts == {(0, 0), (4, 9), (8, 18)}
    scaled = simple_crop(image, (40, 40), np.full(5, 0.5))
    torch.testing.assert_close(scaled, fit(image, (40, 40)), atol=1e-3, rtol=0)  # which cuts before it scales


def test_eight_bits_stay_eight_bits_when_resized():
    image = torch.randint(0, 255, (3, 9, 9), dtype=torch.uint8)
    resized = fit(image, (5, 5))
    assert resized.dtype == torch.uint8
    assert (resized.float() - fit(image.float() / 255, (5, 5)) * 255).abs().max() <= 0.5 + 1e-3


def test_crops_for_training_are_within_a_level_of_exact_ones():
    image, u = torch.randint(0, 255, (3, 40, 50), dtype=torch.uint8), np.array([0.4, 0.3, 0.5, 0.6, 0])
    for crop in (random_crop, simple_crop):
        quick, exact = crop(image, (24, 24), u), crop(image.float() / 255, (24, 24), u) * 255
        assert quick.dtype == torch.uint8
        assert (quick.float() - exact).abs().max() < 1.01


def test_channels():
    grey, colour = torch.rand(1, 4, 4), torch.rand(3, 4, 4)
    assert torch.equal(with_channels(grey, 3), grey.expand(3, 4, 4))
    expected = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
    torch.testing.assert_close(with_channels(colour, 1)[0], expected)
    with pytest.raises(DataError, match="4 channels"):
        with_channels(torch.rand(4, 2, 2), 3)


def test_statistics_are_those_of_the_training_pixels(tmp_path):
    found = scan(open_source(make_folder(tmp_path / "x")))
    images = Images(found, (20, 20), 3)
    mean, std = statistics(images, list(range(12)))
    pixels = torch.stack([found.cache[i] for i in range(12)]).float() / 255
    torch.testing.assert_close(torch.tensor(mean), pixels.mean((0, 2, 3)), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(std), pixels.std((0, 2, 3)), atol=1e-3, rtol=0)
    prepared = torch.cat([Preparation((20, 20), 3, mean, std)(found.cache[i]) for i in range(12)])
    torch.testing.assert_close(prepared.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)


def test_a_thin_strip_is_not_blown_up_before_it_is_cut(monkeypatch):
    largest, original = [], torch.nn.functional.interpolate

    def watched(x, **options):
        largest.append(max(x.numel(), 3 * options["size"][0] * options["size"][1]))
        return original(x, **options)

    monkeypatch.setattr("regard.data.fitting.F.interpolate", watched)
    assert fit(torch.rand(3, 1, 60_000), (224, 224)).shape == (3, 224, 224)
    assert max(largest) <= 3 * 224 * 224


def test_random_crops_have_the_aspect_of_the_input_not_of_the_picture():
    from regard.data.random import uniforms

    rows = torch.linspace(0, 1, 100)[None, :, None].expand(1, 100, 200)
    columns = torch.linspace(0, 2, 200)[None, None, :].expand(1, 100, 200)
    aspects = []
    for u in uniforms(0, 0, np.arange(300), 5):
        cut = random_crop(torch.cat([rows, columns]), (32, 32), u)
        height, width = (cut[n].max() - cut[n].min() for n in (0, 1))
        aspects.append((height / width).item())
    assert 0.7 < np.median(aspects) < 1.2
    assert np.quantile(aspects, 0.05) > 0.5
    assert np.quantile(aspects, 0.95) < 1.5
