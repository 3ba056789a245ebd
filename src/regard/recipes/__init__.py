"""Named settings: functions that return a RunConfig, each saying what it costs and what to expect."""

from collections.abc import Callable

from regard.config import PretrainConfig, RunConfig
from regard.errors import ConfigError, did_you_mean


def default() -> RunConfig:
    """Plain supervised training of a ViT, for pictures of 64 pixels and more.

    regard train DATA --model vit_s16

    Cost and score depend on the data; from scratch, expect to need many thousands of images.
    """
    return RunConfig()


def small_images() -> RunConfig:
    """A small ViT from scratch on pictures of 16 to 64 pixels, such as CIFAR or MedMNIST.

    regard train DATA --recipe small_images

    Cost and score depend on the data; not tuned yet on a public set.
    """
    return RunConfig(model="vit_nano", epochs=60, batch=128, lr=2e-3, mixup=0.2, drop_path=0.05)


def cifar() -> RunConfig:
    """A ViT from scratch on some ten thousand small colour pictures, on a GPU, plain supervision.

    regard train DATA --recipe cifar --stem conv

    CIFAR-10 on one H200: 93.4 % on the test set with the conv stem, in 456 seconds from start to end
    (benchmarks/results/cifar10.md). On a CPU it would take days.
    """
    return RunConfig(
        model="vit_s16", patch=2, width=256, heads=4, mlp=1024, depth=6, pool="mean", epochs=165, batch=512,
        optimizer="muon", lr=2e-3, weight_decay=0.4, policy="trivial", mixup=0.8, cutmix=1.0, drop_path=0.1,
        holdout=0.05,
    )  # fmt: skip


def digits() -> RunConfig:
    """The embedded hand-written digits (1,797 of 8 × 8 pixels) on two CPU cores.

    regard train digits --recipe digits

    70 seconds of training on two CPU cores; 98.3 % test accuracy for the worst of five seeds, 98.8 % on
    average (benchmarks/results/digits.md).
    """
    return RunConfig(model="vit_nano", patch=2, epochs=120, batch=32, lr=2e-3, mixup=0.2, crop="shift", flip=False)


def mae() -> PretrainConfig:
    """Pre-training by masked patches, for pictures of 64 pixels and more that have no labels.

    regard pretrain DATA --model vit_s16

    Mask, decoder, rate and crops are the paper's (He et al., 2022, appendix A.1), with a batch that one GPU holds;
    the paper's 1.3 million pictures and 800 epochs are not. Not run here at this size: no score is promised.
    """
    return PretrainConfig(
        model="vit_s16", positions="sinusoidal", epochs=400, batch=256, lr=1.5e-4, crop="resized", holdout=0.02,
    )  # fmt: skip


def mae_small() -> PretrainConfig:
    """The same for pictures of 16 to 64 pixels, with a network that a CPU can train.

    regard pretrain DATA

    2,000 CIFAR-10 pictures for 60 epochs take one CPU core 3.5 minutes; a linear probe then finds 45.4 % where random
    weights give 37.8 % (docs/pretrain.md). Longer runs, and the 200 epochs set here, have not been measured.
    """
    return PretrainConfig(
        model="vit_nano", pool="mean", positions="sinusoidal", epochs=200, batch=128, lr=2e-3, crop="resized",
        holdout=0.05, decoder_width=64, decoder_depth=2, decoder_heads=4,
    )  # fmt: skip


RECIPES: dict[str, Callable[[], RunConfig]] = {
    f.__name__: f for f in (default, small_images, cifar, digits, mae, mae_small)
}


def find(name: str) -> RunConfig:
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe called {name!r}", do=did_you_mean(name, RECIPES))
    return RECIPES[name]()
