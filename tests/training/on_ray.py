"""The program that starts a run on Ray: on_ray.py DATA OUT UPDATE SETTINGS(JSON).

At the given update the last process is killed, the first time. Every process writes what it saw, as ranks.py does,
and the first one where its machine listens, to OUT.sockets.
"""

import json
import sys
from pathlib import Path

from regard.run import ray


def work(job: dict) -> None:
    import os
    import shutil
    import subprocess

    import ranks

    import regard.run.ray

    out = job["settings"]["out"]
    if os.environ["RANK"] == "0" and shutil.which("ss"):
        listening = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True).stdout
        Path(f"{out}.sockets").write_text(listening)
    with ranks.watching(out, "kill", job["update"]):
        regard.run.ray.train_here({name: value for name, value in job.items() if name != "update"})


if __name__ == "__main__":
    _, data, out, update, settings = sys.argv
    fit = ray._fit
    ray.train_here = work  # what is defined in the program itself, Ray hands on by value
    ray._fit = lambda job, *rest: fit(job | {"update": int(update)}, *rest)
    ray.train_on_ray(data, out=out, processes=2, restarts=1, quiet=True, save_every=0.0, **json.loads(settings))
