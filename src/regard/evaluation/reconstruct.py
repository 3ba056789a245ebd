"""How well a masked autoencoder fills in hidden patches of images it has not seen, always hiding the same ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data import Images, Loader, Preparation, patch_order
from regard.evaluation.classify import run_over
from regard.metrics import Figure
from regard.networks.mae.network import MaskedAutoencoder
from regard.tasks import MaskedPatches

FIXED = 0  # the epoch whose masks these are: training counts from 1


def reconstruction_losses(
    model: MaskedAutoencoder,
    loader: Loader,
    preparation: Preparation,
    device: torch.device,
    seed: int,
    tick: Callable[..., None] = lambda *_: None,
) -> np.ndarray:
    """The loss of each image, (N,)."""

    def losses(x: Tensor, numbers: Tensor) -> Tensor:
        return MaskedPatches().losses(model(x, patch_order(seed, FIXED, numbers, model.patches, device)))

    return run_over(model, losses, loader, preparation, device, tick)[0]


def mean_loss(losses: np.ndarray) -> Figure:
    """The mean over images with the 95 % interval of the normal distribution that means tend to."""
    mean, n = float(losses.mean()), len(losses)
    half = 1.959964 * float(losses.std(ddof=1)) / n**0.5 if n > 1 else float("nan")
    return Figure(mean, mean - half, mean + half, n)


class Reconstruction(NamedTuple):
    """One image as it is, as the encoder saw it, and as it was filled in: each (channels, *size) in 0..1."""

    name: str
    original: Tensor
    seen: Tensor
    filled_in: Tensor


@torch.inference_mode()
def reconstruct(
    model: MaskedAutoencoder,
    images: Images,
    index: list[int],
    preparation: Preparation,
    device: torch.device,
    seed: int,
) -> list[Reconstruction]:
    """What becomes of the given samples, with the masks that `reconstruction_losses` uses."""
    model.eval()
    made, where = list[Reconstruction](), model.token_map()
    for number in index:
        picture = preparation.picture(images[0, number][0])
        x = preparation.normalised(picture[None]).to(device)
        output = model(x, patch_order(seed, FIXED, torch.tensor([number]), model.patches, device))
        filled = preparation.shown(model.filled_in(x, output))[0].cpu()
        hidden = where.paint(output.hidden[0].float()).cpu() > 0
        made.append(Reconstruction(images.source.samples[number].key, picture, picture.where(~hidden, 0.5), filled))
    return made
