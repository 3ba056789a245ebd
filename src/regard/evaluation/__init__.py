"""Running a model over data to see how good it is."""

from regard.evaluation.classify import Evaluation, evaluate, features_of, predict_loader, quick_figures
from regard.evaluation.probe import Parts, Probe, check_probes, run_probes
from regard.evaluation.reconstruct import Reconstruction, mean_loss, reconstruct, reconstruction_losses
from regard.evaluation.seeds import repeat, table
from regard.evaluation.translate import (
    TranslationEvaluation,
    evaluate_translator,
    likelihoods,
    make_search,
    translate_all,
)
from regard.evaluation.unseen import choose_samples, probe_parts, seen_samples

__all__ = [
    "Evaluation",
    "Parts",
    "Probe",
    "Reconstruction",
    "TranslationEvaluation",
    "check_probes",
    "choose_samples",
    "evaluate",
    "evaluate_translator",
    "features_of",
    "likelihoods",
    "make_search",
    "mean_loss",
    "predict_loader",
    "probe_parts",
    "quick_figures",
    "reconstruct",
    "reconstruction_losses",
    "repeat",
    "run_probes",
    "seen_samples",
    "table",
    "translate_all",
]
