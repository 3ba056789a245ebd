"""What a run has cost, for its summary.json: operations, device-hours, energy, and the same of its pre-training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regard.errors import RegardError
from regard.task import Task
from regard.training import History
from regard.training.compute import count_flops
from regard.training.energy import MEASURED
from regard.weights import find_run

COSTS = ("flops", "device_hours", "energy_kwh")


def compute_of(task: Task, history: History) -> dict[str, Any]:
    """The run's own cost; where it starts from weights, `pre_training` and, if that is known, `in_all` beside it."""
    made, work = count_flops(task.blueprint, history.work), history.work
    made |= {"device_hours": work and work.device_seconds / 3600, "device": task.device.type}
    if work and work.joules is not None:
        made |= {"energy_kwh": work.joules / 3.6e6, "energy_measured": MEASURED}
    weights = task.config.flat().get("weights")
    return made | with_pretraining(made, str(weights)) if weights else made


def with_pretraining(own: Mapping[str, Any], weights: str) -> dict[str, Any]:
    """`pre_training`, the cost of the run that the weights come from and of those before it, and `in_all`, the sums."""
    before, unknown = _cost_before(weights)
    made: dict[str, Any] = {"pre_training": {"from": weights, **before} | ({"unknown": unknown} if unknown else {})}
    return made if unknown else made | {"in_all": add_costs([own, before])}


def add_costs(costs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The sum of each cost that all of them have.

    >>> add_costs([{"flops": 2.0, "device_hours": 1.0, "energy_kwh": 0.5}, {"flops": 3.0, "device_hours": None}])
    {'flops': 5.0}
    """
    shared = [name for name in COSTS if all(cost.get(name) is not None for cost in costs)]
    return {name: sum(cost[name] for cost in costs) for name in shared}


def _cost_before(weights: str) -> tuple[dict[str, float], str]:
    """What the weights have cost, and what of it is not known."""
    folder = find_run(weights)
    if folder is None or not (folder.path / "summary.json").is_file():
        return {}, "the weights are of no run with a summary.json"
    try:
        held = folder.read_json("summary.json").get("compute")
    except RegardError as error:
        return {}, error.what
    if not isinstance(held, dict):
        return {}, "that run did not count"
    earlier = held.get("pre_training")
    if earlier is not None and "in_all" not in held:
        return add_costs([held]), f"the pre-training of that run: {earlier.get('unknown')}"
    return add_costs([held.get("in_all", held)]), ""
