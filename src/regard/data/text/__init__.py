"""From parallel text to batches of tokens: files in two languages, tokenizers, padded shapes, and a demo's corpus."""

from regard.data.text.corpus import Corpus, Trouble, split_pairs
from regard.data.text.pairs import open_pairs

__all__ = ["Corpus", "Trouble", "open_pairs", "split_pairs"]
