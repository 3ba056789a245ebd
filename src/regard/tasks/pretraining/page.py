"""What the report says of pre-training: what was hidden, what was filled in, and how the loss fell."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.console import interval
from regard.drawing import DPI, canvas, flat, show, style
from regard.report import figures
from regard.task import Page, Section
from regard.weights import Run, write_aside, write_text

PICTURES = "figures/reconstructions.png"


@style()
def draw_reconstructions(made: Sequence[tuple[str, Tensor, Tensor, Tensor]], path: Path) -> None:
    """One row per image, of a volume its middle slice: as it is, what the encoder saw, what the decoder filled in."""
    figure = canvas(6.3, 0.3 + 2.1 * len(made), background="white")
    axes = figure.subplots(len(made), 3, squeeze=False)
    for ax, title in zip(axes[0], ("original", "seen", "filled in"), strict=True):
        ax.set_title(title, fontsize=9)
    for row, (name, *pictures) in zip(axes, made, strict=True):
        for ax, pixels in zip(row, pictures, strict=True):
            show(ax, flat(pixels.clamp(0, 1).numpy())[0])
        row[0].set_xlabel(name[-34:], fontsize=8)
    write_aside(path, lambda aside: figure.savefig(aside, dpi=DPI, format="png"))


def page(run: Run, config: Any, data: dict[str, Any], summary: dict[str, Any]) -> Page:
    curves = figures.losses(
        run.read_rows("metrics.csv"), summary["best_epoch"], "squared error on hidden patches",
        "train (cropped, other masks every epoch)",
    )  # fmt: skip
    write_text(run.path / "figures" / "curves.svg", curves)
    loss, options = summary["figures"]["reconstruction_loss"], config.task
    relative = "; filling in each patch's mean would give about 1" if options.normalise else ""
    on = f"on {loss['n']:,} {summary['split']} images"
    return Page(
        title=f"{config.model.model} pre-trained on {data['name']}",
        headline=f'<p class="big">{loss["value"]:.4f} reconstruction loss <span>{escape(on)}; squared error on hidden '
        f"patches{relative}</span></p>",
        headline_text=f"{loss['value']:.4f} reconstruction loss {on}",
        figures=[
            ("Reconstruction loss", f"{loss['value']:.4f}", interval(loss),
             "squared error on hidden patches; lower is better")
        ],
        chosen_by="loss",
        facts=[
            ("decoder", f"{summary['decoder_parameters']:,} parameters"),
            ("hidden", f"{options.mask:.0%} of the patches"),
        ],
        sections=[
            Section(
                "Training",
                "<p>A loss says how well pixels were guessed, not what the features are worth: "
                f"<code>regard probe</code> does.</p><figure>{curves}</figure>",
            ),
            Section("What it fills in", _pictures(run, options.normalise)),
        ],
    )  # fmt: skip


def _pictures(run: Run, normalised: bool) -> str:
    if not (run.path / PICTURES).is_file():
        return ""
    png = base64.b64encode((run.path / PICTURES).read_bytes()).decode()
    own = " Hidden patches are painted with their own mean and deviation, which the network is not asked for."
    return (
        f"<p>Images it did not train on.{own if normalised else ''}</p>"
        '<figure class="card"><img alt="originals, what was seen, what was filled in" '
        f'src="data:image/png;base64,{png}"></figure>'
    )
