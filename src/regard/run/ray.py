"""Training in processes that Ray starts, watches and replaces: one run under Ray Train, or folds as tasks of Ray."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard import tasks
from regard.errors import ConfigError, RegardError, RunError, missing
from regard.run.folds import cross_validate
from regard.run.pool import Each
from regard.run.runner import plain_settings, should_resume, start
from regard.run.settle import check_settings
from regard.run.writer import in_python, setup_files
from regard.training.stopping import STOP_FILE, Stop
from regard.weights import Run

SILENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_METRICS_ENABLED": "0", "RAY_TRAIN_ENABLE_PRINT_PATCH": "0"}
ALONE = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
"""For a Ray of our own, read when it is imported. The first keeps it on 127.0.0.1, on any system."""
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
STORE = 10**8  # bytes of memory that Ray shares between processes: no data goes that way


def train_on_ray(
    data: str | Path,
    *,
    processes: int = 2,
    restarts: int = 3,
    quiet: bool = False,
    command: str | None = None,
    resume: bool = False,
    folds: int = 1,
    retrain: int = 0,
    nested: Mapping[str, Sequence[Any]] | None = None,
    **settings: Any,
) -> Run:
    """`regard.train` in several processes that Ray starts; where one is lost, all resume from the last saved state.

    Ray is started on this machine alone, reachable from nowhere else; with RAY_ADDRESS set, the cluster there is
    used. `out` must be given, and be a folder that all machines share, as must the data. `restarts` is how often
    a run may be taken up again. With `folds`, a cross-validation: every fold is trained in one process, `processes` at
    a time.
    """
    settings = plain_settings(settings)
    entry, _ = tasks.choose(data, settings)
    asked = check_settings(entry, settings)
    if asked.general.out is None:
        raise ConfigError("a run on Ray has no folder", do="give --out, a folder that all machines share")
    if processes < 1 or restarts < 0:
        raise ConfigError(f"{processes} processes and {restarts} restarts make no run", do="give at least 1 and 0")
    out = _absolute(asked.general.out)
    if folds != 1:
        workers = fold_workers(out, processes, restarts, asked.machine.device, quiet)
        options: dict[str, Any] = {"retrain": retrain, "nested": nested, "quiet": quiet, "command": command}
        return cross_validate(data, settings, folds, workers=workers, **options)
    if not should_resume(str(out), resume):
        Run.require_new(out, setup_files(entry.load()) if resume else ())
    settings |= {name: str(_absolute(settings[name])) for name in ("out", "weights") if settings.get(name)}
    place = str(_absolute(data)) if Path(data).expanduser().exists() else str(data)
    command = command or in_python(f"regard.train_on_ray({str(data)!r}, processes={processes}, **{settings!r})")
    with _cluster(processes, quiet) as gpus:
        settings["device"] = _device(asked.machine.device, gpus, processes)
        job = {"data": place, "settings": settings, "quiet": quiet, "command": command}
        _fit(job, processes, restarts, asked.machine.timeout, out)
    return Run(out)


def train_here(job: dict[str, Any]) -> None:
    """One of the processes. Its folder was new when the run began, so what it holds now is resumed."""
    try:
        start("train", job["data"], job["settings"], resume=True, quiet=job["quiet"], command=job["command"])
    except (KeyboardInterrupt, SystemExit):  # asked to stop, and saved; an error would make Ray start it anew
        if not Path(os.environ[STOP_FILE]).exists():
            raise


def _fit(job: dict[str, Any], processes: int, restarts: int, timeout: float, out: Path) -> None:
    from ray.train import FailureConfig, LoggingConfig, ScalingConfig
    from ray.train import RunConfig as RayConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    out.parent.mkdir(parents=True, exist_ok=True)
    notes = tempfile.mkdtemp(prefix=f".{out.name}-ray-", dir=out.parent)  # Ray's own, on the disk that all share
    stop_file = Path(notes) / "stop"
    gpu = job["settings"]["device"] == "cuda"
    trainer = TorchTrainer(
        train_here,
        train_loop_config=job,
        torch_config=TorchConfig(backend="nccl" if gpu else "gloo", timeout_s=int(timeout)),
        scaling_config=ScalingConfig(num_workers=processes, use_gpu=gpu),
        run_config=RayConfig(
            name=out.name,
            storage_path=notes,
            failure_config=FailureConfig(max_failures=restarts),
            logging_config=LoggingConfig(log_level="ERROR"),
            worker_runtime_env={
                "env_vars": {STOP_FILE: str(stop_file)} | ({} if "RAY_ADDRESS" in os.environ else LOOPBACK)
            },
        ),
    )
    try:
        with Stop(job["quiet"]) as stop:
            _wait(_aside(trainer.fit), stop, stop_file)
            if stop.wanted:
                stop.leave()
    except Exception as error:
        raise _ours(error, out) from error
    finally:
        shutil.rmtree(notes, ignore_errors=True)


def _aside(work: Callable[[], Any]) -> Future[Any]:
    """Done in a thread that nobody has to wait for: in the main one Ray would answer Ctrl-C in its own way."""
    future: Future[Any] = Future()

    def do() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # whoever waits is told
            future.set_exception(error)

    threading.Thread(target=do, daemon=True).start()
    return future


def _wait(future: Future[Any], stop: Stop, stop_file: Path) -> None:
    """Until the work is done; a request to stop is handed on to the processes, which save and end."""
    while not future.done():
        wait([future], timeout=0.5)
        if stop.wanted and not stop_file.exists():
            stop_file.touch()
    future.result()


@contextmanager
def fold_workers(out: Path, processes: int, restarts: int, device: str, quiet: bool) -> Iterator[Each]:
    """Within: what trains several folds at a time, as `pool.each` does, each in a process of Ray's."""
    with _cluster(processes, quiet) as gpus:
        gpu = _device(device, gpus, processes) == "cuda"
        out.parent.mkdir(parents=True, exist_ok=True)
        notes = Path(tempfile.mkdtemp(prefix=f".{out.name}-ray-", dir=out.parent))
        try:
            yield Workers(notes / "stop", processes, restarts, gpu, quiet)
        finally:
            shutil.rmtree(notes, ignore_errors=True)


@dataclass(frozen=True)
class Workers:
    """Calls a function of every item in processes of Ray's, so many at a time."""

    stop_file: Path
    processes: int
    restarts: int
    gpu: bool
    quiet: bool

    def __call__(
        self, work: Callable[[Any, Any], Any], items: Sequence[Any], dataset: Any
    ) -> Iterator[tuple[Any, Future[Any]]]:
        import ray

        task: Any = ray.remote(num_cpus=1, num_gpus=int(self.gpu), max_retries=self.restarts)(_in_task)
        # As arrays, once per machine: torch would send each tensor by itself.
        images = {number: image.numpy() for number, image in dataset.cache.items()}
        data = ray.put((replace(dataset, cache={}), images))
        local = "RAY_ADDRESS" not in os.environ
        threads = max(1, (os.cpu_count() or 1) // self.processes) if local else None
        left, running = list(items), dict[Any, Any]()
        with Stop(self.quiet) as stop:
            try:
                while left or running:
                    while left and len(running) < self.processes:
                        item = left.pop(0)
                        running[task.remote(data, work, item, str(self.stop_file), str(Path.cwd()), threads)] = item
                    done, _ = ray.wait(list(running), timeout=0.5)
                    if stop.wanted:
                        break
                    for reference in done:
                        yield running.pop(reference), _result(reference)
            finally:  # stopped, or one of them has failed: the others save and end
                if running:
                    self.stop_file.touch()
                while running:
                    for reference in ray.wait(list(running), timeout=0.5)[0]:
                        del running[reference]
            if stop.wanted:
                stop.leave()


def _in_task(
    data: Any, work: Callable[[Any, Any], Any], item: Any, stop_file: str, folder: str, threads: int | None
) -> None:
    """In a process of Ray's, from the folder in which the command was given: paths may be relative to it."""
    import torch

    os.environ[STOP_FILE] = stop_file
    try:
        os.chdir(folder)
    except OSError:
        do = "give the command in a folder that all machines share"
        raise ConfigError("the folder is not on every machine of Ray's", where=folder, do=do) from None
    if threads:
        torch.set_num_threads(threads)
    dataset, images = data
    dataset.cache = {number: torch.from_numpy(image.copy()) for number, image in images.items()}
    try:
        work(dataset, item)
    except (KeyboardInterrupt, SystemExit):  # asked to stop, and saved
        if not Path(stop_file).exists():
            raise


def _result(reference: Any) -> Future[Any]:
    import ray

    future: Future[Any] = Future()
    try:
        future.set_result(ray.get(reference))
    except Exception as error:
        cause = getattr(error, "cause", None)
        said = RunError(f"Ray gave up: {str(error).strip().splitlines()[-1]}", do="the same command resumes")
        future.set_exception(cause if isinstance(cause, RegardError) else said)
    return future


@contextmanager
def _cluster(processes: int, quiet: bool) -> Iterator[int]:
    """Ray: as it already runs in this process, as RAY_ADDRESS says, or one of our own. Gives its number of GPUs."""
    local = "RAY_ADDRESS" not in os.environ
    # A token that only this process and its children know; otherwise Ray would write one to the home folder.
    needed = SILENT | (ALONE | {"RAY_AUTH_TOKEN": secrets.token_hex(32)} if local else {})
    for name, value in needed.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.train.torch
    except ImportError:
        raise missing("Ray", "ray") from None
    started = not ray.is_initialized()
    if started:
        own: dict[str, Any] = {
            "address": "local",
            "include_dashboard": False,
            "num_cpus": processes,
            "object_store_memory": STORE,
        }
        quietly = {"logging_level": "ERROR", "logging_config": ray.LoggingConfig(log_level="ERROR")}
        ray.init(log_to_driver=not quiet, **quietly, **(own if local else {}))
    try:
        if started and local and not ray.util.get_node_ip_address().startswith("127."):
            do = "call regard.train_on_ray before Ray is imported, or set RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0"
            raise ConfigError("Ray would listen to other machines", do=do)
        yield int(ray.cluster_resources().get("GPU", 0))
    finally:
        if started:
            ray.shutdown()


def _device(asked: str, gpus: int, processes: int) -> str:
    if asked != "cuda" and not (asked == "auto" and gpus):
        return "cpu" if asked == "auto" else asked
    if gpus < processes:
        raise ConfigError(f"Ray has {gpus} GPUs for {processes} processes", do="give fewer --ray, or --device cpu")
    return "cuda"


def _absolute(path: str | Path) -> Path:
    """Ray's processes have another working folder."""
    return Path(path).expanduser().absolute()


def _ours(error: Exception, out: Path) -> RegardError:
    """What ended the run: an error of ours in one of the processes, or else whatever Ray says."""
    failures = getattr(error, "worker_failures", {})
    for failure in failures.values():
        cause = getattr(failure, "_base_exc", failure)
        if isinstance(cause, RegardError):
            return cause
    said = next(iter(failures.values()), error)
    do = "the same command with --resume continues from the last saved state"
    return RunError(f"Ray gave up: {str(said).strip().splitlines()[-1]}", where=out, do=do)
