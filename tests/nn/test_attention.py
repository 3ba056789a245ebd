"""The one attention: fused and exact are the same thing, and asking costs only queries and keys."""

import copy
import pickle
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import regard
from regard.errors import RegardError
from regard.nn import MultiHeadAttention, attend, attention, attention_weights, capture


def reference(q: Tensor, k: Tensor, scale: float | None = None, allowed: Tensor | None = None, bias=None) -> Tensor:
    """softmax(q kᵀ) in double precision, written out."""
    scores = torch.einsum("bhqd,bhkd->bhqk", q.double(), k.double()) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias.double()
    if allowed is not None:
        scores = torch.where(allowed, scores, torch.tensor(float("-inf"), dtype=torch.float64))
    top = scores.exp()
    return top / top.sum(-1, keepdim=True)


class One(nn.Module):
    """A model that attends once, with whatever arguments."""

    def __init__(self, **arguments):
        super().__init__()
        self.arguments = arguments

    def forward(self, q, k, v):
        return attend(q, k, v, **self.arguments)


Q, K = 5, 7
MASK = torch.rand(2, 1, Q, K, generator=torch.Generator().manual_seed(1)) > 0.3
MASK[..., 0] = True
BIAS = torch.randn(1, 3, Q, K, generator=torch.Generator().manual_seed(2))
PAST = torch.ones(Q, K).tril().bool()
CASES = {
    "plain": ({}, {}),
    "unscaled": ({"scale": 1.0}, {"scale": 1.0}),
    "masked": ({"mask": MASK}, {"allowed": MASK}),
    "biased": ({"bias": BIAS}, {"bias": BIAS}),
    "masked and biased": ({"mask": MASK, "bias": BIAS}, {"allowed": MASK, "bias": BIAS}),
    "causal": ({"causal": True}, {"allowed": PAST}),
    "causal and masked": ({"causal": True, "mask": MASK}, {"allowed": PAST & MASK}),
    "causal and biased": ({"causal": True, "bias": BIAS}, {"allowed": PAST, "bias": BIAS}),
}


def test_fewer_masks_and_biases_than_the_batch_repeat():
    """As the windows of each image do."""
    q, k, v = torch.randn(6, 3, Q, 8), torch.randn(6, 3, K, 8), torch.randn(6, 3, K, 4)
    every, model = MASK.repeat(3, 1, 1, 1), One(mask=MASK, bias=BIAS)
    with capture(model) as tape:
        torch.testing.assert_close(model(q, k, v), attend(q, k, v, mask=every, bias=BIAS))
    exact = reference(q, k, allowed=every, bias=BIAS)
    for head in range(3):
        torch.testing.assert_close(tape.attention(0, head), exact[:, head].float(), atol=1e-6, rtol=0)
    torch.testing.assert_close(attention_weights(q, k, mask=MASK), attention_weights(q, k, mask=every))


@pytest.mark.parametrize("case", CASES)
def test_attend_capture_and_weights_equal_a_float64_softmax(case):
    torch.manual_seed(0)
    arguments, expected = CASES[case]
    q, k, v = torch.randn(2, 3, Q, 8), torch.randn(2, 3, K, 8), torch.randn(2, 3, K, 4)
    exact = reference(q, k, **expected)
    model = One(**arguments)
    with capture(model) as tape:
        out = model(q, k, v)
    torch.testing.assert_close(out, (exact @ v.double()).float(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(attention_weights(q, k, **arguments), exact.float(), atol=1e-6, rtol=1e-5)
    for head in range(3):
        torch.testing.assert_close(tape.attention(0, head), exact[:, head].float(), atol=1e-6, rtol=0)
    torch.testing.assert_close(tape.attention(0), exact.mean(1).float(), atol=1e-6, rtol=0)
    torch.testing.assert_close(tape.attention(0).sum(-1), torch.ones(2, Q), atol=1e-6, rtol=0)


def test_a_query_that_may_look_nowhere_gives_zeros_everywhere():
    q, k, v = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    model = One(mask=mask)
    with capture(model) as tape:
        out = model(q, k, v)
    assert out[0, 0, 1].abs().max() == 0
    assert attention_weights(q, k, mask=mask)[0, 0, 1].abs().max() == 0
    assert tape.attention(0, 0)[0, 1].abs().max() == 0


def test_large_scores_stay_exact():
    q, k = 30 * torch.randn(1, 2, 64, 16), 30 * torch.randn(1, 2, 64, 16)
    model = One()
    with capture(model) as tape:
        model(q, k, k)
    exact = torch.softmax(q.double() @ k.double().transpose(-2, -1) / 4, -1)
    torch.testing.assert_close(tape.attention(0, 1).double(), exact[:, 1], atol=1e-6, rtol=0)


def nano(**fields):
    torch.manual_seed(0)
    return regard.create("vit_nano", classes=4, size=16, **fields).eval()


@pytest.mark.parametrize("way", ["torch.compile", "module.compile"])
def test_a_compiled_model_that_ran_before_still_fills_the_tape(way):
    model, x = nano(), torch.randn(2, 3, 16, 16)
    plain = nano()
    compiled: Any = torch.compile(model, dynamic=False, backend="eager") if way == "torch.compile" else model
    if way == "module.compile":
        model.compile(backend="eager")
    with torch.no_grad():
        compiled(x)
        with capture(compiled) as tape:
            inside = compiled(x)
        with capture(plain) as expected:
            plain(x)
        torch._dynamo.utils.counters.clear()
        compiled(x)
    assert not torch._dynamo.utils.counters["stats"], "capture made the model compile again"
    assert len(tape) == 4
    assert tape.names == [f"blocks.{n}.attention" for n in range(4)]
    torch.testing.assert_close(tape.attention(2, 1), expected.attention(2, 1))
    torch.testing.assert_close(inside.logits, plain(x).logits)


def test_capturing_the_inner_model_while_the_compiled_one_runs():
    model, x = nano(), torch.randn(1, 3, 16, 16)
    compiled: Any = torch.compile(model, dynamic=False, backend="eager")
    compiled(x)
    with capture(model) as tape:
        compiled(x)
    assert len(tape) == 4


def test_fused_and_captured_outputs_are_equal():
    model, x = nano(), torch.randn(2, 3, 16, 16)
    outside = model(x).logits
    with capture(model):
        inside = model(x).logits
    assert torch.equal(outside, inside)


class Watch(TorchDispatchMode):
    """Sees every operator, every output's shape, and how many bytes of new storage live at once."""

    def __init__(self):
        super().__init__()
        self.operators: set[str] = set()
        self.shapes: set[tuple[int, ...]] = set()
        self.live = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.operators.add(func._schema.name)
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, Tensor):
                self.shapes.add(tuple(t.shape))
                self._count(t.untyped_storage())
        return out

    def _count(self, storage):
        address = storage.data_ptr()
        if address in self.known or not storage.nbytes():
            return
        size = storage.nbytes()
        self.known.add(address)
        self.live += size
        self.peak = max(self.peak, self.live)

        def gone():
            self.known.discard(address)
            self.live -= size

        weakref.finalize(storage, gone)


def test_outside_capture_only_the_fused_kernel_runs_and_no_token_by_token_tensor_exists():
    model, x = nano(patch=1), torch.randn(1, 3, 16, 16)  # 257 tokens
    with torch.no_grad(), Watch() as watch:
        model(x)
    assert any("scaled_dot_product" in name and "math" not in name for name in watch.operators)
    assert not any("softmax" in name for name in watch.operators)
    assert not [s for s in watch.shapes if s[-2:] == (257, 257)]


def test_the_watch_would_see_materialised_attention():
    q = torch.randn(1, 2, 257, 8)
    with Watch() as watch:
        attention_weights(q, q)
    assert any("softmax" in name for name in watch.operators)
    assert [s for s in watch.shapes if s[-2:] == (257, 257)]


def test_capture_keeps_queries_and_keys_only_and_its_peak_memory_is_bounded():
    model, x = nano(patch=1), torch.randn(2, 3, 16, 16)
    tokens, width, depth, heads, floats = 257, 64, 4, 4, 4
    with torch.no_grad():
        with Watch() as plain:
            model(x)
        with Watch() as watch, capture(model) as tape:
            model(x)
    kept = depth * 2 * 2 * tokens * width * floats
    assert tape.nbytes == kept
    assert sum(c.q.untyped_storage().nbytes() + c.k.untyped_storage().nbytes() for c in tape._calls) == kept
    assert watch.peak <= plain.peak + kept
    assert not [s for s in watch.shapes if s[-2:] == (tokens, tokens)]
    with Watch() as asked:
        one = tape.attention(1, 3)
    assert one.shape == (2, tokens, tokens)
    matrix = 2 * tokens * tokens * 8  # one head, the whole batch, in double precision
    assert asked.peak <= 4 * matrix, "more than one head's matrix was made at a time"
    with Watch() as asked:
        tape.attention(1)
    assert asked.peak <= 5 * matrix < heads * 4 * matrix


def test_the_tape_holds_the_latest_pass_only():
    model = nano()
    with capture(model) as tape:
        model(torch.randn(3, 3, 16, 16))
        model(torch.randn(1, 3, 16, 16))
    assert len(tape) == 4
    assert tape.attention(0, 0).shape == (1, 17, 17)


def test_other_models_and_other_threads_do_not_reach_the_tape():
    model, other, x = nano(), nano(), torch.randn(1, 3, 16, 16)
    with capture(model) as tape:
        other(x)
        assert len(tape) == 0
        thread = threading.Thread(target=model, args=(x,))
        thread.start()
        thread.join()
        assert len(tape) == 0
        model(x)
    assert len(tape) == 4


def test_checkpointed_activations_are_recorded_once():
    model = nano().train()
    model.checkpointing = True
    nn.init.normal_(model.head.weight)
    with capture(model) as tape:
        model(torch.randn(1, 3, 16, 16)).logits.sum().backward()
    assert len(tape) == 4


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
def test_a_checkpoint_around_the_model_is_recorded_once(reentrant, gradients):
    """Recomputed in the backward pass, in part or as a whole, it leaves the same weights and gradients."""
    model, x = nano(), torch.randn(1, 3, 16, 16, requires_grad=True)
    nn.init.normal_(model.head.weight)
    with capture(model, gradients=gradients) as plain:
        model(x).logits.sum().backward()
    with capture(model, gradients=gradients) as tape:
        checkpoint(lambda z: model(z).logits, x, use_reentrant=reentrant).sum().backward()
    assert tape.names == plain.names
    for layer in range(4):
        torch.testing.assert_close(tape.attention(layer), plain.attention(layer))
        if gradients:
            torch.testing.assert_close(tape.gradient(layer), plain.gradient(layer))


def test_a_copy_made_inside_does_not_reach_the_tape_and_keeps_no_hooks(tmp_path):
    model, x = nano(), torch.randn(1, 3, 16, 16)
    with capture(model) as tape:
        model(x)
        twin = copy.deepcopy(model)
        twin(torch.randn(5, 3, 16, 16))
        assert tape.attention(0).shape[0] == 1
        pickle.dumps(twin)
        torch.save(model, tmp_path / "model.pt")
    with capture(twin) as own:
        twin(x)
    torch.testing.assert_close(own.attention(3), tape.attention(3))


def test_a_model_of_another_library_is_called_that():
    theirs = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with capture(theirs) as tape:
        theirs(torch.randn(1, 3, 8))
    with pytest.raises(RegardError, match=r"only regard\.nn's attention modules(.|\n)*regard\.create\(weights=FILE\)"):
        tape.attention(0)


def test_an_empty_tape_says_so():
    with capture(nano()) as tape:
        pass
    with pytest.raises(RegardError, match="tape is empty"):
        tape.attention(0, 0)


def test_wrong_layers_and_heads_are_named():
    model = nano()
    with capture(model) as tape:
        model(torch.randn(1, 3, 16, 16))
    with pytest.raises(RegardError, match="layers 0 to 3"):
        tape.attention(4, 0)
    with pytest.raises(RegardError, match="4 heads"):
        tape.attention(0, 4)


@pytest.mark.parametrize("bias", [True, False])
def test_multi_head_attention_against_torch(bias):
    torch.manual_seed(0)
    ours, theirs = MultiHeadAttention(24, 4, bias=bias), nn.MultiheadAttention(24, 4, bias=bias, batch_first=True)
    theirs.load_state_dict(
        {"in_proj_weight": ours.qkv.weight, "out_proj.weight": ours.out.weight}
        | ({"in_proj_bias": ours.qkv.bias, "out_proj.bias": ours.out.bias} if bias else {})
    )
    q, k, v = torch.randn(2, 5, 24), torch.randn(2, 7, 24), torch.randn(2, 7, 24)
    with capture(ours) as tape:
        ours(q, k, v)
    out, weights = theirs(q, k, v, average_attn_weights=False)
    torch.testing.assert_close(ours(q, k, v), out, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ours(q), theirs(q, q, q)[0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ours(q, k), theirs(q, k, k)[0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(tape.attention(0, 2), weights[:, 2], atol=1e-6, rtol=1e-5)


def test_key_width_may_differ_from_width_over_heads():
    layer = MultiHeadAttention(32, 4, key_width=3)
    assert layer.qkv.out_features == 3 * 4 * 3
    assert layer(torch.randn(2, 5, 32)).shape == (2, 5, 32)


@pytest.mark.parametrize("masked", [False, True])
def test_joint_weights_are_one_softmax_over_heads_and_keys(masked):
    draw = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 3, 4, 8, generator=draw), torch.randn(2, 3, 5, 8, generator=draw)
    mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    if masked:
        mask[1, ..., 2:] = False
    scores = torch.einsum("bhqd,bhkd->bqhk", q.double(), k.double()) / 8**0.5
    scores = scores.masked_fill(~mask, -torch.inf)
    exact = scores.flatten(2).softmax(-1).view_as(scores).transpose(1, 2)

    class Looks(nn.Module):
        def forward(self, q, k):
            return attention_weights(q, k, mask=mask if masked else None, joint=True)

    model = Looks()
    with capture(model) as tape:
        torch.testing.assert_close(model(q, k), exact.float(), atol=1e-6, rtol=1e-5)
    for head in range(3):
        torch.testing.assert_close(tape.attention(0, head=head), exact[:, head].float())
    nothing = attention_weights(q, k, mask=torch.zeros(2, 1, 1, 5, dtype=torch.bool), joint=True)
    assert nothing.abs().max() == 0


def test_attention_weights_carry_gradients():
    q = torch.randn(1, 2, 3, 4, requires_grad=True)
    attention_weights(q, q)[..., 0].sum().backward()
    assert q.grad is not None
    assert q.grad.abs().sum() > 0


def test_captures_may_be_nested():
    first, second, x = nano(), nano(), torch.randn(1, 3, 16, 16)
    with capture(first) as outer, capture(second) as inner, capture(first) as again:
        first(x)
        second(x)
    assert (len(outer), len(inner), len(again)) == (4, 4, 4)
    assert torch.equal(outer.attention(1, 1), again.attention(1, 1))


def test_captures_in_two_threads_leave_compilation_as_it_was():
    from torch._dynamo import eval_frame

    before = eval_frame._stance.stance
    inside, leave = threading.Event(), threading.Event()

    def other():
        with capture(nano()):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with capture(nano()):
        thread.start()
        inside.wait(10)
    assert eval_frame._stance.stance == "force_eager", "the other thread still captures"
    leave.set()
    thread.join()
    assert eval_frame._stance.stance == before


def test_an_error_inside_leaves_no_hooks_and_no_tape():
    model = nano()
    with pytest.raises(ZeroDivisionError), capture(model) as tape:  # noqa: PT012
        model(torch.randn(1, 3, 16, 16))
        raise ZeroDivisionError
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    model(torch.randn(5, 3, 16, 16))
    assert tape.attention(0, 0).shape[0] == 1


@pytest.mark.parametrize("limits", ["none", "mask", "bias", "causal"])
@pytest.mark.parametrize("as_feature", [False, True])
def test_gradients_of_the_weights_are_those_of_materialised_attention(limits, as_feature):
    """Fused: ∂/∂A from the output's gradient and the values. Written out: A is a tensor autograd knows."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 5, 8, requires_grad=True)
    arguments: dict[str, Any] = {
        "none": {}, "mask": {"mask": torch.rand(2, 1, 5, 5) > 0.3}, "bias": {"bias": torch.randn(4, 5, 5)},
        "causal": {"causal": True},
    }[limits]  # fmt: skip

    class Model(nn.Module):
        def forward(self):
            if as_feature:
                return (attention_weights(q, k, **arguments) ** 2).flatten(1).sum(1)
            return attend(q, k, v, **arguments).square().flatten(1).sum(1)

    model = Model()
    with capture(model, gradients=True) as tape:
        model().sum().backward()
    weights = attention_weights(q.detach(), k.detach(), **arguments).double().requires_grad_()
    out = weights if as_feature else weights @ v.detach().double()
    out.square().sum().backward()
    assert weights.grad is not None
    for head in range(4):
        torch.testing.assert_close(tape.gradient(0, head), weights.grad[:, head].float(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(tape.gradient(0), weights.grad.mean(1).float(), atol=1e-5, rtol=1e-4)


def test_a_tape_says_why_it_has_no_gradients():
    model = regard.create("vit_nano", classes=3, size=16)
    with regard.capture(model) as tape:
        model(torch.rand(1, 3, 16, 16))
    with pytest.raises(RegardError, match="gradients=True"):
        tape.gradient(0)
    with regard.capture(model, gradients=True) as tape:
        model(torch.rand(1, 3, 16, 16))
    with pytest.raises(RegardError, match="call backward"):
        tape.gradient(0)


def test_the_kernel_for_windows_is_used_only_where_it_is_exact_enough_and_nothing_records(monkeypatch):
    monkeypatch.setattr(attention, "_has_kernel", lambda device: True)
    half, model = torch.randn(1, 14, 14, 64, dtype=torch.bfloat16), One()
    assert attention.fuses_windows(half, (7, 7), 32)
    assert not attention.fuses_windows(half.float(), (7, 7), 32)
    assert not attention.fuses_windows(half, (12, 12), 32)
    assert not attention.fuses_windows(half, (4, 4, 4), 32)
    assert not attention.fuses_windows(half, (7, 7), 24)
    with capture(model):
        assert not attention.fuses_windows(half, (7, 7), 32)
    monkeypatch.undo()
    assert not attention.fuses_windows(half, (7, 7), 32)  # a CPU has none
