"""The measurements of `regard inspect`, and its figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config import make
from regard.console import columns
from regard.data import Preparation, open_source
from regard.data.source import UNLABELLED
from regard.data.volumes.reader import Unsettled
from regard.errors import ConfigError, DataError, RegardError
from regard.explain.explanation import attends
from regard.explain.inspect import (
    Filters,
    TokenNorms,
    attention_distance,
    bias_tables,
    filters,
    outlier_threshold,
    position_similarity,
    token_norms,
    uniform_distance,
)
from regard.explain.inspect_draw import draw_inspection
from regard.explain.registers import RegisterNeuron, find_register_neurons, with_test_time_registers
from regard.explain.visualise import Visualisation
from regard.geometry import TokenMap
from regard.image_groups import LabelData
from regard.networks.base import Network
from regard.nn import capture
from regard.weights import Run

BATCH = 8


@dataclass(frozen=True)
class Inspection:
    """Measurements of a network. Those that need images are None without images."""

    filters: Filters | None
    """None if the network has no filters on pixels."""
    similarity: Tensor | None
    """(*grid, *grid): see `position_similarity`."""
    where: TokenMap
    uniform: tuple[float, ...]
    """Mean attention distance in pixels of uniform attention, of each layer: see `uniform_distance`."""
    biases: tuple[Tensor, ...] = ()
    """(heads, *offsets) of each layer with relative positions: see `bias_tables`."""
    distance: tuple[Tensor, ...] | None = None
    """(heads,) of each layer, in pixels: see `attention_distance`."""
    norms: TokenNorms | None = None
    pictures: Tensor | None = None
    """(images, channels, *size) in 0..1, the network's inputs before normalisation."""
    neurons: tuple[RegisterNeuron, ...] = ()
    registered: TokenNorms | None = None
    """Norms with test-time registers, if these were asked for and there were outliers."""
    excited: tuple[Visualisation, ...] = ()
    attends: bool = True
    """Whether the network has attention; without it there are no distances and no token norms."""

    def save(self, path: str | Path) -> Path:
        """Draw everything into one PNG, SVG or PDF."""
        return draw_inspection(self, Path(path))

    def describe(self) -> str:
        """The measurements as sentences and a table with one row per layer."""
        lines = []
        if self.filters is not None:
            shares = self.filters.shares
            lines.append(f"{self.filters.source}: {len(shares)} components hold {shares.sum():.1%} of the variance, "
                         f"the first {shares[0]:.1%}")  # fmt: skip
        if not self.attends:
            lines.append("the network has no attention: distances and token norms are for those that have")
        if self.distance is None or self.norms is None:
            return "\n".join(lines)
        lines += [_outliers("token norms", self.norms)]
        if self.registered is not None:
            lines += [_outliers(f"with test-time registers, {len(self.neurons)} neurons moved", self.registered)]
        low, high = min(self.uniform), max(self.uniform)
        even = f"{low:.1f} is uniform attention" if low == high else "uniform attention beside it"
        lines += [f"attention distance in pixels; {even}", ""]
        header = ("layer", "nearest head", "mean", "farthest head", *["uniform"] * (low < high), "median norm",
                  "largest norm", "outliers")  # fmt: skip
        rows = []
        for layer, (heads, placed) in enumerate(zip(self.distance, self.norms.placed, strict=True)):
            count = int((placed > outlier_threshold(placed)).sum())
            values = (heads.min(), heads.mean(), heads.max(), *[self.uniform[layer]] * (low < high))
            reach = (f"{value:.1f}" for value in values)
            rows.append((layer, *reach, f"{placed.median():.1f}", f"{placed.max():.1f}", count))
        return "\n".join(lines) + "\n" + columns(header, rows)

    def with_excited(self, *excited: Visualisation) -> Inspection:
        """The same inspection with feature visualisations, drawn below the rest."""
        return replace(self, excited=(*self.excited, *excited))


def inspect_model(
    model: Network,
    pictures: Tensor | None = None,
    normalise: Callable[[Tensor], Tensor] = lambda x: x,
    *,
    registers: int = 0,
    tick: Callable[[int], None] = lambda done: None,
) -> Inspection:
    """Measure a network; with `pictures` (images, channels, *size) also its attention and token norms on them.

    `normalise` turns pictures into the network's input. With `registers`, and if there are outliers, that many
    test-time registers are added and token norms measured again. `tick` gets the number of finished pictures.

    >>> import regard
    >>> result = inspect_model(regard.create("vit_nano", classes=3, size=16), torch.rand(2, 3, 16, 16))
    >>> len(result.distance), round(result.uniform[0], 2), len(result.describe().splitlines())
    (4, 8.03, 9)
    """
    if registers < 0:
        raise ConfigError(f"registers={registers} is negative")
    model.eval()
    try:
        components = filters(model)
    except RegardError:
        components = None
    first, flow = model.input_map(), model.token_flow()
    similarity, uniform = position_similarity(model), uniform_distance(first, flow)
    biases = bias_tables(model)
    basis = Inspection(components, similarity, model.token_map(), uniform, biases, attends=attends(model))
    if pictures is None or not len(pictures) or not basis.attends:
        return basis
    device, reach, norms = next(model.parameters()).device, [torch.zeros(())] * len(uniform), []
    for start in range(0, len(pictures), BATCH):
        x = normalise(pictures[start : start + BATCH]).to(device)
        with torch.inference_mode(), capture(model) as tape:
            norms.append(token_norms(model, x))
        heads = attention_distance(tape, first, flow)
        reach = [total + len(x) * each for total, each in zip(reach, heads, strict=True)]
        tick(start + len(x))
    distance = tuple(total / len(pictures) for total in reach)
    result = replace(basis, distance=distance, norms=_joined(norms), pictures=pictures)
    if not registers or not result.norms or not result.norms.outliers.any():
        return result
    few = pictures[result.norms.outliers.any(1)][:BATCH]  # pictures with outliers
    neurons = find_register_neurons(model, normalise(few).to(device))
    changed = with_test_time_registers(model, neurons, registers)
    after = _joined([token_norms(changed, normalise(part).to(device)) for part in pictures.split(BATCH)])
    # The same threshold as before: a new one, from smaller norms, would mark ordinary tokens as outliers.
    return replace(result, neurons=tuple(neurons), registered=replace(after, threshold=result.norms.threshold))


def _outliers(name: str, norms: TokenNorms) -> str:
    count, total = int(norms.outliers.sum()), norms.outliers.numel()
    return f"{name}: {count:,} of {total:,} tokens are outliers (norm above {norms.threshold:.1f}) after the last block"


def _joined(parts: list[TokenNorms]) -> TokenNorms:
    """Norms of several batches, concatenated."""
    norms = tuple(torch.cat(layer) for layer in zip(*(part.norms for part in parts), strict=True))
    where = parts[0].where
    return TokenNorms(norms, outlier_threshold(norms[-1][:, len(where.prefix) :]), where)


def own_pictures(run: str | Path, preparation: Preparation, most: int = 32, **reading: Any) -> Tensor:
    """Up to `most` test images of the data of a run (validation images if it has no test split).

    `reading` says how they are read, where not as the run read them. An error if `run` is a checkpoint file or its data
    has changed.
    """
    if not Path(run).expanduser().is_dir():
        raise DataError("a checkpoint file knows no images", where=run, do="give images")
    folder = Run.open(run)
    rows = folder.split_rows()
    if "label" not in rows[0]:
        raise DataError("the run has no images", where=run, do="give images")
    labels, how = rows[0]["label"] not in UNLABELLED, make(LabelData, folder.reading() | reading, folder.path)
    source, plan = open_source(folder.read_config().data, labels, how), preparation.plan
    if plan and isinstance(source.reader, Unsettled):
        source = replace(source, reader=source.reader.follow(plan))
    number = {sample.key: n for n, sample in enumerate(source.samples)}
    splits = {row["split"] for row in rows}
    names = [row["name"] for row in rows if row["split"] == ("test" if "test" in splits else "val")]
    if not names or any(name not in number for name in names):
        raise DataError("the run's data is not what it was", where=source.name, do="give images")
    chosen = [names[n * len(names) // min(most, len(names))] for n in range(min(most, len(names)))]
    return torch.stack([preparation.picture(source.read(number[name])[0]) for name in chosen])
