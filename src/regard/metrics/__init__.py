"""Figures with intervals: what a model scored, on how many samples, and how sure that is."""

from regard.metrics.classification import Figure, Summary, summarise, wilson

__all__ = ["Figure", "Summary", "summarise", "wilson"]
