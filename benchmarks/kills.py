"""A run killed again and again, at moments nobody chose, must end with the very weights of one left alone.

    python benchmarks/kills.py --kills 20

Each life is a process of its own (`regard train … --resume`), ended by SIGKILL from outside after a random time: while
it imports, reads, trains, validates, or writes its state. When enough have died, the last one may finish.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from safetensors.torch import load_file


def life(out: Path, seconds: float | None, workers: int, early: bool = False) -> int:
    """One process on the run, killed so many seconds after it began to train (or, early, to be); its exit code."""
    words = ["train", "digits", "--out", str(out), "--resume", "--save-every", "0", "--epochs", "24",
             "--accumulate", "2", "--dropout", "0.1", "--optimizer", "muon", "--explain", "0", "--device", "cpu",
             "--workers", str(workers)]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stderr
    if not early:
        next((line for line in process.stderr if "run folder" in line), None)
    # What it says from here on must be read, or it would wait for a reader.
    threading.Thread(target=process.stderr.read, daemon=True).start()
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        return process.wait()


def updates(out: Path) -> int:
    from regard.training import load_state

    state = load_state(out / "checkpoints" / "state.safetensors")
    return state.about["history"]["updates"] if state else 0


def main(kills: int, seed: int) -> None:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, run = Path(folder) / "whole", Path(folder) / "run"
        begun = time.monotonic()
        assert life(whole, None, 0) == 0
        print(f"left alone: {updates(whole)} updates in {time.monotonic() - begun:.0f} s", flush=True)
        died = 0
        while died < kills:
            seconds, early = draw.uniform(0.3, 5.0), draw.random() < 0.15
            code = life(run, seconds, draw.choice([0, 2]), early)
            died += code == -signal.SIGKILL
            of = "being" if early else "training"
            print(f"kill {died}: after {seconds:.2f} s of {of}, at update {updates(run)}", flush=True)
            if code == 0:
                raise SystemExit("the run ended before it had been killed often enough: give it more --epochs")
        assert life(run, None, 1) == 0
        differ = 0
        for name in ("best", "last"):
            one, other = (load_file(p / "checkpoints" / f"{name}.safetensors") for p in (whole, run))
            differ += sum(not torch.equal(one[key], other[key]) for key in one) + (one.keys() != other.keys())
        rows = [(p / "predictions.csv").read_text() for p in (whole, run)]
        print(f"{died} kills; tensors of best and last that differ: {differ}; same predictions: {rows[0] == rows[1]}")
        raise SystemExit(bool(differ))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    main(options.kills, options.seed)
