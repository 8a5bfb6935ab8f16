"""Softmax of linked logits and its residual; the link is sigsoftmax's, piecewise linear, or none.

Two passes over rows of logits: `normaliser_kernel` finds log Σ exp f(z) and the target's f, from
which the host makes each row's coefficient; `linked_residual_kernel` then puts
coefficient · (p − e_target) · f′(z) in the logits' place. A piecewise linear f also needs sums of
the residual by piece, which `piecewise_residual_kernel` adds up in tables, each for some rows, and
`counts` without an addition for each logit where these are bfloat16.

Exponentials are what the passes take time for. Where a row's largest logit is near zero, as nearly
every row's is, Σ exp f(z) is added up as it stands. With e = exp(z), sigsoftmax's exp f(z) is
e²/(1 + e) and f′ is 1 + 1/(1 + e): one exponential, and no logarithm. Others go the careful way.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from uncork.nn._torch import torch
from uncork.nn.kernels.launch import launch, on_its_device, power_of_two
from uncork.nn.kernels.links.counts import LARGEST, add_counted, counted_residual, room_for_counts
from uncork.nn.kernels.links.pieces import Piecewise, apart, pair_at, piece_of, together
from uncork.nn.kernels.math import NEAR, finite

Tensor = torch.Tensor

# What is done to a logit before the softmax
NONE = tl.constexpr(0)
SIGMOID = tl.constexpr(1)
PIECES = tl.constexpr(2)

NEAR_SQUARED = tl.constexpr(20.0)  # sigsoftmax squares

TABLES = 1024  # of sums by piece: so many rows at a time do not wait for one another


@triton.jit
def _linked(z, table, bound, per_width, pieces, LINK: tl.constexpr):
    """f(z) and f′(z)."""
    if LINK == SIGMOID:
        e = tl.exp(-tl.abs(z))
        value = tl.where(z >= 0, z, 2.0 * z) - tl.log(1.0 + e)  # z + log σ(z)
        return value, 1.0 + tl.where(z >= 0, e, 1.0) / (1.0 + e)
    elif LINK == PIECES:
        height, steep = pair_at(table, piece_of(z, bound, per_width, pieces))
        return height + steep * z, steep
    else:
        return z, 0.0 * z + 1.0


@triton.jit
def normaliser_kernel(
    logits, targets, table, lse, at_target, units, width, stride, bound, per_width, pieces,
    LINK: tl.constexpr, COUNTED: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """logits (R, width), targets (R) int64 → lse (R), at_target (R) = f of the target's logit;
    table (pieces): f, as `pair_at` reads it; COUNTED: units (R), as in `counts`, 0 of others."""
    row = tl.program_id(0).to(tl.int64)
    own = logits + row * stride
    lanes = tl.arange(0, L)
    tops = tl.full([L], -float("inf"), tl.float32)
    total = tl.zeros([L], tl.float32)
    largest = tl.zeros([L], tl.float32)
    for k in range(0, width, L):
        at = k + lanes
        z = tl.load(own + at, mask=at < width, other=-float("inf")).to(tl.float32)
        if LINK == SIGMOID:
            e = tl.exp(z)
            total += e * (e / (1.0 + e))
        else:
            value, _ = _linked(z, table, bound, per_width, pieces, LINK)
            value = tl.where(z == -float("inf"), z, value)
            e = tl.exp(value)
            total += e
            if COUNTED:
                largest = tl.maximum(largest, tl.where(e > 0, tl.abs(z), 0.0))
            z = value
        tops = tl.maximum(tops, z)
    near = tl.abs(tl.max(tops)) <= (NEAR_SQUARED if LINK == SIGMOID else NEAR)
    if near:
        tl.store(lse + row, tl.log(tl.sum(total)))
    else:
        tops = tl.full([L], -float("inf"), tl.float32)
        total = tl.zeros([L], tl.float32)
        for k in range(0, width, L):
            at = k + lanes
            z = tl.load(own + at, mask=at < width, other=-float("inf")).to(tl.float32)
            value, _ = _linked(z, table, bound, per_width, pieces, LINK)
            value = tl.where((at < width) & (z != -float("inf")), value, -float("inf"))
            new = tl.maximum(tops, value, propagate_nan=tl.PropagateNan.ALL)
            safe = finite(new)
            total = total * tl.exp(tops - safe) + tl.exp(value - safe)
            tops = new
        top = finite(tl.max(tops))
        whole = tl.sum(total * tl.exp(tops - top))
        tl.store(lse + row, top + tl.log(whole))
    if COUNTED:
        counted = near & (tl.max(largest) < LARGEST)
        tl.store(units + row, tl.where(counted, 1.0 / tl.sum(total), 0.0))
    z = tl.load(own + tl.load(targets + row)).to(tl.float32)
    value, _ = _linked(z, table, bound, per_width, pieces, LINK)
    tl.store(at_target + row, tl.where(z == -float("inf"), z, value))


@triton.jit
def linked_residual_kernel(
    logits, targets, lse, coefficients, width, stride, LINK: tl.constexpr, L: tl.constexpr
):  # fmt: skip
    """logits (R, width) become r · f′(z), r = coefficient · (p − [class is the target])."""
    row = tl.program_id(0).to(tl.int64)
    own = logits + row * stride
    lanes = tl.arange(0, L)
    target = tl.load(targets + row)
    scale = tl.load(lse + row)
    times = tl.load(coefficients + row)
    near = tl.abs(scale) <= NEAR
    unit = tl.exp(-scale)
    for k in range(0, width, L):
        at = k + lanes
        z = tl.load(own + at, mask=at < width, other=-float("inf")).to(tl.float32)
        if LINK == SIGMOID:
            if near:
                e = tl.exp(z)
                share = 1.0 / (1.0 + e)
                p = (e * unit) * (e * share)
                slope = 1.0 + share
            else:
                value, slope = _linked(z, own, 0.0, 0.0, 0, LINK)
                p = tl.exp(value - scale)
        else:
            p = tl.exp(z - scale)
            slope = 0.0 * p + 1.0
        there = z != -float("inf")
        r = times * (tl.where(there, p, 0.0) - tl.where(at == target, 1.0, 0.0))
        r = tl.where(there, r * slope, 0.0)
        tl.store(own + at, r.to(logits.dtype.element_ty), mask=at < width)


@triton.jit
def _piecewise(z, at, target, scale, times, table, sums, bound, per_width, piece_width, pieces):
    """r · f′(z) of one logit a lane; r and what of z lies beyond its piece's beginning are added to
    the piece's sums. A pair of numbers is one access to memory, which Hopper adds to as one."""
    two = tl.arange(0, 2)
    piece = piece_of(z, bound, per_width, pieces)
    pair = (2 * piece)[:, None] + two[None, :]
    height, steep = pair_at(table, piece)
    there = z != -float("inf")
    p = tl.where(there, tl.exp(height + steep * z - scale), 0.0)
    r = times * (p - tl.where(at == target, 1.0, 0.0))
    both = tl.join(r, r * (z - (piece * piece_width - bound)))
    tl.atomic_add(sums + pair, both, mask=there[:, None] & (two >= 0)[None, :], sem="relaxed")
    return tl.where(there, r * steep, 0.0)


@triton.jit
def piecewise_residual_kernel(
    logits, targets, table, lse, coefficients, units, sums,
    width, stride, bound, per_width, piece_width, pieces, tables,
    COUNTED: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The same where f is piecewise linear (COUNTED: of rows that have no unit); sums (tables,
    pieces, 2) are added to: Σ r and Σ r (z − where the piece begins)."""
    row = tl.program_id(0).to(tl.int64)
    own = logits + row * stride
    t = tl.load(targets + row)
    s = tl.load(lse + row)
    c = tl.load(coefficients + row)
    to = sums + (row % tables) * pieces * 2
    G: tl.constexpr = L // 8
    lanes = tl.arange(0, G)
    end = width
    if COUNTED:
        end = tl.where(tl.load(units + row) > 0, 0, width)
    for k in range(0, end, L):
        i = k + 8 * lanes
        at = i[:, None] + tl.arange(0, 8)[None, :]
        z = tl.load(own + at, mask=at < width, other=-float("inf")).to(tl.float32)
        z0, z1, z2, z3, z4, z5, z6, z7 = apart(z, G)
        z0 = _piecewise(z0, i, t, s, c, table, to, bound, per_width, piece_width, pieces)
        z1 = _piecewise(z1, i + 1, t, s, c, table, to, bound, per_width, piece_width, pieces)
        z2 = _piecewise(z2, i + 2, t, s, c, table, to, bound, per_width, piece_width, pieces)
        z3 = _piecewise(z3, i + 3, t, s, c, table, to, bound, per_width, piece_width, pieces)
        z4 = _piecewise(z4, i + 4, t, s, c, table, to, bound, per_width, piece_width, pieces)
        z5 = _piecewise(z5, i + 5, t, s, c, table, to, bound, per_width, piece_width, pieces)
        z6 = _piecewise(z6, i + 6, t, s, c, table, to, bound, per_width, piece_width, pieces)
        z7 = _piecewise(z7, i + 7, t, s, c, table, to, bound, per_width, piece_width, pieces)
        r = together(z0, z1, z2, z3, z4, z5, z6, z7, G)
        tl.store(own + at, r.to(logits.dtype.element_ty), mask=at < width)


@dataclass(frozen=True)
class Linked:
    """A link as the kernels take it; of NONE and SIGMOID, its kind alone."""

    kind: int
    pieces: Piecewise | None = None
    sums: Tensor | None = None  #: (tables, pieces, 2) float32, added to by `linked_residual`
    by_value: Tensor | None = None  #: of bfloat16 logits, as `counts` has it


def piecewise(pieces: Piecewise, logits: Tensor, rows: int) -> Linked:
    """A piecewise linear link, with room for sums by piece of blocks of so many rows like these."""
    sums = torch.zeros((min(TABLES, rows), len(pieces.table), 2), device=logits.device)
    return Linked(PIECES.value, pieces, sums, room_for_counts(logits, rows))


def by_piece(link: Linked) -> Tensor:
    """Σ r and Σ r (z − where the piece begins) of all residuals so far, (pieces, 2)."""
    assert link.pieces is not None
    assert link.sums is not None
    if link.by_value is not None:
        add_counted(link.by_value, link.pieces, link.sums)
    return link.sums.sum(0)


def _lanes(logits: Tensor, least: int = 32) -> dict[str, int]:
    lanes = min(2048, max(least, power_of_two(logits.shape[1])))
    return {"L": lanes, "num_warps": max(1, lanes // 256)}


def _pieces(logits: Tensor, link: Linked) -> dict[str, object]:
    if link.pieces is None:
        return {"table": logits, "bound": 0.0, "per_width": 1.0, "pieces": len(logits)}
    return link.pieces.arguments()


@on_its_device
def normaliser(
    logits: Tensor, targets: Tensor, link: Linked
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(log Σ exp f(z), f of the target's logit), (R) float32 each, of logits (R, C); and where
    values are counted the units (R), as `counts` has them."""
    lse = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    at_target = torch.empty_like(lse)
    units = None if link.by_value is None else torch.empty_like(lse)
    launch(normaliser_kernel, len(logits), {
        **_lanes(logits), **_pieces(logits, link), "logits": logits, "targets": targets,
        "lse": lse, "at_target": at_target, "units": lse if units is None else units,
        "width": logits.shape[1], "stride": logits.stride(0), "LINK": link.kind,
        "COUNTED": units is not None,
    })  # fmt: skip
    return lse, at_target, units


@on_its_device
def linked_residual(
    logits: Tensor,
    targets: Tensor,
    lse: Tensor,
    coefficients: Tensor,
    link: Linked,
    units: Tensor | None,
) -> None:
    """logits (R, C) become the residual; of pieces, `link.sums` are added to."""
    shared: dict[str, object] = {
        "logits": logits, "targets": targets, "coefficients": coefficients,
        "width": logits.shape[1], "stride": logits.stride(0),
    }  # fmt: skip
    if link.sums is None:
        launch(linked_residual_kernel, len(logits), {
            **shared, **_lanes(logits), "lse": lse, "LINK": link.kind,
        })  # fmt: skip
        return
    assert link.pieces is not None
    shared |= link.pieces.arguments() | {
        "sums": link.sums, "tables": len(link.sums), "piece_width": link.pieces.width,
    }  # fmt: skip
    if units is not None:
        assert link.by_value is not None
        counted_residual(logits, units, link.by_value, shared)
    launch(piecewise_residual_kernel, len(logits), {
        **shared, **_lanes(logits, 256), "lse": lse, "units": lse if units is None else units,
        "COUNTED": units is not None,
    })  # fmt: skip
