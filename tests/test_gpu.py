"""What only a CUDA device can show. Run by hand: python -m pytest -m gpu tests/test_gpu.py"""

import gc
import signal
import threading
from typing import Any

import pytest
import torch

import regard
from regard.data import Augmenter
from regard.data.batch import Batch
from regard.explain import METHODS, Case, inspect_model, visualise, with_test_time_registers
from regard.explain.attention_store import record_attention
from regard.explain.registers import RegisterNeuron
from regard.image_groups import Augment
from regard.nn import attention
from regard.nn.windows import WindowAttention, Windows, relative_rows, shift_mask
from regard.tasks.classification.loss import CrossEntropy
from regard.tasks.classification.settings import Config
from regard.tasks.survival.loss import SurvivalLoss
from regard.tasks.survival.settings import Config as SurvivalConfig
from regard.tasks.translation.loss import NextWord
from regard.tasks.translation.settings import Config as TextConfig
from regard.training import Average, Training
from regard.training.step import Step
from regard.weights import Run
from tests.conftest import make_folder, write_pairs
from tests.data.augmented import augmented
from tests.nn.test_attention import Watch, reference

pytestmark = pytest.mark.gpu


def images(x: torch.Tensor, probabilities: torch.Tensor) -> Batch:
    return Batch({"image": x.cuda()}, {"probabilities": probabilities.cuda()})


def test_a_compiled_bf16_model_runs_fused_and_its_capture_is_exact():
    torch.manual_seed(0)
    model = regard.create("vit_s16", classes=10, depth=4).cuda().eval()
    compiled: Any = torch.compile(model)
    x = torch.randn(4, 3, 224, 224, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        for _ in range(3):
            compiled(x)
        with Watch() as watch:
            plain = model(x).logits
        with regard.capture(compiled) as tape:
            inside = compiled(x).logits
    assert any("flash" in name or "cudnn" in name or "efficient" in name for name in watch.operators)
    assert not [s for s in watch.shapes if s[-2:] == (197, 197)]
    assert len(tape) == 4
    assert tape._calls[0].q.dtype == torch.bfloat16
    exact = reference(tape._calls[2].q.cpu(), tape._calls[2].k.cpu())
    torch.testing.assert_close(tape.attention(2, 3).cpu().double(), exact[:, 3], atol=1e-6, rtol=0)
    torch.testing.assert_close(plain, inside)


def test_training_uses_bf16_and_compiles_by_itself(tmp_path):
    make_folder(tmp_path / "data", per_class=40, side=96)
    run = regard.train(
        tmp_path / "data", model="vit_ti16", size=64, depth=2, epochs=6, batch_size=16, policy="trivial", erase=0.2,
        mixup=0.2, cutmix=0.2, drop_path=0.1, low_res=0.3, out=tmp_path / "run", quiet=True,
    )  # fmt: skip
    machine = run.read_json("config.json")["settings"]["machine"]
    assert machine["device"] == {"value": "cuda", "origin": "auto"}
    assert machine["precision"] == {"value": "bf16", "origin": "auto"}
    assert machine["compile"] == {"value": True, "origin": "auto"}
    assert run.read_json("summary.json")["figures"]["accuracy"]["value"] > 0.9
    on_cpu = regard.load(run.path).predict(tmp_path / "data" / "red" / "00.png")
    on_gpu = regard.load(run.path, device="cuda").predict(tmp_path / "data" / "red" / "00.png")
    assert on_cpu.label == on_gpu.label == "red"
    assert on_cpu.confidence == pytest.approx(on_gpu.confidence, abs=1e-3)
    assert regard.load(run.path, device="cuda").explain(tmp_path / "data" / "red" / "00.png").map.device.type == "cpu"


def test_checkpointed_training_runs_uncompiled(tmp_path):
    make_folder(tmp_path / "data", per_class=20, side=96)
    run = regard.train(
        tmp_path / "data", model="vit_ti16", size=64, depth=2, epochs=2, checkpointing=True, drop_path=0.1, explain=0,
        out=tmp_path / "run", quiet=True,
    )  # fmt: skip
    machine = run.read_json("config.json")["settings"]["machine"]
    assert machine["compile"] == {"value": False, "origin": "auto"}


def test_augmentation_on_the_device_equals_that_on_the_cpu():
    images = torch.randint(0, 255, (16, 3, 32, 32), dtype=torch.uint8)
    labels, numbers = torch.arange(16) % 4, torch.arange(16)
    run = Augmenter(Augment(crop="shift", rotate=10, flip=True, erase=0.5, mixup=0.4), 0, (0.5,) * 3, (0.25,) * 3, 4)
    here, soft = augmented(run, images, labels, numbers, 1, 2)
    there, soft_there = augmented(run, images.cuda(), labels.cuda(), numbers, 1, 2)
    torch.testing.assert_close(there.cpu(), here, atol=2e-3, rtol=0)
    torch.testing.assert_close(soft_there.cpu(), soft)


@pytest.mark.parametrize("policy", ["rand", "trivial", "three"])
def test_augmenting_never_waits_for_the_gpu(policy):
    """One wait a batch, and a GPU stands still while Python launches the next hundred small kernels."""
    config = Augment(crop="shift", flip=True, policy=policy, erase=0.5, mixup=0.4, cutmix=1.0)
    run = Augmenter(config, 0, (0.5,) * 3, (0.25,) * 3, 4)
    images, labels = torch.randint(0, 255, (64, 3, 32, 32), dtype=torch.uint8).cuda(), (torch.arange(64) % 4).cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(4):
            x = run.images(images, torch.arange(64), 1)
            run.mix(x, run.targets(labels, torch.arange(64), 1), 1, step)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_network_on_the_gpu_is_inspected_and_excited():
    model, x = regard.create("vit_nano", classes=3, size=32), torch.rand(3, 3, 32, 32)
    on_cpu = inspect_model(model, x)
    on_gpu = inspect_model(model.cuda(), x, registers=1)
    torch.testing.assert_close(on_gpu.distance, on_cpu.distance, atol=1e-3, rtol=0)
    assert on_gpu.norms is not None
    assert on_cpu.norms is not None
    torch.testing.assert_close(on_gpu.norms.norms, on_cpu.norms.norms, atol=1e-2, rtol=1e-3)
    assert with_test_time_registers(model, [RegisterNeuron(1, 2, 1.0)])(x.cuda()).logits.device.type == "cuda"
    assert visualise(model, (0.5,) * 3, (0.2,) * 3, layer=1, head=2, steps=5).picture.device.type == "cpu"
    assert record_attention(model, x[:1].cuda(), x[0])["heads"] == [4, 4, 4, 4]


@pytest.mark.parametrize("name", ["vit_nano", "swin_nano"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_on_the_gpu_equals_itself_on_the_cpu(method, name):
    torch.manual_seed(0)
    model = regard.create(name, classes=3, size=24)  # Swin's second stage is padded
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)
    x = torch.randn(1, 3, 24, 24)
    on_cpu = METHODS[method](Case(model, x, lambda z: model(z).logits[:, 1])).values
    model.cuda()
    on_gpu = METHODS[method](Case(model, x.cuda(), lambda z: model(z).logits[:, 1])).values
    torch.testing.assert_close(on_gpu, on_cpu, atol=1e-3 * on_cpu.abs().max().item(), rtol=0)


KINDS = ("learned", "sinusoidal", "axial", "conditional", "none")


@pytest.mark.parametrize("fields", [*({"positions": kind} for kind in KINDS), {"rope": True, "pool": "mean"}])
def test_a_recorded_step_moves_the_weights_as_an_ordinary_one_does(fields):
    """CUDA graphs against plain steps: same batches (smaller ones first, once fewer), same rates, nothing random."""
    sides = [12] * 6 + [16] * 8
    batches = [images(torch.randn(8, 3, side, side), torch.rand(8, 4)) for side in sides]
    batches[11] = batches[11].map(lambda tensor: tensor[:3])
    ends = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = regard.create("vit_nano", classes=4, size=16, **fields).cuda()
        config = Config.of(compile=compiled, precision="fp32", optimizer="muon", weight_decay=0.1)
        step, average = Step(model, CrossEntropy(), config, torch.device("cuda"), rows=8), Average(model, 0.9)
        losses = []
        for number, batch in enumerate(batches):
            step.set_lr(1e-3 * (number + 1))
            losses.append(float(step.train_step([batch])[0]))
            average.update()
        assert len(step.replay.recorded) == 2 * compiled
        average.swap()  # so that the average is compared, which has followed every step
        ends.append((torch.tensor(losses), torch.cat([p.detach().flatten() for p in model.parameters()])))
    torch.testing.assert_close(ends[1][0], ends[0][0], atol=1e-3, rtol=1e-3)
    assert (ends[1][1] - ends[0][1]).norm() < 0.02 * ends[0][1].norm()


def test_a_recorded_step_of_coxs_loss_is_an_ordinary_one():
    losses = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = regard.create("vit_nano", classes=1, size=16, depth=1).cuda()
        config = SurvivalConfig.of(compile=compiled, precision="fp32")
        step = Step(model, SurvivalLoss(), config, torch.device("cuda"), rows=8)
        rank, event = torch.randint(0, 5, (10, 8)).float().cuda(), torch.randint(0, 2, (10, 8)).float().cuda()
        x = torch.randn(10, 8, 3, 16, 16).cuda()
        batches = [Batch({"image": x[n]}, {"rank": rank[n], "event": event[n]}) for n in range(10)]
        losses.append([float(step.train_step([batch])[0]) for batch in batches])
        assert len(step.replay.recorded) == compiled
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_a_thread_may_pin_memory_while_a_step_is_recorded():
    """As a loader's does."""
    model, ended = regard.create("vit_nano", classes=4, size=16, depth=2).cuda(), threading.Event()
    step = Step(model, CrossEntropy(), Config.of(compile=True, precision="fp32"), torch.device("cuda"), rows=8)
    batch = images(torch.randn(8, 3, 16, 16), torch.eye(4).repeat(2, 1))

    def pin():
        size = 1
        while not ended.is_set():
            size = size % 100 + 1  # sizes that are new at first, and have to be allocated
            torch.ones(1000 * size).pin_memory().to("cuda", non_blocking=True)

    for _ in range(3):
        step.train_step([batch])
    thread = threading.Thread(target=pin)
    thread.start()
    try:
        losses = [float(step.train_step([batch])[0]) for _ in range(5)]
    finally:
        ended.set()
        thread.join()
    assert len(step.replay.recorded) == 1
    assert losses[-1] < losses[0]


def test_a_replayed_step_drops_other_units_each_time():
    torch.manual_seed(0)
    model = regard.create("vit_nano", classes=4, size=16, dropout=0.5).cuda()
    torch.nn.init.normal_(model.head.weight)  # it starts at zero, where nothing that is dropped shows
    config = Config.of(compile=True, precision="fp32")
    step = Step(model, CrossEntropy(), config, torch.device("cuda"), rows=8)
    batch = images(torch.randn(8, 3, 16, 16), torch.rand(8, 4))
    losses = []
    for number in (0, 1, 2, 3, 4, 5, 5):
        step.set_lr(0.0)
        torch.manual_seed(number)
        losses.append(float(step.train_step([batch])[0]))
    assert len({round(loss, 6) for loss in losses[3:6]}) == 3
    assert losses[5] == losses[6]


@pytest.mark.parametrize("settings", [{}, {"layer_decay": 0.75}, {"freeze": 1}, {"lora": 4}, {"optimizer": "muon"}])
def test_transfer_is_recorded_and_replayed(tmp_path, settings):
    """SGD with a rate in a tensor, groups of their own rates, frozen blocks and low-rank changes in a CUDA graph."""
    make_folder(tmp_path / "data", per_class=40, side=96)
    regard.save(regard.create("vit_ti16", classes=3, size=64, depth=3), tmp_path / "own.safetensors")
    run = regard.train(
        tmp_path / "data", weights=tmp_path / "own.safetensors", epochs=8, batch_size=8, explain=0,
        recipe="paper_finetune", out=tmp_path / "run", quiet=True, **settings,
    )  # fmt: skip
    rows = run.read_rows("metrics.csv")
    assert float(rows[-1]["train_loss"]) < 0.5 * float(rows[0]["train_loss"])


def test_a_run_stopped_on_the_gpu_resumes_to_the_same_end(tmp_path, monkeypatch):
    """Recorded steps, stopped by SIGTERM in the third epoch. Kernels add in any order there, so nearly the same."""
    make_folder(tmp_path / "data", per_class=40, side=48)
    settings = {
        "model": "vit_nano",
        "size": 32,
        "epochs": 5,
        "batch_size": 8,
        "explain": 0,
        "mixup": 0.2,
        "quiet": True,
    }
    whole = regard.train(tmp_path / "data", out=tmp_path / "whole", **settings)
    pause = Training._save_if_due

    def asked_to_stop(training):
        if training.history.updates == 17:
            training.stop.wanted = signal.SIGTERM
        pause(training)

    monkeypatch.setattr(Training, "_save_if_due", asked_to_stop)
    with pytest.raises(SystemExit):
        regard.train(tmp_path / "data", out=tmp_path / "stopped", **settings)
    monkeypatch.undo()
    assert len(Run(tmp_path / "stopped").read_rows("metrics.csv")) == 2
    again = regard.resume(tmp_path / "stopped", quiet=True)
    losses = [[float(row["train_loss"]) for row in run.read_rows("metrics.csv")] for run in (whole, again)]
    assert len(losses[1]) == 5
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


@pytest.fixture
def little_memory():
    """A GPU of 1.5 GB, beside what earlier tests still hold."""
    gc.collect()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((1.5e9 + held) / torch.cuda.mem_get_info()[1])
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("compiled", [False, True])
def test_memory_that_runs_out_gives_smaller_pieces(tmp_path, capsys, little_memory, compiled):
    make_folder(tmp_path / "data", per_class=100, side=96)
    regard.train(
        tmp_path / "data", model="vit_ti16", size=224, batch_size=128, epochs=2, compile=compiled, explain=0,
        out=tmp_path / "run",
    )  # fmt: skip
    said = capsys.readouterr()
    assert "out of memory: each step is now made of pieces of" in said.out + said.err


def test_the_largest_batch_is_found(tmp_path, little_memory):
    make_folder(tmp_path / "data", per_class=100, side=96)
    run = regard.train(
        tmp_path / "data", model="vit_ti16", size=224, batch_size="auto", epochs=1, explain=0, quiet=True,
        out=tmp_path / "run",
    )  # fmt: skip
    assert 8 <= run.read_json("config.json")["settings"]["data"]["batch_size"]["value"] < 128


@pytest.mark.parametrize("model", ["transformer_nano", "rnn_nano"])
def test_translation_is_learnt_on_the_gpu_in_a_few_recorded_shapes(tmp_path, model):
    data = write_pairs(tmp_path / "data", 2400)
    run = regard.train(
        data, model=model, width=64, vocabulary=300, batch_tokens=512, epochs=25, lr=5e-3, dropout=0.0,
        label_smoothing=0.0, out=tmp_path / "run", quiet=True,
    )  # fmt: skip
    machine = run.read_json("config.json")["settings"]["machine"]
    assert machine["compile"]["value"] == (model == "transformer_nano")
    assert run.read_json("summary.json")["figures"]["exact_match"]["value"] > 0.8
    on_cpu, on_gpu = (regard.load(run.path, device=device).predict("one two three") for device in ("cpu", "cuda"))
    assert on_cpu.text == on_gpu.text
    assert on_cpu.score == pytest.approx(on_gpu.score, abs=1e-2)


def test_recorded_steps_of_several_shapes_move_the_weights_as_ordinary_ones_do():
    """One CUDA graph a shape, in one pool, taking turns; nothing random."""
    shapes = [(8, 5, 7), (4, 9, 8), (8, 5, 7), (4, 9, 8)] * 6
    torch.manual_seed(1)
    batches = [
        Batch({"source": torch.randint(3, 50, (b, s)).cuda()}, {"target": torch.randint(3, 50, (b, t)).cuda()})
        for b, s, t in shapes
    ]
    ends = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = regard.create("transformer_nano", vocabulary=50, width=32, depth=2, heads=2, mlp=64, dropout=0.0).cuda()
        config = TextConfig.of(compile=compiled, precision="fp32", weight_decay=0.1)
        step, losses = Step(model, NextWord(0, 0.1), config, torch.device("cuda")), []
        for number, batch in enumerate(batches):
            step.set_lr(1e-4 * (number + 1))
            losses.append(float(step.train_step([batch])[0]))
        assert len(step.replay.recorded) == 2 * compiled
        ends.append((torch.tensor(losses), torch.cat([p.detach().flatten() for p in model.parameters()])))
    torch.testing.assert_close(ends[1][0], ends[0][0], atol=1e-3, rtol=1e-3)
    assert (ends[1][1] - ends[0][1]).norm() < 0.02 * ends[0][1].norm()


# (grid, window, shift, heads, channels): the paper's; padded; a rectangle; no shift along an axis; other head widths.
CUTS = [
    ((14, 14), (7, 7), (3, 3), 3, 96),
    ((10, 17), (7, 7), (3, 3), 2, 32),
    ((6, 24), (3, 12), (1, 6), 1, 64),
    ((7, 21), (7, 7), (0, 3), 2, 64),
    ((8, 12), (4, 4), (2, 2), 2, 64),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("grid", "window", "shift", "heads", "width"), CUTS, ids=str)
def test_the_kernel_for_windows_is_as_exact_as_the_path_without_it(grid, window, shift, heads, width, dtype):
    """Output and all gradients against double precision: no more than twice the error of torch's own operators."""
    module = WindowAttention(width, heads, window).cuda()
    torch.nn.init.normal_(module.positions.table)
    mask = shift_mask(grid, window, shift, torch.device("cuda"))
    windows = Windows(window, shift, relative_rows(window, window, torch.device("cuda")), mask)
    x, weights = (torch.randn(3, *grid, width, device="cuda") for _ in range(2))

    def results(kind: torch.dtype) -> list[torch.Tensor]:
        given = x.to(kind).requires_grad_()
        with torch.autocast("cuda", dtype, enabled=kind == torch.float32), Watch() as watch:
            out = module(given, windows)
        fused.append(any("window_attention" in name for name in watch.operators))
        return [out, *torch.autograd.grad((out * weights).sum(), [given, *module.parameters()])]

    fused: list[bool] = []
    own = results(torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "MOST_FUSED", 0)
        other = results(torch.float32)
        module.double()
        exact = results(torch.float64)
    assert fused == [True, False, False]
    for a, b, e in zip(own, other, exact, strict=True):
        assert (a - e).abs().max() <= 2 * (b - e).abs().max() + 1e-4 * e.abs().max()


def test_a_compiled_swin_uses_the_kernel_in_one_graph_and_its_capture_is_exact(monkeypatch):
    from regard.nn import window_kernel

    launch, launched = window_kernel._launch, list[int]()
    monkeypatch.setattr(window_kernel, "_launch", lambda *a: (launched.append(len(ends)), launch(*a)))
    model = regard.create("swin_nano", classes=5, size=32).cuda()
    torch.nn.init.normal_(model.head.weight)
    compiled: Any = torch.compile(model, fullgraph=True, dynamic=False)
    x, ends = torch.randn(4, 3, 32, 32, device="cuda"), []
    for run in (model, compiled):
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            logits = run(x).logits.float()
        logits.square().sum().backward()
        ends.append((logits.detach(), model.stages[0].blocks[1].attention.positions.table.grad.clone()))
    assert launched.count(0) == launched.count(1) > 0
    for own, other in zip(*ends, strict=True):
        assert (own - other).abs().max() < 0.03 * own.abs().max()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16), regard.capture(compiled) as tape, Watch() as watch:
        inside = compiled(x).logits
    assert not any("window_attention" in name for name in watch.operators)
    assert (inside - ends[0][0]).abs().max() < 0.03 * inside.abs().max()
    call = tape._calls[0]
    assert call.scoring.bias is not None
    exact = reference(call.q.cpu(), call.k.cpu(), bias=call.scoring.bias.cpu())
    torch.testing.assert_close(tape.attention(0, 1).cpu().double(), exact[:, 1], atol=1e-6, rtol=0)
