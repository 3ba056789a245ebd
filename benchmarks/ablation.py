"""Variations of the Transformer (Table 3 of its paper) on Multi30k, English to German.

    python benchmarks/ablation.py MULTI30K OUT

MULTI30K is the folder with train.en.gz and so on. No run is started after eight minutes, so that the command ends
within nine on one H200; run it again to resume. OUT/study.md has perplexity and BLEU of every variation, with 95 %
intervals over three seeds. Not run yet.
"""

from __future__ import annotations

import argparse
from typing import Any

from regard.study import ablation

SETTINGS: dict[str, Any] = {
    "model": "transformer_base", "width": 256, "depth": 4, "heads": 8, "mlp": 1024, "vocabulary": 8000,
    "batch_tokens": 8192, "epochs": 20, "recipe": "translate_small",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("out")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    result = ablation(given.data, out=given.out, seeds=given.seeds, minutes=given.minutes, source="en", target="de",
                      **SETTINGS)  # fmt: skip
    print(*result.summary(), sep="\n")


if __name__ == "__main__":
    main()
