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

Fields of the config that are off by themselves add what later papers found: see modern.py.

Letters in shapes: B images, N cells of the last feature map, Q queries, C classes, L decoder blocks.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import ConfigError
from regard.geometry import AttentionStep, TokenMap, grid_of
from regard.networks.base import Network
from regard.networks.detr.blocks import CellBlock, QueryBlock
from regard.networks.detr.config import DETRConfig, configure
from regard.networks.detr.masks import MaskHead
from regard.networks.detr.modern import (
    Anchors,
    Denoising,
    Memory,
    Proposals,
    box_mlp,
    edge_offsets,
    fuse,
    relative_boxes,
    spanned,
    start_at_anchors,
    start_rare,
)
from regard.networks.detr.positions import sine_positions
from regard.networks.resnet.bit import Bottleneck
from regard.networks.resnet.network import Basic, BatchNorm, FrozenNorm, ResNet
from regard.nn import BlockConfig, MultiHeadAttention


class Detection(NamedTuple):
    """logits (B, Q, C + 1), the last of them "no object"; boxes (B, Q, 4): centre x and y, width and height, as shares
    of the image without its padding; the same two of each decoder block before the last, (L - 1, B, Q, …); features
    (B, Q, width), the decoder's output; tokens (B, N, width), the encoder's; with a mask head, masks (B, Q, rows,
    columns), logits on the grid of the ResNet's first stage, a quarter of the input's resolution.

    In modern mode with `classification` other than softmax, logits are (B, Q, C), each for a sigmoid. With `two_stage`,
    what all tokens propose, and the boxes (B, Q, 4) of them that queries start from. With `denoising`, in training, the
    answers of the denoising queries."""

    logits: Tensor
    boxes: Tensor
    auxiliary_logits: Tensor
    auxiliary_boxes: Tensor
    features: Tensor
    tokens: Tensor
    masks: Tensor | None = None
    proposals: Proposals | None = None
    anchors: Tensor | None = None
    denoising: Denoising | None = None


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
        channels = [config.backbone().features // 2**n for n in reversed(range(len(config.blocks)))]
        self.project = nn.Conv2d(channels[-1], width, 1)
        self.laterals = nn.ModuleList(nn.Conv2d(each, width, 1) for each in channels[-config.fused_stages : -1])
        block = BlockConfig(
            width, config.heads, config.mlp, norm=config.norm, activation="relu", dropout=config.dropout,
            mlp_dropout=config.dropout, eps=1e-5,
        )  # fmt: skip
        self.encoder = nn.ModuleList(CellBlock(block) for _ in range(config.depth))
        self.encoder_norm = block.layer_norm() if config.norm == "pre" else None
        self.queries = nn.Embedding(config.queries, width)
        self.decoder = nn.ModuleList(QueryBlock(block, box_bias=config.box_bias) for _ in range(config.decoder_depth))
        self.norm = block.layer_norm()
        self.head = nn.Linear(width, config.logits)
        self.boxes = box_mlp(width)
        self.masks = MaskHead(width, config.heads, tuple(channels[:3])) if config.masks else None
        self.anchors = Anchors(config) if config.anchored else None
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
        if self.anchors is not None:
            start_at_anchors(self.boxes)
        if self.config.classification != "softmax":
            start_rare(self.head)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        boxes: Tensor | None = None,
        labels: Tensor | None = None,
        anchors: Tensor | None = None,
    ) -> Detection:
        """x (B, channels, height, width), of any size; mask (B, height, width), true where an image is not padding.

        With `denoising`, in training, centred boxes (B, T, 4) and labels (B, T), -1 for padding, of the objects. With
        `two_stage`, anchors (B, Q, 4) are boxes that queries start from instead of the best proposals.
        """
        if mask is not None and mask.shape != (len(x), *x.shape[2:]):
            raise ConfigError(f"a mask of shape {tuple(mask.shape)} does not fit images of shape {tuple(x.shape)}")
        targets = None if boxes is None or labels is None else (boxes, labels)
        if (boxes is not None or labels is not None) and not (targets and self.training and self.config.denoising):
            raise ConfigError("boxes and labels, both, are for the denoising queries of a model in training")
        if anchors is not None and not self.config.two_stage:
            raise ConfigError("anchors are for two_stage=True: this model has its own")
        maps = self.backbone.maps(x)
        cells = self.embed(maps)
        seen = None if mask is None else F.interpolate(mask[:, None].float(), size=cells.shape[2:])[:, 0].bool()
        extents = None
        if self.anchors is not None:
            image = torch.ones_like(x[:, 0], dtype=torch.bool) if mask is None else mask
            extents = spanned(image) / self.config.token_stride
        result = self.detect(cells, seen, extents, targets, anchors)
        if self.masks is None:
            return result
        allowed = None if seen is None else seen.flatten(1)[:, None, None]
        weights = self.masks.attention(result.features, result.tokens, allowed)
        return result._replace(masks=self.masks(weights, cells, maps[:-1]))

    def embed(self, maps: list[Tensor]) -> Tensor:
        """The cells (B, width, rows, columns) that become the tokens, from the feature map of each stage."""
        cells, count = self.project(maps[-1]), self.config.fused_stages
        if count == 1:
            return cells
        finer = [layer(each) for layer, each in zip(self.laterals, maps[-count:-1], strict=True)]
        return fuse([*finer, cells], self.config.stage_strides[-count:], self.config.token_stride)

    def detect(
        self,
        cells: Tensor,
        seen: Tensor | None = None,
        extents: Tensor | None = None,
        targets: tuple[Tensor, Tensor] | None = None,
        anchors: Tensor | None = None,
    ) -> Detection:
        """The transformer on a projected feature map (B, width, rows, columns); seen (B, rows, columns), true where a
        cell is not padding; extents (B, 2), columns and rows that an image spans, those that are seen if not given."""
        allowed = None if seen is None else seen.flatten(1)[:, None, None]
        if seen is None:
            seen = torch.ones(len(cells), *cells.shape[2:], dtype=torch.bool, device=cells.device)
        positions = sine_positions(seen, self.config.width).to(cells.dtype)
        tokens = cells.flatten(2).transpose(1, 2)
        for block in self.encoder:
            tokens = self.run_block(block, tokens, positions, allowed)
        if self.encoder_norm is not None:
            tokens = self.encoder_norm(tokens)
        located, queries = tokens + positions, self.queries.weight.expand(len(cells), -1, -1)
        if self.anchors is not None:
            memory = Memory(tokens, located, allowed, seen, spanned(seen) if extents is None else extents)
            return self._decode_boxes(memory, queries, targets, anchors)
        states = [torch.zeros_like(queries)]
        for block in self.decoder:
            states.append(self.run_block(block, states[-1], queries, tokens, located, allowed))
        features = self.norm(torch.stack(states[1:]))
        logits, boxes = self.head(features), self.boxes(features).sigmoid()
        return Detection(logits[-1], boxes[-1], logits[:-1], boxes[:-1], features[-1], tokens)

    def _decode_boxes(
        self, memory: Memory, contents: Tensor, targets: tuple[Tensor, Tensor] | None, anchors: Tensor | None
    ) -> Detection:
        """The decoder of modern mode: queries have boxes, which are their positions."""
        assert self.anchors is not None
        start, count = self.anchors.start(memory, contents, targets, anchors), self.config.queries
        x, around, features, boxes = start.contents, start.anchors, [], []
        for block in self.decoder:
            edges = edge_offsets(around, memory) if self.config.box_bias else ()
            positions = self.anchors.locate(around, x.dtype)
            x = self.run_block(
                block, x, positions, memory.tokens, memory.located, memory.allowed, start.visible, *edges
            )
            features.append(self.norm(x))
            boxes.append(relative_boxes(self.boxes(features[-1]), around))
            if self.config.refine:
                around = boxes[-1].detach()
        every, every_box = torch.stack(features), torch.stack(boxes)
        logits = self.head(every)
        denoising = None
        if start.targets is not None and start.used is not None:
            noised = logits[:, :, :-count], every_box[:, :, :-count]
            denoising = Denoising(*noised, start.targets, start.used)
        logits, every_box = logits[:, :, -count:], every_box[:, :, -count:]
        return Detection(
            logits[-1],
            every_box[-1],
            logits[:-1],
            every_box[:-1],
            features[-1][:, -count:],
            memory.tokens,
            proposals=start.proposals,
            anchors=start.anchors[:, -count:] if self.config.two_stage else None,
            denoising=denoising,
        )

    def token_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        size, cell = size or self.config.size, (self.config.token_stride,) * 2
        return TokenMap(grid_of(size, cell), cell, size)

    def token_flow(self, size: tuple[int, ...] | None = None) -> tuple[AttentionStep, ...]:
        steps = [AttentionStep(f"encoder.{n}.attention") for n in range(len(self.encoder))]
        for n in range(len(self.decoder)):
            steps.append(AttentionStep(f"decoder.{n}.attention", "queries"))
            steps.append(AttentionStep(f"decoder.{n}.cross", "queries", reads="tokens"))
        return tuple(steps)


def build(name: str, **changes: Any) -> DETR:
    return DETR(configure(name, **changes))
