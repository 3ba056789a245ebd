"""A translator with other products, for a CPU: of eight bits, or of matrices laid out beforehand."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regard.networks.translator import Translator
from regard.nn import DecoderBlock, Int8Linear
from regard.nn.packed import PackedLinear, can_pack


def in_int8(model: Translator) -> Translator:
    """The same translator, in place, with eight bits in its linear layers and for the scores of words.

    >>> import regard
    >>> type(in_int8(regard.create("transformer_nano", vocabulary=20)).decoder[0].mlp.up).__name__
    'Int8Linear'
    """
    return _with(model, Int8Linear)


_PACKED: WeakKeyDictionary[Translator, tuple[Any, Translator]] = WeakKeyDictionary()


def packed(model: Translator) -> Translator:
    """A translator that gives the same answers sooner, on a CPU that can; else the model itself.

    It shares the weights and holds those of linear layers a second time. Ask for it at every search: it is made once,
    and anew when the model has changed. What is done to weights by way of `.data` and in place is the one thing that
    torch does not tell.
    """
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    if hooked or model.scorer is not None or not can_pack(model):
        return model
    state = [(id(p), p.data_ptr(), p._version) for p in model.parameters()]
    made = _PACKED.get(model)
    if made is None or made[0] != state:
        shared = {id(tensor): tensor for tensor in itertools.chain(model.parameters(), model.buffers())}
        _PACKED[model] = made = state, _with(copy.deepcopy(model, shared), PackedLinear)
    return made[1]


@torch.no_grad()
def _with(model: Translator, linear: Callable[[Tensor, Tensor | None], nn.Module]) -> Translator:
    """The translator with `linear` in the place of its linear layers, and for the scores of words.

    What recurs step by step (LSTM, GRU) stays as it is, and so do keys and values of the source, made once a sentence.
    """
    across = [block.cross for block in model.modules() if isinstance(block, DecoderBlock)]
    whole = {id(attention.qkv) for attention in across} | {id(model.output)}
    for attention in across:
        attention.ask = linear(*attention.asking())
    matrix = model.embedding.weight if model.output is None else model.output.weight
    model.scorer = linear(matrix, model.output_bias)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and id(child) not in whole:
                setattr(parent, name, linear(child.weight, child.bias))
    return model
