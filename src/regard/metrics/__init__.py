"""Figures with intervals: what a model scored, on how many samples, and how sure that is."""

from regard.metrics.classification import Figure, Summary, auroc, repeated, summarise, wilson

__all__ = ["Figure", "Summary", "auroc", "repeated", "summarise", "wilson"]
