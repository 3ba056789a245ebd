"""MONAI's ViT and ours are one network where they coincide: weights both ways, every hidden state, gradients.

They coincide with a class token, learned positions, eps 1e-5 and no dropout. What MONAI has and we do not: a Tanh on
the logits, no position for the class token (ours is then zero), no biases of queries, keys and values unless asked for
(ours are then zero), and norms for a cross-attention that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from monai.networks.nets.vit import ViT as MonaiViT
from torch import Tensor

import regard
from regard.networks.base import Network
from tests.weights.parity import assert_close, assert_equal, gradients, picture, randomise

SIZE, PATCH, CHANNELS = (16, 24, 8), (8, 8, 4), 2
SHAPE: dict[str, Any] = {"hidden_size": 32, "mlp_dim": 48, "num_layers": 3, "num_heads": 4, "num_classes": 5}
NAMES = {
    "norm1": "norm1", "attn.qkv": "attention.qkv", "attn.out_proj": "attention.out", "norm2": "norm2",
    "mlp.linear1": "mlp.up", "mlp.linear2": "mlp.down",
}  # fmt: skip


def of_monai(**fields: Any) -> Any:
    built = MonaiViT(CHANNELS, SIZE, PATCH, classification=True, post_activation="none", **SHAPE | fields)
    return randomise(built)


def ours() -> Network:
    return regard.create(
        "vit3d_nano", size=SIZE, patch=PATCH, channels=CHANNELS, width=32, depth=3, heads=4, mlp=48, classes=5, eps=1e-5
    )


def layers(depth: int) -> dict[str, str]:
    """Names of theirs and of ours, without weight and bias."""
    blocks = {f"blocks.{n}.{their}": f"blocks.{n}.{own}" for n in range(depth) for their, own in NAMES.items()}
    return blocks | {"norm": "norm", "classification_head": "head"}


def from_monai(state: Mapping[str, Tensor], depth: int = 3) -> dict[str, Tensor]:
    made = {}
    for their, own in layers(depth).items():
        made[f"{own}.weight"] = state[f"{their}.weight"]
        bias = state.get(f"{their}.bias")
        made[f"{own}.bias"] = torch.zeros(len(made[f"{own}.weight"])) if bias is None else bias
    perceptron = state.get("patch_embedding.patch_embeddings.1.weight")
    if perceptron is None:
        made["patches.project.weight"] = state["patch_embedding.patch_embeddings.weight"].flatten(1)
        made["patches.project.bias"] = state["patch_embedding.patch_embeddings.bias"]
    else:  # its voxels come first and their channels last
        made["patches.project.weight"] = perceptron.unflatten(1, (-1, CHANNELS)).transpose(1, 2).flatten(1)
        made["patches.project.bias"] = state["patch_embedding.patch_embeddings.1.bias"]
    places = state["patch_embedding.position_embeddings"][0]
    made["positions.table"] = torch.cat([torch.zeros(1, places.shape[1]), places])
    return made | {"class_token": state["cls_token"][0]}


def to_monai(state: Mapping[str, Tensor], like: Mapping[str, Tensor], depth: int = 3) -> dict[str, Tensor]:
    """A class token's position, which MONAI has none of, is added to the token: it is the same."""
    made = {key: value for key, value in like.items() if "cross_attn" in key}
    for their, own in layers(depth).items():
        made |= {f"{their}.{kind}": state[f"{own}.{kind}"] for kind in ("weight", "bias")}
    kernel = state["patches.project.weight"]
    made["patch_embedding.patch_embeddings.weight"] = kernel.unflatten(1, (CHANNELS, *PATCH))
    made["patch_embedding.patch_embeddings.bias"] = state["patches.project.bias"]
    made["patch_embedding.position_embeddings"] = state["positions.table"][None, 1:]
    return made | {"cls_token": (state["class_token"] + state["positions.table"][:1])[None]}


def hidden_states(model: Network, x: Tensor) -> list[Tensor]:
    held: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda *called: held.append(called[2])) for block in model.blocks]
    model(x)
    for hook in hooks:
        hook.remove()
    return held


@pytest.mark.parametrize(
    "fields",
    [{"qkv_bias": True}, {}, {"proj_type": "perceptron"}, {"pos_embed_type": "sincos"}],
    ids=["biases", "default", "perceptron", "sincos"],
)
def test_every_hidden_state_is_monais(fields: dict[str, Any]) -> None:
    theirs = of_monai(**{"hidden_size": 36, "num_heads": 6} | fields if "pos_embed_type" in fields else fields)
    width, heads = theirs.norm.weight.shape[0], theirs.blocks[0].attn.num_heads
    model = regard.create(
        "vit3d_nano", size=SIZE, patch=PATCH, channels=CHANNELS, width=width, depth=3, heads=heads, mlp=48, classes=5,
        eps=1e-5,
    ).eval()  # fmt: skip
    model.load_state_dict(from_monai(theirs.state_dict()))
    x = picture(*SIZE, channels=CHANNELS)
    with torch.no_grad():
        logits, states = theirs(x)
        for own, their in zip(hidden_states(model, x), states, strict=True):
            assert_close(own, their)
        assert_close(model(x).logits, logits)


def test_ours_in_monais_network_and_back_is_equal_and_learns_the_same() -> None:
    model, theirs = randomise(ours()), of_monai(qkv_bias=True)
    theirs.load_state_dict(to_monai(model.state_dict(), theirs.state_dict()))
    x = picture(*SIZE, channels=CHANNELS)
    with torch.no_grad():
        assert_close(theirs(x)[0], model(x).logits)
    back = from_monai(theirs.state_dict())
    token = model.state_dict()["class_token"] + model.state_dict()["positions.table"][:1]
    table = torch.cat([torch.zeros(1, 32), model.state_dict()["positions.table"][1:]])
    assert_equal(back, model.state_dict() | {"class_token": token, "positions.table": table})
    model(x).logits.square().sum().backward()
    theirs(x)[0].square().sum().backward()
    grad = theirs.patch_embedding.patch_embeddings.weight.grad
    torch.testing.assert_close(model.patches.project.weight.grad, grad.flatten(1), atol=1e-3, rtol=1e-4)
    assert gradients(model).abs().max() > 0.1


def test_monais_tanh_is_on_its_logits_by_default() -> None:
    plain, usual = of_monai(), MonaiViT(CHANNELS, SIZE, PATCH, classification=True, **SHAPE).eval()
    state = {k.replace("classification_head.", "classification_head.0."): v for k, v in plain.state_dict().items()}
    usual.load_state_dict(state)
    x = picture(*SIZE, channels=CHANNELS)
    with torch.no_grad():
        assert_close(usual(x)[0], plain(x)[0].tanh())
