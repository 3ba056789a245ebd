"""A trained translator with its tokenizers: sentences in, translations and explanations out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.console import columns
from regard.data.text import Tokenizers, open_marian
from regard.errors import ConfigError, DataError, RunError
from regard.explain import WordAttention, WordDeletion, record_words, word_deletion
from regard.explain.draw_words import draw_words
from regard.networks.decoding import Hypotheses, stream
from regard.networks.translator import Translator as Network
from regard.tasks.translation.evaluation import Translated, make_search, translate_all
from regard.weights import Run, find_file, open_weights, to_csv, to_json, write_text
from regard.weights import average as mean_of

TOKENIZERS = "tokenizers"
"""The folder of a run that holds them."""
BEAM_SIZE, LENGTH_PENALTY = 4, 0.6


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


class Translator:
    """What `regard.load` gives for a translator."""

    def __init__(self, model: Network, tokenizers: Tokenizers, languages: tuple[str, str], device: torch.device):
        self.model, self.tokenizers, self.languages, self.device = model, tokenizers, languages, device
        self.model.to(device).eval()
        self.searches: dict[tuple[int, float, int], Callable[[Tensor], Hypotheses]] = {}
        """By beam size, length penalty and number of translations: what they have recorded serves later sentences."""

    @staticmethod
    def open(path: str | Path, device: torch.device, average: int = 0) -> Translator:
        """From a run folder, a checkpoint in one, or a folder with an Opus-MT model.

        With `average`, the mean of the weights of so many last epochs of a run that kept them (`--keep`).
        """
        (checkpoint, report), file = open_weights(path), find_file(path)
        languages = checkpoint.details.get("languages")
        if not isinstance(languages, list) or len(languages) != 2 or not all(isinstance(n, str) for n in languages):
            raise RunError("the checkpoint is damaged: it names no languages", where=file)
        model = checkpoint.build()
        if report.format == "marian":
            tokenizers = open_marian(file.parent)
        else:
            tokenizers = _tokenizers(file.parent.parent / TOKENIZERS, model)
        if average:
            model.load_state_dict(_latest(path, average))
        return Translator(model, tokenizers, (languages[0], languages[1]), device)

    def __repr__(self) -> str:
        source, target = self.languages
        return f"Translator({type(self.model).__name__}, {source} to {target}, {self.tokenizers.target.size:,} tokens)"

    def data_settings(self, data: str | Path) -> dict[str, Any]:
        """A folder may hold several languages; a table's columns may have other names."""
        source, target = self.languages
        return {"source": source, "target": target} if Path(data).expanduser().is_dir() else {}

    def predict(
        self, text: str, *, best: int = 1, beam_size: int | None = None, length_penalty: float = LENGTH_PENALTY
    ) -> Translated:
        """The translation of one sentence, and the next best ones if `best` asks for more."""
        return next(self.predict_many([text], best=best, beam_size=beam_size, length_penalty=length_penalty))

    def predict_many(
        self,
        texts: Iterable[str],
        *,
        best: int = 1,
        beam_size: int | None = None,
        length_penalty: float = LENGTH_PENALTY,
        batch_size: int = 256,
        failed: list[DataError] | None = None,
    ) -> Iterator[Translated]:
        """Translations in the order of the sentences, `batch_size` at a time; an empty line stays empty."""
        if isinstance(texts, str):
            raise ConfigError("one text is given where several are expected", do="use predict, or give a list")
        beams = max(BEAM_SIZE if beam_size is None else beam_size, best)
        key, waiting = (beams, length_penalty, best), iter(texts)
        if key not in self.searches:
            self.searches[key] = make_search(self.model, self.device, beams=beams, penalty=length_penalty, best=best)
        while some := [text.strip() for text in islice(waiting, batch_size)]:
            full = [text for text in some if text]
            made = iter(
                translate_all(self.model, self.tokenizers, full, self.device, self.searches[key]) if full else ()
            )
            for text in some:
                yield next(made) if text else Translated("", "", 0.0)

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

    def explain(
        self,
        text: str,
        target: str | None = None,
        *,
        beam_size: int = BEAM_SIZE,
        length_penalty: float = LENGTH_PENALTY,
    ) -> Reason:
        """Why: all attention on a sentence and its translation (`target`, or what a search finds), and its scores.

        The order of words by attention rollout is tested: removed in that order, they should cost the translation
        its probability sooner than in random orders.
        """
        made = record_words(self.model, self.tokenizers, text.strip(), target, beams=beam_size, penalty=length_penalty)
        return Reason(made, word_deletion(self.model, made))

    # For the command line.

    def inputs(self, words: Sequence[str]) -> Iterator[str]:
        """Sentences; of a file its lines, of - the lines that are piped in."""
        if not words:
            do = "give some, a text file, or - for what is piped in"
            raise DataError("there are no sentences to translate", do=do)
        return _sentences(words)

    def show(self, predictions: Iterable[Translated], best: int = 1, **_: Any) -> None:
        """A translation per line, as soon as it is there; with `best`, also the next best ones, each with its score."""
        for number, answer in enumerate(predictions):
            if best == 1:
                print(answer.text, flush=True)
                continue
            lines = [f"{score:8.3f}  {text}" for text, score in ((answer.text, answer.score), *answer.others)]
            print("\n".join([""] * (number > 0) + lines), flush=True)

    def save(self, predictions: Iterable[Translated], path: Path) -> Path:
        rows = [{"source": a.source, "translation": a.text, "score": round(a.score, 4)} for a in predictions]
        write_text(path, to_json(rows) if path.suffix == ".json" else to_csv(rows))
        return path

    def explain_inputs(
        self, words: Sequence[str], out: Path, *, kind: str = "cross", layer: int = -1, head: int | None = None,
        form: str = "both", quiet: bool = False,
    ) -> None:  # fmt: skip
        """A picture per sentence, and whether to believe what its words are said to be worth."""
        rows = []
        for number, text in enumerate(self.inputs(words), start=1):
            reason = self.explain(text)
            own = out if number == 1 else out.with_stem(f"{out.stem}-{number}")
            print(reason.save(own, kind, layer=layer, head=head, form=form))
            made, scores = reason.attention, reason.scores
            gain = f"{scores.gain:+.3f} ± {scores.spread:.3f}"
            rows.append((made.source.text, made.target.text, gain, reason.verdict))
        print(columns(("source", "translation", "gain over random orders, nats per token", "verdict"), rows))


def _sentences(inputs: Iterable[str]) -> Iterator[str]:
    """Of a file its lines, of - the lines that are piped in, of anything else itself."""
    for word in inputs:
        path = Path(word[:255])  # longer than any file is called
        if word == "-":
            yield from sys.stdin
        elif path.is_file() or (" " not in word and path.suffix == ".txt"):
            yield from _lines(path)
        else:
            yield word


def _lines(path: Path) -> Iterator[str]:
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise DataError("this is no file", where=path, do="give a text file, or - for standard input")
        with path.open(encoding="utf-8") as file:
            yield from file
    except (OSError, UnicodeDecodeError) as error:
        do = "give a text file in UTF-8, or a sentence"
        raise DataError(f"the sentences cannot be read: {error}", where=path, do=do) from None


def _tokenizers(folder: Path, model: Network) -> Tokenizers:
    if not folder.is_dir():
        raise RunError("its tokenizers are missing", where=folder, do="keep a checkpoint in its run folder")
    tokenizers = Tokenizers.load(folder)
    sizes = tokenizers.source.size, tokenizers.target.size
    words = model.config.source_words, model.config.target_words
    if sizes != words:
        raise RunError(f"tokenizers of {sizes} tokens do not fit a model of {words}", where=folder)
    return tokenizers


def _latest(path: str | Path, count: int) -> dict[str, Tensor]:
    """The mean of the weights of so many last epochs of a run."""
    kept = sorted(Run.open(path).checkpoint().parent.glob("epoch-*.safetensors"))
    if len(kept) < count:
        do = "train with --keep of as many, or average fewer"
        raise RunError(f"the run keeps the weights of {len(kept)} epochs, not of {count}", where=path, do=do)
    return mean_of([open_weights(file)[0].weights for file in kept[-count:]])
