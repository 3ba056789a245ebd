"""A whole batch through an augmenter, as the feed does it in parts."""

from torch import Tensor

from regard.data import Augmenter


def augmented(
    run: Augmenter, images: Tensor, labels: Tensor, numbers: Tensor, epoch: int, step: int
) -> tuple[Tensor, Tensor]:
    return run.mix(run.images(images, numbers, epoch), run.targets(labels, numbers, epoch), epoch, step)
