"""Claims of the lecture decks about image networks, as small experiments on a trained run or on none."""

from regard.study.images.norms import norm_study
from regard.study.images.receptive import receptive_field_study
from regard.study.images.resolution import resolution_study
from regard.study.images.shifts import shift_study

__all__ = ["norm_study", "receptive_field_study", "resolution_study", "shift_study"]
