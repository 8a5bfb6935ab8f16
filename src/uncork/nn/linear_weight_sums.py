"""The weight's gradient, added up over blocks of rows: in its own type or more exactly.

A 16-bit sum is rounded with every block. Where there is room for four bytes a number, three blocks'
products are kept apart and added up at once, and more than three in float32.
"""

from __future__ import annotations

from uncork.nn._torch import torch
from uncork.nn.kernels.ends import add

Tensor = torch.Tensor

APART = 3  # blocks whose products take no more memory apart than float32 sums do


def extra_bytes(weight: Tensor) -> int:
    """What sums take that are exact, beside the gradient itself."""
    return 4 * weight.numel()


class WeightSums:
    """Of one call, with so many blocks; `exact`: with `extra_bytes`."""

    def __init__(self, total: Tensor, blocks: int, exact: bool) -> None:
        self.total = total
        self._others: Tensor | None = None
        self._places = [total] * blocks
        if exact and blocks == APART:
            self._others = total.new_empty((APART - 1, *total.shape))
            self._places = [total, *self._others]
        elif exact:
            self._places = [torch.empty_like(total, dtype=torch.float32)] * blocks

    def place(self, block: int) -> Tensor:
        """Where a block's product goes."""
        return self._places[block]

    def begun(self, block: int) -> bool:
        """Whether it is added to what is there."""
        return block > 0 and self._places[block] is self._places[block - 1]

    def finish(self) -> None:
        """All blocks are in: total is theirs."""
        if self._others is not None:
            add(self.total, self._others)
        elif self._places[0] is not self.total:
            self.total.copy_(self._places[0])
