"""A run of pre-training: what it does otherwise than a run with labels, and how it ends."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.config import Augment, PretrainConfig, RunConfig
from regard.console import Progress
from regard.data import Augmenter, Loader, Masker
from regard.errors import ConfigError, RunError
from regard.evaluation import mean_loss, reconstruct, reconstruction_losses
from regard.networks.base import Network
from regard.networks.mae.config import MAEConfig
from regard.networks.mae.network import MaskedAutoencoder
from regard.networks.vit.network import ViT
from regard.report import draw_reconstructions, write_report
from regard.runner import ImagePlan
from regard.tasks import Learning, MaskedPatches
from regard.training import ALONE, History, World, load_state, save_state
from regard.weights import Run, open_weights

_ENCODER = "encoder."
_DECODER = "best-decoder"


class Pretraining(ImagePlan):
    """The whole autoencoder is trained; its checkpoints hold the encoder, and beside the best one lies its decoder."""

    @property
    def autoencoder(self) -> MaskedAutoencoder:
        assert isinstance(self.model, MaskedAutoencoder)
        return self.model

    @property
    def network(self) -> Network:
        return self.autoencoder.encoder

    @staticmethod
    def assemble(network: Network, config: RunConfig) -> Network:
        assert isinstance(config, PretrainConfig)
        if not isinstance(network, ViT):
            raise ConfigError(
                f"{config.model} is no ViT, and has no patches to hide", do="choose a ViT, such as vit_s16"
            )
        return MaskedAutoencoder(network, MAEConfig.of(config))

    def task(self) -> Learning:
        return MaskedPatches()

    def augmenter(self, augment: Augment) -> Augmenter:
        mean, std = self.preparation.mean, self.preparation.std
        return Masker(augment, self.config.seed, mean, std, self.autoencoder.patches)

    def judge(self, model: nn.Module, validation: Loader, tick: Callable[..., None], world: World) -> dict[str, float]:
        assert isinstance(model, MaskedAutoencoder)
        losses = reconstruction_losses(model, validation, self.preparation, self.device, self.config.seed, tick)
        lost, count = world.sums([float(losses.sum()), len(losses)])
        return {"loss": lost / count}

    def keep(self, run: Run, name: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        parts = {key: tensor for key, tensor in weights.items() if not key.startswith(_ENCODER)}
        if name == "best":
            save_state(run.checkpoint(_DECODER), parts, {}, ALONE, sharded=False)
        return {key.removeprefix(_ENCODER): tensor for key, tensor in weights.items() if key.startswith(_ENCODER)}

    def load_best(self, run: Run) -> None:
        """Put the best weights, encoder and decoder, back into the autoencoder."""
        decoder = load_state(run.checkpoint(_DECODER))
        if decoder is None:
            raise RunError("a file is missing", where=run.checkpoint(_DECODER))
        encoder = open_weights(run.path)[0].weights
        kept = {_ENCODER + key: tensor for key, tensor in encoder.items() if not key.startswith("head.")}
        parts = {name: torch.zeros(shape) for name, shape in decoder.shapes.items()}
        decoder.fill(parts)
        self.model.load_state_dict(kept | parts)


def finish_pretraining(run: Run, plan: Pretraining, history: History, progress: Progress) -> None:
    """Measure the best weights once more, show what they fill in, and write the report."""
    plan.load_best(run)
    config, model = plan.config, plan.autoencoder
    tested = "test" if "test" in plan.splits else "val"
    loader = plan.loader(tested)
    with progress.bar(f"filling in {tested} images", len(loader)) as tick:
        losses = reconstruction_losses(model, loader, plan.preparation, plan.device, config.seed, tick)
    loader.close()
    best, waiting = history.best or {}, history.waiting / max(history.seconds, 1e-9)
    progress.say(f"training took {history.seconds:.0f} s, of which {waiting:.1%} waiting for data")
    whole, own = (sum(p.numel() for p in part.parameters()) for part in (model, model.encoder))
    run.write_json("summary.json", {
        "split": tested, "parameters": own, "decoder_parameters": whole - own, "seconds": round(history.seconds, 2),
        "waiting": round(waiting, 4), "skipped_steps": history.skipped, "best_epoch": best.get("epoch"),
        "val_loss": best.get("val_loss"), "figures": {"reconstruction_loss": mean_loss(losses)._asdict()},
    })  # fmt: skip
    part = plan.part(tested)
    chosen = [part[n * len(part) // config.explain] for n in range(min(config.explain, len(part)))]
    if chosen:
        made = reconstruct(model, plan.images, chosen, plan.preparation, plan.device, config.seed)
        draw_reconstructions(made, run.path / "figures" / "reconstructions.png")
    write_report(run)
