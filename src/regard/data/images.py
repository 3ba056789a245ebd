"""Image files to tensors, with limits on pixels and bytes that are checked before decoding.

A decoded image is (channels, height, width): one channel for grey and three for colour, uint8, or float32 in 0..1
where the file holds more than 8 bits.
"""

import re
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import DataError
from regard.image_groups import MAX_MEGAPIXELS

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm"})
MAX_BYTES = 256 * 2**20

_FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP", "GIF", "PPM")  # Pillow would run Ghostscript on an EPS
_GREY = {"1", "L"}
_DEEP = {"I", "I;16", "I;16B", "I;16L", "I;16N", "F"}
_ALPHA = {"LA", "La", "PA", "RGBA", "RGBa"}


def read_image(path: Path, max_megapixels: float = MAX_MEGAPIXELS) -> tuple[Tensor, str]:
    """The decoded image and the file's own mode (such as RGB, CMYK or I;16)."""
    from PIL import ImageOps, UnidentifiedImageError

    Image, most = _pillow(), round(max_megapixels * 1e6)
    if Image.MAX_IMAGE_PIXELS is not None and most > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = most  # Pillow refuses twice as many by itself
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise DataError(f"this is a {'folder' if path.is_dir() else 'pipe or device'}, not an image", where=path)
    try:
        if (size := path.stat().st_size) > max(MAX_BYTES, 4 * most):
            raise DataError(f"the file has {size:,} bytes; at most {max(MAX_BYTES, 4 * most):,} are read", where=path)
        with Image.open(path, formats=_FORMATS) as image:
            width, height = image.size
            _check_size(width, height, most, path)
            image.load()
            return to_tensor(ImageOps.exif_transpose(image), path), image.mode
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError("there is no such file", where=path) from None
    except UnidentifiedImageError:
        raise DataError("this is not an image that can be read", where=path, do="remove or replace it") from None
    except Image.DecompressionBombError as error:
        raise _too_large(int(re.findall(r"\d+", str(error))[0]), "", most, path) from None
    except Exception as error:  # Pillow's decoders raise errors of any kind at what they do not expect
        raise DataError(f"the image is damaged: {error}", where=path, do="remove or replace it") from None


def _check_size(width: int, height: int, most: int, path: Path) -> None:
    if width < 1 or height < 1:
        raise DataError(f"the image has no pixels: {width} × {height}", where=path, do="remove or replace it")
    if width * height > most:
        raise _too_large(width * height, f" ({width} × {height})", most, path)


def _too_large(pixels: int, size: str, most: int, path: Path) -> DataError:
    return DataError(
        f"the file claims an image of {pixels / 1e6:.1f} megapixels{size}; up to {most / 1e6:g} are decoded",
        where=path,
        do=f"if it is that large, give --max-megapixels {-(-pixels // 1_000_000)}; otherwise remove it",
    )


@cache
def _pillow() -> Any:
    from PIL import Image

    # Pillow warns of large images but decodes them; MAX_PIXELS refuses them instead.
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    return Image


def to_tensor(image: Any, path: object) -> Tensor:
    """The pixels of a Pillow image."""
    from PIL import Image

    mode = image.mode
    if mode in _DEEP:
        # Pillow's own conversion to 8 bits clips 16-bit values at 255 instead of scaling them.
        values = np.asarray(image).astype(np.float32)
        if mode != "F":
            values = values / 65535.0
        return torch.from_numpy(checked(values, path))[None]
    if mode in _GREY:
        pixels = np.asarray(image.convert("L"))
    else:
        if mode == "P":
            image = image.convert("RGBA" if "transparency" in image.info else "RGB")
        if image.mode in _ALPHA:  # transparent pixels become white, not their hidden colour
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        pixels = np.asarray(image.convert("RGB"))
        if mode in ("LA", "La"):
            pixels = pixels[..., 0]
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)  # a view: memory stays channels-last


def checked(values: np.ndarray, where: object) -> np.ndarray:
    """The same floating-point pixels; an error if they are not finite or not within 0..1."""
    if not np.isfinite(values).all():
        count = int((~np.isfinite(values)).sum())
        raise DataError(f"{count:,} pixels are NaN or infinite", where=where, do="remove or repair the image")
    if values.min(initial=0.0) < 0.0 or values.max(initial=0.0) > 1.0:
        raise DataError(
            f"pixels run from {values.min():.4g} to {values.max():.4g}; 0 to 1 is expected of floating point",
            where=where,
            do="rescale the values to 0..1, or store them as 8- or 16-bit integers",
        )
    return values
