"""Figures with 95 % intervals and the number of samples they are from."""

from regard.metrics.classification import Figure, Summary, auroc, repeated, summarise, wilson
from regard.metrics.paired import Comparison, paired_bootstrap
from regard.metrics.translation import compare_translations, perplexity, summarise_translation

__all__ = [
    "Comparison",
    "Figure",
    "Summary",
    "auroc",
    "compare_translations",
    "paired_bootstrap",
    "perplexity",
    "repeated",
    "summarise",
    "summarise_translation",
    "wilson",
]
