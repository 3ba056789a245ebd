"""Settings of translation, its recipes, and how its data is recognised. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from regard import registry
from regard.errors import ConfigError
from regard.languages import looks_parallel
from regard.setting_groups import Data, Group, setting
from regard.settings import RunConfig

LARGE = 300_000  # pairs
DECIMALS = {"bleu": 2, "chrf": 2}
"""Of figures from 0 to 100, as they are printed."""
HELP = {
    "run": "the folder of an Opus-MT model",
    "inputs": "For translation: sentences, text files (one sentence per line; a word without spaces that looks like a "
    "path must be one), or - for standard input.",
}


@dataclass(frozen=True)
class TextData(Data):
    title: ClassVar[str] = "text data"
    holdout: float = setting(
        0.1,
        "Share of pairs held out for val (and for test), at most 2,000, where the data names none.",
        least=0,
        below=0.5,
    )
    source: str | None = setting(
        None, "Language (or column) to translate from, where the data has more than two.", common=True, opens=True
    )
    target: str | None = setting(None, "Language (or column) to translate to.", common=True, opens=True)
    tokenizer: str = setting(
        "bpe",
        "bpe (byte-level) or wordpiece: trained on the training sentences; keep: that of --from; or a file: a "
        "WordPiece vocab.txt, a tokenizer.json, a SentencePiece .model.",
    )
    vocabulary: int = setting(
        8000, "Largest number of tokens, of both languages together, or of each if not joint.", least=1
    )
    joint: bool = setting(True, "One vocabulary for both languages.")
    batch_tokens: int = setting(4096, "Tokens per batch on either side, padding counted, over all processes.", least=1)
    pairs: int | None = setting(
        None, "Use only this many training pairs; smaller subsets are nested in larger ones.", least=1
    )
    max_length: int = setting(256, "Pairs with more tokens on a side are not trained on; they are counted.", least=1)


@dataclass(frozen=True)
class Transfer(Group):
    """Where the weights come from."""

    title: ClassVar[str] = "fine-tuning"
    weights: str | None = setting(
        None,
        "Start from these weights: a run, or a folder with a Marian model. They decide the network.",
        common=True,
        weights="--from",
    )


@dataclass(frozen=True)
class Options(Group):
    title: ClassVar[str] = "translation"
    beam_size: int = setting(4, "Beam size of the search for a translation.", least=1)
    length_penalty: float = setting(0.6, "Exponent of the length penalty; more favours longer translations.", least=0)
    label_smoothing: float = setting(0.1, "Probability spread over the wrong tokens.", least=0, below=1)


@dataclass(frozen=True)
class Config(RunConfig):
    """Everything that decides a run of translation."""

    task_name: ClassVar[str] = "translation"
    takes: ClassVar[str] = "text"
    predicts: ClassVar[str] = "words"
    not_shape: ClassVar[frozenset[str]] = frozenset({"vocabulary", "padding", "start", "end"})
    data: TextData = field(default_factory=TextData)
    transfer: Transfer = field(default_factory=Transfer)
    task: Options = field(default_factory=Options)


@dataclass(frozen=True)
class LoadOptions(Group):
    title: ClassVar[str] = "weights"
    average: int = setting(
        0, "Number of last epochs whose weights are averaged; the run must have kept them (--keep).", least=0
    )


@dataclass(frozen=True)
class SearchOptions(Group):
    """How a trained model searches; what is left out is as the run has it."""

    title: ClassVar[str] = "translation"
    beam_size: int | None = setting(None, "Beam size of the search for a translation. Default: the run's.", least=1)
    length_penalty: float | None = setting(
        None, "Exponent of the length penalty; more favours longer translations. Default: the run's.", least=0
    )


@dataclass(frozen=True)
class EvalOptions(SearchOptions):
    """As for a prediction."""


@dataclass(frozen=True)
class PredictOptions(SearchOptions):
    best: int = setting(1, "Translations to show for each sentence.", least=1)


@dataclass(frozen=True)
class ExplainOptions(Group):
    title: ClassVar[str] = "translation"
    kind: Literal["encoder", "decoder", "cross", "rollout"] = setting(
        "cross", "Which attention; --layer and --head choose within it."
    )
    form: Literal["both", "lines", "matrix", "heads"] = setting(
        "both", "Lines between words, a matrix, both, or every head."
    )
    layer: int = setting(-1, "Which layer, from 0; -1 is the last.")
    head: int | None = setting(None, "Which head. Default: the mean over heads.")

    def __post_init__(self) -> None:
        super().__post_init__()
        every = {"rollout is over": self.kind == "rollout", "--form heads draws": self.form == "heads"}
        for name, asked in (("layer", self.layer != -1), ("head", self.head is not None)):
            for what in [what for what, holds in every.items() if holds and asked]:
                raise ConfigError(f"{what} all layers and heads: --{name} does not apply", do="leave it out")


def recognise(data: Path, asked: Mapping[str, Any]) -> str | None:
    """By the model's name, a language asked for, or files such as train.en and train.de."""
    model = asked.get("model")
    if model is not None:
        takes_text = model in registry.MODELS and registry.config_class(model).inputs == "text"
        return f"{model} translates" if takes_text else None
    if asked.get("source") or asked.get("target"):
        return "a language is given"
    return "parallel text" if str(data) == "dates" or looks_parallel(data) else None


def translate() -> Config:
    """The paper's base model and its schedule (Vaswani et al., section 5), for hundreds of thousands of pairs and more.

    regard train DATA --recipe translate

    The paper: 100,000 steps of 25,000 tokens, 12 hours on 8 P100; 27.3 BLEU from English to German (Table 2). Its rate
    peaks at 512^-0.5 · 4000^-0.5 = 7e-4 after 4,000 steps. Not run here. AdamW's second moment is 0.99, not 0.98.
    """
    return Config.of(
        model="transformer_base", vocabulary=37_000, batch_tokens=25_000, steps=100_000, lr=7e-4, warmup=0.04,
        schedule="inverse_sqrt", weight_decay=0.0, ema=0.999, clip=0.0,
    )  # fmt: skip


def translate_small() -> Config:
    """A smaller Transformer with more dropout, norms first, for some ten thousand pairs.

    regard train DATA --recipe translate_small

    Made for Multi30k (29,000 pairs), English to German: 39.7 BLEU on test_2016_flickr (38.1 to 41.3) after 78 seconds
    of training on one H200, 58 of them the first epoch, with compiling (benchmarks/results/multi30k.md).
    """
    return Config.of(
        model="transformer_base", width=256, depth=4, heads=4, mlp=1024, dropout=0.3, norm="pre", vocabulary=8000,
        batch_tokens=4096, epochs=25, optimizer="muon", lr=3e-3, warmup=0.1, weight_decay=0.05, ema=0.998,
    )  # fmt: skip


def translate_finetune() -> Config:
    """A translator that is trained already, on other text: a lower rate, fewer epochs.

    regard train DATA --from RUN --tokenizer keep

    The default for --from. No published figure is behind it; docs/translation.md has a small one.
    """
    return Config.of(
        model="transformer_base", dropout=0.1, vocabulary=8000, batch_tokens=4096, epochs=10, lr=3e-4, warmup=0.1,
        weight_decay=0.01, ema=0.99,
    )  # fmt: skip


def dates() -> Config:
    """The demo's made corpus: dates and numbers from English to German and Korean, on two CPU cores.

    regard demo translate

    About 155 seconds of one core; 99.4 and 99.2 % of the test sentences right to the letter, with two seeds.
    """
    return Config.of(
        model="transformer_nano", width=64, mlp=256, norm="pre", dropout=0.05, vocabulary=600, batch_tokens=1024,
        epochs=8, optimizer="muon", lr=5e-3, warmup=0.1, weight_decay=0.05, label_smoothing=0.0, ema=0.99, explain=4,
    )  # fmt: skip


RECIPES: dict[str, Callable[[], Config]] = {
    f.__name__: f for f in (translate, translate_small, translate_finetune, dates)
}
