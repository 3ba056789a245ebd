"""A run from its data to its report: prepared, fitted (or gone on with), tested, explained, written down."""

from __future__ import annotations

import itertools
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard import registry
from regard.config import MODEL_FIELDS, Augment, Origin, RunConfig, change, make, to_dict
from regard.console import Progress, columns
from regard.data import Augmenter, Images, Loader, Preparation, Scan, fit_loses, keep_some, split, statistics
from regard.data.feed import ImageFeed
from regard.errors import RunError
from regard.evaluation import Evaluation, quick_figures, seen_samples
from regard.evaluation import evaluate as run_evaluation
from regard.explain import Explanation, attends, reported
from regard.explain.attention_store import BUDGET, keep_attention
from regard.explain.draw import draw
from regard.geometry import three_quarters
from regard.networks import Network
from regard.plan import Plan
from regard.predictor import Predictor, build
from regard.report import write_report
from regard.tasks import Classification, Learning
from regard.training import ALONE, Feed, History, State, Training, World, adapt, largest_batch, save_state
from regard.version import __version__
from regard.weights import Checkpoint, Run, Start, open_weights, save_checkpoint, write_text

JUDGED = 2**22  # numbers of small pictures that a GPU judges at once


@dataclass
class ImagePlan(Plan):
    """A run on images with labels."""

    found: Scan
    images: Images
    preparation: Preparation

    @property
    def classes(self) -> tuple[str, ...]:
        return self.found.source.classes

    samples: ClassVar[str] = "images"

    @property
    def step_size(self) -> str:
        return f"{self.config.images_a_step * self.config.accumulate} images"

    def few(self) -> tuple[int, Loader]:
        count = self.config.images_a_step
        return count, Loader(self.images, self.part("val")[:count], count)

    @property
    def reads(self) -> str:
        return f"input {self.images.size}"

    @staticmethod
    def assemble(network: Network, config: RunConfig) -> Network:
        """What is trained, made of that network."""
        return network

    def key(self, number: int) -> str:
        return self.found.source.samples[number].key

    def task(self) -> Learning:
        return Classification(self.config.smoothing, self.config.loss)

    def augmenter(self, augment: Augment) -> Augmenter:
        config, mean, std = self.config, self.preparation.mean, self.preparation.std
        mixed = config.epochs - round(config.epochs * config.calm)
        narrow = min(round(config.epochs * config.narrow), config.epochs - 1)  # the last one sees whole pictures
        size = self.images.size
        window = three_quarters(size, getattr(self.network.config, "patch", (1,) * len(size)))
        return Augmenter(augment, config.seed, mean, std, len(self.classes), mixed, narrow, window)

    def feed(self, world: World) -> Feed:
        config = self.config
        varied = Images(self.found, self.images.size, self.images.channels, crop=config.crop, seed=config.seed)
        augment = Augment(**{f.name: getattr(config, f.name) for f in fields(Augment)})
        loader = Loader(
            varied,
            self.part("train"),
            config.images_a_step,
            shuffle=config.seed,
            workers=config.workers or 0,
            rank=world.rank,
            ranks=world.size,
        )
        return ImageFeed(loader, self.augmenter(augment), self.device)

    def loader(self, part: str, world: World = ALONE) -> Loader:
        # Small pictures are judged more at once: a GPU would wait for Python, which launches what it does.
        usual, numbers = self.config.images_a_step, self.images.channels * math.prod(self.images.size)
        most = max(usual, min(4 * usual, JUDGED // numbers)) if self.device.type == "cuda" else usual
        return Loader(
            self.images,
            self.part(part),
            most,
            workers=self.config.workers or 0,
            rank=world.rank,
            ranks=world.size,
        )

    def judge(self, model: nn.Module, validation: Loader, tick: Callable[..., None], world: World) -> dict[str, float]:
        task = Classification(self.config.smoothing)
        return quick_figures(model, task, validation, self.preparation, self.device, tick, world.sums)

    def checkpoint(self, progress: dict[str, Any], weights: dict[str, Tensor]) -> Checkpoint:
        network = to_dict(self.network.config)
        return Checkpoint(self.config.model, network, self.classes, self.preparation, progress, weights)

    def about(self) -> dict[str, Any]:
        return {"model": to_dict(self.network.config), "preparation": asdict(self.preparation)}


def make_plan(
    found: Scan,
    config: RunConfig,
    origins: dict[str, Origin],
    progress: Progress,
    kind: type[ImagePlan] = ImagePlan,
    *,
    start: Start | None = None,
    splits: list[str] | None = None,
    state: State | None = None,
) -> ImagePlan:
    """Everything but the run folder. `start` are weights to begin with; `splits` and `state` are a running run's."""
    note, device = "as they were", torch.device(config.device)
    torch.manual_seed(config.seed)
    network = _starting_model(config, len(found.source.classes), start, state, progress)
    model = kind.assemble(network, config).to(device)
    model.checkpointing = config.checkpointing
    parameters = sum(p.numel() for p in model.parameters())
    adapt(model, config)
    if splits is None:
        splits, note = split(found, config.split_seed, config.holdout)
        splits = [name if digest else "unreadable" for name, digest in zip(splits, found.digests, strict=True)]
        if config.images is not None:
            splits = keep_some(found, splits, config.images, config.seed)
            note += f"; {config.images} training images are used, drawn with seed {config.seed}"
        progress.say(f"splits: {note}")
        config = _in_steps(config, origins, splits.count("train"), model, device)
        chosen = [n for n, origin in origins.items() if origin in ("recipe", "auto") and n not in ("recipe", "out")]
        progress.say(f"recipe {config.recipe} and data give " + ", ".join(f"{n}={getattr(config, n)}" for n in chosen))
    size, channels = network.config.size, network.config.channels
    images = Images(found, size, channels)
    if state:
        preparation = make(Preparation, state.about["preparation"])
    elif start:
        preparation = start.checkpoint.preparation
    else:
        train = [number for number, its in enumerate(splits) if its == "train"]
        preparation = Preparation(size, channels, *statistics(images, train))
    return kind(config, origins, splits, note, model, parameters, start, found, images, preparation)


def _in_steps(
    config: RunConfig, origins: dict[str, Origin], count: int, model: Network, device: torch.device
) -> RunConfig:
    """With a batch for so many training images, and as many epochs as the steps asked for take."""
    few = max(4, count // 10)  # still ten steps an epoch
    if config.batch == "auto":
        task = Classification(config.smoothing, config.loss)
        config, origins["batch"] = change(config, {"batch": largest_batch(model, task, config, device, few)}), "auto"
    elif origins["batch"] != "flag" and count < 10 * config.batch:
        config, origins["batch"] = change(config, {"batch": few}), "auto"
    if config.steps is not None:
        an_epoch = math.ceil(math.ceil(count / config.images_a_step) / config.accumulate)
        config, origins["epochs"] = change(config, {"epochs": math.ceil(config.steps / an_epoch)}), "auto"
    return config


def _starting_model(
    config: RunConfig, classes: int, start: Start | None, state: State | None, progress: Progress
) -> Network:
    """A network for the data: from weights, with a head of zeros; of a state's shape; or random as the seed says."""
    if state:
        return registry.build(config.model, **state.about["model"])
    if start is None:
        fields = {name: value for name in MODEL_FIELDS if (value := getattr(config, name)) is not None}
        return registry.build(config.model, classes=classes, **fields)
    for line in start.report.lines():
        progress.say(line)
    return build(start.with_rates(config))


def environment(device: torch.device) -> dict[str, Any]:
    """On what a run was made."""
    accelerator = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "regard": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": str(device),
        "accelerator": accelerator,
        "threads": torch.get_num_threads(),
    }


def begin_folder(plan: Plan, data: str, command: str, environment: dict[str, Any]) -> Run:
    """The run folder, with what is known of any run."""
    run = Run.create(Path(plan.config.out or "runs/run"))
    run.write_config(data, plan.config, plan.origins)
    write_text(run.path / "command.txt", command + "\n")
    run.write_json("environment.json", environment)
    return run


def to_go_on(out: str | None, resume: bool) -> bool:
    """Whether a run that is asked for is there already, to be gone on with: by request, or after a process was lost."""
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    return bool(out) and (resume or restarted) and (Path(str(out)).expanduser() / "config.json").is_file()


def is_finished(run: Run, progress: Progress) -> bool:
    """Whether there is nothing to go on with, which is then said."""
    done = (run.path / "summary.json").is_file() and (run.path / "report.html").is_file()
    if done:
        progress.say(f"{run.path} is finished; there is nothing to go on with")
    return done


def add_command(run: Run, line: str) -> None:
    path = run.path / "command.txt"
    write_text(path, path.read_text(encoding="utf-8") + line + "\n")


def open_folder(plan: ImagePlan, data: str, command: str, environment: dict[str, Any], progress: Progress) -> Run:
    """The run folder, with all that is known before training."""
    found, source, config = plan.found, plan.found.source, plan.config
    run = begin_folder(plan, data, command, environment)
    for count, what in (
        (len(found.unreadable), "images cannot be read and are left"),
        (len(found.crossing(plan.splits)), "images stand"),
        (len(found.groups_across_splits(plan.splits)), "patients have images"),
    ):
        if count:
            where = "out" if what.endswith("left") else "in more than one split"
            progress.say(f"warning: {count} {what} {where} (data.json lists them)")
    run.write_json("data.json", found.to_json(plan.splits, plan.note))
    run.write_rows("splits.csv", [
        {"name": s.key, "split": n, "label": source.classes[s.label], "pixels": d or "", "group": s.group or ""}
        for s, n, d in zip(source.samples, plan.splits, found.digests, strict=True)
    ])  # fmt: skip
    if any(fit_loses(shape, plan.images.size) for shape in found.sizes):
        progress.say(f"images of other proportions than {plan.images.size} are cut at the centre, not stretched")
    if plan.start:
        tested, trained = plan.tested, sum(p.numel() for p in plan.model.parameters() if p.requires_grad)
        seen = len(seen_samples(found, str(config.weights), Progress(quiet=True)).intersection(plan.part(tested)))
        if seen:
            progress.say(f"warning: the weights come from a run that has seen {seen} of the images of {tested}")
        facts = plan.start.to_json() | {"parameters_trained": trained, f"seen_in_{tested}": seen}
        run.write_json("transfer.json", facts)
    return run


def kept_splits(run: Run, found: Scan) -> list[str]:
    """The splits of a run that goes on; its data must be what it was."""
    if run.read_json("data.json")["fingerprint"] != found.fingerprint():
        do = "put it back as it was, or train anew on what it is now"
        raise RunError("the data has changed since the run began: names, labels or pixels", where=run.path, do=do)
    return [row["split"] for row in run.read_rows("splits.csv")]


class Folder:
    """The training loop's shelf: a run folder. Of several processes the first one writes."""

    def __init__(self, run: Run, plan: Plan, world: World):
        self.run, self.plan, self.world = run, plan, world

    def weights(self, name: str, weights: dict[str, Tensor], history: History) -> None:
        if not self.world.first:
            return
        plan, config = self.plan, self.plan.config
        self.run.write_rows("metrics.csv", history.rows)
        row = (history.best or {}) if name == "best" else history.rows[-1]
        save_checkpoint(self.run.checkpoint(name), plan.checkpoint(row, plan.keep(self.run, name, weights)))
        for old in sorted(self.run.checkpoint("best").parent.glob("epoch-*.safetensors"))[: -config.keep or None]:
            old.unlink(missing_ok=True)

    def state(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        sharded = self.plan.config.shard and self.world.size > 1
        save_state(self.run.checkpoint("state"), tensors, about | self.plan.about(), self.world, sharded)

    def trouble(self, history: History, numbers: list[int], what: str) -> None:
        path = self.run.path / "trouble.json"
        before = self.run.read_json("trouble.json") if path.exists() else []
        names = [self.plan.key(n) for n in numbers]
        if self.world.first:
            entry = {"epoch": history.epoch, "update": history.updates, "what": what, "images": names}
            self.run.write_json("trouble.json", [*before, entry])


def make_training(plan: Plan, validation: Any, shelf: Any, progress: Progress, world: World) -> Training:
    def evaluate(model: nn.Module, tick: Callable[..., None]) -> dict[str, float]:
        return plan.judge(model, validation, tick, world)

    return Training(
        plan.model, plan.task(), plan.feed(world), plan.config, plan.device, evaluate, shelf, progress, world
    )


def fit(run: Run, plan: Plan, progress: Progress, world: World, state: State | None = None) -> History:
    """Train, from the saved state if there is one."""
    trained = sum(p.numel() for p in plan.model.parameters() if p.requires_grad)
    some = "" if trained == plan.parameters else f", {trained:,} trained"
    many = f" and {world.size - 1} more processes" if world.size > 1 else ""
    progress.say(
        f"{plan.config.model}: {plan.parameters:,} parameters{some}, {plan.reads}, on {plan.device}{many}; "
        f"run folder {run.path}"
    )
    validation = plan.loader("val", world)
    training = make_training(plan, validation, Folder(run, plan, world), progress, world)
    if state:
        training.restore(state)
        at = training.history
        progress.say(f"going on from epoch {at.epoch}, update {at.updates} of {training.steps}")
    try:
        return training.run()
    finally:
        training.feed.close()
        validation.close()


def finish(run: Run, plan: ImagePlan, history: History, progress: Progress) -> None:
    """Test the best weights once, explain some of what they do, and write the report."""
    config, source = plan.config, plan.found.source
    checkpoint, _ = open_weights(run.path)
    predictor = Predictor(checkpoint, plan.device)
    loader = plan.loader(plan.tested)
    with progress.bar(f"testing on {plan.tested}", len(loader)) as tick:
        result = run_evaluation(
            predictor.model, predictor.task, loader, plan.preparation, source, plan.classes, plan.device, tick
        )
    best, waiting = history.best or {}, history.waiting / max(history.seconds, 1e-9)
    progress.say(f"training took {history.seconds:.0f} s, of which {waiting:.1%} waiting for data")
    run.write_json("summary.json", {
        "split": plan.tested, "parameters": plan.parameters, "seconds": round(history.seconds, 2),
        "waiting": round(waiting, 4), "skipped_steps": history.skipped, "best_epoch": best.get("epoch"),
        "val_accuracy": best.get("val_accuracy"), **result.to_json(),
    })  # fmt: skip
    run.write_rows("predictions.csv", result.predictions())
    _explain_some(run, predictor, plan.images, result, config.explain, progress)
    write_report(run)


def rehearse(plan: Plan, progress: Progress) -> str:
    """One step to see that all works, one to time it, one batch of validation; then what the run would take."""

    class Nowhere:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    count, few = plan.few()
    training = make_training(plan, few, Nowhere(), progress, ALONE)
    training.history.epoch = plan.config.epochs  # the first ones may be narrow
    parts = [part for part, _, _ in itertools.islice(training.batches(), plan.config.accumulate)]
    plan.model.train()
    training.step.set_rate(0.0)
    times, loss = [], 0.0
    for _ in range(2):
        begun = time.monotonic()
        loss = float(training.step.whole(parts)[0]) / len(parts)
        times.append(time.monotonic() - begun)
    begun = time.monotonic()
    training.evaluate(plan.model, lambda *_: None)
    judged = (time.monotonic() - begun) * -(-plan.splits.count("val") // count)
    seconds = times[1] * training.steps + judged * plan.config.epochs + times[0]
    memory = torch.cuda.max_memory_allocated() if plan.device.type == "cuda" else None
    rows = [
        ("parameters", f"{plan.parameters:,}"),
        (plan.samples, ", ".join(f"{name} {plan.splits.count(name):,}" for name in plan.named_splits)),
        ("steps", f"{training.steps:,} of {plan.step_size}"),
        ("first loss", f"{loss:.3f}"),
        ("a step", f"{times[1] * 1000:.0f} ms (the first one {times[0]:.1f} s)"),
        ("an epoch", f"{times[1] * training.steps / plan.config.epochs + judged:.0f} s with validation"),
        ("training", f"about {seconds / 60:.1f} minutes, loading of {plan.samples} not counted"),
        ("memory", f"{memory / 2**30:.2f} GiB on the GPU" if memory else "not measured on a CPU"),
    ]
    return columns(("plan", ""), rows)


def _explain_some(
    run: Run, predictor: Predictor, images: Images, result: Evaluation, count: int, progress: Progress
) -> None:
    """Explain a few tested images, and keep their attention for the report's reader to ask."""
    done, room, chosen = list[list[Explanation]](), BUDGET, result.examples(count)
    methods = reported(predictor.model)
    with progress.bar("explaining", len(chosen)) as tick:
        for number, n in enumerate(chosen, start=1):
            pixels, truth = images[0, int(result.index[n])][0], result.classes[result.labels[n]]
            done.append([predictor.explain(pixels, method).about(result.keys[n], truth) for method in methods])
            draw(done[-1], run.path / "explain" / f"{number:02d}.png")
            x = predictor.preparation(pixels).to(predictor.device)
            if attends(predictor.model):
                room -= keep_attention(run, number, predictor.model, x, done[-1][0].picture, room)
            tick(number)
    if done:
        run.write_json("explain/explanations.json", [[e.to_json() for e in maps] for maps in done])
