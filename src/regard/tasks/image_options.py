"""Options of commands for images. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from regard.errors import ConfigError
from regard.image_groups import MAX_MEGAPIXELS
from regard.setting_groups import Group, setting


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


OWN_OPTIONS = {
    "integrated_gradients": ("steps",), "attention": ("layer", "head"), "rollout": ("identity",),
    "occlusion": ("window",),
}  # fmt: skip
"""The options of each method that has some."""


@dataclass(frozen=True)
class MethodOptions(Group):
    """A method of explanation and the options of each."""

    method: (
        Literal["integrated_gradients", "attention", "rollout", "gradient_rollout", "chefer", "grad_cam", "occlusion"]
        | None
    ) = setting(None, "How the map is made. Default: integrated_gradients.")
    checks: Literal["all", "none"] | None = setting(
        None, "all: scores of the map; none: the map alone. Default: all, which takes most of the time."
    )
    target: str | None = setting(None, "Class or column to explain. Default: the predicted one.")
    layer: int | None = setting(None, "attention: which layer, from 0; -1 is the last. Default: the last.")
    head: int | None = setting(None, "attention: which head. Default: the mean over heads.")
    identity: bool | None = setting(
        None, "rollout: count residual connections (Abnar & Zuidema; the default); --no-identity: ViT, D.8."
    )
    steps: int | None = setting(
        None,
        "integrated_gradients: points on the path. Default: 32, doubled up to 256 until they add up to 1 %.",
        least=1,
    )
    window: int | None = setting(None, "occlusion: tokens covered at a time along each axis. Default: 1.", least=1)

    @property
    def explains_with(self) -> str:
        return self.method or "integrated_gradients"

    def __post_init__(self) -> None:
        super().__post_init__()
        for method, names in OWN_OPTIONS.items():
            for name in names:
                if getattr(self, name) is not None and method != self.explains_with:
                    what = f"--{name} is for the method {method}, and {self.explains_with} is asked for"
                    raise ConfigError(what, do=f"leave --{name} out, or give --method {method}")


@dataclass(frozen=True)
class ImageExplainOptions(MethodOptions):
    title: ClassVar[str] = "images"
    mask: str | None = setting(
        None,
        "Picture (of scans: NIfTI) as large as the input, not zero where the cause is known to lie; or a column of "
        "the table. Default: its first mask column.",
    )
    box: tuple[int, ...] | None = setting(
        None, "The same as a box in pixels: top, left, bottom, right. Of a detector: number of its box, from 0."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask and self.box:
            raise ConfigError("a mask and a box are given", do="give one of --mask and --box")
        if self.box is not None and len(self.box) not in (4, 6):
            raise ConfigError(f"--box has {len(self.box)} numbers", do="give top, left, bottom, right")


@dataclass(frozen=True)
class InspectOptions(Group):
    title: ClassVar[str] = "inspection"
    registers: int = setting(
        0, "Add this many test-time registers and show token norms before and after, where there are outliers.", least=0
    )
    out: str = setting("inspect.png", "Picture to write (.png, .svg or .pdf).")
