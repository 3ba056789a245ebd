"""Beam search over many batches: on a GPU one step is recorded as a CUDA graph and replayed for every word.

A step is hundreds of small kernels, and launching them one by one from Python takes longer than they do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.networks.decoding import Hypotheses, Search, check_search, evaluating, limits, time_to_check
from regard.networks.translator import Translator

WARM = 3  # ordinary steps before recording: libraries choose their kernels
SHAPES = 8  # kept at most, the latest to come; each holds the past of all its beams,
ROOM = 2**31  # bytes, beyond which no more than the next one is kept


class RecordedSearch:
    """`beam_search` with fixed settings. It keeps memory and CUDA graph for each shape of sources.

    Off the GPU nothing is recorded, and the answers are the same. Weights may move between two calls, but only in
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
        check_search(model, beams, penalty, best)
        self.model, self.beams, self.penalty, self.best = model, beams, penalty, best
        self.ratio, self.constant = ratio, constant
        self.kept: dict[torch.Size, tuple[Search, Callable[[], None]]] = {}
        self.pool: Any = None

    @torch.no_grad()
    def __call__(self, source: Tensor) -> Hypotheses:
        """The best sentences for sources (B, S)."""
        limit, length = limits(self.model, source, self.ratio, self.constant)
        with evaluating(self.model):
            if source.shape not in self.kept:
                while len(self.kept) >= SHAPES or sum(search.state.nbytes() for search, _ in self.kept.values()) > ROOM:
                    del self.kept[next(iter(self.kept))]
                search = Search(
                    self.model, source, limit, length, beams=self.beams, penalty=self.penalty, best=self.best
                )
                play = self._recorded(search, source, limit) if source.is_cuda else search.advance
                self.kept[source.shape] = search, play
            search, play = self.kept[source.shape]
            search.restart(source, limit)
            for n in range(length):
                play()
                if time_to_check(n, source) and bool(search.done.all()):
                    break
        # What the search holds is written over by the next batch.
        return Hypotheses(*(part.clone() for part in search.result()))

    def _recorded(self, search: Search, source: Tensor, limit: Tensor) -> Callable[[], None]:
        for _ in range(WARM):
            search.advance()
            search.restart(source, limit)  # there may be room for fewer words than this
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            search.advance()
        self.pool = graph.pool()  # one runs at a time
        return graph.replay
