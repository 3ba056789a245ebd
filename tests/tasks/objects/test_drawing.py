"""Pictures with boxes: every label can be read, also of a box at the picture's edge."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from regard.tasks.objects.drawing import draw_boxes

WHITE_TEXT = 200  # on a label; the picture is darker


@pytest.mark.parametrize(("kind", "edge"), [("detections", "top"), ("truth", "bottom")])
def test_labels_of_boxes_at_the_edge_are_inside(tmp_path, kind, edge):
    def letters(top: float) -> int:
        """Bright pixels inside the picture: those of the label."""
        boxes = torch.tensor([[10.0, top, 90.0, top + 30]]), ["a class with a long name"], None
        drawn: dict[str, Any] = {kind: boxes}
        draw_boxes(tmp_path / "a.png", torch.full((3, 96, 128), 120, dtype=torch.uint8), **drawn)
        shown = np.asarray(Image.open(tmp_path / "a.png").convert("L"))
        grey = np.argwhere(abs(shown.astype(int) - 120) < 3)
        (first, left), (last, right) = grey.min(0), grey.max(0)
        return int((shown[first : last + 1, left : right + 1] > WHITE_TEXT).sum())

    inside, at_edge = letters(33.0), letters(0.0 if edge == "top" else 66.0)
    assert inside > 60
    assert at_edge == pytest.approx(inside, rel=0.3)
