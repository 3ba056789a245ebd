"""Feature visualisation on networks whose favourite picture is known, and on a trained one."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import regard
from regard.errors import ConfigError
from regard.explain.visualise import (
    class_excitement,
    head_excitement,
    most_exciting,
    token_excitement,
    total_variation,
    visualise,
)
from tests.loading import load_classifier

SIZE = (24, 32)


def blobs() -> torch.Tensor:
    """A bright and a dark blob: (3, 24, 32)."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIZE[0]), torch.linspace(-1, 1, SIZE[1]), indexing="ij")
    bright, dark = (torch.exp(-((x - a) ** 2 + (y - b) ** 2) / 0.1) for a, b in ((0.3, -0.2), (-0.4, 0.3)))
    return (bright - dark).expand(3, *SIZE)


class Likes(torch.nn.Module):
    """Its first logit is the dot product with a pattern."""

    def __init__(self, pattern: torch.Tensor):
        super().__init__()
        self.pattern = pattern

    def forward(self, x: torch.Tensor) -> SimpleNamespace:
        liking = (x * self.pattern).flatten(1).sum(1)
        return SimpleNamespace(logits=torch.stack([liking, -liking], dim=1))


def liked(name: str = "a", pattern: torch.Tensor | None = None, **settings):
    pattern = blobs() if pattern is None else pattern
    excitement = class_excitement(Likes(pattern), ("a", "b"), name)
    channels = len(pattern)
    return most_exciting(excitement, tuple(pattern.shape[1:]), (0.4,) * channels, (0.2,) * channels, **settings)


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


def test_the_picture_is_the_pattern_a_linear_network_likes():
    found = liked("a")
    assert found.picture.shape == (3, *SIZE)
    assert 0 <= found.picture.min() < found.picture.max() <= 1
    assert correlation(found.picture, blobs()) > 0.8
    assert found.after > 10 * max(abs(found.before), abs(found.noise))
    assert correlation(liked("b").picture, blobs()) < -0.8


def test_volumes_are_visualised_too():
    pattern = torch.zeros(1, 8, 12, 10)
    pattern[:, 2:5, 3:8, 4:8] = 1.0
    pattern -= pattern.mean()
    assert correlation(liked(pattern=pattern, steps=100).picture, pattern) > 0.8
    with pytest.raises(ConfigError, match="inputs with 1 axes"):
        liked(pattern=torch.zeros(1, 8))


def test_each_regulariser_makes_the_picture_calmer():
    rough = liked(variation=0.0, pull=0.0, jitter=0.0, turn=0.0, zoom=0.0, steps=100)

    def roughness(**settings: Any) -> float:
        off: dict[str, Any] = {"variation": 0.0, "pull": 0.0, "jitter": 0.0, "turn": 0.0, "zoom": 0.0, "steps": 100}
        return float(total_variation(liked(**{**off, **settings}).picture[None]))

    unregularised = float(total_variation(rough.picture[None]))
    assert roughness(variation=1.0) < 0.9 * unregularised
    assert roughness(pull=0.1) < 0.9 * unregularised


def test_a_seed_gives_the_same_picture_again():
    first, second, other = (liked(steps=10, seed=seed).picture for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    "wanted",
    [{"target": "3"}, {"layer": 2, "head": 1}, {"layer": 3, "token": 5}, {"layer": 1, "token": 2, "channel": 7}],
)
def test_a_trained_network_is_excited_far_above_noise(run_folder, wanted, tmp_path):
    predictor = load_classifier(run_folder)
    found = predictor.visualise(**wanted, steps=120)
    assert found.picture.shape == (1, 8, 8)
    prepared = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    prepared = predictor.preparation.normalised(prepared)
    if "target" in wanted:
        excitement = class_excitement(predictor.model, predictor.classes, wanted["target"])
    elif "head" in wanted:
        excitement = head_excitement(predictor.model, **wanted)
    else:
        excitement = token_excitement(predictor.model, **wanted)
    with torch.no_grad():
        white = excitement(prepared)
    assert found.after > max(found.before, found.noise, float(white.mean() + 2 * white.std()))
    assert all(p.grad is None for p in predictor.model.parameters())
    assert found.save(tmp_path / "a.png").stat().st_size > 1000


def test_a_head_is_its_own_columns_of_what_attention_hands_on():
    model = regard.create("vit_nano", classes=2, size=16, depth=2).eval()
    x, kept = torch.rand(2, 3, 16, 16), []
    model.blocks[1].attention.out.register_forward_pre_hook(lambda _module, args: kept.append(args[0]))
    got = head_excitement(model, 1, 2)(x)
    torch.testing.assert_close(got, kept[0][..., 32:48].norm(dim=-1).mean(-1))


def test_a_token_is_the_placed_one_after_the_block():
    model = regard.create("vit_nano", classes=2, size=16, depth=2, registers=1).eval()
    x = torch.rand(2, 3, 16, 16)
    tokens = model.blocks[0](model.embed(x))
    got = token_excitement(model, 0, 5)(x)
    torch.testing.assert_close(got, tokens[:, 7].norm(dim=-1))
    torch.testing.assert_close(token_excitement(model, 0, 5, 9)(x), tokens[:, 7, 9])


def test_heads_of_windows_and_tokens_of_stages():
    """A head of Swin is averaged over all windows of a picture; each stage numbers its own tokens."""
    model = regard.create("swin_nano", classes=2, size=(16, 24)).eval()
    x, kept = torch.rand(2, 3, 16, 24), {}
    for stage in (0, 1):
        block = model.stages[stage].blocks[1]
        block.register_forward_hook(lambda _module, _args, out, stage=stage: kept.update({stage: out}))
    model.stages[0].blocks[1].attention.out.register_forward_pre_hook(lambda _m, args: kept.update(out=args[0]))
    got = head_excitement(model, 1, 1)(x)
    torch.testing.assert_close(got, kept["out"][..., 16:].norm(dim=-1).reshape(2, -1).mean(1))
    torch.testing.assert_close(token_excitement(model, 1, 95)(x), kept[0][:, 7, 11].norm(dim=-1))
    torch.testing.assert_close(token_excitement(model, 3, 23, 5)(x), kept[1][:, 3, 5, 5])
    with pytest.raises(ConfigError, match="no token 24"):
        token_excitement(model, 3, 24)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"target": "cta"}, "did you mean cat"),
        ({"layer": 4, "head": 0}, "no layer 4"),
        ({"layer": 0, "head": 4}, "no head 4"),
        ({"layer": 0, "token": 16}, "no token 16"),
        ({"layer": 0, "token": 0, "channel": 64}, "no channel 64"),
        ({"layer": 0}, "what to excite is not clear"),
        ({"target": "cat", "layer": 0}, "what to excite is not clear"),
    ],
)
def test_wrong_requests_are_named(wanted, words):
    model = regard.create("vit_nano", classes=2, size=16)
    with pytest.raises(ConfigError, match=words):
        visualise(model, (0.5,) * 3, (0.2,) * 3, ("cat", "dog"), **wanted)
