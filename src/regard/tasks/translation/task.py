"""Translation for the runner: its data, tokenizers, batches, figures and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from regard import registry
from regard.config import to_dict
from regard.console import Progress
from regard.data.feed import TextFeed
from regard.data.splits import keep_some, split
from regard.data.text import (
    EncodedPairs,
    TextDataset,
    TextLoader,
    Tokenizers,
    open_pairs,
    open_tokenizer,
    train_tokenizers,
)
from regard.data.text.tokens import KINDS
from regard.errors import ConfigError
from regard.metrics import Comparison, compare_translations
from regard.networks.translator import Translator as Network
from regard.nn import Attention
from regard.task import Choice, Job
from regard.task import Task as BaseTask
from regard.tasks.translation.evaluation import TranslationEvaluation, evaluate_translator, likelihoods
from regard.tasks.translation.loss import NextWord
from regard.tasks.translation.page import WORDS, page
from regard.tasks.translation.predictor import TOKENIZERS, Translator
from regard.tasks.translation.settings import LARGE, Config, EvalOptions, LoadOptions, SearchOptions
from regard.tasks.translation.transfer import TextStart, open_text_start
from regard.training import ALONE, World
from regard.weights import Checkpoint, Run, find_run

MOST_HELD_OUT = 2000
"""Pairs that a cut takes at most: an interval of BLEU hardly narrows with more, and training needs the rest."""
FEWEST = 64  # tokens per batch, however few sentences there are
BY_CHARACTERS = ("ja", "ko", "th", "jpn", "kor", "tha", "japanese", "korean", "thai")
"""Languages whose words sacreBLEU's usual tokenizer does not separate: BLEU counts characters."""


class Task(BaseTask):
    name: ClassVar[str] = "translation"
    best: ClassVar[Any] = ("loss", "min")
    headline: ClassVar[tuple[str, ...]] = ("bleu", "exact_match")
    identity: ClassVar[tuple[str, ...]] = ("name", "source", "reference")
    files: ClassVar[tuple[str, ...]] = (
        *(f"{TOKENIZERS}/{name}.json" for name in ("tokenizer", "source", "target")), "transfer.json"
    )  # fmt: skip

    def __init__(self, job: Job):
        super().__init__(job)
        self.tokenizers: Tokenizers
        self.pairs: EncodedPairs

    @property
    def corpus(self) -> TextDataset:
        assert isinstance(self.job.dataset, TextDataset)
        return self.job.dataset

    @property
    def config(self) -> Config:
        assert isinstance(self.job.config, Config)
        return self.job.config

    @classmethod
    def open(cls, data: str | Path, config: Any, progress: Progress) -> TextDataset:
        return replace(open_pairs(data, config.data.source, config.data.target), path=str(data))

    @classmethod
    def start(cls, config: Any, model: str | None, dataset: Any) -> TextStart | None:
        path = config.transfer.weights
        if path is None and config.data.tokenizer == "keep":
            raise ConfigError("--tokenizer keep is that of trained weights", do="give them by --from")
        return None if path is None else open_text_start(path, model, config.model.fields())

    @classmethod
    def choose(
        cls, dataset: Any, start: Any, asked: Mapping[str, Any], gpu: bool, given: list[str | None] | None = None
    ) -> Choice:
        if asked.get("recipe"):
            return Choice(asked["recipe"])
        if start:
            return Choice("translate_finetune", {}, "for trained weights: their network, a lower rate")
        if dataset.kind == "made":
            return Choice("dates")
        return Choice("translate" if len(dataset) > LARGE else "translate_small")

    @classmethod
    def from_data(cls, config: Any, dataset: Any) -> dict[str, Any]:
        return {}

    @classmethod
    def split(cls, dataset: Any, config: Any, given: list[str | None] | None = None) -> tuple[list[str], str]:
        splits, note = split(dataset, config.data.split_seed, config.data.holdout, MOST_HELD_OUT, given)
        if config.data.pairs is not None:
            splits = keep_some(dataset, splits, config.data.pairs, config.general.seed)
            note += f"; {config.data.pairs} training pairs are used, drawn with seed {config.general.seed}"
        return splits, note

    def prepare(self, progress: Progress, about: dict[str, Any] | None, folder: Path | None) -> None:
        corpus = self.corpus
        if self.job.origins.get("length") == "flag" and self.config.model.fields().get("positions") != "learned":
            do = "give --positions learned, or leave --length out"
            raise ConfigError("length is of learned positions only: others have no largest number of tokens", do=do)
        self.tokenizers = Tokenizers.load(folder / TOKENIZERS) if folder else self._tokenizers(progress)
        self.pairs = EncodedPairs(self.tokenizers, corpus.sources, corpus.targets)
        if self.start_weights:
            for line in self.start_weights.lines(self.tokenizers):
                progress.say(line)

    @property
    def start_weights(self) -> TextStart | None:
        return self.job.start

    def _tokenizers(self, progress: Progress) -> Tokenizers:
        """Trained on the training sentences, those of the weights, or those of a file."""
        corpus, data, train = self.corpus, self.config.data, self.job.part("train")
        if data.tokenizer in KINDS:
            progress.say(f"learning a vocabulary of up to {data.vocabulary:,} tokens from {len(train):,} pairs")
            return train_tokenizers(
                [corpus.sources[n] for n in train], [corpus.targets[n] for n in train], data.vocabulary,
                data.tokenizer, joint=data.joint, codes=corpus.codes,
            )  # fmt: skip
        for name in ("vocabulary", "joint"):
            if self.job.origins.get(name) == "flag":
                what = f"{name} is for tokenizers trained here; --tokenizer {data.tokenizer} is one already"
                raise ConfigError(what, do=f"leave --{name} out, or give --tokenizer bpe")
        if data.tokenizer == "keep":
            assert self.start_weights is not None
            return self.start_weights.tokenizers
        tokenizers = open_tokenizer(data.tokenizer)
        progress.say(f"{data.tokenizer}: {tokenizers.source.size:,} tokens for both languages")
        return tokenizers

    def build(self, about: dict[str, Any] | None) -> Network:
        model = self.config.model
        if about:
            return registry.build(model.model, **about["model"])
        source, target = self.tokenizers.source, self.tokenizers.target
        words = {"padding": target.pad, "start": target.start, "end": target.end}
        vocabulary = target.size if self.tokenizers.shared else (source.size, target.size)
        if not self.tokenizers.shared and model.fields().get("embeddings") == "shared":
            what = "shared embeddings need one vocabulary for both languages"
            raise ConfigError(what, do="leave --no-joint out, or give --embeddings tied where the weights allow it")
        network = registry.build(model.model, vocabulary=vocabulary, **words, **model.fields())
        if self.start_weights:
            self.start_weights.load_into(network, self.tokenizers)
        return network

    def batch_settings(self, progress: Progress) -> dict[str, Any]:
        """A batch for so few sentences: at least ten steps per epoch."""
        data = self.config.data
        if self.job.origins["batch_tokens"] == "flag":
            return {}
        lengths = np.maximum(*self.pairs.lengths(np.array(self.job.part("train"))))
        lengths = lengths[lengths <= data.max_length]
        few = max(int(lengths.sum()) // 10, int(lengths.max(initial=FEWEST)))
        return {"batch_tokens": few} if few < data.batch_tokens else {}

    def batches_per_epoch(self) -> int:
        return len(self._training_loader(ALONE))

    def _training_loader(self, world: World) -> TextLoader:
        data = self.config.data
        return TextLoader(
            self.pairs, self.job.part("train"), data.batch_tokens, shuffle=self.config.general.seed,
            longest=data.max_length, rank=world.rank, ranks=world.size,
        )  # fmt: skip

    def feed(self, world: World) -> TextFeed:
        return TextFeed(self._training_loader(world), self.device)

    def loader(self, part: str, world: World | None = None, limit: int | None = None) -> TextLoader:
        index, world = self.job.part(part)[:limit], world or ALONE
        return evaluation_loader(self.pairs, index, self.config.data.batch_tokens, world)

    @property
    def objective(self) -> NextWord:
        return NextWord(self.tokenizers.target.pad, self.config.task.label_smoothing)

    def validate(self, model: nn.Module, loader: TextLoader, tick: Any, world: World) -> dict[str, float]:
        sums, counts = likelihoods(model, loader, self.device, tick)
        total, count = world.sums([float(sums.sum()), float(counts.sum())])
        return {"loss": -total / count}

    def checkpoint(self, progress: dict[str, Any], weights: dict[str, Tensor]) -> Checkpoint:
        details = {"languages": [self.corpus.source, self.corpus.target]}
        return Checkpoint(
            self.config.model.model, to_dict(self.model.config), progress=progress, weights=weights, task=self.name,
            details=details,
        )  # fmt: skip

    def about(self) -> dict[str, Any]:
        return {"model": to_dict(self.model.config)}

    def write(self, run: Run, progress: Progress) -> None:
        (run.path / TOKENIZERS).mkdir()
        self.tokenizers.save(run.path / TOKENIZERS)
        if self.start_weights:
            folder, (tested, *_) = find_run(self.start_weights.path), self.tests
            rows = [] if folder is None else folder.seen_rows()
            seen = len(self.corpus.seen(rows).intersection(self.job.part(tested)))
            if seen:
                progress.say(f"warning: the weights come from a run that has seen {seen} of the sources of {tested}")
            run.write_json("transfer.json", self.start_weights.to_json(self.tokenizers) | {f"seen_in_{tested}": seen})
        left_out = len(self._training_loader(ALONE).left_out)
        if left_out:
            longest = self.config.data.max_length
            progress.say(f"training pairs of more than {longest} tokens, which are not trained on: {left_out:,}")

    @property
    def input_words(self) -> str:
        sizes = sorted({self.tokenizers.source.size, self.tokenizers.target.size})
        return f"{' and '.join(f'{size:,}' for size in sizes)} tokens"

    @property
    def step_words(self) -> str:
        return f"up to {self.config.data.batch_tokens * self.config.optim.accumulate:,} tokens per side"

    def trained(self, run: Run) -> Translator:
        return Translator.open(run.path, self.device)

    def evaluate(self, trained: Translator, part: str, tick: Any) -> TranslationEvaluation:
        return _evaluate(trained, self.corpus, self.job.part(part), self.loader(part), SearchOptions(), tick)

    def extra_summary(self, result: Any) -> dict[str, Any]:
        return {"padding": round(self._training_loader(ALONE).padding, 4)}

    def explain(self, run: Run, trained: Translator, result: TranslationEvaluation, progress: Progress) -> None:
        """Keep the attention of a few tested sentences, at even distances, for the report."""
        if not any(isinstance(module, Attention) for module in trained.model.modules()):
            return
        count = min(self.config.general.explain, len(result.answers))
        chosen = [result.answers[n * len(result.answers) // count] for n in range(count)]
        made = []
        with progress.bar("explaining", len(chosen)) as tick:
            for number, answer in enumerate(chosen, start=1):
                if answer.text:
                    made.append(trained.explain(answer.source, answer.text).to_json())
                tick(number)
        if made:
            run.write_json(WORDS, made)

    page = staticmethod(page)

    @classmethod
    def predictor(cls, path: str | Path, device: torch.device, options: LoadOptions, progress: Progress) -> Translator:
        return Translator.open(path, device, options.average)

    @classmethod
    def open_for(cls, predictor: Translator, data: str | Path, config: Any, progress: Progress) -> Any:
        if not (config.data.source and config.data.target) and Path(data).expanduser().is_dir():
            what = "the weights do not say which languages they translate"
            do = "give --source and --target as the files of the data end, such as --source en --target de"
            raise ConfigError(what, do=do)
        return cls.open(data, config, progress)

    @classmethod
    def evaluate_on(
        cls, predictor: Translator, dataset: Any, index: list[int], options: EvalOptions, progress: Progress
    ) -> TranslationEvaluation:
        pairs = EncodedPairs(predictor.tokenizers, dataset.sources, dataset.targets)
        loader = evaluation_loader(pairs, index, 4096, ALONE)
        with progress.bar("translating", len(index)) as tick:
            return _evaluate(predictor, dataset, index, loader, options, tick)

    @classmethod
    def compare(
        cls, first: Sequence[Mapping[str, str]], second: Sequence[Mapping[str, str]], data: dict[str, Any]
    ) -> dict[str, Comparison]:
        ours, theirs = ([row["translation"] for row in rows] for rows in (first, second))
        references = [row["reference"] for row in first]
        return compare_translations(ours, theirs, references, tokenize=tokenization(data["languages"][1]))


def evaluation_loader(pairs: EncodedPairs, index: list[int], batch_tokens: int, world: World) -> TextLoader:
    """Every pair, however long."""
    most = max(int(lengths.max()) for lengths in pairs.lengths(np.array(index)))
    return TextLoader(pairs, index, max(most, batch_tokens), rank=world.rank, ranks=world.size)


def _evaluate(
    translator: Translator, corpus: TextDataset, index: list[int], loader: TextLoader, options: SearchOptions, tick: Any
) -> TranslationEvaluation:
    beams, penalty = translator.search_settings(options.beam_size, options.length_penalty)
    language = translator.languages[1] if translator.knows_languages else corpus.target
    return evaluate_translator(
        translator.model, translator.tokenizers, loader, [corpus.key(n) for n in index],
        [corpus.sources[n] for n in index], [corpus.targets[n] for n in index], translator.device,
        beams=beams, penalty=penalty, tokenize=tokenization(language), tick=tick,
    )  # fmt: skip


def tokenization(language: str) -> str:
    """How sacreBLEU is to part words of a language.

    >>> tokenization("de"), tokenization("zh_CN"), tokenization("kor"), tokenization("Korean")
    ('13a', 'zh', 'char', 'char')
    """
    code = language.lower().replace("_", "-").partition("-")[0]
    if code in ("zh", "zho", "chi", "cmn", "chinese"):
        return "zh"
    return "char" if code in BY_CHARACTERS else "13a"
