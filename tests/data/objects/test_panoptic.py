"""COCO's panoptic format: read as written, and refused where its two halves do not agree."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.console import Progress
from regard.data.objects import read_objects
from regard.data.objects.panoptic import read_ids, read_panoptic, write_panoptic
from regard.data.objects.panoptic_dataset import PanopticDataset
from regard.data.objects.scenes import STUFF, THINGS, write_scenes
from regard.errors import DataError
from regard.image_groups import ObjectData
from regard.metrics.panoptic import panoptic_counts, summarise_panoptic

PANOPTICAPI = {
    "pq": 0.328883, "sq": 0.473322, "rq": 0.479724, "pq_things": 0.114953, "sq_things": 0.403832,
    "rq_things": 0.209448, "pq_stuff": 0.542812, "sq_stuff": 0.542812, "rq_stuff": 0.75,
}  # fmt: skip
CATEGORIES = [{"id": 7, "name": "sky", "isthing": 0}, {"id": 3, "name": "cat", "isthing": 1}]


def example(folder: Path) -> Path:
    ids = np.zeros((4, 5), dtype=np.int64)
    ids[:, 1:3], ids[2:, 3:] = 300, 70_000
    segments = [{"id": 300, "category_id": 7}, {"id": 70_000, "category_id": 3, "iscrowd": 1}]
    return write_panoptic(
        folder / "made.json", [({"id": 11, "file_name": "a.jpg", "height": 4, "width": 5}, ids, segments)], CATEGORIES
    )


def test_what_was_written_is_read(tmp_path):
    read = read_panoptic(example(tmp_path))
    assert (read.classes, read.class_ids, read.things) == (("cat", "sky"), (3, 7), (True, False))
    (image,) = read.images
    assert (image.image_id, image.file_name, image.size, image.map.name) == (11, "a.jpg", (4, 5), "a.png")
    assert image.segments == ((300, 1, (1, 0, 3, 4), 8, False), (70_000, 0, (3, 2, 5, 4), 4, True))
    ids = image.read_ids()
    assert (ids[0].tolist(), ids[3].tolist()) == ([0, 300, 300, 0, 0], [0, 300, 300, 70_000, 70_000])
    with pytest.raises(DataError, match="something there already"):
        example(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("id", 301, "in the PNG that the JSON does not name: 300"),
        ("category_id", 9, "category 9 is not among"),
        ("bbox", [1, 2], "a segment has no id"),
        ("id", 2**24, "a segment has the id 16777216"),
        ("id", 70_000, "the same id"),
    ],
)
def test_a_wrong_segment_is_named(tmp_path, key, value, words):
    path = example(tmp_path)
    held = json.loads(path.read_text())
    held["annotations"][0]["segments_info"][0][key] = value
    path.write_text(json.dumps(held))
    with pytest.raises(DataError, match=words):
        read_panoptic(path).images[0].read_ids()


def test_missing_and_foreign_files_are_refused(tmp_path):
    path = example(tmp_path)
    grey = tmp_path / "made" / "a.png"
    Image.fromarray(np.zeros((4, 5), np.uint8)).save(grey)
    with pytest.raises(DataError, match="three channels of 8 bits; this one is L"):
        read_ids(grey)
    Image.fromarray(np.zeros((5, 5, 3), np.uint8)).save(grey)
    with pytest.raises(DataError, match="the map has 5 × 5 pixels, and the image 4 × 5"):
        read_panoptic(path).images[0].read_ids()
    Image.fromarray(np.zeros((4, 5, 3), np.uint8)).save(grey)
    with pytest.raises(DataError, match="in the JSON that the PNG does not show: 300, 70000"):
        read_panoptic(path).images[0].read_ids()
    with pytest.raises(DataError, match="megapixels"):
        read_panoptic(path).images[0].read_ids(max_megapixels=1e-5)
    held = json.loads(path.read_text())
    held["annotations"][0]["file_name"] = "../made/../made.json"
    path.write_text(json.dumps(held))
    with pytest.raises(DataError, match="a panoptic PNG is missing"):
        read_panoptic(path)
    for text, words in (("[1]", "not COCO's panoptic format: 'images'"), ("{", "not a JSON file")):
        path.write_text(text)
        with pytest.raises(DataError, match=words):
            read_panoptic(path)
    with pytest.raises(DataError, match="a file is missing"):
        read_panoptic(tmp_path / "none.json")


def test_figures_on_cocos_sample_are_those_of_its_own_evaluator():
    """The prediction: the true map moved by 6 rows and 10 columns. The expected figures are panopticapi's."""
    shared = Path(os.environ.get("REGARD_SHARED", Path(__file__).parents[4] / "shared"))
    sample = shared / "data" / "panoptic_sample" / "sample_data" / "panoptic_examples.json"
    if not sample.is_file():
        pytest.skip("needs ../shared/data, or REGARD_SHARED")
    read = read_panoptic(sample)
    counts = []
    for image in read.images:
        ids, labels = image.read_ids(), {segment.number: segment.label for segment in image.segments}
        assert {s.number: s.area for s in image.segments} == {n: int((ids == n).sum()) for n in labels}
        crowd = {segment.number for segment in image.segments if segment.crowd}
        counts.append(panoptic_counts(ids, np.roll(ids, (6, 10), (0, 1)), labels, labels, len(read.classes), crowd))
    made = summarise_panoptic(np.stack(counts), read.classes, read.things).figures
    assert {name: round(figure.value, 6) for name, figure in made.items()} == PANOPTICAPI


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return write_scenes(tmp_path_factory.mktemp("made") / "scenes", train=4, val=2, test=2, size=64)


def test_segments_are_objects_with_boxes_and_masks(scenes):
    """Boxes are those of the masks; instances, read from the other JSON, are the same things."""
    panoptic = read_objects(scenes, Progress(True), ObjectData(stuff=True))
    instances = read_objects(scenes, Progress(True))
    assert isinstance(panoptic, PanopticDataset)
    assert not isinstance(instances, PanopticDataset)
    assert (len(panoptic), len(instances)) == (8, 8)
    assert panoptic.source.classes == (*THINGS, *STUFF)
    assert panoptic.things == (True,) * len(THINGS) + (False,) * len(STUFF)
    assert panoptic.given_splits() == ["test"] * 2 + ["train"] * 4 + ["val"] * 2
    for number in range(8):
        item, masks, things = panoptic.objects[number], panoptic.outlines(number), instances.objects[number]
        assert panoptic.key(number) == instances.key(number)
        assert (masks.sum(0) == 1).all()
        for box, mask in zip(item.boxes.tolist(), masks, strict=True):
            rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
            assert box == [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
        own = item.labels < len(THINGS)
        assert (item.boxes[own] == things.boxes).all()
        assert (masks[own] == instances.outlines(number)).all()
    assert "classes: 10 of things, 3 of stuff" in panoptic.describe()
    assert panoptic.to_json(["train"] * 8, "")["things"]["noise"] is False


def test_an_image_whose_map_is_wrong_counts_as_unreadable(scenes, tmp_path):
    folder = shutil.copytree(scenes, tmp_path / "scenes")
    path = folder / "annotations" / "panoptic_train" / "000002.png"
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(path)
    dataset = read_objects(folder, Progress(True), ObjectData(stuff=True))
    ((key, why),) = dataset.unreadable
    assert key == "train/000002.png"
    assert "in the JSON that the PNG does not show" in why
    path.unlink()
    with pytest.raises(DataError, match="a panoptic PNG is missing"):
        read_objects(folder, Progress(True), ObjectData(stuff=True))
