"""Table 2 of the ViT paper, small: models pre-trained on CIFAR-10, fine-tuned on other data three times, with compute.

    python -m benchmarks.transfer_table CIFAR10 PETS OUT --together

CIFAR10 is a folder with train/CLASS and test/CLASS, PETS one with train, val and test. Every model is pre-trained on
seven classes of CIFAR-10 at 32 pixels, then fine-tuned on the other three, and on 37 breeds of pets, at 64. Nothing is
started after seven minutes; run it again to resume. OUT/table/study.md has accuracies as mean ± deviation over three
runs, and FLOPs, device-hours and energy of both phases. `--together`: a process per model. To go on elsewhere,
OUT/table without its runs is enough: models with all their runs there are not pre-trained again. Not run yet.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import regard
from benchmarks.together import together
from benchmarks.transfer_size import HELD, MODELS, SETTINGS
from regard.study import transfer
from regard.study.classes import hold_classes
from regard.study.keep import keep_plan
from regard.study.transfer_table import TransferTable
from regard.weights import Run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("pets")
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--tune-steps", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--together", action="store_true", help="a process per model")
    given = parser.parse_args()
    start = time.monotonic()

    def left() -> float:
        return given.minutes - (time.monotonic() - start) / 60

    first, second = halves(given.data, given.out / "data")
    sets = {"transfer": second, Path(given.pets).name: given.pets}
    tune: dict[str, Any] = {"steps": given.tune_steps, "size": 64}
    if given.together:
        words = [given.data, given.pets, given.out, "--steps", given.steps, "--tune-steps", given.tune_steps]
        keep_plan(given.out / "table", {"kind": "transfer", "settings": tune})
        together("benchmarks.transfer_table", given.models, [*words, "--seeds", given.seeds, "--minutes", left()])
    else:
        for model in given.models:
            kept = [
                given.out / "table" / "kept" / f"{model}-{name}-{n}.json" for name in sets for n in range(given.seeds)
            ]
            if left() < 0 or all(path.is_file() for path in kept):
                continue
            weights = given.out / "weights" / model
            if not (weights / "report.html").is_file():
                regard.train(
                    first, model=model, steps=given.steps, explain=0, out=weights, resume=True, quiet=True, **SETTINGS
                )
            transfer(list(sets.values()), [weights], seeds=given.seeds, minutes=left(), out=given.out / "table", **tune)
    table = given.out / "table"
    rows = [Run(table).read_json(f"kept/{path.name}") for path in sorted((table / "kept").glob("*.json"))]
    models = {name: name for name in MODELS if any(row["model"] == name for row in rows)}
    result = TransferTable(table, models, {name: str(path) for name, path in sets.items()}, given.seeds, tune, rows, {})
    if rows:
        result.write()
        print(*result.summary(), sep="\n")


def halves(data: str, out: Path) -> tuple[Path, Path]:
    """Tables of the seven classes to pre-train on and of the three that are held; their paths are of this machine."""
    first, second = out / "pretrain.csv", out / "transfer.csv"
    if not second.is_file():
        dataset: Any = regard.check(data, quiet=True)
        hold_classes(dataset, HELD, out)
    return first, second


if __name__ == "__main__":
    main()
