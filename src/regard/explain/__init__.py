"""Explanations: arithmetic on recorded attention and gradients, painted onto the input and scored."""

from regard.explain.explanation import (
    DEFAULT,
    METHODS,
    Explanation,
    attends,
    check_method,
    explain,
    reported,
    sensible,
    target_note,
)
from regard.explain.faithfulness import faithfulness
from regard.explain.flow import Start
from regard.explain.inspection import Inspection, inspect_model
from regard.explain.methods import (
    Case,
    grad_cam,
    gradient_rollout,
    integrated_gradients,
    occlusion,
    raw_attention,
    relevance,
    rollout,
)
from regard.explain.registers import with_test_time_registers
from regard.explain.sanity import random_twins, rank_correlation
from regard.explain.visualise import Visualisation, visualise
from regard.explain.word_attention import WordAttention, record_words
from regard.explain.word_deletion import WordDeletion, word_deletion

__all__ = [
    "DEFAULT",
    "METHODS",
    "Case",
    "Explanation",
    "Inspection",
    "Start",
    "Visualisation",
    "WordAttention",
    "WordDeletion",
    "attends",
    "check_method",
    "explain",
    "faithfulness",
    "grad_cam",
    "gradient_rollout",
    "inspect_model",
    "integrated_gradients",
    "occlusion",
    "random_twins",
    "rank_correlation",
    "raw_attention",
    "record_words",
    "relevance",
    "reported",
    "rollout",
    "sensible",
    "target_note",
    "visualise",
    "with_test_time_registers",
    "word_deletion",
]
