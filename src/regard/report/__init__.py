"""A run folder made readable: figures, a model card and one HTML page that opens offline."""

from regard.report.page import write_report

__all__ = ["write_report"]
