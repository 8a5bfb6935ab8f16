"""What stands between logits and softmax in heads of high rank: a link f, increasing, by entry.

Each link takes a block of rows of logits, finds the target's log-probability, and then puts the
derivative in the logits' place: `coefficient · (p − e_target) · f′(z)`. In torch, in place and with
as few passes as there can be; on a GPU by the two kernels of `kernels.links`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from uncork.nn import kernels
from uncork.nn._torch import torch

Tensor = torch.Tensor

_FAR = -50.0  # a row's largest logit below which exp(z) σ(z) might be 0 for all


class Residual(NamedTuple):
    """In the place of a block's logits, and what else has a derivative."""

    values: Tensor  #: (R, C)
    table: Tensor | None = None  #: by the link's own parameters


class Rows(Protocol):
    """A block of rows' logits, which are overwritten."""

    log_p: Tensor  #: (R), of the target

    def residual(self, coefficients: Tensor) -> Residual: ...


class Link(Protocol):
    """From logits z (R, C) and targets (R) to `Rows`."""

    def __call__(self, z: Tensor, target: Tensor, table: Tensor | None) -> Rows: ...


@dataclass(frozen=True)
class Identity:
    """Softmax itself."""

    def __call__(self, z: Tensor, target: Tensor, table: Tensor | None) -> Rows:
        if kernels.launches(z):
            return _ByKernels(z, target, 0)
        return _Softmax(z, target)


@dataclass(frozen=True)
class Sigmoid:
    """f(z) = z + log σ(z), of sigsoftmax."""

    def __call__(self, z: Tensor, target: Tensor, table: Tensor | None) -> Rows:
        if kernels.launches(z):
            return _ByKernels(z, target, 1)
        return _Sigmoid(z, target)


@dataclass(frozen=True)
class Pieces:
    """f piecewise linear with so many pieces of one width between −bound and bound; the table is
    their slopes before softplus."""

    pieces: int
    bound: float

    @property
    def width(self) -> float:
        return 2 * self.bound / self.pieces

    def __call__(self, z: Tensor, target: Tensor, table: Tensor | None) -> Rows:
        assert table is not None
        steep = torch.nn.functional.softplus(table.to(torch.promote_types(z.dtype, torch.float32)))
        # f(z) = height_i + steep_i z on piece i
        lower = torch.arange(self.pieces, dtype=steep.dtype, device=steep.device)
        lower = lower * self.width - self.bound
        height = self.width * (steep.cumsum(0) - steep) - self.bound - steep * lower
        if kernels.launches(z):
            return _ByKernels(z, target, 2, self, table, height, steep)
        return _Pieces(z, target, self, table, height, steep)

    def slope_gradient(self, sums: Tensor, moments: Tensor, table: Tensor) -> Tensor:
        """By the table, from Σ r and Σ r z of every piece: a slope moves all that lies above."""
        lower = torch.arange(self.pieces, dtype=sums.dtype, device=sums.device)
        lower = lower * self.width - self.bound
        above = sums.flip(0).cumsum(0).flip(0) - sums
        by_steep = self.width * above + (moments - lower * sums)
        return by_steep * torch.sigmoid(table.to(sums.dtype))


def _top(z: Tensor) -> Tensor:
    top = z.amax(-1, keepdim=True)
    return torch.where(top == -torch.inf, 0.0, top)


class _Softmax:
    """`p` are exponentials in z's place, not yet divided by `total`."""

    def __init__(self, z: Tensor, target: Tensor) -> None:
        self.index = target.unsqueeze(-1)
        top = _top(z)
        at = z.gather(-1, self.index) - top
        self._finish(z.sub_(top).exp_(), at)

    def _finish(self, p: Tensor, at: Tensor) -> None:
        self.p, self.total = p, p.sum(-1, keepdim=True)
        self.log_p = (at - self.total.log()).squeeze(-1)

    def _unlinked(self, coefficients: Tensor) -> Tensor:
        """coefficient · (p − e_target)."""
        times = coefficients.unsqueeze(-1)
        return self.p.mul_(times / self.total).scatter_add_(-1, self.index, -times)

    def residual(self, coefficients: Tensor) -> Residual:
        return Residual(self._unlinked(coefficients))


class _Sigmoid(_Softmax):
    """exp(z) σ(z) needs no logarithm, unless all of a row is far below 0."""

    def __init__(self, z: Tensor, target: Tensor) -> None:
        self.index = target.unsqueeze(-1)
        top = _top(z)
        at = z.gather(-1, self.index)
        linked = at + torch.nn.functional.logsigmoid(at)
        self.sigma = torch.sigmoid(z)
        if bool((top < _FAR).any()):
            z.add_(torch.nn.functional.logsigmoid(z))
            top = _top(z)
            self._finish(z.sub_(top).exp_(), linked - top)
        else:
            self._finish(z.sub_(top).exp_().mul_(self.sigma), linked - top)

    def residual(self, coefficients: Tensor) -> Residual:
        slope = self.sigma.neg_().add_(2)  # f′ = 1 + σ(−z)
        return Residual(self._unlinked(coefficients).mul_(slope))


class _Pieces(_Softmax):
    def __init__(
        self, z: Tensor, target: Tensor, link: Pieces, table: Tensor, height: Tensor, steep: Tensor
    ) -> None:
        self.index, self.link, self.table = target.unsqueeze(-1), link, table
        piece = (z + link.bound).div_(link.width).floor_().clamp_(0, link.pieces - 1)
        self.piece = piece.nan_to_num_(0.0).int().view(-1)  # NaN is on any piece, and stays NaN
        self.z, self.steep = z, steep.index_select(0, self.piece).view_as(z)
        linked = torch.addcmul(height.index_select(0, self.piece).view_as(z), self.steep, z)
        top = _top(linked)
        at = linked.gather(-1, self.index) - top
        self._finish(linked.sub_(top).exp_(), at)

    def residual(self, coefficients: Tensor) -> Residual:
        r = self._unlinked(coefficients)
        moments = torch.where(self.z.isfinite(), r * self.z, 0.0)
        sums = self._by_piece(r), self._by_piece(moments)
        slope = self.link.slope_gradient(*sums, self.table)
        return Residual(r.mul_(self.steep), slope)

    def _by_piece(self, values: Tensor) -> Tensor:
        pieces = self.link.pieces
        if values.device.type == "cpu":
            return torch.bincount(self.piece, values.view(-1).double(), pieces).to(values.dtype)
        # Tables by row: no two rows contend for one place.
        tables = torch.zeros((len(values), pieces), dtype=values.dtype, device=values.device)
        return tables.scatter_add_(1, self.piece.view_as(values).long(), values).sum(0)


class _ByKernels:
    def __init__(
        self,
        z: Tensor,
        target: Tensor,
        kind: int,
        link: Pieces | None = None,
        table: Tensor | None = None,
        height: Tensor | None = None,
        steep: Tensor | None = None,
    ) -> None:
        from uncork.nn.kernels import links

        self.z, self.target, self.link, self.table = z, target, link, table
        self.more: dict[str, Any] = {"link": kind}
        if link is not None:
            self.more |= {
                "heights": height, "steeps": steep, "bound": link.bound,
                "per_width": 1 / link.width,
            }  # fmt: skip
        self.lse, at = links.normaliser(z, target, **self.more)
        self.log_p = at - self.lse

    def residual(self, coefficients: Tensor) -> Residual:
        from uncork.nn.kernels import links

        coefficients = coefficients.contiguous()
        made = links.linked_residual(self.z, self.target, self.lse, coefficients, **self.more)
        if made is None or self.link is None or self.table is None:
            return Residual(self.z)
        return Residual(self.z, self.link.slope_gradient(*made, self.table))
