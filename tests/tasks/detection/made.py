"""Pictures of coloured rectangles on noise, with COCO annotations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"red": (230, 40, 40), "green": (40, 210, 60), "blue": (50, 70, 230)}


def write_boxes(
    root: Path,
    counts: dict[str, int],
    side: int = 64,
    classes: tuple[str, ...] = tuple(COLOURS),
    most: int = 3,
    seed: int = 0,
) -> Path:
    """So many pictures of each split, as folders with a JSON file each; under the split "" one file without a name."""
    draw = np.random.default_rng(seed)
    categories = [{"id": 3 * n + 2, "name": name} for n, name in enumerate(classes)]
    for split, count in counts.items():
        images, annotations = list[dict[str, object]](), list[dict[str, object]]()
        folder = root / (split or "images")
        folder.mkdir(parents=True)
        for number in range(1, count + 1):
            height, width = (side, side) if number % 2 else (side * 3 // 4, side)
            pixels = draw.integers(90, 150, (height, width, 3), dtype=np.uint8)
            for _ in range(int(draw.integers(1, most + 1)) if number > 1 else most):
                label = int(draw.integers(len(classes)))
                w, h = draw.integers(side // 4, side // 2, 2).tolist()
                left, top = int(draw.integers(width - w)), int(draw.integers(height - h))
                pixels[top : top + h, left : left + w] = COLOURS[classes[label]]
                annotations.append({
                    "id": len(annotations) + 1, "image_id": number, "category_id": categories[label]["id"],
                    "bbox": [left, top, w, h], "area": w * h, "iscrowd": 0,
                })  # fmt: skip
            name = f"{split or 'image'}{number:03d}.png"
            Image.fromarray(pixels).save(folder / name)
            images.append({"id": number, "file_name": name, "height": height, "width": width})
        made = {"images": images, "annotations": annotations, "categories": categories}
        (folder / "_annotations.coco.json").write_text(json.dumps(made))
    return root
