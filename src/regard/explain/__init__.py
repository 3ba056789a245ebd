"""Why a model decided as it did: arithmetic on recorded attention, painted onto the input and scored."""

from regard.explain.explanation import METHODS, Explanation, explain
from regard.explain.faithfulness import faithfulness
from regard.explain.methods import raw_attention, rollout

__all__ = ["METHODS", "Explanation", "explain", "faithfulness", "raw_attention", "rollout"]
