"""Operations are counted as one would by hand, for every task, and never at the cost of a run."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard import registry
from regard.data.batch import Batch
from regard.tasks.classification.loss import CrossEntropy
from regard.training import energy
from regard.training.compute import Blueprint, Work, count_flops, shape_of
from regard.training.loop import History


def per_sample(name: str, classes: int = 1000, **fields: Any) -> float:
    model = registry.build(name, classes=classes, **fields)
    image = torch.zeros(4, model.config.channels, *model.config.size)
    work = Work()
    work.add(Batch({"image": image}, {"probabilities": torch.zeros(4, classes)}, total=4))
    counted = count_flops(Blueprint.of(model, CrossEntropy()), work)
    assert counted["samples"] == 4
    return counted["flops_per_sample"]


def test_a_vit_costs_what_its_formula_says():
    width, mlp, depth, tokens, patch, classes = 64, 96, 3, 17, 4, 10
    got = per_sample("vit_nano", classes, size=16, patch=patch, width=width, mlp=mlp, depth=depth, heads=4)
    embedding = 2 * (tokens - 1) * 3 * patch**2 * width
    block = 2 * tokens * (4 * width**2 + 2 * width * mlp) + 4 * tokens**2 * width
    # Only the class token leaves the last block: keys and values of all tokens, the rest of one.
    last = 2 * tokens * 2 * width**2 + 2 * (2 * width**2 + 2 * width * mlp) + 4 * tokens * width
    forward = (depth - 1) * block + last + 2 * width * classes
    assert got == pytest.approx(3 * forward + 2 * embedding)  # pixels need no gradient


def test_a_resnet_costs_what_is_published():
    first = 2 * 112**2 * 64 * 3 * 7**2  # its input, the pixels, needs no gradient
    forward = (per_sample("resnet18", size=224) + first) / 3
    assert forward / 2 == pytest.approx(1.814e9, rel=0.001)  # multiply-adds (He et al., 2016: 1.8 billion)


def test_windows_and_volumes_are_counted():
    assert per_sample("swin_t", size=224) / 3 / 2 == pytest.approx(4.5e9, rel=0.02)  # Liu et al., 2021, Table 1
    assert per_sample("vit3d_nano", size=16) > 0


def test_frozen_weights_need_fewer_operations():
    whole, frozen = (registry.build("vit_nano", classes=5) for _ in range(2))
    frozen.requires_grad_(False)
    frozen.head.requires_grad_(True)
    batch = Batch({"image": torch.zeros(2, 3, 32, 32)}, {"probabilities": torch.zeros(2, 5)}, total=2)
    counts = [Blueprint.of(model, CrossEntropy()) for model in (whole, frozen)]
    assert all(isinstance(count, Blueprint) for count in counts)
    all_of_it, head_only = (count.flops(shape_of(batch)) for count in counts if isinstance(count, Blueprint))
    assert head_only < 0.4 * all_of_it


def test_a_blueprint_takes_no_memory_and_leaves_the_network_alone():
    model = registry.build("vit_nano", classes=5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    made = Blueprint.of(model, CrossEntropy(weights=torch.ones(5)))
    assert isinstance(made, Blueprint)
    assert {p.device.type for p in made.model.parameters()} == {made.objective.weights.device.type} == {"meta"}
    state = torch.get_rng_state()
    made.flops(shape_of(Batch({"image": torch.zeros(2, 3, 32, 32)}, {"probabilities": torch.zeros(2, 5)}, total=2)))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_what_cannot_be_counted_is_said_and_stops_nothing():
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor, **_: Any) -> Any:
            return SimpleNamespace(logits=x.flatten(1) * float(x.sum()))

    work = Work()
    work.add(Batch({"image": torch.zeros(2, 1, 2, 2)}, {"probabilities": torch.zeros(2, 4)}, total=2))
    counted = count_flops(Blueprint.of(Odd(), CrossEntropy()), work)
    assert (counted["flops"], counted["samples"]) == (None, 2)
    assert counted["flops_counted"].startswith("not counted: ")
    stubborn: Any = SimpleNamespace(lock=(n for n in ()))  # a generator cannot be copied
    assert "pickle" in count_flops(Blueprint.of(stubborn, CrossEntropy()), work)["flops_counted"]
    assert "did not count" in count_flops(None, None)["flops_counted"]


def test_a_history_of_an_older_version_says_that_it_did_not_count():
    assert History.of({"epoch": 3}).work is None
    with pytest.raises(TypeError, match="work cannot be"):
        History.of({"work": {"samples": {"x": -1}, "device_seconds": 0.0, "joules": None}})


def test_energy_is_the_counters_difference_or_absent(monkeypatch):
    assert energy.EnergyMeter(torch.device("cpu")).joules() is None

    def reading(handle: Any, value: Any) -> int:
        value._obj.value = 7_250
        return 0

    driver = SimpleNamespace(
        nvmlInit_v2=lambda: 0,
        nvmlDeviceGetHandleByUUID=lambda uuid, handle: int(uuid != b"GPU-7"),
        nvmlDeviceGetTotalEnergyConsumption=reading,
    )
    monkeypatch.setattr(energy, "_open_library", lambda: driver)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=7))
    assert energy.EnergyMeter(torch.device("cuda")).joules() == 7.25
    driver.nvmlDeviceGetTotalEnergyConsumption = lambda handle, value: 3  # not supported
    assert energy.EnergyMeter(torch.device("cuda")).joules() is None
    monkeypatch.setattr(energy, "_open_library", lambda: ctypes.CDLL("libno-such-library.so"))
    assert energy.EnergyMeter(torch.device("cuda")).joules() is None


def test_a_run_reports_its_energy_where_there_is_a_meter(picture_folder, tmp_path, monkeypatch):
    readings = iter(range(0, 10**6, 3600))
    monkeypatch.setattr(energy.EnergyMeter, "joules", lambda self: float(next(readings)))
    settings: dict[str, Any] = {"model": "vit_nano", "depth": 1, "size": 16, "epochs": 1, "explain": 0, "quiet": True}
    run = regard.train(picture_folder, out=tmp_path / "run", device="cpu", **settings)
    compute = run.read_json("summary.json")["compute"]
    assert compute["energy_kwh"] == pytest.approx(0.001)
    assert "NVML" in compute["energy_measured"]
