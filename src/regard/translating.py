"""A run of translation, from parallel text to its report."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from regard import registry
from regard.config import Origin, change, to_dict
from regard.config_text import TEXT_FIELDS, TranslateConfig
from regard.console import Progress
from regard.data.feed import TextFeed
from regard.data.text import (
    Corpus,
    EncodedPairs,
    TextLoader,
    Tokenizers,
    looks_parallel,
    open_pairs,
    split_pairs,
    train_tokenizers,
)
from regard.errors import ConfigError, DataError, RunError
from regard.evaluation import TranslationEvaluation, evaluate_translator, likelihoods
from regard.interpreter import BEAMS, PENALTY, Interpreter
from regard.metrics import Comparison, compare_translations
from regard.networks.translator import Translator
from regard.nn import Attention
from regard.plan import Plan
from regard.recipes.settle import pick_device
from regard.recipes.translation import TEXT_RECIPES, check_text_settings, settle_text
from regard.report import write_report
from regard.report.translation import WORDS
from regard.runner import add_command, begin_folder, environment, fit, is_finished, rehearse, to_go_on
from regard.tasks import Learning, NextWord
from regard.training import ALONE, Feed, History, State, World, joined, load_state
from regard.weights import TOKENIZERS, Run, TextCheckpoint

FEW = 64  # validation pairs of a rehearsal
FEWEST = 64  # tokens a batch, however few sentences there are
BY_CHARACTERS = ("ja", "ko", "th", "zh", "jpn", "kor", "tha", "zho", "chi", "cmn")
"""Languages whose words sacreBLEU's usual tokenizer does not part: BLEU counts characters."""


@dataclass
class TextPlan(Plan):
    """A run on sentence pairs."""

    corpus: Corpus
    tokenizers: Tokenizers
    pairs: EncodedPairs

    @property
    def text(self) -> TranslateConfig:
        assert isinstance(self.config, TranslateConfig)
        return self.config

    @property
    def tested(self) -> str:
        return self.tests[0]

    @property
    def tests(self) -> list[str]:
        """The test sets, or where there is none the validation set."""
        return sorted({name for name in self.splits if name.startswith("test")}) or ["val"]

    samples: ClassVar[str] = "pairs"

    @property
    def named_splits(self) -> list[str]:
        return ["train", "val", *(name for name in self.tests if name != "val")]

    @property
    def step_size(self) -> str:
        return f"up to {self.text.tokens * self.config.accumulate:,} tokens a side"

    def few(self) -> tuple[int, TextLoader]:
        return FEW, self._loader(self.part("val")[:FEW], ALONE)

    @property
    def reads(self) -> str:
        sizes = sorted({self.tokenizers.source.size, self.tokenizers.target.size})
        return f"{' and '.join(f'{size:,}' for size in sizes)} tokens"

    def key(self, number: int) -> str:
        return self.corpus.key(number)

    def task(self) -> Learning:
        return NextWord(self.tokenizers.target.pad, self.config.smoothing)

    def feed(self, world: World) -> Feed:
        config = self.text
        loader = TextLoader(
            self.pairs, self.part("train"), config.tokens, shuffle=config.seed, longest=config.longest,
            rank=world.rank, ranks=world.size,
        )  # fmt: skip
        return TextFeed(loader, self.device)

    def loader(self, part: str, world: World = ALONE) -> TextLoader:
        return self._loader(self.part(part), world)

    def _loader(self, index: list[int], world: World) -> TextLoader:
        most = max(int(lengths.max()) for lengths in self.pairs.lengths(np.array(index)))
        return TextLoader(self.pairs, index, max(most, self.text.tokens), rank=world.rank, ranks=world.size)

    def judge(
        self, model: nn.Module, validation: TextLoader, tick: Callable[..., None], world: World
    ) -> dict[str, float]:
        sums, counts = likelihoods(model, validation, self.device, tick)
        total, count = world.sums([float(sums.sum()), float(counts.sum())])
        return {"loss": -total / count}

    def checkpoint(self, progress: dict[str, Any], weights: dict[str, Tensor]) -> TextCheckpoint:
        languages = (self.corpus.source, self.corpus.target)
        return TextCheckpoint(self.config.model, to_dict(self.network.config), languages, progress, weights)

    def about(self) -> dict[str, Any]:
        return {"model": to_dict(self.network.config)}

    def test(self, interpreter: Interpreter, part: str, tick: Callable[[int], None]) -> TranslationEvaluation:
        """Figures of one part."""
        index, config = self.part(part), self.text
        return evaluate_translator(
            interpreter.model, self.tokenizers, self.loader(part), [self.key(n) for n in index],
            [self.corpus.sources[n] for n in index], [self.corpus.targets[n] for n in index], self.device,
            beams=config.beams, penalty=config.penalty, tokenize=tokenization(self.corpus.target), tick=tick,
        )  # fmt: skip


def tokenization(language: str) -> str:
    """How sacreBLEU is to part words of a language.

    >>> tokenization("de"), tokenization("zh_CN"), tokenization("kor")
    ('13a', 'zh', 'char')
    """
    code = language.lower().replace("_", "-").partition("-")[0]
    if code in ("zh", "zho", "chi", "cmn"):
        return "zh"
    return "char" if code in BY_CHARACTERS else "13a"


def make_text_plan(
    corpus: Corpus,
    config: TranslateConfig,
    origins: dict[str, Origin],
    progress: Progress,
    *,
    splits: list[str] | None = None,
    tokenizers: Tokenizers | None = None,
    state: State | None = None,
) -> TextPlan:
    """Everything but the run folder; `splits`, `tokenizers` and `state` are a running run's."""
    note, fresh = "as they were", splits is None
    if splits is None:
        splits, note = split_pairs(corpus, config.split_seed)
        progress.say(f"splits: {note}")
        told = ("recipe", "out", *(["epochs"] if config.steps else []))  # steps decide how many epochs there are
        chosen = [n for n, origin in origins.items() if origin in ("recipe", "auto") and n not in told]
        progress.say(f"recipe {config.recipe} and data give " + ", ".join(f"{n}={getattr(config, n)}" for n in chosen))
    if tokenizers is None:
        train = corpus.index("train", splits)
        progress.say(f"learning a vocabulary of up to {config.vocabulary:,} tokens from {len(train):,} pairs")
        tokenizers = train_tokenizers(
            [corpus.sources[n] for n in train], [corpus.targets[n] for n in train], config.vocabulary,
            config.tokenizer, joint=config.joint, codes=corpus.codes,
        )  # fmt: skip
    torch.manual_seed(config.seed)
    model = _network(config, tokenizers, state).to(torch.device(config.device))
    model.checkpointing = config.checkpointing
    parameters = sum(p.numel() for p in model.parameters())
    pairs = EncodedPairs(tokenizers, corpus.sources, corpus.targets)
    if fresh and origins["tokens"] != "flag":
        lengths = np.maximum(*pairs.lengths(np.array(corpus.index("train", splits))))
        lengths = lengths[lengths <= config.longest]
        few = max(int(lengths.sum()) // 10, int(lengths.max(initial=FEWEST)))  # still ten steps an epoch
        if few < config.tokens:
            config, origins["tokens"] = change(config, {"tokens": few}), "auto"
            progress.say(f"tokens={few}, so that an epoch of so few sentences has ten steps")
    plan = TextPlan(config, origins, splits, note, model, parameters, None, corpus, tokenizers, pairs)
    loader = _training_loader(plan)
    if config.steps is not None:
        a_step = -(-len(loader) // config.accumulate)
        plan.config, origins["epochs"] = change(config, {"epochs": -(-config.steps // a_step)}), "auto"
    if loader.left_out:
        progress.say(
            f"{len(loader.left_out):,} training pairs have more than {config.longest} tokens and are not trained on"
        )
    return plan


def _training_loader(plan: TextPlan) -> TextLoader:
    feed = plan.feed(ALONE)
    assert isinstance(feed, TextFeed)
    return feed.loader


def _network(config: TranslateConfig, tokenizers: Tokenizers, state: State | None) -> Translator:
    if state:
        return registry.build(config.model, **state.about["model"])
    source, target = tokenizers.source, tokenizers.target
    fields: dict[str, Any] = {name: value for name in TEXT_FIELDS if (value := getattr(config, name)) is not None}
    words = {"padding": target.pad, "start": target.start, "end": target.end}
    vocabulary = target.size if tokenizers.shared else (source.size, target.size)
    return registry.build(config.model, vocabulary=vocabulary, **words, **fields)


def open_text_folder(plan: TextPlan, data: str, command: str, environment: dict[str, Any]) -> Run:
    """The run folder, with all that is known before training."""
    run = begin_folder(plan, data, command, environment)
    run.write_json("data.json", plan.corpus.to_json(plan.splits, plan.note))
    digests = map(_digest, plan.corpus.sources)
    run.write_rows("splits.csv", [
        {"name": plan.key(n), "split": name, "source": digest}
        for n, (name, digest) in enumerate(zip(plan.splits, digests, strict=True))
    ])  # fmt: skip
    (run.path / TOKENIZERS).mkdir()
    plan.tokenizers.save(run.path / TOKENIZERS)
    return run


def _digest(sentence: str) -> str:
    """By which a sentence is known again, whatever its case and spacing."""
    return hashlib.sha256(" ".join(sentence.casefold().split()).encode()).hexdigest()[:16]


def kept_text(run: Run, corpus: Corpus) -> tuple[list[str], Tokenizers]:
    """Splits and tokenizers of a run that goes on; its data must be what it was."""
    if run.read_json("data.json")["fingerprint"] != corpus.fingerprint():
        do = "put it back as it was, or train anew on what it is now"
        raise RunError("the data has changed since the run began", where=run.path, do=do)
    return [row["split"] for row in run.read_rows("splits.csv")], Tokenizers.load(run.path / TOKENIZERS)


def finish_text(run: Run, plan: TextPlan, history: History, progress: Progress) -> None:
    """Translate every test set with the best weights, once, and write the report."""
    interpreter = Interpreter.open(run.path, plan.device)
    results: dict[str, TranslationEvaluation] = {}
    for part in plan.tests:
        with progress.bar(f"translating {part}", len(plan.part(part))) as tick:
            results[part] = plan.test(interpreter, part, tick)
    best, waiting = history.best or {}, history.waiting / max(history.seconds, 1e-9)
    progress.say(f"training took {history.seconds:.0f} s, of which {waiting:.1%} waiting for data")
    first = results[plan.tested]
    run.write_json("summary.json", {
        "split": plan.tested, "parameters": plan.parameters, "seconds": round(history.seconds, 2),
        "waiting": round(waiting, 4), "skipped_steps": history.skipped, "best_epoch": best.get("epoch"),
        "val_loss": best.get("val_loss"), "padding": round(_training_loader(plan).padding, 4), **first.to_json(),
        "others": {part: result.to_json() for part, result in results.items() if part != plan.tested},
    })  # fmt: skip
    for part, result in results.items():
        name = "predictions.csv" if part == plan.tested else f"predictions-{part}.csv"
        run.write_rows(name, result.predictions())
    _explain_some(run, interpreter, first, plan.config.explain, progress)
    write_report(run)


def _explain_some(
    run: Run, interpreter: Interpreter, result: TranslationEvaluation, count: int, progress: Progress
) -> None:
    """Keep the attention of a few tested sentences, at even distances, for the report's reader to ask."""
    if not any(isinstance(module, Attention) for module in interpreter.model.modules()):
        return
    count = min(count, len(result.answers))
    chosen = [result.answers[n * len(result.answers) // count] for n in range(count)]
    with progress.bar("explaining", len(chosen)) as tick:
        made = []
        for number, answer in enumerate(chosen, start=1):
            if answer.text:
                made.append(interpreter.explain(answer.source, answer.text).to_json())
            tick(number)
    if made:
        run.write_json(WORDS, made)


def evaluate_text(
    interpreter: Interpreter, run: str | Path, data: str | Path, split: str | None, progress: Progress
) -> TranslationEvaluation:
    """Figures of a trained translator on text: of `split`, else of the first test set, else of everything, but then of
    no sentence that the run trained on or chose its weights by."""
    source, target = interpreter.languages
    corpus = open_text_data(data, {"source": source, "target": target} if Path(data).is_dir() else {})
    names = sorted(set(corpus.splits))
    tests = [name for name in names if name.startswith("test")]
    wanted = split or (tests[0] if tests else "all")
    index = list(range(len(corpus))) if wanted == "all" else corpus.index(wanted)
    if not index:
        raise DataError(f"there is no split {wanted!r}", where=data, do=f"there is {', '.join(names) or 'one only'}")
    if split is None and not tests and (seen := _seen(run)):  # a test set stays whole: others have figures on it too
        unseen = [n for n in index if _digest(corpus.sources[n]) not in seen]
        if len(unseen) < len(index):
            progress.say(f"{len(index) - len(unseen):,} sentences that the run has learnt from are left out")
        if not unseen:
            do = "give others, or ask for them by --split all"
            raise DataError("the run has learnt from all of these sentences", where=data, do=do)
        index = unseen
    pairs = EncodedPairs(interpreter.tokenizers, corpus.sources, corpus.targets)
    most = max(int(lengths.max()) for lengths in pairs.lengths(np.array(index)))
    with progress.bar("translating", len(index)) as tick:
        return evaluate_translator(
            interpreter.model, interpreter.tokenizers, TextLoader(pairs, index, max(most, 4096)),
            [corpus.key(n) for n in index], [corpus.sources[n] for n in index], [corpus.targets[n] for n in index],
            interpreter.device, beams=BEAMS, penalty=PENALTY, tokenize=tokenization(corpus.target), tick=tick,
        )  # fmt: skip


def _seen(run: str | Path) -> set[str]:
    """The sources that a run trained on or chose its weights by; none where that is not known."""
    path = Path(run).expanduser()
    path = path if path.is_dir() else path.parent.parent
    if not (path / "splits.csv").is_file():
        return set()
    return {row["source"] for row in Run(path).read_rows("splits.csv") if row["split"] in ("train", "val")}


def compare_text(first: Run, second: Run) -> dict[str, Comparison]:
    """How far the second run is ahead of the first, on the test sentences of both."""
    for run in (first, second):
        if not run.read_config()[1].text:
            raise ConfigError("this run does not translate; `compare` is for those that do", where=run.path)
        if not (run.path / "predictions.csv").is_file():
            raise RunError("the run is not finished", where=run.path, do="`regard resume` goes on with it")
    rows = [run.read_rows("predictions.csv") for run in (first, second)]
    pairs = [[(row["source"], row["reference"]) for row in own] for own in rows]
    if pairs[0] != pairs[1]:
        do = f"`regard eval` each on the same data; they have {len(pairs[0])} and {len(pairs[1])} sentences"
        raise ConfigError("the runs were not tested on the same sentences", where=second.path, do=do)
    ours, theirs = ([row["translation"] for row in own] for own in rows)
    target = first.read_json("data.json")["languages"][1]
    return compare_translations(ours, theirs, [wanted for _, wanted in pairs[0]], tokenize=tokenization(target))


def holds_text(data: str | Path) -> bool:
    """Whether data can be seen to be parallel text: `dates`, or a folder with files such as train.en and train.de.

    A table might be one of images; a translator's name, given as the model, says what it is.
    """
    return str(data) == "dates" or looks_parallel(Path(data).expanduser())


def is_text(data: str | Path, settings: dict[str, Any]) -> bool:
    """Whether a run is one of translation: its model, its recipe or its data say so."""
    model, recipe = settings.get("model"), settings.get("recipe")
    if recipe in TEXT_RECIPES:
        return True
    if model is not None:
        return model in registry.MODELS and registry.config_class(model).inputs == "text"
    return recipe is None and holds_text(data)


def open_text_data(data: str | Path, settings: dict[str, Any]) -> Corpus:
    return open_pairs(data, settings.get("source"), settings.get("target"))


def train_text(
    data: str | Path, settings: dict[str, Any], quiet: bool, command: str | None, resume: bool, dry_run: bool
) -> Run:
    """A run of translation, from its settings to its report."""
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    check_text_settings(settings)
    out, asked = settings.get("out"), change(TranslateConfig(), settings)
    if to_go_on(out, resume):
        opened = Run.open(str(out))
        _, config, origins = opened.read_config()
        assert isinstance(config, TranslateConfig)
        return resume_text(opened, data, config, origins, {}, quiet, command)
    with joined(torch.device(pick_device(asked.device)), asked.timeout) as world:
        progress = Progress(quiet or not world.first)
        if out and world.first:
            Run.require_new(Path(out))
        corpus = open_text_data(data, settings)
        progress.say(f"{data}: {corpus.why}; {len(corpus):,} pairs, {corpus.source} to {corpus.target}")
        corpus.require_sound(asked.unreadable)
        config, origins = settle_text(corpus, settings)
        config = change(config, {"out": world.agree(config.out or "")})
        plan = make_text_plan(corpus, config, origins, progress)
        if dry_run:
            print(rehearse(plan, progress))
            return Run(Path(config.out or ""))
        run = Run(Path(config.out or "").expanduser())
        if world.first:
            command = command or f"regard.train({str(data)!r}, **{settings!r})"
            run = open_text_folder(plan, str(data), command, environment(plan.device))
        world.wait()
        history = fit(run, plan, progress, world)
    if world.first:
        finish_text(run, plan, history, progress)
    return run


def resume_text(
    opened: Run, data: str | Path, config: TranslateConfig, origins: dict[str, Origin], changes: dict[str, Any],
    quiet: bool, command: str | None,
) -> Run:  # fmt: skip
    """Go on with a run of translation."""
    with joined(torch.device(pick_device(config.device)), config.timeout) as world:
        progress = Progress(quiet or not world.first)
        if is_finished(opened, progress):
            return opened
        corpus = open_text_data(data, to_dict(config))
        splits, tokenizers = kept_text(opened, corpus)
        state = load_state(opened.checkpoint("state"))
        plan = make_text_plan(corpus, config, origins, progress, splits=splits, tokenizers=tokenizers, state=state)
        if world.first:
            add_command(opened, command or f"regard.resume({str(opened.path)!r}, **{changes!r})")
        history = fit(opened, plan, progress, world, state)
    if world.first:
        finish_text(opened, plan, history, progress)
    return opened
