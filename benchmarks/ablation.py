"""Variations of the Transformer (Table 3 of its paper) on Multi30k, English to German.

    python benchmarks/ablation.py MULTI30K OUT --jobs 6

MULTI30K is the folder with train.en.gz and so on. No run is started after seven minutes; run it again to resume.
OUT/study.md has perplexity and BLEU of every variation, with 95 % intervals over seeds. Runs are ordered by seed: a
part of them is a table of fewer seeds. To go on elsewhere, OUT/plan.json and OUT/kept are enough. Not run yet.
"""

from __future__ import annotations

import argparse
from typing import Any

from regard.study import ablation
from regard.study.ablation import ROWS

SETTINGS: dict[str, Any] = {
    "model": "transformer_base", "width": 256, "depth": 4, "heads": 8, "mlp": 1024, "vocabulary": 8000,
    "batch_tokens": 8192, "epochs": 20, "recipe": "translate_small",
}  # fmt: skip
QUICK: dict[str, Any] = {"width": 32, "depth": 1, "mlp": 32, "epochs": 1, "pairs": 300}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("out")
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--parts", nargs="+", default=ROWS, help="rows of the table")
    parser.add_argument("--quick", action="store_true", help="small networks and few steps, to see that it runs")
    given = parser.parse_args()
    result = ablation(
        given.data, given.parts, out=given.out, seeds=given.seeds, jobs=given.jobs, minutes=given.minutes, source="en",
        target="de", **SETTINGS | (QUICK if given.quick else {}),
    )  # fmt: skip
    print(*result.summary(), sep="\n")


if __name__ == "__main__":
    main()
