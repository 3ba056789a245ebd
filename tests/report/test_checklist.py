"""The card's checklist: what a run knows is filled in, and what it cannot know is marked as missing."""

import re
import shutil

from regard.report.checklist import ITEMS
from regard.run.folds import report_folds
from regard.weights import Run


def numbers(texts: list[str]) -> set[int]:
    return {int(number) for text in texts for number in re.findall(r"\d+", text)}


def rows_of(card: str) -> dict[str, str]:
    """Of a card's last table the topics and what is said of them."""
    lines = card.split("| topic | CLAIM |")[1].splitlines()[2:]
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    return {row[0]: row[-1] for row in cells}


def test_every_item_of_both_lists_is_there():
    assert numbers([item.claim for item in ITEMS]) == set(range(1, 43))
    tripod = numbers([item.tripod for item in ITEMS])
    assert set(range(1, 28)) - tripod == {24}, "of models that were updated"


def test_what_a_run_knows_is_filled_and_the_rest_is_asked_for(folded):
    _, made = folded
    fold, all_folds = (rows_of((path / "model_card.md").read_text()) for path in (made.path / "fold1", made.path))
    for rows in (fold, all_folds):
        assert len(rows) == len(ITEMS)
        assert rows["Ethics and consent"].startswith("missing: ask the authors: the committee")
        assert rows["Level at which partitions are disjoint"] == "patients (30 known)"
        assert "mlp_nano" in rows["Model"]
        assert "148,738 parameters" in rows["Model"]
        assert "epochs 2" in rows["Training"]
    assert all_folds["Output and thresholds"] == "chosen in each fold by Youden’s index"
    assert fold["Output and thresholds"].startswith("missing")
    assert "site: p " in all_folds["Robustness and heterogeneity"]
    assert "AUC, pooled" in all_folds["Results"]


def test_what_folds_chose_and_what_was_explained_later_is_said(folded, tmp_path):
    _, made = folded
    again = Run(tmp_path / "again")
    shutil.copytree(made.path, again.path)
    chosen = [{"chosen": {"lr": rate}, "figure": "auroc", "scores": [0.5, 0.6]} for rate in (0.1, 0.2, 0.1)]
    again.write_json("summary.json", made.read_json("summary.json") | {"nested": chosen})
    (again.path / "explain").mkdir(exist_ok=True)
    again.write_json("explain/masks.json", {"scores": [], "subjects": []})
    report_folds(again)
    rows = rows_of((again.path / "model_card.md").read_text())
    assert rows["Training"].endswith("lr 0.1, 0.2, 0.1 (chosen inside each fold)")
    assert rows["Training"].count("lr ") == 1
    assert rows["Explanations"] == "maps against masks, in report.html"


def test_a_translator_has_no_medical_checklist(translation_run):
    assert "CLAIM" not in (translation_run.path / "model_card.md").read_text()
