"""Beam search over many batches. On a GPU one step is recorded as a CUDA graph and replayed for every word.

A step is hundreds of small kernels. To launch them one by one from Python takes longer than to run them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.networks.decoding import Hypotheses, Search, check_search, evaluating, limits, time_to_check
from regard.networks.translator import Translator

WARMUP_STEPS = 3
"""Ordinary steps before recording, in which libraries choose their kernels."""
MAX_SHAPES = 8
"""Number of source shapes kept, the latest ones. Each has its own key-value cache."""
MAX_BYTES = 2**31
"""Memory of all kept searches. Above it, the oldest are dropped before a new one is added."""


class RecordedSearch:
    """`beam_search` with fixed settings, which keeps memory and CUDA graph per shape of sources.

    Without a GPU nothing is recorded, and the results are the same. Between two calls weights may only change in
    place.

    >>> import regard
    >>> search = RecordedSearch(regard.create("transformer_nano", vocabulary=20), beams=2, constant=8)
    >>> search(torch.tensor([[5, 6, 7, 2]])).words.shape
    torch.Size([1, 1, 12])
    """

    def __init__(
        self,
        model: Translator,
        *,
        beams: int = 4,
        penalty: float = 0.6,
        best: int = 1,
        ratio: float = 1.0,
        constant: int = 50,
    ):
        check_search(beams, penalty, best)
        self.model, self.beams, self.penalty, self.best = model, beams, penalty, best
        self.ratio, self.constant = ratio, constant
        self.searches: dict[torch.Size, tuple[Search, Callable[[], None]]] = {}
        self.pool: Any = None

    @torch.no_grad()
    def __call__(self, source: Tensor) -> Hypotheses:
        """The best sentences for sources (B, S)."""
        limit, length = limits(self.model, source, self.ratio, self.constant)
        with evaluating(self.model):
            if source.shape not in self.searches:
                while len(self.searches) >= MAX_SHAPES or self._nbytes() > MAX_BYTES:
                    del self.searches[next(iter(self.searches))]
                search = Search(
                    self.model, source, limit, length, beams=self.beams, penalty=self.penalty, best=self.best
                )
                advance = self._recorded(search, source, limit) if source.is_cuda else search.advance
                self.searches[source.shape] = search, advance
            search, advance = self.searches[source.shape]
            search.restart(source, limit)
            for n in range(length):
                advance()
                if time_to_check(n, source) and bool(search.done.all()):
                    break
        # The next batch overwrites the memory of the search.
        return Hypotheses(*(part.clone() for part in search.result()))

    def _nbytes(self) -> int:
        return sum(search.nbytes() for search, _ in self.searches.values())

    def _recorded(self, search: Search, source: Tensor, limit: Tensor) -> Callable[[], None]:
        for _ in range(WARMUP_STEPS):
            search.advance()
            search.restart(source, limit)  # the length limit may be lower than WARMUP_STEPS
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            search.advance()
        self.pool = graph.pool()  # shared, because only one graph runs at a time
        return graph.replay
