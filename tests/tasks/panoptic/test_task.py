"""Panoptic segmentation from data to report: figures are those of the written maps, and frozen boxes stay."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard import tasks
from regard.console import Progress
from regard.data.objects.panoptic import read_panoptic
from regard.data.objects.scenes import STUFF, THINGS, write_scenes
from regard.errors import ConfigError, RunError
from regard.metrics.panoptic import panoptic_counts, summarise_panoptic
from regard.tasks.panoptic.settings import Config, EvalOptions
from regard.tasks.panoptic.task import Task
from regard.weights import open_weights, save_checkpoint
from tests.conftest import whole_runs

pytestmark = pytest.mark.usefixtures("few_resamples")

NAMES = (*THINGS, *STUFF)
NANO = {"depth": 1, "decoder_depth": 1, "workers": 0, "epochs": 1, "quiet": True}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return write_scenes(tmp_path_factory.mktemp("made") / "scenes", train=8, val=3, test=3, size=64)


@pytest.fixture(scope="module")
@whole_runs()
def run(scenes, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "joint"
    return regard.train(scenes, model="detr_nano_panoptic", out=out, explain=2, lr=2e-3, **NANO)


@pytest.fixture(scope="module")
def segmenter(run):
    """Not trained enough to be sure of anything: so nothing must be sure."""
    made: Any = regard.load(run.path)
    made.map_threshold = made.threshold = 0.0
    return made


def test_thresholds_chosen_on_validation_images_are_kept_in_the_weights(run, tmp_path):
    chosen = {"val_threshold": 0.37, "val_map_threshold": 0.2}
    for name, change in (("chosen", chosen), ("damaged", chosen | {"val_map_threshold": "high"})):
        save_checkpoint(tmp_path / f"{name}.safetensors", replace(open_weights(run.path)[0], progress=change))
    loaded: Any = regard.load(tmp_path / "chosen.safetensors")
    assert (loaded.threshold, loaded.map_threshold) == (0.37, 0.2)
    with pytest.raises(RunError, match="threshold is no number"):
        regard.load(tmp_path / "damaged.safetensors")


def test_a_run_reports_maps_masks_and_boxes(run):
    summary = run.read_json("summary.json")
    assert summary["headline"] == ["pq", "ap50"]
    assert {"pq", "sq_things", "rq_stuff", "mask_ap", "mask_ap50", "ap", "ap50"} <= summary["figures"].keys()
    assert summary["figures"]["pq"]["n"] == 3
    assert summary["things"] == {name: name in THINGS for name in NAMES}
    assert "**Model.** detr_nano_panoptic (changed): " in (run.path / "model_card.md").read_text()
    html = (run.path / "report.html").read_text()
    assert html.count("with its segments") == 2
    for words in ("PQ, stuff", "Segments by class", "Kinds of errors"):
        assert words in html


def test_predictions_are_maps_masks_and_boxes_in_pixels_of_the_file(scenes, segmenter, tmp_path):
    wide = tmp_path / "wide.png"
    Image.open(scenes / "test" / "000001.png").resize((120, 80)).save(wide)
    made = segmenter.predict(wide)
    assert made.size == (80, 120)
    assert made.panoptic.shape == (80, 120)
    assert made.masks.shape == (len(made.boxes), 80, 120)
    assert made.masks.dtype == torch.bool
    assert {own.number for own in made.segments} == set(made.panoptic.unique().tolist()) != {0}
    assert all(own.area == int((made.panoptic == own.number).sum()) > 4 for own in made.segments)
    stuff = [own.label for own in made.segments if not own.thing]
    assert len(stuff) == len(set(stuff))
    assert set(made.labels) <= set(THINGS)


def test_boxes_of_things_are_explained(scenes, segmenter):
    image = scenes / "test" / "000001.png"
    made = segmenter.explain(image, method="attention", box=1, checks="none")
    assert made.target == segmenter.predict(image).labels[1]
    assert made.map.shape == (64, 64)


def test_written_maps_have_the_figures_of_the_evaluation(scenes, run, segmenter, tmp_path):
    """Read back as anyone would read them, and counted against the true maps."""
    paths = sorted((scenes / "test").glob("*.png"))
    written = read_panoptic(segmenter.save(segmenter.predict_many(paths), tmp_path / "maps.json"))
    assert (written.classes, written.things) == (NAMES, tuple(name in THINGS for name in NAMES))
    truth = read_panoptic(scenes / "annotations" / "panoptic_test.json")
    counts = [
        panoptic_counts(
            true.read_ids(), own.read_ids(), {s.number: s.label for s in true.segments},
            {s.number: s.label for s in own.segments}, len(NAMES),
        )
        for true, own in zip(truth.images, written.images, strict=True)
    ]  # fmt: skip
    expected = summarise_panoptic(np.stack(counts), NAMES, truth.things)
    dataset = Task.open(scenes, Config(), Progress(True))
    index = [n for n, split in enumerate(dataset.given_splits()) if split == "test"]
    result = Task.evaluate_on(segmenter, dataset, index, EvalOptions(batch_size=2), Progress(True))
    assert result.quality is not None
    assert result.quality.counts == expected.counts
    assert sum(row["false_positives"] for row in expected.counts.values()) > 0
    rows = [json.loads(row["segments"]) for row in result.predictions()]
    assert sum(own[2] for row in rows for own in row.values()) == sum(
        row["false_positives"] for row in expected.counts.values()
    )


def test_written_maps_have_the_ids_of_the_file_that_lists_the_images(scenes, segmenter, tmp_path):
    truth = scenes / "annotations" / "panoptic_test.json"
    listed = {row["file_name"]: row["id"] for row in json.loads(truth.read_text())["images"]}
    paths = sorted((scenes / "test").glob("*.png"), reverse=True)
    segmenter.save(segmenter.predict_many(paths, ids=truth), tmp_path / "maps.json")
    made = json.loads((tmp_path / "maps.json").read_text())
    assert [(row["file_name"], row["id"]) for row in made["images"]] == sorted(listed.items(), reverse=True)
    assert [row["image_id"] for row in made["annotations"]] == [row["id"] for row in made["images"]]
    both = [scenes / split / paths[0].name for split in ("val", "test")]
    segmenter.save(segmenter.predict_many(both), tmp_path / "both.json")
    assert len(list((tmp_path / "both").glob("*.png"))) == 2


def test_a_run_is_evaluated_and_its_figures_written(scenes, run, tmp_path):
    result: Any = regard.evaluate(run.path, scenes, out=tmp_path / "tested", quiet=True)
    assert result.figures["pq"].value == run.read_json("summary.json")["figures"]["pq"]["value"]
    assert (tmp_path / "tested" / "predictions.csv").is_file()


def test_the_second_stage_trains_the_mask_head_only(scenes, tmp_path):
    boxes = regard.create("detr_nano", classes=len(NAMES), size=64, depth=1, decoder_depth=1, dropout=0.5)
    weights = regard.save(boxes, tmp_path / "boxes.safetensors", classes=NAMES)
    kept: Any = {
        "data": scenes,
        "weights": weights,
        "recipe": "panoptic_masks",
        "explain": 0,
        "workers": 0,
        "quiet": True,
    }
    run = regard.train(**kept, epochs=1, out=tmp_path / "run")
    trained, before = open_weights(run.path)[0].weights, boxes.state_dict()
    assert all((trained[name] == tensor).all() for name, tensor in before.items())
    assert {name.split(".")[0] for name in trained.keys() - before.keys()} == {"masks"}
    facts = run.read_json("transfer.json")
    assert "the mask head: the file has none" in facts["untrained"]
    assert facts["parameters_trained"] == sum(t.numel() for name, t in trained.items() if name.startswith("masks."))
    other = regard.save(boxes, tmp_path / "other.safetensors")
    with pytest.raises(ConfigError, match="these cannot be frozen"):
        regard.train(**kept | {"weights": other}, out=tmp_path / "no")
    with pytest.raises(ConfigError, match="class_weight is of the loss of boxes"):
        regard.train(**kept, class_weight=4.0, out=tmp_path / "no")
    with pytest.raises(ConfigError, match="would freeze random boxes"):
        regard.train(**kept | {"weights": None}, out=tmp_path / "no")


def test_masks_keep_the_resolution_of_finer_tokens():
    """A token of stride 8 looks at its own place: a change of it alone must show where it is, not around it."""
    model = regard.create("detr_nano_panoptic", classes=3, size=64, dilated=False, fused_stages=3, stride=8).eval()
    assert model.masks is not None
    maps = [torch.zeros(1, channels, side, side) for channels, side in ((16, 16), (32, 8), (64, 4))]
    cells, changed = torch.zeros(1, 64, 8, 8), torch.zeros(1, 64, 8, 8)
    changed[..., 1, 1] = 5.0
    weights = torch.full((1, 8, 1, 64), 1 / 512)
    with torch.no_grad():
        before, after = (model.masks(weights, each, maps) for each in (cells, changed))
    assert before.shape == (1, 1, 16, 16)
    moved = (after - before).abs()[0, 0]
    assert moved[2:4, 2:4].mean() > 3 * moved[12:, 12:].mean()


def test_instances_have_masks_without_a_map(scenes, tmp_path):
    run = regard.train(scenes, model="detr_nano_panoptic", stuff=False, out=tmp_path / "run", explain=1, **NANO)
    summary = run.read_json("summary.json")
    assert summary["headline"] == ["mask_ap", "ap50"]
    assert "pq" not in summary["figures"]
    assert list(summary["per_class"]) == list(THINGS)


@pytest.mark.parametrize(
    ("asked", "task"),
    [
        ({"model": "detr_nano"}, "detection"),
        ({}, "detection"),
        ({"stuff": True}, "panoptic"),
        ({"model": "detr_nano", "stuff": True}, "detection"),
        ({"model": "detr_nano_panoptic"}, "panoptic"),
    ],
)
def test_the_model_says_which_task_is_meant(scenes, asked, task):
    assert tasks.choose(scenes, asked)[0].name == task


def test_the_demo_trains_boxes_of_things_and_stuff_and_then_their_masks(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.api.SCENES", {"train": 4, "val": 2, "test": 2, "size": 64})
    run = regard.demo("scenes", out=tmp_path / "demo", epochs=1, explain=0, workers=0, device="cpu", quiet=True)
    boxes = open_weights(tmp_path / "demo" / "boxes")[0]
    assert len(boxes.classes) == 13
    assert boxes.config["queries"] == 20  # the recipe's
    assert open_weights(run.path)[0].classes == boxes.classes
    assert "pq" in run.read_json("summary.json")["figures"]
