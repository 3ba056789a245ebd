"""Several labels learnt jointly: missing ones do not count, figures are those of sklearn on the known rows."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import regard
from regard.cli import main
from regard.errors import ConfigError, DataError
from regard.tasks import find
from regard.tasks.multilabel.data import LABELS, LabelDataset
from regard.tasks.multilabel.evaluation import LabelsEvaluation, compare_labels, doubts, label_auroc
from regard.tasks.multilabel.loss import LabelsEntropy, log_probabilities
from regard.tasks.multilabel.predictor import output_names

TWO: LABELS = (("mgmt", ("0", "1")), ("grade", ("G2", "G3", "G4")))
NANO: dict[str, Any] = {
    "model": "vit_nano", "depth": 1, "width": 32, "heads": 2, "mlp": 64, "size": 16, "patch": 4, "device": "cpu",
    "quiet": True, "label_column": "mgmt,pten,tertp",
}  # fmt: skip


class Output(NamedTuple):
    logits: torch.Tensor


def targets(codes: list[list[int]], sizes: tuple[int, ...]) -> torch.Tensor:
    held = torch.tensor(codes)
    return torch.cat([(held[:, n, None] == torch.arange(size)).float() for n, size in enumerate(sizes)], 1)


def test_the_loss_is_torchs_over_the_known_labels() -> None:
    torch.manual_seed(0)
    codes, sizes = [[0, 2], [1, -1], [-1, 0], [1, 1]], (2, 3)
    logits = torch.randn(4, 5, requires_grad=True)
    wanted = {"probabilities": targets(codes, sizes)}
    parts, held = logits.split(sizes, 1), torch.tensor(codes)
    for smoothing in (0.0, 0.2):
        oracle: Any = sum(
            F.cross_entropy(part, held[:, n], ignore_index=-1, reduction="sum", label_smoothing=smoothing)
            for n, part in enumerate(parts)
        )
        loss = LabelsEntropy(sizes, known=6 / 8, smoothing=smoothing)
        assert torch.allclose(loss.loss(Output(logits), wanted), oracle / 6)
    weights = torch.tensor([1.0, 3.0, 0.5, 2.0, 1.5])
    oracle = sum(
        F.cross_entropy(part, held[:, n], weight=own, ignore_index=-1, reduction="sum")
        for n, (part, own) in enumerate(zip(parts, weights.split(sizes), strict=True))
    )
    assert torch.allclose(LabelsEntropy(sizes, 1.0, 0.0, weights).loss(Output(logits), wanted), oracle / 8)
    LabelsEntropy(sizes).loss(Output(logits), wanted).backward()
    assert logits.grad is not None
    assert not logits.grad[1, 2:].any()
    assert not logits.grad[2, :2].any()
    assert logits.grad[0].all()


def test_a_batch_in_pieces_has_the_same_loss() -> None:
    torch.manual_seed(0)
    logits, wanted = torch.randn(6, 5), targets([[0, -1], [-1, -1], [1, 2], [0, 0], [-1, 1], [1, -1]], (2, 3))
    loss = LabelsEntropy((2, 3), 0.6, 0.1)
    whole = loss.loss(Output(logits), {"probabilities": wanted})
    total = torch.zeros(())
    for part in (slice(0, 2), slice(2, 6)):
        own = {"probabilities": wanted[part]}
        total += loss.loss(Output(logits[part]), own) * loss.num_targets(own)
    assert torch.allclose(total / 6, whole)


def made(n: int = 60) -> LabelsEvaluation:
    draw = np.random.default_rng(0)
    codes = np.stack([draw.integers(0, 2, n), draw.integers(0, 3, n)], 1)
    probs = []
    for label, size in enumerate((2, 3)):
        logits = draw.normal(size=(n, size)) + 1.2 * np.eye(size)[codes[:, label]]
        probs.append(np.exp(logits) / np.exp(logits).sum(1, keepdims=True))
    codes[draw.random((n, 2)) < 0.25] = -1
    return LabelsEvaluation.of(TWO, [f"s{i}" for i in range(n)], np.arange(n), codes, probs)


def test_figures_are_those_of_sklearn_and_torchmetrics_on_the_known_rows() -> None:
    from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score
    from torchmetrics.functional.classification import binary_auroc, multiclass_auroc

    result = made()
    areas, accuracies = [], []
    for n, (label, classes) in enumerate(TWO):
        known = result.codes[:, n] >= 0
        own, truth = result.probs[n][known], result.codes[known, n]
        if len(classes) == 2:
            areas.append(roc_auc_score(truth, own[:, 1]))
            other = binary_auroc(torch.from_numpy(own[:, 1]), torch.from_numpy(truth))
        else:
            areas.append(roc_auc_score(truth, own, multi_class="ovr", average="macro"))
            other = multiclass_auroc(torch.from_numpy(own), torch.from_numpy(truth), num_classes=len(classes))
        assert float(other) == pytest.approx(areas[-1], abs=1e-6)
        assert label_auroc(result.probs[n], result.codes[:, n]) == pytest.approx(areas[-1])
        accuracies.append(accuracy_score(truth, own.argmax(1)))
        assert result.figures[f"auroc_{label}"].value == pytest.approx(areas[-1])
        assert result.figures[f"accuracy_{label}"].value == pytest.approx(accuracies[-1])
        assert result.figures[f"balanced_accuracy_{label}"].value == pytest.approx(
            balanced_accuracy_score(truth, own.argmax(1))
        )
        assert result.figures[f"accuracy_{label}"].n == known.sum()
    for name, each in (("auroc", areas), ("accuracy", accuracies)):
        figure = result.figures[name]
        assert figure.value == pytest.approx(np.mean(each))
        assert figure.low < figure.value < figure.high
        assert figure.n == (result.codes >= 0).any(1).sum()


def test_a_label_that_is_known_of_no_tested_image_is_left_out_of_the_mean() -> None:
    result = made()
    codes = result.codes.copy()
    codes[:, 1] = -1
    alone = LabelsEvaluation.of(TWO, result.keys, result.index, codes, result.probs)
    assert alone.figures["auroc"].value == pytest.approx(result.figures["auroc_mgmt"].value)
    assert "auroc_grade" not in alone.figures
    some = result.without({0, 1, 2})
    assert len(some.keys) == 57
    assert some.to_json()["whole"]["n"] == 60
    with pytest.raises(ConfigError, match="no label of these images is known"):
        LabelsEvaluation.of(TWO, result.keys, result.index, np.full_like(codes, -1), result.probs)


def test_predictions_hold_truth_and_probabilities_and_can_be_compared() -> None:
    result = made()
    rows = result.predictions()
    missing = int(np.flatnonzero(result.codes[:, 0] < 0)[0])
    assert rows[missing]["mgmt"] == ""
    assert {"predicted_mgmt", "p_mgmt=0", "p_mgmt=1", "p_grade=G4"} <= rows[0].keys()
    worse = [{**row, "p_mgmt=1": "0.5", "p_mgmt=0": "0.5", "predicted_mgmt": "0"} for row in rows]
    compared = compare_labels(rows, worse, {label: list(classes) for label, classes in TWO})
    assert compared["auroc_mgmt"].difference.value == pytest.approx(0.5 - result.figures["auroc_mgmt"].value, abs=1e-4)
    assert compared["auroc_mgmt"].difference.n == (result.codes[:, 0] >= 0).sum()
    assert compared["accuracy_grade"].difference.value == 0
    assert find("multilabel").load().overview(list(compared)) == ["auroc_mgmt", "auroc_grade"]
    assert find("classification").load().overview(["accuracy", "auroc"]) == ["accuracy"]
    with pytest.raises(ConfigError, match="does not predict"):
        compare_labels(rows, [{"name": "s0"}], {"mgmt": ["0", "1"]})
    held: Any = result.to_json()
    held["labels"]["mgmt"]["figures"]["auroc"] |= {"value": 0.55, "low": 0.4, "high": 0.7}
    assert any("mgmt may not be told apart" in line for line in doubts(held))


def test_probabilities_of_each_label_add_up_to_one() -> None:
    probs = log_probabilities(Output(torch.randn(3, 5)), (2, 3)).exp()
    assert torch.allclose(probs[:, :2].sum(1), torch.ones(3))
    assert torch.allclose(probs[:, 2:].sum(1), torch.ones(3))
    assert output_names(TWO)[2] == "grade=G2"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures whose corners are bright by their labels; a fifth of the labels is missing, of two images all."""
    folder, draw = tmp_path_factory.mktemp("labels"), np.random.default_rng(0)
    rows: list[list[object]] = [["path", "mgmt", "pten", "tertp", "site"]]
    places = ((slice(0, 8), slice(0, 8)), (slice(0, 8), slice(8, 16)), (slice(8, 16), slice(0, 8)))
    for n in range(90):
        labels = draw.integers(0, 2, 3)
        pixels = draw.integers(0, 60, (16, 16), dtype=np.uint8)
        for place, label in zip(places, labels, strict=True):
            pixels[place] += np.uint8(120 * label)
        Image.fromarray(pixels).save(folder / f"{n}.png")
        texts = [["", "NA"][n % 2] if draw.random() < 0.2 or n < 2 else str(label) for label in labels]
        texts[1] = {"0": "intact", "1": "lost"}.get(texts[1], texts[1])
        rows.append([f"{n}.png", *texts, "one"])
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder / "table.csv"


@pytest.fixture(scope="module")
def run(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "labels"
    return regard.train(table, epochs=15, lr=3e-3, explain=2, out=out, **NANO).path


def test_three_labels_with_gaps_are_learnt_together(run: Path, table: Path) -> None:
    summary, data = (json.loads((run / name).read_text()) for name in ("summary.json", "data.json"))
    assert summary["figures"]["auroc"]["value"] > 0.9
    assert summary["figures"].keys() >= {"auroc_mgmt", "auroc_pten", "auroc_tertp", "accuracy_pten"}
    assert data["labels"]["pten"] == ["intact", "lost"]
    counts = data["label_counts"]["mgmt"]
    assert sum(part["missing"] for part in counts.values()) > 5
    assert counts["unused"] == {"0": 0, "1": 0, "missing": 2}
    assert "2 images without any label left out" in data["splits"]
    page = (run / "report.html").read_text()
    for what in ("AUROC, mean of the labels", "AUROC, tertp", "Balanced accuracy, pten"):
        assert what in page
    rows = list(csv.DictReader((run / "predictions.csv").open()))
    assert rows[0].keys() >= {"mgmt", "predicted_mgmt", "p_pten=lost"}
    explained = json.loads((run / "explain" / "explanations.json").read_text())
    assert [maps[0]["target"].partition("=")[0] for maps in explained] == ["mgmt", "pten"], "each label has its turn"
    result = regard.evaluate(run, table, split="test", quiet=True)
    assert result.figures["auroc"].value == pytest.approx(summary["figures"]["auroc"]["value"])
    other = regard.compare(run, run)
    assert all(c.difference.value == 0 for c in next(iter(other.values())).values())


def test_a_model_of_several_labels_predicts_and_explains_by_name(
    run: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model: Any = regard.load(run, quiet=True)
    answer = model.predict(table.parent / "5.png")
    assert answer.labels.keys() == {"mgmt", "pten", "tertp"}
    assert sum(answer.probs["pten"].values()) == pytest.approx(1)
    assert model.explain(table.parent / "5.png", "occlusion", target="pten=lost", checks="none").target == "pten=lost"
    alone = model.explain(table.parent / "5.png", "occlusion", target="tertp", checks="none").target
    assert alone == f"tertp={answer.labels['tertp']}"
    with pytest.raises(ConfigError, match="no label or class called 'ptn'"):
        model.explain(table.parent / "5.png", target="ptn")
    for words in (["predict", run, table.parent / "5.png"], ["check", table, "--label-column", "mgmt,pten,tertp"]):
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, words)])
        main()
        assert "pten" in capsys.readouterr().out
    saved = model.save([answer], tmp_path / "p.csv").read_text()
    assert "p_tertp=1" in saved


def test_what_cannot_be_learnt_is_named(table: Path, tmp_path: Path) -> None:
    def train(columns: str, data: Path = table) -> None:
        settings: dict[str, Any] = NANO | {"label_column": columns}
        regard.train(data, dry_run=True, out=tmp_path / "run", **settings)

    with pytest.raises(DataError, match="site has one class only"):
        train("mgmt,site")
    with pytest.raises(DataError, match="path has 90 different values"):
        train("mgmt,path")
    with pytest.raises(DataError, match="no column 'ptne'") as caught:
        train("mgmt,ptne")
    assert "did you mean pten" in str(caught.value)
    with pytest.raises(ConfigError, match="each once"):
        train("mgmt,mgmt")
    with pytest.raises(DataError, match="read from a table"):
        train("mgmt,pten", table.parent)


def test_other_data_may_have_no_classes_that_the_model_does_not_know(run: Path, table: Path) -> None:
    other = table.parent / "other.csv"
    other.write_text(table.read_text().replace("lost", "gone"))
    with pytest.raises(DataError, match="pten has classes that the model does not know: gone"):
        regard.evaluate(run, other, split="all", quiet=True)


def test_splits_keep_the_combinations_of_labels(table: Path) -> None:
    from regard.console import Progress
    from regard.image_groups import LabelColumnData
    from regard.tasks.multilabel.data import read_labels

    dataset: LabelDataset = read_labels(table, Progress(quiet=True), LabelColumnData(label_column="mgmt,pten,tertp"))
    strata = np.array(dataset.strata())
    for stratum in set(strata.tolist()) - {0}:
        assert len({tuple(row) for row in dataset.codes[strata == stratum]}) == 1
        assert (strata == stratum).sum() >= 6
    assert dataset.conflicting() == []
    assert (
        dataset.fingerprint()
        != read_labels(table, Progress(quiet=True), LabelColumnData(label_column="mgmt,tertp")).fingerprint()
    )
