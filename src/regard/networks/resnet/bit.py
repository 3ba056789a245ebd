"""BiT's two changes to the ResNet, its block, and the ResNet that the hybrid Vision Transformer stands on.

Kolesnikov et al., "Big Transfer" (2020), section 3: GroupNorm in place of BatchNorm, and convolutions
whose weights are standardised (Qiao et al., 2019). In BiT itself norms and activations come before the
convolutions; in ViT's hybrids (section 3.1 and appendix B.1) they follow, the fourth stage's blocks have
moved into the third, and padding is TensorFlow's "same". The two eps (1e-8 for weights, 1e-5 for groups)
are timm's.
"""

import itertools
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import ConfigError
from regard.nn import DropPath

GROUPS = 32
group_norm = partial(nn.GroupNorm, GROUPS)


def pad_same(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Zeros around (B, C, H, W) so that each side gives ⌈side / stride⌉ outputs; the odd pixel goes after the end."""
    missing = [max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in x.shape[:1:-1]]
    return F.pad(x, [n for total in missing for n in (total // 2, total - total // 2)])


class StandardisedConv(nn.Conv2d):
    """A convolution whose filters have mean 0 and variance 1 before they are used; no bias.

    Padding is TensorFlow's, or as much on every side (`same=False`).
    """

    def __init__(self, before: int, after: int, kernel: int, stride: int = 1, *, same: bool = True):
        super().__init__(before, after, kernel, stride=stride, padding=0 if same else kernel // 2, bias=False)
        self.same = same

    def forward(self, input: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        weight = (self.weight - mean) * torch.rsqrt(variance + 1e-8)
        x = pad_same(input, self.kernel_size[0], self.stride[0]) if self.same else input
        return F.conv2d(x, weight, stride=self.stride, padding=self.padding)


even_conv = partial(StandardisedConv, same=False)


class Bottleneck(nn.Module):
    """1 × 1 down to a quarter, 3 × 3 with the stride, 1 × 1 up again, added to the input or its projection."""

    def __init__(
        self,
        before: int,
        after: int,
        stride: int,
        drop_path: float | None = None,
        *,
        conv: Callable[..., nn.Module] = StandardisedConv,
        norm: Callable[[int], nn.Module] = group_norm,
    ):
        super().__init__()
        inner = after // 4
        self.conv1, self.norm1 = conv(before, inner, 1), norm(inner)
        self.conv2, self.norm2 = conv(inner, inner, 3, stride), norm(inner)
        self.conv3, self.norm3 = conv(inner, after, 1), norm(after)
        changed = before != after or stride > 1
        self.shortcut = conv(before, after, 1, stride) if changed else None
        self.shortcut_norm = norm(after) if changed else None
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        if self.shortcut is not None and self.shortcut_norm is not None:
            x = self.shortcut_norm(self.shortcut(x))
        return F.relu(x + self.drop_path(y))


class PreActivation(nn.Module):
    """BiT's bottleneck: norm and activation before each convolution (He et al., "Identity Mappings", 2016).

    A stage's first block projects its input once that is normalised; the others add it as it came.
    """

    def __init__(self, before: int, after: int, stride: int, drop_path: float | None = None, *, first: bool):
        super().__init__()
        inner = after // 4
        self.norm1, self.conv1 = group_norm(before), even_conv(before, inner, 1)
        self.norm2, self.conv2 = group_norm(inner), even_conv(inner, inner, 3, stride)
        self.norm3, self.conv3 = group_norm(inner), even_conv(inner, after, 1)
        self.shortcut = even_conv(before, after, 1, stride) if first else None
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(x))
        if self.shortcut is not None:
            x = self.shortcut(y)
        y = self.conv2(F.relu(self.norm2(self.conv1(y))))
        y = self.conv3(F.relu(self.norm3(y)))
        return x + self.drop_path(y)


class HybridStem(nn.Module):
    """A ResNet-50's first sixteenth of the resolution as tokens: (B, N, width), one for each 16 × 16 pixels.

    >>> HybridStem((16, 16), 3, 8, blocks=(1, 1, 1))(torch.rand(2, 3, 40, 32)).shape
    torch.Size([2, 6, 8])
    """

    def __init__(
        self, patch: tuple[int, ...], channels: int, width: int, blocks: tuple[int, ...] = (3, 4, 9), base: int = 64
    ):
        super().__init__()
        if patch != (16, 16):
            raise ConfigError(f"stem='r50' cannot make patches of {patch}", do="its patches are of (16, 16)")
        self.root, self.root_norm = StandardisedConv(channels, base, 7, stride=2), nn.GroupNorm(GROUPS, base)
        widths = [base, *(4 * base * 2**n for n in range(len(blocks)))]
        self.stages = nn.Sequential()
        for number, (before, after) in enumerate(itertools.pairwise(widths)):
            first = Bottleneck(before, after, stride=1 if number == 0 else 2)
            self.stages.append(nn.Sequential(first, *(Bottleneck(after, after, 1) for _ in range(blocks[number] - 1))))
        self.project = nn.Linear(widths[-1], width)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.root_norm(self.root(x)))
        x = F.max_pool2d(pad_same(x, 3, 2), 3, stride=2)  # nothing is below the padding's zeros
        return self.project(self.stages(x).flatten(2).transpose(1, 2))
