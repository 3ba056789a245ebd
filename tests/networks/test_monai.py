"""MONAI's networks by name: their counts, answers and maps are those of MONAI's own classes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monai.networks.nets import densenet, efficientnet, resnet, swin_unetr
from safetensors.torch import load_file
from torch import nn

import regard
from regard import registry
from regard.errors import ConfigError
from regard.explain import Case, grad_cam, sensible
from regard.networks.monai.config import VARIANTS
from regard.training.adapt import layer_numbers
from regard.training.stopping import STOP_FILE

TRAINED: dict[str, Any] = {
    "model": "monai_efficientnet_b0", "epochs": 2, "batch_size": 6, "lr": 1e-3, "device": "cpu", "quiet": True,
}  # fmt: skip
LAST = {"resnet": "fc", "densenet": "class_layers.out", "efficientnet": "_fc"}


def theirs(kind: str, classes: int, channels: int = 1, axes: int = 3) -> Any:
    """MONAI's own class, as its documentation builds it."""
    if kind.startswith("resnet"):
        return getattr(resnet, kind)(spatial_dims=axes, n_input_channels=channels, num_classes=classes)
    if kind.startswith("densenet"):
        named = getattr(densenet, kind.replace("densenet", "DenseNet"))
        return named(spatial_dims=axes, in_channels=channels, out_channels=classes)
    if kind == "swin":
        return swin_unetr.SwinUNETR(in_channels=channels, out_channels=2, feature_size=48, spatial_dims=axes).swinViT
    return efficientnet.EfficientNetBN(
        kind, pretrained=False, spatial_dims=axes, in_channels=channels, num_classes=classes
    )


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("name", "kind"), VARIANTS.items())
def test_every_variant_has_monais_count(name: str, kind: str) -> None:
    with torch.device("cpu" if kind == "swin" else "meta"):
        expected = count(theirs(kind, 1000)) + (768 * 1000 + 1000 if kind == "swin" else 0)
    assert registry.MODELS[name].parameters == expected
    with torch.device("meta"):
        model = regard.create(name)
        assert count(model) == expected
        assert len(model.repeated()) == model.config.block_count
        assert model.eval()(torch.zeros(1, 1, 40, 33, 48)).features.shape == (1, model.config.features)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("resnet10", (16, 20, 24)), ("densenet121", (32, 40, 32)), ("efficientnet-b0", (32, 40, 50)),
        ("efficientnet-b1", (40, 52)), ("swin", (32, 32, 40)),
    ],
)  # fmt: skip
def test_with_monais_weights_the_answers_are_monais(kind: str, size: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    own = _with_statistics(theirs(kind, 5, channels=2, axes=len(size)))
    model = regard.create(f"monai_{kind.replace('-', '_')}", classes=5, channels=2, size=size).eval()
    state, x = own.state_dict(), torch.randn(2, 2, *size)
    if kind == "swin":
        model.body.load_state_dict(state)
        expected = own(x)[-1].flatten(2)
        torch.testing.assert_close(model(x).tokens, expected.transpose(1, 2))
        assert not model(x).logits.any(), "the head starts at zero"
        return
    last = next(name for start, name in LAST.items() if kind.startswith(start))
    body = {key: value for key, value in state.items() if not key.startswith(last)}
    start = "features." if kind.startswith("densenet") else ""
    model.body.load_state_dict({key.removeprefix(start): value for key, value in body.items()})
    model.head.load_state_dict({kind: state[f"{last}.{kind}"] for kind in ("weight", "bias")})
    expected = own(x)
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(model(x).logits, expected)


def _with_statistics(model: Any) -> Any:
    """BatchNorm as after some training."""
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.BatchNorm3d)):
            nn.init.normal_(module.running_mean, std=0.1)  # pyright: ignore[reportArgumentType]
            nn.init.uniform_(module.running_var, 0.5, 1.5)  # pyright: ignore[reportArgumentType]
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return model.eval()


def test_the_map_of_tokens_covers_the_volume() -> None:
    for name in ("monai_resnet10", "monai_densenet121", "monai_efficientnet_b1", "monai_swin"):
        with torch.device("meta"):
            model = regard.create(name, size=(50, 39, 64)).eval()
            tokens = model(torch.zeros(1, 1, 50, 39, 64)).tokens.shape[1]
        where = model.token_map()
        assert where.places == tokens
        assert where.paint(torch.arange(tokens).float()).shape == (50, 39, 64)
        assert where.box(tokens - 1)[0][1] == 50


def test_one_volume_that_ends_in_one_cell_can_be_trained_on() -> None:
    model = regard.create("monai_resnet10", classes=2, size=16).train()
    model(torch.rand(1, 1, 16, 16, 16)).logits.sum().backward()
    assert model.body.training
    assert torch.isfinite(model.head.weight.grad).all()


def test_blocks_can_be_frozen_and_have_rates_of_their_own() -> None:
    with torch.device("meta"):
        numbers = layer_numbers(regard.create("monai_resnet10", classes=2))
    assert numbers["body.conv1.weight"] == 0
    assert numbers["body.layer4.0.conv2.weight"] == 4
    assert numbers["head.weight"] == 5


def test_a_missing_extra_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "monai.networks.nets", None)
    with pytest.raises(ConfigError, match=r"(?s)monai is not installed.*pip install 'regard\[medical\]'"):
        regard.create("monai_resnet10")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, held, draw = tmp_path_factory.mktemp("cubes") / "cubes.npz", {}, np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 6), ("test", 6)):
        labels = np.arange(count) % 2
        x = draw.integers(0, 60, (count, 32, 32, 32))
        for n, label in enumerate(labels):
            x[n, :16] += 150 * int(label)
        held |= {f"{part}_images": x.astype(np.uint8), f"{part}_labels": labels[:, None]}
    np.savez(path, **held)
    return path


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return regard.train(data, out=tmp_path_factory.mktemp("runs") / "whole", explain=1, **TRAINED)


def test_a_baseline_trains_evaluates_predicts_and_explains(run: Any, data: Path) -> None:
    assert run.read_json("explain/explanations.json", list)[0][0]["method"] == "grad_cam"
    figures = regard.evaluate(run.path, data, split="test", quiet=True).figures
    assert 0 <= figures["accuracy"].value <= 1
    predictor: Any = regard.load(run.path)
    volume = np.load(data)["test_images"][0][None]
    assert predictor.predict(volume).label in ("0", "1")
    assert sensible(predictor.model) == ("grad_cam", "integrated_gradients", "occlusion")
    made = predictor.explain(volume, "occlusion", checks="none")
    assert made.map.shape == (32, 32, 32)
    with pytest.raises(ConfigError, match=r"rollout reads .*, and MonaiNetwork has none"):
        predictor.explain(volume, "rollout")


def test_stopped_and_resumed_it_ends_with_the_very_weights(
    run: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EfficientNet's dropout and its skipped blocks draw from torch's own generator."""
    (tmp_path / "stop").touch()
    with monkeypatch.context() as patch:
        patch.setenv(STOP_FILE, str(tmp_path / "stop"))
        with pytest.raises(KeyboardInterrupt):
            regard.train(data, out=tmp_path / "run", explain=0, **TRAINED)
    again = load_file(regard.resume(tmp_path / "run", quiet=True).checkpoint("last"))
    whole = load_file(run.checkpoint("last"))
    assert all(torch.equal(again[key], whole[key]) for key in whole)


def test_grad_cam_is_that_of_captum_on_the_last_map() -> None:
    from captum.attr import LayerGradCam

    torch.manual_seed(0)
    model = regard.create("monai_resnet10", classes=2, size=32).eval()
    nn.init.normal_(model.head.weight)
    case = Case(model, torch.randn(1, 1, 32, 32, 32), lambda z: model(z).logits[:, 1])
    theirs: Any = LayerGradCam(lambda z: model(z).logits, model.body.layer4).attribute(case.x, target=1)
    ours = grad_cam(case)
    assert case.where.grid == tuple(theirs.shape[2:]) == (2, 2, 2)
    torch.testing.assert_close(ours, theirs.flatten(1).detach(), atol=1e-5, rtol=1e-4)
