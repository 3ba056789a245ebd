"""The attention study: the decks' arguments as experiments in one folder, which can be stopped and resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from regard.config import read_json
from regard.console import Progress
from regard.errors import ConfigError, did_you_mean
from regard.run.settle import pick_device
from regard.study.attention.bottleneck import QUICK, Bottleneck, Repeating, bottleneck
from regard.study.attention.costs import LAYERS, Costs, Sizes, costs
from regard.study.attention.figures import draw
from regard.study.attention.gradients import Gradients, softmax_gradients
from regard.study.attention.scores import Lookup, Scores, scores
from regard.study.attention.sinusoids import Sinusoids, sinusoids
from regard.study.figure import save
from regard.study.keep import keep_plan
from regard.weights import Run, write_text

PARTS = {
    "sinusoids": "Where words stand: sinusoids",
    "gradients": "Why 1/√d_k: softmax gradients",
    "costs": "What layers cost by length",
    "scores": "Additive and dot-product attention",
    "bottleneck": "The context bottleneck",
}
"""Name and title, in the order of execution: the longest last."""

Part: TypeAlias = Bottleneck | Gradients | Costs | Scores | Sinusoids


@dataclass(frozen=True)
class AttentionStudy:
    """The results, by part."""

    out: Path
    parts: dict[str, Part]

    def summary(self) -> list[str]:
        """The result in sentences."""
        return [line for part in self.parts.values() for line in part.summary()]

    def write(self) -> None:
        """Write study.md, study.json, and a table and a figure per part. Parts of earlier calls are kept."""
        folder, path = Run(self.out), self.out / "study.json"
        for name, part in self.parts.items():
            folder.write_rows(f"{name}.csv", part.rows())
            save(draw(part), self.out / name)
        parts = read_json(path)["parts"] if path.is_file() else {}
        parts |= {name: _stored(part) for name, part in self.parts.items()}
        parts = {name: parts[name] for name in PARTS if name in parts}
        folder.write_json("study.json", {"kind": "attention", "torch": torch.__version__, "parts": parts})
        write_text(self.out / "study.md", markdown(parts))


def _stored(part: Part) -> dict[str, Any]:
    stored: dict[str, Any] = {"summary": part.summary(), "table": part.table(), "rows": part.rows()}
    if isinstance(part, Bottleneck):
        points = [p._asdict() | {"exact": p.exact._asdict(), "symbols": p.symbols._asdict()} for p in part.points]
        return stored | {"task": asdict(part.task), "parameters": part.parameters, "points": points}
    if isinstance(part, Costs):
        powers = {layer: {what: part.power(layer, what) for what in ("seconds", "bytes")} for layer in LAYERS}
        return stored | {"sizes": asdict(part.sizes), "device": part.device, "threads": part.threads, "powers": powers}
    return stored


def markdown(parts: dict[str, dict[str, Any]]) -> str:
    """Sentences, table and figure of each part, for people."""
    sections = [
        f"## {PARTS[name]}\n\n" + "\n".join(f"- {line}" for line in part["summary"]) + f"\n\n{part['table']}\n\n"
        f"![{PARTS[name]}]({name}.svg)\n"
        for name, part in parts.items()
    ]
    return "# Why attention\n\n" + "\n".join(sections)


def attention_study(
    out: str | Path = "studies/attention",
    parts: Sequence[str] = tuple(PARTS),
    *,
    quick: bool = False,
    seeds: int | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> AttentionStudy:
    """Run the named parts, and write their results into `out`: study.md, study.json, tables and figures.

    `quick` runs everything at a small size, to test that it works. `seeds` are those of scores and bottleneck:
    3, or 1 if quick.

    >>> study = attention_study(tmp / "study", ("sinusoids", "gradients"), quick=True, quiet=True)
    >>> list(study.parts), (study.out / "gradients.svg").is_file()
    (['sinusoids', 'gradients'], True)
    """
    out, progress = Path(out).expanduser(), Progress(quiet)
    for name in parts:
        if name not in PARTS:
            raise ConfigError(f"the attention study has no part {name!r}", do=did_you_mean(name, PARTS))
    if not parts:
        raise ConfigError("no part is asked for", do=f"give some of {', '.join(PARTS)}")
    place = pick_device(device)
    seeds = (1 if quick else 3) if seeds is None else seeds
    if seeds < 1:
        raise ConfigError(f"seeds={seeds} must be at least 1", do="3 or more show the noise")
    keep_plan(out, {"kind": "attention", "quick": quick})
    experiments = _experiments(out, quick, seeds, place, progress.say)
    results = dict[str, Part]()
    start = time.monotonic()
    try:
        for name in (name for name in PARTS if name in parts):
            progress.say(f"{PARTS[name]} …")
            results[name] = experiments[name]()
            AttentionStudy(out, {name: results[name]}).write()
    except KeyboardInterrupt:
        progress.say("stopped; run the same command to resume")
        raise
    progress.say(f"{time.monotonic() - start:.0f} s")
    return AttentionStudy(out, results)


def _experiments(out: Path, quick: bool, seeds: int, device: str, say: Callable[[str], None]) -> dict[str, Any]:
    """By part, the function that runs it, at full size or quickly."""
    task, sizes = (QUICK, Sizes(rounds=3)) if quick else (Repeating(), Sizes())
    lengths = (64, 128, 256, 512) if quick else (128, 256, 512, 1024, 2048, 4096)
    lookup, widths = (Lookup(length=64, steps=50), (4, 64)) if quick else (Lookup(), (4, 16, 64, 256, 1024))
    where: dict[str, Any] = {"device": device, "say": say}
    return {
        "sinusoids": sinusoids,
        "gradients": lambda: softmax_gradients(queries=500 if quick else 4000),
        "costs": lambda: costs(lengths, sizes=sizes, keep=out / "kept" / "costs", **where),
        "scores": lambda: scores(widths, task=lookup, seeds=seeds, keep=out / "kept" / "scores", **where),
        "bottleneck": lambda: bottleneck(task=task, seeds=seeds, keep=out / "kept" / "bottleneck", **where),
    }
