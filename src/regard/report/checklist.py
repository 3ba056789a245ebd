"""What a report of a medical model must say, item by item, and what of it a run knows.

The topics are those of CLAIM (Mongan, Moy & Kahn, 2020; 42 items) and of TRIPOD+AI (Collins et al., 2024; 27 items), in
our own words, with the numbers of the items there. What a run cannot know is marked as missing. The numbers 21 to 32
and 35 to 40 of CLAIM have not been checked against its text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from regard.settings import RunConfig
from regard.task import Page
from regard.weights import Run


class Facts(NamedTuple):
    """What is known of a run, or of several folds."""

    run: Run
    where: str
    config: RunConfig
    data: dict[str, Any]
    summary: dict[str, Any]
    page: Page

    def setting(self, name: str) -> Any:
        return self.config.flat().get(name)


def _preparation(f: Facts) -> str:
    size = f.setting("size")
    shown = " × ".join(map(str, size)) if isinstance(size, tuple | list) else size
    steps = [f"input of {shown}" if size else "input size of the weights", "normalised per channel"]
    if plan := f.data.get("volumes", {}).get("plan"):
        spacing = " × ".join(map(str, plan["spacing"]))
        steps.insert(0, f"reoriented, resampled to {spacing} mm, intensities {plan['intensity']}")
    return ", ".join(steps) + "; numbers for it from training samples"


def _partition(f: Facts) -> str:
    return f"{f.data['splits']}; no patient or equal image in two of them, as far as known"


def _level(f: Facts) -> str | None:
    groups = f.data.get("groups")
    return f"patients ({groups} known)" if groups else None


def _training(f: Facts) -> str:
    chosen = chosen_inside(f.summary)
    names = ("epochs", "batch_size", "optimizer", "lr", "weight_decay", "policy", "mixup", "seed")
    said = [f"{name} {f.setting(name)}" for name in names if f.setting(name) is not None and name not in chosen]
    inside = [f"{name} {values} (chosen inside each fold)" for name, values in chosen.items()]
    return ", ".join([*said, *inside])


def chosen_inside(summary: Mapping[str, Any]) -> dict[str, str]:
    """Of each setting that folds have chosen for themselves, the value of every fold.

    >>> chosen_inside({"nested": [{"chosen": {"lr": 0.1, "depth": 2}}, {"chosen": {"lr": 0.2, "depth": 2}}]})
    {'lr': '0.1, 0.2', 'depth': '2, 2'}
    """
    each = [own["chosen"] for own in summary.get("nested", ())]
    return {name: ", ".join(str(own[name]) for own in each) for name in (each[0] if each else ())}


def _start(f: Facts) -> str:
    weights = f.setting("weights")
    return f"weights from {weights}" if weights else "random weights, by the seed"


def _imbalance(f: Facts) -> str | None:
    return f"class weights: {f.setting('class_weights')}" if f.setting("class_weights") else None


def _selection(f: Facts) -> str:
    epoch = f.summary.get("best_epoch") or f.summary.get("best_epochs")
    shown = ", ".join(map(str, epoch)) if isinstance(epoch, list) else epoch
    return f"epoch {shown}, by validation {f.page.chosen_by}"


def _counts(f: Facts) -> str:
    parts = {n: sum(own.values()) if isinstance(own, dict) else own for n, own in f.data["counts"].items()}
    return ", ".join(f"{name} {count:,}" for name, count in parts.items())


def _figures(f: Facts) -> str:
    return "; ".join(f"{row[0]} {row[1]} ({row[2]})" for row in f.page.figures[:4])


def _calibration(f: Facts) -> str | None:
    rows = [row for row in f.page.figures if "alibration" in row[0] or "Brier" in row[0]]
    return "; ".join(f"{row[0]} {row[1]} ({row[2]})" for row in rows) or None


def _explained(f: Facts) -> str | None:
    if (f.run.path / "explain" / "explanations.json").is_file():
        return "maps with tests of their faithfulness, in report.html"
    around = f.run.path.parent / "explain" / "masks.json"  # of several folds, explained later
    return "maps against masks, in report.html" if "folds" in f.summary and around.is_file() else None


def _confounders(f: Facts) -> str | None:
    rows = f.summary.get("confounders")
    return (
        ", ".join(f"{row['name']}: p {row['p']:.3f}" for row in rows) + " (alone, without the image)" if rows else None
    )


def _ensemble(f: Facts) -> str:
    return "none: each fold has its own model" if "folds" in f.summary else "none: one model"


def _missing(f: Facts) -> str:
    unreadable, rows = (len(f.data.get(name, ())) for name in ("unreadable", "left_out"))
    return f"unreadable and left out: {unreadable}; rows left out: {rows}"


def _software(f: Facts) -> str:
    known = f.run.read_json("environment.json")
    return f"regard {known['regard']}, torch {known['torch']}"


def _said(text: str) -> Callable[[Facts], str]:
    return lambda _: text


class Item(NamedTuple):
    """A topic, its numbers in CLAIM and TRIPOD+AI, what to ask, and what a run may say of it."""

    topic: str
    claim: str
    tripod: str
    ask: str
    known: Callable[[Facts], str | None] = _said("")


ITEMS = (
    Item("Kind of model and outcome", "1", "1", "", lambda f: f"{f.config.model.model}, deep learning: {f.page.title}"),
    Item("Structured summary", "2", "2", "for an abstract"),
    Item("Clinical background and role", "3", "3a, 3b", "who would use the model, on whom, and when"),
    Item("Health inequalities", "", "3c", "which groups of patients are known to be treated unequally here"),
    Item("Objectives and hypotheses", "4", "4", "what was to be shown, decided before the data was seen"),
    Item("Prospective or retrospective, goal", "5, 6", "", "how the study was designed"),
    Item(
        "Data source",
        "7",
        "5a",
        "where it comes from and whom it stands for",
        lambda f: f"{f.where}, fingerprint {str(f.data['fingerprint'])[:16]}; ask whom it stands for",
    ),
    Item("Dates", "", "5b", "when subjects were recruited, and how long they were followed"),
    Item("Setting and centres", "", "6a", "how many centres, and where"),
    Item("Inclusion and exclusion", "8", "6b", "the criteria, and how many were excluded for each"),
    Item("Treatments", "", "6c", "which treatments subjects had"),
    Item("Preparation of the data", "9", "7", "", _preparation),
    Item("Selection of parts of the data", "10", "", "why these scans, slices or regions"),
    Item("Definition of data elements", "11", "9b", "how and when each column and scan was acquired"),
    Item("De-identification", "12", "", "how it was done, and who checked it"),
    Item(
        "Missing data",
        "13",
        "11",
        "why values are missing",
        _missing,
    ),
    Item("Reference standard", "14, 15", "8a", "how the outcome was determined, and why so"),
    Item("Annotators and tools", "16, 17", "8b, 8c", "who annotated, with what, blinded to what"),
    Item("Variability of annotations", "18", "", "agreement between and within annotators"),
    Item("Sample size", "19", "10", "how it was decided on, before the study"),
    Item("Partitions", "20", "12a", "", _partition),
    Item("Level at which partitions are disjoint", "21", "12a", "which samples are of one patient", _level),
    Item(
        "Model",
        "22",
        "12c, 22",
        "",
        lambda f: f"{f.config.model.model}, {f.summary['parameters']:,} parameters; config.json and checkpoints",
    ),
    Item(
        "Software",
        "23",
        "18f",
        "",
        _software,
    ),
    Item("Initial weights", "24", "12c", "", _start),
    Item("Training", "25", "12c", "", _training),
    Item("Class imbalance", "", "13", "whether classes were weighted or resampled", _imbalance),
    Item("Choice of the final model", "26", "12c", "", _selection),
    Item("Ensemble", "27", "12c", "", _ensemble),
    Item(
        "Output and thresholds",
        "",
        "15",
        "which threshold would be used, and why",
        lambda f: "chosen in each fold by Youden’s index" if "thresholds" in f.summary else None,
    ),
    Item(
        "Figures and their uncertainty",
        "28, 29",
        "12e",
        "",
        _said("95 % intervals; see the table of figures for how each is made"),
    ),
    Item(
        "Robustness and heterogeneity",
        "30",
        "12d, 23b",
        "how figures differ between sites, scanners and groups",
        _confounders,
    ),
    Item("Fairness", "", "14", "figures by sex, age and ethnicity"),
    Item("Explanations", "31", "", "what the model looks at", _explained),
    Item("External test", "32", "16, 20c", "figures of another cohort: `regard eval RUN OTHER --external`"),
    Item("Ethics and consent", "", "17", "the committee’s decision, consent or its waiver"),
    Item(
        "Flow of participants",
        "33",
        "20a, 21",
        "a diagram from eligible to analysed",
        lambda f: f"{_counts(f)}; ask for those before",
    ),
    Item("Characteristics by partition", "34", "20b", "age, sex and severity in each partition"),
    Item("Results", "35, 36", "23a", "", _figures),
    Item("Calibration", "36", "12e, 23a", "whether predicted probabilities mean what they say", _calibration),
    Item(
        "Failures",
        "37",
        "",
        "which cases went wrong, and why",
        lambda f: "predictions.csv lists every prediction; ask for a reading of the mistakes",
    ),
    Item(
        "Limitations",
        "38",
        "26",
        "",
        lambda f: " ".join(f.page.warnings) or "no warning was raised; ask for those of the design",
    ),
    Item("Implications and use", "39", "25, 27", "what follows for practice, and who must check the input"),
    Item("Registration and protocol", "40, 41", "18c, 18d", "number and place, or that there is none"),
    Item(
        "Data, code and weights",
        "41",
        "18e, 18f",
        "where they can be had",
        lambda f: "the command is in this card; ask where data and weights are shared",
    ),
    Item("Funding and conflicts", "42", "18a, 18b", "who paid, and which role they had"),
    Item("Patients’ involvement", "", "19", "whether patients took part in the design"),
)


def checklist(facts: Facts) -> list[tuple[str, str, str, str, bool]]:
    """Rows of topic, numbers in CLAIM and TRIPOD+AI, what is known or to be asked, and whether it is known.

    What is known but ends in "; ask …" is known in part.
    """
    rows = []
    for item in ITEMS:
        known = item.known(facts)
        text = known or f"missing: ask the authors: {item.ask}"
        rows.append((item.topic, item.claim, item.tripod, text, bool(known) and "; ask " not in text))
    return rows
