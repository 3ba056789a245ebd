"""Products of eight bits: against whole numbers multiplied by numpy, and what is lost by rounding."""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from regard.networks.decoding import beam_search
from regard.networks.products import in_int8
from regard.nn import Int8Linear
from regard.nn import int8 as module
from tests.networks.test_decoding import KINDS
from tests.networks.test_transformer import sentences, small


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("shape", "out"), [((5, 24), 40), ((2, 3, 7), 1), ((1, 512), 300)])
def test_against_whole_numbers(shape, out, bias):
    torch.manual_seed(0)
    layer, x = nn.Linear(shape[-1], out, bias=bias), 3 * torch.randn(shape)
    weight, rows = layer.weight.detach().numpy().astype(np.float64), x.reshape(-1, shape[-1]).numpy().astype(np.float64)
    most = module.most_of_weights(), 127
    scales = [np.abs(m).max(1, keepdims=True) / top for m, top in zip((weight, rows), most, strict=True)]
    whole = [np.rint(m / s).astype(np.int64) for m, s in zip((weight, rows), scales, strict=True)]
    expected = (whole[1] @ whole[0].T) * scales[1] * scales[0].T + (layer.bias.detach().numpy() if bias else 0.0)
    found = Int8Linear(layer.weight, layer.bias)(x)
    assert found.shape == (*shape[:-1], out)
    np.testing.assert_allclose(found.reshape(-1, out).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_what_is_lost_is_half_a_step_of_each_number_at_most():
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 50), torch.randn(20, 64)
    found, exact = Int8Linear(layer.weight, layer.bias)(x), layer(x)
    steps = [x.abs().amax(1) / 127 / 2, layer.weight.abs().amax(1) / module.most_of_weights() / 2]
    most = steps[0][:, None] * layer.weight.abs().sum(1) + steps[1] * x.abs().sum(1, keepdim=True)
    most += 64 * steps[0][:, None] * steps[1]
    assert (found - exact).abs().max() > 1e-4, "nothing was rounded"
    assert ((found - exact).abs() <= most + 1e-5).all()


def test_a_row_of_zeros_stays_one_and_no_row_depends_on_others():
    torch.manual_seed(0)
    layer, x = Int8Linear(torch.randn(30, 16), None), torch.randn(4, 16)
    x[1] = 0
    together = layer(x)
    assert not together[1].any()
    for n in range(4):
        assert torch.equal(layer(x[n]), together[n])


def test_how_many_sums_are_made_at_a_time_changes_nothing(monkeypatch):
    torch.manual_seed(0)
    layer, x = Int8Linear(torch.randn(300, 16), torch.randn(300)), torch.randn(9, 16)
    whole = layer(x)
    monkeypatch.setattr(module, "AT_ONCE", 1)
    assert torch.equal(layer(x), whole)


@pytest.mark.parametrize("make", [*KINDS.values(), small], ids=[*KINDS, "shared"])
def test_a_translator_scores_words_nearly_as_before(make):
    model, source = make(), sentences(6, 3, 1, 8)
    target = sentences(7, 7, 7, 7)
    with torch.no_grad():
        before = model(source, target).logits
        found = in_int8(model)(source, target).logits
    assert sum(isinstance(m, Int8Linear) for m in model.modules()) > 1
    error = (found - before).square().mean().sqrt() / before.std()
    assert 1e-5 < error < 0.05
    found = beam_search(model, source, beams=3, constant=10)
    uncached = beam_search(model, source, beams=3, constant=10, cached=False)
    assert torch.equal(found.words, uncached.words)
    assert found.words.shape == (4, 1, 18)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="about CPUs of Intel's kind")
@pytest.mark.parametrize("kind", ["AVX2", "AVX512_CORE"])
def test_sums_are_right_on_cpus_that_add_in_sixteen_bits(kind):
    """As oneDNN would work there; this CPU may do better."""
    code = (
        "import torch; from regard.nn.int8 import Int8Linear, in_eight_bits, most_of_weights\n"
        "torch.manual_seed(0); layer, x = Int8Linear(torch.rand(70, 512) + 0.5, None), torch.rand(40, 512) + 0.5\n"
        "rows, scales = in_eight_bits(x); whole = rows.double() @ layer.rounded.double().mT\n"
        "print(most_of_weights(), float((whole * scales * layer.scales - layer(x)).abs().max() / whole.max()))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "ONEDNN_MAX_CPU_ISA": kind}, capture_output=True, text=True
    )
    most, error = ran.stdout.split()
    assert (int(most), float(error)) == (63, pytest.approx(0, abs=1e-6)), ran.stderr
