"""The default network for small pictures on a CPU core: where a training step's time goes, and networks of equal time.

    python benchmarks/cpu_network.py parts
    python benchmarks/cpu_network.py tries DATA four_layers:19 one_block:25 two_layers:25 --name cifar_2000

DATA is a folder with train/ and val/; there is nothing to test on, so figures are on val. `tries` trains arms for so
many epochs, with seed `--seed`, validating at the end alone, and appends a row per arm to a file of JSON lines; those
it holds are passed over. Times are those of the process, not of the clock: other work on the machine changes them less.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional as F

import regard
from regard.networks.resnet import network as resnet
from regard.tasks.small_data import choose_shape
from regard.training.loop import Training

RESULTS = Path(__file__).parent / "results" / "cpu_network.jsonl"
ARMS: dict[str, dict[str, Any]] = {
    "four_layers": {"depth": 4},
    "one_block": {"depth": 4, "blocks": 1},
    "two_layers": {"depth": 2},
    "both": {"depth": 2, "blocks": 1},
    "resnet_nano": {"model": "resnet_nano"},
}
"""Changes of the default, which has two layers since: residual blocks per stage of the stem (2 there), and settings."""
BATCH = 64


def with_blocks(count: int) -> Any:
    """Inside, residual stems have `count` blocks per stage."""
    build = resnet.ResidualStem.__init__

    def init(self: Any, patch: tuple[int, ...], channels: int, width: int) -> None:
        build(self, patch, channels, width, count)

    return patch.object(resnet.ResidualStem, "__init__", init)


def milliseconds(work: Callable[[], Any], repeats: int = 6) -> float:
    """The least time of some repeats, after one that is not counted."""
    times = []
    for _ in range(repeats + 1):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return 1000 * min(times[1:])


def parts() -> None:
    """Forward and backward pass of 64 pictures of 32 × 32 pixels."""
    torch.manual_seed(0)
    x, labels = torch.rand(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))

    def step(model: Any) -> Callable[[], None]:
        return lambda: F.cross_entropy(model(x).logits, labels).backward()

    def network(arm: dict[str, Any]) -> Any:
        name, depth = arm.get("model", "vit_nano"), {key: arm[key] for key in ("depth",) if key in arm}
        with with_blocks(arm.get("blocks", 2)):
            return regard.create(name, classes=10, **choose_shape(name, {}), **depth).train()

    vit = network({})
    block, tokens = vit.blocks[0], torch.rand(BATCH, 64, 64, requires_grad=True)
    timed: dict[str, Callable[[], Any]] = {arm: step(network(changes)) for arm, changes in ARMS.items()} | {
        "of vit_nano: the stem": lambda: vit.patches(x).sum().backward(),
        "of vit_nano: each of 4 blocks": lambda: block(tokens, grid=(8, 8), rope=vit.rope).sum().backward(),
        "of that: attention": lambda: block.attention(tokens, rope=vit.rope).sum().backward(),
        "of that: MLP": lambda: block.mlp(tokens).sum().backward(),
    }
    for name, work in timed.items():
        print(f"{name:32} {milliseconds(work):6.1f} ms", flush=True)


def train(data: Path, name: str, arm: str, epochs: int, seed: int) -> dict[str, Any]:
    """One run, and its row."""
    settings = dict(ARMS[arm])
    blocks, spent, whole = settings.pop("blocks", 2), 0.0, Training._train_epoch

    def timed(self: Training, tick: Callable[[int, str], None]) -> None:
        nonlocal spent
        begun = time.process_time()
        whole(self, tick)
        spent += time.process_time() - begun

    with (
        with_blocks(blocks),
        patch.object(Training, "_train_epoch", timed),
        patch.object(Training, "_due_to_validate", lambda self: self.history.updates == self.steps),
        tempfile.TemporaryDirectory() as folder,
    ):
        settings |= {"device": "cpu", "workers": 0, "explain": 0, "pixel_baseline": False, "quiet": True}
        run = regard.train(data, out=f"{folder}/run", epochs=epochs, seed=seed, **settings)
        summary = run.read_json("summary.json")
    return {
        "data": name, "arm": arm, "epochs": epochs, "seed": seed, "validation": summary["val_accuracy"],
        "parameters": summary["parameters"], "cpu_seconds": round(spent, 1), "threads": torch.get_num_threads(),
    }  # fmt: skip


def tries(data: Path, name: str, arms: list[str], seed: int, out: Path) -> None:
    held = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(row["data"], row["arm"], row["epochs"], row["seed"]) for row in held}
    for arm, _, epochs in (given.partition(":") for given in arms):
        if (name, arm, int(epochs), seed) not in done:
            row = json.dumps(train(data, name, arm, int(epochs), seed))
            with out.open("a") as file:
                file.write(row + "\n")
            print(row, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("parts", "tries"))
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("arms", nargs="*", help="ARM:EPOCHS")
    parser.add_argument("--name", default="data", help="the data's name in the file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.what == "parts":
        parts()
    else:
        tries(options.data, options.name, options.arms, options.seed, options.out)
