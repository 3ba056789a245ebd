"""Volumes are augmented by (seed, epoch, sample) alone, and each operation is what an independent formula says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from regard.data import Augmenter
from regard.data.augment import Augment
from regard.data.deform import CELLS, Deformation, draw_deformation
from regard.data.intensities import bias_field, contrast_curve, gaussian, vary_intensities
from regard.errors import ConfigError
from regard.image_groups import VOLUMES_ONLY

SIZE = (9, 12, 7)
SPACING = (1.0, 0.8, 2.5)
NUMBERS = torch.tensor([3, 40, 41, 7, 1000])
OFF = torch.device("cpu")
KINDS: dict[str, Augment] = {
    "affine": Augment(rotate=15, zoom=0.2, shift=0.1, flip_axes="x,y,z"),
    "elastic": Augment(elastic=0.08),
    "intensities": Augment(intensity_scale=0.3, intensity_shift=0.2, gamma=0.5, bias_field=0.4),
    "noise": Augment(noise=0.3),
    "all": Augment(rotate=10, zoom=0.1, shift=0.05, elastic=0.02, flip=True, gamma=0.2, bias_field=0.2, noise=0.1),
}


def volumes(count: int = 5, channels: int = 2) -> torch.Tensor:
    """Smooth random volumes in a border of zeros."""
    from scipy.ndimage import gaussian_filter

    draw = np.random.default_rng(0)
    inner = [gaussian_filter(draw.normal(size=tuple(s - 2 for s in SIZE)), 1) for _ in range(count * channels)]
    padded = np.pad(np.stack(inner), ((0, 0), (1, 1), (1, 1), (1, 1)))
    return torch.from_numpy(padded.reshape(count, channels, *SIZE)).float()


def augmenter(config: Augment, seed: int = 0, **more: Any) -> Augmenter:
    return Augmenter(config, seed, (0.1, 0.2), (0.5, 0.7), 2, spacing=SPACING, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_a_volume_is_augmented_the_same_in_any_batch_and_order(kind: str) -> None:
    run, x = augmenter(KINDS[kind]), volumes()
    whole = run.images(x, NUMBERS, 3)
    some = torch.tensor([4, 1, 2])
    assert torch.equal(run.images(x[some], NUMBERS[some], 3), whole[some])
    alone = torch.cat([run.images(x[n : n + 1], NUMBERS[n : n + 1], 3) for n in range(5)])
    assert torch.equal(alone, whole)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert torch.equal(run.images(x, NUMBERS, 3), whole)
    finally:
        torch.set_num_threads(threads)
    assert not torch.equal(run.images(x, NUMBERS, 4), whole)
    assert not torch.equal(run.images(x, NUMBERS + 1, 3), whole)
    assert not torch.equal(augmenter(KINDS[kind], 1).images(x, NUMBERS, 3), whole)


def test_strength_zero_is_the_identity_to_the_bit() -> None:
    x = volumes()
    zero = dict.fromkeys({"rotate", "zoom", *VOLUMES_ONLY} - {"flip_axes"}, 0.0)
    plain = augmenter(Augment()).images(x, NUMBERS, 1)
    assert torch.equal(augmenter(Augment(**zero)).images(x, NUMBERS, 1), plain)  # pyright: ignore[reportArgumentType]
    identity = Deformation(SIZE, torch.eye(3).expand(5, 3, 3), torch.zeros(5, 3), torch.zeros(5, 3, 7, 7, 7))
    assert torch.allclose(identity.apply(x), x, atol=1e-5)


def test_an_affine_map_is_that_of_scipy_in_millimetres() -> None:
    from scipy.ndimage import affine_transform
    from scipy.spatial.transform import Rotation

    config = Augment(rotate=20, zoom=0.2, shift=0.1)
    made = draw_deformation(config, 0, 1, NUMBERS, SIZE, SPACING, OFF)
    assert made is not None
    x, spacing, centre = volumes(), np.diag(SPACING), np.array(SIZE) / 2 - 0.5
    for n, matrix in enumerate(made.matrix.double().numpy()):
        in_mm = spacing @ matrix @ np.linalg.inv(spacing)
        scale = np.cbrt(np.linalg.det(in_mm))
        assert 0.8 <= scale <= 1.2
        assert np.allclose(in_mm / scale @ (in_mm / scale).T, np.eye(3), atol=1e-6), "a rotation, and one scale"
        angles = Rotation.from_matrix(in_mm / scale).as_euler("XYZ", degrees=True)
        assert (np.abs(angles) <= 20.01).all()
        offset = centre + made.shift[n].double().numpy() - matrix @ centre
        oracle = affine_transform(x[n, 0].double().numpy(), matrix, offset, order=1, mode="constant", cval=0)  # pyright: ignore[reportArgumentType]
        ours = made.apply(x)[n, 0].numpy()
        inside = (slice(1, -1),) * 3
        assert np.allclose(ours[inside], oracle[inside], atol=1e-4)


def test_an_elastic_field_is_scipys_cubic_spline_and_one_resampling() -> None:
    from scipy.interpolate import BSpline
    from scipy.ndimage import map_coordinates

    config = Augment(rotate=10, elastic=0.08)
    made = draw_deformation(config, 0, 1, NUMBERS, SIZE, SPACING, OFF)
    assert made is not None
    assert made.control is not None
    places = np.stack(np.meshgrid(*(np.arange(s) + 0.5 for s in SIZE), indexing="ij"))
    knots = np.arange(-3, CELLS + 4)
    basis = [BSpline.design_matrix((np.arange(s) + 0.5) * CELLS / s, knots, 3).toarray() for s in SIZE]
    x = volumes()
    for n in range(2):
        control = made.control[n].double().numpy()
        field = np.einsum("cijk,ai,bj,dk->cabd", control, *basis)
        assert np.abs(field).max() <= (0.08 * np.array(SIZE)).max()
        centre = np.array(SIZE).reshape(3, 1, 1, 1) / 2
        shift = made.shift[n].double().numpy().reshape(3, 1, 1, 1)
        source = np.einsum("ij,jabc->iabc", made.matrix[n].double().numpy(), places + field - centre) + centre + shift
        oracle = map_coordinates(np.pad(x[n, 1].double().numpy(), 1), source - 0.5 + 1, order=1)
        assert np.allclose(made.apply(x)[n, 1].numpy(), oracle, atol=1e-4)
    flat = torch.from_numpy(places.reshape(3, -1).T).expand(5, -1, -1)
    there = made.displacement(flat)[0].T.reshape(3, *SIZE).numpy()
    assert np.allclose(there, np.einsum("cijk,ai,bj,dk->cabd", made.control[0].double().numpy(), *basis), atol=1e-5)


def test_the_largest_elastic_field_does_not_fold() -> None:
    made = draw_deformation(Augment(elastic=0.1), 0, 1, torch.arange(20), (24, 24, 24), (1.0, 1.0, 1.0), OFF)
    assert made is not None
    axes = [(torch.arange(24) + 0.5).reshape([1, *(-1 if a == b else 1 for b in range(3))]) for a in range(3)]
    moved = torch.stack([(at + by).expand(20, 24, 24, 24) for at, by in zip(axes, made._field(axes), strict=True)], 1)
    slopes = torch.stack(list(torch.gradient(moved, dim=(2, 3, 4))), dim=-1).movedim(1, -2)
    assert float(torch.linalg.det(slopes).min()) > 0
    with pytest.raises(ConfigError, match="elastic"):
        Augment(elastic=0.11)


def test_a_deformation_is_undone() -> None:
    made = draw_deformation(KINDS["affine"], 0, 1, NUMBERS, SIZE, SPACING, OFF)
    both = draw_deformation(Augment(rotate=10, elastic=0.03, flip_axes="x"), 0, 1, NUMBERS, SIZE, SPACING, OFF)
    for deformation in (made, both):
        assert deformation is not None
        places = torch.rand(5, 50, 3, dtype=torch.float64) * torch.tensor(SIZE)
        back = deformation.to_result(places)
        columns = [(back + deformation.displacement(back))[..., a] for a in range(3)]
        centred = torch.stack(columns, dim=-1) - torch.tensor(SIZE) / 2
        again = torch.einsum("bij,bnj->bni", deformation.matrix.double(), centred)
        again = again + torch.tensor(SIZE) / 2 + deformation.shift[:, None]
        assert torch.allclose(again, places, atol=1e-3)


def test_only_the_axes_that_are_named_are_mirrored() -> None:
    x, numbers = torch.rand(64, 1, 4, 5, 6), torch.arange(64)
    for axes, dims in (("x", (2,)), ("z", (4,)), ("x,y", (2, 3))):
        shown = Augmenter(Augment(flip_axes=axes), 0, (0.0,), (1.0,), 2).images(x, numbers, 1)
        ways = [x.flip(d) for d in ((), *((d,) for d in dims), *([dims] if len(dims) > 1 else []))]
        seen = torch.stack([torch.isclose(shown, way, atol=1e-5).flatten(1).all(1) for way in ways])
        assert seen.any(0).all()
        assert seen.any(1).all(), "each way occurs"
    assert torch.allclose(
        Augmenter(Augment(flip=True), 0, (0.0,), (1.0,), 2).images(x, numbers, 1),
        Augmenter(Augment(flip_axes="x"), 0, (0.0,), (1.0,), 2).images(x, numbers, 1),
    )
    with pytest.raises(ConfigError, match="names no axes"):
        Augment(flip_axes="left")


def test_intensities_follow_their_formulas_and_leave_the_air() -> None:
    x = volumes()
    low, inside = x.amin((2, 3, 4), keepdim=True), x != 0

    def changed(**settings: float) -> torch.Tensor:
        return vary_intensities(x, Augment(**settings), 0, 1, NUMBERS, (0.5, 0.7))  # pyright: ignore[reportArgumentType]

    scaled = changed(intensity_scale=0.3)
    assert torch.equal(scaled[~inside], x[~inside])
    ratio = ((scaled - low) / (x - low).clamp_min(1e-3))[inside & (x - low > 0.1)]
    assert float(ratio.min()) >= 0.7 - 1e-3
    assert float(ratio.max()) <= 1.3 + 1e-3
    factors = ((scaled - low) / (x - low).clamp_min(1e-3))[:, :, 4, 6, 3].flatten().tolist()
    assert len({round(factor, 5) for factor in factors}) == 10, "each sample and channel its own"
    moved = (changed(intensity_shift=0.2) - x)[inside]
    assert 0.05 < float(moved.abs().max()) <= 0.2 * 0.7 + 1e-5
    noisy = (changed(noise=0.4) - x)[0, 0][inside[0, 0]]
    assert 0 < float(noisy.std()) <= 0.4 * 0.5 * 1.1


def test_the_contrast_curve_is_a_power() -> None:
    x, powers = torch.rand(3, 2, 4, 5, 6) * 7, np.array([[0.7, 1.0], [1.3, 1.5], [2.0, 0.5]])
    most = x.amax((2, 3, 4), keepdim=True)
    exact = most * (x / most) ** torch.from_numpy(powers).float()[..., None, None, None]
    assert torch.allclose(contrast_curve(x, most, powers), exact, atol=0.02)
    assert float((contrast_curve(x, most, powers) - exact).abs().mean()) < 1e-4


def test_the_bias_field_is_a_polynomial_of_third_degree() -> None:
    draw = np.random.default_rng(0)
    coefficients = 2 * draw.random((2, 2, 4, 4, 4)) - 1
    field = bias_field(coefficients, 0.3, torch.zeros(2, 2, *SIZE))
    axes = [(2 * np.arange(s) + 1) / s - 1 for s in SIZE]
    degrees = np.add.outer(np.add.outer(np.arange(4), np.arange(4)), np.arange(4))
    for n in range(2):
        for c in range(2):
            held = np.where((degrees >= 1) & (degrees <= 3), coefficients[n, c], 0)
            oracle = 1 + np.polynomial.polynomial.polygrid3d(axes[0], axes[1], axes[2], held * 0.3 / np.abs(held).sum())
            assert np.allclose(field[n, c].numpy(), oracle, atol=1e-5)
    assert float((field - 1).abs().max()) <= 0.3


def test_noise_is_gaussian_independent_and_the_hash_of_numpy() -> None:
    from scipy.stats import kstest

    from regard.data.intensities import _mixed
    from regard.data.random import _mix

    noise = gaussian(0, 1, torch.arange(4), torch.zeros(4, 2, 20, 21, 22)).double().numpy()
    assert kstest(noise[0].ravel(), "norm").pvalue > 1e-3
    assert abs(np.corrcoef(noise.reshape(4, -1)) - np.eye(4)).max() < 0.03
    flat = noise.ravel()
    assert all(abs(np.corrcoef(flat[:-lag], flat[lag:])[0, 1]) < 0.01 for lag in (1, 2, 4, 22))
    numbers = np.arange(1, 1000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    ours = _mixed(torch.from_numpy(numbers.view(np.int64))).numpy().view(np.uint64)
    assert np.array_equal(ours, _mix(numbers))


def test_air_of_raw_intensities_is_the_least_of_them() -> None:
    x = volumes() - 1000
    shown = augmenter(KINDS["affine"], raw=True).images(x, NUMBERS, 1)
    least = (x.amin((2, 3, 4)) - torch.tensor([0.1, 0.2])) / torch.tensor([0.5, 0.7])
    assert torch.allclose(shown.amin((2, 3, 4)), least, atol=1e-2)
    assert math.isclose(float(shown.amin()), float(least.min()), rel_tol=1e-4)
