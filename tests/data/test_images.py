"""Every kind of image file comes out right, and nothing hostile is decoded."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data import read_image
from regard.errors import DataError

GREY = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
RGB = np.stack([GREY, GREY[::-1], 255 - GREY], axis=-1)


def saved(tmp_path: Path, image: Image.Image, name: str = "x.png", **options) -> Path:
    image.save(tmp_path / name, **options)
    return tmp_path / name


def test_grey_has_one_channel_and_colour_three(tmp_path):
    pixels, mode = read_image(saved(tmp_path, Image.fromarray(GREY)))
    assert mode == "L"
    assert torch.equal(pixels, torch.from_numpy(GREY)[None])
    pixels, mode = read_image(saved(tmp_path, Image.fromarray(RGB)))
    assert mode == "RGB"
    assert torch.equal(pixels, torch.from_numpy(RGB).permute(2, 0, 1))


def test_one_bit_images_are_black_and_white(tmp_path):
    pixels, _ = read_image(saved(tmp_path, Image.fromarray(GREY > 100)))
    assert torch.equal(pixels[0], torch.from_numpy((GREY > 100) * np.uint8(255)))


def test_transparent_means_white(tmp_path):
    rgba = np.dstack([RGB, np.full((3, 4), 255, np.uint8)])
    rgba[0, 0, 3], rgba[1, 1] = 0, (0, 0, 0, 128)
    pixels, mode = read_image(saved(tmp_path, Image.fromarray(rgba)))
    assert mode == "RGBA"
    assert pixels[:, 0, 0].tolist() == [255, 255, 255]
    assert pixels[:, 1, 1].tolist() == [127, 127, 127]
    assert pixels[:, 2, 2].tolist() == RGB[2, 2].tolist()


def test_grey_with_alpha_stays_grey(tmp_path):
    pixels, _ = read_image(saved(tmp_path, Image.fromarray(np.dstack([GREY, np.full_like(GREY, 255)]), "LA")))
    assert torch.equal(pixels, torch.from_numpy(GREY)[None])


def test_palettes_show_their_colours(tmp_path):
    image = Image.fromarray(RGB).quantize(256)
    pixels, mode = read_image(saved(tmp_path, image))
    assert mode == "P"
    assert torch.equal(pixels, torch.from_numpy(np.asarray(image.convert("RGB"))).permute(2, 0, 1))
    image.info["transparency"] = 0
    shown = read_image(saved(tmp_path, image, transparency=0))[0]
    hidden = torch.from_numpy(np.asarray(image)) == 0
    assert (shown[:, hidden] == 255).all()


def test_cmyk_becomes_the_colours_it_prints(tmp_path):
    cyan = Image.new("CMYK", (8, 8), (255, 0, 0, 0))
    pixels, mode = read_image(saved(tmp_path, cyan, "x.jpg", quality=100))
    assert mode == "CMYK"
    red, green, blue = pixels.float().mean((1, 2))
    assert red < 20 < 200 < min(green, blue)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path, suffix):
    values = np.array([[0, 255, 256], [1000, 32768, 65535]], dtype=np.uint16)
    pixels, _ = read_image(saved(tmp_path, Image.fromarray(values), f"x{suffix}"))
    assert pixels.dtype == torch.float32
    torch.testing.assert_close(pixels[0], torch.from_numpy(values.astype(np.float32) / 65535))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_undone(tmp_path, orientation):
    from PIL import ImageOps

    image = Image.fromarray(np.kron(RGB, np.ones((16, 16, 1), np.uint8)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path, image, "x.jpg", exif=exif, quality=95)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(path)))
    assert torch.equal(read_image(path)[0], torch.from_numpy(expected.copy()).permute(2, 0, 1))
    assert read_image(path)[0].shape == ((3, 64, 48) if orientation > 4 else (3, 48, 64))


def test_floating_point_in_range_is_kept(tmp_path):
    values = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    assert torch.equal(read_image(saved(tmp_path, Image.fromarray(values), "x.tif"))[0][0], torch.from_numpy(values))


@pytest.mark.parametrize(
    ("value", "words"), [(np.nan, "NaN or infinite"), (np.inf, "NaN or infinite"), (7.0, "0 to 1")]
)
def test_floating_point_out_of_range_is_refused(tmp_path, value, words):
    values = np.zeros((3, 4), dtype=np.float32)
    values[1, 2] = value
    with pytest.raises(DataError, match=words):
        read_image(saved(tmp_path, Image.fromarray(values), "x.tif"))


def test_truncated_jpeg_is_damage_not_grey_pixels(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    path = saved(tmp_path, Image.fromarray(noise), "x.jpg")
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DataError, match="damaged"):
        read_image(path)


def bomb(path: Path, side: int) -> Path:
    """A PNG that claims side × side pixels in a few kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"\0" * 100_000, 9)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    return path


@pytest.mark.parametrize("side", [9_000, 12_000, 60_000])
def test_decompression_bombs_are_refused_before_they_are_decoded(tmp_path, side, monkeypatch):
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(DataError, match=r"pixels|bomb"):
        read_image(bomb(tmp_path / "x.png", side))


@pytest.mark.parametrize("side", [9_000, 60_000])
def test_large_images_say_how_they_can_be_read(tmp_path, side):
    megapixels = side * side // 1_000_000
    with pytest.raises(DataError, match=rf"{megapixels}\.0 megapixels(.|\n)*--max-megapixels {megapixels};"):
        read_image(bomb(tmp_path / "x.png", side))
    path = saved(tmp_path, Image.fromarray(RGB))
    with pytest.raises(DataError, match="--max-megapixels 1;"):
        read_image(path, max_megapixels=1e-6)


def test_an_image_above_the_usual_cap_is_read_if_that_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
    assert read_image(saved(tmp_path, Image.fromarray(RGB)))[0].shape == (3, 3, 4)


def test_text_with_an_image_name_is_no_image(tmp_path):
    (tmp_path / "x.png").write_text("not an image")
    with pytest.raises(DataError, match="not an image"):
        read_image(tmp_path / "x.png")


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_image(tmp_path / "none.png")


def test_what_is_no_picture_format_is_not_handed_to_an_interpreter(tmp_path, monkeypatch):
    """Pillow starts Ghostscript on PostScript, whatever the file's name."""
    import subprocess

    monkeypatch.setattr(subprocess, "check_call", lambda *a, **k: pytest.fail("a program was started"))
    (tmp_path / "x.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n")
    with pytest.raises(DataError, match="not an image"):
        read_image(tmp_path / "x.png")
