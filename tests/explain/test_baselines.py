"""Explanations of networks without attention."""

from typing import Any

import pytest
import torch

import regard
from regard.explain import Case, grad_cam, inspect_model, integrated_gradients, occlusion, sensible
from regard.explain.inspect import filters
from tests.weights.parity import randomise


@pytest.fixture
def case():
    fields: dict[str, Any] = {"size": (32, 48), "width": 8, "classes": 4, "stem": "large", "blocks": (1, 1, 1)}
    model = randomise(regard.create("resnet_nano", **fields))
    x = torch.randn(1, 3, 32, 48, generator=torch.Generator().manual_seed(1))
    return Case(model, x, lambda z: model(z).logits[:, 2])


def test_grad_cam_of_a_resnet_against_captum(case):
    from captum.attr import LayerGradCam

    theirs: Any = LayerGradCam(lambda z: case.model(z).logits, case.model.stages).attribute(case.x, target=2)
    ours = grad_cam(case)
    assert ours.shape == (1, case.where.places)
    assert case.where.grid == tuple(theirs.shape[2:])
    torch.testing.assert_close(ours, theirs.flatten(1).detach(), atol=1e-5, rtol=1e-4)


def test_integrated_gradients_of_a_resnet_are_complete(case):
    values = integrated_gradients(case, steps=200).values
    difference = case.score(case.x) - case.score(torch.zeros_like(case.x))
    assert float(values.sum()) == pytest.approx(float(difference.detach()), rel=0.02)


def test_occlusion_of_a_fully_connected_network_is_exact_where_it_is_linear():
    """With one hidden layer that is never off, covering a pixel takes away exactly what the pixel adds."""
    model = randomise(regard.create("mlp_nano", size=(4, 4), channels=1, classes=2, width=6, depth=1))
    with torch.no_grad():
        model.layers[0].linear.bias.fill_(100.0)
    x = torch.randn(1, 1, 4, 4)
    case = Case(model, x, lambda z: model(z).logits[:, 1])
    weights = (model.head.weight @ model.layers[0].linear.weight)[1]
    torch.testing.assert_close(occlusion(case)[0], (weights * x.flatten()).detach(), atol=1e-4, rtol=1e-4)


def test_only_sensible_methods_are_offered():
    assert sensible(regard.create("vit_nano", classes=2))[0] == "attention"
    assert sensible(regard.create("resnet_nano", classes=2)) == ("grad_cam", "integrated_gradients", "occlusion")
    assert sensible(regard.create("mlp_nano", classes=2)) == ("integrated_gradients", "occlusion")


@pytest.mark.parametrize(("name", "shape"), [("resnet_nano", (3, 3, 3)), ("mlp_nano", (3, 16, 16))])
def test_inspect_shows_filters_and_says_there_is_no_attention(name, shape, tmp_path):
    model = regard.create(name, classes=2, size=16)
    assert filters(model, count=5).pictures.shape == (5, *shape)
    found = inspect_model(model, torch.rand(2, 3, 16, 16))
    assert "no attention" in found.describe()
    assert "attention" not in found.save(tmp_path / "i.svg").read_text(), "nor an empty panel"
