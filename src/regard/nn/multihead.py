"""Multi-head attention: the projections around `attend`, for complete sequences or with cached keys and values."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import ConfigError
from regard.nn.attention import Attention, attend
from regard.nn.patches import apply_rope


class MultiHeadAttention(Attention):
    """Concat(head₁, …, head_h) Wᴼ with headᵢ = attend(Q Wᵢ, K Wᵢ, V Wᵢ): section 3.2.2 of the paper.

    One matrix projects queries, keys and values, so self-attention needs one product. Cross-attention uses parts of
    that matrix. `key_width` is the paper's d_k. `value_width` is its d_v; default: d_k.
    """

    def __init__(
        self, width: int, heads: int, *, key_width: int | None = None, value_width: int | None = None, bias: bool = True
    ):
        super().__init__()
        if key_width is None and width % heads:
            raise ConfigError(f"width {width} does not divide into {heads} heads", do="change width or heads")
        key_width = width // heads if key_width is None else key_width
        self.heads = heads
        self.inner = heads * (key_width if value_width is None else value_width)
        self.parts = (heads * key_width, heads * key_width, self.inner)
        self.halves = (self.parts[0], sum(self.parts[1:]))
        self.qkv = nn.Linear(width, sum(self.parts), bias=bias)
        self.out = nn.Linear(self.inner, width, bias=bias)

    def forward(
        self,
        queries: Tensor,
        keys: Tensor | None = None,
        values: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        rope: Tensor | None = None,
    ) -> Tensor:
        """(B, Q, width) from queries (B, Q, width); keys and values default to the queries, values to keys.

        With `rope` (see `rope_table`) queries and keys are rotated by position. Queries must then be the first tokens
        of the keys.
        """
        if keys is None and rope is not None and queries.is_cuda and queries.requires_grad:
            # Three products are faster on a GPU: one would concatenate the rotated gradients in the backward pass.
            keys = values = queries
        if keys is None:
            q, k, v = self.project(queries)
        elif values is None:
            first, rest = self._weight_parts(self.halves)
            q, (k, v) = self._split(F.linear(queries, *first)), self._project_two(keys, *rest)
        else:
            inputs = zip((queries, keys, values), self._weight_parts(self.parts), strict=True)
            q, k, v = (self._split(F.linear(x, *part)) for x, part in inputs)
        if rope is not None:
            q, k = apply_rope(q, rope), apply_rope(k, rope)
        return self.attend_projected(q, k, v, mask=mask, bias=bias, causal=causal)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, N, D) of the same tokens (B, N, width), by one matrix product."""
        q, k, v = (self._split(part) for part in self.qkv(x).split(self.parts, dim=-1))
        return q, k, v

    def project_keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens, to be cached and used by `attend_to`."""
        return self._project_two(memory, *self._weight_parts(self.halves)[1])

    def attend_to(self, queries: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """As `forward`, for queries (B, Q, width) and the keys and values of `project_keys_values`."""
        return self.attend_projected(
            self._split(F.linear(queries, *self._weight_parts(self.halves)[0])), k, v, mask=mask
        )

    def attend_projected(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Attention of projected queries, keys and values, then Wᴼ: (B, Q, width)."""
        mixed = attend(q, k, v, mask=mask, bias=bias, causal=causal)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _weight_parts(self, parts: tuple[int, ...]) -> list[tuple[Tensor, Tensor | None]]:
        """Parts of the projection matrix and its bias. Call once per forward pass: each split costs a copy in the
        backward pass."""
        weights, bias = self.qkv.weight.split(parts), self.qkv.bias
        return list(zip(weights, [None] * len(parts) if bias is None else bias.split(parts), strict=True))

    def _project_two(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and values of the same tokens, by one matrix product."""
        k, v = (self._split(part) for part in F.linear(x, weight, bias).split(self.parts[1:], dim=-1))
        return k, v

    def _split(self, x: Tensor) -> Tensor:
        """(B, N, H · D) as heads, (B, H, N, D)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
