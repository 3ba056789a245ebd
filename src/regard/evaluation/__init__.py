"""Running a model over data to see how good it is."""

from regard.evaluation.inference import features_of, left_out_words, run_over, whole_json
from regard.evaluation.probe import Parts, Probe, check_amounts, run_probes

__all__ = ["Parts", "Probe", "check_amounts", "features_of", "left_out_words", "run_over", "run_probes", "whole_json"]
