"""The masked autoencoder: pre-training of a Vision Transformer without labels, by reconstruction of hidden patches.

He et al., "Masked Autoencoders Are Scalable Vision Learners" (2022), section 3; Dosovitskiy et al. (2021) had a
"preliminary exploration" of the same idea in their section 4.6.

Departures from the paper:

- Inputs may have one, two or three axes.
- The order of patches is an argument and not drawn here, so that it can depend on seed, epoch and image only.
- The encoder's positions are those of its config.
"""

import math
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.geometry import TokenMap, grid_of
from regard.networks.base import Network
from regard.networks.mae.config import MAEConfig
from regard.networks.vit.network import ViT
from regard.nn import BlockConfig, EncoderBlock, GridPositions, patchify, unpatchify


class MAEOutput(NamedTuple):
    """predicted and wanted (B, N, pixels of a patch); hidden (B, N), true where the encoder did not see the patch."""

    predicted: Tensor
    wanted: Tensor
    hidden: Tensor


class MaskedAutoencoder(Network):
    """A ViT encodes the visible patches of an image; a small decoder, not used afterwards, predicts the hidden ones.

    >>> from regard.networks.vit.config import configure
    >>> model = MaskedAutoencoder(ViT(configure("vit_nano")), MAEConfig(decoder_width=32, decoder_heads=2))
    >>> order = torch.rand(2, 64).argsort(1)
    >>> output = model(torch.rand(2, 3, 32, 32), order)
    >>> output.predicted.shape, output.hidden.sum(1)
    (torch.Size([2, 64, 48]), tensor([48, 48]))
    """

    BLOCKS: ClassVar[tuple[type[nn.Module], ...]] = (EncoderBlock,)

    config: MAEConfig

    def __init__(self, encoder: ViT, config: MAEConfig):
        super().__init__()
        vit, width = encoder.config, config.decoder_width
        if vit.stem != "patch":
            raise ConfigError(
                f"stem={vit.stem!r} cannot be pre-trained by masking: its tokens have seen their neighbours' pixels",
                do="use --stem patch (not vit_r50_b16)",
            )
        if vit.positions == "conditional":
            raise ConfigError(
                "positions='conditional' cannot be pre-trained by masking: they need the whole grid",
                do="use --positions sinusoidal",
            )
        if vit.cnn:
            what = f"cnn={vit.cnn!r} has no part in pre-training by masking"
            raise ConfigError(what, do="give --cnn when fine-tuning")
        if vit.rope:
            raise ConfigError("rope=True cannot be pre-trained by masking yet", do="leave --rope out")
        self.config, self.encoder = config, encoder
        self.grid = grid_of(vit.size, vit.patch)
        self.patches = math.prod(self.grid)
        self.visible = int(self.patches * (1 - config.mask) + 1e-9)  # 0.1 of 10 is one, in spite of rounding
        if not 0 < self.visible < self.patches:
            raise ConfigError(
                f"mask={config.mask} leaves {self.visible} of {self.patches} patches to be seen",
                do="change --mask, or give a smaller --patch: some must be seen and some hidden",
            )
        encoder.head = nn.Identity()  # no classes here; fine-tuning gives the encoder a new head
        self.prefix = vit.prefix + vit.registers
        self.bridge = nn.Linear(vit.width, width)
        self.mask_token = nn.Parameter(torch.empty(width))
        self.positions = GridPositions("sinusoidal", self.grid, width, prefix=self.prefix)
        shape = BlockConfig(width, config.decoder_heads, 4 * width, eps=vit.eps)
        self.blocks = nn.ModuleList(EncoderBlock(shape) for _ in range(config.decoder_depth))
        self.norm = nn.LayerNorm(width, eps=vit.eps)
        self.pixels = nn.Linear(width, vit.channels * math.prod(vit.patch))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier for every matrix of the decoder, as in the paper's appendix A.1."""
        for module in (self.bridge, self.pixels, *self.blocks.modules()):
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, x: Tensor, order: Tensor) -> MAEOutput:
        """x (B, channels, *size); order (B, N), a permutation of patches: the first are visible, the others hidden."""
        rank = order.argsort(1)  # of each patch in the order
        predicted = self.decode(self.encode(x, order[:, : self.visible]), rank)
        return MAEOutput(predicted, self.wanted(x), rank >= self.visible)

    def encode(self, x: Tensor, seen: Tensor) -> Tensor:
        """The encoder's tokens (B, prefix + visible, width) of the patches `seen` (B, visible) only."""
        tokens = self.encoder.embed(x)
        patches = _pick(tokens[:, self.prefix :], seen)
        tokens = torch.cat([tokens[:, : self.prefix], patches], dim=1)
        return self.encoder.norm(self._run_blocks(self.encoder.blocks, tokens))

    def decode(self, tokens: Tensor, rank: Tensor) -> Tensor:
        """Predicted pixels (B, N, …) of all patches in raster order, from the tokens of the visible ones."""
        tokens = self.bridge(tokens)
        hidden = self.mask_token.expand(len(tokens), self.patches - self.visible, -1)
        patches = _pick(torch.cat([tokens[:, self.prefix :], hidden], dim=1), rank)
        tokens = self.positions(torch.cat([tokens[:, : self.prefix], patches], dim=1), self.grid)
        tokens = self.norm(self._run_blocks(self.blocks, tokens))
        return self.pixels(tokens[:, self.prefix :])

    def wanted(self, x: Tensor) -> Tensor:
        """The pixels of all patches; each patch normalised by its mean and deviation (section 3) unless disabled."""
        patches, mean, deviation = self._cut(x)
        return (patches - mean) / deviation

    def filled_in(self, x: Tensor, output: MAEOutput) -> Tensor:
        """The input with its hidden patches replaced by their prediction, (B, channels, *size).

        Normalised predictions are scaled back by each patch's mean and deviation, as in the paper's figures.
        """
        patches, mean, deviation = self._cut(x)
        painted = torch.where(output.hidden[..., None], output.predicted.float() * deviation + mean, patches)
        return unpatchify(painted, self.encoder.config.patch, tuple(x.shape[2:]))

    def _cut(self, x: Tensor) -> tuple[Tensor, Tensor | float, Tensor | float]:
        """Patches (B, N, pixels), and the mean and standard deviation of each, for normalisation."""
        patches = patchify(x.float(), self.encoder.config.patch)
        if not self.config.normalise:
            return patches, 0.0, 1.0
        return patches, patches.mean(-1, keepdim=True), (patches.var(-1, keepdim=True) + 1e-6).sqrt()

    def token_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        return self.encoder.token_map(size)

    def _run_blocks(self, blocks: Iterable[nn.Module], tokens: Tensor) -> Tensor:
        for block in blocks:
            tokens = self.run_block(block, tokens)
        return tokens


def _pick(tokens: Tensor, index: Tensor) -> Tensor:
    """The tokens at `index` (B, M), in its order: (B, M, width) of (B, N, width)."""
    return tokens.gather(1, index[..., None].expand(-1, -1, tokens.shape[-1]))
