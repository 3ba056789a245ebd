"""Why attention: the decks' arguments as experiments, each by itself or all in one folder."""

from regard.study.attention.bottleneck import Bottleneck, Repeating, bottleneck
from regard.study.attention.costs import Costs, Sizes, costs
from regard.study.attention.gradients import Gradients, softmax_gradients
from regard.study.attention.sinusoids import Sinusoids, sinusoids
from regard.study.attention.study import PARTS, AttentionStudy, attention_study

__all__ = [
    "PARTS", "AttentionStudy", "Bottleneck", "Costs", "Gradients", "Repeating", "Sinusoids", "Sizes", "attention_study",
    "bottleneck", "costs", "sinusoids", "softmax_gradients",
]  # fmt: skip
