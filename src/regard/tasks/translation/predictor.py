"""A trained translator with its tokenizers: sentences in, translations and explanations out."""

from __future__ import annotations

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
from regard.tasks.translation.sentences import sentences
from regard.tasks.translation.settings import Config, Options
from regard.weights import Run, find_file, find_run, open_weights, to_csv, to_json, write_text
from regard.weights import average as mean_of

TOKENIZERS = "tokenizers"
"""The folder of a run that holds them."""
UNKNOWN = ("source", "target")
"""The languages of a model that does not say them."""


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

    def __init__(
        self, model: Network, tokenizers: Tokenizers, languages: tuple[str, str], device: torch.device,
        options: Options | None = None,
    ):  # fmt: skip
        self.model, self.tokenizers, self.languages, self.device = model, tokenizers, languages, device
        self.options = options or Options()
        """The run's own: their beam size and length penalty hold where no others are asked for."""
        self.model.to(device).eval()
        self.searches: dict[tuple[int, float, int], Callable[[Tensor], Hypotheses]] = {}
        """By beam size, length penalty and number of translations: what they have recorded serves later sentences."""

    @staticmethod
    def open(path: str | Path, device: torch.device, average: int = 0) -> Translator:
        """From a run folder, a checkpoint in one, or a folder with an Opus-MT model.

        With `average`, the mean of the weights of so many last epochs of a run that kept them (`--keep`).
        """
        (checkpoint, report), file = open_weights(path), find_file(path)
        stored = checkpoint.details.get("languages")
        if not isinstance(stored, list) or len(stored) != 2 or not all(isinstance(n, str) for n in stored):
            raise RunError("the checkpoint is damaged: it names no languages", where=file)
        model = checkpoint.build()
        tokenizers = open_tokenizers(file, model, report.format == "marian")
        if average:
            model.load_state_dict(_latest(path, average))
        return Translator(model, tokenizers, (stored[0], stored[1]), device, _run_options(path))

    def __repr__(self) -> str:
        source, target = (name or "unknown" for name in self.languages)
        return f"Translator({type(self.model).__name__}, {source} to {target}, {self.tokenizers.target.size:,} tokens)"

    def require_answers(self) -> None:
        """It always has some."""

    def data_settings(self, data: str | Path) -> dict[str, Any]:
        """The languages that the model translates from and to, whatever the order of columns or names of files."""
        return dict(zip(UNKNOWN, self.languages, strict=True)) if self.knows_languages else {}

    @property
    def knows_languages(self) -> bool:
        return all(self.languages) and self.languages != UNKNOWN

    def search_settings(self, beam_size: int | None, length_penalty: float | None) -> tuple[int, float]:
        """Those that are asked for; where nothing is, the run's."""
        own = self.options
        return (
            own.beam_size if beam_size is None else beam_size,
            own.length_penalty if length_penalty is None else length_penalty,
        )

    def predict(
        self, text: str, *, best: int = 1, beam_size: int | None = None, length_penalty: float | None = None
    ) -> Translated:
        """The translation of one sentence, and the next best ones if `best` asks for more."""
        return next(self.predict_many([text], best=best, beam_size=beam_size, length_penalty=length_penalty))

    def predict_many(
        self,
        texts: Iterable[str],
        *,
        best: int = 1,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        batch_size: int = 256,
        failed: list[DataError] | None = None,
    ) -> Iterator[Translated]:
        """Translations in the order of the sentences, `batch_size` at a time; an empty line stays empty."""
        if isinstance(texts, str):
            raise ConfigError("one text is given where several are expected", do="use predict, or give a list")
        beams, penalty = self.search_settings(beam_size, length_penalty)
        key, waiting = (max(beams, best), penalty, best), iter(texts)
        if key not in self.searches:
            self.searches[key] = make_search(self.model, self.device, beams=key[0], penalty=penalty, best=best)
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
        beam_size: int | None = None,
        length_penalty: float | None = None,
    ) -> Reason:
        """Why: all attention on a sentence and its translation (`target`, or what a search finds), and its scores.

        The order of words by attention rollout is tested: removed in that order, they should cost the translation
        its probability sooner than in random orders.
        """
        beams, penalty = self.search_settings(beam_size, length_penalty)
        made = record_words(self.model, self.tokenizers, text.strip(), target, beams=beams, penalty=penalty)
        return Reason(made, word_deletion(self.model, made))

    # For the command line.

    def inputs(self, words: Sequence[str]) -> Iterator[str]:
        """Sentences; of a file its lines, of - the lines that are piped in."""
        return sentences(words)

    def show(self, predictions: Iterable[Translated], best: int = 1, **_: Any) -> None:
        """A translation per line, as soon as it is there; with `best`, also the next best ones, each with its score."""
        for number, answer in enumerate(predictions):
            if best == 1:
                print(_one_line(answer.text), flush=True)
                continue
            made = ((answer.text, answer.score), *answer.others)
            lines = [f"{score:8.3f}  {_one_line(text)}" for text, score in made]
            print("\n".join([""] * (number > 0) + lines), flush=True)

    def save(self, predictions: Iterable[Translated], path: Path) -> Path:
        """A row per sentence; the next best translations, where they were asked for, are further columns."""
        rows = [{"source": a.source} | _numbered(a) for a in predictions]
        names = max(rows, key=len)  # an empty line has no next best translations
        rows = [{name: row.get(name) for name in names} for row in rows]
        write_text(path, to_json(rows) if path.suffix == ".json" else to_csv(rows))
        return path

    def explain_inputs(
        self, words: Sequence[str], out: Path, *, kind: str = "cross", layer: int = -1, head: int | None = None,
        form: str = "both", quiet: bool = False,
    ) -> None:  # fmt: skip
        """A picture per sentence, and whether to believe what its words are said to be worth."""
        rows = []
        for number, text in enumerate(filter(str.strip, self.inputs(words)), start=1):
            reason = self.explain(text)
            own = out if number == 1 else out.with_stem(f"{out.stem}-{number}")
            print(reason.save(own, kind, layer=layer, head=head, form=form))
            made, scores = reason.attention, reason.scores
            gain = f"{scores.gain:+.3f} ± {scores.spread:.3f}"
            rows.append((made.source.text, made.target.text, gain, reason.verdict))
        print(columns(("source", "translation", "gain over random orders, nats per token", "verdict"), rows))


def _one_line(text: str) -> str:
    """Without line feeds, so that there are as many lines as sentences."""
    return " ".join(text.split("\n"))


def _numbered(answer: Translated) -> dict[str, Any]:
    """translation and score, translation_2 and score_2, …"""
    row: dict[str, Any] = {}
    for number, (text, score) in enumerate(((answer.text, answer.score), *answer.others), start=1):
        suffix = f"_{number}" if number > 1 else ""
        row |= {f"translation{suffix}": text, f"score{suffix}": round(score, 4)}
    return row


def _run_options(path: str | Path) -> Options | None:
    """What the run's settings say of the search; None of weights without a run."""
    run = find_run(path)
    if run is None:
        return None
    return Config.from_json(run.read_config().settings, run.path / "config.json")[0].task


def open_tokenizers(file: Path, model: Network, marian: bool) -> Tokenizers:
    """The tokenizers that belong to a file of weights: beside it, or in its run's folder."""
    if marian:
        return open_marian(file.parent)
    folder = file.parent.parent / TOKENIZERS
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
