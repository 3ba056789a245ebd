"""The report of a run of pre-training: what was hidden, what was filled in, and how the loss fell."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.drawing import DPI, canvas, flat, show, style
from regard.report import figures
from regard.report.page import duration, facts, kept, plain, table, whole_page
from regard.weights import Run, write_aside, write_text

PICTURES = "figures/reconstructions.png"


@style()
def draw_reconstructions(made: Sequence[tuple[str, Tensor, Tensor, Tensor]], path: Path) -> None:
    """One row an image, of a volume its middle slice: as it is, what the encoder saw, what the decoder filled in."""
    figure = canvas(6.3, 0.3 + 2.1 * len(made), background="white")
    axes = figure.subplots(len(made), 3, squeeze=False)
    for ax, title in zip(axes[0], ("original", "seen", "filled in"), strict=True):
        ax.set_title(title, fontsize=9)
    for row, (name, *pictures) in zip(axes, made, strict=True):
        for ax, pixels in zip(row, pictures, strict=True):
            show(ax, flat(pixels.clamp(0, 1).numpy())[0])
        row[0].set_xlabel(name[-34:], fontsize=8)
    write_aside(path, lambda aside: figure.savefig(aside, dpi=DPI, format="png"))


def write_pretraining(run: Run) -> None:
    """Draw the curves, then write report.html, from the files of the run."""
    data, config, origins = run.read_config()
    about, summary = run.read_json("data.json"), run.read_json("summary.json")
    curves = figures.losses(
        run.read_rows("metrics.csv"), summary["best_epoch"], "squared error on hidden patches",
        "train (cropped, other masks every epoch)",
    )  # fmt: skip
    write_text(run.path / "figures" / "curves.svg", curves)
    write_text(run.path / "report.html", _page(run, data, config, origins, about, summary, curves))


def _page(run: Run, data: str, config: Any, origins: Any, about: Any, summary: Any, curves: str) -> str:
    loss, title = summary["figures"]["reconstruction_loss"], f"{config.model} pre-trained on {about['name']}"
    command = (run.path / "command.txt").read_text(encoding="utf-8").strip()
    environment = run.read_json("environment.json")
    relative = "; filling in each patch's mean would give about 1" if config.normalise else ""
    picture = ""
    if (run.path / PICTURES).is_file():
        png = base64.b64encode((run.path / PICTURES).read_bytes()).decode()
        own = " Hidden patches are painted with their own mean and deviation, which the network is not asked for."
        picture = (
            f"<h2>What it fills in</h2><p>Images it did not train on.{own if config.normalise else ''}</p>"
            '<figure class="card"><img alt="originals, what was seen, what was filled in" '
            f'src="data:image/png;base64,{png}"></figure>'
        )
    settings = [
        (name, plain(getattr(config, name)), origin) for name, origin in origins.items()
        if getattr(config, name) is not None
    ]  # fmt: skip
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="big">{loss["value"]:.4f} reconstruction loss <span>on {loss["n"]:,} {summary["split"]} images; '
        f"squared error on hidden patches{relative}</span></p>",
        facts([
            ("parameters", f"{summary['parameters']:,} (and {summary['decoder_parameters']:,} of the decoder)"),
            ("hidden", f"{config.mask:.0%} of the patches"),
            ("training", duration(summary["seconds"])),
            ("weights kept", kept(config, summary, "loss")),
            ("device", environment["accelerator"] or f"{environment['device']}, {environment['threads']} threads"),
        ]),
        "<p>A loss says how well pixels were guessed, not what the features are worth: "
        "<code>regard probe</code> does.</p>",
        f"<h2>Training</h2><figure>{curves}</figure>",
        picture,
        "<h2>Data</h2>",
        f"<p>{escape(data)}: {escape(about['recognised_by'])}; labels are not used. {escape(about['splits'])}.</p>",
        table(("split", "images"), [(name, f"{sum(c.values()):,}") for name, c in about["counts"].items()]),
        f"<p>Fingerprint of names and pixels: <code>{about['fingerprint'][:16]}</code>.</p>",
        "<h2>Settings</h2>",
        table(("setting", "value", "from"), [row for row in settings if row[2] != "default"]),
    ]  # fmt: skip
    return whole_page(title, parts, command, environment)
