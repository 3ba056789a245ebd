"""Images are found in a COCO file by the end of their paths, and never taken for another."""

import json
from pathlib import Path

import pytest

from regard.data.objects.ids import ImageIds
from regard.errors import DataError


def written(folder: Path, *images: dict) -> ImageIds:
    path = folder / "truth.json"
    path.write_text(json.dumps({"images": list(images)}))
    return ImageIds(path)


def test_the_longest_file_name_that_fits_is_the_image(tmp_path):
    ids = written(
        tmp_path,
        {"id": 5, "file_name": "1.png"},
        {"id": 6, "file_name": "a/1.png", "height": 2, "width": 3},
        {"id": "seven", "file_name": "b/1.png"},
    )
    assert [ids.find(f"data/{name}/1.png", (2, 3)).id for name in ("a", "b", "c")] == [6, "seven", 5]


def test_other_images_are_refused(tmp_path):
    ids = written(
        tmp_path,
        {"id": 5, "file_name": "a/1.png", "height": 2, "width": 3},
        {"id": 6, "file_name": "2.png"},
        {"id": 7, "file_name": "2.png"},
    )
    for path, size, said in (
        ("b/1.png", (2, 3), "no image"),
        ("a/1.png", (3, 2), "it is another image"),
        ("2.png", (1, 1), "several images"),
    ):
        with pytest.raises(DataError, match=said):
            ids.find(path, size)
    for images in ((), ({"file_name": "1.png"},)):
        with pytest.raises(DataError, match=r"no image|no id"):
            written(tmp_path, *images)
