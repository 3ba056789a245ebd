"""Several processes train as one would: same batches, same losses; whoever is lost, stopped or hangs is noticed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.data import Images, Loader, open_source, scan
from regard.errors import ConfigError
from tests.conftest import make_folder, write_pairs
from tests.processes import finished, free_port, start
from tests.training.ranks import main

SETTINGS = {
    "model": "vit_nano", "depth": 2, "epochs": 2, "batch_size": 8, "explain": 0, "size": 16, "device": "cpu",
    "workers": 0, "crop": "shift", "flip": True, "mixup": 0.3, "cutmix": 0.3, "drop_path": 0.0, "optimizer": "adamw",
    "lr": 3e-4, "stem": "patch",
}  # fmt: skip
"""Without batch norm, whose statistics are of each process."""


SENTENCES = {
    "model": "transformer_nano", "width": 32, "depth": 1, "heads": 2, "mlp": 64, "vocabulary": 300, "batch_tokens": 256,
    "epochs": 2, "explain": 0, "device": "cpu", "dropout": 0.0, "lr": 3e-4,
}  # fmt: skip


def launch(ranks, data, out, case="nothing", update=-1, usual=SETTINGS, **settings) -> tuple[list[int], str]:
    """So many processes that train together, as torchrun would start them: exit codes, and what they said."""
    arguments, said = (str(data), str(out), case, update, usual | settings), Path(f"{out}.said")
    world = {"WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    processes = [
        start(main, *arguments, said=said, RANK=rank, LOCAL_RANK=rank, **world if ranks > 1 else {})
        for rank in range(ranks)
    ]
    codes = finished(*processes[:1]) if case == "hang" else finished(*processes)
    for process in processes[1:] if case == "hang" else ():
        process.kill()
    return codes, said.read_text()


def told(out, ranks, rank=0):
    return json.loads(Path(f"{out}.{ranks}.{rank}.json").read_text())


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("data") / "pictures", per_class=15)


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "run"
    assert launch(1, data, out) == ([0], "")
    return out


def assert_the_same_training(out, ranks, alone) -> None:
    one, many = told(alone, 1), [told(out, ranks, rank) for rank in range(ranks)]
    assert many[0]["losses"].keys() == one["losses"].keys()
    for update, loss in one["losses"].items():
        assert many[0]["losses"][update] == pytest.approx(loss, abs=1e-6), update
    torch.testing.assert_close(torch.tensor(many[0]["gradient"]), torch.tensor(one["gradient"]), atol=1e-6, rtol=1e-4)
    for epoch, samples in one["samples"].items():
        shared = [number for rank in many for number in rank["samples"].get(epoch, [])]
        assert sorted(shared) == sorted(samples), "each once"
    a, b = (load_file(p / "checkpoints" / "last.safetensors") for p in (out, alone))
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=1e-4, rtol=1e-3)


def test_several_processes_learn_to_translate_as_one(tmp_path):
    """Batches by tokens, whose rows differ in words: each process's part counts by its words."""
    data = write_pairs(tmp_path / "pairs", 130)
    for ranks, out in ((1, tmp_path / "one"), (2, tmp_path / "two")):
        codes, said = launch(ranks, data, out, usual=SENTENCES)
        assert not any(codes), said
    assert_the_same_training(tmp_path / "two", 2, tmp_path / "one")


@pytest.mark.parametrize(("ranks", "shard"), [(2, False), (4, False), (2, True)])
def test_several_processes_train_as_one(data, alone, tmp_path, ranks, shard):
    codes, said = launch(ranks, data, tmp_path / "run", shard=shard)
    assert not any(codes), said
    assert_the_same_training(tmp_path / "run", ranks, alone)
    names = {p.name.split("-")[0] for p in (tmp_path / "run" / "checkpoints").iterdir()}
    assert names == {
        "best.safetensors",
        "last.safetensors",
        *(("state", "state.json") if shard else ("state.safetensors",)),
    }
    assert (tmp_path / "run" / "report.html").is_file()
    assert not list((tmp_path / "run").rglob("*.metadata")), "torch's own index would be a pickle"


def test_muon_moves_sharded_matrices_as_whole_ones(data, tmp_path):
    """Three processes, among which some of the matrices do not divide evenly."""
    for ranks, out in ((1, tmp_path / "one"), (3, tmp_path / "three")):
        codes, said = launch(ranks, data, out, optimizer="muon", shard=ranks > 1)
        assert not any(codes), said
    assert_the_same_training(tmp_path / "three", 3, tmp_path / "one")


@pytest.mark.long
def test_stopped_and_resumed_by_other_numbers_of_processes(data, alone, tmp_path):
    """4 sharded, 2 with whole copies, 1, 4 sharded: each reads what the one before has written."""
    out, losses = tmp_path / "run", {}
    for ranks, shard, update in ((4, True, 1), (2, False, 2), (1, False, 4), (4, True, -1)):
        codes, said = launch(ranks, data, out, "stop", update, shard=shard)
        assert not any(codes) if update == -1 else all(codes), said
        assert (out / "report.html").exists() == (update == -1)
        losses |= told(out, ranks)["losses"]
    expected = told(alone, 1)["losses"]
    assert losses.keys() == expected.keys()
    for update, loss in expected.items():
        assert losses[update] == pytest.approx(loss, abs=1e-6), update


@pytest.mark.long
def test_a_killed_process_is_replaced_and_the_run_ends_as_it_would_have(data, alone, tmp_path):
    words = [Path(__file__).with_name("ranks.py"), str(data), str(tmp_path / "run"), "kill", "3", json.dumps(SETTINGS)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(
        [sys.executable, *torchrun, "--monitor-interval=0.2", *words],
        env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    a, b = (load_file(p / "checkpoints" / "last.safetensors") for p in (tmp_path / "run", alone))
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=1e-4, rtol=1e-3)


@pytest.mark.long
def test_a_process_that_hangs_is_noticed_in_time(data, tmp_path):
    codes, said = launch(2, data, tmp_path / "run", "hang", 2, timeout=4.0)
    assert codes == [2]
    assert "lost another one" in said
    assert (tmp_path / "run" / "checkpoints" / "state.safetensors").exists()


@pytest.mark.parametrize(("batch", "ranks"), [(8, 2), (8, 3), (6, 4), (5, 8), (64, 4)])
def test_every_sample_is_dealt_to_one_process(picture_folder, batch, ranks):
    images = Images(scan(open_source(picture_folder)), (16, 16), 3)
    index = list(range(24))
    loaders = [Loader(images, index, batch, shuffle=1, rank=r, ranks=ranks) for r in range(ranks)]
    shares = [[(b.numbers.tolist(), b.steps[0][1]) for b in loader.epoch(3)] for loader in loaders]
    whole = [b.numbers.tolist() for b in Loader(images, index, batch, shuffle=1).epoch(3)]
    assert len({len(own) for own in shares}) == 1, "all make the same number of steps"
    for number, expected in enumerate(whole):
        dealt = [own[number] for own in shares]
        assert [n for numbers, share in dealt if share for n in numbers] == expected
        assert sum(share for _, share in dealt) == pytest.approx(1)
        assert all(len(numbers) == 1 for numbers, share in dealt if not share)


def test_what_cannot_be_sharded_is_refused(picture_folder):
    with pytest.raises(ConfigError, match="shard and compile"):
        regard.train(picture_folder, model="vit_nano", shard=True, compile=True, quiet=True)
