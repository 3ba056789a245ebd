"""Transfer by the amount of pre-training data: the ViT paper's Figures 3 (fine-tuned) and 4 (few-shot, linear).

Every model is pre-trained on nested subsets of one data set, with labels or by masking. Its weights are then fine-tuned
on another data set, and probed there as they are.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from regard import api, registry, tasks
from regard.console import Progress, cost_words, time_left
from regard.data import ImageDataset
from regard.data.splits import refuse_unused_cut
from regard.drawing import canvas, style
from regard.errors import ConfigError, DivergedError
from regard.report.page import total
from regard.run.compute import add_costs
from regard.run.settle import check_settings
from regard.study.ablation import Mean
from regard.study.classes import check_held
from regard.study.classes import hold_classes as write_halves
from regard.study.design import Study, Trial
from regard.study.figure import curves, save
from regard.study.keep import keep_plan, kept_row
from regard.study.result import compare, gaps_of, points_of
from regard.study.run import reading, with_settings
from regard.weights import Run, write_text

SHARED = ("device", "precision", "compile", "workers")
"""Settings of the machine, which fine-tuning takes from pre-training if it has none of its own."""
NAMES = {"tuned": "fine-tuned", "few_shot": "few-shot", "linear": "linear probe"}
"""The figures of every run."""


@dataclass(frozen=True)
class TransferSize:
    """The design: which data, models, sizes and seeds, and the settings of both phases."""

    data: str
    transfer: str
    """What is transferred to; empty if classes are held."""
    models: tuple[str, ...]
    out: Path
    sizes: tuple[int, ...] = ()
    seeds: int = 3
    how: Literal["supervised", "masked"] = "supervised"
    shots: int = 5
    hold: tuple[str, ...] = ()
    """Classes that are left out of the pre-training and transferred to."""
    settings: dict[str, Any] = field(default_factory=dict)
    tune: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.how not in ("supervised", "masked"):
            raise ConfigError(f"how={self.how} is no way to pre-train", do="give --how supervised or --how masked")
        if bool(self.transfer) == bool(self.hold):
            do = "give a second data set, or --hold-classes of the first, not both"
            raise ConfigError("it is not clear what to transfer to", do=do)
        if self.shots < 1:
            raise ConfigError(f"shots={self.shots} probes nothing", do="give --shots at least 1")
        if len(set(self.models)) != len(self.models) or not self.models:
            raise ConfigError("each model is to be given once", do="give --models vit_nano,resnet_nano or others")
        for name in {"seed", "weights", "model", "out"} & self.tune.keys():
            raise ConfigError(f"a study sets {name} of the fine-tuning itself", do=f"leave --tune-{name} out")
        self.pretraining()  # checks its settings

    @property
    def command(self) -> Literal["train", "pretrain"]:
        """What pre-trains."""
        return "train" if self.how == "supervised" else "pretrain"

    def pretraining(self) -> Study:
        for model in self.models:
            family = registry.find(model).family
            if self.how == "masked" and family != "vit":
                raise ConfigError(
                    f"{model} is no ViT: only these are pre-trained by masking", do="give --how supervised"
                )
        arms = {model: {"model": model} for model in self.models}
        return Study("transfer-size", self.data, arms, self.seeds, self.out, self.sizes, self.settings, self.command)

    def tuning(self) -> dict[str, Any]:
        shared = {name: self.settings[name] for name in SHARED if name in self.settings}
        return {"explain": 0} | shared | self.tune


@dataclass(frozen=True)
class TransferCurves:
    """The finished runs: a row per model, size and seed."""

    design: TransferSize
    rows: list[dict[str, Any]]
    failed: dict[str, str]

    @property
    def out(self) -> Path:
        return self.design.out

    def summary(self) -> list[str]:
        """For each figure a sentence per pair of models, then what is to be kept in mind."""
        lines = []
        for figure in ("tuned", "few_shot"):
            for one, other in itertools.combinations(self.design.models, 2):
                if said := compare(one, other, gaps_of(self.rows, one, other, figure)):
                    lines.append(f"{NAMES[figure].capitalize()}: {said}")
        lines += self._gains()
        wanted = len(self.design.models) * len(self.design.sizes) * self.design.seeds
        if len(self.rows) + len(self.failed) < wanted:
            lines.append(f"Not all is there yet: {len(self.rows)} of {wanted} runs.")
        seeds = {point.seeds for point in points_of(self.rows, list(self.design.models), "tuned")}
        if seeds and min(seeds) < 3:
            lines.append(f"Some means are of {min(seeds)} seed{'s' * (min(seeds) > 1)} only: take them as a hint.")
        if self.failed:
            lines.append(f"{len(self.failed)} runs failed and are in no mean: {', '.join(self.failed)}.")
        return lines

    def _gains(self) -> list[str]:
        """What the most pre-training images bring over the fewest, per seed."""
        lines = []
        for model in self.design.models:
            rows = [row for row in self.rows if row["arm"] == model]
            sizes = sorted({row["images"] for row in rows})
            by = {(row["images"], row["seed"]): row["few_shot"] for row in rows}
            pairs = [s for n, s in by if n == sizes[-1] and (sizes[0], s) in by] if len(sizes) > 1 else []
            if pairs:
                gain = Mean.of([100 * (by[sizes[-1], s] - by[sizes[0], s]) for s in pairs])
                room = "" if gain.low is None else f" ({gain.low:+.1f} to {gain.high:+.1f})"
                lines.append(
                    f"From {sizes[0]:,} to {sizes[-1]:,} pre-training images, {self.design.shots}-shot accuracy of "
                    f"{model} changes by {gain.value:+.1f} points{room}."
                )
        return lines

    def markdown(self) -> str:
        design = self.design
        names = ["", "pre-training images", *NAMES.values(), "seeds"]
        names[3] = f"{design.shots}-shot"
        lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
        for (arm, images), rows in self._groups().items():
            cells = [str(_percent([row[figure] for row in rows])) for figure in NAMES]
            lines.append(f"| {arm} | {images:,} | {' | '.join(cells)} | {len(rows)} |")
        said = "\n".join(f"- {line}" for line in self.summary())
        target = design.transfer or f"its classes {', '.join(design.hold)}"
        cost = add_costs([row[f"{phase}_cost"] for row in self.rows for phase in ("pre_training", "tuning")])
        return f"""# Transfer from {design.data} to {target}

{said}

{chr(10).join(lines)}

![accuracy after transfer against pre-training images](study.svg)

Test accuracy in percent on the data transferred to: mean over seeds and its 95 % interval (Student's t). Pre-training
was {"with labels" if design.how == "supervised" else "by masking, without labels"}, with {_words(design.settings)};
fine-tuning with {_words(design.tuning())}. A seed decides weights, order and which pre-training images are drawn;
smaller subsets are nested in larger ones. The probes use the features as they are. Differences are computed per seed.
All runs together: {cost_words(cost)}. study.csv has a row per run, with the compute of both phases.
"""

    def _groups(self) -> dict[tuple[str, int], list[dict[str, Any]]]:
        order = list(self.design.models)
        keys = sorted({(row["arm"], row["images"]) for row in self.rows}, key=lambda k: (order.index(k[0]), k[1]))
        return {key: [row for row in self.rows if (row["arm"], row["images"]) == key] for key in keys}

    def write(self) -> None:
        """study.csv, study.json, study.md and the figure."""
        design, folder, arms = self.design, Run(self.out), list(self.design.models)
        folder.write_rows("study.csv", [_flat(row) for row in self.rows])
        points = {figure: [p._asdict() for p in points_of(self.rows, arms, figure)] for figure in NAMES}
        folder.write_json("study.json", {
            "kind": "transfer-size", "data": design.data, "transfer": design.transfer, "held": design.hold,
            "how": design.how, "shots": design.shots, "settings": design.settings, "tuning": design.tuning(),
            "summary": self.summary(), "points": points, "failed": self.failed, "rows": self.rows,
        })  # fmt: skip
        write_text(self.out / "study.md", self.markdown())
        self.draw()

    @style()
    def draw(self) -> None:
        """study.svg and study.png: Figures 3 and 4 side by side."""
        figure, arms = canvas(10.4, 4.0), list(self.design.models)
        labels = ("fine-tuned test accuracy (%)", f"{self.design.shots}-shot test accuracy (%)")
        for ax, name, label in zip(figure.subplots(1, 2), ("tuned", "few_shot"), labels, strict=True):
            curves(ax, points_of(self.rows, arms, name), arms, "pre-training images (log scale)", label)
        save(figure, self.out / "study")


def _percent(values: Sequence[float]) -> Mean:
    return Mean.of([100 * value for value in values])


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "the defaults"


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose costs are columns."""
    plain = {name: value for name, value in row.items() if not isinstance(value, dict)}
    costs = {
        f"{phase}_{name}": row[f"{phase}_cost"].get(name, "")
        for phase in ("pre_training", "tuning")
        for name in ("flops", "device_hours", "energy_kwh")
    }
    return plain | costs


def transfer_size(
    data: str | Path,
    transfer: str | Path | None = None,
    models: Sequence[str] = ("vit_nano", "resnet_nano"),
    sizes: Sequence[int] = (),
    *,
    seeds: int = 3,
    how: Literal["supervised", "masked"] = "supervised",
    shots: int = 5,
    hold_classes: Sequence[str] = (),
    minutes: float | None = None,
    tune: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> TransferCurves:
    """Pre-train on subsets of `data`, transfer to other data, and write study.md, .csv, .json, .svg and .png.

    `settings` are those of the pre-training (`regard train` or `regard pretrain`), `tune` those of the fine-tuning.
    Finished runs are kept: a stopped study resumes with the same call. After `minutes` no further run is started.
    """
    place = Path(out or f"studies/{Path(data).stem}-transfer-size").expanduser()
    design = TransferSize(
        str(data), str(transfer or ""), tuple(models), place, tuple(sizes), seeds, how, shots, tuple(hold_classes),
        settings, dict(tune or {}),
    )  # fmt: skip
    progress = Progress(quiet)
    until = None if minutes is None else time.monotonic() + 60 * minutes
    return _Runner(design, progress, until).run()


class _Stopped(Exception):
    """The time is over."""


class _Runner:
    """Makes the runs that are missing, and collects the result."""

    def __init__(self, design: TransferSize, progress: Progress, until: float | None):
        self.progress, self.until = progress, until
        # Reading what is checked later would be too late: a wrong --tune- flag is an error before anything runs.
        check_settings(tasks.choose(design.transfer or design.data, design.tuning())[0], design.tuning())
        plan = {
            "kind": "transfer-size", "data": design.data, "transfer": design.transfer, "held": design.hold,
            "how": design.how, "shots": design.shots, "settings": design.settings, "tuning": design.tuning(),
        }  # fmt: skip
        first = self._read(design, design.data)
        if design.hold:
            check_held(first, design.hold)
            keep_plan(design.out, plan | {"fingerprint": first.fingerprint()})
            pretrained, transferred = write_halves(first, design.hold, design.out / "data")
            self.source, self.target = str(pretrained), str(transferred)
            first = self._read(design, self.source)
        else:
            self.source, self.target = design.data, design.transfer
        self.second = api.check(self.target, quiet=progress.quiet, **reading(self.target, design.tuning()))
        if not isinstance(self.second, ImageDataset) or not self.second.source.labelled:
            raise ConfigError("this study transfers to images with classes", where=self.target)
        self.second.require_usable()
        refuse_unused_cut(design.tuning(), self.second.given_splits(), self.target)
        self.first = self._unlabelled(design) if design.how == "masked" else first
        if design.hold:  # the written halves are read by names of their own
            read = reading(design.data, design.settings, design.command).keys() - {"size"}
            design = replace(design, settings={n: v for n, v in design.settings.items() if n not in read})
        study = with_settings(replace(design.pretraining(), data=self.source), self.first)
        self.design = replace(design, sizes=study.sizes, settings=study.settings)
        if not design.hold:
            prints = [first.fingerprint(), self.second.fingerprint()]
            keep_plan(design.out, plan | {"fingerprint": prints})
        self.trials = study.trials()

    def _read(self, design: TransferSize, data: str) -> ImageDataset:
        how = reading(data, design.settings, design.command) if data == design.data else {}
        scan = api.check(data, quiet=self.progress.quiet, **how)
        if not isinstance(scan, ImageDataset):
            raise ConfigError("this study is for images", where=data)
        scan.require_usable()
        return scan

    def _unlabelled(self, design: TransferSize) -> ImageDataset:
        entry = tasks.choose(self.source, {}, "pretrain")[0]
        opening = {n: v for n, v in design.settings.items() if n == "image_column" and not design.hold}
        scan: Any = entry.load().open(self.source, entry.config.of(opening), Progress(quiet=True))
        return scan

    def run(self) -> TransferCurves:
        waiting = [trial for trial in self.trials if self._row(trial) is None]
        there, failed, start = len(self.trials) - len(waiting), dict[str, str](), time.monotonic()
        self.progress.say(
            f"{len(self.trials)} pre-trainings in {self.design.out / 'runs'}, {there} transferred already"
        )
        try:
            for made, trial in enumerate(waiting, start=1):
                try:
                    self._execute(trial)
                    row = self._row(trial)
                    assert row is not None
                    said = f"fine-tuned {row['tuned']:.2%}, {self.design.shots}-shot {row['few_shot']:.2%}"
                except DivergedError as error:
                    failed[trial.name] = said = error.what
                left = (time.monotonic() - start) / made * (len(waiting) - made)
                self.progress.say(f"{made}/{len(waiting)}: {trial}: {said}; {time_left(left)}")
        except _Stopped:
            self.progress.say("the minutes are over; the same command makes the runs that are missing")
        finally:
            rows = [row for trial in self.trials if (row := self._row(trial)) is not None]
            result = TransferCurves(self.design, rows, failed)
            if rows:
                result.write()
        return result

    def _place(self, trial: Trial, phase: str) -> Path:
        return self.design.out / "runs" / trial.name / phase

    def _execute(self, trial: Trial) -> None:
        """Pre-train, probe, fine-tune; what is finished is kept."""
        settings: dict[str, Any] = {n: v for n, v in trial.settings.items() if v is not None}
        make = api.train if self.design.how == "supervised" else api.pretrain
        pretrained = self._place(trial, "pretrained")
        self._once(pretrained, lambda: make(
            self.source, out=pretrained, quiet=True, resume=True, dataset=self.first, **settings
        ))  # fmt: skip
        probed = self._place(trial, "probe")
        options: dict[str, Any] = {"methods": ("few_shot", "linear"), "shots": [self.design.shots], "seed": trial.seed}
        if not (probed / "probe.json").is_file():
            self._require_time()
            Run(probed).write_json("probe.json", api.probe(pretrained, self.target, quiet=True, **options).to_json())
        tuned = self._place(trial, "tuned")
        own: dict[str, Any] = self.design.tuning() | {"weights": str(pretrained), "seed": trial.seed}
        self._once(tuned, lambda: api.train(
            self.target, out=tuned, quiet=True, resume=True, dataset=self.second, **own
        ))  # fmt: skip

    def _once(self, place: Path, make: Any) -> None:
        if not (place / "report.html").is_file():  # what a run writes last
            self._require_time()
            make()

    def _require_time(self) -> None:
        if self.until is not None and time.monotonic() > self.until:
            raise _Stopped

    def _row(self, trial: Trial) -> dict[str, Any] | None:
        """What a finished trial came to."""
        out = self.design.out
        return kept_row(out / "kept" / f"{trial.name}.json", out / "runs" / trial.name, lambda: self._read_row(trial))

    def _read_row(self, trial: Trial) -> dict[str, Any] | None:
        tuned, pretrained = Run(self._place(trial, "tuned")), Run(self._place(trial, "pretrained"))
        if not (tuned.path / "report.html").is_file():
            return None
        probes = Run(self._place(trial, "probe")).read_json("probe.json")["probes"]
        summary, data = tuned.read_json("summary.json"), pretrained.read_json("data.json")
        return {
            "arm": trial.arm, "images": total(data["counts"]["train"]), "seed": trial.seed,
            "tuned": summary["figures"]["accuracy"]["value"],
            **{row["probe"]: row["accuracy"] for row in probes},
            "split": summary["split"], "parameters": summary["parameters"],
            "pre_training_cost": add_costs([pretrained.read_json("summary.json")["compute"]]),
            "tuning_cost": add_costs([summary["compute"]]), "run": f"runs/{trial.name}",
        }  # fmt: skip
