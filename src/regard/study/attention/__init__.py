"""Why attention: the decks' arguments as experiments, one by one or all in one folder."""

from regard.study.attention.bottleneck import Repeating, bottleneck
from regard.study.attention.costs import Sizes, costs
from regard.study.attention.gradients import softmax_gradients
from regard.study.attention.scores import Lookup, scores
from regard.study.attention.sinusoids import sinusoids
from regard.study.attention.study import attention_study

__all__ = [
    "Lookup",
    "Repeating",
    "Sizes",
    "attention_study",
    "bottleneck",
    "costs",
    "scores",
    "sinusoids",
    "softmax_gradients",
]
