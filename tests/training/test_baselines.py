"""Baselines share the training recipe: what moves their weights, and which settings they take."""

import pytest
import torch
from torch import nn

import regard
from regard import tasks
from regard.errors import ConfigError
from regard.run.runner import read_config
from regard.run.settle import settle
from regard.training import Muon, make_optimizers
from regard.training.optim import orthogonalised
from tests.loading import load_classifier


@pytest.mark.parametrize(("name", "start"), [("resnet_nano", "stages."), ("mlp_nano", ("layers.1.", "layers.2."))])
def test_muon_takes_the_hidden_matrices_and_kernels(name, start):
    model = regard.create(name, classes=3, size=16)
    rest, muon = make_optimizers(model, "muon", 0.1, 0.05)
    taken = {id(p) for p in muon.param_groups[0]["params"]}
    for key, p in model.named_parameters():
        assert (id(p) in taken) == (key.startswith(start) and p.ndim > 1), key
    assert len(taken) + sum(len(g["params"]) for g in rest.param_groups) == len(list(model.parameters()))


def test_muon_leaves_what_is_no_matrix_to_adamw():
    """A depthwise kernel that tells positions is nine numbers a channel, not a matrix between channels."""
    model = regard.create("vit_nano", positions="conditional", depth=2)
    rest, muon = make_optimizers(model, "muon", 0.1, 0.05)
    plain = {id(p) for group in rest.param_groups if not group["weight_decay"] for p in group["params"]}
    assert all(id(block.positions.kernel) in plain for block in model.blocks)
    assert len(muon.param_groups[0]["params"]) == 2 * 4


def test_muon_moves_queries_keys_and_values_each_by_themselves():
    """As torch's own would, were they three parameters; the rest of a block's matrices as one each."""
    torch.manual_seed(0)
    model = regard.create("vit_nano", depth=2)
    _, ours = make_optimizers(model, "muon", 0.02, 0.1)
    matrices = [p for group in ours.param_groups for p in group["params"]]
    divided = {block.attention.qkv.weight for block in model.blocks}
    apart = [[nn.Parameter(m.detach().clone()) for m in p.chunk(3 if p in divided else 1)] for p in matrices]
    theirs = torch.optim.Muon(
        [p for parts in apart for p in parts], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    start = [p.detach().clone() for p in matrices]
    for p, parts in zip(matrices, apart, strict=True):
        p.grad = torch.randn_like(p)
        for part, grad in zip(parts, p.grad.chunk(len(parts)), strict=True):
            part.grad = grad.clone()
    ours.step()
    theirs.step()
    assert len(divided) == 2
    for p, parts, before in zip(matrices, apart, start, strict=True):
        expected = torch.cat(list(parts))
        assert (p - expected).norm() < 0.03 * (expected - before).norm()  # theirs works in bf16


def test_muon_moves_kernels_as_the_rows_of_a_matrix():
    torch.manual_seed(0)
    grads = torch.randn(2, 4, 3, 3, 3)
    kernels = [nn.Parameter(torch.zeros(4, 3, 3, 3)) for _ in grads]
    for p, grad in zip(kernels, grads, strict=True):
        p.grad = grad.clone()
    Muon(kernels, lr=0.5, weight_decay=0.0, momentum=0.0).step()
    expected = -0.2 * 27**0.5 * 0.5 * orthogonalised(grads.reshape(2, 4, 27)).reshape_as(grads)
    torch.testing.assert_close(torch.stack(list(kernels)), expected)


def test_a_resnet_trains_is_loaded_predicts_and_is_reported(tmp_path):
    settings = {"epochs": 1, "optimizer": "muon", "explain": 1, "quiet": True}
    run = regard.train("digits", model="resnet_nano", out=tmp_path / "run", **settings)
    config = read_config(run)[2].flat()
    assert (config["patch"], config["size"], config["mixup"]) == (
        None,
        (8, 8),
        0.2,
    )  # the recipe's, but for a ViT's patch
    page = (run.path / "report.html").read_text()
    assert "Grad-CAM" in page
    assert "Rollout" not in page
    assert "Not shown here" not in page
    predictor = load_classifier(run.path, device="cpu")
    assert predictor.model.config.stem == "small"
    assert predictor.predict(torch.rand(1, 8, 8)).label in predictor.classes
    assert predictor.explain(torch.rand(1, 8, 8), "grad_cam").map.shape == (8, 8)
    with pytest.raises(
        ConfigError, match=r"rollout reads attention, and ResNet has none\n.*use grad_cam or integrated"
    ):
        predictor.explain(torch.rand(1, 8, 8), "rollout")


def test_a_fully_connected_network_trains_and_is_reported(tmp_path):
    run = regard.train("digits", model="mlp_nano", epochs=1, explain=1, out=tmp_path / "run", quiet=True)
    assert run.read_json("summary.json")["figures"]["accuracy"]["value"] > 0.3
    page = (run.path / "report.html").read_text()
    assert "Occlusion" in page
    assert "Rollout" not in page
    predictor = load_classifier(run.path, device="cpu")
    with pytest.raises(ConfigError, match=r"grad_cam reads tokens in their places.*\n.*integrated_gradients or occl"):
        predictor.explain(torch.rand(1, 8, 8), "grad_cam")


@pytest.mark.parametrize(
    ("model", "setting", "says"),
    [
        ("resnet_nano", {"patch": 2}, "resnet_nano has no patch\n.*channels, drop_path, .*size, stem, width"),
        ("vit_nano", {"stem": "small"}, "ViTConfig.stem cannot be 'small'"),
        ("resnet_nano", {"stem": "conv"}, "ResNetConfig.stem cannot be 'conv'"),
    ],
)
def test_settings_a_family_does_not_have_are_refused(model, setting, says, tmp_path):
    with pytest.raises(ConfigError, match=says):
        regard.train("digits", model=model, out=tmp_path / "run", quiet=True, **setting)
    assert not (tmp_path / "run").exists()


def test_a_recipe_for_a_vit_lends_a_resnet_what_is_not_its_shape(tmp_path):
    run = regard.train(
        "digits", recipe="cifar", model="resnet_nano", epochs=1, explain=0, out=tmp_path / "run", quiet=True
    )
    config, origins = read_config(run)[2:]
    shape = config.model.shape
    assert (shape["width"], shape["mlp"], shape["pool"]) == (None, None, None)
    assert (shape["drop_path"], origins["drop_path"], config.optim.optimizer) == (0.1, "recipe", "muon")
    assert load_classifier(run.path, device="cpu").model.config.width == 16


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_by_steps_takes_exactly_so_many(accumulate, tmp_path):
    settings = {
        "model": "mlp_nano",
        "images": 100,
        "batch_size": 20,
        "explain": 0,
        "quiet": True,
        "accumulate": accumulate,
    }
    run = regard.train("digits", steps=7, out=tmp_path / "a", **settings)
    config, origins = read_config(run)[2:]
    per_epoch = 5 if accumulate == 1 else 3
    assert (config.optim.epochs, origins["epochs"]) == (-(-7 // per_epoch), "auto")
    rows = run.read_rows("metrics.csv")
    assert [int(row["step"]) for row in rows] == [*range(per_epoch, 7, per_epoch), 7]
    whole = regard.train("digits", epochs=2, out=tmp_path / "b", **settings).read_rows("metrics.csv")
    again = regard.train("digits", steps=2 * per_epoch, out=tmp_path / "c", **settings).read_rows("metrics.csv")
    assert [row["train_loss"] for row in again] == [row["train_loss"] for row in whole]


def test_a_network_of_one_size_is_not_given_windows(tmp_path):
    with pytest.raises(ConfigError, match="mlp_nano takes inputs of one size"):
        regard.train("digits", model="mlp_nano", low_res=0.5, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
    dataset, entry = regard.check("digits", quiet=True), tasks.find("classification")
    for model, expected in (("mlp_nano", (0.0, "default")), ("resnet_nano", (0.6, "recipe"))):
        config, origins, _ = settle(entry, entry.load(), dataset, {"recipe": "cifar", "model": model})
        assert (config.flat()["low_res"], origins["low_res"]) == expected
    run = regard.train(
        "digits", model="resnet_nano", low_res=0.5, epochs=2, images=40, explain=0, out=tmp_path / "other", quiet=True
    )
    assert len(run.read_rows("metrics.csv")) == 2


def test_many_short_epochs_are_not_all_validated(tmp_path):
    settings = {"model": "mlp_nano", "width": 8, "images": 20, "batch_size": 20, "explain": 0, "quiet": True}
    rows = regard.train("digits", steps=310, out=tmp_path / "run", **settings).read_rows("metrics.csv")
    assert [int(row["epoch"]) for row in rows] == [*range(3, 310, 3), 310]


def test_images_left_out_of_training_may_be_tested_on(tmp_path):
    run = regard.train("digits", model="mlp_nano", epochs=1, images=50, explain=0, out=tmp_path / "run", quiet=True)
    counts = run.read_json("data.json")["counts"]
    assert {name: sum(c.values()) for name, c in counts.items()} == {
        "train": 50,
        "val": 217,
        "test": 355,
        "unused": 1175,
    }
    assert "unused" in (run.path / "report.html").read_text()
