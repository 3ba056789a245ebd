"""The attention study: its numbers against arithmetic, that it goes on where it was stopped, and its command."""

import csv
import json
import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from regard.cli import main
from regard.errors import ConfigError, RunError
from regard.metrics import repeated
from regard.nn import attend
from regard.study import attention_study
from regard.study.attention import Repeating, Sizes, bottleneck, costs, sinusoids, softmax_gradients
from regard.study.attention.bottleneck import Bottleneck, Recall, learn, recall, sentences
from regard.study.attention.costs import LAYERS, Cost, Costs, attend_nearby, exponent, layers_of, peak_memory
from regard.study.attention.gradients import jacobian_norm
from tests.loading import create_translator

TINY = Repeating(symbols=3, longest=3, lengths=(2, 3, 4), width=16, steps=3, batch=8, sentences=10)


def test_scores_have_the_variance_of_the_papers_footnote():
    found = softmax_gradients((4, 64), keys=16, queries=4000).measured
    for row in found:
        assert row.variance == pytest.approx(1.0 if row.scaled else row.d_k, rel=0.05)
    plain, scaled = ([row for row in found if row.scaled == wanted] for wanted in (False, True))
    assert plain[1].largest > 0.7 > 0.4 > scaled[1].largest
    assert plain[1].saturated > 0.1 > scaled[1].saturated == 0.0
    assert plain[1].jacobian < plain[0].jacobian
    assert scaled[1].jacobian == pytest.approx(scaled[0].jacobian, rel=0.1)


def test_the_jacobians_norm_is_autograds():
    scores = 3 * torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    slopes = torch.stack([torch.autograd.functional.jacobian(lambda s: s.softmax(-1), row) for row in scores])
    torch.testing.assert_close(jacobian_norm(scores.softmax(-1)), torch.linalg.matrix_norm(slopes))


def test_dot_products_of_sinusoids_know_distances_alone():
    found = sinusoids(60, 16, places=(12, 30, 47), reach=12)
    for n, distance in enumerate(found.distances):
        wanted = sum(math.cos(distance / 10000 ** (2 * i / 16)) for i in range(8))
        np.testing.assert_allclose(found.products[:, n], wanted, atol=1e-4)
    assert found.shift < 1e-4
    assert found.products[0, 12] == pytest.approx(8.0)
    with pytest.raises(ConfigError, match="lie outside 0 to 59"):
        sinusoids(60, 16, places=(5,), reach=12)


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_exponents_of_made_up_costs_are_found(power):
    assert exponent([64, 128, 512], [3e-4 * n**power for n in (64, 128, 512)]) == pytest.approx(power)
    # A constant that outweighs short sentences must not bend what is said of long ones.
    rows = [Cost("convolutional", n, (0.5 if n < 50 else 0.0) + 1e-6 * n**power, n) for n in (10, 40, 160, 640)]
    made = Costs(Sizes(), "cpu", 1, rows)
    assert made.power("convolutional", "seconds") == pytest.approx(power)
    assert made.power("convolutional", "bytes") == pytest.approx(1.0)


@pytest.mark.parametrize("length", [3, 8, 13])
@pytest.mark.parametrize("neighbours", [2, 4, 6])
def test_restricted_attention_is_attention_with_a_band_of_keys(length, neighbours):
    q, k, v = torch.randn(3, 2, 2, length, 4, generator=torch.Generator().manual_seed(0))
    place = torch.arange(length)
    band = (place[:, None] - place).abs() <= neighbours // 2
    torch.testing.assert_close(attend_nearby(q, k, v, neighbours), attend(q, k, v, mask=band))


def test_memory_is_counted_at_its_peak():
    def work():
        first = torch.empty(1000)
        second = torch.empty(500)
        del first
        return torch.empty(800) if len(second) else None

    assert peak_memory(work) == 6000
    assert peak_memory(lambda: [torch.empty(1000), torch.empty(1000)]) == 8000


def test_every_layer_keeps_the_shape_and_kept_weights_are_the_same_attention():
    x = torch.randn(2, 10, 8)
    outputs = {name: layer(x) for name, layer in layers_of(Sizes(width=8, neighbours=4)).items()}
    assert {out.shape for out in outputs.values()} == {x.shape}
    torch.testing.assert_close(outputs["self-attention"], outputs["self-attention, weights kept"])
    assert not torch.allclose(outputs["self-attention"], outputs["self-attention, restricted"])


@pytest.fixture
def one_thread():
    """Each thread of a kernel has some memory of its own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_weights_that_are_kept_take_memory_by_the_square_and_fused_ones_do_not(tmp_path, one_thread):
    found = costs((256, 1024), sizes=Sizes(width=16, neighbours=16, rounds=1), keep=tmp_path)
    assert {row.layer for row in found.measured} == set(LAYERS)
    assert found.power("self-attention, weights kept", "bytes") > 1.7
    assert found.power("self-attention", "bytes") < 1.4
    assert "Keeping the weights takes" in found.summary()[-1]
    again = costs((256, 1024), sizes=Sizes(width=16, neighbours=16, rounds=1), keep=tmp_path)
    assert again == found  # times too: they were read, not measured
    with pytest.raises(ConfigError, match="show no growth"):
        costs((64,))


def test_sentences_are_random_symbols_between_start_and_end():
    source, given = sentences(TINY, 50, 4, torch.Generator().manual_seed(0))
    assert torch.equal(source[:, :-1], given[:, 1:])
    assert set(source[:, -1].tolist()) == {2}
    assert set(given[:, 0].tolist()) == {1}
    assert set(source[:, :-1].flatten().tolist()) == {3, 4, 5}


def test_recall_counts_sentences_and_symbols(monkeypatch):
    def answers(model, source, constant):
        words = torch.nn.functional.pad(source, (0, constant))
        words[:5, 0] = 3 + (words[:5, 0] - 2) % 3  # half of the sentences have one wrong symbol of four
        words[9, 4] = 3  # and one does not end in time
        return _Answer(words[:, None])

    monkeypatch.setattr(sys.modules["regard.study.attention.bottleneck"], "greedy", answers)
    nothing: Any = torch.nn.Linear(1, 1)
    assert recall(nothing, TINY, 4) == (0.4, 1 - 5 / 40)


class _Answer:
    def __init__(self, words):
        self.words = words


def test_a_network_with_attention_learns_to_repeat():
    task = Repeating(symbols=3, longest=3, lengths=(3,), width=32, steps=150, batch=32, sentences=40)
    torch.manual_seed(0)
    fields = {"vocabulary": 6, "width": 32, "depth": 1, "dropout": 0.0}
    model = create_translator("transformer_nano", heads=4, mlp=64, norm="pre", **fields)
    before = recall(model, task, 3)[1]
    learn(model, task, seed=0)
    assert before < 0.6 < 0.9 < recall(model, task, 3)[1]


def test_points_and_sentences_are_arithmetic_on_recalls():
    shares = {"rnn_plain": {2: (0.9, 0.95), 3: (0.1, 0.3)}, "rnn_attention": {2: (0.9, 0.95), 3: (0.8, 0.9)}}
    recalls = [
        Recall(model, length, seed, exact + 0.02 * seed, symbols + 0.02 * seed)
        for model, by_length in shares.items()
        for length, (exact, symbols) in by_length.items()
        for seed in (1, 0)
    ]
    task = Repeating(lengths=(2, 3), longest=3, sentences=100)
    found = Bottleneck(task, recalls, {"rnn_plain": 10, "rnn_attention": 20}, {"rnn_plain": 1.0, "rnn_attention": 2.0})
    assert [(p.model, p.length, p.seeds) for p in found.points] == [
        ("rnn_plain", 2, 2), ("rnn_plain", 3, 2), ("rnn_attention", 2, 2), ("rnn_attention", 3, 2)
    ]  # fmt: skip
    assert found.points[1].exact == pytest.approx(repeated(np.array([0.1, 0.12]), 100))
    gap = found.gap("rnn_attention", "rnn_plain", 3)
    assert (gap.mean, gap.seeds) == (pytest.approx(0.6), 2)
    assert "rnn_plain: 91% of sentences of 2 symbols are right, 11% of 3 (symbols: 96% and 31%" in found.summary()[0]
    assert found.summary()[2] == "At 3 symbols rnn_attention has 60 ± 0 points more of them right than rnn_plain."
    assert "| rnn_plain | 10 | 1 | 91 (96) | 11 (31) |" in found.table()


def test_a_seed_decides_the_weights_and_nothing_else_does(monkeypatch):
    begun = []
    module = sys.modules["regard.study.attention.bottleneck"]
    monkeypatch.setattr(
        module, "learn", lambda model, task, seed: begun.append(model.embedding.weight.detach().clone())
    )
    for start in (1, 2):
        torch.manual_seed(start)
        before = torch.get_rng_state()
        bottleneck(("rnn_plain",), task=TINY, seeds=2)
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(begun[0], begun[2])
    assert torch.equal(begun[1], begun[3])
    assert not torch.equal(begun[0], begun[1])


def test_finished_networks_are_kept_and_the_rest_is_made(tmp_path, monkeypatch):
    module, learned = sys.modules["regard.study.attention.bottleneck"], []

    def learning(model, task, seed):
        learned.append((type(model).__name__, seed))
        if len(learned) == 3:
            raise KeyboardInterrupt
        learn(model, task, seed)

    monkeypatch.setattr(module, "learn", learning)
    arms = ("rnn_plain", "transformer")
    with pytest.raises(KeyboardInterrupt):
        bottleneck(arms, task=TINY, seeds=2, keep=tmp_path)
    found = bottleneck(arms, task=TINY, seeds=2, keep=tmp_path)
    assert learned == [("RNN", 0), ("Transformer", 0), ("RNN", 1), ("RNN", 1), ("Transformer", 1)]
    monkeypatch.setattr(module, "learn", learn)
    assert found.recalls == bottleneck(arms, task=TINY, seeds=2).recalls  # as if it had never been stopped
    bottleneck(arms, task=replace(TINY, steps=2), seeds=1, keep=tmp_path)
    assert json.loads((tmp_path / "rnn_plain-0.json").read_text())["settings"]["steps"] == 2
    with pytest.raises(ConfigError, match="did you mean rnn_plain"):
        bottleneck(("rnn_plane",), task=TINY)


@pytest.fixture
def small(monkeypatch):
    """The quick form, quicker."""
    monkeypatch.setattr("regard.study.attention.study.QUICK", TINY)
    monkeypatch.setattr("regard.study.attention.study.Sizes", lambda **more: Sizes(width=8, neighbours=8, rounds=1))


@pytest.mark.whole_runs
def test_the_study_writes_one_folder_and_adds_to_it(small, tmp_path):
    out = tmp_path / "study"
    attention_study(out, ("gradients", "scores"), quick=True, quiet=True)
    found = attention_study(out, ("bottleneck", "costs", "sinusoids"), quick=True, quiet=True)
    assert list(found.parts) == ["sinusoids", "costs", "bottleneck"]
    stored = json.loads((out / "study.json").read_text())["parts"]
    assert list(stored) == ["sinusoids", "gradients", "costs", "scores", "bottleneck"]
    text = (out / "study.md").read_text()
    for name, part in stored.items():
        assert f"]({name}.svg)" in text
        assert all(line in text for line in part["summary"])
        assert (out / f"{name}.png").stat().st_size > 5000
        with (out / f"{name}.csv").open() as file:
            assert len(list(csv.DictReader(file))) == len(part["rows"])
        svg = (out / f"{name}.svg").read_text()
        assert "currentColor" in svg
        assert "mathdefault" not in svg
    point = stored["bottleneck"]["points"][0]
    assert point["exact"]["low"] <= point["exact"]["value"] <= point["exact"]["high"]
    assert stored["costs"]["powers"]["convolutional"].keys() == {"seconds", "bytes"}


def test_what_cannot_be_studied_is_said_before_anything_is_written(tmp_path):
    requests: tuple[tuple[dict[str, Any], str], ...] = (
        ({"parts": ("gradient",)}, "did you mean gradients"),
        ({"parts": ()}, "no part is asked for"),
        ({"seeds": 0}, "must be at least 1"),
    )
    for more, says in requests:
        with pytest.raises(ConfigError, match=says):
            attention_study(tmp_path / "study", quiet=True, **more)
    assert not (tmp_path / "study").exists()
    attention_study(tmp_path / "study", ("sinusoids",), quick=True, quiet=True)
    with pytest.raises(RunError, match="its quick differ"):
        attention_study(tmp_path / "study", ("sinusoids",), quiet=True)
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(RunError, match="holds no study"):
        attention_study(tmp_path, ("sinusoids",), quiet=True)


def test_the_command_prints_what_was_found_and_refuses_what_it_does_not_know(tmp_path, monkeypatch, capsys):
    def cli(*words):
        monkeypatch.setattr(sys, "argv", ["regard", "study", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        return code, *capsys.readouterr()

    out = tmp_path / "study"
    code, said, err = cli("attention", "--quick", "--parts", "gradients,sinusoids", "--out", out)
    assert code == 0
    assert said.splitlines()[-1] == str(out / "study.md")
    assert "d_k, as the paper's footnote says" in said
    assert "Why 1/√d_k" in err
    for words, says in (
        (("attention", "digits"), "makes its own data"),
        (("attention", "--epochs", 3), "has no --epochs"),
        (("attention", "--models", "vit_nano"), "has no --models"),
        (("attention", "--parts", "cost"), "did you mean costs"),
        (("norm",), "needs data"),
        (("norm", "digits", "--quick"), "--quick is for"),
    ):
        code, _, err = cli(*words, "--out", tmp_path / "other")
        assert (code, says in err) == (2, True), err
    assert not (tmp_path / "other").exists()
