"""The many settings of a run as a few groups, under headings, for the help. Flags are called as the settings are."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from dataclasses import field, fields, make_dataclass
from functools import cache
from typing import Annotated, Any, get_type_hints

from tyro.conf import OmitArgPrefixes, arg

from regard.config import RunConfig

GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "main": (
        "What most runs are told.",
        ("model", "recipe", "weights", "out", "epochs", "steps", "batch", "lr", "seed", "size", "device", "explain"),
    ),
    "translation": (
        "Of sentences only.",
        ("source", "target", "tokenizer", "vocabulary", "joint", "tokens", "longest", "beams", "penalty"),
    ),
    "pretraining": ("What is hidden, and who fills it in.", ("mask", "decoder_width", "decoder_heads", "normalise")),
    "data": ("Which samples, and which of them are held out.", ("images", "holdout", "split_seed", "unreadable")),
    "network": (
        "Its shape; what is not given is the model's own. `regard models` lists them.",
        ("patch", "channels", "width", "depth", "heads", "mlp", "pool", "positions", "rope", "norm", "stem",
         "registers", "layer_scale", "dropout", "drop_path", "decoder_depth", "embeddings", "key_width", "value_width",
         "cell", "attention"),
    ),
    "learning": (
        "How weights are moved.",
        ("optimizer", "weight_decay", "warmup", "schedule", "loss", "smoothing", "ema", "choose", "clip", "accumulate",
         "freeze", "lora", "layer_decay"),
    ),
    "variation": (
        "How training images are varied.",
        ("crop", "rotate", "zoom", "flip", "policy", "strength", "erase", "mixup", "cutmix", "calm", "narrow"),
    ),
    "machine": (
        "What changes the time a run takes, not what it learns.",
        ("precision", "compile", "checkpointing", "workers", "shard", "timeout", "save_every", "keep", "nonfinite"),
    ),
}  # fmt: skip


@cache
def grouped(config: type[RunConfig]) -> Any:
    """A type for the command line with the fields of a config, in groups. `ungrouped` gives them back by name."""
    kinds, helps, own = get_type_hints(config), _explained(config), {f.name: f for f in fields(config)}
    groups: list[Any] = []
    for title, (about, names) in GROUPS.items():
        made = make_dataclass(
            title.title(),
            [
                (name, Annotated[kinds[name], arg(help=helps[name])], field(default=own[name].default))
                for name in names
                if name in own
            ],
        )
        made.__doc__ = about
        if fields(made):
            groups.append((title, OmitArgPrefixes[made], field(default_factory=made)))
    return OmitArgPrefixes[Annotated[make_dataclass("Settings", groups), arg(name="")]]


def ungrouped(settings: Any) -> dict[str, Any]:
    groups = [getattr(settings, f.name) for f in fields(settings)]
    return {f.name: getattr(group, f.name) for group in groups for f in fields(group)}


def _explained(config: type) -> dict[str, str]:
    """What the source says below each field."""
    found: dict[str, str] = {}
    for kind in reversed(config.__mro__[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(tree, ast.ClassDef)
        for node, below in itertools.pairwise(tree.body):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(text, ast.Constant):
                found[node.target.id] = " ".join(str(text.value).split())
    return found
