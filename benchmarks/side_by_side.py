"""Do processes that share a GPU run at the same time? Each replays a CUDA graph of small kernels, as training steps do.

python benchmarks/side_by_side.py --jobs 3
nvidia-cuda-mps-control -d && python benchmarks/side_by_side.py --jobs 3    # with the multi-process service
echo quit | nvidia-cuda-mps-control                                         # ends the service
"""

import argparse
import subprocess
import sys
import time

SECONDS, LOADING = 4.0, 15.0
"""Of measuring, and until all processes are ready."""


def replays(start: float) -> float:
    """Replays per second of 50 products of 64 × 256 and 256 × 256, counted from `start` on."""
    import torch

    x, w = torch.randn(64, 256, device="cuda"), torch.randn(256, 256, device="cuda")

    def step() -> torch.Tensor:
        y = x
        for _ in range(50):
            y = torch.relu(y @ w) * 0.1
        return y

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    time.sleep(max(0.0, start - time.time()))
    begun, count = time.monotonic(), 0
    while time.monotonic() - begun < SECONDS:
        for _ in range(50):
            graph.replay()
        torch.cuda.synchronize()
        count += 50
    return count / (time.monotonic() - begun)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--start", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        print(f"{replays(options.start):,.0f} replays/s", flush=True)
    else:
        for jobs in (1, options.jobs):
            print(f"{jobs} side by side, each:", flush=True)
            command = [sys.executable, __file__, "--start", str(time.time() + LOADING)]
            processes = [subprocess.Popen(command) for _ in range(jobs)]
            if sum(process.wait() != 0 for process in processes):
                sys.exit("a process failed")
