"""A run folder made readable: figures, a model card and one HTML page that opens offline."""

from regard.report.page import write_training
from regard.report.pretrain import draw_reconstructions, write_pretraining
from regard.report.probe import write_probe
from regard.report.translation import write_translation
from regard.weights import Run


def write_report(run: Run) -> None:
    """Draw a run's figures and write its report, whichever kind of run it is."""
    config = run.read_config()[1]
    (write_translation if config.text else write_training if config.labelled else write_pretraining)(run)


__all__ = ["draw_reconstructions", "write_probe", "write_report"]
