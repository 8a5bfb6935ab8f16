"""PlifHead: softmax of a learned increasing, piecewise linear function of the logits (LMS-PLIF)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn._torch import torch
from uncork.nn.heads.base import OutputHead, linear_scores
from uncork.nn.linear.in_blocks import wide
from uncork.nn.linear.links import Link, Pieces

Tensor = torch.Tensor


class PlifHead(OutputHead):
    """P(x | h) = softmax(f(W h + b))_x with f increasing and piecewise linear (Ganea et al. 2019).

    f has `pieces` pieces of equal width δ = 2·bound / pieces between −bound and bound, each with a
    slope of its own, softplus(u_i) > 0; the first and the last go on to infinity:

        f(z) = −bound + δ Σ_{j<i} s_j + s_i (z − knot_i),    i = the piece z lies on.

    Slopes are 1 at first, where f is the identity and the head plain softmax. Like sigsoftmax it
    can raise the rank of the log-probabilities, and cannot change the order of the classes.

    Args:
        pieces: how many.
        bound: logits between −bound and bound have pieces to themselves.
        Others as for :class:`OutputHead`.
    """

    name = "plif"

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        pieces: int = 1000,
        bound: float = 20.0,
        **settings: Any,
    ) -> None:
        super().__init__(features, classes, **settings)
        if not isinstance(pieces, int) or pieces < 1:
            raise UncorkError(f"pieces must be a positive whole number, got {pieces!r}")
        if not 0 < bound < math.inf:
            raise UncorkError(f"bound must be a positive number, got {bound!r}")
        self.pieces, self.bound = pieces, float(bound)
        # Sums over all logits end in a slope: kept in float32 where the head is in 16 bits.
        kind = wide(self.weight.dtype)
        self.slopes = torch.nn.Parameter(torch.empty(pieces, device=self.weight.device, dtype=kind))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        torch.nn.init.constant_(self.slopes, math.log(math.e - 1))  # softplus of it is 1

    def options(self) -> dict[str, Any]:
        return super().options() | {"pieces": self.pieces, "bound": self.bound}

    @property
    def copies(self) -> int:
        return 8

    @property
    def _softmax_link(self) -> Link:
        return Pieces(self.pieces, self.bound)

    def _row_tensors(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return (hidden,)

    def _shared_tensors(self) -> tuple[Tensor | None, ...]:
        return self.weight, self.bias, self.slopes

    def _scores(self, rows: Sequence[Tensor], shared: Sequence[Tensor | None]) -> Tensor:
        weight, bias, slopes = shared
        assert weight is not None
        assert slopes is not None
        return self._function(linear_scores(rows[0], weight, bias), slopes)

    def _function(self, z: Tensor, slopes: Tensor) -> Tensor:
        """f of logits z (R, C)."""
        steep = torch.nn.functional.softplus(slopes.to(z.dtype))
        width = 2 * self.bound / self.pieces
        piece = ((z.detach() + self.bound) / width).floor().clamp(0, self.pieces - 1)
        piece = piece.nan_to_num(0.0).long()  # NaN is on any piece, and stays NaN
        # Tables by row: their gradients are sums over one row first, which no two rows contend for.
        below = (torch.cumsum(steep, 0) - steep).expand(z.shape[0], -1).gather(1, piece)
        slope = steep.expand(z.shape[0], -1).gather(1, piece)
        lower = width * piece.to(z.dtype)  # of whole numbers it would be float32
        return width * below - self.bound + slope * (z + self.bound - lower)
