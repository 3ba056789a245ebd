"""Every recipe says how to run it and what to expect, and trains."""

from typing import Any

import pytest

import regard
from regard import tasks
from regard.data.objects.scenes import STUFF, THINGS, write_scenes
from regard.run.settle import check_settings
from tests.tasks.detection.made import write_boxes

pytestmark = pytest.mark.usefixtures("few_resamples")

TINY: dict[str, Any] = {"depth": 1, "epochs": 1, "explain": 0, "heads": 2, "mlp": 32, "width": 32}
IMAGES: dict[str, Any] = TINY | {"patch": 4, "size": 16, "batch_size": 8, "workers": 0}
CHOSEN = {
    "finetune", "default", "mae", "mae_small", "dates", "regression", "regression_plain", "regression_finetune",
    "detection", "detection_finetune", "scenes_boxes", "panoptic", "panoptic_finetune", "scenes_masks",
    "survival", "survival_finetune", "multilabel", "multilabel_finetune", "translate_finetune",
}  # fmt: skip
"""Recipes that are chosen by what is given."""
RECIPES = [(entry, name) for entry in tasks.TASKS for name in entry.recipes]
every_recipe = pytest.mark.parametrize(("task", "name"), RECIPES, ids=[name for _, name in RECIPES])


def test_names_of_recipes_are_unique_over_tasks():
    names = [name for _, name in RECIPES]
    assert len(names) == len(set(names))


@every_recipe
def test_a_recipe_explains_itself_and_can_be_asked_for(task, name):
    text = task.recipes[name].__doc__ or ""
    assert f"regard {task.command}" in text or "regard demo" in text
    if name not in CHOSEN:
        assert f"--recipe {name}" in text
    check_settings(task, {"recipe": name})


@every_recipe
def test_a_recipe_trains_a_tiny_model(task, name, picture_folder, pairs_folder, tmp_path):
    start = regard.pretrain if task.command == "pretrain" else regard.train
    data: Any = picture_folder
    tiny: dict[str, Any] = dict(IMAGES)
    if task.name == "translation":
        data, tiny = pairs_folder, {**TINY, "vocabulary": 300}
    if task.name == "pretraining":
        tiny |= {"decoder_width": 32, "decoder_depth": 1}
    if task.name == "regression":
        data, tiny = picture_folder / "ages.csv", {**IMAGES, "column": "age"}
        data.write_text("path,age\n" + "\n".join(f"{c}/{n:02d}.png,{n}" for c in ("red", "blue") for n in range(12)))
    if task.name == "multilabel":
        data, tiny = picture_folder / "labels.csv", {**IMAGES, "label_column": "odd,red"}
        rows = [f"{c}/{n:02d}.png,{n % 2},{c}" for c in ("red", "blue") for n in range(12)]
        data.write_text("\n".join(["path,odd,red", *rows]))
    if task.name == "detection":
        data = write_boxes(tmp_path / "boxes", {"": 12}, side=32)
        shape = {"model": "detr_nano", "size": 32, "decoder_depth": 1, "backbone_width": 8, "blocks": (1, 1)}
        tiny = TINY | shape | {"fused_stages": 1, "dilated": False, "queries": 5, "batch_size": 4, "workers": 0}
    if task.name == "panoptic":
        data = write_scenes(tmp_path / "scenes", train=4, val=2, test=2, size=32)
        shape = {"size": 32, "depth": 1, "decoder_depth": 1, "backbone_width": 8, "blocks": (1, 1, 1, 1)}
        tiny = {"epochs": 1, "explain": 0, "batch_size": 4, "workers": 0}
        if task.recipes[name]().task.freeze_boxes:
            boxes = regard.create("detr_nano", classes=len(THINGS + STUFF), **shape)
            tiny["weights"] = regard.save(boxes, tmp_path / "boxes.safetensors", classes=THINGS + STUFF)
        else:
            tiny |= shape | {"model": "detr_nano_panoptic"}
    if task.name == "survival":
        data, tiny = picture_folder / "ages.csv", {**IMAGES, "time": "age", "event": "seen"}
        rows = [f"{c}/{n:02d}.png,{n},{n % 2}" for c in ("red", "blue") for n in range(12)]
        data.write_text("\n".join(["path,age,seen", *rows]))
    if task.recipes[name]().optim.steps:
        tiny["steps"] = 2
        del tiny["epochs"]
    run = start(data, recipe=name, out=tmp_path / "run", quiet=True, device="cpu", **tiny)
    figures = run.read_json("summary.json")["figures"]
    assert figures
    assert all(figure["n"] > 0 for figure in figures.values())


def test_recipes_of_papers_are_what_the_papers_say():
    recipes = tasks.find("classification").recipes
    fine, plain, deit = (recipes[name]() for name in ("paper_finetune", "better_plain", "deit3"))
    assert (fine.optim.optimizer, fine.optim.weight_decay, fine.data.batch_size, fine.optim.clip) == ("sgd", 0, 512, 1)
    assert fine.optim.lr in (0.003, 0.01, 0.03, 0.06)
    steps = plain.optim.epochs * 1_281_167 / plain.data.batch_size
    assert round(plain.optim.warmup * steps, -2) == 10_000
    assert plain.optim.lr * plain.optim.weight_decay == pytest.approx(1e-4)
    assert plain.model.shape == {"pool": "mean", "positions": "sinusoidal"}
    assert (plain.augment.policy, plain.augment.strength) == ("rand", 1.0)
    assert deit.optim.warmup * deit.optim.epochs == 5
    assert (deit.augment.policy, deit.task.loss, deit.augment.mixup, deit.augment.cutmix) == ("three", "bce", 0.8, 1.0)
    assert deit.model.shape["layer_scale"] == 1e-4
