"""Our Transformer against torch.nn.Transformer, and both ways with transformers' Marian, as Opus-MT has it."""

import json
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import regard
from regard.errors import ConfigError, RunError
from regard.networks.decoding import beam_search, greedy
from regard.networks.transformer.config import TransformerConfig
from regard.networks.transformer.network import Transformer
from regard.weights import save_marian
from regard.weights.names import Format, Row, both
from regard.weights.seq2seq import write_marian
from tests.weights.parity import assert_close, assert_equal, randomise

WORDS, PAD, END = 29, 28, 0


def _torch_block(ours: str, theirs: str) -> tuple[Row, ...]:
    return (
        Row(f"{ours}.attention.qkv.weight", f"{theirs}.self_attn.in_proj_weight"),
        Row(f"{ours}.attention.qkv.bias", f"{theirs}.self_attn.in_proj_bias"),
        *both(f"{ours}.attention.out", f"{theirs}.self_attn.out_proj"),
        *both(f"{ours}.mlp.up", f"{theirs}.linear1"),
        *both(f"{ours}.mlp.down", f"{theirs}.linear2"),
        *both(f"{ours}.norm{{c}}", f"{theirs}.norm{{c}}"),
    )


TORCH = Format(
    "torch.nn.Transformer",
    (
        *_torch_block("encoder.{n}", "encoder.layers.{n}"),
        *_torch_block("decoder.{n}", "decoder.layers.{n}"),
        Row("decoder.{n}.cross.qkv.weight", "decoder.layers.{n}.multihead_attn.in_proj_weight"),
        Row("decoder.{n}.cross.qkv.bias", "decoder.layers.{n}.multihead_attn.in_proj_bias"),
        *both("decoder.{n}.cross.out", "decoder.layers.{n}.multihead_attn.out_proj"),
        *both("encoder_norm", "encoder.norm"),
        *both("decoder_norm", "decoder.norm"),
    ),
    (),
)


def ours(**fields) -> Transformer:
    sizes = {"vocabulary": WORDS, "width": 32, "depth": 3, "decoder_depth": 2, "heads": 4, "mlp": 48, "eps": 1e-5}
    return Transformer(TransformerConfig(**sizes | fields)).eval()


def theirs(norm: str, *, final: bool = True, activation: str = "relu") -> nn.Transformer:
    model = nn.Transformer(
        32, 4, 3, 2, 48, dropout=0.0, activation=activation, batch_first=True, norm_first=norm == "pre"
    )
    if not final:
        model.encoder.norm = model.decoder.norm = None
    return randomise(model)


def sources(*lengths: int, words: int = WORDS - 1, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    rows = [torch.randint(1, words, (n,), generator=draw) for n in lengths]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


@pytest.mark.parametrize(
    ("norm", "final", "activation"), [("post", True, "relu"), ("pre", True, "gelu"), ("post", False, "relu")]
)
def test_against_torch_nn_transformer(norm, final, activation):
    reference = theirs(norm, final=final, activation=activation)
    fields = {"padding": PAD, "norm": norm, "final_norm": final, "activation": activation}
    model = randomise(ours(**fields), seed=1)
    stacks, unknown = TORCH.read(reference.state_dict())
    assert not unknown
    embeddings = ("embedding.", "positions.", "source_positions.")
    model.load_state_dict({n: t for n, t in model.state_dict().items() if n.startswith(embeddings)} | stacks)
    source, target = sources(7, 4, 1), sources(5, 6, 2)
    padded, future = source == PAD, nn.Transformer.generate_square_subsequent_mask(target.shape[1])
    with torch.no_grad():
        out = model(source, target)
        expected = reference(
            model.source_positions(model.embedding(source) * 32**0.5),
            model.positions(model.embedding(target) * 32**0.5),
            tgt_mask=future, tgt_is_causal=True, src_key_padding_mask=padded, memory_key_padding_mask=padded,
        )  # fmt: skip
    assert_close(out.features, expected)


def marian(kind: str = "shared", **fields) -> transformers.MarianMTModel:
    """Tiny and random in every number, the bias of the output too."""
    shared = kind == "shared"
    config = transformers.MarianConfig(**{
        "vocab_size": WORDS, "decoder_vocab_size": WORDS if shared else WORDS + 6, "d_model": 32,
        "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64, "pad_token_id": PAD,
        "decoder_start_token_id": PAD, "eos_token_id": END, "forced_eos_token_id": END, "scale_embedding": True,
        "activation_function": "swish", "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": kind != "separate",
    } | fields)  # fmt: skip
    model = transformers.MarianMTModel._from_config(config, attn_implementation="eager")
    positions = model.model.encoder.embed_positions.weight.clone()
    randomise(model)
    with torch.no_grad():
        model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape))
        for side in (model.model.encoder, model.model.decoder):
            side.embed_positions.weight.copy_(positions)
            for layer in side.modules():
                if isinstance(layer, nn.LayerNorm):
                    layer.weight.add_(1)
    return model.eval()


@pytest.mark.parametrize("kind", ["shared", "tied", "separate"])
def test_against_marian_and_back(kind, tmp_path):
    reference = marian(kind)
    reference.save_pretrained(tmp_path / "theirs")
    model = regard.create(weights=tmp_path / "theirs", quiet=True)
    source, target = sources(7, 4, 1), sources(5, 6, 2, words=WORDS)
    target[:, 0] = PAD
    with torch.no_grad():
        expected = reference(
            input_ids=source, attention_mask=source != PAD, decoder_input_ids=target, output_attentions=True
        )
        with regard.capture(model) as tape:
            out = model(source, target)
    assert_close(out.logits, expected.logits)
    assert_close(
        out.memory * (source != PAD)[..., None], expected.encoder_last_hidden_state * (source != PAD)[..., None]
    )
    for layer, weights in enumerate(expected.cross_attentions or ()):
        torch.testing.assert_close(tape.attention(f"decoder.{layer}.cross", 2), weights[:, 2], atol=1e-5, rtol=1e-5)
    assert isinstance(model, Transformer)
    save_marian(model, tmp_path / "back")
    assert_equal(
        load_file(tmp_path / "back" / "model.safetensors"), load_file(tmp_path / "theirs" / "model.safetensors")
    )
    again = transformers.MarianMTModel.from_pretrained(tmp_path / "back", attn_implementation="eager").eval()
    with torch.no_grad():
        logits = again(input_ids=source, attention_mask=source != PAD, decoder_input_ids=target).logits
    assert torch.equal(logits, expected.logits)


def test_the_older_file_with_its_copies_and_positions_is_read_too(tmp_path):
    reference = marian()
    reference.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(reference.state_dict(), tmp_path / "pytorch_model.bin")
    model = regard.create(weights=tmp_path, quiet=True)
    said = str(model.loaded)
    assert "lm_head.weight" in said
    assert "sinusoids" in said
    source, target = sources(5), sources(3)
    with torch.no_grad():
        expected = reference(input_ids=source, decoder_input_ids=target).logits
        assert_close(model(source, target).logits, expected)


def test_create_reads_a_marian_folder(tmp_path):
    marian().save_pretrained(tmp_path)
    model = regard.create(weights=tmp_path, quiet=True)
    assert isinstance(model, Transformer)
    assert model.loaded.format == "marian"
    assert torch.equal(model.embedding.weight, regard.create("transformer_base", weights=tmp_path).embedding.weight)
    refused: tuple[dict[str, Any], ...] = ({"name": "vit_b16"}, {"classes": 3}, {"depth": 2})
    for arguments in refused:
        with pytest.raises(ConfigError, match="cannot be changed"):
            regard.create(weights=tmp_path, **arguments)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """One that has begun to learn to say a sentence backwards: its beams are of many lengths, and all end."""
    torch.manual_seed(0)
    model = ours(
        positions="halves", activation="swish", output_bias=True, padding=PAD, start=PAD, end=END, dropout=0.0
    ).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(200):
        lengths = [1 + (step + n) % 9 for n in range(32)]
        source = sources(*lengths, seed=step)
        wanted = nn.utils.rnn.pad_sequence(
            [torch.cat([row[:n].flip(0), torch.tensor([END])]) for row, n in zip(source, lengths, strict=True)],
            batch_first=True, padding_value=PAD,
        )  # fmt: skip
        logits = model(source, nn.functional.pad(wanted, (1, 0), value=PAD)[:, :-1]).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    folder = save_marian(model, tmp_path_factory.mktemp("marian"))
    return model.eval(), transformers.MarianMTModel.from_pretrained(folder).eval()


def generated(reference: Any, source: Tensor, **options) -> tuple[list[list[int]], Any]:
    found = reference.generate(
        input_ids=source, attention_mask=source != PAD, max_length=40, bad_words_ids=[[PAD]], do_sample=False,
        return_dict_in_generate=True, output_scores=True, **options,
    )  # fmt: skip
    rows = [[word for word in row[1:] if word != PAD] for row in found.sequences.tolist()]
    return rows, getattr(found, "sequences_scores", None)


def words_of(found: Tensor) -> list[list[int]]:
    return [[word for word in row if word != PAD] for row in found.flatten(0, 1).tolist()]


def test_greedy_as_marian_generates(pair):
    model, reference = pair
    source = sources(7, 4, 1, 9, 6, 3)
    rows, _ = generated(reference, source, num_beams=1)
    assert len({len(row) for row in rows}) > 1
    assert words_of(greedy(model, source, ratio=0.0, constant=39).words) == rows


@pytest.mark.parametrize("beams", [2, 4])
def test_beam_search_as_marian_generates(pair, beams):
    """Where the definitions agree: no penalty of length (theirs is lengthᵅ), a search that is over when as many have
    ended as there are beams (early_stopping), and none cut at the greatest length (there theirs ends for nothing)."""
    model, reference = pair
    source = sources(7, 4, 1, 9, 6, 3)
    rows, scores = generated(
        reference, source, num_beams=beams, num_return_sequences=beams, length_penalty=0.0, early_stopping=True
    )
    found = beam_search(model, source, beams=beams, best=beams, penalty=0.0, ratio=0.0, constant=39)
    assert max(map(len, rows)) < 39
    assert words_of(found.words) == rows
    torch.testing.assert_close(found.scores.flatten(), scores, atol=1e-4, rtol=1e-5)


def test_tensors_that_marian_lacks_or_has_too_many_of_are_named(tmp_path):
    marian().save_pretrained(tmp_path)
    whole = load_file(tmp_path / "model.safetensors")
    lost, changed = "model.decoder.layers.1.encoder_attn.k_proj.weight", "model.encoder.layers.0.fc1.bias"
    for tensors, words in (
        ({n: t for n, t in whole.items() if n != lost}, rf"{lost}: not in the file"),
        ({n: t for n, t in whole.items() if n != "final_logits_bias"}, "final_logits_bias: not in the file"),
        (whole | {"model.extra.weight": torch.zeros(1)}, r"model\.extra\.weight: not in the model"),
        (whole | {"model.encoder.layers.9.fc1.bias": whole[changed].clone()}, r"layers\.9\.fc1\.bias: not in the"),
        (whole | {changed: torch.zeros(50)}, r"fc1\.bias: \(48,\) here, \(50,\) in the file"),
        (whole | {"lm_head.weight": whole["model.shared.weight"] + 1}, r"lm_head\.weight: not equal"),
        (whole | {"model.encoder.embed_positions.weight": torch.rand(64, 32)}, "not the sinusoids"),
        (whole | {changed: torch.full((48,), float("nan"))}, "NaN"),
    ):
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(RunError, match=words):
            regard.create(weights=tmp_path, quiet=True)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scale_embedding": False}, "scale_embedding is False"),
        ({"normalize_before": True}, "normalize_before is True"),
        ({"decoder_ffn_dim": 50}, "differ in ffn_dim"),
        ({"activation_function": "tanh"}, "activation"),
        ({"d_model": "wide"}, "width"),
        ({"d_model": -4}, "width"),
        ({"pad_token_id": None}, "padding"),
    ],
)
def test_a_config_that_ours_cannot_be_is_refused(fields, words, tmp_path):
    marian().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | fields))
    with pytest.raises(RunError, match=words):
        regard.create(weights=tmp_path, quiet=True)


@pytest.mark.parametrize("fields", [{"norm": "pre"}, {"positions": "learned"}, {"final_norm": True}, {"key_width": 4}])
def test_what_marian_has_no_words_for_is_refused(fields):
    with pytest.raises(ConfigError, match="cannot represent"):
        write_marian(ours(**{"positions": "halves"} | fields))


def test_a_marian_model_can_be_kept_as_regard_and_as_nothing_else(tmp_path):
    marian().save_pretrained(tmp_path / "theirs")
    regard.weights.convert(tmp_path / "theirs", tmp_path / "ours.safetensors", "regard")
    model, again = (regard.create(weights=tmp_path / name, quiet=True) for name in ("theirs", "ours.safetensors"))
    assert_equal(again.state_dict(), model.state_dict())
    with pytest.raises(ConfigError, match="cannot represent models of the family 'transformer'"):
        regard.weights.convert(tmp_path / "theirs", tmp_path / "timm.safetensors", "timm")


def test_more_blocks_than_the_file_has_tensors_are_refused_before_they_are_built(tmp_path, monkeypatch):
    model = randomise(ours(positions="halves", output_bias=True, activation="swish", padding=PAD, start=PAD, end=END))
    save_marian(model, tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"encoder_layers": 200_000}))
    monkeypatch.setattr("regard.weights.seq2seq.Transformer", lambda *_: pytest.fail("built"))
    with pytest.raises(RunError, match="do not fit together"):
        regard.create(weights=tmp_path)
