"""What a probe result, as files: every figure, a table, and accuracy against shots."""

from typing import Any

from regard.report import figures
from regard.weights import Run, write_text


def write_probe(folder: Run, result: dict[str, Any]) -> None:
    """Write probe.json, probe.csv and, where shots were drawn, probe.svg."""
    rows = result["probes"]
    folder.write_json("probe.json", result)
    folder.write_rows("probe.csv", rows)
    if any(row["probe"] == "few_shot" for row in rows):
        write_text(folder.path / "probe.svg", figures.shots(rows))
