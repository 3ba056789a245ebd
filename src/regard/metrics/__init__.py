"""Figures with intervals: what a model scored, on how many samples, and how sure that is."""

from regard.metrics.classification import Figure, Summary, auroc, repeated, summarise, wilson
from regard.metrics.paired import Comparison, mcnemar, paired_bootstrap
from regard.metrics.translation import (
    TranslationSummary,
    compare_translations,
    perplexity,
    summarise_translation,
)

__all__ = [
    "Comparison",
    "Figure",
    "Summary",
    "TranslationSummary",
    "auroc",
    "compare_translations",
    "mcnemar",
    "paired_bootstrap",
    "perplexity",
    "repeated",
    "summarise",
    "summarise_translation",
    "wilson",
]
