"""Detection from data to report: trained, resumed, tested, used, compared and fine-tuned by the public commands."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import regard
import regard.training.loop as loop
from regard import registry
from regard.console import Progress
from regard.data.objects import (
    ObjectFeed,
    ObjectImages,
    ObjectLoader,
    choose_buckets,
    read_objects,
    target_slots,
)
from regard.errors import ConfigError
from regard.metrics.detection import quick_ap
from regard.nn.boxes import to_centred
from regard.tasks.detection.task import Task
from regard.tasks.objects.decoding import decode
from regard.tasks.objects.diagnostics import diagnose, diagnose_training
from regard.tasks.objects.evaluation import detect, truths_of
from regard.tasks.objects.loss import SetLoss
from regard.tasks.objects.predictor import Detector
from tests.conftest import settings_of, whole_runs
from tests.tasks.detection.made import write_boxes

pytestmark = pytest.mark.usefixtures("few_resamples")

SMALL: dict[str, Any] = {
    "width": 16, "depth": 1, "decoder_depth": 2, "heads": 2, "mlp": 32, "backbone_width": 8, "blocks": (1, 1),
    "fused_stages": 1, "dilated": False, "size": 64, "epochs": 2, "batch_size": 4, "explain": 1, "device": "cpu",
    "workers": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_boxes(tmp_path_factory.mktemp("boxes") / "data", {"train": 10, "valid": 4, "test": 5})


@pytest.fixture(scope="module")
@whole_runs()
def run(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "boxes"
    return regard.train(data, out=out, quiet=True, **SMALL).path


class Answers(torch.nn.Module):
    """A network that answers what is asked of the feed: the true boxes, twice as many queries, in plain mode."""

    def __init__(self, feed: ObjectFeed, classes: int):
        super().__init__()
        self.config = SimpleNamespace(classification="softmax")
        self.known = {b.inputs["image"].double().sum().item(): b.targets for b in feed.epoch(0, 0, iter)}
        self.classes = classes

    def forward(self, image: torch.Tensor, mask: torch.Tensor) -> Any:
        targets = self.known[image.double().sum().item()]
        labels = targets["labels"]
        wanted = torch.where(labels < 0, self.classes, labels)
        logits = 20.0 * torch.nn.functional.one_hot(wanted, self.classes + 1)
        boxes = torch.where((labels < 0)[..., None], 0.5, targets["boxes"])
        none = torch.zeros(0, *logits.shape)
        return SimpleNamespace(logits=logits, boxes=boxes, auxiliary_logits=none, auxiliary_boxes=none[..., :4])


def test_true_boxes_go_to_the_input_and_back_to_the_file_and_score_one(data):
    dataset = read_objects(data, Progress(quiet=True))
    index = list(range(len(dataset)))
    buckets = choose_buckets([(64, 64), (48, 64)], (128, 128))  # pictures of two proportions, enlarged
    assert len(buckets) == 2
    images = ObjectImages(dataset, buckets, 3, target_slots(dataset, index, 100))
    feed = ObjectFeed(ObjectLoader(images, index, 4), (0.5,) * 3, (0.2,) * 3, torch.device("cpu"))
    model = Answers(feed, 3)
    numbers, detections, lost, spread = detect(model, feed, dataset.shapes, lambda *_: None, SetLoss())
    assert sorted(numbers) == index
    truths = truths_of(dataset, numbers, ("blue", "green", "red"))  # numbered otherwise
    for truth, own in zip(truths, detections, strict=True):
        surest = own.boxes[: len(truth.boxes)]
        order = [int(np.abs(surest - box).sum(1).argmin()) for box in truth.boxes]
        np.testing.assert_allclose(surest[order], truth.boxes, atol=1e-3)
    truths = truths_of(dataset, numbers, dataset.source.classes)
    assert quick_ap(truths, detections, 3)["ap"] == pytest.approx(1.0)
    assert spread.best_score > 0.99
    assert lost < 1e-3


def test_decoding_takes_one_class_per_query_or_the_best_pairs():
    logits = torch.tensor([[[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]]])
    output = SimpleNamespace(logits=logits, boxes=torch.tensor([[[0.5, 0.5, 1.0, 0.5], [0.25, 0.25, 0.5, 0.5]]]))
    made = decode(output, "softmax")
    assert made.labels.tolist() == [[0, 1]]
    assert made.queries.tolist() == [[1, 0]]
    assert made.scores[0].tolist() == pytest.approx(
        [float(logits[0, 1].softmax(-1)[0]), float(logits[0, 0].softmax(-1)[1])]
    )
    assert made.boxes[0, 1].tolist() == [0.0, 0.25, 1.0, 0.75]
    made = decode(output, "focal")
    assert made.labels[0].tolist()[:3] == [0, 1, 2]
    assert made.scores[0].tolist() == sorted(logits.sigmoid().flatten().tolist(), reverse=True)


def test_a_run_has_what_every_run_has(run):
    summary = json.loads((run / "summary.json").read_text())
    assert {"ap", "ap50", "ar"} <= summary["figures"].keys()
    assert list(summary["per_class"]) == ["red", "green", "blue"]
    assert np.array(summary["confusion"]).shape == (4, 4)
    assert summary["errors"].keys() == {"class", "location", "both", "duplicate", "background", "missed"}
    report = (run / "report.html").read_text()
    for words in ("Kinds of errors", "Precision and recall", "Worst images", "background", "AP50"):
        assert words in report
    assert (run / "explain" / "boxes-01.png").is_file()
    assert "AP50" in (run / "model_card.md").read_text()
    settings = settings_of(run)
    assert settings["queries"] == {"value": 20, "origin": "auto"}
    assert settings["model"]["value"] == "detr_nano"
    assert settings["backbone_rate"]["value"] == 1.0


def test_a_stopped_run_resumes_to_the_same_bits(data, run, tmp_path, monkeypatch):
    calls = list[int]()

    def asked(stop: Any) -> bool:
        calls.append(1)
        return len(calls) > 4

    with monkeypatch.context() as patch:
        patch.setattr(loop.Stop, "asked", asked)
        with pytest.raises(SystemExit):
            regard.train(data, out=tmp_path / "run", quiet=True, save_every=0, **SMALL)
    assert not (tmp_path / "run" / "summary.json").exists()
    regard.resume(tmp_path / "run", quiet=True)
    for name in ("best", "last"):
        one, other = (load_file(path / "checkpoints" / f"{name}.safetensors") for path in (run, tmp_path / "run"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    first, second = ((path / "predictions.csv").read_text() for path in (run, tmp_path / "run"))
    assert first == second


def test_the_commands_eval_compare_and_report(data, run, cli, tmp_path):
    code, said, error = cli("eval", run, data, "--out", tmp_path / "tested", "--quiet")
    assert code == 0, error
    value = json.loads((run / "summary.json").read_text())["figures"]["ap"]["value"]
    assert f"ap        {value:.4f}" in said
    assert "confusion (rows true, columns predicted)" in said
    code, said, error = cli("compare", run, tmp_path / "tested")
    assert code == 0, error
    assert "ap: no clear difference: +0.0000" in said
    (run / "report.html").unlink()
    assert cli("report", run)[0] == 0
    assert (run / "report.html").is_file()


def test_predictions_are_in_pixels_of_the_file_as_csv_coco_and_pictures(data, run, cli, tmp_path):
    code, _, error = cli(
        "predict", run, data / "test", "--threshold", "0", "--out", tmp_path / "p.json", "--draw", tmp_path / "drawn"
    )
    assert code == 0, error
    made = json.loads((tmp_path / "p.json").read_text())
    assert [c["id"] for c in made["categories"]] == [2, 5, 8]
    assert len(made["images"]) == 5
    sizes = {image["id"]: (image["width"], image["height"]) for image in made["images"]}
    assert set(sizes.values()) == {(64, 64), (64, 48)}
    for entry in made["annotations"]:
        left, top, width, height = entry["bbox"]
        assert left >= 0
        assert top >= 0
        assert left + width <= sizes[entry["image_id"]][0] + 0.02
        assert top + height <= sizes[entry["image_id"]][1] + 0.02
    assert len(list((tmp_path / "drawn").glob("*.png"))) == 5
    code, _, error = cli("predict", run, data / "test", "--threshold", "0", "--out", tmp_path / "p.csv")
    assert code == 0, error
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(made["annotations"])
    assert float(rows[0]["left"]) == made["annotations"][0]["bbox"][0]
    code, said, error = cli("predict", run, data / "test" / "test001.png", "--threshold", "1")
    assert code == 0, error
    assert "–" in said


def test_predictions_have_the_ids_of_the_file_that_lists_the_images(data, run, cli, tmp_path):
    """Images in another order than in the file, and only some of them."""
    names = sorted(path.name for path in (data / "test").glob("*.png"))
    rows = [{"id": 70 + n, "file_name": f"test/{name}"} for n, name in enumerate(names)]
    (tmp_path / "truth.json").write_text(json.dumps({"images": rows}))
    given = [data / "test" / name for name in (names[3], names[1])]
    asked = ["predict", run, *given, "--threshold", "0", "--out"]
    code, _, error = cli(*asked, tmp_path / "p.json", "--ids", tmp_path / "truth.json")
    assert code == 0, error
    made = json.loads((tmp_path / "p.json").read_text())
    assert [(image["id"], image["file_name"]) for image in made["images"]] == [
        (73, f"test/{names[3]}"),
        (71, f"test/{names[1]}"),
    ]
    assert {entry["image_id"] for entry in made["annotations"]} == {71, 73}
    assert cli(*asked, tmp_path / "counted.json")[0] == 0
    made = json.loads((tmp_path / "counted.json").read_text())
    assert [(image["id"], image["file_name"]) for image in made["images"]] == [(1, names[3]), (2, names[1])]


def test_one_image_or_many_give_the_same_boxes_sorted_by_score(data, run):
    detector: Any = regard.load(run)
    paths = sorted((data / "test").glob("*.png"))
    one, many = detector.predict(paths[1], threshold=0.0), list(detector.predict_many(paths, threshold=0.0))[1]
    torch.testing.assert_close(one.boxes, many.boxes, atol=1e-3, rtol=0)
    assert one.scores.tolist() == sorted(one.scores.tolist(), reverse=True)
    assert set(one.labels) <= {"red", "green", "blue"}
    assert one.size == (48, 64)
    assert len(detector.predict(paths[1], threshold=1.0)) == 0
    # A network that answers with one corner of the picture, whatever the padding.
    quarter = to_centred(torch.tensor([0.5, 0.5, 1.0, 1.0]))

    def corner(x: torch.Tensor, mask: torch.Tensor) -> Any:
        logits = torch.full((len(x), 1, 3), -9.0)
        logits[..., 1] = 9.0
        return SimpleNamespace(logits=logits, boxes=quarter.expand(len(x), 1, 4))

    corner.config = detector.model.config  # pyright: ignore[reportFunctionMemberAccess]
    detector.model = corner
    detections = detector.predict(paths[1])
    assert detections.boxes[0].tolist() == [32.0, 24.0, 64.0, 48.0]
    assert detections.labels[0] == "green"


def test_a_run_is_tuned_to_other_classes_and_says_what_is_replaced(run, cli, tmp_path):
    other = write_boxes(tmp_path / "other", {"train": 6, "valid": 3, "test": 3}, classes=("blue", "red"), seed=1)
    code, _, error = cli(
        "train", other, "--from", run, "--out", tmp_path / "tuned", "--epochs", 1, "--batch-size", 4, "--device", "cpu",
        "--workers", 0, "--explain", 0,
    )  # fmt: skip
    assert code == 0, error
    assert "the head for 2 classes is" in error
    assert "the file's head" in error
    settings = settings_of(tmp_path / "tuned")
    assert settings["backbone_rate"] == {"value": 0.1, "origin": "auto"}
    assert settings["recipe"]["value"] == "detection_finetune"
    assert settings["two_stage"] == {"value": True, "origin": "weights"}
    assert [settings[name] for name in ("optimizer", "lr", "clip", "class_weight")] == [
        {"value": value, "origin": "auto"} for value in ("muon", 2e-3, 5.0, 12.0)
    ]
    assert "optimizer=muon, lr=0.002, clip=5.0, class_weight=12.0, as its classes are learnt by focal loss" in error
    assert json.loads((tmp_path / "tuned" / "transfer.json").read_text())["untrained"]
    tuned: Any = regard.load(tmp_path / "tuned")
    assert tuned.classes == ("blue", "red")
    with pytest.raises(ConfigError, match="the model has no class 'green', which the data has"):
        regard.evaluate(tmp_path / "tuned", write_boxes(tmp_path / "third", {"test": 2}), quiet=True)


def test_the_rates_of_fine_tuning_depend_on_the_weights(data):
    def rates(classification: str, **asked: Any) -> dict[str, Any]:
        start = SimpleNamespace(
            checkpoint=SimpleNamespace(model="detr_nano", config={"classification": classification})
        )
        choice = Task.choose(read_objects(data, Progress(True)), start, asked, False)
        assert choice.recipe == "detection_finetune" or asked
        return {name: value for name, value in choice.values.items() if name != "epochs"}

    modern = {"optimizer": "muon", "lr": 2e-3, "clip": 5.0, "class_weight": 12.0}
    assert rates("softmax") == {}, "published DETRs keep the published rates"
    assert rates("focal") == rates("varifocal") == modern
    assert rates("focal", lr=1e-2) == {name: value for name, value in modern.items() if name != "lr"}
    assert rates("focal", optimizer="adamw") == {"class_weight": 12.0}
    assert rates("focal", recipe="detection") == {}


def test_a_gpu_has_the_network_that_was_measured_there(data):
    """benchmarks/results/bccd.md; what is asked for, and the paper's recipe, keep their own."""
    dataset = read_objects(data, Progress(True))

    def chosen(gpu: bool, **asked: Any) -> str | None:
        return Task.choose(dataset, None, asked, gpu).values.get("model")

    assert (chosen(True), chosen(False)) == ("detr_mini", None)
    assert "detr_mini" in Task.choose(dataset, None, {}, True).why
    assert chosen(True, model="detr_nano") is chosen(True, recipe="detection_plain") is None
    measured = json.loads(
        Path(__file__).parents[3].joinpath("benchmarks/results/bccd.jsonl").read_text().splitlines()[-1]
    )
    shape = {name: measured["budget"][name] for name in ("width", "mlp", "depth", "decoder_depth", "backbone_width")}
    config = registry.configure("detr_mini")
    assert shape == {name: getattr(config, name) for name in shape}


def test_weights_that_no_run_trained_are_used_too(run, data, tmp_path):
    torch.manual_seed(0)
    regard.save(regard.create("detr_nano", classes=3, size=64), tmp_path / "made.safetensors")
    detector: Any = regard.load(tmp_path / "made.safetensors")
    assert isinstance(detector, Detector)
    assert len(detector.predict(data / "test" / "test001.png", threshold=0.0)) == 20
    explained = detector.explain(data / "test" / "test001.png", method="rollout", checks="none")
    assert explained.map.sum() == pytest.approx(1.0)


GOOD = {"same_place": 0.1, "same_answer": 0.1, "best_score": 0.9}


@pytest.mark.parametrize(
    ("ap50", "spread", "words"),
    [
        (0.8, {"same_place": 0.9, "best_score": 0.1}, ""),
        (0.1, {"same_place": 0.9}, "queries have collapsed"),
        (0.1, {"same_answer": 0.95}, "hardly depend on the image"),
        (0.1, {"best_score": 0.05}, "no-object dominates"),
        (0.1, {}, "train longer"),
    ],
)
def test_a_failed_run_says_why(ap50, spread, words):
    summary: dict[str, Any] = {
        "figures": {"ap50": {"value": ap50}}, "spread": GOOD | spread, "confusion": [[3, 0], [0, 0]],
        "per_class": {"a": {}}, "threshold": 0.5,
    }  # fmt: skip
    lines = diagnose(summary)
    assert (words in " ".join(lines)) if words else not lines
    summary |= {"confusion": [[3, 0, 0], [2, 0, 4], [0, 0, 0]], "per_class": {"a": {}, "b": {}}}
    assert any("never predicted with a score of 0.50 or more: b" in line for line in diagnose(summary))


def test_the_training_loss_tells_a_wrong_learning_rate():
    def rows(*losses: float) -> list[dict[str, str]]:
        return [{"train_loss": str(loss)} for loss in losses]

    assert diagnose_training(rows(10, 6, 3, 2), 1e-4) == []
    assert "too low" in diagnose_training(rows(10, 9.9, 9.8, 9.7), 1e-7)[0]
    assert "is too high" in diagnose_training(rows(10, 8, 12, 30), 1.0)[0]


def test_small_boxes_and_too_few_queries_are_told_before_training(data, cli, tmp_path):
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items() if isinstance(value, int) and value]
    small = [word for word in small if "=True" not in word and "=False" not in word]
    _, _, error = cli("train", data, "--queries", 2, "--out", tmp_path / "run", *small, "--size", 32)
    assert "have more objects than the 2 queries" in error
    assert "of the boxes are less than" in error


@pytest.mark.long
@pytest.mark.parametrize(("recipe", "epochs"), [("detection_plain", 150), ("detection", 200)])
def test_eight_images_are_learnt_by_heart(recipe, epochs, tmp_path):
    data = write_boxes(tmp_path / "data", {"train": 8}, side=64)
    for split in ("valid", "test"):
        shutil.copytree(tmp_path / "data" / "train", tmp_path / "data" / split)
    run = regard.train(
        data, recipe=recipe, model="detr_nano", size=64, queries=20, batch_size=8, epochs=epochs, optimizer="muon",
        lr=6e-3, schedule="cosine", warmup=0.05, dropout=0.0, flip=False, scale_low=1.0, scale_high=1.0, crop_share=0.0,
        colour=0.0, ema=0.0, weight_decay=1e-4, clip=5.0, device="cpu", workers=0, explain=0, out=tmp_path / "run",
        quiet=True,
    )  # fmt: skip
    assert run.read_json("summary.json")["figures"]["ap50"]["value"] >= 0.99
