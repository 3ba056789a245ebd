"""Multi30k English to German: the Transformer against the RNN with attention; same tokenizer, data and epochs.

Each is trained as any run is, weights are chosen on the validation sentences, and test_2016_flickr is translated once,
by beam search. BLEU is sacreBLEU's, cased, on text that is not tokenised; the two are compared by paired tests.

    python benchmarks/multi30k.py DATA --out results        # DATA: the folder with train.en.gz, train.de.gz, …
    python benchmarks/multi30k.py DATA --quick              # some steps on a CPU, to see that it runs
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

COMMON: dict[str, Any] = {"source": "en", "target": "de", "vocabulary": 8000, "explain": 4}
ARMS: dict[str, dict[str, Any]] = {
    "transformer": {"recipe": "translate_small"},
    "rnn_attention": {
        "recipe": "translate_small", "model": "rnn_attention", "width": 512, "depth": 2, "dropout": 0.3,
        "optimizer": "adamw", "lr": 1e-3,
    },
}  # fmt: skip


def main(options: argparse.Namespace, scratch: Path) -> None:
    import torch

    import regard

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    facts: dict[str, Any] = {"device": device, "torch": torch.__version__, "runs": {}}
    given = json.loads(options.settings)
    for name in options.arms:
        settings = COMMON | ARMS[name] | ({"steps": 5, "batch_tokens": 1024} if options.quick else {}) | given
        begun = time.monotonic()
        run = regard.train(options.data, out=(options.keep or scratch) / name, **settings)
        summary, rows = run.read_json("summary.json"), run.read_rows("metrics.csv")
        facts["runs"][name] = {
            "settings": settings, "parameters": summary["parameters"], "epochs": len(rows),
            "steps": int(rows[-1]["step"]), "training, s": summary["seconds"],
            "wall clock, s": round(time.monotonic() - begun, 1),
            "first epoch with compiling, s": float(rows[0]["seconds"]), "best epoch": summary["best_epoch"],
            "figures": summary["figures"], "signature": summary["signatures"]["bleu"], "others": summary["others"],
        }  # fmt: skip
        print(f"{name}: {summary['figures']['bleu']}, {summary['seconds']:.0f} s", flush=True)
        write(options.out, facts)
    if len(facts["runs"]) == 2:
        first, second = ((options.keep or scratch) / name for name in ("rnn_attention", "transformer"))
        made = regard.compare(first, second)[str(second)]
        facts["transformer ahead of rnn_attention"] = {
            name: {"difference": c.difference._asdict(), "p": c.tests["randomisation"]} for name, c in made.items()
        }
        write(options.out, facts)
    print(f"\n{device}, torch {torch.__version__}\n")
    print("| model | parameters | BLEU, test 2016 | chrF | perplexity | training |\n|---|---|---|---|---|---|")
    for name, told in facts["runs"].items():
        bleu, chrf, doubt = (told["figures"][figure] for figure in ("bleu", "chrf", "perplexity"))
        print(
            f"| {name} | {told['parameters']:,} | {bleu['value']:.1f} ({bleu['low']:.1f} to {bleu['high']:.1f}) "
            f"| {chrf['value']:.1f} | {doubt['value']:.2f} | {told['training, s']:.0f} s |"
        )
    print(json.dumps(facts.get("transformer ahead of rnn_attention", {})))


def write(out: Path, facts: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "multi30k.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--settings", default="{}", help="more settings of both, as JSON")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--keep", type=Path, help="folder for the runs; else they are thrown away")
    with tempfile.TemporaryDirectory(prefix="regard-multi30k-") as folder:
        main(parser.parse_args(), Path(folder))
