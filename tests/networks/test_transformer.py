"""The Transformer against its paper, against arithmetic done by hand, and against itself compiled."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard.errors import ConfigError, DataError, RegardError
from regard.networks.transformer.config import VARIANTS, TransformerConfig
from regard.networks.transformer.network import Transformer
from regard.registry import MODELS
from tests.weights.parity import gradients

# With 37,000 shared words: Table 3's base and big, and rows (B), (C) and (E) exactly.
PUBLISHED = [
    ("transformer_base", {}, 63_082_496),
    ("transformer_big", {}, 214_245_376),
    ("transformer_base", {"key_width": 16}, 55_990_784),
    ("transformer_base", {"depth": 2}, 33_656_832),
    ("transformer_base", {"mlp": 1024}, 50_487_296),
    ("transformer_base", {"heads": 1}, 63_082_496),
    ("transformer_base", {"heads": 32}, 63_082_496),
    ("transformer_base", {"positions": "learned", "length": 256}, 63_082_496 + 2 * 256 * 512),
    ("transformer_base", {"norm": "pre"}, 63_082_496 + 2 * 2 * 512),
    ("transformer_base", {"embeddings": "tied"}, 63_082_496 + 37_000 * 512),
    ("transformer_base", {"embeddings": "separate"}, 63_082_496 + 2 * 37_000 * 512),
    ("transformer_base", {"vocabulary": (3000, 2000)}, 63_082_496 + (5000 - 37_000) * 512),
    ("transformer_base", {"decoder_depth": 2}, 63_082_496 - 4 * 4_204_032),
]

# Loss after three steps of the test below; it changes only when the arithmetic does.
RECORDED = 1.797220

PADDING, START, END = 0, 1, 2


@pytest.mark.parametrize(("name", "fields", "expected"), PUBLISHED)
def test_published_parameter_counts(name, fields, expected):
    with torch.device("meta"):
        model = regard.create(name, **{"vocabulary": 37_000} | fields)
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize("name", VARIANTS)
def test_counts_follow_from_the_shape(name):
    """Added up by hand: words, encoder, decoder."""
    with torch.device("meta"):
        c = regard.create(name).config
    d, m = c.width, c.mlp
    attention, mlp = 4 * (d * d + d), 2 * d * m + m + d
    blocks = (attention + mlp + 2 * 2 * d) + (2 * attention + mlp + 3 * 2 * d)
    assert MODELS[name].parameters == 37_000 * d + c.depth * blocks


def small(**changes) -> Transformer:
    torch.manual_seed(0)
    fields = {"vocabulary": 23, "width": 32, "depth": 2, "heads": 4, "mlp": 48, "dropout": 0.0}
    model = Transformer(TransformerConfig(**fields | changes)).eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.2)
    return model


def sentences(*lengths: int, words: int = 23, seed: int = 0) -> Tensor:
    """Random words, each sentence padded to the longest."""
    draw = torch.Generator().manual_seed(seed)
    rows = [torch.randint(3, words, (n,), generator=draw) for n in lengths]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING)


VARIATIONS = [
    {},
    {"norm": "pre"},
    {"positions": "learned", "length": 16},
    {"positions": "halves", "activation": "swish", "output_bias": True},
    {"vocabulary": (23, 19), "embeddings": "tied"},
    {"embeddings": "separate", "key_width": 3, "value_width": 5},
    {"decoder_depth": 1, "final_norm": True},
]


@pytest.mark.parametrize("changes", VARIATIONS)
def test_shapes_whatever_the_lengths(changes):
    model = small(**changes)
    out = model(sentences(7, 1, 5), sentences(1, 4, 3, words=19))
    assert out.logits.shape == (3, 4, model.config.target_words)
    assert out.features.shape == (3, 4, 32)
    assert out.memory.shape == (3, 7, 32)
    assert out.logits.isfinite().all()


@pytest.mark.parametrize("changes", VARIATIONS)
def test_more_padding_changes_nothing(changes):
    model, source, target = small(**changes), sentences(7, 2), sentences(4, 3, words=19)
    expected = model(source, target).logits
    padded = model(F.pad(source, (0, 3)), F.pad(target, (0, 2))).logits[:, :4]
    torch.testing.assert_close(padded, expected, atol=1e-5, rtol=1e-5)
    alone = model(source[1:, :2], target[1:, :3]).logits
    torch.testing.assert_close(alone, expected[1:, :3], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_no_word_knows_of_those_after_it(norm):
    model, source, target = small(norm=norm), sentences(7), sentences(6)
    expected = model(source, target).logits
    for n in range(5):
        other = target.clone()
        other[:, n + 1 :] = 3 + (other[:, n + 1 :] - 2) % 20
        changed = model(source, other).logits
        torch.testing.assert_close(changed[:, : n + 1], expected[:, : n + 1], atol=1e-6, rtol=1e-5)
        assert (changed[:, n + 1 :] - expected[:, n + 1 :]).abs().amax(-1).min() > 1e-3


def test_every_word_knows_of_the_whole_source():
    model, source, target = small(), sentences(7), sentences(3)
    expected = model(source, target).logits
    for n in range(7):
        other = source.clone()
        other[:, n] = 3 + (other[:, n] - 2) % 20
        assert (model(other, target).logits - expected).abs().amax(-1).min() > 1e-4


def by_hand(model: Transformer, source: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The paper's sections 3.1 to 3.5 for one sentence, in double precision, without any of our parts."""
    state = {key: value.double() for key, value in model.state_dict().items()}
    d, heads, maps = model.config.width, model.config.heads, {}

    def linear(x, name):
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def norm(x, name):
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + model.config.eps).sqrt()
        return x * state[f"{name}.weight"] + state[f"{name}.bias"]

    def attention(x, memory, name, causal=False):
        q, k, v = (
            y @ w.T + b
            for y, w, b in zip(
                (x, memory, memory), state[f"{name}.qkv.weight"].chunk(3), state[f"{name}.qkv.bias"].chunk(3),
                strict=True,
            )
        )  # fmt: skip
        mixed, maps[name] = [], []
        for head in range(heads):
            part = slice(head * d // heads, (head + 1) * d // heads)
            scores = q[:, part] @ k[:, part].T / math.sqrt(d / heads)
            if causal:
                scores = scores + torch.full_like(scores, float("-inf")).triu(1)
            weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
            maps[name].append(weights)
            mixed.append(weights @ v[:, part])
        maps[name] = torch.stack(maps[name])
        return linear(torch.cat(mixed, -1), f"{name}.out")

    def embed(words):
        rates = 10000 ** (-torch.arange(0, d, 2).double() / d)
        angles = torch.arange(len(words)).double()[:, None] * rates
        places = torch.zeros(len(words), d).double()
        places[:, 0::2], places[:, 1::2] = angles.sin(), angles.cos()
        return state["embedding.weight"][words] * math.sqrt(d) + places

    memory = embed(source)
    for n in range(model.config.depth):
        memory = norm(memory + attention(memory, memory, f"encoder.{n}.attention"), f"encoder.{n}.norm1")
        hidden = linear(memory, f"encoder.{n}.mlp.up").clamp(min=0)
        memory = norm(memory + linear(hidden, f"encoder.{n}.mlp.down"), f"encoder.{n}.norm2")
    x = embed(target)
    for n in range(model.config.depth):
        x = norm(x + attention(x, x, f"decoder.{n}.attention", causal=True), f"decoder.{n}.norm1")
        x = norm(x + attention(x, memory, f"decoder.{n}.cross"), f"decoder.{n}.norm2")
        hidden = linear(x, f"decoder.{n}.mlp.up").clamp(min=0)
        x = norm(x + linear(hidden, f"decoder.{n}.mlp.down"), f"decoder.{n}.norm3")
    return x @ state["embedding.weight"].T, maps


def test_logits_and_every_captured_weight_equal_the_paper_by_hand():
    model, source, target = small(), sentences(7, 4), sentences(5, 5)
    outside = model(source, target).logits
    with regard.capture(model) as tape:
        inside = model(source, target).logits
    assert torch.equal(outside, inside)
    assert tape.names == [
        "encoder.0.attention", "encoder.1.attention", "decoder.0.attention", "decoder.0.cross", "decoder.1.attention",
        "decoder.1.cross",
    ]  # fmt: skip
    for sentence, length in enumerate((7, 4)):
        logits, maps = by_hand(model, source[sentence, :length], target[sentence])
        torch.testing.assert_close(outside[sentence], logits.float(), atol=1e-5, rtol=1e-5)
        for name, heads in maps.items():
            for head, weights in enumerate(heads):
                ours = tape.attention(name, head)[sentence]
                queries, keys = weights.shape
                torch.testing.assert_close(ours[:queries, :keys], weights.float(), atol=1e-5, rtol=0)
                assert ours[:queries, keys:].abs().sum() == 0, "padding was looked at"


def test_a_misspelt_layer_of_the_tape_gets_a_suggestion():
    model = small()
    with regard.capture(model) as tape:
        model(sentences(3), sentences(2))
    with pytest.raises(RegardError, match=r"did you mean decoder\.1\.cross"):
        tape.attention("decoder.1.corss")


def test_dropout_is_where_the_paper_has_it():
    """On the sums of embeddings and positions (2) and on every branch (2 and 3 a block), of one rate each."""
    model = small(dropout=0.5).train()
    places = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda m, i, o, name=name: places.append((name, m.p)))
    model(sentences(5), sentences(4))
    active = [name for name, rate in places if rate == 0.5]
    assert len(active) == 2 + 2 * 2 + 2 * 3
    assert {name for name, rate in places if rate not in (0.0, 0.5)} == set()
    assert not [name for name in active if "mlp" in name or "attention" in name or "cross" in name]


def test_matrices_begin_as_xavier_and_embeddings_with_unit_size():
    torch.manual_seed(0)
    model = regard.create("transformer_nano", vocabulary=500)
    for part in model.decoder[1].cross.qkv.weight.chunk(3):
        assert part.abs().max().item() == pytest.approx(math.sqrt(6 / 256), rel=0.01)
    assert model.encoder[0].mlp.up.weight.abs().max().item() == pytest.approx(math.sqrt(6 / (128 + 512)), rel=0.01)
    assert model.encoder[0].mlp.up.bias.abs().max() == 0
    assert (model.embedding.weight * 128**0.5).std().item() == pytest.approx(1, abs=0.02)


def steps(count: int, rate: float) -> list[float]:
    torch.manual_seed(0)
    model = regard.create("transformer_nano", vocabulary=40, dropout=0.0)
    source, target = sentences(6, 3, 5, 6, words=40), sentences(5, 5, 4, 2, words=40, seed=1)
    given = F.pad(target, (1, 0), value=START)
    wanted = F.pad(target, (0, 1), value=PADDING)
    wanted[torch.arange(4), (target != PADDING).sum(1)] = END
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.98), eps=1e-9), []
    for _ in range(count):
        loss = F.cross_entropy(model(source, given).logits.flatten(0, 1), wanted.flatten(), ignore_index=PADDING)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_overfits_one_batch():
    assert steps(40, 2e-3)[-1] < 0.05


def test_training_steps_give_the_recorded_loss():
    losses = steps(4, 1e-3)
    assert losses[0] == pytest.approx(math.log(40), abs=1.5)
    assert losses[3] == pytest.approx(RECORDED, abs=2e-4)


def test_gradient_checkpointing_changes_nothing_but_memory():
    source, target, grads = sentences(5, 3), sentences(4, 2), []
    for on in (False, True):
        model = small().train()
        model.checkpointing = on
        model(source, target).logits.square().mean().backward()
        grads.append(gradients(model))
    torch.testing.assert_close(grads[0], grads[1])


def test_compiled_equals_eager():
    model, source, target = small(), sentences(6, 4), sentences(5, 3)
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager")
    torch.testing.assert_close(compiled(source, target).logits, model(source, target).logits, atol=1e-6, rtol=1e-5)


def test_exported_equals_eager():
    model, source, target = small(), sentences(6, 4), sentences(5, 3)
    program = torch.export.export(model, (source, target))
    torch.testing.assert_close(
        program.module()(source, target).logits, model(source, target).logits, atol=1e-6, rtol=1e-5
    )


def test_a_step_needs_no_new_graph_for_the_next_word():
    """What lets a GPU record it: the second step is the first one again."""
    model, source, target = small(), sentences(6, 4), sentences(4, 4)
    with torch.no_grad():
        expected, state = model(source, target).features, model.begin(model.encode(source), 1, 5)
        compiled = torch.compile(model.step, fullgraph=True, dynamic=False, backend="eager")
        torch._dynamo.utils.counters.clear()
        for n in range(4):
            features = compiled(target[:, n : n + 1], state)[:, 0]
            torch.testing.assert_close(features, expected[:, n], atol=1e-5, rtol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"heads": 0}, "heads"),
        ({"heads": 5}, "does not divide"),
        ({"heads": 5, "key_width": 4}, "does not divide"),
        ({"vocabulary": 0}, "source_words"),
        ({"vocabulary": (10, 20), "embeddings": "shared"}, "one vocabulary"),
        ({"padding": 40_000}, "padding"),
        ({"end": 0}, "both 0"),
        ({"classes": 10}, "no field 'classes'"),
        ({"vocabluary": 10}, "did you mean vocabulary"),
        ({"positions": "axial"}, "positions"),
        ({"width": 63, "heads": 1}, "odd"),
    ],
)
def test_shapes_that_make_no_model_are_refused(fields, words):
    with pytest.raises(ConfigError, match=words):
        regard.create("transformer_nano", **fields)


def test_a_translator_is_not_trained_on_images(picture_folder, tmp_path):
    with pytest.raises(DataError, match="there is no parallel text here"):
        regard.train(picture_folder, model="transformer_nano", out=str(tmp_path / "run"), quiet=True)


def test_words_have_addresses():
    assert small().token_map((7,)).box(3) == ((3, 4),)
