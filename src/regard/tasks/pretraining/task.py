"""Pre-training for the runner: the whole autoencoder is trained, checkpoints hold the encoder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn

from regard.console import Progress
from regard.data import Augmenter, ImageDataset, Loader, Masker
from regard.errors import ConfigError, RunError
from regard.image_groups import Variation
from regard.networks.base import Network
from regard.networks.mae.config import MAEConfig
from regard.networks.mae.network import MaskedAutoencoder
from regard.networks.vit.network import ViT
from regard.task import Choice
from regard.tasks.image_predictor import ImagePredictor
from regard.tasks.images import ImageTask
from regard.tasks.pretraining.evaluation import Reconstructed, reconstruct, reconstruction_losses
from regard.tasks.pretraining.loss import MaskedPatches
from regard.tasks.pretraining.page import PICTURES, draw_reconstructions, page
from regard.tasks.small_data import facts
from regard.training import ALONE, World, load_state, save_state
from regard.weights import Run, open_weights

ENCODER = "encoder."
DECODER = "best-decoder"


class Encoder(ImagePredictor):
    """What `regard.load` gives for a pre-trained network: features, and nothing to predict."""

    has_head: ClassVar[bool] = False

    def require_answers(self) -> NoReturn:
        raise ConfigError(
            "the network was pre-trained without labels: there is nothing to predict",
            do="fine-tune it (`regard train DATA --from RUN`), or use `regard probe`",
        )

    def show(self, predictions: Any) -> None:
        self.require_answers()

    def save(self, predictions: Any, path: Path) -> Path:
        self.require_answers()


class Task(ImageTask):
    name: ClassVar[str] = "pretraining"
    predictor_type = Encoder
    best: ClassVar[Any] = ("loss", "min")
    headline: ClassVar[tuple[str, ...]] = ("reconstruction_loss",)
    labels: ClassVar[bool] = False

    @classmethod
    def choose(
        cls,
        dataset: ImageDataset,
        start: Any,
        asked: Mapping[str, Any],
        gpu: bool,
        given: list[str | None] | None = None,
    ) -> Choice:
        return Choice(asked.get("recipe") or ("mae_small" if facts(dataset, asked, gpu, given).small else "mae"))

    @classmethod
    def start(cls, config: Any, model: str | None, dataset: Any) -> None:
        """From random weights."""

    def adapt(self) -> None:
        self.model.train()

    def network(self) -> Network:
        return self.model.encoder

    def assemble(self, network: Network) -> MaskedAutoencoder:
        assert isinstance(network, ViT)
        options = self.config.task
        decoder = (options.decoder_width, options.decoder_depth, options.decoder_heads)
        return MaskedAutoencoder(network, MAEConfig(options.mask, *decoder, options.normalise))

    @property
    def objective(self) -> MaskedPatches:
        return MaskedPatches()

    def augmenter(self) -> Augmenter:
        crops, prepared = self.config.augment, self.preparation
        augment = Variation(crop=crops.crop, flip=crops.flip)
        return Masker(augment, self.config.general.seed, prepared.mean, prepared.std, self.model.patches)

    def validate(self, model: nn.Module, loader: Loader, tick: Any, world: World) -> dict[str, float]:
        assert isinstance(model, MaskedAutoencoder)
        seed = self.config.general.seed
        losses = reconstruction_losses(model, loader, self.preparation, self.device, seed, tick)
        lost, count = world.sums([float(losses.sum()), len(losses)])
        return {"loss": lost / count}

    def kept_weights(self, run: Run, name: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        parts = {key: tensor for key, tensor in weights.items() if not key.startswith(ENCODER)}
        if name == "best":
            save_state(run.checkpoint(DECODER), parts, {}, ALONE, sharded=False)
        return {key.removeprefix(ENCODER): tensor for key, tensor in weights.items() if key.startswith(ENCODER)}

    def trained(self, run: Run) -> MaskedAutoencoder:
        """The best weights, encoder and decoder, back in the autoencoder."""
        decoder = load_state(run.checkpoint(DECODER))
        if decoder is None:
            raise RunError("a file is missing", where=run.checkpoint(DECODER))
        encoder = open_weights(run.path)[0].weights
        kept = {ENCODER + key: tensor for key, tensor in encoder.items() if not key.startswith("head.")}
        parts = {name: torch.zeros(shape) for name, shape in decoder.shapes.items()}
        decoder.fill(parts)
        self.model.load_state_dict(kept | parts)
        return self.model

    def evaluate(self, trained: MaskedAutoencoder, part: str, tick: Any) -> Reconstructed:
        loader, seed = self.loader(part), self.config.general.seed
        losses = reconstruction_losses(trained, loader, self.preparation, self.device, seed, tick)
        return Reconstructed([self.dataset.key(n) for n in self.job.part(part)], losses)

    def extra_summary(self, result: Any) -> dict[str, Any]:
        whole, encoder = (sum(p.numel() for p in part.parameters()) for part in (self.model, self.model.encoder))
        return {"parameters": encoder, "decoder_parameters": whole - encoder}

    def explain(self, run: Run, trained: MaskedAutoencoder, result: Any, progress: Progress) -> None:
        """Draw what becomes of a few tested images."""
        part, count = self.job.part(self.tests[0]), self.config.general.explain
        chosen = [part[n * len(part) // count] for n in range(min(count, len(part)))]
        if chosen:
            seed = self.config.general.seed
            made = reconstruct(trained, self.images, chosen, self.preparation, self.device, seed)
            draw_reconstructions(made, run.path / PICTURES)

    page = staticmethod(page)

    @classmethod
    def without(cls, result: Any, seen: set[int]) -> Any:
        return result
