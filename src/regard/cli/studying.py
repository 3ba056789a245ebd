"""`regard study` of claims about image networks: each kind has inputs and flags of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from regard import registry, tasks
from regard.cli.flags import Parser, at_least_one, parse
from regard.errors import ConfigError


class Kind(NamedTuple):
    inputs: tuple[str, ...]
    flags: tuple[str, ...]
    about: str


KINDS = {
    "resolution": Kind(
        ("RUN", "DATA"), ("sizes", "epochs"), "accuracy over the test size, with and without fine-tuning there (FixRes)"
    ),
    "invariance": Kind(("RUN", "…"), ("images",), "features and answers of shifted images, for each run"),
    "receptive-field": Kind((), ("models", "size"), "how far one place sees after n blocks, by gradients"),
    "batch-norm": Kind(
        (), ("sizes", "steps", "seeds"), "LayerNorm and BatchNorm in a ViT by batch size (--sizes 2,8,64)"
    ),
}


def run_image_study(words: Sequence[str]) -> None:
    """Test a claim about image networks by a small experiment."""
    more = "\n".join(f"{name} {' '.join(kind.inputs)}: {kind.about}." for name, kind in KINDS.items())
    parser = Parser("study", run_image_study.__doc__, more)
    parser.add_argument("kind", choices=tuple(KINDS), help="What to measure.")
    parser.add_argument("inputs", nargs="*", help="resolution: run and data; invariance: runs; else none.")
    parser.add_argument("--sizes", help="resolution: test sizes in pixels; batch-norm: batch sizes; with commas.")
    parser.add_argument("--models", help="receptive-field: models, with commas.")
    parser.add_argument("--size", type=at_least_one, metavar="INT", help="receptive-field: input size (default: 64).")
    parser.add_argument("--images", type=at_least_one, metavar="INT", help="invariance: test images (default: 64).")
    parser.add_argument(
        "--epochs", type=at_least_one, metavar="INT", help="resolution: epochs of fine-tuning (default: 2)."
    )
    parser.add_argument("--steps", type=at_least_one, metavar="INT", help="batch-norm: optimizer steps (default: 600).")
    parser.add_argument("--seeds", type=at_least_one, metavar="INT", help="batch-norm: seeds (default: 3).")
    parser.add_argument("--out", metavar="PATH", help="Folder to write to.")
    given = parse(parser, words)
    name, inputs = given.pop("kind"), given.pop("inputs", [])
    kind, quiet = KINDS[name], given.pop("quiet", False)
    for flag in given.keys() - {*kind.flags, "out"}:
        raise ConfigError(f"`regard study {name}` has no --{flag}", do="leave it out")
    many = kind.inputs[-1:] == ("…",)
    if (many and not inputs) or (not many and len(inputs) != len(kind.inputs)):
        needed = " and ".join(kind.inputs) or "no data"
        raise ConfigError(f"`regard study {name}` takes {needed}, not {len(inputs)} inputs")
    finding = _run(name, inputs, given, quiet)
    print(*finding.summary(), sep="\n")
    print(finding.out / "study.md")


def _run(name: str, inputs: list[str], given: dict[str, Any], quiet: bool) -> Any:
    from regard.cli.making import require_path, whole_numbers

    runs, data = (inputs[:1], inputs[1:]) if name == "resolution" else (inputs, [])
    for run in runs:
        require_path(run)
    for path in data:
        tasks.require_data(path)
    if "sizes" in given:
        given["sizes"] = whole_numbers("sizes", given["sizes"])
    if "models" in given:
        given["models"] = tuple(given["models"].split(","))
        for model in given["models"]:
            registry.find(model)
    from regard.study import images

    if name == "resolution":
        return images.resolution_study(inputs[0], inputs[1], quiet=quiet, **given)
    if name == "invariance":
        return images.shift_study(inputs, quiet=quiet, **given)
    if name == "receptive-field":
        return images.receptive_field_study(quiet=quiet, **given)
    if "sizes" in given:
        given["batches"] = given.pop("sizes")
    return images.norm_study(quiet=quiet, **given)
