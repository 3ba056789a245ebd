"""Weights of transformers' Marian, the format of Opus-MT models, as ours and back.

Marian is the paper's Transformer with a bias on the output, swish instead of ReLU, and the sines of positions before
their cosines. A target begins with padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import registry
from regard.config import make, read_json, to_dict
from regard.errors import ConfigError, RunError
from regard.networks.transformer.config import TransformerConfig
from regard.networks.transformer.network import Transformer
from regard.nn import word_table
from regard.weights.checkpoint import Checkpoint, save_tensors
from regard.weights.files import Opened
from regard.weights.foreign import require_floats
from regard.weights.names import Format, Row, Shape, both
from regard.weights.notes import Notes, mismatch
from regard.weights.run import to_json, write_text

EPS = 1e-5
"""Of every LayerNorm; a config.json does not say it."""
MARIAN_MODEL = "transformer_base"
"""The name its checkpoints go by; the config says every field."""
ONE_ROW = Shape(lambda t: t.flatten(), lambda t, _: t[None])  # (1, N) and (N,)


def _marian_attention(ours: str, theirs: str) -> tuple[Row, ...]:
    return *both(f"{ours}.qkv", f"{theirs}.[q_proj|k_proj|v_proj]"), *both(f"{ours}.out", f"{theirs}.out_proj")


def _marian_block(ours: str, theirs: str, last: str) -> tuple[Row, ...]:
    return (
        *_marian_attention(f"{ours}.attention", f"{theirs}.self_attn"),
        *both(f"{ours}.norm1", f"{theirs}.self_attn_layer_norm"),
        *both(f"{ours}.mlp.up", f"{theirs}.fc1"),
        *both(f"{ours}.mlp.down", f"{theirs}.fc2"),
        *both(f"{ours}.{last}", f"{theirs}.final_layer_norm"),
    )


_MARIAN = (
    Row("output_bias", "final_logits_bias", ONE_ROW),
    *_marian_block("encoder.{n}", "model.encoder.layers.{n}", "norm2"),
    *_marian_block("decoder.{n}", "model.decoder.layers.{n}", "norm3"),
    *_marian_attention("decoder.{n}.cross", "model.decoder.layers.{n}.encoder_attn"),
    *both("decoder.{n}.norm2", "model.decoder.layers.{n}.encoder_attn_layer_norm"),
)
_SHARED, _SOURCE = "model.shared.weight", "model.encoder.embed_tokens.weight"
_TARGET, _OUTPUT = "model.decoder.embed_tokens.weight", "lm_head.weight"
_TIED = (*_MARIAN, Row("embedding.weight", _TARGET), Row("source_embedding.weight", _SOURCE))
MARIAN = {
    "shared": Format("marian", (*_MARIAN, Row("embedding.weight", _SHARED)), ()),
    "tied": Format("marian", _TIED, ()),
    "separate": Format("marian", (*_TIED, Row("output.weight", _OUTPUT)), ()),
}
COPIES = {"shared": {_SOURCE: _SHARED, _TARGET: _SHARED, _OUTPUT: _SHARED}, "tied": {_OUTPUT: _TARGET}, "separate": {}}
"""Tensors that a file may hold twice, and the one that each must equal."""


def read_marian(opened: Opened, name: str | None, notes: Notes) -> Checkpoint:
    """The translator in a folder of transformers' (config.json and weights), such as any Opus-MT model's.

    The files decide its shape: a `name` need only be a Transformer's.
    """
    config = marian_config(opened.settings, opened.path)
    require_floats(opened.tensors, opened.path)
    weights = _read_marian(opened.tensors, config, opened.path, notes)
    model = name if name is not None and registry.find(name).family == "transformer" else MARIAN_MODEL
    return Checkpoint(model, to_dict(config), weights=weights, details={"languages": _languages(opened.path)})


def _languages(file: Path) -> list[str]:
    """As the tokenizer_config.json beside it says; empty where it does not."""
    beside = file.with_name("tokenizer_config.json")
    stored = read_json(beside) if beside.is_file() else {}
    said = [stored.get(name) for name in ("source_lang", "target_lang")] if isinstance(stored, dict) else []
    return [name if isinstance(name, str) else "" for name in said] or ["", ""]


def marian_config(settings: Mapping[str, Any], where: Path) -> TransformerConfig:
    """Our config from its config.json; an error names the first setting that ours cannot represent."""
    fixed = {"scale_embedding": True, "normalize_before": False, "normalize_embedding": False,
             "add_final_layer_norm": False}  # fmt: skip
    for name, wanted in fixed.items():
        said = settings.get(name, False)
        if said != wanted:
            raise RunError(f"{name} is {said}; ours is {wanted}, as in every Opus-MT model", where=where)
    for name in ("attention_heads", "ffn_dim"):
        if settings.get(f"encoder_{name}") != settings.get(f"decoder_{name}"):
            raise RunError(f"encoder and decoder differ in {name}; ours have the same", where=where)
    shared, tied = (settings.get(n, True) for n in ("share_encoder_decoder_embeddings", "tie_word_embeddings"))
    words = settings.get("vocab_size")
    target = settings.get("decoder_vocab_size") or words
    activation = settings.get("activation_function", "gelu")
    depth, decoder_depth = settings.get("encoder_layers"), settings.get("decoder_layers")
    values = {
        "vocabulary": words if shared or words == target else (words, target),
        "embeddings": "shared" if shared else "tied" if tied else "separate",
        "output_bias": True,
        "width": settings.get("d_model"),
        "depth": depth,
        "decoder_depth": None if decoder_depth == depth else decoder_depth,
        "heads": settings.get("encoder_attention_heads"),
        "mlp": settings.get("encoder_ffn_dim"),
        "dropout": settings.get("dropout", 0.1),
        "padding": settings.get("pad_token_id"),
        "start": settings.get("decoder_start_token_id", settings.get("pad_token_id")),
        "end": settings.get("eos_token_id"),
        "positions": "halves",
        "length": settings.get("max_position_embeddings", 512),
        "activation": {"silu": "swish"}.get(activation, activation),
        "eps": EPS,
    }
    try:
        return make(TransformerConfig, values, where)
    except ConfigError as error:
        raise RunError(f"its config.json is not valid: {error.what}", where=where, do=error.do) from None


def marian_settings(config: TransformerConfig) -> dict[str, Any]:
    """The same in the other direction, for transformers to read."""
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": config.source_words,
        "decoder_vocab_size": config.target_words,
        "share_encoder_decoder_embeddings": config.embeddings == "shared",
        "tie_word_embeddings": config.embeddings != "separate",
        "d_model": config.width,
        "encoder_layers": config.depth,
        "decoder_layers": config.decoder_depth or config.depth,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.mlp,
        "decoder_ffn_dim": config.mlp,
        "dropout": config.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "activation_function": config.activation,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "max_position_embeddings": config.length,
        "pad_token_id": config.padding,
        "decoder_start_token_id": config.start,
        "eos_token_id": config.end,
        "forced_eos_token_id": config.end,
        "bad_words_ids": [[config.padding]],
        "dtype": "float32",
    }


def _read_marian(
    tensors: Mapping[str, Tensor], config: TransformerConfig, where: Path, notes: Notes
) -> dict[str, Tensor]:
    """Our state dict from its tensors; anything that is missing, left over or of another shape is named."""
    held = dict(tensors)
    for copy, original in COPIES[config.embeddings].items():
        if copy in held and original not in held:
            held[original] = held.pop(copy)
        elif copy in held:
            if not torch.equal(held[copy], held[original]):
                raise mismatch([f"{copy}: not equal to {original}, though config.json says they are one"], where)
            notes.leave(copy, held.pop(copy), why=f": the same as {original}")
    for side in ("encoder", "decoder"):
        name = f"model.{side}.embed_positions.weight"
        if name in held:
            table = held.pop(name).float()
            # The file may be of 16 bits, hence the tolerance.
            if table.ndim != 2 or not torch.allclose(table, word_table("halves", *table.shape), atol=2e-3):
                raise mismatch([f"{name}: not the sinusoids they should be"], where)
            notes.leave(name, table, why=": sinusoids, made anew")
    return _read(MARIAN[config.embeddings], held, config, where)


def write_marian(model: Transformer) -> dict[str, Tensor]:
    """Its tensors in transformers' names, as `save_pretrained` writes them: no copies, no positions."""
    config, state = model.config, dict(model.state_dict())
    wanted = {"norm": "post", "positions": "halves", "eps": EPS}
    for name, value in wanted.items():
        if getattr(config, name) != value:
            what = f"marian weights cannot represent {name}={getattr(config, name)!r}"
            raise ConfigError(what, do=f"they are always {value!r}; build and train the model so")
    if config.final_norm:
        raise ConfigError("marian weights cannot represent final_norm=True", do="build and train the model without")
    if {config.key_width, config.value_width} - {None, config.width // config.heads}:
        raise ConfigError("marian weights cannot represent keys or values of other sizes than width / heads")
    if not config.output_bias:
        state["output_bias"] = torch.zeros(config.target_words)
    state = {name: tensor.detach().cpu().float() for name, tensor in state.items()}
    tensors, unknown = MARIAN[config.embeddings].write(state, None)
    if unknown:
        raise ConfigError(f"marian weights have no name for {unknown[0]}")
    return tensors


def save_marian(model: Transformer, folder: str | Path) -> Path:
    """A folder for transformers' `MarianMTModel.from_pretrained`, without the files of a tokenizer."""
    folder, tensors = Path(folder).expanduser(), write_marian(model)
    save_tensors(tensors, folder / "model.safetensors")
    write_text(folder / "config.json", to_json(marian_settings(model.config)))
    return folder


def _read(format: Format, tensors: Mapping[str, Tensor], config: TransformerConfig, where: Path) -> dict[str, Tensor]:
    """Our state dict from their tensors; an error if any is missing, unknown or of another shape."""
    if config.block_count > len(tensors):
        raise RunError("its config.json and its weights do not fit together: it has more blocks", where=where)
    state, unknown = format.read(tensors)
    with torch.device("meta"):
        model = Transformer(config)
    own = {key: tensor.shape for key, tensor in model.state_dict().items()}
    differ = [f"{name}: not in the file" for key in own for name in format.names_of(key) if name not in tensors]
    differ += [f"{name}: not in the model" for name in unknown if name in tensors]
    differ += [f"{name}: not in the model" for key in state if key not in own for name in format.names_of(key)]
    differ += [
        f"{format.called(key)}: {tuple(own[key])} here, {tuple(state[key].shape)} in the file"
        for key in own
        if key in state and own[key] != state[key].shape
    ]
    if differ:
        raise mismatch(differ, where)
    return {key: tensor.float() for key, tensor in state.items()}
