"""A translator with products of eight bits, for a CPU."""

from __future__ import annotations

import torch
from torch import nn

from regard.networks.translator import Translator
from regard.nn import DecoderBlock, Int8Linear


@torch.no_grad()
def in_int8(model: Translator) -> Translator:
    """The same translator, in place, with eight bits in its linear layers and for the scores of words.

    What recurs step by step (LSTM, GRU) stays as it is, and so do keys and values of the source, made once a sentence.

    >>> import regard
    >>> type(in_int8(regard.create("transformer_nano", vocabulary=20)).decoder[0].mlp.up).__name__
    'Int8Linear'
    """
    across = [block.cross for block in model.modules() if isinstance(block, DecoderBlock)]
    whole = {id(attention.qkv) for attention in across} | {id(model.output)}
    for attention in across:
        attention.ask = Int8Linear(*attention.asking())
    matrix = model.embedding.weight if model.output is None else model.output.weight
    model.scorer = Int8Linear(matrix, model.output_bias)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and id(child) not in whole:
                setattr(parent, name, Int8Linear(child.weight, child.bias))
    return model
