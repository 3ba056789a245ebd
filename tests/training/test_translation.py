"""Translation goes the whole way through the same loop: trained, stopped and resumed, tested, compared, used."""

import csv
import io
import re
import signal
from typing import Any

import pytest
import torch

import regard
from regard import tasks
from regard.data.feed import TextFeed
from regard.data.text import EncodedPairs, TextLoader, train_tokenizers
from regard.errors import ConfigError, DataError, RunError
from regard.settings import RunConfig
from regard.tasks.translation.loss import NextWord
from regard.training import Step, Training, learning_rate
from regard.weights import Run
from tests.conftest import NUMBERS, SMALL_TRANSLATOR, ZAHLEN, settings_of, write_pairs
from tests.loading import load_translator
from tests.weights.parity import gradients


def test_it_learns_and_its_folder_says_all(translation_run):
    summary = translation_run.read_json("summary.json")
    assert summary["figures"]["exact_match"]["value"] > 0.9
    assert summary["figures"]["bleu"]["low"] <= summary["figures"]["bleu"]["value"] <= 100
    assert summary["figures"]["perplexity"]["value"] < 1.5
    assert summary["signatures"]["bleu"].startswith("nrefs:1|case:mixed")
    rows = translation_run.read_rows("predictions.csv")
    assert len(rows) == 30
    assert rows[0].keys() == {"name", "source", "reference", "translation", "score"}
    config = settings_of(translation_run)
    assert config["model"] == {"value": "transformer_nano", "origin": "flag"}
    assert config["recipe"]["value"] == "translate_small"
    assert config["norm"] == {"value": "pre", "origin": "recipe"}
    assert translation_run.read_json("data.json")["languages"] == ["en", "de"]
    page = (translation_run.path / "report.html").read_text(encoding="utf-8")
    assert "BLEU" in page
    assert rows[0]["reference"] in page
    assert '<table class="wrap"><thead><tr><th>source' in page, "sentences are broken into lines, not cut off"
    assert len(translation_run.read_json("explain/words.json", list)) == 2
    assert 'id="words-data"' in page
    assert "exact" in (translation_run.path / "model_card.md").read_text(encoding="utf-8").lower()


def test_a_loaded_run_translates_and_streams(translation_run):
    translator = load_translator(translation_run.path)
    answer = translator.predict("one two", best=3)
    assert answer.text == "eins zwei"
    assert len(answer.others) == 2
    assert answer.score >= answer.others[0][1] >= answer.others[1][1]
    assert "".join(translator.stream("one two")) == "eins zwei"
    many = list(translator.predict_many(["one", "", "two three"], batch_size=2))
    assert [a.text for a in many] == ["eins", "", "zwei drei"]
    assert regard.load(translation_run.checkpoint("last")).predict("one").text
    with pytest.raises(ConfigError, match="one text is given"):
        next(translator.predict_many("one"))


def test_evaluation_is_that_of_the_run(translation_run, pairs_folder, capsys):
    result = regard.evaluate(translation_run.path, pairs_folder)
    assert "of these 30 pairs" in capsys.readouterr().err, "a test set stays whole; what training had too is counted"
    summary = translation_run.read_json("summary.json")
    assert result.figures["bleu"].value == pytest.approx(summary["figures"]["bleu"]["value"])
    assert result.figures["perplexity"].value == pytest.approx(summary["figures"]["perplexity"]["value"], rel=1e-5)
    assert regard.evaluate(translation_run.path, pairs_folder, split="val", quiet=True).figures["bleu"].n == 30
    with pytest.raises(DataError, match="no split 'exam'"):
        regard.evaluate(translation_run.path, pairs_folder, split="exam", quiet=True)


@pytest.mark.parametrize("model", ["transformer_nano", "rnn_nano"])
def test_stopped_and_resumed_it_ends_with_the_very_weights(pairs_folder, tmp_path, monkeypatch, model):
    without = ("heads", "mlp") if model == "rnn_nano" else ()
    settings: dict[str, Any] = {**SMALL_TRANSLATOR, "model": model, "epochs": 3}
    settings = {name: value for name, value in settings.items() if name not in without}
    whole = regard.train(pairs_folder, **settings, out=tmp_path / "whole")
    pause = Training._save_if_due

    def asked_to_stop(training):
        if training.history.updates == 20:
            training.stop.wanted = signal.SIGTERM
        pause(training)

    monkeypatch.setattr(Training, "_save_if_due", asked_to_stop)
    with pytest.raises(SystemExit):
        regard.train(pairs_folder, **settings, out=tmp_path / "stopped")
    monkeypatch.undo()
    assert not (tmp_path / "stopped" / "summary.json").exists()
    again = regard.resume(tmp_path / "stopped", quiet=True)
    for name in ("best", "last"):
        ours, theirs = (load_translator(r.checkpoint(name)).model.state_dict() for r in (whole, again))
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    rows = [[row["train_loss"] for row in r.read_rows("metrics.csv")] for r in (whole, again)]
    assert rows[0] == rows[1]


def test_few_sentences_still_make_ten_steps_an_epoch(pairs_folder, tmp_path):
    settings: dict[str, Any] = {**SMALL_TRANSLATOR, "epochs": 2, "explain": 0}
    del settings["batch_tokens"]
    run = regard.train(pairs_folder, **settings, out=tmp_path / "few")
    chosen = settings_of(run)["batch_tokens"]
    assert chosen["origin"] == "auto"
    assert 64 <= chosen["value"] < 1000
    assert 10 <= int(run.read_rows("metrics.csv")[0]["step"]) <= 25
    whole = regard.train(pairs_folder, **settings, batch_tokens=4096, out=tmp_path / "whole")
    assert int(whole.read_rows("metrics.csv")[0]["step"]) < 5


def test_a_run_is_not_resumed_on_other_sentences(pairs_folder, tmp_path, translation_run):
    (translation_run.path / "report.html").rename(tmp_path / "report.html")
    try:
        with pytest.raises(RunError, match="the data has changed"):
            regard.resume(translation_run.path, data=write_pairs(tmp_path / "other", 580), quiet=True)
    finally:
        (tmp_path / "report.html").rename(translation_run.path / "report.html")


def test_without_splits_nothing_learnt_from_is_tested_on(tmp_path, capsys):
    table = tmp_path / "pairs.tsv"
    lines = [
        f"{a} {b}\t{c} {d}" for a, c in zip(NUMBERS, ZAHLEN, strict=True) for b, d in zip(NUMBERS, ZAHLEN, strict=True)
    ]
    table.write_text("\n".join(lines), encoding="utf-8")
    run = regard.train(table, **SMALL_TRANSLATOR, steps=3, out=tmp_path / "run")
    counts = run.read_json("data.json")["counts"]
    result = regard.evaluate(run.path, table)
    assert result.figures["bleu"].n == counts["test"]
    assert f"left out: {100 - counts['test']} pairs that this model was trained or chosen on" in capsys.readouterr().err
    assert regard.evaluate(run.path, table, split="all", quiet=True).figures["bleu"].n == 100
    known = tmp_path / "known.tsv"
    train = [row["name"] for row in run.read_rows("splits.csv") if row["split"] == "train"][:5]
    known.write_text("\n".join(lines[int(name.split(":")[1]) - 1] for name in train), encoding="utf-8")
    with pytest.raises(DataError, match="trained or chosen on every one of these pairs"):
        regard.evaluate(run.path, known, quiet=True)


def test_comparison_of_runs(translation_run, pairs_folder, tmp_path):
    worse = regard.train(pairs_folder, **SMALL_TRANSLATOR, epochs=1, out=tmp_path / "worse")
    made = regard.compare(worse.path, translation_run.path)[str(translation_run.path)]["bleu"]
    assert made.difference.value > 0
    assert made.tests["randomisation"] < 0.05
    assert (
        regard.compare(translation_run.path, translation_run.path)[str(translation_run.path)]["chrf"].difference.value
        == 0
    )
    rows = translation_run.read_rows("predictions.csv")[:-1]
    other = Run(tmp_path / "other")
    for name in ("config.json", "data.json"):
        other.path.mkdir(exist_ok=True)
        (other.path / name).write_text((translation_run.path / name).read_text())
    other.write_rows("predictions.csv", rows)
    with pytest.raises(ConfigError, match="not tested on the same samples"):
        regard.compare(translation_run.path, other.path)


def test_pieces_of_a_step_add_up_to_the_whole(pairs_folder):
    """What memory forces apart is weighed by words, not by rows: gradients are those of the whole batch."""
    tokenizers = train_tokenizers(["one two three"], ["eins zwei drei"], 280)
    pairs = EncodedPairs(tokenizers, ["one", "two three", "one two three"], ["eins", "zwei drei", "eins zwei drei"])
    loader = TextLoader(pairs, [0, 1, 2], 1000, shapes=1)
    batch = next(TextFeed(loader, torch.device("cpu")).epoch(0, 0, lambda batches: batches))
    assert (sorted(batch.numbers), batch.total, batch.share) == ([0, 1, 2], 3, 1.0)
    ends = []
    for pieces in (1, 3):
        torch.manual_seed(0)
        model = regard.create("transformer_nano", vocabulary=280, width=16, depth=1, heads=2, mlp=16, dropout=0.0)
        step = Step(model, NextWord(0, 0.1), RunConfig(), torch.device("cpu"))
        loss = step.gradients.backward([batch], pieces)
        ends.append((loss, gradients(model)))
    torch.testing.assert_close(ends[0], ends[1], atol=1e-6, rtol=1e-5)


def test_the_loss_is_that_of_torch_on_real_words_alone():
    logits, target = torch.randn(2, 4, 9), torch.tensor([[1, 5, 6, 2, 0], [1, 7, 2, 0, 0]])
    task = NextWord(0, 0.1)
    output = type("Output", (), {"logits": logits})
    expected = torch.nn.functional.cross_entropy(
        torch.stack([logits[0, 0], logits[0, 1], logits[0, 2], logits[1, 0], logits[1, 1]]),
        torch.tensor([5, 6, 2, 7, 2]), label_smoothing=0.1,
    )  # fmt: skip
    torch.testing.assert_close(task.loss(output, {"target": target}), expected)
    assert task.num_targets({"target": target}) == 5
    assert task.log_likelihoods(output, target)[1].tolist() == [3, 2]
    empty = torch.tensor([[1, 0, 0, 0, 0]])
    assert task.loss(type("Output", (), {"logits": logits[:1]}), {"target": empty}) == 0


def test_the_papers_schedule():
    """Equation 3: d^-0.5 · min(step^-0.5, step · warmup^-1.5), with the peak in place of d^-0.5 · warmup^-0.5."""
    rate = [learning_rate(s, 100_000, 512**-0.5 * 4000**-0.5, 0.04, "inverse_sqrt") for s in (0, 3999, 15_999)]
    assert rate == pytest.approx([512**-0.5 * min(s**-0.5, s * 4000**-1.5) for s in (1, 4000, 16_000)])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model": "transformer_nano", "mixup": 0.2}, "translation has no setting 'mixup'"),
        ({"model": "transformer_nano", "recipe": "cifar"}, "not for classification"),
        ({"recipe": "translate", "model": "vit_nano"}, "not for translation"),
        ({"mixup": 0.2}, "translation has no setting 'mixup'"),
    ],
)
def test_settings_of_images_are_refused(pairs_folder, settings, says):
    with pytest.raises(ConfigError, match=says):
        regard.train(pairs_folder, quiet=True, **settings)


def test_a_rehearsal_prints_the_plan_and_writes_nothing(pairs_folder, tmp_path, capsys):
    regard.train(pairs_folder, **SMALL_TRANSLATOR, epochs=3, dry_run=True, out=tmp_path / "run")
    said = capsys.readouterr().out
    assert re.search(r"pairs +train 540, val 30, test 30", said)
    assert "of up to 256 tokens per side" in said
    assert not (tmp_path / "run").exists()


def test_steps_in_place_of_epochs(pairs_folder, tmp_path):
    run = regard.train(pairs_folder, **SMALL_TRANSLATOR, steps=5, out=tmp_path / "run")
    assert run.read_rows("metrics.csv")[-1]["step"] == "5"


def test_what_is_parallel_text_and_what_is_not(pairs_folder, picture_folder, tmp_path):
    chosen = [tasks.choose(data, {})[0].name for data in ("dates", pairs_folder, picture_folder, tmp_path, "digits")]
    assert chosen == ["translation"] * 2 + ["classification"] * 3
    given = {name: value for name, value in SMALL_TRANSLATOR.items() if name != "model"}
    run = regard.train(pairs_folder, **given, steps=1, out=tmp_path / "run")
    assert settings_of(run)["model"]["value"] == "transformer_base"


def test_a_damaged_checkpoint_or_a_lone_one_is_refused(translation_run, tmp_path):
    lone = tmp_path / "lone.safetensors"
    lone.write_bytes(translation_run.checkpoint().read_bytes())
    with pytest.raises(RunError, match="tokenizers are missing"):
        regard.load(lone)
    lone.write_bytes(translation_run.checkpoint().read_bytes()[:-100])
    with pytest.raises(regard.RegardError):
        regard.load(lone)


def test_the_command_line(translation_run, pairs_folder, tmp_path, cli, monkeypatch):
    code, out, err = cli("predict", str(translation_run.path), "one two", "three")
    assert (code, out.split("\n")[:2]) == (0, ["eins zwei", "drei"]), err
    (tmp_path / "text.en").write_text("four\nfive\n")
    table = tmp_path / "out.csv"
    assert cli("predict", str(translation_run.path), str(tmp_path / "text.en"), "--out", str(table))[0] == 0
    with table.open(encoding="utf-8") as file:
        assert [row["translation"] for row in csv.DictReader(file)] == ["vier", "fünf"]
    assert "  " in cli("predict", str(translation_run.path), "one", "--best", "2")[1]
    code, _, err = cli("predict", str(translation_run.path), "missing.txt")
    assert code == 2
    assert "no such file" in err
    assert cli("predict", str(translation_run.path), "one two three " * 40 + "file.txt")[0] == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"two\nthree\n")))
    assert cli("predict", str(translation_run.path), "-")[1].split() == ["zwei", "drei"]
    code, out, err = cli("eval", str(translation_run.path), str(pairs_folder), "--quiet")
    assert code == 0, err
    assert "bleu" in out
    assert "nrefs:1" in out
    assert re.search(r"bleu +\d+\.\d\d +\d+\.\d\d to", out)
    code, out, err = cli("check", str(pairs_folder))
    assert "pairs left out: 0" in out
    assert (out + err).count("with partners in de") == 1
    assert "de → en" in cli("check", str(pairs_folder), "--source", "de", "--target", "en")[1]
    code, _, err = cli("predict", str(translation_run.path))
    assert code == 2
    assert "no sentences" in err
    compared = cli("compare", translation_run.path, translation_run.path)[1]
    assert "bleu: no clear difference: +0.00," in compared
    overview = compared.splitlines()[1].split()
    assert overview[2:3] == ["text"]
    assert re.fullmatch(r"\d+\.\d\d", overview[3]), "as many decimals as BLEU is given with elsewhere"
    code, _, err = cli("predict", translation_run.path, "one two", "--source", "de")
    assert (code, "there is no flag --source here" in err) == (2, True)
    assert cli("compare", str(translation_run.path))[0] == 2
    assert cli("report", str(translation_run.path))[0] == 0
    code, out, err = cli("explain", str(translation_run.path), "one two", "three", "--out", tmp_path / "why.png")
    assert code == 0, err
    assert "random orders" in out
    assert (tmp_path / "why.png").stat().st_size > 5000
    assert (tmp_path / "why-2.png").is_file()
    code, out, err = cli("inspect", str(translation_run.path), "--out", tmp_path / "inside.png")
    assert code == 2
    assert "not for networks that predict words" in err


def test_validation_data_inside_training_data_is_told_everywhere(tmp_path, capsys):
    data = write_pairs(tmp_path / "data", 150)
    for language in ("en", "de"):
        lines = (data / f"train.{language}").read_text(encoding="utf-8").splitlines(keepends=True)
        (data / f"val.{language}").write_text("".join(lines[:10]), encoding="utf-8")
    run = regard.train(data, **SMALL_TRANSLATOR | {"quiet": False, "explain": 0}, steps=1, out=tmp_path / "run")
    line = "10 pairs of val and 10 source sentences are in train too: weights are chosen by training sentences"
    assert f"warning: {line}\n" in capsys.readouterr().err
    for name in ("report.html", "model_card.md"):
        assert line in (run.path / name).read_text(encoding="utf-8")
