"""Transfer as the ViT paper has it: what is kept, what is new, what trains, and that it helps."""

import json
import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import regard
from regard.cli import main
from regard.data.batch import Batch
from regard.errors import ConfigError, RegardError
from regard.networks.base import Network
from regard.nn.lora import add_lora, merged
from regard.setting_groups import Transfer
from regard.tasks.classification.loss import CrossEntropy
from regard.tasks.classification.settings import Config
from regard.training import adapt, layer_numbers, make_optimizers
from regard.training.step import Step
from tests.conftest import settings_of
from tests.loading import load_classifier
from tests.weights.parity import assert_close, picture, randomise

QUICK: dict[str, Any] = {
    "epochs": 1, "batch_size": 8, "explain": 0, "quiet": True, "device": "cpu", "flip": False, "crop": "none",
}  # fmt: skip


@pytest.fixture
def pretrained(tmp_path):
    """A small random ViT as transformers saves it, with a normalisation of its own."""
    fields: dict[str, Any] = {
        "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48, "patch_size": 8,
        "image_size": 16, "num_labels": 5,
    }  # fmt: skip
    theirs = randomise(transformers.ViTForImageClassification(transformers.ViTConfig(**fields)))
    theirs.save_pretrained(tmp_path / "hf")
    about = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (tmp_path / "hf" / "preprocessor_config.json").write_text(json.dumps(about))
    return theirs


def small(**fields: Any) -> Network:
    torch.manual_seed(0)
    return regard.create("vit_nano", classes=3, **{"size": 16, "depth": 3, **fields})


def two_pictures() -> Batch:
    return Batch({"image": picture(16, 16)}, {"probabilities": torch.eye(3)[:2]})


def kept(run, name="last") -> dict[str, torch.Tensor]:
    return load_file(run.checkpoint(name))


def test_a_run_starts_as_the_pretrained_network_with_a_head_of_zeros(pretrained, picture_folder, tmp_path):
    run = regard.train(picture_folder, weights=tmp_path / "hf", out=tmp_path / "run", lr=1e-60, **QUICK)
    rows = run.read_rows("metrics.csv")
    assert float(rows[0]["train_loss"]) == round(math.log(2), 5), "zeros say nothing about either class"
    model = load_classifier(run.path).model
    assert not model.head.weight.any()
    assert not model.head.bias.any()
    x = picture(16, 16)
    with torch.no_grad():
        expected = pretrained.base_model(x).last_hidden_state
        assert_close(model(x).tokens, expected)
    said = run.read_json("transfer.json")
    assert said["format"] == "hf"
    assert said["untrained"] == ["the head for 2 classes is all zeros: the file's is for 5"]
    assert "**Pre-training.** Started from" in (run.path / "model_card.md").read_text(encoding="utf-8")
    config = settings_of(run)
    assert config["model"]["origin"] == config["depth"]["origin"] == "weights"
    assert (config["width"]["value"], config["depth"]["value"], config["patch"]["value"]) == (32, 3, [8, 8])
    assert config["recipe"] == {"value": "finetune", "origin": "auto"}
    assert config["layer_decay"] == {"value": 0.75, "origin": "recipe"}


def test_the_pretraining_normalisation_is_used_not_the_new_data_s(pretrained, picture_folder, tmp_path):
    run = regard.train(picture_folder, weights=tmp_path / "hf", out=tmp_path / "run", **QUICK)
    preparation = load_classifier(run.path).preparation
    assert preparation.mean == (0.1, 0.2, 0.3)
    assert preparation.std == (0.4, 0.5, 0.6)
    again = regard.train(picture_folder, weights=run.path, out=tmp_path / "again", **QUICK)
    assert load_classifier(again.path).preparation == preparation


def test_another_size_resamples_the_positions_of_the_patches(pretrained, picture_folder, tmp_path):
    run = regard.train(picture_folder, weights=tmp_path / "hf", size=(32, 24), out=tmp_path / "run", lr=1e-60, **QUICK)
    table = pretrained.base_model.embeddings.position_embeddings[0].detach()
    grid = table[1:].T.reshape(1, 32, 2, 2)
    larger = F.interpolate(grid, (4, 3), mode="bicubic", antialias=True).flatten(2)[0].T
    torch.testing.assert_close(kept(run)["positions.table"], torch.cat([table[:1], larger]))
    assert run.read_json("transfer.json")["changed"] == ["positions are resampled from 2×2 to 4×3 patches"]


def test_the_head_is_new_even_for_as_many_classes(run_folder, tmp_path):
    run = regard.train("digits", weights=run_folder, out=tmp_path / "run", lr=1e-60, **QUICK)
    assert not kept(run)["head.weight"].any()
    assert load_file(run_folder / "checkpoints" / "best.safetensors")["head.weight"].any()
    assert run.read_json("transfer.json")["untrained"] == [
        "the head for 10 classes is all zeros: the file's is removed"
    ]


def test_a_recipe_changes_the_rates_and_not_the_shape(picture_folder, tmp_path):
    regard.save(small(patch=4, drop_path=0.3), tmp_path / "own.safetensors")
    run = regard.train(
        picture_folder, weights=tmp_path / "own.safetensors", recipe="cifar", out=tmp_path / "run", **QUICK
    )
    config = load_classifier(run.path).model.config
    assert (config.patch, config.width, config.pool, config.size) == ((4, 4), 64, "class", (16, 16))
    assert not config.rope
    assert config.drop_path == 0.1
    assert settings_of(run)["rope"] == {"value": False, "origin": "weights"}


def test_what_no_tensor_shows_is_kept_too(picture_folder, tmp_path):
    """How norms stand, and that queries and keys are turned; asked for otherwise, they are refused."""
    regard.save(small(rope=True, norm="post"), tmp_path / "own.safetensors")
    run = regard.train(picture_folder, weights=tmp_path / "own.safetensors", out=tmp_path / "run", **QUICK)
    config = load_classifier(run.path).model.config
    assert (config.rope, config.norm) == (True, "post")
    assert settings_of(run)["rope"] == {"value": True, "origin": "weights"}
    for asked in ({"rope": False}, {"norm": "pre"}):
        with pytest.raises(RegardError, match=f"{next(iter(asked))}: "):
            regard.train(picture_folder, weights=run.path, out=tmp_path / "no", **{**QUICK, **asked})
    assert not (tmp_path / "no").exists()


def test_a_resnet_starts_a_run_too(picture_folder, tmp_path):
    first = regard.train(picture_folder, model="resnet_nano", out=tmp_path / "a", **QUICK)
    second = regard.train(picture_folder, weights=first.path, out=tmp_path / "b", lr=1e-60, **QUICK)
    assert torch.equal(kept(first, "best")["root.weight"], kept(second)["root.weight"])


def test_images_that_the_pretraining_saw_are_counted(picture_folder, tmp_path, capsys):
    first = regard.train(picture_folder, model="vit_nano", size=16, out=tmp_path / "a", **QUICK)
    clean = regard.train(picture_folder, weights=first.path, out=tmp_path / "b", **QUICK)
    assert clean.read_json("transfer.json")["seen_in_test"] == 0
    leaky = regard.train(
        picture_folder, weights=first.path, split_seed=1, out=tmp_path / "c", **{**QUICK, "quiet": False}
    )
    seen = leaky.read_json("transfer.json")["seen_in_test"]
    assert seen > 0
    assert f"has seen {seen} of the images of test" in capsys.readouterr().err


@pytest.mark.parametrize("spelt", ["--from={}", "--weights={}"])
def test_the_command_line_says_from(spelt, picture_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [
        "regard", "train", str(picture_folder), spelt.format(tmp_path / "own.safetensors"), "--epochs", "1", "--quiet",
        "--explain", "0", "--out", str(tmp_path / "run"),
    ])  # fmt: skip
    regard.save(small(), tmp_path / "own.safetensors")
    main()
    config = settings_of(tmp_path / "run")
    assert config["weights"] == {"value": str(tmp_path / "own.safetensors"), "origin": "flag"}
    assert config["depth"] == {"value": 3, "origin": "weights"}


def test_sgd_is_the_formula_of_momentum():
    model: Any = nn.Linear(2, 1, bias=False)
    nn.init.ones_(model.weight)
    (optimizer,) = make_optimizers(model, "sgd", 0.1, 0.5)
    weight, speed = torch.ones(1, 2), torch.zeros(1, 2)
    for number in range(1, 4):
        gradient = torch.full((1, 2), float(number))
        model.weight.grad = gradient.clone()
        optimizer.step()
        speed = 0.9 * speed + gradient + 0.5 * weight
        weight = weight - 0.1 * speed
        torch.testing.assert_close(model.weight.detach(), weight)


@pytest.mark.parametrize("kind", ["adamw", "muon", "sgd"])
def test_rates_fall_from_the_head_to_the_stem(kind):
    """depth 3 at 0.5: BEiT's exponents, 4 for the stem down to 0 for norm and head."""
    model = small(registers=2)
    adapt(model, Transfer(layer_decay=0.5))
    step = Step(model, CrossEntropy(), Config.of(optimizer=kind, lr=1.0, layer_decay=0.5), torch.device("cpu"))
    step.set_lr(0.8)
    rates = {id(p): group["lr"] for group in step.gradients.groups() for p in group["params"]}
    by_hand = {
        "class_token": 0.05, "registers": 0.05, "positions": 0.05, "patches": 0.05,
        "blocks.0": 0.1, "blocks.1": 0.2, "blocks.2": 0.4, "norm": 0.8, "head": 0.8,
    }  # fmt: skip
    for name, parameter in model.named_parameters():
        (expected,) = [rate for start, rate in by_hand.items() if name == start or name.startswith(f"{start}.")]
        assert rates[id(parameter)] == pytest.approx(expected), name
    assert sum(len(g["params"]) for g in step.gradients.groups()) == len(list(model.parameters())), "in one group each"


def test_one_decayed_step_moves_each_layer_by_its_factor():
    """Plain SGD's first step is rate times gradient, so the moves themselves show the factors."""
    moved = {}
    for decay in (1.0, 0.5):
        model = randomise(small())
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        config = Config.of(optimizer="sgd", lr=0.1, weight_decay=0.0, layer_decay=decay, clip=0.0)
        step = Step(model, CrossEntropy(), config, torch.device("cpu"))
        step.set_lr(0.1)
        step.train_step([two_pictures()])
        moved[decay] = {name: p.detach() - before[name] for name, p in model.named_parameters()}
    depths = layer_numbers(model)
    assert {depths["positions.table"], depths["blocks.2.mlp.up.bias"], depths["head.bias"]} == {0, 3, 4}
    for name, move in moved[1.0].items():
        torch.testing.assert_close(moved[0.5][name], move * 0.5 ** (4 - depths[name]), atol=2e-6, rtol=1e-3)


def test_a_frozen_network_says_what_would_compute_its_features_once(picture_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("regard.run.runner.MEASURED_SECONDS", 0.0)
    weights = regard.save(regard.create("vit_nano", classes=3, size=16, depth=1), tmp_path / "own.safetensors")
    common: dict[str, Any] = {"weights": weights, "epochs": 1, "dry_run": True, "out": tmp_path / "none"}
    still = {"crop": "none", "flip": False, "policy": "none"}
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"freeze": "all"}, "since augmentation changes them; `regard probe WEIGHTS DATA --keep"),
        ({"freeze": "all", **still}, "though nothing changes them; `regard probe WEIGHTS DATA --keep"),
        ({"freeze": 1}, ""),
    )
    for settings, told in cases:
        regard.train(picture_folder, **common, **settings)
        said = capsys.readouterr().err
        assert told in said if told else "features again" not in said


@pytest.mark.parametrize("freeze", ["all", 0, 2])
def test_what_is_frozen_is_equal_to_the_bit_after_training(picture_folder, tmp_path, freeze):
    """BatchNorm's statistics too, with an average of the weights and dropout on."""
    regard.save(randomise(small(stem="conv", patch=8)), tmp_path / "own.safetensors")
    run = regard.train(
        picture_folder, weights=tmp_path / "own.safetensors", freeze=freeze, out=tmp_path / "run", lr=0.1, ema=0.9,
        dropout=0.2, **{**QUICK, "epochs": 2},
    )  # fmt: skip
    before, after = load_file(tmp_path / "own.safetensors"), kept(run)
    first = (
        "patches.",
        "positions.",
        "class_token",
        *(f"blocks.{n}." for n in range(freeze if freeze != "all" else 0)),
    )
    for name, tensor in after.items():
        stays = not name.startswith("head.") if freeze == "all" else name.startswith(first)
        if not name.startswith("head.") and not name.endswith("num_batches_tracked"):
            assert torch.equal(tensor, before[name]) == stays, name
    trained = run.read_json("transfer.json")["parameters_trained"]
    head = 2 * 64 + 2
    assert trained == head if freeze == "all" else head < trained < run.read_json("summary.json")["parameters"]


def test_frozen_parts_have_no_gradient_no_state_and_no_dropout():
    model = small(dropout=0.5, drop_path=0.5)
    adapt(model, Transfer(weights="w", freeze=2))
    model.eval()
    model.train()
    trains = [name for name, module in model.named_modules() if isinstance(module, nn.Dropout) and module.training]
    assert trains == ["blocks.2.mlp.drop", "blocks.2.drop"]
    step = Step(model, CrossEntropy(), Config(), torch.device("cpu"))
    step.gradients.backward([two_pictures()])
    learns = {name for name, p in model.named_parameters() if p.grad is not None}
    assert {name.split(".")[0] for name in learns} == {"blocks", "norm", "head"}
    assert {name for name in learns if name.startswith("blocks.")} == {
        name for name, _ in model.named_parameters() if name.startswith("blocks.2.")
    }
    step.gradients.apply()
    assert sum(len(optimizer.state) for optimizer in step.optimizers) == len(learns)


def test_lora_starts_as_the_network_it_changes():
    model = randomise(small()).eval()
    x = picture(16, 16)
    with torch.no_grad():
        before, alone = model(x).logits, model(x, class_token_only=True).logits
        add_lora(model, 4)
        assert torch.equal(model(x).logits, before)
        torch.testing.assert_close(model(x, class_token_only=True).logits, alone, atol=1e-6, rtol=0)


def test_lora_merged_is_lora_unmerged_and_leaves_keys_alone():
    plain, model = randomise(small()).eval(), randomise(small()).eval()
    add_lora(model, 4)
    draw = torch.Generator().manual_seed(1)
    for name, p in model.named_parameters():
        if name.endswith("qkv.b"):
            p.data = torch.randn(p.shape, generator=draw) * 0.1
    state = merged(model.state_dict())
    for n in range(3):
        name = f"blocks.{n}.attention.qkv."
        change = model.blocks[n].attention.qkv
        by_hand = [16 / 4 * change.b[k] @ change.a[k] for k in (0, 1)]
        old = plain.state_dict()[f"{name}weight"]
        queries, keys, values = (state[f"{name}weight"] - old).chunk(3)
        torch.testing.assert_close(queries, by_hand[0].detach(), atol=1e-6, rtol=0)
        torch.testing.assert_close(values, by_hand[1].detach(), atol=1e-6, rtol=0)
        assert not keys.any()
    x = picture(16, 16)
    with torch.no_grad():
        assert (model(x).logits - plain(x).logits).abs().max() > 1e-2
        plain.load_state_dict(state)
        for alone in (False, True):
            torch.testing.assert_close(
                plain(x, class_token_only=alone).logits, model(x, class_token_only=alone).logits, atol=1e-6, rtol=0
            )


def test_a_run_with_lora_keeps_plain_weights_changed_where_it_may(picture_folder, tmp_path):
    base = randomise(small(stem="conv", patch=8))  # whose BatchNorm may not move either
    regard.save(base, tmp_path / "own.safetensors")
    run = regard.train(
        picture_folder, weights=tmp_path / "own.safetensors", lora=2, optimizer="adamw", lr=0.05, ema=0.5,
        out=tmp_path / "run", **{**QUICK, "epochs": 2},
    )  # fmt: skip
    before, after = load_file(tmp_path / "own.safetensors"), kept(run)
    assert set(after) == set(before)
    for name, tensor in after.items():
        if not name.startswith("head."):
            assert torch.equal(tensor, before[name]) != name.endswith("qkv.weight"), name
    change = (after["blocks.1.attention.qkv.weight"] - before["blocks.1.attention.qkv.weight"]).chunk(3)
    assert not change[1].any()
    assert torch.linalg.matrix_rank(change[0], rtol=1e-3) == 2
    trained = 3 * 2 * 2 * (64 + 64) + 2 * 64 + 2
    assert run.read_json("transfer.json")["parameters_trained"] == trained
    assert run.read_json("summary.json")["parameters"] == sum(p.numel() for p in base.parameters()) - 64 - 1
    assert load_classifier(run.path).explain(picture_folder / "red" / "00.png").map.shape == (16, 16)


def test_blocks_with_lora_share_their_compiled_graph():
    """Twelve of their own would be more than torch compiles of one function."""
    from torch._dynamo.utils import counters

    model = small(depth=12)
    add_lora(model, 2)
    torch.compiler.reset()
    before = counters["stats"]["unique_graphs"]
    for block in model.blocks:
        block.compile(dynamic=False, backend="eager")
    model(picture(16, 16))
    assert counters["stats"]["unique_graphs"] == before + 2  # the first block's input needs no gradient
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"freeze": 4}, "4 is more blocks than the model's 3"),
        ({"freeze": -1}, "freeze=-1 is too small"),
        ({"freeze": "some"}, "freeze cannot be 'some'"),
        ({"lora": 0}, "lora=0 is too small"),
        ({"lora": 65}, "more than the width of 64"),
        ({"lora": 2, "freeze": 1}, "choose one"),
        ({"layer_decay": 0.0}, "layer_decay=0.0 is too small"),
        ({"layer_decay": 1.5}, "layer_decay=1.5 is out of range"),
        ({"model": "vit_b16"}, "not this model's"),
        ({"depth": 2}, "not this model's"),
        ({"weights": "nothing.npz"}, "no such weights"),
        ({"weights": None, "freeze": 1}, "random weights"),
        ({"weights": None, "lora": 1}, "random weights"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_a_folder_is_made(picture_folder, tmp_path, settings, words):
    regard.save(small(), tmp_path / "own.safetensors")
    given = {"weights": tmp_path / "own.safetensors"} | settings
    with pytest.raises(RegardError, match=words):
        regard.train(picture_folder, out=tmp_path / "run", **QUICK, **given)
    assert not (tmp_path / "run").exists()


def test_weights_of_pictures_are_refused_for_volumes(tmp_path):
    regard.save(small(), tmp_path / "own.safetensors")
    np.savez(tmp_path / "v.npz", images=np.zeros((9, 8, 8, 8), np.uint8), labels=np.arange(9) % 2)
    with pytest.raises(ConfigError, match="2 axes and the data has 3") as caught:
        regard.train(tmp_path / "v.npz", weights=tmp_path / "own.safetensors", out=tmp_path / "run", quiet=True)
    assert "choose weights of a model for volumes" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_lora_needs_attention_and_rates_by_depth_need_blocks():
    with pytest.raises(ConfigError, match="changes attention and the model has none"):
        add_lora(nn.Linear(2, 2), 1)
    with pytest.raises(ConfigError, match="layer_decay counts blocks"):
        layer_numbers(Network())


def test_rates_by_depth_and_freezing_count_a_resnet_s_blocks():
    model = regard.create("resnet_nano", classes=2)
    depths = layer_numbers(model)
    names = ("root.weight", "stages.0.0.conv1.weight", "stages.1.0.norm2.bias", "stages.2.1.conv2.weight", "head.bias")
    assert [depths[name] for name in names] == [0, 1, 3, 6, 7]
    adapt(model, Transfer(weights="any", freeze=3))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, depth in depths.items() if depth > 3}
    assert model.frozen == ("root", "root_norm", "stages.0.0", "stages.0.1", "stages.1.0")


def test_what_was_learnt_of_some_digits_helps_with_the_others(tmp_path):
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    for name, own in (("low", digits.target < 5), ("high", digits.target >= 5)):
        images = (digits.images[own] * 255 / 16).round().astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=digits.target[own])
    common: dict[str, Any] = {"recipe": "digits", "depth": 2, "explain": 0, "quiet": True}
    before = regard.train(tmp_path / "low.npz", epochs=12, out=tmp_path / "before", **common)
    figures = {}
    for name, weights in (("scratch", None), ("transfer", before.path)):
        run = regard.train(tmp_path / "high.npz", epochs=3, weights=weights, out=tmp_path / name, **common)
        figures[name] = run.read_json("summary.json")["figures"]["accuracy"]["value"]
    assert figures["transfer"] > figures["scratch"] + 0.1, figures
