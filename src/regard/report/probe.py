"""What a probe found, as files: every figure, a table, and accuracy against shots."""

from typing import Any

from regard.report import figures
from regard.weights import Run, write_text


def write_probe(folder: Run, found: dict[str, Any]) -> None:
    """Write probe.json, probe.csv and, where shots were drawn, probe.svg."""
    rows = found["probes"]
    folder.write_json("probe.json", found)
    folder.write_rows("probe.csv", rows)
    if any(row["probe"] == "few_shot" for row in rows):
        write_text(folder.path / "probe.svg", figures.shots(rows))
