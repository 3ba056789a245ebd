"""A run folder made readable: figures, a model card and one HTML page that opens offline."""

from regard.report.page import write_report
from regard.report.probe import write_probe

__all__ = ["write_probe", "write_report"]
