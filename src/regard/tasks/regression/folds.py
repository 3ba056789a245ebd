"""What out-of-fold numbers add up to, and the report of it."""

from __future__ import annotations

from html import escape
from typing import Any

from regard.console import sentence
from regard.metrics.folds import describe_confounders, patient_weights, permuted_numbers, predict_from, spread
from regard.report.page import table
from regard.task import Folds, Page, Section
from regard.tasks.regression.evaluation import number_figures
from regard.tasks.regression.page import figure_row, scatter
from regard.weights import Run, write_text


def pool(folds: Folds, data: dict[str, Any]) -> dict[str, Any]:
    names, fold, groups = list(data["columns"]), folds.fold, folds.groups
    weights = patient_weights(groups)
    made, per_fold, tests, confounders = {}, {}, {}, []
    for name in names:
        truth, guess = folds.numbers(name), folds.numbers(f"predicted_{name}")
        suffix = f"_{name}" if len(names) > 1 else ""
        made |= {f"{own}{suffix}": f._asdict() for own, f in number_figures(truth, guess, weights).items()}
        each = [number_figures(truth[fold == n], guess[fold == n]) for n in range(1, fold.max() + 1)]
        per_fold |= {f"{own}{suffix}": spread([f[own].value for f in each])._asdict() for own in each[0]}
        tests[name] = permuted_numbers(guess, truth, fold, groups)._asdict()
        for other, features in folds.covariates.items():
            test = permuted_numbers(predict_from(features, truth[:, None], fold)[:, 0], truth, fold, groups, 999)
            confounders.append({"name": other, "column": name, "correlation": test.value, "p": test.p})
    summary = {
        "columns": names, "patients": len(set(groups.tolist())), "figures": made, "per_fold": per_fold,
        "permutation": tests, "confounders": confounders,
        "headline": [name for name in made if name.startswith(("mae", "r2"))],
    }  # fmt: skip
    return summary | {"warnings": warnings(summary)}


def warnings(summary: dict[str, Any]) -> list[str]:
    lines = []
    for name, figure in summary["figures"].items():
        if name.startswith("r2") and not figure["low"] > 0:
            shown = f"{figure['low']:.3f} to {figure['high']:.3f}"
            lines.append(f"the interval of {name}, {shown}, holds 0: it may be no better than always giving the mean")
    return lines + describe_confounders(summary["confounders"], "correlation")


def page(run: Run, data: dict[str, Any], summary: dict[str, Any]) -> Page:
    names, many = summary["columns"], len(summary["columns"]) > 1
    rows = run.read_rows("predictions.csv")
    plots = {name: scatter(name, rows) for name in names}
    for place, svg in enumerate(plots.values(), start=1):
        write_text(run.path / "figures" / f"scatter-{place}.svg", svg)
    first = summary["figures"][f"mae_{names[0]}" if many else "mae"]
    on = f"of {names[0]}, {first['n']:,} samples of {summary['patients']:,} patients or single samples"
    confounders = [
        (row["name"], row["column"], f"{row['correlation']:.3f}", f"{row['p']:.3f}") for row in summary["confounders"]
    ]
    return Page(
        title=f"{summary['folds']} folds on {data['name']}: {', '.join(names)}",
        headline=f'<p class="big">{first["value"]:.4g} mean absolute error <span>{escape(on)}; '
        f"95 % interval {first['low']:.4g} to {first['high']:.4g}</span></p>",
        headline_text=f"{first['value']:.4g} mean absolute error {on}",
        figures=[figure_row(name, figure, many) for name, figure in summary["figures"].items()],
        chosen_by="loss",
        warnings=[sentence(line) for line in summary["warnings"]],
        facts=[
            (f"permutation test, {name}", f"p {test['p']:.4f} ({test['permutations']} permutations)")
            for name, test in summary["permutation"].items()
        ],
        sections=[
            Section(
                "Predicted and true",
                "<p>Each dot is a sample, predicted by the network of its fold; on the line it is right.</p>"
                + "".join(f"<figure>{svg}</figure>" for svg in plots.values()),
            ),
            Section(
                "What else predicts the number",
                table(("known beside the picture", "number", "correlation", "p"), confounders) if confounders else "",
            ),
        ],
        medical=True,
        limits="The figures are of networks that were trained on other samples of the same data, with numbers in this "
        "range. They say nothing of other scanners, hospitals or populations: `regard eval FOLDS OTHER --external`.",
    )
