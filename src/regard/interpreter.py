"""A trained translator with its tokenizers: sentences in, translations and reasons out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.data.text import Tokenizers
from regard.data.text import open_marian as open_vocabulary
from regard.errors import ConfigError, RunError
from regard.evaluation import make_search, translate_all
from regard.explain import WordAttention, WordDeletion, record_words, word_deletion
from regard.explain.draw_words import draw_words
from regard.networks.decoding import Hypotheses, stream
from regard.networks.translator import Translator
from regard.tasks import Translated
from regard.weights import Run, is_marian, open_marian, open_text
from regard.weights import average as mean_of

BEAMS, PENALTY = 4, 0.6


class Reason(NamedTuple):
    """Where a translator looked, and what became of its translation as words were taken away in that order."""

    attention: WordAttention
    scores: WordDeletion

    @property
    def verdict(self) -> str:
        return self.scores.verdict

    def save(self, path: str | Path, kind: str = "cross", **form: Any) -> Path:
        """Draw one kind of attention, or the rollout: `layer`, `head` and `form` as in `draw_words`."""
        return draw_words(self.attention, Path(path), kind, **form)

    def to_json(self) -> dict[str, Any]:
        scores = {"gain": self.scores.gain, "spread": self.scores.spread, "order": list(self.scores.order)}
        return self.attention.to_json() | {"verdict": self.verdict, "trusted": self.scores.trusted, "scores": scores}


class Interpreter:
    """What `regard.load` gives for a translator."""

    def __init__(
        self, model: Translator, tokenizers: Tokenizers, languages: tuple[str, str], device: torch.device
    ) -> None:
        self.model, self.tokenizers, self.languages, self.device = model, tokenizers, languages, device
        self.model.to(device).eval()
        self.searches: dict[tuple[int, float, int], Callable[[Tensor], Hypotheses]] = {}
        """By beams, penalty and how many are asked for: what they have recorded serves the next sentences too."""

    @staticmethod
    def open(path: str | Path, device: torch.device, average: int = 0) -> Interpreter:
        """Of a run folder, of a checkpoint in one, or of a folder with an Opus-MT model.

        With `average`, the mean of the weights of so many last epochs of a run that kept them (`--keep`).
        """
        if is_marian(path):
            model, tokenizers = open_marian(path), open_vocabulary(Path(path).expanduser())
            languages = ("source", "target")
        else:
            checkpoint, model, tokenizers = open_text(path)
            languages = checkpoint.languages
            if average:
                model.load_state_dict(_latest(path, average))
        return Interpreter(model, tokenizers, languages, device)

    def __repr__(self) -> str:
        source, target = self.languages
        return f"Interpreter({type(self.model).__name__}, {source} to {target}, {self.tokenizers.target.size:,} tokens)"

    def predict(self, text: str, *, best: int = 1, beams: int | None = None, penalty: float = PENALTY) -> Translated:
        """The translation of one sentence, and the next best ones if `best` asks for more."""
        return next(self.predict_many([text], best=best, beams=beams, penalty=penalty))

    def predict_many(
        self,
        texts: Iterable[str],
        *,
        best: int = 1,
        beams: int | None = None,
        penalty: float = PENALTY,
        together: int = 256,
    ) -> Iterator[Translated]:
        """Translations in the order of the sentences, `together` at a time; an empty line stays empty."""
        if isinstance(texts, str):
            raise ConfigError("one text is given where several are expected", do="use predict, or give a list")
        beams = max(BEAMS, best) if beams is None else beams
        key, waiting = (beams, penalty, best), iter(texts)
        if key not in self.searches:
            self.searches[key] = make_search(self.model, self.device, beams=beams, penalty=penalty, best=best)
        while some := [text.strip() for text in islice(waiting, together)]:
            full = [text for text in some if text]
            found = iter(
                translate_all(self.model, self.tokenizers, full, self.device, self.searches[key]) if full else ()
            )
            for text in some:
                yield next(found) if text else Translated("", "", 0.0)

    def stream(self, text: str) -> Iterator[str]:
        """The translation as it is found, in parts that add up to it: the likeliest word each time, no search."""
        rows = torch.tensor(self.tokenizers.source.encode([text.strip()], end=True), device=self.device)
        words: list[int] = []
        said = ""
        for word in stream(self.model, rows):
            words.append(int(word[0]))
            whole = self.tokenizers.target.decode(words)
            # Some bytes of a character are no character yet.
            if len(whole) > len(said) and not whole.endswith("\N{REPLACEMENT CHARACTER}"):
                yield whole[len(said) :]
                said = whole

    def explain(self, text: str, target: str | None = None, *, beams: int = BEAMS, penalty: float = PENALTY) -> Reason:
        """Why: all attention on a sentence and its translation (`target`, or what a search finds), and its scores.

        The order of words by attention rollout is tested: taken away in that order, they should cost the translation
        its probability sooner than in random orders.
        """
        found = record_words(self.model, self.tokenizers, text.strip(), target, beams=beams, alpha=penalty)
        return Reason(found, word_deletion(self.model, found))


def _latest(path: str | Path, count: int) -> dict[str, Tensor]:
    """The mean of the weights of so many last epochs of a run."""
    kept = sorted(Run.open(path).checkpoint().parent.glob("epoch-*.safetensors"))
    if len(kept) < count:
        do = "train with --keep of as many, or average fewer"
        raise RunError(f"the run keeps the weights of {len(kept)} epochs, not of {count}", where=path, do=do)
    return mean_of([open_text(file)[0].weights for file in kept[-count:]])
