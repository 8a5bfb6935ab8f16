"""What stands between logits and softmax in heads of high rank: a link f, increasing, by entry.

Each link takes a block of rows of logits, finds the target's log-probability, and then puts the
derivative in the logits' place: `coefficient · (p − e_target) · f′(z)`. In torch, in place and with
as few passes as there can be; on a GPU by the two kernels of `kernels.links.linked`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from uncork.nn import kernels
from uncork.nn._torch import torch

if TYPE_CHECKING:
    from uncork.nn.kernels.links.linked import Linked

Tensor = torch.Tensor

_FAR = -50.0  # a row's largest logit below which exp(z) σ(z) might be 0 for all


class Rows(Protocol):
    """A block of rows' logits, which are overwritten."""

    log_p: Tensor  #: (R), of the target

    def residual(self, coefficients: Tensor) -> Tensor:
        """(R, C), in the place of the logits."""
        ...


class Linking(Protocol):
    """A link during one call: from blocks of logits z (R, C) and targets (R) to `Rows`."""

    def __call__(self, z: Tensor, target: Tensor) -> Rows: ...

    def by_parameters(self) -> Tensor | None:
        """The derivative by the link's own parameters, of all residuals so far."""
        ...


class Link(Protocol):
    """What a head passes its logits through."""

    def begin(self, parameters: Tensor | None, rows: int, wide: torch.dtype) -> Linking:
        """For blocks of so many rows at most, computed in `wide`."""
        ...


@dataclass(frozen=True)
class _WithoutParameters:
    def begin(self, parameters: Tensor | None, rows: int, wide: torch.dtype) -> Linking:
        return self

    def by_parameters(self) -> Tensor | None:
        return None

    def __call__(self, z: Tensor, target: Tensor) -> Rows:
        raise NotImplementedError


class Identity(_WithoutParameters):
    """Softmax itself."""

    def __call__(self, z: Tensor, target: Tensor) -> Rows:
        return _ByKernels(z, target, _of_kind(0)) if kernels.launches(z) else _Softmax(z, target)


class Sigmoid(_WithoutParameters):
    """f(z) = z + log σ(z), of sigsoftmax."""

    def __call__(self, z: Tensor, target: Tensor) -> Rows:
        return _ByKernels(z, target, _of_kind(1)) if kernels.launches(z) else _Sigmoid(z, target)


@dataclass(frozen=True)
class Pieces:
    """f piecewise linear with so many pieces of one width between −bound and bound; its parameters
    are their slopes before softplus."""

    pieces: int
    bound: float

    @property
    def width(self) -> float:
        return 2 * self.bound / self.pieces

    def begin(self, parameters: Tensor | None, rows: int, wide: torch.dtype) -> Linking:
        assert parameters is not None
        return _Piecewise(self, parameters.to(wide), rows)


class _Piecewise:
    """f(z) = heights_i + steeps_i z on piece i, and Σ r and Σ r (z − lower_i) of each so far."""

    def __init__(self, link: Pieces, slopes: Tensor, rows: int) -> None:
        self.link, self.slopes, self.rows = link, slopes.contiguous(), rows
        self.sums: Tensor | None = None  #: (pieces, 2), unless kernels keep them
        self.linked: Linked | None = None

    @cached_property
    def steeps(self) -> Tensor:
        return torch.nn.functional.softplus(self.slopes)

    @cached_property
    def lower(self) -> Tensor:
        """Where pieces begin."""
        kind, device = self.slopes.dtype, self.slopes.device
        count = torch.arange(self.link.pieces, dtype=kind, device=device)
        return count * self.link.width - self.link.bound

    @cached_property
    def heights(self) -> Tensor:
        before = self.link.width * (self.steeps.cumsum(0) - self.steeps)
        return before - self.link.bound - self.steeps * self.lower

    def __call__(self, z: Tensor, target: Tensor) -> Rows:
        if not kernels.launches(z):
            return _Pieces(z, target, self)
        if self.linked is None:
            self.linked = self._for_kernels(z)
        return _ByKernels(z, target, self.linked)

    def _for_kernels(self, z: Tensor) -> Linked:
        from uncork.nn.kernels.links.linked import piecewise
        from uncork.nn.kernels.links.pieces import Piecewise, one_program, pieces_table

        link = self.link
        if one_program(self.slopes):
            table = pieces_table(self.slopes, link.width, link.bound)
        else:
            table = torch.stack([self.heights, self.steeps], -1).float()
        return piecewise(Piecewise(table, link.bound, link.width), z, self.rows)

    def add(self, sums: Tensor) -> None:
        self.sums = sums if self.sums is None else self.sums + sums

    def by_parameters(self) -> Tensor | None:
        """A slope moves all that lies above its piece."""
        if self.linked is not None:
            from uncork.nn.kernels.links.linked import by_piece
            from uncork.nn.kernels.links.pieces import one_program, slopes_gradient

            self.sums = by_piece(self.linked)
            if one_program(self.slopes):
                return slopes_gradient(self.slopes, self.sums, self.link.width)
        if self.sums is None:
            return torch.zeros_like(self.slopes)
        sums, beyond = self.sums.unbind(-1)
        above = sums.flip(0).cumsum(0).flip(0) - sums
        by_steeps = self.link.width * above + beyond
        return by_steeps.to(self.slopes.dtype) * torch.sigmoid(self.slopes)


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

    def residual(self, coefficients: Tensor) -> Tensor:
        return self._unlinked(coefficients)


class _Sigmoid(_Softmax):
    """exp(z) σ(z) needs no logarithm, unless all of a row is far below 0."""

    def __init__(self, z: Tensor, target: Tensor) -> None:
        self.index = target.unsqueeze(-1)
        top = _top(z)
        at = z.gather(-1, self.index)
        linked = at + torch.nn.functional.logsigmoid(at)
        self.sigma = torch.sigmoid(z)
        if z.is_meta or bool((top < _FAR).any()):  # a meta tensor has no value
            z.add_(torch.nn.functional.logsigmoid(z))
            top = _top(z)
            self._finish(z.sub_(top).exp_(), linked - top)
        else:
            self._finish(z.sub_(top).exp_().mul_(self.sigma), linked - top)

    def residual(self, coefficients: Tensor) -> Tensor:
        slope = self.sigma.neg_().add_(2)  # f′ = 1 + σ(−z)
        return self._unlinked(coefficients).mul_(slope)


class _Pieces(_Softmax):
    def __init__(self, z: Tensor, target: Tensor, use: _Piecewise) -> None:
        self.index, self.use, self.z, link = target.unsqueeze(-1), use, z, use.link
        piece = (z + link.bound).div_(link.width).floor_().clamp_(0, link.pieces - 1)
        self.piece = piece.nan_to_num_(0.0).int().view(-1)  # NaN is on any piece, and stays NaN
        self.steep = use.steeps.index_select(0, self.piece).view_as(z)
        linked = torch.addcmul(use.heights.index_select(0, self.piece).view_as(z), self.steep, z)
        top = _top(linked)
        at = linked.gather(-1, self.index) - top
        self._finish(linked.sub_(top).exp_(), at)

    def residual(self, coefficients: Tensor) -> Tensor:
        r = self._unlinked(coefficients)
        sums = self._by_piece(r)
        moments = self._by_piece(torch.where(self.z.isfinite(), r * self.z, 0.0))
        self.use.add(torch.stack([sums, moments - self.use.lower * sums], -1))
        return r.mul_(self.steep)

    def _by_piece(self, values: Tensor) -> Tensor:
        pieces = self.use.link.pieces
        if values.device.type == "cpu":
            return torch.bincount(self.piece, values.view(-1).double(), pieces)
        # Tables by row: no two rows contend for one place.
        tables = torch.zeros((len(values), pieces), dtype=values.dtype, device=values.device)
        return tables.scatter_add_(1, self.piece.view_as(values).long(), values).sum(0)


def _of_kind(kind: int) -> Linked:
    from uncork.nn.kernels.links.linked import Linked

    return Linked(kind)


class _ByKernels:
    def __init__(self, z: Tensor, target: Tensor, link: Linked) -> None:
        from uncork.nn.kernels.links import linked

        self.z, self.target, self.link = z, target, link
        self.lse, at, self.units = linked.normaliser(z, target, link)
        self.log_p = at - self.lse

    def residual(self, coefficients: Tensor) -> Tensor:
        from uncork.nn.kernels.links import linked

        coefficients = coefficients.contiguous()
        linked.linked_residual(self.z, self.target, self.lse, coefficients, self.link, self.units)
        return self.z
