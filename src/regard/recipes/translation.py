"""Recipes for translators, and how a run of translation is settled."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from regard.config import Origin, change, to_dict
from regard.config_text import TEXT_FIELDS, TranslateConfig
from regard.data.text import Corpus
from regard.errors import ConfigError, did_you_mean
from regard.recipes.settle import check_values, free_folder, pick_device
from regard.registry import MODELS, config_class
from regard.registry import find as find_model

LARGE = 300_000  # pairs

_FOR_IMAGES = (
    "weights", "images", "batch", "layer_decay", "freeze", "lora", "loss", "size", "channels", "patch", "pool",
    "rope", "registers", "layer_scale", "stem", "drop_path", "crop", "rotate", "zoom", "flip", "policy", "strength",
    "erase", "mixup", "cutmix", "calm", "narrow", "workers",
)  # fmt: skip


def translate() -> TranslateConfig:
    """The paper's base model and its schedule (Vaswani et al., section 5), for hundreds of thousands of pairs and more.

    regard train DATA --recipe translate

    The paper: 100,000 steps of 25,000 tokens, 12 hours on 8 P100; 27.3 BLEU from English to German (Table 2). Its rate
    peaks at 512^-0.5 · 4000^-0.5 = 7e-4 after 4,000 steps. Not run here. AdamW's second moment is 0.99, not 0.98.
    """
    return TranslateConfig(
        model="transformer_base", vocabulary=37_000, tokens=25_000, steps=100_000, lr=7e-4, warmup=0.04,
        schedule="inverse_sqrt", weight_decay=0.0, ema=0.999, clip=0.0,
    )  # fmt: skip


def translate_small() -> TranslateConfig:
    """A smaller Transformer with more dropout, norms first, for some ten thousand pairs.

    regard train DATA --recipe translate_small

    Made for Multi30k (29,000 pairs), English to German: 39.4 BLEU on test_2016_flickr (37.7 to 40.9) after 77 seconds
    of training on one H200, 57 of them for compiling (benchmarks/results/multi30k.md).
    """
    return TranslateConfig(
        model="transformer_base", width=256, depth=4, heads=4, mlp=1024, dropout=0.3, norm="pre", vocabulary=8000,
        tokens=4096, epochs=25, optimizer="muon", lr=3e-3, warmup=0.1, weight_decay=0.05, ema=0.998,
    )  # fmt: skip


def dates() -> TranslateConfig:
    """The demo's made corpus: dates and numbers from English to German and Korean, on two CPU cores.

    regard demo translate

    About 155 seconds of one core; 99.4 and 99.2 % of the test sentences right to the letter, with two seeds.
    """
    return TranslateConfig(
        model="transformer_nano", width=64, mlp=256, norm="pre", dropout=0.05, vocabulary=600, tokens=1024, epochs=8,
        optimizer="muon", lr=5e-3, warmup=0.1, weight_decay=0.05, smoothing=0.0, ema=0.99, explain=4,
    )  # fmt: skip


TEXT_RECIPES = {f.__name__: f for f in (translate, translate_small, dates)}


def check_text_settings(settings: dict[str, Any]) -> None:
    """Refuse what can be seen to be wrong before any data is read."""
    config = change(TranslateConfig(), settings, "settings")
    for name in settings:
        if name in _FOR_IMAGES:
            raise ConfigError(f"{name} is for images, not for sentences", do=f"leave --{name} out")
    if config.recipe and config.recipe not in TEXT_RECIPES:
        raise ConfigError(
            f"the recipe {config.recipe!r} is not for translation", do=did_you_mean(config.recipe, TEXT_RECIPES)
        )
    if settings.get("steps") is not None and settings.get("epochs") is not None:
        raise ConfigError("both steps and epochs are given", do="give one of them")
    if "model" in settings:
        _check_shape(config.model, settings)
    pick_device(config.device)
    check_values(config)
    for name in ("vocabulary", "tokens", "longest", "beams"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name}={getattr(config, name)} is too small", do=f"give --{name} at least 1")
    if config.penalty < 0:
        raise ConfigError(f"penalty={config.penalty} would reward short sentences", do="give 0 or more, such as 0.6")
    if config.shard:
        raise ConfigError("shard is not for translation yet", do="leave it out: DDP holds the whole model everywhere")


def settle_text(corpus: Corpus, settings: dict[str, Any]) -> tuple[TranslateConfig, dict[str, Origin]]:
    """The run's settings with nothing left open, and where each came from: the user's win over the recipe's."""
    config = change(TranslateConfig(), settings, "settings")
    fitting = "dates" if corpus.kind == "made" else "translate" if len(corpus) > LARGE else "translate_small"
    named = config.recipe or fitting
    recipe = TEXT_RECIPES[named]()
    origins: dict[str, Origin] = dict.fromkeys(to_dict(config), "default")
    for name, value in to_dict(recipe).items():
        if value != getattr(TranslateConfig(), name):
            origins[name] = "recipe"
    given = settings if settings.get("epochs") is None else {"steps": None} | settings
    config = change(recipe, given | {"recipe": named}, "settings")
    origins["recipe"] = "auto"
    origins |= dict.fromkeys(settings, "flag")
    _check_shape(config.model, settings)
    own = _own_fields(config.model)
    for name in TEXT_FIELDS:  # a recipe's shape is its own model's: another family, or size, has another
        other = name not in own or (config.model != recipe.model and name in ("width", "depth", "heads", "mlp"))
        if name not in settings and other:
            config, origins[name] = change(config, {name: None}), "default"
    device = pick_device(config.device)
    for name, value in _open(config, corpus, device).items():
        if getattr(config, name) in (None, "auto"):
            config, origins[name] = change(config, {name: value}), "auto"
    check_values(config)
    return config, origins


def _open(config: TranslateConfig, corpus: Corpus, device: str) -> dict[str, Any]:
    import torch

    gpu = device == "cuda"
    return {
        "device": device,
        "precision": "bf16" if gpu and torch.cuda.is_bf16_supported() else "fp32",
        "compile": gpu and not config.checkpointing and find_model(config.model).family == "transformer",
        "workers": 0,
        "out": free_folder(f"runs/{corpus.name}-{config.model}"),
    }


def _own_fields(model: str) -> list[str]:
    kind = config_class(model)
    if kind.inputs != "text":
        able = [name for name in MODELS if config_class(name).inputs == "text"]
        raise ConfigError(f"{model} does not translate", do=f"these do: {', '.join(able)}")
    own = {f.name for f in fields(kind)}
    return [name for name in TEXT_FIELDS if name in own]


def _check_shape(model: str, settings: dict[str, Any]) -> None:
    """Refuse the user's settings that the model has no field for."""
    own = _own_fields(model)
    for name in TEXT_FIELDS:
        if settings.get(name) is not None and name not in own:
            raise ConfigError(f"{model} has no {name}", do=f"of its shape these can be set: {', '.join(own)}")
    if settings.get("checkpointing") and find_model(model).family != "transformer":
        raise ConfigError(f"{model} cannot recompute its activations", do="leave --checkpointing to transformers")
