"""Data is recognised, said why, and refused with the row or name that is wrong."""

import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from regard.config import make
from regard.data import find_images, open_source, scan
from regard.data.arrays import free_memory
from regard.data.source import Files
from regard.errors import DataError, RegardError
from regard.image_groups import LabelData
from tests.conftest import make_folder


def test_one_folder_a_class(picture_folder):
    (picture_folder / "red" / "notes.txt").write_text("x")
    (picture_folder / "red" / ".hidden.png").write_text("x")
    source = open_source(picture_folder)
    assert source.classes == ("blue", "red")
    assert len(source.samples) == 24
    assert source.why == "one folder per class"
    assert source.ignored == ("red/notes.txt",)
    pixels, _ = source.read([s.key for s in source.samples].index("red/03.png"))
    assert pixels.shape == (3, 20, 20)


def test_split_folders(tmp_path):
    for split in ("train", "valid", "test"):
        make_folder(tmp_path / split, per_class=2)
    source = open_source(tmp_path)
    assert "split folders" in source.why
    assert {s.split for s in source.samples} == {"train", "val", "test"}
    assert source.counts()["val"] == {0: 2, 1: 2}


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("Training", "Testing"), ("train", "test")),
        (("training_set", "test_set"), ("train", "test")),
        (("TRAIN", "dev", "Test"), ("train", "val", "test")),
        (("train", "eval"), ("train", "val")),
        (("train", "dev", "eval"), ("train", "val", "test")),
        (("train2017", "Validation"), ("train", "val")),
    ],
)
def test_split_folders_under_their_usual_names(tmp_path, names, splits):
    for name in names:
        make_folder(tmp_path / name, per_class=1)
    source = open_source(tmp_path)
    assert source.classes == ("blue", "red")
    assert {s.key.split("/")[0]: s.split for s in source.samples} == dict(zip(names, splits, strict=True))
    table = tmp_path / "t.csv"
    rows = [f"{name}/{colour}/00.png,{colour},{name}" for name in names for colour in ("red", "blue")]
    table.write_text("path,label,split\n" + "\n".join(rows))
    assert set(open_source(table).counts()) == set(splits)


def test_a_parent_folder_is_not_a_class(tmp_path):
    make_folder(tmp_path / "outer" / "archive" / "training_set" / "training_set", per_class=1)
    make_folder(tmp_path / "outer" / "archive" / "test_set", per_class=1)
    source = open_source(tmp_path / "outer")
    assert source.classes == ("blue", "red")
    assert set(source.counts()) == {"train", "test"}
    assert source.why.startswith("inside archive: split folders")
    assert source.name == "outer"
    make_folder(tmp_path / "outer" / "other" / "train", per_class=1)
    with pytest.raises(DataError, match="archive holds test_set and training_set: it is a data set of its own"):
        open_source(tmp_path / "outer")


def test_what_lies_beside_the_data_is_said_and_left_out(tmp_path):
    make_folder(tmp_path / "data" / "train", per_class=2)
    for folder in ("test", "__MACOSX", "annotations/trimaps", "extra", "notes"):
        (tmp_path / "data" / folder).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "data" / folder / "1.jpg")
    (tmp_path / "data/notes/1.jpg").rename(tmp_path / "data/notes/readme.txt")
    source = open_source(tmp_path / "data")
    assert source.counts() == {"train": {0: 2, 1: 2}}
    assert source.left_out == (
        "__MACOSX: never part of the data",
        "annotations: never part of the data",
        "extra: 1 images, 0 other files; no split",
        "notes: 0 images, 1 other files; no split",
        "test: 1 images, 0 other files; no folder per class, so no labels",
    )
    assert "folders left out: 5" in scan(source).describe()
    assert len(open_source(tmp_path / "data", labels=False).samples) == 5, "without labels, those of test count"
    inner = open_source(tmp_path / "data" / "train")
    assert inner.left_out == ()
    for folder in ("__MACOSX", "xml"):
        (tmp_path / "data" / "train" / folder).mkdir()
        (tmp_path / "data" / "train" / folder / "a.xml").write_text("x")
    inner = open_source(tmp_path / "data" / "train")
    assert inner.classes == ("blue", "red")
    assert inner.left_out == ("__MACOSX: never part of the data", "xml: 1 files, none an image")


def named_files(folder: Path, *names: str) -> Path:
    """Tiny pictures of these names."""
    for n, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), n).save(folder / name)
    return folder


def test_labels_from_file_names(tmp_path):
    pets = named_files(tmp_path / "pets", "images/Abyssinian_1.jpg", "images/Abyssinian_2.jpg", "images/pug_10.jpg")
    source = open_source(pets, how=LabelData(label_pattern=r"^(.+)_\d+"))
    assert source.classes == ("Abyssinian", "pug")
    assert [s.label for s in source.samples] == [0, 0, 1]
    kaggle = named_files(tmp_path / "kaggle", "train/cat.0.jpg", "train/dog.0.jpg", "val/dog.1.jpg", "test1/1.jpg")
    with pytest.raises(DataError, match="test1 and train and val hold images, but no folder per class"):
        open_source(kaggle)
    source = open_source(kaggle, how=LabelData(label_pattern="^(cat|dog)"))
    assert source.counts() == {"train": {0: 1, 1: 1}, "val": {1: 1}}
    assert source.left_out == ("test1: 1 of 1 images, whose names such as 1.jpg --label-pattern does not match",)
    for pattern, words in (("^cat", "no group"), ("(", "no regular expression"), ("(x)y", "matches no file name")):
        with pytest.raises(RegardError, match=words):
            open_source(kaggle, how=LabelData(label_pattern=pattern))


def test_columns_by_name(tmp_path):
    named_files(tmp_path, "1.png", "2.png")
    table = tmp_path / "meta.csv"
    table.write_text("img,dx,label\n1.png,mel,7\n2.png,nv,8\n")
    how = LabelData(image_column="img", label_column="dx")
    for data in (table, tmp_path):
        source = open_source(data, how=how)
        assert source.classes == ("mel", "nv")
        assert "label from 'dx'; columns not used: label" in source.why
    with pytest.raises(DataError, match="no column 'dz'"):
        open_source(table, how=LabelData(image_column="img", label_column="dz"))
    with pytest.raises(DataError, match="name it by --image-column"):
        open_source(table)
    for data, name in ((table, "label_pattern"), ("digits", "label_column"), (tmp_path, "image_column")):
        with pytest.raises(RegardError, match=f"--{name.replace('_', '-')} is not for this data"):
            open_source(data, how=make(LabelData, {name: "(x)"}))


def test_the_index_column_that_pandas_writes_is_no_fault(tmp_path):
    named_files(tmp_path, "1.png", "2.png")
    (tmp_path / "t.csv").write_text(",path,label\n0,1.png,a\n1,2.png,b\n")
    source = open_source(tmp_path / "t.csv")
    assert source.classes == ("a", "b")
    assert "not used" not in source.why
    assert list(source.rows) == [2, 3]


def test_an_archive_may_name_its_classes(tmp_path):
    for name in ("classes", "label_names"):
        np.savez(tmp_path / "x.npz", **arrays(**{name: np.array(["cat", "dog", "unused"])}))
        assert open_source(tmp_path / "x.npz").classes == ("cat", "dog")
    for names, words in ((["cat"], "1 different names"), (["a", "a"], "1 different names"), ([1, 2], "not one text")):
        np.savez(tmp_path / "x.npz", **arrays(), classes=np.array(names))
        with pytest.raises(DataError, match=words):
            open_source(tmp_path / "x.npz")


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_tables_with_splits_and_groups(picture_folder, suffix):
    comma = "," if suffix == ".csv" else "\t"
    rows = [("Image", "Diagnosis", "split", "patient")]
    rows += [
        (f"{c}/{n:02d}.png", c, "test" if n > 8 else "train", f"p{n // 2}") for c in ("red", "blue") for n in range(12)
    ]
    table = picture_folder / f"labels{suffix}"
    table.write_text("\ufeff" + "\n".join(comma.join(row) for row in rows), encoding="utf-8")
    source = open_source(table)
    assert source.classes == ("blue", "red")
    assert source.samples[0].group == "p0"
    assert source.counts()["test"].total() == 6
    assert open_source(picture_folder).kind == "table", "a folder with one table is that table"


def test_numeric_labels_are_ordered_as_numbers(picture_folder):
    table = picture_folder / "t.csv"
    table.write_text("path,label\n" + "\n".join(f"red/{n:02d}.png,{n}" for n in range(12)))
    assert open_source(table).classes == tuple(str(n) for n in range(12))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,label\nred/00.png,a\nred/99.png,b\n", "row 3: no file 'red/99.png'"),
        ("path,label\nred/00.png,a\nred/01.png,\n", "row 3: no label"),
        ("file,kind\nred/00.png,a\n", "no column for the label"),
        ("path,label\n", "no rows"),
        ("path,label\nred/00.png,a\nred/00.png,b\n", "more than once"),
        ("path,label,split\nred/00.png,a,trian\n", "did you mean train"),
        ("path,label,split\nred/00.png,a,train\nred/01.png,a,\n", "1 of 2 rows have no split"),
    ],
)
def test_tables_that_are_wrong_say_where(picture_folder, text, words):
    table = picture_folder / "t.csv"
    table.write_text(text)
    with pytest.raises(DataError, match=words):
        open_source(table)


def arrays(**changes):
    draw = np.random.default_rng(0)
    out = {}
    for split, n in (("train", 8), ("val", 4), ("test", 4)):
        out[f"{split}_images"] = draw.integers(0, 255, (n, 6, 6), dtype=np.uint8)
        out[f"{split}_labels"] = (np.arange(n) % 2)[:, None]
    return out | changes


@pytest.mark.parametrize(
    ("shape", "expected"), [((6, 6), (1, 6, 6)), ((6, 6, 3), (3, 6, 6)), ((6, 6, 6), (1, 6, 6, 6))]
)
def test_medmnist_arrays(tmp_path, shape, expected):
    contents = arrays()
    for split in ("train", "val", "test"):
        contents[f"{split}_images"] = np.zeros((len(contents[f"{split}_labels"]), *shape), np.uint8)
    np.savez(tmp_path / "x.npz", **contents)
    source = open_source(tmp_path / "x.npz")
    assert source.read(0)[0].shape == expected
    assert source.counts() == {"train": {0: 4, 1: 4}, "val": {0: 2, 1: 2}, "test": {0: 2, 1: 2}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_images": np.full((8, 6, 6), np.nan, np.float32)}, "NaN"),
        ({"train_labels": np.zeros((8, 3), int)}, "not one whole number"),
        ({"train_images": np.zeros((7, 6, 6), np.uint8)}, "shape \\(7, 6, 6\\), but train_labels is for 8"),
        ({"train_images": np.array([{"code": 1}] * 8, dtype=object)}, "safely"),
    ],
)
def test_arrays_that_are_wrong_are_refused(tmp_path, changes, words):
    np.savez(tmp_path / "x.npz", **arrays(**changes))
    with pytest.raises(DataError, match=words):
        open_source(tmp_path / "x.npz")


def test_an_archive_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("unpacked"))
    blank: dict[str, Any] = {"train_images": np.zeros((100, 100, 100), np.uint8), "train_labels": np.arange(100) % 2}
    np.savez_compressed(tmp_path / "x.npz", **blank)
    monkeypatch.setattr("regard.data.arrays.free_memory", lambda: 1_000_000)
    with pytest.raises(DataError, match=r"unpack to 1,000,800 bytes; this machine has room for 750,000"):
        open_source(tmp_path / "x.npz")
    for change in ({"train_labels": np.zeros((100, 10_000), int)}, {"train_images": np.zeros((100, 10_000), np.uint8)}):
        contents: Any = blank | change
        np.savez_compressed(tmp_path / "x.npz", **contents)
        with pytest.raises(DataError, match="has shape"):
            open_source(tmp_path / "x.npz")


def test_only_what_is_needed_of_an_archive_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.data.arrays.free_memory", lambda: 10_000)
    more: dict[str, Any] = {"other_images": np.zeros(10**6, np.uint8), "train_masks": np.zeros(10**6, np.uint8)}
    np.savez_compressed(tmp_path / "x.npz", **arrays(), **more)
    assert len(open_source(tmp_path / "x.npz").samples) == 16


def test_deep_pixels_stay_as_they_are_until_one_is_read(tmp_path):
    """16 bits as 32 would double what an archive takes, three times over while all of it is converted."""
    deep = np.full((8, 6, 6), 65535, np.uint16)
    np.savez(tmp_path / "x.npz", **arrays(train_images=deep))
    source = open_source(tmp_path / "x.npz")
    reader: Any = source.reader
    assert reader.arrays[0].base.nbytes == deep.nbytes
    assert torch.equal(source.read(0)[0], torch.ones(1, 6, 6))


def test_there_is_some_memory():
    assert 2**20 < free_memory() < 2**60


def test_embedded_digits_have_a_fixed_test_split():
    source = open_source("digits")
    assert len(source.samples) == 1797
    assert sum(s.split == "test" for s in source.samples) == 355
    assert source.read(0)[0].shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("name", "words"), [("none/", "no such data"), ("https://a.b/c.zip", "address"), ("x.parquet", "no known data")]
)
def test_what_is_no_data_says_so(tmp_path, name, words):
    (tmp_path / "x.parquet").write_text("x")
    with pytest.raises(DataError, match=words):
        open_source(name if "://" in name else tmp_path / name)


def test_duplicates_within_and_across_splits_are_found(tmp_path):
    for split in ("train", "test"):
        make_folder(tmp_path / split, per_class=3)
    for seed, file in enumerate((tmp_path / "test").rglob("*.png"), start=1):  # other pixels, except one copy
        Image.fromarray(np.random.default_rng(seed).integers(0, 255, (20, 20, 3), np.uint8)).save(file)
    Image.open(tmp_path / "train/red/00.png").save(tmp_path / "test/blue/copy.bmp")
    found = scan(open_source(tmp_path))
    splits = [s.split or "" for s in found.source.samples]
    crossing = [{found.source.samples[i].key for i in group} for group in found.crossing(splits)]
    assert {"train/red/00.png", "test/blue/copy.bmp"} in crossing
    assert len(found.conflicting()) == 1
    assert "leaks): 1" in found.describe()


def test_damage_is_listed_not_raised(picture_folder):
    (picture_folder / "red" / "03.png").write_bytes(b"\x89PNG broken")
    found = scan(open_source(picture_folder))
    assert [key for key, _ in found.unreadable] == ["red/03.png"]
    with pytest.raises(DataError, match=r"red/03\.png"):
        found.require_usable()
    with pytest.raises(DataError) as caught:
        found.require_usable(0.01)
    found.require_usable(float(str(caught.value).split("--unreadable ")[1]))  # what is advised is enough


def test_the_fingerprint_follows_pixels_and_labels(picture_folder):
    before = scan(open_source(picture_folder)).fingerprint()
    assert scan(open_source(picture_folder)).fingerprint() == before
    (picture_folder / "red" / "03.png").rename(picture_folder / "blue" / "33.png")
    assert scan(open_source(picture_folder)).fingerprint() != before


def test_find_images_takes_files_folders_and_globs(picture_folder):
    one = str(picture_folder / "red" / "00.png")
    assert len(find_images([one])) == 1
    assert len(find_images([str(picture_folder)])) == 24
    assert len(find_images([one, str(picture_folder / "*" / "0*.png")])) == 20
    with pytest.raises(DataError, match="no image"):
        find_images([str(picture_folder / "*.gif")])


def test_the_order_of_samples_does_not_depend_on_the_file_system(tmp_path):
    for order in (("train", "val", "test"), ("test", "train", "val")):
        for split in order:
            make_folder(tmp_path / order[0] / split, per_class=2)
    first, second = (scan(open_source(tmp_path / name)) for name in ("train", "test"))
    assert first.fingerprint() == second.fingerprint()


def test_folders_that_are_half_splits_are_refused(tmp_path):
    for name in ("train", "test", "extra"):
        make_folder(tmp_path / "a" / name, per_class=2)
    with pytest.raises(DataError, match="beside test, train there is extra"):
        open_source(tmp_path / "a")
    for name in ("train", "val", "validation"):
        make_folder(tmp_path / "b" / name, per_class=2)
    with pytest.raises(DataError, match="val and validation are the same split"):
        open_source(tmp_path / "b")


def test_a_class_may_be_called_train(tmp_path):
    make_folder(tmp_path, per_class=2, classes=("car", "train"))
    assert open_source(tmp_path).classes == ("car", "train")


def test_images_that_belong_to_no_class_are_reported(picture_folder):
    (picture_folder / "red" / "00.png").rename(picture_folder / "loose.png")
    (picture_folder / "red" / "more").symlink_to(picture_folder / "blue")
    source = open_source(picture_folder)
    assert source.ignored == ("loose.png",)
    assert len(source.samples) == 23 + 12, "linked folders are followed"
    (picture_folder / "t.csv").write_text("path,label\nred/01.png,a\nblue/01.png,b\n")
    assert len(open_source(picture_folder).samples) == 2
    assert "red/02.png" in open_source(picture_folder).ignored


def test_a_table_about_something_else_is_not_taken_for_labels(picture_folder):
    (picture_folder / "scores.csv").write_text("epoch,loss\n1,2\n")
    assert open_source(picture_folder).kind == "folder"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("red/01.png,cat, black", "row 3: more fields than the header"),
        (f"{'x' * 5000}.png,a", "row 3: no file"),
        ('red/01.png,"' + "y" * 140_000 + '"', "not well formed"),
    ],
)
def test_rows_that_cannot_be_right(picture_folder, row, words):
    (picture_folder / "t.csv").write_text(f"path,label\nred/00.png,a\n{row}\n")
    with pytest.raises(DataError, match=words):
        open_source(picture_folder / "t.csv")


def test_labels_with_line_breaks_and_odd_numerals(picture_folder):
    labels = ['"a\nb"', "²", "--1", "10", "9"]
    rows = [f"red/{n:02d}.png,{label}" for n, label in enumerate(labels)]
    (picture_folder / "t.csv").write_text("path,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    assert open_source(picture_folder / "t.csv").classes == ("9", "10", "--1", "a\nb", "²")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"val_images": np.zeros((0, 6, 6), np.uint8), "val_labels": np.zeros((0, 1), int)}, None),
        ({"train_labels": np.array(3)}, "not one whole number"),
        ({"test_labels": None}, "only one is there"),
    ],
)
def test_odd_archives(tmp_path, changes, words):
    contents = {name: value for name, value in arrays(**changes).items() if value is not None}
    np.savez(tmp_path / "x.npz", **contents)
    if words is None:
        assert open_source(tmp_path / "x.npz").counts().keys() == {"train", "test"}
    else:
        with pytest.raises(DataError, match=words):
            open_source(tmp_path / "x.npz")


def test_a_name_that_is_no_text_is_refused(tmp_path):
    import os

    (tmp_path / "a").mkdir()
    try:
        with open(os.fsencode(tmp_path / "a") + b"/caf\xe9.png", "wb"):
            pass
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    with pytest.raises(DataError, match="not UTF-8"):
        open_source(tmp_path)


@pytest.mark.parametrize("header", ["patient", "PatientID", "Patient ID", "subject_id", "case-id"])
def test_patients_are_known_under_their_usual_names(picture_folder, header):
    rows = "".join(f"red/{n:02d}.png;a;p{n // 2};x\n" for n in range(8))
    (picture_folder / "t.csv").write_text(f"Path;Label;{header};age\n{rows}")
    source = open_source(picture_folder / "t.csv")
    assert source.samples[3].group == "p1"
    assert f"group from '{header}'" in source.why
    assert "not used: age" in source.why
    assert "of 4: 0" in scan(source).describe()


def test_unknown_patients_are_not_called_checked(picture_folder):
    assert "patients: not known" in scan(open_source(picture_folder)).describe()


@dataclass(frozen=True)
class Deadly(Files):
    """One of its files kills whoever reads it, as a decoder with a fault would."""

    def __call__(self, index):
        if index == 300:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(index)


@dataclass(frozen=True)
class Stuck(Files):
    """After the first part, no file can be read to its end."""

    def __call__(self, index):
        if index >= 32:
            signal.pause()
        return super().__call__(index)


def stop(done: int, total: int) -> None:
    raise KeyboardInterrupt


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_processes_that_read_end_with_the_check_or_when_it_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    source = open_source(make_folder(tmp_path / "many", per_class=300, side=4))
    reader: Any = source.reader
    threads = set(threading.enumerate())
    scan(source)
    assert not multiprocessing.active_children()
    assert set(threading.enumerate()) == threads
    with pytest.raises(KeyboardInterrupt):
        scan(dataclasses.replace(source, reader=Stuck(reader.paths)), stop)
    assert not multiprocessing.active_children()


def test_threads_that_read_stop_after_the_image_they_are_at(tmp_path, monkeypatch):
    source = open_source(make_folder(tmp_path / "few", per_class=100, side=4))
    stopped, read, real = threading.Event(), [], ThreadPoolExecutor.shutdown

    def reader(index: int) -> Any:
        read.append(index)
        if index >= 32:
            stopped.wait()
        return source.reader(index)

    def shutdown(pool: ThreadPoolExecutor, **options: Any) -> None:
        stopped.set()
        real(pool, **options)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", shutdown)
    with pytest.raises(KeyboardInterrupt):
        scan(dataclasses.replace(source, reader=reader), stop)
    assert len(read) <= 32 + 2


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_many_files_are_read_by_processes_and_one_that_dies_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    source = open_source(make_folder(tmp_path / "many", per_class=300, side=4))
    few = scan(dataclasses.replace(source, samples=source.samples[:100]))
    many = scan(source)
    assert many.digests[:100] == few.digests
    assert len(many.cache) == 600
    reader: Any = source.reader
    with pytest.raises(DataError, match="was killed"):
        scan(dataclasses.replace(source, reader=Deadly(reader.paths)))
