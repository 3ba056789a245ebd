"""Running a model over data to see how good it is."""

from regard.evaluation.classify import Evaluation, evaluate, features_of, predict_loader, quick_figures
from regard.evaluation.probe import Parts, Probe, check_probes, run_probes
from regard.evaluation.seeds import repeat, table
from regard.evaluation.unseen import choose_samples, probe_parts, seen_samples

__all__ = [
    "Evaluation",
    "Parts",
    "Probe",
    "check_probes",
    "choose_samples",
    "evaluate",
    "features_of",
    "predict_loader",
    "probe_parts",
    "quick_figures",
    "repeat",
    "run_probes",
    "seen_samples",
    "table",
]
