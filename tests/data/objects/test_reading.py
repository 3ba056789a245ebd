"""Every format of boxes gives the same objects, and what is wrong with annotations is named."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from regard.annotations import recognise_objects
from regard.console import Progress
from regard.data.objects import read_objects
from regard.data.splits import split
from regard.errors import ConfigError, DataError, RegardError
from tests.data.objects.scenes import (
    BOXES,
    CLASSES,
    coco_contents,
    opened,
    picture,
    voc_text,
    write_coco,
    write_voc,
    write_yolo,
)

CORNERS = torch.tensor([box for box, _ in BOXES], dtype=torch.float32)


def coco_2017(root: Path) -> None:
    write_coco(root, "train2017", "annotations/instances_train2017.json", 4)
    write_coco(root, "val2017", "annotations/instances_val2017.json", 2, at=4)
    (root / "annotations" / "captions_val2017.json").write_text('{"images": [], "annotations": [{"bbox": 1}]}')


def coco_roboflow(root: Path) -> None:
    write_coco(root, "train", "train/_annotations.coco.json", 4)
    contents = write_coco(root, "valid", "valid/_annotations.coco.json", 2, at=4)
    contents["categories"].insert(0, {"id": 0, "name": "animals", "supercategory": "none"})
    contents["categories"][1]["supercategory"] = "animals"
    (root / "valid/_annotations.coco.json").write_text(json.dumps(contents))


def coco_single(root: Path) -> None:
    write_coco(root, "pictures/all", "labels.json")


def yolo_yaml(root: Path) -> None:
    write_yolo(root, "images/train", "labels/train", 4)
    write_yolo(root, "images/val", "labels/val", 2, at=4)
    text = "path: /on/another/machine\ntrain: images/train\nval: images/val\nnames: {0: cat, 1: dog}\n"
    (root / "data.yaml").write_text(text)


def yolo_roboflow(root: Path) -> None:
    write_yolo(root, "train/images", "train/labels", 4)
    write_yolo(root, "valid/images", "valid/labels", 2, at=4)
    (root / "data.yaml").write_text("train: ../train/images\nval: ../valid/images\nnc: 2\nnames: ['cat', 'dog']\n")


def yolo_bare(root: Path) -> None:
    write_yolo(root, "images", "labels", 6)
    (root / "classes.txt").write_text("cat\ndog\n")


def voc_lists(root: Path) -> None:
    inner = root / "VOCdevkit" / "VOC2012"
    write_voc(inner)
    (inner / "ImageSets/Main").mkdir(parents=True)
    for name, numbers in (("train", range(4)), ("val", range(4, 6)), ("trainval", range(6)), ("cat_train", range(2))):
        rows = "\n".join(f"{n:03d} {-1 if '_' in name else ''}" for n in numbers)
        (inner / f"ImageSets/Main/{name}.txt").write_text(rows)


def voc_flat(root: Path) -> None:
    write_voc(root, "train", "train", 4)
    write_voc(root, "valid", "valid", 2, at=4)


FORMATS = {
    coco_2017: ("COCO", (1, 3), True),
    coco_roboflow: ("COCO", (1, 3), True),
    coco_single: ("COCO", (1, 3), False),
    yolo_yaml: ("YOLO", (0, 1), True),
    yolo_roboflow: ("YOLO", (0, 1), True),
    yolo_bare: ("YOLO", (0, 1), False),
    voc_lists: ("VOC", (0, 1), True),
    voc_flat: ("VOC", (0, 1), True),
}


@pytest.mark.parametrize("make", FORMATS)
def test_every_format_gives_the_same_objects(make, tmp_path):
    make(tmp_path)
    kind, ids, splits = FORMATS[make]
    dataset = opened(tmp_path)
    assert recognise_objects(tmp_path) == dataset.why
    assert (dataset.source.kind, dataset.class_ids, dataset.source.classes) == (kind, ids, CLASSES)
    assert not [*dataset.unreadable, *dataset.left_out, *dataset.errors, *dataset.source.ignored]
    assert sorted(dataset.given_splits(), key=str) == (["train"] * 4 + ["val"] * 2 if splits else [None] * 6)
    for number, item in enumerate(dataset.objects):
        torch.testing.assert_close(item.boxes, CORNERS)
        assert item.labels.tolist() == [0, 1]
        assert item.crowd.tolist() == [False, kind == "VOC"]
        pixels = dataset.source.read(number)[0]
        for (left, top, right, bottom), label in BOXES:
            assert (pixels[label, top:bottom, left:right] == 250).all(), "the boxes are the file's pixels"
    assert dataset.objects[0].area.tolist() == ([50.0, 50.0] if kind == "COCO" else [120.0, 240.0])
    dataset.require_usable()
    assert opened(tmp_path).fingerprint() == dataset.fingerprint()
    text = dataset.describe()
    assert all(name in text for name in CLASSES)
    json.dumps(dataset.to_json(["train"] * 6, ""))


def test_recognising_needs_no_torch_and_takes_no_other_data(tmp_path):
    make_folder = tmp_path / "classes" / "cats"
    picture(make_folder / "1.png", 0)
    (tmp_path / "classes" / "about.json").write_text('{"images": [1], "annotations": []}')
    coco_2017(tmp_path / "boxes")
    (tmp_path / "panoptic.json").write_text('{"images": [], "annotations": [{"segments_info": [{"bbox": []}]}]}')
    code = (
        "import sys; from pathlib import Path; from regard.annotations import recognise_objects as f;"
        f"root = Path({str(tmp_path)!r});"
        "print([bool(f(root / name)) for name in ('classes', 'boxes', 'panoptic.json', 'no')], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[False, True, True, False] False", done.stderr


def changed_coco(root: Path, change) -> Path:
    contents = write_coco(root)
    change(contents)
    (root / "annotations/boxes.json").write_text(json.dumps(contents))
    return root


def put(*path, value):
    def change(contents):
        for step in path[:-1]:
            contents = contents[step]
        contents[path[-1]] = value

    return change


STRUCTURE = {
    "no list of images": put("images", value={}),
    "no list of categories": put("categories", value=[1]),
    "there are no categories": put("categories", value=[]),
    "the file lists no images": put("images", value=[]),
    "needs an id and a file_name": put("images", 2, "file_name", value=None),
    "two images have the id 100": put("images", 1, "id", value=100),
    "is an address": put("images", 0, "file_name", value="https://example.org/a.png"),
    "is an absolute path": put("images", 0, "file_name", value="/etc/passwd"),
    "leads out of the folder": put("images", 0, "file_name", value="a/../../../x.png"),
    "needs a whole number as id": put("categories", 0, "id", value="one"),
    "several categories have the same name": put("categories", 0, "name", value="dog"),
    "none of its 6 images is there": lambda c: [
        row.update(file_name="no.png", id=n) for n, row in enumerate(c["images"])
    ],
    "is listed more than once": put("images", 1, "file_name", value="000.png"),
}


@pytest.mark.parametrize("said", STRUCTURE)
def test_coco_files_that_cannot_be_read(said, tmp_path):
    with pytest.raises(DataError, match=said):
        opened(changed_coco(tmp_path, STRUCTURE[said]))


BOX_FAULTS = {
    "without area": put("annotations", 0, "bbox", value=[3, 4, 0, 5]),
    "outside of the image": put("annotations", 0, "bbox", value=[300, 4, 5, 5]),
    "not four numbers": put("annotations", 0, "bbox", value=[1, 2, 3]),
    "not finite": put("annotations", 0, "bbox", value=[float("nan"), 2, 3, 4]),
    "of an unknown category": put("annotations", 0, "category_id", value=9),
    "of an image that is not listed": put("annotations", 0, "image_id", value="x"),
}


@pytest.mark.parametrize("said", BOX_FAULTS)
def test_boxes_that_are_none_are_counted_and_refused_if_many(said, tmp_path):
    dataset = opened(changed_coco(tmp_path, BOX_FAULTS[said]))
    (why,) = dataset.left_out
    assert said in why or said == "not finite"
    assert dataset.num_boxes == 11
    assert f"boxes left out: {why}: 1" in dataset.describe()
    assert any(why in line for line in dataset.warnings(["train"] * 6))
    with pytest.raises(DataError, match="1 of 12 boxes cannot be used"):
        dataset.require_usable()
    dataset.objects *= 20
    dataset.require_usable()


def test_boxes_that_stick_out_are_clipped_and_said(tmp_path):
    dataset = opened(changed_coco(tmp_path, put("annotations", 0, "bbox", value=[-3, 6, 20, 50])))
    assert dataset.objects[0].boxes[0].tolist() == [0, 6, 17, 30]
    assert dataset.notes["boxes that stick out of their image, clipped"]
    dataset.require_usable()


def test_images_with_boxes_for_another_size_or_no_file_are_left_out(tmp_path):
    changed_coco(tmp_path, lambda c: c["images"][0].update(height=40, width=30))
    (tmp_path / "images" / "003.png").unlink()
    picture(tmp_path / "images" / "more.png", 99)
    dataset = opened(tmp_path)
    faults = dict(dataset.unreadable)
    assert "turned by its EXIF tag" in faults["images/000.png"]
    assert "no such file" in faults["images/003.png"]
    assert [digest is None for digest in dataset.digests] == [True, False, False, True, False, False]
    assert dataset.source.ignored == ("images/more.png",)


def test_an_image_that_is_missing_is_not_read_from_another_split(tmp_path):
    """Each split counts its images from 1, and its folder is preferred to a complete one of another."""
    for name in ("train", "val", "test"):
        write_coco(tmp_path, f"images/{name}", f"annotations/instances_{name}.json", 4)
    (tmp_path / "images/val/001.png").unlink()
    dataset = opened(tmp_path)
    assert [key for key, _ in dataset.unreadable] == ["images/val/001.png"]
    assert not dataset.source.left_out


def test_an_image_that_is_missing_is_not_read_from_a_folder_of_copies(tmp_path, capsys):
    write_coco(tmp_path, "images", "labels.json")
    shutil.copytree(tmp_path / "images", tmp_path / "originals")
    (tmp_path / "images/001.png").unlink()
    dataset = read_objects(tmp_path, Progress())
    assert [key for key, _ in dataset.unreadable] == ["images/001.png"]
    assert "left out: originals: its images have the same names as those of images" in capsys.readouterr().err


def as_corners(contents):
    for row in contents["annotations"]:
        x, y, width, height = row["bbox"]
        row["bbox"] = [x, y, x + width, y + height]


def test_corners_written_as_width_and_height_are_noticed(tmp_path):
    draw = np.random.default_rng(0)
    contents = write_coco(tmp_path)
    for row in contents["annotations"]:  # spread over the whole image, as real boxes are
        x, y = (int(n) for n in draw.integers(8, 16, 2))
        row["bbox"] = [x, y, 8, 8]
    path = tmp_path / "annotations/boxes.json"
    path.write_text(json.dumps(contents))
    assert not opened(tmp_path).errors
    as_corners(contents)
    path.write_text(json.dumps(contents))
    dataset = opened(tmp_path)
    with pytest.raises(DataError, match="as corners in pixels, 100% fit"):
        dataset.require_usable()
    assert "not usable: boxes are read as x, y, width, height in pixels" in dataset.describe()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("0 12 12 8 10\n1 20 14 6 8", "as centre, width, height in pixels"),
        ("0 0.2 0.7 0.5 0.9\n1 0.6 0.6 0.95 0.98", "as corners as shares"),
    ],
)
def test_yolo_files_in_pixels_or_corners_are_noticed(rows, said, tmp_path):
    yolo_bare(tmp_path)
    for file in (tmp_path / "labels").iterdir():
        file.write_text(rows)
    with pytest.raises(DataError, match=said):
        opened(tmp_path).require_usable()


def test_voc_with_width_and_height_is_noticed(tmp_path):
    write_voc(tmp_path)
    for file in (tmp_path / "Annotations").iterdir():
        file.write_text(voc_text((0, 0), [((14, 12, 7, 8), 0), ((16, 10, 5, 9), 1)]))
    with pytest.raises(DataError, match="as x, y, width, height in pixels, 100% fit"):
        opened(tmp_path).require_usable()


YOLO_LINES = {
    "not numbers": "0 a b c d",
    "of an unknown class": "7 0.5 0.5 0.1 0.1",
    "neither a box of four numbers nor a polygon": "0 0.5 0.5 0.1 0.1 0.9",
    "not finite numbers": "0 nan 0.5 0.1 0.1",
    "without area": "0 0.5 0.5 0 0.1",
}


@pytest.mark.parametrize("said", YOLO_LINES)
def test_yolo_lines_that_are_no_boxes(said, tmp_path):
    yolo_yaml(tmp_path)
    with (tmp_path / "labels/train/000.txt").open("a") as file:
        file.write("\n\n" + YOLO_LINES[said])
    assert list(opened(tmp_path).left_out) == [said]


def test_class_ids_that_count_from_another_number_are_noticed(tmp_path):
    yolo_yaml(tmp_path / "yolo")
    for file in (tmp_path / "yolo" / "labels").glob("*/*.txt"):
        rows = file.read_text().splitlines()
        file.write_text("\n".join(f"{int(row[0]) + 1}{row[1:]}" for row in rows))
    contents = write_coco(tmp_path / "coco")
    for number, row in enumerate(contents["categories"], start=1):
        row["id"] = number
    for row in contents["annotations"]:
        row["category_id"] = {1: 0, 3: 1}[row["category_id"]]
    (tmp_path / "coco" / "annotations/boxes.json").write_text(json.dumps(contents))
    for name, said, do in (("yolo", "1 to 2, and the classes 0 to 1", "subtract 1"), ("coco", "0 to 1", "add 1")):
        dataset = opened(tmp_path / name)
        assert "one counts from 0 and the other from 1" in dataset.describe()
        with pytest.raises(DataError, match=said) as refused:
            dataset.require_usable(share=1.0)
        assert refused.value.do is not None
        assert refused.value.do.startswith(do)


def test_yolo_polygons_and_images_without_labels(tmp_path):
    yolo_bare(tmp_path)
    (tmp_path / "labels/000.txt").write_text("1 0.25 0.2 0.75 0.2 0.75 0.8 0.25 0.8")
    (tmp_path / "labels/001.txt").unlink()
    (tmp_path / "labels/002.txt").write_text("")
    dataset = opened(tmp_path)
    assert dataset.objects[0].boxes.tolist() == [[10, 6, 30, 24]]
    assert dataset.outlines(0)[0, 6:24, 10:30].all()
    assert int(dataset.outlines(0).sum()) == 18 * 20
    assert dataset.notes["images without a label file, taken to hold no object"] == ["images/001.png"]
    assert dataset.notes["images without an object"] == ["images/001.png", "images/002.png"]


YAML = {
    "names must be a list": "train: images/train\nnames: 3\n",
    "or names by number": "train: images/train\nnames: [[a, a], b]\n",
    "nc is 3 and there are 2 names": "train: images/train\nnc: 3\nnames: [a, b]\n",
    "is not there, or outside": "train: ../../elsewhere\nnames: [a, b]\n",
    "not a YAML file": "train: [\nnames: 1\n",
    "neither a folder nor": "train: data.yaml\nnames: [a, b]\n",
    "must be a folder of images": "train: {a: 1}\nnames: [a, b]\n",
}


@pytest.mark.parametrize("said", YAML)
def test_yaml_files_that_cannot_be_used(said, tmp_path):
    yolo_yaml(tmp_path)
    (tmp_path / "data.yaml").write_text(YAML[said])
    with pytest.raises(DataError, match=said):
        opened(tmp_path)


def test_yaml_cannot_run_code(tmp_path):
    yolo_yaml(tmp_path)
    text = f"train: images/train\nnames: !!python/object/apply:os.mkdir ['{tmp_path}/made']\n"
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(DataError, match="not a YAML file"):
        opened(tmp_path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(("package", "make"), [("yaml", yolo_yaml), ("faster_coco_eval", coco_single)])
def test_a_missing_extra_is_named(package, make, tmp_path, monkeypatch):
    make(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path).outlines(0)
    assert caught.value.do == "pip install 'regard[detect]'"


LAUGHS = (
    '<!DOCTYPE a [<!ENTITY l "ha"><!ENTITY m "&l;&l;&l;">]><annotation><object><name>&m;</name></object></annotation>'
)


@pytest.mark.parametrize(
    ("text", "said"),
    [(LAUGHS, "document type"), ("<annotation><object>", "not an XML file"), ("x" * 2**22 + "x", "bytes; at most")],
)
def test_hostile_xml_is_refused(text, said, tmp_path):
    write_voc(tmp_path)
    (tmp_path / "Annotations" / "002.xml").write_text(text)
    with pytest.raises(DataError, match=said):
        opened(tmp_path)


def test_voc_quirks(tmp_path):
    voc_lists(tmp_path)
    inner = tmp_path / "VOCdevkit" / "VOC2012"
    (inner / "Annotations" / "003.xml").unlink()
    (inner / "Annotations" / "000.xml").write_text(
        voc_text((0, 0)).replace(
            "<annotation>", "<annotation><source><database>The VOC2012 Database</database></source>"
        )
    )
    write_voc(inner, count=1, at=8)
    dataset = opened(tmp_path)
    assert dataset.objects[0].boxes[0].tolist() == [3, 5, 14, 18], "pixels count from 1, the last one included"
    assert dict(dataset.unreadable)["JPEGImages/003.png"] == "it is listed in ImageSets and has no annotation"
    assert dataset.notes["annotated images that no list of ImageSets names, left out"]
    (inner / "ImageSets/Main/val.txt").write_text("001\n004\n")
    with pytest.raises(DataError, match="001 is listed in train and in val"):
        opened(tmp_path)


def test_what_is_no_data_of_boxes_is_refused(tmp_path):
    picture(tmp_path / "a" / "1.png", 0)
    for data, said in ((tmp_path, "no boxes that can be read"), ("https://example.org/coco.json", "an address")):
        with pytest.raises(DataError, match=said):
            read_objects(data, Progress(quiet=True))
    write_coco(tmp_path)
    for name in ("one", "two"):
        os.link(tmp_path / "annotations/boxes.json", tmp_path / f"annotations/{name}.json")
    (tmp_path / "annotations/boxes.json").unlink()
    with pytest.raises(RegardError, match="none of them named for a split"):
        opened(tmp_path)
    assert len(opened(tmp_path / "annotations/one.json")) == 6


def test_splits_keep_the_share_of_rare_classes_and_duplicates_together(tmp_path):
    names = [f"{n:03d}.png" for n in range(60)]
    sizes = [picture(tmp_path / "images" / name, n) for n, name in enumerate(names)]
    Image.open(tmp_path / "images/000.png").save(tmp_path / "images/001.png")
    sizes[1] = sizes[0]
    contents = coco_contents(names, sizes)
    rare = {n for n in range(60) if n % 4 == 0}
    contents["annotations"] = [
        row for row in contents["annotations"] if row["category_id"] == 1 or row["image_id"] - 100 in rare
    ]
    contents["categories"].append({"id": 7, "name": "unseen"})
    (tmp_path / "boxes.json").write_text(json.dumps(contents))
    dataset = opened(tmp_path)
    splits, _ = split(dataset, seed=0, share=0.2)
    for part in ("val", "test"):
        own = [n for n, name in enumerate(splits) if name == part]
        assert (len(own), len(rare & set(own))) == (12, 3)
    assert splits[0] == splits[1]
    assert dataset.conflicting() == [[0, 1]], "equal pixels, other boxes"
    text = dataset.describe()
    assert "class ids in the files: 1 to 7 with 4 gaps; here they count from 0 to 2" in text
    assert "classes without an example: unseen" in text
    before = dataset.fingerprint()
    dataset.objects[5].boxes[0, 0] += 1
    assert dataset.fingerprint() != before
