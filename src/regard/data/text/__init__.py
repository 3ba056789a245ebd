"""Parallel text: reading files in two languages, tokenizers, padded batches, and the corpus of the demo."""

from regard.data.text.batches import EncodedPairs, TextLoader
from regard.data.text.corpus import TextDataset
from regard.data.text.dates import dates_corpus
from regard.data.text.existing import open_tokenizer
from regard.data.text.marian import open_marian
from regard.data.text.pairs import open_pairs
from regard.data.text.tokens import Piece, Tokenizer, Tokenizers, train_tokenizer, train_tokenizers

__all__ = [
    "EncodedPairs",
    "Piece",
    "TextDataset",
    "TextLoader",
    "Tokenizer",
    "Tokenizers",
    "dates_corpus",
    "open_marian",
    "open_pairs",
    "open_tokenizer",
    "train_tokenizer",
    "train_tokenizers",
]
