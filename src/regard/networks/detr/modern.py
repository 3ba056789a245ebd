"""Modern mode of DETR: what later papers changed so that it learns faster, or from less data.

Each is a field of the config that is off by itself, and all attention is global: there is no deformable attention.

- `fused_stages`, `stride`: tokens from several stages of the ResNet, projected and added up, as in Lin et al.,
  "Feature Pyramid Networks" (2017), but on one grid.
- `norm="pre"`: Xiong et al., "On Layer Normalization" (2020). As in DETR's own code, the encoder then ends with a norm.
- `two_stage`: Zhu et al., "Deformable DETR" (2021), appendix A.4, with the mixed query selection of Zhang et al.,
  "DINO" (2023), section 3.4: positions of the queries come from the best proposals, their contents are learned.
- `refine`: Deformable DETR, appendix A.4: each block predicts a change of the box before, on the scale of the inverse
  sigmoid. Positions of queries are made of their boxes: DAB-DETR (Liu et al., 2022), section 4.2.
- `box_bias`: Lin et al., "DETR Does Not Need Multi-Scale or Locality Design" (Plain-DETR, 2023), section 4.1.
- `denoising`: Li et al., "DN-DETR" (2022), and its contrastive form in DINO, section 3.3.
- `classification`: Lin et al., "Focal Loss" (2017); Zhang et al., "VarifocalNet" (2021). The head then has no class for
  "no object", and begins with a probability of 0.01 for every class.

With any of `two_stage`, `refine`, `box_bias` and `denoising` each query has an anchor: a box that its answer is
relative to. Without `two_stage` it is learned; without `refine` all blocks use the same.

Departures: one class and box head for all blocks, as in DETR; denoising queries and others do not see each other, in
either direction.

Letters in shapes as in network.py; also G groups of denoising queries, T objects per image at most, padding included.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.networks.detr.config import DETRConfig
from regard.networks.detr.positions import box_positions
from regard.nn.boxes import to_centred, to_corners

PRIOR = 0.01
"""Probability of every class before training, of a head without "no object" (Lin et al., 2017, section 4.1)."""
PROPOSAL_SIDE = 0.05
"""Side of a cell's anchor as a share of the image, at a stride of 8 pixels; in proportion at others."""
LABEL_NOISE, BOX_NOISE = 0.5, 1.0
"""DINO's: half of this share of labels is drawn anew; corners of boxes move by up to this many half sides."""


class Proposals(NamedTuple):
    """Of every token: logits (B, N, logits), boxes (B, N, 4), and whether (B, N) it is not padding."""

    logits: Tensor
    boxes: Tensor
    valid: Tensor


class Denoising(NamedTuple):
    """Of D = G · 2 · T denoising queries: logits (L, B, D, logits) and boxes (L, B, D, 4) of every decoder block; the
    object (B, D) that each is to find, -1 for none; whether (B, D) it was made of an object, not of padding."""

    logits: Tensor
    boxes: Tensor
    targets: Tensor
    used: Tensor


class Memory(NamedTuple):
    """What queries read: tokens (B, N, width), also with their positions; which may be attended to (B, 1, 1, N), None:
    all; which cells (B, rows, columns) are not padding; columns and rows (B, 2) that each image spans, fractions
    included."""

    tokens: Tensor
    located: Tensor
    allowed: Tensor | None
    seen: Tensor
    extents: Tensor


class Start(NamedTuple):
    """M queries before the decoder: contents (B, M, width), anchors (B, M, 4), and which see which (B, 1, M, M), None:
    all. The first M - Q of them are denoising queries, with `targets` and `used` as in `Denoising`."""

    contents: Tensor
    anchors: Tensor
    proposals: Proposals | None
    visible: Tensor | None = None
    targets: Tensor | None = None
    used: Tensor | None = None


def box_mlp(width: int) -> nn.Sequential:
    """The head that predicts boxes, before the sigmoid."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def inverse_sigmoid(share: Tensor, eps: float = 1e-5) -> Tensor:
    """Of a share that is kept `eps` away from 0 and 1.

    >>> inverse_sigmoid(torch.tensor([0.5, 1.0])).sigmoid()
    tensor([0.5000, 1.0000])
    """
    return share.clamp(eps, 1 - eps).logit()


def relative_boxes(change: Tensor, anchors: Tensor) -> Tensor:
    """Centred boxes from what a head predicts and the anchors it is relative to; in single precision."""
    return (change.float() + inverse_sigmoid(anchors.float())).sigmoid()


def start_rare(head: nn.Linear) -> None:
    """Start a head of sigmoids with the probability `PRIOR` for every class."""
    nn.init.constant_(head.bias, -math.log((1 - PRIOR) / PRIOR))


def fuse(maps: list[Tensor], strides: tuple[int, ...], stride: int) -> Tensor:
    """The sum of feature maps (B, width, rows, columns) of several strides, on the grid of the one with `stride`.

    Cells of coarser maps are repeated, cells of finer ones averaged, each within the cell that covers them.
    """
    like = maps[strides.index(stride)]
    total = like
    for cells, its in zip(maps, strides, strict=True):
        if its > stride:
            cells = F.interpolate(cells, scale_factor=its // stride)[..., : like.shape[2], : like.shape[3]]
        elif its < stride:
            cells = F.avg_pool2d(cells, stride // its, ceil_mode=True)
        total = total if cells is like else total + cells
    return total


class Proposer(nn.Module):
    """Classes and boxes from the encoder's tokens, each relative to a box on its cell."""

    def __init__(self, width: int, logits: int):
        super().__init__()
        self.project, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.head, self.boxes = nn.Linear(width, logits), box_mlp(width)

    def forward(self, tokens: Tensor, centres: Tensor, side: float, valid: Tensor) -> Proposals:
        """tokens (B, N, width); centres (B, N, 2) of their cells, as shares; valid (B, N)."""
        x = self.norm(self.project(tokens))
        anchors = torch.cat((centres, torch.full_like(centres, side)), dim=-1).clamp(0.01, 0.99)
        return Proposals(self.head(x), relative_boxes(self.boxes(x), anchors), valid)


def best_boxes(proposals: Proposals, count: int, no_object: bool) -> Tensor:
    """The `count` boxes (B, count, 4) of the highest class scores; from the first again, where there are fewer.

    `no_object`: the last logit is of no class.
    """
    logits = proposals.logits
    if no_object:  # logarithms of the classes' probabilities
        logits = logits[..., :-1] - logits.logsumexp(-1, keepdim=True)
    scores = logits.amax(-1).masked_fill(~proposals.valid, -math.inf)
    ranked = scores.topk(min(count, scores.shape[1]), dim=1).indices
    numbers = torch.arange(count, device=scores.device)
    numbers = numbers % proposals.valid.sum(1, keepdim=True).clamp(1, ranked.shape[1])
    chosen = ranked.gather(1, numbers)
    return proposals.boxes.gather(1, chosen[..., None].expand(-1, -1, 4))


class BoxBias(nn.Module):
    """A bias (B, H, Q, N) for attention of queries to cells, from how far each cell is from the edges of a box.

    Left and right edges, and columns, give one part; top and bottom edges, and rows, the other (Plain-DETR's
    decomposed form). Distances are in cells, on a logarithmic scale.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.across, self.down = (
            nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, heads, bias=False)) for _ in range(2)
        )

    def forward(self, across: Tensor, down: Tensor) -> Tensor:
        """Offsets (B, Q, columns, 2) and (B, Q, rows, 2), as `edge_offsets` gives them."""
        columns, rows = self.across(across), self.down(down)
        return (rows[:, :, :, None] + columns[:, :, None]).flatten(2, 3).permute(0, 3, 1, 2)


def edge_offsets(boxes: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
    """From each column's centre to the left and right edge of centred boxes (B, Q, 4), and the same for rows.

    (B, Q, columns, 2) and (B, Q, rows, 2): the sign of an offset, times log₂(1 + cells).
    """
    edges = to_corners(boxes.float()).unflatten(-1, (2, 2)) * memory.extents[:, None, None]  # low and high, x and y
    offsets = []
    for axis, count in enumerate(reversed(memory.seen.shape[1:])):
        centres = torch.arange(count, device=boxes.device) + 0.5
        cells = edges[:, :, None, :, axis] - centres[:, None]
        offsets.append((cells.sign() * (cells.abs() + 1).log2()).to(memory.tokens.dtype))
    return offsets[0], offsets[1]


class Denoiser(nn.Module):
    """Queries made of true objects with noise, in groups: the decoder must restore the objects, without matching."""

    def __init__(self, classes: int, width: int, groups: int):
        super().__init__()
        self.classes, self.groups = classes, groups
        self.labels = nn.Embedding(classes, width)

    def forward(self, boxes: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Contents (B, G · 2 · T, width) and anchors (B, G · 2 · T, 4), from boxes (B, T, 4) and labels (B, T)."""
        size, device = (len(boxes), self.groups, 2, boxes.shape[1]), boxes.device
        others = torch.randint(self.classes, size, device=device)
        known = labels.clamp_min(0)[:, None, None]
        numbers = torch.where(torch.rand(size, device=device) < LABEL_NOISE / 2, others, known)
        further = torch.arange(2, device=device)[:, None, None]  # the second of a pair is no object
        moves = (torch.rand(*size, 4, device=device) + further) * BOX_NOISE
        moves = moves * (torch.randint(2, (*size, 4), device=device) * 2 - 1)
        boxes = boxes.float()[:, None, None]
        sides = torch.cat((boxes[..., 2:], boxes[..., 2:]), dim=-1)
        corners = (to_corners(boxes) + moves * sides / 2).clamp(0, 1)
        anchors = to_centred(corners).clamp_min(0)  # a pair of edges may have changed places
        return self.labels(numbers).flatten(1, 3), anchors.flatten(1, 3)

    def assigned(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """`targets` and `used` of the queries, as in `Denoising`: the first of each pair is for its object."""
        size = (len(labels), self.groups, 2, labels.shape[1])
        used = (labels >= 0)[:, None, None].expand(size)
        numbers = torch.arange(size[3], device=labels.device)
        first = torch.arange(2, device=labels.device)[:, None] == 0
        return torch.where(used & first, numbers, -1).flatten(1), used.flatten(1)

    def visible(self, used: Tensor, queries: int) -> Tensor:
        """Which query sees which, (B, 1, M, M): those of its own group whose object is not padding, and itself."""
        present = torch.cat((used, used.new_ones(len(used), queries)), dim=1)
        numbers = torch.arange(self.groups, device=used.device).repeat_interleave(used.shape[1] // self.groups)
        numbers = torch.cat((numbers, numbers.new_full((queries,), -1)))
        together = numbers[:, None] == numbers
        itself = torch.eye(len(numbers), dtype=torch.bool, device=used.device)
        return (together & present[:, None] | itself)[:, None]


class Anchors(nn.Module):
    """Where queries begin: their contents and boxes, and their positions, made of the boxes."""

    def __init__(self, config: DETRConfig):
        super().__init__()
        width, self.config = config.width, config
        self.positions = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.proposer = Proposer(width, config.logits) if config.two_stage else None
        self.learned = None if config.two_stage else nn.Embedding(config.queries, 4)
        self.denoiser = Denoiser(config.classes, width, config.denoising) if config.denoising else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Learned anchors are spread over the image, a fifth of its sides long; proposals begin as their cells."""
        if self.learned is not None:
            self.learned.weight[:, :2].uniform_(0.05, 0.95).logit_()
            self.learned.weight[:, 2:].fill_(math.log(0.2 / 0.8))
        if self.proposer is not None:
            start_at_anchors(self.proposer.boxes)
            if self.config.classification != "softmax":
                start_rare(self.proposer.head)

    def start(
        self, memory: Memory, contents: Tensor, targets: tuple[Tensor, Tensor] | None, anchors: Tensor | None
    ) -> Start:
        """Of queries with learned contents (B, Q, width); `anchors` (B, Q, 4) instead of proposals, if given."""
        proposals = None
        if self.proposer is not None:
            side = PROPOSAL_SIDE * self.config.token_stride / 8
            proposals = self.proposer(memory.tokens, cell_centres(memory), side, memory.seen.flatten(1))
            if anchors is None:
                no_object = self.config.classification == "softmax"
                anchors = best_boxes(proposals, self.config.queries, no_object).detach()
        if self.learned is not None:
            anchors = self.learned.weight.float().sigmoid().expand(len(contents), -1, -1)
        assert anchors is not None
        if self.denoiser is None or targets is None:
            return Start(contents, anchors, proposals)
        noised, noised_anchors = self.denoiser(*targets)
        numbers, used = self.denoiser.assigned(targets[1])
        contents = torch.cat((noised.to(contents.dtype), contents), dim=1)
        visible = self.denoiser.visible(used, self.config.queries)
        return Start(contents, torch.cat((noised_anchors, anchors), dim=1), proposals, visible, numbers, used)

    def locate(self, boxes: Tensor, dtype: torch.dtype) -> Tensor:
        """Positions (B, M, width) of queries with these boxes."""
        return self.positions(box_positions(boxes, self.config.width).to(dtype))


def start_at_anchors(boxes: nn.Sequential) -> None:
    """A head whose first boxes are its anchors."""
    last = boxes[-1]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)


def spanned(seen: Tensor) -> Tensor:
    """Columns and rows (B, 2) with an image, of masks (B, rows, columns).

    >>> spanned(torch.tensor([[[True, True, False], [False, False, False]]]))
    tensor([[2, 1]])
    """
    return torch.stack((seen.any(1).sum(-1), seen.any(2).sum(-1)), dim=-1)


def cell_centres(memory: Memory) -> Tensor:
    """x and y (B, N, 2) of each cell's centre, as shares of its image."""
    down, across = (torch.arange(count, device=memory.seen.device) + 0.5 for count in memory.seen.shape[1:])
    cells = torch.stack(torch.meshgrid(across, down, indexing="xy"), dim=-1).flatten(0, 1)
    return cells / memory.extents[:, None]
