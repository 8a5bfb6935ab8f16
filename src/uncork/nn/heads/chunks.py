"""Losses of any head, a block of rows at a time: (rows × classes) never exists in full.

A head gives a function from some rows' tensors and the tensors all rows share to the rows' losses.
Where the loss is reduced, gradients are made together with it, block by block, and summed over
blocks in float32; otherwise backward computes each block again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from uncork.nn._rows import without_autocast
from uncork.nn._torch import torch
from uncork.nn.linear.in_blocks import Gradients, Tensors, as_given, wide
from uncork.nn.losses.specification import Reduction

Tensor = torch.Tensor
#: rows' tensors (R, …), shared tensors, targets (R), class weights … → losses (R), 0 if ignored
Losses = Callable[[Sequence[Tensor], Sequence[Tensor | None], Tensor, Reduction], Tensor]

ON_CPU = 1 << 22  # numbers in memory at a time: 16 MiB in float32
# On a GPU every block costs launches and the adding up of a weight's gradient: 512 MiB, or less
# where torch's own cross entropy would take less.
ON_GPU = 1 << 27
SHARE = 0.75  # of rows × classes


def block_rows(rows: int, classes: int, device: torch.device, copies: int = 1) -> int:
    """How many rows of scores to make at a time where each is kept `copies` times."""
    elements = ON_CPU
    if device.type != "cpu":
        elements = min(ON_GPU, max(ON_CPU, int(SHARE * rows * classes)))
    return max(1, elements // max(1, classes * copies))


def blocks(rows: int, step: int) -> Iterator[slice]:
    """Slices that cover the rows."""
    for start in range(0, rows, step):
        yield slice(start, start + step)


@dataclass(frozen=True)
class ChunkedLoss:
    """The losses of any head, differentiated by torch a block at a time."""

    losses: Losses
    rows: int  #: how many of the tensors belong to rows; the others are shared
    classes: int
    copies: int  #: of a row's scores, which its derivative keeps

    def at_once(self, tensors: Tensors, target: Tensor, how: Reduction) -> Tensor:
        """Losses (R) of one block of rows, or of all."""
        rows = [tensor for tensor in tensors[: self.rows] if tensor is not None]
        return self.losses(rows, tensors[self.rows :], target, how)

    def compute(
        self,
        tensors: Tensors,
        target: Tensor,
        how: Reduction,
        upstream: Tensor | None,
        wanted: Sequence[bool],
    ) -> tuple[Tensor, Gradients]:
        first = tensors[0]
        assert first is not None
        step = block_rows(len(target), self.classes, first.device, self.copies)
        losses = torch.zeros(len(target), dtype=wide(first.dtype), device=first.device)
        sums: Gradients = [
            torch.zeros_like(one, dtype=one.dtype if place < self.rows else wide(one.dtype))
            if asked and one is not None and upstream is not None
            else None
            for place, (one, asked) in enumerate(zip(tensors, wanted, strict=True))
        ]
        with without_autocast(first.device.type):
            for part in blocks(len(target), step):
                piece = self._of(tensors, part)
                if upstream is None:
                    with torch.no_grad():
                        losses[part] = self.at_once(piece, target[part], how)
                else:
                    losses[part] = self._add(sums, piece, part, target, how, upstream)
        return losses, as_given(sums, tensors)

    def _add(
        self,
        sums: Gradients,
        piece: Tensors,
        part: slice,
        target: Tensor,
        how: Reduction,
        upstream: Tensor,
    ) -> Tensor:
        """A block's losses; its gradients are added to the sums."""
        places = [place for place, whole in enumerate(sums) if whole is not None]
        leaves: list[Any] = [
            None if one is None else one.detach().requires_grad_(place in places)
            for place, one in enumerate(piece)
        ]
        with torch.enable_grad():
            made = self.at_once(leaves, target[part], how)
        found = torch.autograd.grad(
            made, [leaves[place] for place in places], upstream[part].to(made.dtype)
        )
        for place, gradient in zip(places, found, strict=True):
            whole = sums[place]
            assert whole is not None
            if place < self.rows:
                whole[part] = gradient
            else:
                whole += gradient
        return made.detach()

    def _of(self, tensors: Tensors, part: slice) -> list[Tensor | None]:
        """A block's tensors: its rows, and all of the shared ones."""
        return [
            one[part] if place < self.rows and one is not None else one
            for place, one in enumerate(tensors)
        ]
