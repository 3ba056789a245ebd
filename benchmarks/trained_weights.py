"""SHA-256 of the weights of short CPU runs, whole and interrupted: a refactoring must not change any of them.

    OMP_NUM_THREADS=1 python benchmarks/trained_weights.py > before.txt     # on the old code
    OMP_NUM_THREADS=1 python benchmarks/trained_weights.py > after.txt      # on the new code, same machine; then diff

Each line: case, then the digests of its last and best checkpoint (tensors in order of their names).
Digests depend on the CPU and on the version of torch, so only two runs on one machine can be compared.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.torch import load_file

CASES = {
    "digits": ["train", "digits", "--epochs", "2"],
    "digits-muon": ["train", "digits", "--epochs", "2", "--optimizer", "muon", "--mixup", "0.8", "--cutmix", "1",
                    "--policy", "trivial", "--stem", "conv", "--positions", "conditional", "--rope",
                    "--low-res", "0.5", "--mixup-off", "0.5", "--patch", "2", "--drop-path", "0.1"],
    "resnet": ["train", "digits", "--model", "resnet_nano", "--epochs", "1"],
    "mlp": ["train", "digits", "--model", "mlp_nano", "--epochs", "2", "--dropout", "0.1"],
    "pretraining": ["pretrain", "digits", "--epochs", "2", "--patch", "2"],
    "dates": ["train", "dates", "--steps", "60"],
    "rnn": ["train", "dates", "--model", "rnn_attention", "--width", "32", "--depth", "1", "--steps", "40"],
}  # fmt: skip


def run(words: list[str], out: Path, processes: int = 1, stop_after: int | None = None) -> None:
    python = [sys.executable, "-m"]
    if processes > 1:
        python += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    settings = ["--device", "cpu", "--explain", "0", "--quiet", "--out", str(out), "--save-every", "0"]
    if words[1] == "digits":
        settings += ["--workers", "0"]
    if stop_after is None:
        subprocess.run([*python, "regard", *words, *settings], check=True, stdout=sys.stderr)
        return
    killed = f"""
import os, sys
from regard.training import state
original, count = state.save_state, 0
import regard.run.writer as module
def save_state(*arguments, **named):
    global count
    original(*arguments, **named)
    count += 1
    if count == {stop_after}:
        os._exit(9)
module.save_state = save_state
from regard.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", killed, *words, *settings], stdout=sys.stderr)
    assert done.returncode == 9, done.returncode
    subprocess.run([sys.executable, "-m", "regard", "resume", str(out), "--quiet"], check=True, stdout=sys.stderr)


def digest(file: Path) -> str:
    total = hashlib.sha256()
    for name, tensor in sorted(load_file(file).items()):
        total.update(name.encode() + str(tuple(tensor.shape)).encode() + tensor.numpy().tobytes())
    return total.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=None)
    only = parser.parse_args().only
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        for name, words in CASES.items():
            for form in ("whole", "interrupted", "two processes"):
                if (form == "two processes" and name not in ("digits", "dates")) or (only and name not in only):
                    continue
                out = Path(folder) / f"{name}-{form.split()[0]}"
                run(words, out, processes=2 if form[0] == "t" else 1, stop_after=10 if form[0] == "i" else None)
                files = [digest(out / "checkpoints" / f"{which}.safetensors") for which in ("last", "best")]
                print(f"{name:12} {form:14}", *files, flush=True)


if __name__ == "__main__":
    main()
