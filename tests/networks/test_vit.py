"""The Vision Transformer against its paper, against transformers, and against itself compiled and exported."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

import regard
from regard.errors import ConfigError
from regard.networks.vit.config import VARIANTS, ViTConfig
from regard.networks.vit.network import ViT
from regard.nn import capture
from regard.registry import MODELS
from tests.weights.parity import gradients

# With 1000 classes at 224 pixels; the last column of the design's table.
PUBLISHED = {
    ("vit_ti16", 224): 5_717_416,
    ("vit_s16", 224): 22_050_664,
    ("vit_b32", 224): 88_224_232,
    ("vit_b16", 224): 86_567_656,
    ("vit_b16", 384): 86_859_496,
    ("vit_l32", 224): 306_535_400,
    ("vit_l16", 224): 304_326_632,
    ("vit_h14", 224): 632_045_800,
}


# Loss after three steps of the test below; it changes only when the arithmetic does.
RECORDED = 0.528181


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "size"), PUBLISHED)
def test_published_parameter_counts(name, size):
    with torch.device("meta"):
        assert count(regard.create(name, size=size)) == PUBLISHED[name, size]


@pytest.mark.parametrize("name", MODELS)
def test_every_registered_model_has_its_row_and_its_count(name):
    with torch.device("meta"):
        model = regard.create(name)
    assert count(model) == MODELS[name].parameters
    assert getattr(model.config, "size", ()) == MODELS[name].size


def hybrid_count() -> int:
    """A ResNet-50's 7 × 7 convolution and 3, 4 and 9 bottlenecks; each norm has two numbers a channel."""
    total, before = 3 * 64 * 49 + 2 * 64, 64
    for after, units in ((256, 3), (512, 4), (1024, 9)):
        inner = after // 4
        total += before * after + 2 * after  # the first unit's projected shortcut
        for _ in range(units):
            total += before * inner + 9 * inner * inner + inner * after + 2 * (2 * inner + after)
            before = after
    return total


@pytest.mark.parametrize("name", VARIANTS)
def test_counts_follow_from_the_shape(name):
    """Added up by hand: patches, class token, positions, blocks, last norm, head."""
    assert name in MODELS
    with torch.device("meta"):
        c = regard.create(name).config
    d, m = c.width, c.mlp
    tokens = math.prod(s // p for s, p in zip(c.size, c.patch, strict=True)) + 1
    block = 4 * d + (3 * d * d + 3 * d) + (d * d + d) + (d * m + m) + (m * d + d)
    patches = c.channels * math.prod(c.patch) * d + d if c.stem == "patch" else hybrid_count() + 1024 * d + d
    assert MODELS[name].parameters == patches + d + tokens * d + c.depth * block + 2 * d + 1000 * d + 1000


def test_vit_b_of_figure_4_has_half_the_widths():
    with torch.device("meta"):
        full, half = regard.create("vit_b32").config, regard.create("vit_b32_half").config
    assert (half.width, half.mlp, half.depth, half.heads) == (full.width // 2, full.mlp // 2, full.depth, full.heads)


def small(**changes) -> ViT:
    torch.manual_seed(0)
    fields = {"size": (16, 24), "patch": (8, 8), "width": 32, "depth": 3, "heads": 4, "mlp": 48, "classes": 5}
    model = ViT(ViTConfig(**fields | changes)).eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.2)
    return model


@pytest.mark.parametrize("size", [(16, 24), (17, 9), (40, 8), (8, 8)])
@pytest.mark.parametrize("positions", ["learned", "axial", "sinusoidal", "conditional", "none"])
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_any_input_size(size, positions, pool):
    out = small(positions=positions, pool=pool, registers=2)(torch.randn(2, 3, *size))
    assert out.logits.shape == (2, 5)
    assert out.features.shape == (2, 32)
    assert out.tokens.shape == (2, 2 + (pool == "class") + -(-size[0] // 8) * -(-size[1] // 8), 32)


@pytest.mark.parametrize("size", [(16, 24), (17, 9)])
def test_a_convolutional_stem_gives_the_tokens_of_its_patch_size(size):
    model = small(stem="conv")
    out = model(torch.randn(2, 3, *size))
    assert out.tokens.shape[1] == model.token_map(size).tokens
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert [c.weight.shape[:2] for c in convolutions] == [(8, 3), (16, 8), (32, 16)]


def test_a_convolutional_stem_is_for_pictures_in_powers_of_two():
    for patch in ((6, 6), (4, 8), (4, 4, 4)):
        with pytest.raises(ConfigError, match="stem='conv'"):
            small(stem="conv", patch=patch, size=(24,) * len(patch))


@pytest.mark.parametrize("stem", ["conv", "residual", "r50"])
def test_a_stem_of_pictures_is_refused_on_volumes_with_advice_that_helps(stem):
    with pytest.raises(
        ConfigError, match=f"stem='{stem}' makes tokens of pictures, and the input of 32 × 32 × 32"
    ) as e:
        regard.registry.configure("vit3d_nano", stem=stem)
    assert e.value.do == "leave --stem out, or give --stem patch"
    assert regard.registry.configure("vit3d_nano", stem="patch").patch == (8, 8, 8)


@pytest.mark.parametrize(("size", "patch"), [((20,), (4,)), ((8, 10, 12), (4, 5, 6))])
def test_signals_and_volumes(size, patch):
    model = small(size=size, patch=patch, channels=2)
    assert model(torch.randn(2, 2, *size)).logits.shape == (2, 5)
    assert model.token_map().tokens == model(torch.randn(1, 2, *size)).tokens.shape[1]


@pytest.mark.parametrize("size", [(32, 40), (17, 9)])
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_a_size_gives_the_same_answer_whether_built_for_it_or_met(size, pool):
    """The table of the one that is built for it is resampled by Pillow, and loaded as if it had been learnt."""
    met, built = small(pool=pool), small(pool=pool, size=size)
    first = int(pool == "class")
    grid = tuple(-(-side // 8) for side in size)
    old = met.positions.table.detach()
    channels = [Image.fromarray(channel.numpy()) for channel in old[first:].T.reshape(32, 2, 3)]
    resized = np.stack([np.asarray(channel.resize(grid[::-1], Image.Resampling.BICUBIC)) for channel in channels])
    table = torch.cat([old[:first], torch.from_numpy(resized).flatten(1).T])
    built.load_state_dict(met.state_dict() | {"positions.table": table})
    x = torch.randn(2, 3, *size)
    torch.testing.assert_close(met(x).logits, built(x).logits, atol=1e-5, rtol=1e-5)
    assert met.token_map(size).grid == grid
    built.load_state_dict(met.state_dict() | {"positions.table": table.roll(1, 0)})
    assert (met(x).logits - built(x).logits).abs().max() > 1e-3, "positions decide the answer"


def to_transformers(model: ViT, other: nn.Module) -> None:
    """Our weights under the names of transformers 5; every tensor of both sides is used exactly once."""
    own, mapped = dict(model.state_dict()), {}
    width = model.config.width
    mapped["vit.embeddings.cls_token"] = own.pop("class_token")[None]
    mapped["vit.embeddings.position_embeddings"] = own.pop("positions.table")[None]
    projection = own.pop("patches.project.weight")
    mapped["vit.embeddings.patch_embeddings.projection.weight"] = projection.reshape(width, 3, *model.config.patch)
    mapped["vit.embeddings.patch_embeddings.projection.bias"] = own.pop("patches.project.bias")
    for n in range(model.config.depth):
        ours, theirs = f"blocks.{n}.", f"vit.layers.{n}."
        for kind in ("weight", "bias"):
            q, k, v = own.pop(f"{ours}attention.qkv.{kind}").chunk(3)
            mapped |= {
                f"{theirs}attention.q_proj.{kind}": q,
                f"{theirs}attention.k_proj.{kind}": k,
                f"{theirs}attention.v_proj.{kind}": v,
                f"{theirs}attention.o_proj.{kind}": own.pop(f"{ours}attention.out.{kind}"),
                f"{theirs}layernorm_before.{kind}": own.pop(f"{ours}norm1.{kind}"),
                f"{theirs}layernorm_after.{kind}": own.pop(f"{ours}norm2.{kind}"),
                f"{theirs}mlp.fc1.{kind}": own.pop(f"{ours}mlp.up.{kind}"),
                f"{theirs}mlp.fc2.{kind}": own.pop(f"{ours}mlp.down.{kind}"),
            }
    for kind in ("weight", "bias"):
        mapped[f"vit.layernorm.{kind}"] = own.pop(f"norm.{kind}")
        mapped[f"classifier.{kind}"] = own.pop(f"head.{kind}")
    assert not own
    other.load_state_dict(mapped)


@pytest.fixture(scope="module")
def pair():
    from transformers import ViTConfig as TheirConfig
    from transformers import ViTForImageClassification

    model = small()
    fields: dict[str, Any] = {
        "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
        "image_size": (16, 24), "patch_size": 8, "layer_norm_eps": 1e-6, "num_labels": 5,
        "attn_implementation": "eager",
    }  # fmt: skip
    theirs = ViTForImageClassification(TheirConfig(**fields)).eval()
    to_transformers(model, theirs)
    return model, theirs


def test_against_transformers_vit_on_a_rectangle(pair):
    model, theirs = pair
    x = torch.randn(3, 3, 16, 24)
    with torch.no_grad():
        expected = theirs(x, output_attentions=True, output_hidden_states=True)
        with capture(model) as tape:
            out = model(x)
    torch.testing.assert_close(out.logits, expected.logits, atol=1e-5, rtol=1e-5)
    for layer, weights in enumerate(expected.attentions):
        for head in range(4):
            torch.testing.assert_close(tape.attention(layer, head), weights[:, head], atol=1e-5, rtol=1e-5)


def test_against_transformers_vit_gradients(pair):
    model, theirs = pair
    x, labels = torch.randn(3, 3, 16, 24), torch.tensor([0, 3, 4])
    F.cross_entropy(model(x).logits, labels).backward()
    F.cross_entropy(theirs(x).logits, labels).backward()
    ours = model.blocks[1].attention.qkv.weight.grad
    other = theirs.vit.layers[1].attention
    expected = torch.cat([other.q_proj.weight.grad, other.k_proj.weight.grad, other.v_proj.weight.grad])
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


def test_the_head_starts_at_zero_and_can_be_replaced():
    model = ViT(ViTConfig(size=(16, 16), patch=(8, 8), width=16, depth=1, heads=2, mlp=32, classes=7, head="mlp"))
    assert isinstance(model.head, nn.Sequential)
    last = model.head[-1]
    assert isinstance(last, nn.Linear)
    assert last.weight.abs().max() == 0
    model.replace_head(3)
    assert isinstance(model.head, nn.Linear)
    assert model.config.classes == 3
    assert model.config.head == "linear"
    assert torch.equal(model(torch.randn(2, 3, 16, 16)).logits, torch.zeros(2, 3))


def test_gradient_checkpointing_changes_nothing_but_memory():
    x, grads = torch.randn(2, 3, 16, 24), []
    for on in (False, True):
        model = small().train()
        model.checkpointing = on
        model(x).logits.square().sum().backward()
        grads.append(gradients(model))
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize(
    "fields", [{}, {"registers": 2, "layer_scale": 0.1}, {"pool": "mean"}, {"registers": 2, "rope": True}]
)
def test_class_token_only_gives_the_same_logits_and_gradients(fields):
    x, results = torch.randn(2, 3, 16, 24), []
    for alone in (False, True):
        model = small(**fields)
        out = model(x, class_token_only=alone)
        out.logits.square().sum().backward()
        results.append((out.logits, gradients(model)))
    torch.testing.assert_close(results[0], results[1])
    assert out.tokens.shape[1] == (1 if model.class_token is not None else 6)


def test_class_token_only_records_all_rows():
    model = small()
    with capture(model) as tape:
        model(torch.randn(1, 3, 16, 24), class_token_only=True)
    assert tape.attention(-1).shape == (1, 7, 7)


def test_overfits_one_batch():
    torch.manual_seed(0)
    model = regard.create("vit_nano", classes=8, size=16)
    x, y = torch.randn(8, 3, 16, 16), torch.arange(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss = torch.tensor(torch.inf)
    for _ in range(60):
        loss = F.cross_entropy(model(x).logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05


def test_one_training_step_gives_the_recorded_loss():
    torch.manual_seed(0)
    model = regard.create("vit_nano", classes=4, size=16)
    x, y = torch.randn(6, 3, 16, 16), torch.arange(6) % 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(4):
        loss = F.cross_entropy(model(x).logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(4), abs=1e-6)
    assert losses[3] == pytest.approx(RECORDED, abs=2e-4)


def test_compiled_equals_eager():
    model, x = small(), torch.randn(2, 3, 16, 24)
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager")
    torch.testing.assert_close(compiled(x).logits, model(x).logits, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("strict", [True, False])
def test_exported_equals_eager(strict):
    model, x = small(registers=1), torch.randn(2, 3, 16, 24)
    program = torch.export.export(model, (x,), strict=strict)
    torch.testing.assert_close(program.module()(x).logits, model(x).logits, atol=1e-6, rtol=1e-5)


def test_input_of_the_wrong_shape_is_named():
    with pytest.raises(ConfigError, match="3 channels"):
        small()(torch.randn(1, 1, 16, 24))
    with pytest.raises(ConfigError, match="2 axes"):
        small()(torch.randn(1, 3, 16, 24, 8))


def test_a_misspelt_name_or_field_gets_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean vit_b16"):
        regard.create("vit_b61")
    with pytest.raises(ConfigError, match="did you mean width"):
        regard.create("vit_nano", widht=3)
    with pytest.raises(ConfigError, match="does not divide into"):
        regard.create("vit_nano", heads=5).eval()


@pytest.mark.parametrize(
    "fields", [{"heads": 0}, {"depth": 0}, {"registers": -1}, {"dropout": 2.0}, {"drop_path": 1.0}, {"size": 224.0}]
)
def test_shapes_that_make_no_model_are_refused(fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        regard.create("vit_nano", **fields)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_norms_after_the_branches_are_the_first_transformers(pool):
    from torch.nn import TransformerEncoder, TransformerEncoderLayer

    model, x = small(norm="post", pool=pool), torch.randn(2, 3, 16, 24)
    layer = TransformerEncoderLayer(32, 4, 48, 0.0, "gelu", model.config.eps, batch_first=True)
    theirs = TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    names = {"attention.qkv.weight": "self_attn.in_proj_weight", "attention.qkv.bias": "self_attn.in_proj_bias"}
    parts = {"attention.out": "self_attn.out_proj", "mlp.up": "linear1", "mlp.down": "linear2"}
    state = {}
    for key, tensor in model.blocks.state_dict().items():
        number, _, rest = key.partition(".")
        rest = names.get(rest) or next((rest.replace(a, b) for a, b in parts.items() if a in rest), rest)
        state[f"layers.{number}.{rest}"] = tensor
    theirs.load_state_dict(state)
    with torch.no_grad():
        expected = model.norm(theirs(model.embed(x)))
        torch.testing.assert_close(model(x).tokens, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(model(x, class_token_only=True).logits, model(x).logits, atol=1e-5, rtol=1e-5)


def test_conditional_positions_tell_patches_apart_also_with_class_token_only():
    """Without positions, equal patches have equal tokens; a convolution over zeros around the grid tells them apart."""
    x = torch.ones(1, 3, 24, 24)
    plain, told = small(positions="none")(x).tokens[0, 1:], small(positions="conditional")(x).tokens[0, 1:]
    assert (plain - plain[0]).abs().max() < 1e-4
    assert (told[0] - told[4]).abs().max() > 0.01  # a corner and the centre
    model, y = small(positions="conditional"), torch.randn(2, 3, 16, 24)
    torch.testing.assert_close(model(y, class_token_only=True).logits, model(y).logits)
    torch.testing.assert_close(torch.compile(model, backend="eager")(y).logits, model(y).logits)


@pytest.mark.parametrize("fields", [{}, {"registers": 2}, {"pool": "mean"}])
def test_rope_tells_patches_apart_and_meet_other_sizes(fields):
    """Without positions, patches in another order have the same tokens, in that order; apply_rope, they do not."""
    x = torch.randn(1, 3, 16, 24)
    swapped = torch.cat([x[..., 8:16], x[..., :8], x[..., 16:]], dim=-1)  # the first two columns of patches
    for rope in (False, True):
        model = small(positions="none", rope=rope, **fields)
        assert ((model(x).features - model(swapped).features).abs().max() > 1e-3) == rope
    built, met = small(positions="none", rope=True, size=(32, 40), **fields), model
    met.load_state_dict(built.state_dict())
    y = torch.randn(2, 3, 32, 40)
    assert torch.equal(met(y).logits, built(y).logits)
    torch.testing.assert_close(torch.compile(model, backend="eager")(x).logits, model(x).logits)


@pytest.mark.parametrize(("width", "heads"), [(36, 4), (16, 8), (10, 2)])
def test_head_dimensions_that_do_not_suit_rope_are_refused(width, heads):
    with pytest.raises(ConfigError, match=f"a head dimension of {width // heads} is too small or odd"):
        regard.create("vit_nano", rope=True, width=width, heads=heads)


def test_all_blocks_share_one_compiled_graph():
    """Whatever their drop path; so there are three: of stem, blocks and norm."""
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    model = small(drop_path=0.2, stem="conv", patch=(8, 8), pool="mean", positions="conditional", rope=True).train()
    torch.compiler.reset()
    for part in model.compiled():
        part.compile(backend=keep, dynamic=False)
    for _ in range(2):
        model(torch.randn(4, 3, 16, 24), class_token_only=True)
    assert len(graphs) == 3


@pytest.mark.parametrize("fields", [{"positions": "sinusoidal"}, {"positions": "none", "rope": True}])
def test_another_size_breaks_no_graph(fields):
    model, x = regard.create("vit_nano", classes=3, size=16, **fields).eval(), torch.randn(2, 3, 12, 16)
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(x).tokens, model(x).tokens)
