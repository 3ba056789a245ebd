"""Both ways with torchvision's ViT, which takes square images only."""

import pytest
import torch
from safetensors.torch import load_file

models = pytest.importorskip("torchvision.models")

import regard  # noqa: E402
from regard.weights import convert  # noqa: E402
from tests.weights.parity import assert_close, assert_equal, picture, randomise  # noqa: E402

SMALL = {"image_size": 24, "patch_size": 8, "num_layers": 3, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 48}


@pytest.mark.parametrize("hidden", [None, 32], ids=["one layer", "two layers"])
def test_both_ways(hidden, tmp_path):
    theirs = randomise(models.VisionTransformer(**SMALL, num_classes=5, representation_size=hidden))
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    ours = regard.create(weights=tmp_path / "vit.pth", heads=4, quiet=True).eval()
    assert (ours.loaded.format, ours.config.head) == ("torchvision", "mlp" if hidden else "linear")
    with torch.no_grad():
        assert_close(ours(picture(24, 24)).logits, theirs(picture(24, 24)))
    convert(tmp_path / "vit.pth", tmp_path / "back.safetensors", to="torchvision", heads=4)
    back = load_file(tmp_path / "back.safetensors")
    assert_equal(back, theirs.state_dict())
    theirs.load_state_dict(back, strict=True)


def test_names_from_before_its_version_0_12(tmp_path):
    """Its own loader turns `mlp.linear_1` into `mlp.0`; so do we."""
    theirs = randomise(models.VisionTransformer(**SMALL, num_classes=5))
    old = {
        k.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): v
        for k, v in theirs.state_dict().items()
    }
    torch.save(old, tmp_path / "old.pth")
    other = randomise(models.VisionTransformer(**SMALL, num_classes=5), seed=1)
    other.load_state_dict(torch.load(tmp_path / "old.pth", weights_only=True))
    ours = regard.create(weights=tmp_path / "old.pth", heads=4, quiet=True).eval()
    with torch.no_grad():
        assert_close(ours(picture(24, 24)).logits, other(picture(24, 24)))


def test_its_published_shape_is_ours():
    from regard.registry import MODELS

    with torch.device("meta"):
        assert sum(p.numel() for p in models.vit_b_16().parameters()) == MODELS["vit_b16"].parameters


@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
def test_its_resnets_both_ways(kind, tmp_path):
    block = {"basic": models.resnet.BasicBlock, "bottleneck": models.resnet.Bottleneck}[kind]
    theirs = randomise(models.ResNet(block, [2, 1, 1, 1], num_classes=5))
    torch.save(theirs.state_dict(), tmp_path / "r.pth")
    ours = regard.create(weights=tmp_path / "r.pth", quiet=True).eval()
    assert (ours.loaded.format, ours.config.kind) == ("torchvision", kind)
    with torch.no_grad():
        assert_close(ours(picture(64, 48)).logits, theirs(picture(64, 48)))
    convert(tmp_path / "r.pth", tmp_path / "back.safetensors", to="torchvision")
    back = load_file(tmp_path / "back.safetensors")
    assert_equal(back, theirs.state_dict())
    theirs.load_state_dict(back, strict=True)


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "resnet101"])
def test_its_published_resnets_have_our_names_and_shapes(name):
    from regard.registry import MODELS
    from regard.weights.resnet import TORCHVISION_RESNET

    with torch.device("meta"):
        theirs, ours = getattr(models, name)(), regard.create(name)
    assert sum(p.numel() for p in theirs.parameters()) == MODELS[name].parameters
    state, unknown = TORCHVISION_RESNET.read(theirs.state_dict())
    assert not unknown
    assert {k: v.shape for k, v in state.items()} == {k: v.shape for k, v in ours.state_dict().items()}
