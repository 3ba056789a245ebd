"""Figures with 95 % intervals and the number of samples they are from."""

from regard.metrics.classification import (
    Figure,
    Summary,
    auroc,
    mean_of_independent,
    repeated,
    summarise,
    wilson,
)
from regard.metrics.paired import Comparison, paired_bootstrap
from regard.metrics.survival import Concordance, breslow, kaplan_meier, log_rank, step, survival_figures
from regard.metrics.translation import compare_translations, perplexity, summarise_translation

__all__ = [
    "Comparison",
    "Concordance",
    "Figure",
    "Summary",
    "auroc",
    "breslow",
    "compare_translations",
    "kaplan_meier",
    "log_rank",
    "mean_of_independent",
    "paired_bootstrap",
    "perplexity",
    "repeated",
    "step",
    "summarise",
    "summarise_translation",
    "survival_figures",
    "wilson",
]
