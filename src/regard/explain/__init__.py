"""Why a model decided as it did: arithmetic on recorded attention, painted onto the input and scored."""

from regard.explain.explanation import METHODS, Explanation, explain
from regard.explain.faithfulness import faithfulness
from regard.explain.inspection import Inspection, inspect_model
from regard.explain.methods import raw_attention, rollout
from regard.explain.registers import find_register_neurons, with_test_time_registers
from regard.explain.visualise import Visualisation, visualise

__all__ = [
    "METHODS",
    "Explanation",
    "Inspection",
    "Visualisation",
    "explain",
    "faithfulness",
    "find_register_neurons",
    "inspect_model",
    "raw_attention",
    "rollout",
    "visualise",
    "with_test_time_registers",
]
