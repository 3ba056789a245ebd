"""DETR: objects as a set, predicted by a transformer from learned queries.

Carion et al., "End-to-End Object Detection with Transformers" (2020), section 3 and appendix A.3 and A.4.

Departures from the paper, all of them the authors' own code's except the first:

- No dropout on attention weights.
- Dropout also inside the MLPs.
- Positions count cells from one and divide by the number of cells that are not padding, times 2π.
- Padding is masked in attention, not in the ResNet: convolutions at the edge of an image see it. An image answers
  slightly differently in a batch that pads it than alone.
- With `frozen_norms`, statistics, scale and shift of batch norms are constants, and stem and first stage do not train.
  Without, the backbone is an ordinary ResNet: fixed norms that were never trained normalise nothing.

Letters in shapes: B images, N cells of the last feature map, Q queries, C classes, L decoder blocks.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import ConfigError
from regard.geometry import AttentionStep, TokenMap
from regard.networks.base import Network
from regard.networks.detr.config import DETRConfig, configure
from regard.networks.detr.masks import MaskHead
from regard.networks.resnet.bit import Bottleneck
from regard.networks.resnet.network import Basic, BatchNorm, FrozenNorm, ResNet
from regard.nn import BlockConfig, DecoderBlock, EncoderBlock, MultiHeadAttention

TEMPERATURE = 10_000


class Detection(NamedTuple):
    """logits (B, Q, C + 1), the last of them "no object"; boxes (B, Q, 4): centre x and y, width and height, as shares
    of the image without its padding; the same two of each decoder block before the last, (L - 1, B, Q, …); features
    (B, Q, width), the decoder's output; tokens (B, N, width), the encoder's; with a mask head, masks (B, Q, rows,
    columns), logits on the grid of the ResNet's first stage, a quarter of the input's resolution."""

    logits: Tensor
    boxes: Tensor
    auxiliary_logits: Tensor
    auxiliary_boxes: Tensor
    features: Tensor
    tokens: Tensor
    masks: Tensor | None = None


def sine_positions(mask: Tensor, width: int) -> Tensor:
    """Positions (B, N, width) of cells, given where (B, rows, columns) there is an image: y in the first half, then x.

    >>> sine_positions(torch.ones(1, 2, 3, dtype=torch.bool), 8).shape
    torch.Size([1, 6, 8])
    """
    numbers = torch.arange(width // 4, device=mask.device, dtype=torch.float32)
    wavelengths = TEMPERATURE ** (4 * numbers / width)
    halves = []
    for axis in (1, 2):
        at = mask.cumsum(axis, dtype=torch.float32)
        at = at / (at.narrow(axis, -1, 1) + 1e-6) * (2 * math.pi)
        angles = at[..., None] / wavelengths
        halves.append(torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2))
    return torch.cat(halves, dim=-1).flatten(1, 2)


class CellBlock(EncoderBlock):
    """The encoder's block: positions are added to queries and keys, not to values."""

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Cells (B, N, width) in and out; mask (B, 1, 1, N), true where a cell is not padding."""
        located = x + positions
        x = self.norm1(x + self.drop(self.attention(located, located, x, mask=mask)))
        return self.norm2(x + self.drop(self.mlp(x)))


class QueryBlock(DecoderBlock):
    """The decoder's block: queries see each other and all cells. Their learned vectors are their positions."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Tensor, queries: Tensor, cells: Tensor, located_cells: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """(B, Q, width) in and out; `located_cells` are the cells with their positions; mask as in the encoder."""
        located = x + queries
        x = self.norm1(x + self.drop(self.attention(located, located, x)))
        x = self.norm2(x + self.drop(self.cross(x + queries, located_cells, cells, mask=mask)))
        return self.norm3(x + self.drop(self.mlp(x)))


class DETR(Network):
    """Pictures in, a set of boxes with class scores out. Its tokens are the cells of the ResNet's last feature map.

    >>> model = DETR(configure("detr_nano", classes=3)).eval()
    >>> out = model(torch.rand(2, 3, 96, 128))
    >>> out.logits.shape, out.boxes.shape, out.tokens.shape, model.token_map((96, 128)).grid
    (torch.Size([2, 20, 4]), torch.Size([2, 20, 4]), torch.Size([2, 48, 64]), (6, 8))
    """

    BLOCKS = (Basic, Bottleneck, CellBlock, QueryBlock)
    TOKENS_ON_INPUT = True

    config: DETRConfig

    def __init__(self, config: DETRConfig):
        super().__init__()
        self.config, width = config, config.width
        norm = FrozenNorm if config.frozen_norms else BatchNorm
        self.backbone = ResNet(config.backbone(), norm=norm, dilated=config.dilated)
        self.backbone.head = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
        self.project = nn.Conv2d(config.backbone().features, width, 1)
        block = BlockConfig(
            width, config.heads, config.mlp, norm="post", activation="relu", dropout=config.dropout,
            mlp_dropout=config.dropout, eps=1e-5,
        )  # fmt: skip
        self.encoder = nn.ModuleList(CellBlock(block) for _ in range(config.depth))
        self.queries = nn.Embedding(config.queries, width)
        self.decoder = nn.ModuleList(QueryBlock(block) for _ in range(config.decoder_depth))
        self.norm = block.layer_norm()
        self.head = nn.Linear(width, config.logits)
        self.boxes = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
        )
        stages = tuple(config.backbone().features // 2**n for n in (3, 2, 1))
        self.masks = MaskHead(width, config.heads, stages) if config.masks else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier for the matrices of encoder and decoder; the rest is as its modules draw it."""
        for module in (*self.encoder.modules(), *self.decoder.modules()):
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
            if isinstance(module, MultiHeadAttention):
                nn.init.zeros_(module.qkv.bias)
                nn.init.zeros_(module.out.bias)
        if self.config.frozen_norms:
            for module in (self.backbone.root, self.backbone.stages[0]):
                module.requires_grad_(False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Detection:
        """x (B, channels, height, width), of any size; mask (B, height, width), true where an image is not padding."""
        if mask is not None and mask.shape != (len(x), *x.shape[2:]):
            raise ConfigError(f"a mask of shape {tuple(mask.shape)} does not fit images of shape {tuple(x.shape)}")
        *maps, last = self.backbone.maps(x)
        cells = self.project(last)
        seen = None if mask is None else F.interpolate(mask[:, None].float(), size=cells.shape[2:])[:, 0].bool()
        found = self.detect(cells, seen)
        if self.masks is None:
            return found
        allowed = None if seen is None else seen.flatten(1)[:, None, None]
        weights = self.masks.attention(found.features, found.tokens, allowed)
        return found._replace(masks=self.masks(weights, cells, maps))

    def detect(self, cells: Tensor, seen: Tensor | None = None) -> Detection:
        """The transformer on a projected feature map (B, width, rows, columns); seen (B, rows, columns), true where a
        cell is not padding."""
        allowed = None if seen is None else seen.flatten(1)[:, None, None]
        if seen is None:
            seen = torch.ones(len(cells), *cells.shape[2:], dtype=torch.bool, device=cells.device)
        positions = sine_positions(seen, self.config.width).to(cells.dtype)
        tokens = cells.flatten(2).transpose(1, 2)
        for block in self.encoder:
            tokens = self.run_block(block, tokens, positions, allowed)
        queries = self.queries.weight.expand(len(cells), -1, -1)
        located, states = tokens + positions, [torch.zeros_like(queries)]
        for block in self.decoder:
            states.append(self.run_block(block, states[-1], queries, tokens, located, allowed))
        features = self.norm(torch.stack(states[1:]))
        logits, boxes = self.head(features), self.boxes(features).sigmoid()
        return Detection(logits[-1], boxes[-1], logits[:-1], boxes[:-1], features[-1], tokens)

    def token_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        return self.backbone.token_map(size or self.config.size)

    def token_flow(self, size: tuple[int, ...] | None = None) -> tuple[AttentionStep, ...]:
        steps = [AttentionStep(f"encoder.{n}.attention") for n in range(len(self.encoder))]
        for n in range(len(self.decoder)):
            steps.append(AttentionStep(f"decoder.{n}.attention", "queries"))
            steps.append(AttentionStep(f"decoder.{n}.cross", "queries", reads="tokens"))
        return tuple(steps)


def build(name: str, **changes: Any) -> DETR:
    return DETR(configure(name, **changes))
