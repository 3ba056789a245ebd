"""Every recipe says how to run it and what to expect, and trains."""

import pytest

import regard
from regard.recipes import RECIPES
from regard.recipes.settle import check_settings

TINY = {"depth": 1, "width": 32, "heads": 2, "mlp": 32, "patch": 4, "size": 16, "epochs": 1, "batch": 8, "explain": 0}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_explains_itself_and_can_be_asked_for(name):
    text, recipe = RECIPES[name].__doc__ or "", RECIPES[name]()
    assert ("regard train" if recipe.labelled else "regard pretrain") in text
    if name not in ("paper_finetune", "default", "mae", "mae_small"):  # those that are chosen by what is given
        assert f"--recipe {name}" in text
    check_settings({"recipe": name}, type(recipe))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_a_tiny_model(name, picture_folder, tmp_path):
    start = regard.train if RECIPES[name]().labelled else regard.pretrain
    run = start(picture_folder, recipe=name, out=tmp_path / "run", quiet=True, device="cpu", **TINY)
    assert all(figure["n"] > 0 for figure in run.read_json("summary.json")["figures"].values())


def test_recipes_of_papers_are_what_the_papers_say():
    fine, plain, deit = (RECIPES[name]() for name in ("paper_finetune", "plain", "deit3"))
    assert (fine.optimizer, fine.weight_decay, fine.batch, fine.clip) == ("sgd", 0.0, 512, 1.0)
    assert fine.lr in (0.003, 0.01, 0.03, 0.06)
    steps = plain.epochs * 1_281_167 / plain.batch
    assert round(plain.warmup * steps, -2) == 10_000
    assert plain.lr * plain.weight_decay == pytest.approx(1e-4)
    assert (plain.pool, plain.positions, plain.policy, plain.strength) == ("mean", "sinusoidal", "rand", 1.0)
    assert deit.warmup * deit.epochs == 5
    assert (deit.policy, deit.loss, deit.mixup, deit.cutmix, deit.layer_scale) == ("three", "bce", 0.8, 1.0, 1e-4)
