"""Small translators, their tokenizers and sentences, for tests of what they look at."""

import torch

from regard.data.text import Piece, train_tokenizers
from regard.explain.word_attention import Sentence
from regard.networks.translator import Translator
from tests.loading import create_translator

ENGLISH = ["a tree", "a small house", "two houses", "the trees are green"]
GERMAN = ["ein Baum", "ein kleines Haus", "zwei Häuser", "die Bäume sind grün"]
TOKENIZERS = train_tokenizers(ENGLISH, GERMAN, 280)
HOUSES = "two small houses", "zwei kleine Häuser 집"


def translator(name: str = "transformer_nano", **fields) -> Translator:
    """Small, in double precision, and with attention far from even."""
    torch.manual_seed(1)
    model = create_translator(name, vocabulary=TOKENIZERS.source.size, width=32, **fields).double()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.4)
    return model


def sentence(*words: str) -> Sentence:
    """One token a word."""
    starts = [sum(len(w) + 1 for w in words[:n]) for n in range(len(words))]
    pieces = (Piece(w, at, at + len(w), n) for n, (w, at) in enumerate(zip(words, starts, strict=True)))
    return Sentence(" ".join(words), tuple(range(4, 4 + len(words))), tuple(pieces))
