"""Translation goes the whole way through the same loop: trained, stopped and gone on with, tested, compared, used."""

import csv
import io
import json
import re
import signal
from pathlib import Path

import pytest
import torch
from regard.translating import compare_text, holds_text

import regard
from regard.data.feed import TextFeed
from regard.data.text import EncodedPairs, TextLoader, train_tokenizers
from regard.errors import ConfigError, DataError, RunError
from regard.tasks import NextWord
from regard.training import Step, Training, learning_rate
from regard.weights import Run

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
ZAHLEN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
SMALL = {
    "model": "transformer_nano", "width": 32, "depth": 1, "heads": 2, "mlp": 64, "vocabulary": 300, "batch_tokens": 256,
    "explain": 2, "quiet": True, "device": "cpu",
}  # fmt: skip


def write_pairs(root: Path, count: int = 600) -> Path:
    """One to four digits, spelt one by one."""
    root.mkdir(parents=True, exist_ok=True)
    parts = {"train": range(count - 60), "val": range(count - 60, count - 30), "test": range(count - 30, count)}
    for part, numbers in parts.items():
        for language, words in (("en", NUMBERS), ("de", ZAHLEN)):
            lines = [" ".join(words[int(d)] for d in f"{n * 7919 % 10000:04d}"[: 1 + n % 4]) for n in numbers]
            (root / f"{part}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("pairs") / "digits")


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return regard.train(data, **SMALL, epochs=40, lr=1e-2, label_smoothing=0.0, dropout=0.0, out=out)


def test_it_learns_and_its_folder_says_all(run):
    summary = run.read_json("summary.json")
    assert summary["figures"]["exact_match"]["value"] > 0.9
    assert summary["figures"]["bleu"]["low"] <= summary["figures"]["bleu"]["value"] <= 100
    assert summary["figures"]["perplexity"]["value"] < 1.5
    assert summary["signatures"]["bleu"].startswith("nrefs:1|case:mixed")
    rows = run.read_rows("predictions.csv")
    assert len(rows) == 30
    assert rows[0].keys() == {"name", "source", "reference", "translation", "score"}
    config = json.loads((run.path / "config.json").read_text())
    assert config["model"] == {"value": "transformer_nano", "origin": "flag"}
    assert config["recipe"]["value"] == "translate_small"
    assert config["norm"] == {"value": "pre", "origin": "recipe"}
    assert run.read_json("data.json")["languages"] == ["en", "de"]
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "BLEU" in page
    assert rows[0]["reference"] in page
    assert len(run.read_json("explain/words.json")) == 2
    assert 'id="words-data"' in page
    assert "exact" in (run.path / "model_card.md").read_text(encoding="utf-8").lower()


def test_a_loaded_run_translates_and_streams(run):
    interpreter = regard.load(run.path)
    answer = interpreter.predict("one two", best=3)
    assert answer.text == "eins zwei"
    assert len(answer.others) == 2
    assert answer.score >= answer.others[0][1] >= answer.others[1][1]
    assert "".join(interpreter.stream("one two")) == "eins zwei"
    many = list(interpreter.predict_many(["one", "", "two three"], together=2))
    assert [a.text for a in many] == ["eins", "", "zwei drei"]
    assert regard.load(run.checkpoint("last")).predict("one").text
    with pytest.raises(ConfigError, match="one text is given"):
        next(interpreter.predict_many("one"))


def test_evaluation_is_that_of_the_run(run, data):
    result = regard.evaluate(run.path, data, quiet=True)
    summary = run.read_json("summary.json")
    assert result.figures["bleu"].value == pytest.approx(summary["figures"]["bleu"]["value"])
    assert result.figures["perplexity"].value == pytest.approx(summary["figures"]["perplexity"]["value"], rel=1e-5)
    assert regard.evaluate(run.path, data, split="val", quiet=True).figures["bleu"].n == 30
    with pytest.raises(DataError, match="there is no split 'exam'"):
        regard.evaluate(run.path, data, split="exam", quiet=True)


@pytest.mark.parametrize("model", ["transformer_nano", "rnn_nano"])
def test_stopped_and_gone_on_with_it_ends_with_the_very_weights(data, tmp_path, monkeypatch, model):
    shape = {"heads": None, "mlp": None} if model == "rnn_nano" else {}
    settings = {k: v for k, v in (SMALL | {"model": model} | shape).items() if v is not None} | {"epochs": 3}
    whole = regard.train(data, **settings, out=tmp_path / "whole")
    pause = Training._pause

    def asked_to_stop(training):
        if training.history.updates == 20:
            training.stop.wanted = signal.SIGTERM
        pause(training)

    monkeypatch.setattr(Training, "_pause", asked_to_stop)
    with pytest.raises(SystemExit):
        regard.train(data, **settings, out=tmp_path / "stopped")
    monkeypatch.undo()
    assert not (tmp_path / "stopped" / "summary.json").exists()
    again = regard.resume(tmp_path / "stopped", quiet=True)
    for name in ("best", "last"):
        ours, theirs = (regard.load(r.checkpoint(name)).model.state_dict() for r in (whole, again))
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    rows = [[row["train_loss"] for row in r.read_rows("metrics.csv")] for r in (whole, again)]
    assert rows[0] == rows[1]


def test_few_sentences_still_make_ten_steps_an_epoch(data, tmp_path):
    settings = {name: value for name, value in SMALL.items() if name != "tokens"} | {"epochs": 2, "explain": 0}
    run = regard.train(data, **settings, out=tmp_path / "few")
    chosen = json.loads((run.path / "config.json").read_text())["tokens"]
    assert chosen["origin"] == "auto"
    assert 64 <= chosen["value"] < 1000
    assert 10 <= int(run.read_rows("metrics.csv")[0]["step"]) <= 25
    whole = regard.train(data, **settings, tokens=4096, out=tmp_path / "whole")
    assert int(whole.read_rows("metrics.csv")[0]["step"]) < 5


def test_a_run_is_not_gone_on_with_on_other_sentences(data, tmp_path, run):
    (run.path / "report.html").rename(tmp_path / "report.html")
    try:
        with pytest.raises(RunError, match="the data has changed"):
            regard.resume(run.path, data=write_pairs(tmp_path / "other", 580), quiet=True)
    finally:
        (tmp_path / "report.html").rename(run.path / "report.html")


def test_without_splits_nothing_learnt_from_is_tested_on(tmp_path, capsys):
    table = tmp_path / "pairs.tsv"
    lines = [
        f"{a} {b}\t{c} {d}" for a, c in zip(NUMBERS, ZAHLEN, strict=True) for b, d in zip(NUMBERS, ZAHLEN, strict=True)
    ]
    table.write_text("\n".join(lines), encoding="utf-8")
    run = regard.train(table, **SMALL, steps=3, out=tmp_path / "run")
    counts = run.read_json("data.json")["counts"]
    result = regard.evaluate(run.path, table)
    assert result.figures["bleu"].n == counts["test"]
    assert f"{100 - counts['test']} sentences that the run has learnt from are left out" in capsys.readouterr().err
    assert regard.evaluate(run.path, table, split="all", quiet=True).figures["bleu"].n == 100
    known = tmp_path / "known.tsv"
    train = [row["name"] for row in run.read_rows("splits.csv") if row["split"] == "train"][:5]
    known.write_text("\n".join(lines[int(name.split(":")[1]) - 1] for name in train), encoding="utf-8")
    with pytest.raises(DataError, match="has learnt from all of these"):
        regard.evaluate(run.path, known, quiet=True)


def test_comparison_of_runs(run, data, tmp_path):
    worse = regard.train(data, **SMALL, epochs=1, out=tmp_path / "worse")
    made = regard.compare(worse.path, run.path)[str(run.path)]["bleu"]
    assert made.difference.value > 0
    assert made.randomised < 0.05
    assert compare_text(run, run)["chrf"].difference.value == 0
    rows = run.read_rows("predictions.csv")[:-1]
    other = Run(tmp_path / "other")
    for name in ("config.json", "data.json"):
        other.path.mkdir(exist_ok=True)
        (other.path / name).write_text((run.path / name).read_text())
    other.write_rows("predictions.csv", rows)
    with pytest.raises(ConfigError, match="not tested on the same sentences"):
        regard.compare(run.path, other.path)


def test_pieces_of_a_step_add_up_to_the_whole(data):
    """What memory forces apart is weighed by words, not by rows: gradients are those of the whole batch."""
    tokenizers = train_tokenizers(["one two three"], ["eins zwei drei"], 280)
    pairs = EncodedPairs(tokenizers, ["one", "two three", "one two three"], ["eins", "zwei drei", "eins zwei drei"])
    loader = TextLoader(pairs, [0, 1, 2], 1000, shapes=1)
    part, numbers, count = next(TextFeed(loader, torch.device("cpu")).epoch(0, 0, lambda batches: batches))
    assert (sorted(numbers), count, part[2]) == ([0, 1, 2], 3, 1.0)
    ends = []
    for pieces in (1, 3):
        torch.manual_seed(0)
        model = regard.create("transformer_nano", vocabulary=280, width=16, depth=1, heads=2, mlp=16, dropout=0.0)
        step = Step(model, NextWord(0, 0.1), regard.config.RunConfig(), torch.device("cpu"))
        step.pieces = pieces
        loss = step.gradients([part])
        ends.append((loss, torch.cat([p.grad.flatten() for p in model.parameters()])))
    torch.testing.assert_close(ends[0], ends[1], atol=1e-6, rtol=1e-5)


def test_the_loss_is_that_of_torch_on_real_words_alone():
    logits, targets = torch.randn(2, 4, 9), torch.tensor([[1, 5, 6, 2, 0], [1, 7, 2, 0, 0]])
    task = NextWord(0, 0.1)
    output = type("Output", (), {"logits": logits})
    expected = torch.nn.functional.cross_entropy(
        torch.stack([logits[0, 0], logits[0, 1], logits[0, 2], logits[1, 0], logits[1, 1]]),
        torch.tensor([5, 6, 2, 7, 2]), label_smoothing=0.1,
    )  # fmt: skip
    torch.testing.assert_close(task.loss(output, targets), expected)
    assert task.amount(targets) == 5
    assert task.log_likelihoods(output, targets)[1].tolist() == [3, 2]
    empty = torch.tensor([[1, 0, 0, 0, 0]])
    assert task.loss(type("Output", (), {"logits": logits[:1]}), empty) == 0


def test_the_papers_schedule():
    """Equation 3: d^-0.5 · min(step^-0.5, step · warmup^-1.5), with the peak in place of d^-0.5 · warmup^-0.5."""
    rate = [learning_rate(s, 100_000, 512**-0.5 * 4000**-0.5, 0.04, "inverse_sqrt") for s in (0, 3999, 15_999)]
    assert rate == pytest.approx([512**-0.5 * min(s**-0.5, s * 4000**-1.5) for s in (1, 4000, 16_000)])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model": "transformer_nano", "mixup": 0.2}, "mixup is for images"),
        ({"model": "rnn_nano", "heads": 2}, "rnn_nano has no heads"),
        ({"model": "transformer_nano", "cell": "gru"}, "transformer_nano has no cell"),
        ({"model": "transformer_nano", "recipe": "cifar"}, "not for translation"),
        ({"model": "transformer_nano", "shard": True}, "shard is not for translation"),
        ({"model": "transformer_nano", "batch_tokens": 0}, "tokens=0 is too small"),
        ({"model": "transformer_nano", "epochs": 2, "steps": 3}, "both steps and epochs"),
        ({"recipe": "translate", "model": "vit_nano"}, "translate"),
    ],
)
def test_settings_that_make_no_sense_are_refused(data, settings, says):
    with pytest.raises(regard.RegardError, match=says):
        regard.train(data, quiet=True, **settings)


def test_a_rehearsal_prints_the_plan_and_writes_nothing(data, tmp_path, capsys):
    regard.train(data, **SMALL, epochs=3, dry_run=True, out=tmp_path / "run")
    said = capsys.readouterr().out
    assert re.search(r"pairs +train 540, val 30, test 30", said)
    assert "of up to 256 tokens a side" in said
    assert not (tmp_path / "run").exists()


def test_steps_in_place_of_epochs(data, tmp_path):
    run = regard.train(data, **SMALL, steps=5, out=tmp_path / "run")
    assert run.read_rows("metrics.csv")[-1]["step"] == "5"


def test_what_is_parallel_text_and_what_is_not(data, picture_folder, tmp_path):
    assert holds_text("dates")
    assert holds_text(data)
    assert not holds_text(picture_folder)
    assert not holds_text(tmp_path)
    assert not holds_text("digits")
    run = regard.train(data, **{k: v for k, v in SMALL.items() if k != "model"}, steps=1, out=tmp_path / "run")
    assert run.read_config()[1].model == "transformer_base"
    with pytest.raises(ConfigError, match="does not translate"):
        regard.train(data, recipe="translate", quiet=True, model="vit_nano", out=tmp_path / "x")


def test_a_damaged_checkpoint_or_a_lone_one_is_refused(run, tmp_path):
    lone = tmp_path / "lone.safetensors"
    lone.write_bytes(run.checkpoint().read_bytes())
    with pytest.raises(RunError, match="tokenizers are missing"):
        regard.load(lone)
    lone.write_bytes(run.checkpoint().read_bytes()[:-100])
    with pytest.raises(regard.RegardError):
        regard.load(lone)


def test_the_command_line(run, data, tmp_path, cli, monkeypatch):
    code, out, err = cli("predict", str(run.path), "one two", "three")
    assert (code, out.split("\n")[:2]) == (0, ["eins zwei", "drei"]), err
    (tmp_path / "text.en").write_text("four\nfive\n")
    table = tmp_path / "out.csv"
    assert cli("predict", str(run.path), str(tmp_path / "text.en"), "--out", str(table))[0] == 0
    with table.open(encoding="utf-8") as file:
        assert [row["translation"] for row in csv.DictReader(file)] == ["vier", "fünf"]
    assert "  " in cli("predict", str(run.path), "one", "--best", "2")[1]
    code, _, err = cli("predict", str(run.path), "missing.txt")
    assert code == 2
    assert "cannot be read" in err
    assert cli("predict", str(run.path), "one two three " * 40 + "file.txt")[0] == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("two\nthree\n"))
    assert cli("predict", str(run.path), "-")[1].split() == ["zwei", "drei"]
    code, out, err = cli("eval", str(run.path), str(data), "--quiet")
    assert code == 0, err
    assert "bleu" in out
    assert "nrefs:1" in out
    assert "pairs left out: 0" in cli("check", str(data))[1]
    assert "de → en" in cli("check", str(data), "--source", "de", "--target", "en")[1]
    code, _, err = cli("predict", str(run.path))
    assert code == 2
    assert "no sentences" in err
    assert "difference" in cli("compare", str(run.path), str(run.path))[1]
    assert cli("compare", str(run.path))[0] == 2
    assert cli("report", str(run.path))[0] == 0
    code, out, err = cli("explain", str(run.path), "one two", "three", "--out", tmp_path / "why.png")
    assert code == 0, err
    assert "random orders" in out
    assert (tmp_path / "why.png").stat().st_size > 5000
    assert (tmp_path / "why-2.png").is_file()
    code, out, err = cli("inspect", str(run.path), "--out", tmp_path / "inside.png")
    assert code == 2
    assert "translator" in err
