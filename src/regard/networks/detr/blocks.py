"""DETR's encoder and decoder blocks: the Transformer's, with positions added in every block (appendix A.3).

Letters in shapes as in network.py.
"""

from torch import Tensor

from regard.networks.detr.modern import BoxBias
from regard.nn import BlockConfig, DecoderBlock, EncoderBlock


class CellBlock(EncoderBlock):
    """The encoder's block: positions are added to queries and keys, not to values."""

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Cells (B, N, width) in and out; mask (B, 1, 1, N), true where a cell is not padding."""
        entering = self.norm1(x) if self.norm_first else x
        located = entering + positions
        x = x + self.drop(self.attention(located, located, entering, mask=mask))
        if self.norm_first:
            return x + self.drop(self.mlp(self.norm2(x)))
        x = self.norm1(x)
        return self.norm2(x + self.drop(self.mlp(x)))


class QueryBlock(DecoderBlock):
    """The decoder's block: queries see each other and all cells. Their learned vectors are their positions."""

    def __init__(self, config: BlockConfig, *, box_bias: bool = False):
        super().__init__(config)
        self.box_bias = BoxBias(config.width, config.heads) if box_bias else None

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        x: Tensor,
        queries: Tensor,
        cells: Tensor,
        located_cells: Tensor,
        mask: Tensor | None = None,
        visible: Tensor | None = None,
        across: Tensor | None = None,
        down: Tensor | None = None,
    ) -> Tensor:
        """(B, Q, width) in and out; `located_cells` are the cells with their positions; mask as in the encoder.

        `visible` says which queries see which; `across` and `down` are `edge_offsets` of the queries' boxes.
        """
        bias = None
        if self.box_bias is not None and across is not None and down is not None:
            bias = self.box_bias(across, down)

        def see_queries(entering: Tensor) -> Tensor:
            located = entering + queries
            return self.attention(located, located, entering, mask=visible)

        x = self._branch(self.norm1, x, see_queries)
        x = self._branch(
            self.norm2, x, lambda asking: self.cross(asking + queries, located_cells, cells, mask=mask, bias=bias)
        )
        return self._branch(self.norm3, x, self.mlp)
