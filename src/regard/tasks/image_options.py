"""Options of commands for images. Free of torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from regard.errors import ConfigError
from regard.setting_groups import MAX_MEGAPIXELS, Group, setting


@dataclass(frozen=True)
class LoadOptions(Group):
    title: ClassVar[str] = "weights"
    size: int | tuple[int, ...] | None = setting(
        None, "Input size in pixels: one number, or height and width. Default: as the weights say."
    )
    heads: int | None = setting(None, "Attention heads, where a weights file does not say.", least=1)
    max_megapixels: float = setting(
        MAX_MEGAPIXELS, "Largest image that is decoded, in millions of pixels.", least=0.001
    )

    def fields(self) -> dict[str, Any]:
        """Fields of the model's config that are given."""
        given = {"size": self.size, "heads": self.heads}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class ImageExplainOptions(Group):
    title: ClassVar[str] = "images"
    method: str = setting(
        "integrated_gradients",
        "integrated_gradients, attention, rollout, gradient_rollout, chefer, grad_cam or occlusion.",
    )
    checks: Literal["all", "none"] = setting("all", "none: the map alone, without its scores (most of the time).")
    target: str | None = setting(None, "Class or column to explain. Default: the predicted one.")
    mask: str | None = setting(
        None,
        "Picture (of scans: NIfTI) as large as the input, not zero where the cause is known to lie; or a column of "
        "the table. Default: its first mask column.",
    )
    box: tuple[int, ...] | None = setting(
        None, "The same as a box in pixels: top, left, bottom, right. Of a detector: number of its box, from 0."
    )
    layer: int | None = setting(None, "attention: which layer, from 0; -1 is the last.")
    head: int | None = setting(None, "attention: which head. Default: the mean over heads.")
    identity: bool = setting(True, "rollout: count residual connections (Abnar & Zuidema); --no-identity: ViT, D.8.")
    steps: int | None = setting(
        None,
        "integrated_gradients: points on the path. Default: 32, doubled up to 256 until they add up to 1 %.",
        least=1,
    )
    window: int | None = setting(None, "occlusion: tokens covered at a time along each axis. Default: 1.", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask and self.box:
            raise ConfigError("a mask and a box are given", do="give one of --mask and --box")
        if self.box is not None and len(self.box) not in (4, 6):
            raise ConfigError(f"--box has {len(self.box)} numbers", do="give top, left, bottom, right")


PROBES = {"shots": "few_shot", "draws": "few_shot", "seed": "few_shot", "neighbours": "neighbours"}
"""The probe that each option of `regard probe` is for."""


def check_probe_options(methods: Collection[str], **given: Any) -> None:
    """Refuse options of probes that are not asked for; None is an option that is not given."""
    for name, value in given.items():
        if value is not None and PROBES[name] not in methods:
            what = f"--{name} is for the probe {PROBES[name]}, and --methods names {', '.join(methods)}"
            raise ConfigError(what, do=f"leave --{name} out, or add {PROBES[name]} to --methods")
