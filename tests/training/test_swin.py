"""A Swin Transformer goes through everything that a Vision Transformer does: training, transfer, use."""

import signal
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.errors import ConfigError
from regard.nn.lora import add_lora
from regard.setting_groups import Transfer
from regard.study import data_size, run_study
from regard.training import make_optimizers
from regard.training.adapt import adapt, layer_numbers
from regard.weights import convert
from tests.conftest import make_folder, settings_of
from tests.processes import finished, start
from tests.run.killed import main as killed
from tests.training.test_distributed import assert_the_same_training, launch

SHAPE: dict[str, Any] = {"model": "swin_nano", "width": 8, "heads": (1, 2), "depths": (2, 2), "size": 16}
QUICK: dict[str, Any] = SHAPE | {
    "epochs": 2, "batch_size": 8, "explain": 0, "device": "cpu", "workers": 0, "lr": 1e-3, "drop_path": 0.1,
}  # fmt: skip


def small(**fields: Any):
    return regard.create("swin_nano", classes=3, **{k: v for k, v in SHAPE.items() if k != "model"} | fields)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("data") / "pictures", per_class=15)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return regard.train(data, out=tmp_path_factory.mktemp("runs") / "swin", quiet=True, **QUICK)


def weights(path, name="last"):
    return load_file(path / "checkpoints" / f"{name}.safetensors")


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_bias_tables_are_neither_orthogonalised_nor_decayed(kind):
    model = small()
    rest, *muon = make_optimizers(model, kind, 0.1, 0.05)
    taken = {id(p) for optimizer in muon for group in optimizer.param_groups for p in group["params"]}
    plain = {id(p) for group in rest.param_groups if not group["weight_decay"] for p in group["params"]}
    tables = [p for name, p in model.named_parameters() if name.endswith("positions.table")]
    assert len(tables) == 4
    for table in tables:
        assert id(table) in plain
    if kind == "muon":
        matrices = {name for name, p in model.named_parameters() if id(p) in taken}
        assert {"stages.0.merge.project.weight", "stages.1.blocks.1.mlp.up.weight"} <= matrices
        assert not any(name.startswith(("patches", "head")) for name in matrices)


def test_rates_fall_from_the_head_to_the_stem():
    numbers = layer_numbers(small())
    expected = {
        "patches.project.weight": 0, "patch_norm.bias": 0, "stages.0.blocks.0.mlp.up.weight": 1,
        "stages.0.blocks.1.attention.positions.table": 2, "stages.0.merge.project.weight": 2,
        "stages.1.blocks.0.norm1.weight": 3, "stages.1.blocks.1.attention.qkv.weight": 4, "norm.weight": 5,
        "head.bias": 5,
    }  # fmt: skip
    assert {name: numbers[name] for name in expected} == expected


def test_freezing_counts_blocks_through_the_stages():
    model = small()
    adapt(model, Transfer(weights="w", freeze=2))
    learns = {name for name, p in model.named_parameters() if p.requires_grad}
    assert learns == {name for name, _ in model.named_parameters() if name.startswith(("stages.1.", "norm.", "head."))}
    assert model.frozen == ("patches", "patch_norm", "stages.0.blocks.0", "stages.0.blocks.1")
    with pytest.raises(ConfigError, match="more blocks than the model's 4"):
        adapt(small(), Transfer(weights="w", freeze=5))


def test_lora_starts_as_the_network_it_changes_and_trains_queries_and_values():
    model, x = small().eval(), torch.randn(2, 3, 16, 16)
    before = model(x).tokens
    add_lora(model, 2)
    torch.testing.assert_close(model(x).tokens, before)
    model(x).tokens.square().sum().backward()
    moved = {name for name, p in model.named_parameters() if p.requires_grad and not name.startswith("head.")}
    assert moved == {f"stages.{s}.blocks.{b}.attention.qkv.{m}" for s in (0, 1) for b in (0, 1) for m in "ab"}


def test_a_stopped_run_resumes_to_the_same_bits(data, tmp_path):
    for out, update, code in (("whole", -1, 0), ("run", 3, 128 + signal.SIGTERM), ("run", -1, 0)):
        settings = {**QUICK, "optimizer": "muon"}
        arguments = str(data), str(tmp_path / out), update, int(signal.SIGTERM), "training", settings
        assert finished(start(killed, *arguments, said=tmp_path / "said")) == [code], (tmp_path / "said").read_text()
    for name in ("best", "last"):
        one, other = weights(tmp_path / "whole", name), weights(tmp_path / "run", name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("shard", [False, True])
def test_two_processes_train_as_one(data, tmp_path, shard):
    settings = {**QUICK, "drop_path": 0.0, "lr": 3e-4, "optimizer": "adamw", "epochs": 1}
    for ranks, out in ((1, tmp_path / "one"), (2, tmp_path / "two")):
        codes, said = launch(ranks, data, out, usual=settings, shard=shard and ranks > 1)
        assert not any(codes), said
    assert_the_same_training(tmp_path / "two", 2, tmp_path / "one")


def test_checkpointing_gives_the_same_run(data, run, tmp_path):
    other = regard.train(data, out=tmp_path / "run", quiet=True, checkpointing=True, **QUICK)
    one, two = weights(run.path), weights(other.path)
    for key in one:
        torch.testing.assert_close(one[key], two[key], atol=1e-5, rtol=1e-4)


def test_a_run_starts_from_another_with_its_head_size_and_window_changed_and_said(data, run, tmp_path):
    new = regard.train(
        data, weights=run.path, window=3, size=20, freeze="all", epochs=1, explain=0, out=tmp_path / "new", quiet=True,
        device="cpu",
    )  # fmt: skip
    said = "\n".join(new.read_json("transfer.json")["changed"])
    assert "resampled from windows of 4×4 to 3×3" in said
    assert "the input is 20×20, not 16×16" in said
    assert "head for 2 classes" in "\n".join(new.read_json("transfer.json")["untrained"])
    chosen = settings_of(new)
    assert [chosen[name]["value"] for name in ("model", "window", "size")] == ["swin_nano", 3, 20]
    before, after = weights(run.path, "best"), weights(new.path)
    assert torch.equal(
        before["stages.0.blocks.0.attention.qkv.weight"], after["stages.0.blocks.0.attention.qkv.weight"]
    )
    assert after["stages.0.blocks.0.attention.positions.table"].shape == (25, 1)


def test_masked_pretraining_is_refused_and_says_why(data, tmp_path):
    with pytest.raises(ConfigError, match="swin_nano is no ViT: only there"):
        regard.pretrain(data, model="swin_nano", out=tmp_path / "run", epochs=1, quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_run_predicts_probes_converts_and_is_inspected(data, run, tmp_path, cli):
    picture = data / "red" / "00.png"
    assert regard.load(run.path).predict(picture).label in ("red", "blue")
    result = regard.probe(run.path, data, shots=[1], neighbours=3, quiet=True)
    assert {row.accuracy.n for row in result.rows} == {4}
    report, _ = convert(run.path, tmp_path / "hf", to="hf")
    assert report.format == "regard"
    with torch.inference_mode():
        x = torch.randn(2, 3, 16, 16)
        ours = regard.create(weights=run.path, quiet=True).eval()(x).logits
        torch.testing.assert_close(regard.create(weights=tmp_path / "hf", quiet=True).eval()(x).logits, ours)
    code, out, error = cli("inspect", run.path, "--out", tmp_path / "inspected.png")
    assert code == 0, error
    assert "uniform" in out
    assert (tmp_path / "inspected.png").stat().st_size > 5000


@pytest.mark.long
def test_the_decks_comparison_runs(tmp_path):
    """ViT, Swin and ResNet on growing data."""
    names = ("vit_nano", "swin_nano", "resnet_nano")
    made = run_study(data_size("digits", names, (40, 80), seeds=1, steps=2, out=tmp_path / "study"), quiet=True)
    assert [row["steps"] for row in made.rows] == [2] * 6
    assert {row["arm"] for row in made.rows} == set(names)


def test_a_number_can_be_predicted(tmp_path):
    """Regression: a column of numbers."""
    folder = make_folder(tmp_path / "pictures", per_class=10)
    files = sorted(path.relative_to(folder) for path in folder.rglob("*.png"))
    rows = ["path,value", *(f"{path},{n / 7:.4f}" for n, path in enumerate(files))]
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    settings = {**QUICK, "epochs": 1, "quiet": True}
    run = regard.train(folder / "table.csv", column="value", out=tmp_path / "run", **settings)
    assert run.read_config().task == "regression"


def test_a_swin_learns_volumes_and_explains_them(tmp_path):
    draw, labels = np.random.default_rng(0), np.arange(40) % 2
    volumes = draw.integers(0, 60, (40, 8, 8, 8), dtype=np.uint8)
    volumes[labels == 1, :4] += 150
    np.savez(tmp_path / "v.npz", images=volumes, labels=labels)
    settings = {"model": "swin3d_nano", "patch": 2, "window": 2, "epochs": 6, "batch_size": 8, "explain": 1}
    run = regard.train(tmp_path / "v.npz", out=tmp_path / "run", quiet=True, device="cpu", **settings)
    assert run.read_json("summary.json")["figures"]["accuracy"]["value"] > 0.9
    explained = regard.load(run.path).explain(torch.from_numpy(volumes[1])[None])
    assert explained.map.shape == (8, 8, 8)
