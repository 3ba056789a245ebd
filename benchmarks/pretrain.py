"""What images without labels are worth: CIFAR-10 with few labels, pre-trained by masked patches against from scratch.

All training images are pre-trained on without their labels. Then 1 % and 10 % of the labels are learnt from, by the
pre-trained network and by one that starts from random weights: the same images, steps, settings and seeds. As in every
run, a tenth of the labelled images is held out and chooses the weights, which are then tested once, on all test images.
A seed decides which labels are given, the initial weights and the order.

    python benchmarks/pretrain.py DATA --out results       # DATA: the folder with train/ and test/, one folder a class
    python benchmarks/pretrain.py DATA --quick             # a minute or two on a CPU, to see that it runs

After every run, what is known is written to OUT/pretrain.json.
"""

import argparse
import itertools
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

START = time.monotonic()

NETWORK = {"model": "vit_nano", "patch": 4, "width": 256, "heads": 4, "mlp": 1024, "depth": 6}
SHAPE: dict[str, Any] = {"pool": "mean", "positions": "sinusoidal"}
PRETRAIN: dict[str, Any] = {
    "recipe": "mae_small", "epochs": 150, "batch_size": 512, "lr": 1e-3, "warmup": 0.1, "holdout": 0.02, "explain": 6,
    "crop": "shift", "decoder_width": 128, "decoder_depth": 2, "decoder_heads": 4,
}  # fmt: skip
FINE_TUNE: dict[str, Any] = {
    "recipe": "plain", "batch_size": 128, "lr": 5e-4, "weight_decay": 0.05, "warmup": 0.1, "policy": "trivial",
    "mixup": 0.2, "drop_path": 0.1, "holdout": 0.1, "explain": 0,
}  # fmt: skip
STEPS, SHARES, SEEDS = 2000, (0.01, 0.1), 3


def say(text: str) -> None:
    print(f"[{time.monotonic() - START:6.1f} s] {text}", flush=True)


def link(paths: list[Path], root: Path, out: Path) -> None:
    for path in paths:
        place = out / path.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path.resolve())


def images_of(folder: Path) -> list[list[Path]]:
    """The images of each class, in order."""
    from regard.data import find_images

    return [find_images([str(path)]) for path in sorted(folder.iterdir()) if path.is_dir()]


def few_labels(data: Path, share: float, seed: int, out: Path) -> int:
    """A folder with `share` of each class's training images and all test images; how many the former are."""
    import numpy as np

    from regard.data import order

    if out.exists():
        return sum(map(len, images_of(out / "train")))
    count = 0
    for own in images_of(data / "train"):
        chosen = order(seed, 0, np.arange(len(own)))[: max(10, round(share * len(own)))]
        link([own[n] for n in chosen], data, out)
        count += len(chosen)
    link([path for own in images_of(data / "test") for path in own], data, out)
    return count


def fine_tune(data: Path, out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What a run on labelled data says of its test images."""
    import regard

    run = regard.train(data, out=out, quiet=True, **settings)
    return run.read_json("summary.json")["figures"]["accuracy"]


def main(options: argparse.Namespace, scratch: Path) -> None:
    import numpy as np
    import torch

    import regard
    from regard.metrics import repeated

    data = Path(options.data).expanduser()
    network, pretrain, tune = dict(NETWORK), dict(PRETRAIN), dict(FINE_TUNE)
    steps, shares, seeds = options.steps, SHARES, options.seeds
    if options.epochs:
        pretrain["epochs"] = options.epochs
    if options.quick:
        small = scratch / "data"
        for part, each in (("train", 60), ("test", 20)):
            link([path for own in images_of(data / part) for path in own[:each]], data, small)
        data, network, steps, shares, seeds = small, {"model": "vit_nano", "depth": 2}, 10, (0.2, 0.5), 2
        pretrain |= {"epochs": 2, "batch_size": 64, "holdout": 0.1, "decoder_width": 32}
        tune["batch_size"] = 32
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    say(f"{device}, torch {torch.__version__}; pre-training for {pretrain['epochs']} epochs on {data / 'train'}")
    began = time.monotonic()
    run = regard.pretrain(data / "train", out=options.keep or scratch / "pretrained", **network, **SHAPE, **pretrain)
    summary = run.read_json("summary.json")
    facts: dict[str, Any] = {
        "device": device, "torch": torch.__version__, "network": network | SHAPE,
        "pre-training": pretrain | {
            "wall clock, s": round(time.monotonic() - began, 1), "waiting for data": summary["waiting"],
            "parameters": summary["parameters"], "validation loss": summary["val_loss"],
        },
        "fine-tuning": tune | {"steps": steps}, "runs": [],
    }  # fmt: skip
    say(f"pre-trained: validation loss {summary['val_loss']}, waiting for data {summary['waiting']:.0%}")
    own = {"from scratch": network | SHAPE, "pre-trained": {"weights": str(run.path)}}
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        wanted = {}
        for seed, share, start in itertools.product(range(seeds), shares, own):
            folder = scratch / f"labels-{share}-{seed}"
            count = few_labels(data, share, seed, folder)
            settings = tune | own[start] | {"seed": seed, "steps": steps}
            out = scratch / f"run-{share}-{seed}-{start.replace(' ', '-')}"
            wanted[pool.submit(fine_tune, folder, out, settings)] = (share, count, seed, start)
        for future in as_completed(wanted):
            share, count, seed, start = wanted[future]
            figure = future.result()
            say(f"{share:4.0%} of the labels ({count:,}), seed {seed}, {start}: {figure['value']:.2%}")
            facts["runs"].append({"share": share, "labels": count, "seed": seed, "start": start, "accuracy": figure})
            write(options.out, facts)
    print("\n| labels | start | test accuracy, 95 % interval | seeds |\n|---|---|---|---|")
    for share in shares:
        for name in ("from scratch", "pre-trained"):
            rows = [r for r in facts["runs"] if (r["share"], r["start"]) == (share, name)]
            values = np.array([r["accuracy"]["value"] for r in rows])
            mean = repeated(values, rows[0]["accuracy"]["n"])
            print(f"| {share:.0%} ({rows[0]['labels']:,}) | {name} "
                  f"| {mean.value:.2%} ({mean.low:.2%} to {mean.high:.2%}) | {len(rows)} |")  # fmt: skip
    facts["wall clock, s"] = round(time.monotonic() - START, 1)
    write(options.out, facts)
    say(f"done; {options.out / 'pretrain.json'}")


def write(out: Path, facts: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "pretrain.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, help=f"of pre-training, {PRETRAIN['epochs']} if not said")
    parser.add_argument("--steps", type=int, default=STEPS, help="of fine-tuning")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=4, help="fine-tunings at a time")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--keep", help="run folder of the pre-training to keep; else it is thrown away")
    with tempfile.TemporaryDirectory(prefix="regard-pretrain-") as folder:
        main(parser.parse_args(), Path(folder))
