"""Made scenes: the annotations describe the pictures, and the same seed makes the same files."""

import json

import numpy as np
import pytest
from faster_coco_eval import COCO
from PIL import Image

from regard.data.objects.scenes import STUFF, THINGS, digit_pictures, draw_scene, write_scenes
from regard.errors import DataError


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return write_scenes(tmp_path_factory.mktemp("made") / "scenes", train=6, val=2, test=2, size=64)


def test_coco_reads_the_masks_that_the_panoptic_maps_show(scenes):
    """faster-coco-eval decodes the instances' run lengths; box, area and pixels are those of the PNG."""
    coco = COCO(str(scenes / "annotations" / "instances_train.json"))
    panoptic = json.loads((scenes / "annotations" / "panoptic_train.json").read_text())
    assert [entry["isthing"] for entry in panoptic["categories"]] == [1] * len(THINGS) + [0] * len(STUFF)
    compared = 0
    for row in panoptic["annotations"]:
        colours = np.asarray(Image.open(scenes / "annotations" / "panoptic_train" / row["file_name"])).astype(int)
        ids = colours @ [1, 256, 65536]
        assert set(np.unique(ids)) == {segment["id"] for segment in row["segments_info"]}
        things = [segment for segment in row["segments_info"] if segment["category_id"] <= len(THINGS)]
        own = coco.loadAnns(coco.getAnnIds(imgIds=[row["image_id"]]))
        for annotation, segment in zip(own, things, strict=True):
            mask = coco.annToMask(annotation).astype(bool)
            assert (mask == (ids == segment["id"])).all()
            x, y, width, height = segment["bbox"]
            assert mask[y : y + height, x : x + width].sum() == mask.sum() == segment["area"]
            assert all(edge.any() for edge in (mask[y], mask[y + height - 1], mask[:, x], mask[:, x + width - 1]))
            compared += 1
    assert compared > 6


def test_digits_stand_out_and_every_category_occurs():
    digits, seen = digit_pictures()["val"], set()
    for number in range(60):
        scene = draw_scene(digits, 64, (0, number))
        things = np.isin(scene.ids, [own for own, category in scene.categories.items() if category <= len(THINGS)])
        assert scene.pixels[things].mean() > scene.pixels[~things].mean() + 50
        seen |= set(scene.categories.values())
    assert seen == set(range(1, len(THINGS) + len(STUFF) + 1))


def test_the_same_seed_makes_the_same_files_and_never_over_others(scenes, tmp_path):
    same = write_scenes(tmp_path / "same", train=3, size=64, val=0, test=2)
    for name in ("train/000003.png", "test/000002.png", "annotations/panoptic_test/000001.png"):
        assert (same / name).read_bytes() == (scenes / name).read_bytes()
    other = write_scenes(tmp_path / "other", train=3, size=64, val=0, test=0, seed=1)
    assert (other / "train/000003.png").read_bytes() != (scenes / "train/000003.png").read_bytes()
    with pytest.raises(DataError, match="something there already"):
        write_scenes(same)
