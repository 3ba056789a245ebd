"""Augmentation is a function of (seed, epoch, sample) alone, and does what its name says."""

import numpy as np
import pytest
import torch

import regard
from regard import tasks
from regard.console import Progress
from regard.data import Augmenter
from regard.data.augment import _operations, _theta, _warp, centre_crop, erase, mix, move, vary
from regard.data.random import order, uniforms
from regard.data.three import jitter, three_augment
from regard.errors import ConfigError
from regard.geometry import three_quarters
from regard.image_groups import Augment
from regard.run.runner import prepare
from regard.run.settle import settle
from regard.task import Job
from regard.tasks.images import ImageTask
from tests.data.augmented import augmented

IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (12, 3, 16, 16), dtype=np.uint8))
LABELS, NUMBERS = torch.arange(12) % 3, torch.arange(100, 112)
STRONG = {
    "shift": Augment(crop="shift", flip=True),
    "turn": Augment(rotate=20, zoom=0.2, flip=True),
    "rand": Augment(policy="rand"),
    "trivial": Augment(policy="trivial"),
    "three": Augment(policy="three"),
    "erase": Augment(erase=0.7),
    "all": Augment(crop="shift", rotate=10, zoom=0.1, flip=True, policy="trivial", erase=0.5),
}


def augmenter(config: Augment, seed: int = 0) -> Augmenter:
    return Augmenter(config, seed, (0.5,) * 3, (0.25,) * 3, 3)


@pytest.mark.parametrize("kind", STRONG)
def test_a_sample_is_augmented_the_same_in_any_batch_and_order(kind):
    run = augmenter(STRONG[kind])
    whole, _ = augmented(run, IMAGES, LABELS, NUMBERS, epoch=3, step=0)
    shuffled = torch.tensor([7, 2, 11, 0, 5])
    part, _ = augmented(run, IMAGES[shuffled], LABELS[shuffled], NUMBERS[shuffled], epoch=3, step=9)
    assert torch.equal(part, whole[shuffled])
    alone = torch.cat(
        [augmented(run, IMAGES[i : i + 1], LABELS[i : i + 1], NUMBERS[i : i + 1], 3, 5)[0] for i in range(12)]
    )
    assert torch.equal(alone, whole)


@pytest.mark.parametrize("kind", STRONG)
def test_seed_epoch_and_sample_each_matter(kind):
    base, _ = augmented(augmenter(STRONG[kind]), IMAGES, LABELS, NUMBERS, 1, 0)
    assert not torch.equal(base, augmented(augmenter(STRONG[kind]), IMAGES, LABELS, NUMBERS, 2, 0)[0])
    assert not torch.equal(base, augmented(augmenter(STRONG[kind], 1), IMAGES, LABELS, NUMBERS, 1, 0)[0])
    assert not torch.equal(base, augmented(augmenter(STRONG[kind]), IMAGES, LABELS, NUMBERS + 50, 1, 0)[0])


def test_the_global_generator_is_neither_used_nor_moved():
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first, _ = augmented(augmenter(STRONG["all"]), IMAGES, LABELS, NUMBERS, 0, 0)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(99)
    assert torch.equal(first, augmented(augmenter(STRONG["all"]), IMAGES, LABELS, NUMBERS, 0, 0)[0])


def test_nothing_on_only_normalises():
    x, targets = augmented(augmenter(Augment()), IMAGES, LABELS, NUMBERS, 0, 0)
    torch.testing.assert_close(x, (IMAGES.float() / 255 - 0.5) / 0.25)
    assert torch.equal(targets.argmax(1), LABELS)


def test_an_image_is_mirrored_every_other_time():
    torch.manual_seed(0)
    images, numbers = torch.rand(64, 3, 8, 8), torch.arange(64)
    run = Augmenter(Augment(flip=True), 0, (0.0,) * 3, (1.0,) * 3, 4)
    shown = torch.stack([run.images(images, numbers, epoch) for epoch in (1, 2, 3, 4)])
    torch.testing.assert_close(shown[1], shown[0].flip(-1), atol=1e-5, rtol=0)
    assert torch.equal(shown[:2], shown[2:])
    mirrored = (shown[0] - images).abs().amax((1, 2, 3)) > 1e-3
    assert 16 < int(mirrored.sum()) < 48


def test_shift_moves_whole_pixels_and_flip_mirrors():
    x = IMAGES.float() / 255
    config, u = Augment(crop="shift"), torch.full((12, 5), 0.5)
    assert torch.allclose(move(x, u, config), x, atol=1e-6)
    u[:, 3] = 0.999  # two pixels of sixteen along the width
    torch.testing.assert_close(move(x, u, config)[..., :-2], x[..., 2:], atol=1e-5, rtol=0)
    u = torch.full((12, 5), 0.4)
    torch.testing.assert_close(move(x, u, Augment(flip=True)), x.flip(-1), atol=1e-5, rtol=0)


def test_volumes_can_be_erased_but_not_given_a_picture_policy():
    x = torch.rand(2, 1, 8, 8, 8)
    assert (erase(x, torch.zeros(2, 6), 1.0) == 0).any()
    with pytest.raises(ConfigError, match="volumes"):
        Augmenter(Augment(policy="rand"), 0, (0.5,), (0.5,), 2).images(x, torch.arange(2), 0)


def test_erasing_takes_2_to_33_percent_of_the_chosen_share():
    u = torch.from_numpy(uniforms(0, 0, np.arange(2000), 6)).float()
    erased = (erase(torch.ones(2000, 1, 32, 32), u, 0.25) == 0).float().mean((1, 2, 3))
    touched = erased > 0
    assert touched.float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert erased[touched].min() > 0.01
    assert erased[touched].max() < 0.34


def test_mixup_mixes_images_and_targets_alike():
    x, targets = torch.eye(4).reshape(4, 1, 2, 2), torch.eye(4)
    mixed, soft = mix(x, targets, Augment(mixup=1.0), 0, 1, 2)
    torch.testing.assert_close(mixed.reshape(4, 4), soft)
    torch.testing.assert_close(soft.sum(1), torch.ones(4))
    again = mix(x, targets, Augment(mixup=1.0), 0, 1, 2)
    assert torch.equal(again[0], mixed)
    assert not torch.equal(mix(x, targets, Augment(mixup=1.0), 0, 1, 3)[1], soft)


def test_images_are_mixed_up_to_an_epoch():
    run = Augmenter(Augment(mixup=1.0), 0, (0.5,) * 3, (0.25,) * 3, 3, mixed=2)
    soft = [augmented(run, IMAGES, LABELS, NUMBERS, epoch, 0)[1] for epoch in (2, 3)]
    assert (soft[0].amax(1) < 1).any()
    assert torch.equal(soft[1], torch.eye(3)[LABELS])


def planned(dataset, **settings) -> Augmenter:
    """The augmenter of a run with these settings."""
    entry = tasks.find("classification")
    task = entry.load()
    config, origins, _ = settle(entry, task, dataset, {"model": "vit_nano"} | settings)
    made = task(Job(config, origins, dataset, task.split(dataset, config)[0]))
    assert isinstance(made, ImageTask)
    prepare(made, Progress(True))
    return made.augmenter()


def test_the_last_share_of_epochs_is_not_mixed(picture_folder):
    dataset = regard.check(picture_folder, quiet=True)
    assert [planned(dataset, epochs=10, mixup=0.2, mixup_off=share).mixed for share in (0.0, 0.3)] == [10, 7]


def test_the_first_share_of_epochs_sees_the_middle_of_what_was_moved(picture_folder):
    whole, run = augmenter(STRONG["shift"]), augmenter(STRONG["shift"])
    run.low_res, run.window = 2, (12, 8)
    for epoch in (1, 2, 3):
        full = whole.images(IMAGES, NUMBERS, epoch)
        expected = full if epoch == 3 else full[:, :, 2:14, 4:12]
        assert torch.equal(run.images(IMAGES, NUMBERS, epoch), expected)
    dataset, made = regard.check(picture_folder, quiet=True), []
    for low_res, epochs in ((0.0, 10), (0.3, 10), (0.9, 2), (0.9, 1)):
        one = planned(dataset, epochs=epochs, low_res=low_res, size=32, patch=5)
        made.append((one.low_res, one.window))
    assert made == [(n, (20, 20)) for n in (0, 3, 1, 0)]


def test_a_window_of_every_size_of_picture_and_volume_fits():
    assert three_quarters((8, 100), (16, 16)) == (8, 64)  # a side of half a patch
    assert three_quarters((32, 32, 20), (8, 8, 8)) == (24, 24, 16)
    assert centre_crop(torch.zeros(2, 1, 8, 100, 20), (8, 64, 16)).shape == (2, 1, 8, 64, 16)


def test_cutmix_targets_are_the_areas():
    x = torch.arange(4.0).reshape(4, 1, 1, 1).expand(4, 1, 8, 8).clone()
    for step in range(5):
        mixed, soft = mix(x, torch.eye(4), Augment(cutmix=1.0), 0, 0, step)
        for n in range(4):
            shares = torch.tensor([(mixed[n] == c).float().mean() for c in range(4)])
            torch.testing.assert_close(shares, soft[n])


def test_every_operation_of_the_policies_runs_and_those_with_strength_do_something():
    x = IMAGES[:1].float() / 255
    for name, (low, high, signed, operation) in _operations().items():
        out = operation(x, torch.tensor([float(high)])).clamp(0, 1)
        assert out.shape == x.shape
        assert torch.isfinite(out).all(), name
        if name not in ("autocontrast", "identity"):
            assert (out - x).abs().max() > 0.01, name
        if high != low and (signed or name in ("posterize", "solarize")):
            gentle = operation(x, torch.tensor([float(low)])).clamp(0, 1)
            assert (gentle - x).abs().max() < 0.02, f"{name} at level 0 changes the picture"


def test_uniforms_are_uniform_and_orders_are_permutations():
    u = uniforms(3, 7, np.arange(50_000), 4)
    assert u.min() >= 0
    assert u.max() < 1
    assert np.abs(u.mean(0) - 0.5).max() < 0.01
    assert np.abs(np.corrcoef(u.T) - np.eye(4)).max() < 0.02
    histogram = np.histogram(u[:, 0], 20)[0]
    assert ((histogram - 2500) ** 2 / 2500).sum() < 50
    index = np.arange(100, 200)
    first = order(0, 1, index)
    assert sorted(first) == index.tolist()
    assert (first != order(0, 2, index)).any()


def test_equalize_and_autocontrast_against_pillow():
    from PIL import Image, ImageOps

    images = torch.randint(30, 200, (4, 3, 24, 20), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    images[3] = 77  # one level: nothing to spread
    for name, theirs in (("equalize", ImageOps.equalize), ("autocontrast", ImageOps.autocontrast)):
        got = _operations()[name][3](images.float() / 255, torch.zeros(4)) * 255
        for image, ours in zip(images, got, strict=True):
            expected = np.asarray(theirs(Image.fromarray(image.permute(1, 2, 0).numpy()))).transpose(2, 0, 1)
            assert np.abs(ours.numpy() - expected).max() <= 1.0, name


def test_three_augment_against_pillow_and_scipy():
    from PIL import Image, ImageEnhance, ImageOps
    from scipy.ndimage import gaussian_filter

    still = torch.full((12, 6), 0.5)  # factors of one; order 3
    picture = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in IMAGES]

    def pixels(image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.asarray(image.convert("RGB")).copy()).permute(2, 0, 1).float() / 255

    x, near = IMAGES.float() / 255, {"atol": 1.01 / 255, "rtol": 0}
    for kind in range(3):
        u = still.clone()
        u[:, 0], u[:, 1] = (kind + 0.5) / 3, torch.linspace(0, 0.999, 12)
        got = three_augment(x, u)
        for n in range(12):
            if kind == 2:
                deviation = 0.1 + 1.9 * u[n, 1].item()
                blurred = gaussian_filter(x[n].double().numpy(), (0, deviation, deviation), mode="nearest", radius=6)
                torch.testing.assert_close(got[n].double(), torch.from_numpy(blurred), atol=1e-5, rtol=0)
            else:
                changed = (ImageOps.grayscale, ImageOps.solarize)[kind](picture[n])
                torch.testing.assert_close(got[n], pixels(changed), **near)
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for number, enhancer in enumerate(enhancers):
        factors = torch.ones(12, 3)
        factors[:, number] = torch.linspace(0.7, 1.3, 12)
        got = jitter(x, factors, torch.arange(12) % 6)
        for n in range(12):
            expected = pixels(enhancer(picture[n]).enhance(float(factors[n, number])))
            torch.testing.assert_close(got[n], expected, atol=2.01 / 255, rtol=0)


def test_the_order_of_colour_changes_matters_and_is_each_sample_s_own():
    x, factors = IMAGES[:1].float().expand(6, -1, -1, -1) / 255, torch.tensor([[1.3, 0.7, 1.3]]).expand(6, 3)
    every = jitter(x, factors, torch.arange(6))
    assert len({tuple(row.tolist()) for row in every.flatten(1)}) == 6
    assert torch.equal(jitter(x[:2], factors[:2], torch.tensor([4, 1])), every[[4, 1]])


def test_the_strength_of_randaugment_is_the_share_of_its_range():
    u = torch.tensor([[3.5 / 14, 0.0, 0.9, 0.5 / 14, 0.0, 0.0]])  # turn to the right, then nothing
    x = torch.rand(1, 3, 16, 16)
    turned = _warp(x, _theta(x, rotation=torch.deg2rad(torch.tensor([15.0])))).clamp(0, 1)
    torch.testing.assert_close(vary(x, u, "rand", 0.5), turned)
    assert torch.equal(vary(x, u, "rand", 0.0), _warp(x, _theta(x)).clamp(0, 1))


def test_turning_a_rectangle_by_90_degrees_moves_pixels_without_distortion():
    x = torch.rand(1, 1, 8, 16)
    turned = _warp(x, _theta(x, rotation=torch.tensor(np.pi / 2, dtype=torch.float32)))
    expected = x[..., 4:12].rot90(1, (2, 3))
    torch.testing.assert_close(turned[..., 4:12], expected, atol=1e-4, rtol=0)
