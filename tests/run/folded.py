"""Small data for cross-validation: pictures in a table with patients, sites and outcomes."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FAST: dict[str, Any] = {
    "model": "mlp_nano",
    "size": (8, 8),
    "epochs": 2,
    "explain": 0,
    "pixel_baseline": False,
    "quiet": True,
}


SURVIVAL: dict[str, Any] = {
    "time": "days",
    "event": "died",
    "clinical": "age",
    "model": "mlp_nano",
    "size": (8, 8),
    "epochs": 2,
}
CASES: dict[str, dict[str, Any]] = {
    "classes": FAST | {"class_weights": "balanced"},
    "numbers": {"column": "age", "model": "mlp_nano", "size": (8, 8), "epochs": 2, "explain": 0, "quiet": True},
    "cox": SURVIVAL | {"explain": 0, "quiet": True},
    "discrete": SURVIVAL | {"loss": "discrete", "bins": 3, "explain": 0, "quiet": True},
}


def outcomes(count: int, seed: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {
        "age": draw.normal(60, 10, count).round(2).tolist(),
        "days": draw.exponential(100, count).round(1).tolist(),
        "died": (draw.random(count) < 0.7).astype(int).tolist(),
    }


def write_table(
    root: Path,
    count: int = 60,
    signal: float = 60.0,
    site: str = "random",
    per_patient: int = 1,
    seed: int = 0,
    **more: list[object],
) -> Path:
    """8 × 8 grey pictures, those of class b brighter by `signal`; the site is random, or the label."""
    draw = np.random.default_rng(seed)
    root.mkdir(parents=True)
    labels = draw.permutation(np.arange(count // per_patient) % 2).repeat(per_patient)
    rows = []
    for n, label in enumerate(labels.tolist()):
        pixels = draw.integers(0, 120, (8, 8)) + signal * label
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"{n:03d}.png")
        place = "ab"[label] if site == "label" else "ab"[int(draw.integers(2))]
        row = {"path": f"{n:03d}.png", "label": "ab"[label], "patient": f"p{n // per_patient}", "site": place}
        rows.append(row | {name: values[n] for name, values in more.items()})
    with (root / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return root / "table.csv"
