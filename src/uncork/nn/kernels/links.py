"""Softmax of linked logits and its residual; the link is sigsoftmax's, piecewise linear, or none.

Two passes over rows of logits: `normaliser_kernel` finds log Σ exp f(z) and the target's f, from
which the host makes each row's coefficient; `linked_residual_kernel` then puts
coefficient · (p − e_target) · f′(z) in the logits' place. A piecewise linear f also needs sums of
the residual by piece, which `piecewise_residual_kernel` adds up in tables, each for some rows. (Of
both numbers packed into one whole number of 64 bits it was no faster.)

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
from uncork.nn.kernels.math import finite, log1p

Tensor = torch.Tensor

# What is done to a logit before the softmax
NONE = tl.constexpr(0)
SIGMOID = tl.constexpr(1)
PIECES = tl.constexpr(2)

# |f| of a row's largest logit up to which exponentials are taken of f itself: e⁴⁰ times any number
# of classes is in float32's range, and what is e⁻⁴⁷ of the largest may vanish. sigsoftmax squares.
NEAR = tl.constexpr(40.0)
NEAR_SQUARED = tl.constexpr(20.0)

MOST_PIECES = 8192
TABLES = 1024  # of sums by piece: so many rows at a time do not wait for one another


@triton.jit
def _piece(z, bound, per_width, pieces):
    """The piece that z lies on; the first of NaN."""
    place = tl.minimum(tl.maximum(tl.floor((z + bound) * per_width), 0.0), pieces - 1.0)
    return tl.where(place == place, place, 0.0).to(tl.int32)


@triton.jit
def _linked(z, table, bound, per_width, pieces, LINK: tl.constexpr):
    """f(z) and f′(z)."""
    if LINK == SIGMOID:
        e = tl.exp(-tl.abs(z))
        value = tl.where(z >= 0, z, 2.0 * z) - tl.log(1.0 + e)  # z + log σ(z)
        return value, 1.0 + tl.where(z >= 0, e, 1.0) / (1.0 + e)
    elif LINK == PIECES:
        piece = _piece(z, bound, per_width, pieces)
        steep = tl.load(table + 2 * piece + 1)
        return tl.load(table + 2 * piece) + steep * z, steep
    else:
        return z, 0.0 * z + 1.0


@triton.jit
def normaliser_kernel(
    logits, targets, table, lse, at_target, width, stride, bound, per_width, pieces,
    LINK: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """logits (R, width), targets (R) int64 → lse (R), at_target (R) = f of the target's logit;
    table (pieces, 2): f = table[i, 0] + table[i, 1] z on piece i."""
    row = tl.program_id(0).to(tl.int64)
    own = logits + row * stride
    lanes = tl.arange(0, L)
    tops = tl.full([L], -float("inf"), tl.float32)
    total = tl.zeros([L], tl.float32)
    for k in range(0, width, L):
        at = k + lanes
        z = tl.load(own + at, mask=at < width, other=-float("inf")).to(tl.float32)
        if LINK == SIGMOID:
            e = tl.exp(z)
            total += e * (e / (1.0 + e))
        else:
            value, _ = _linked(z, table, bound, per_width, pieces, LINK)
            z = tl.where(z == -float("inf"), z, value)
            total += tl.exp(z)
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
    piece = _piece(z, bound, per_width, pieces)
    pair = (2 * piece)[:, None] + two[None, :]
    height, steep = tl.split(tl.load(table + pair))
    there = z != -float("inf")
    p = tl.where(there, tl.exp(height + steep * z - scale), 0.0)
    r = times * (p - tl.where(at == target, 1.0, 0.0))
    both = tl.join(r, r * (z - (piece * piece_width - bound)))
    tl.atomic_add(sums + pair, both, mask=there[:, None] & (two >= 0)[None, :], sem="relaxed")
    return tl.where(there, r * steep, 0.0)


@triton.jit
def piecewise_residual_kernel(
    logits, targets, table, lse, coefficients, sums,
    width, stride, bound, per_width, piece_width, pieces, tables, L: tl.constexpr,
):  # fmt: skip
    """The same where f is piecewise linear; sums (tables, pieces, 2) are added to: Σ r and
    Σ r (z − where the piece begins). Each lane takes eight logits side by side, one after the
    other: pairs of numbers and eight logits have then the same place in the program."""
    row = tl.program_id(0).to(tl.int64)
    own = logits + row * stride
    t = tl.load(targets + row)
    s = tl.load(lse + row)
    c = tl.load(coefficients + row)
    to = sums + (row % tables) * pieces * 2
    G: tl.constexpr = L // 8
    lanes = tl.arange(0, G)
    for k in range(0, width, L):
        i = k + 8 * lanes
        at = i[:, None] + tl.arange(0, 8)[None, :]
        z = tl.load(own + at, mask=at < width, other=-float("inf")).to(tl.float32)
        even, odd = tl.split(tl.reshape(z, [G, 4, 2]))
        z04, z26 = tl.split(tl.reshape(even, [G, 2, 2]))
        z15, z37 = tl.split(tl.reshape(odd, [G, 2, 2]))
        z0, z4 = tl.split(z04)
        z1, z5 = tl.split(z15)
        z2, z6 = tl.split(z26)
        z3, z7 = tl.split(z37)
        z0 = _piecewise(z0, i, t, s, c, table, to, bound, per_width, piece_width, pieces)
        z1 = _piecewise(z1, i + 1, t, s, c, table, to, bound, per_width, piece_width, pieces)
        z2 = _piecewise(z2, i + 2, t, s, c, table, to, bound, per_width, piece_width, pieces)
        z3 = _piecewise(z3, i + 3, t, s, c, table, to, bound, per_width, piece_width, pieces)
        z4 = _piecewise(z4, i + 4, t, s, c, table, to, bound, per_width, piece_width, pieces)
        z5 = _piecewise(z5, i + 5, t, s, c, table, to, bound, per_width, piece_width, pieces)
        z6 = _piecewise(z6, i + 6, t, s, c, table, to, bound, per_width, piece_width, pieces)
        z7 = _piecewise(z7, i + 7, t, s, c, table, to, bound, per_width, piece_width, pieces)
        even = tl.reshape(tl.join(tl.join(z0, z4), tl.join(z2, z6)), [G, 4])
        odd = tl.reshape(tl.join(tl.join(z1, z5), tl.join(z3, z7)), [G, 4])
        r = tl.reshape(tl.join(even, odd), [G, 8])
        tl.store(own + at, r.to(logits.dtype.element_ty), mask=at < width)


@triton.jit
def pieces_table_kernel(slopes, table, pieces, piece_width, bound, L: tl.constexpr):
    """slopes (pieces) before softplus → table (pieces, 2), as `normaliser_kernel` has it."""
    i = tl.arange(0, L)
    u = tl.load(slopes + i, mask=i < pieces, other=-float("inf"))
    steep = tl.maximum(u, 0.0) + log1p(tl.exp(-tl.abs(u)))
    before = tl.cumsum(steep, 0) - steep
    height = piece_width * before - bound - steep * (i * piece_width - bound)
    tl.store(table + 2 * i, height, mask=i < pieces)
    tl.store(table + 2 * i + 1, steep, mask=i < pieces)


@triton.jit
def slopes_gradient_kernel(sums, slopes, out, pieces, piece_width, L: tl.constexpr):
    """sums (pieces, 2), slopes (pieces) → out (pieces): a slope moves all that lies above it."""
    i = tl.arange(0, L)
    inside = i < pieces
    r = tl.load(sums + 2 * i, mask=inside, other=0.0)
    beyond = tl.load(sums + 2 * i + 1, mask=inside, other=0.0)
    above = tl.cumsum(r, 0, reverse=True) - r
    u = tl.load(slopes + i, mask=inside, other=0.0)
    by_steep = piece_width * above + beyond
    tl.store(out + i, by_steep / (1.0 + tl.exp(-u)), mask=inside)


@dataclass(frozen=True)
class Linked:
    """A link as the kernels take it; of NONE and SIGMOID, its kind alone."""

    kind: int
    table: Tensor | None = None  #: (pieces, 2) float32: f = table[i, 0] + table[i, 1] z on piece i
    bound: float = 0.0  #: pieces lie between −bound and bound
    width: float = 1.0  #: of a piece
    sums: Tensor | None = None  #: (tables, pieces, 2) float32, added to by `linked_residual`


def one_program(slopes: Tensor) -> bool:
    """Whether one program has room for all pieces."""
    return slopes.dtype == torch.float32 and len(slopes) <= MOST_PIECES


@on_its_device
def pieces_table(slopes: Tensor, width: float, bound: float) -> Tensor:
    """`Linked.table` of slopes (pieces) before softplus."""
    table = torch.empty((len(slopes), 2), device=slopes.device)
    launch(pieces_table_kernel, 1, {**_by_piece(slopes, width), "table": table, "bound": bound})
    return table


@on_its_device
def slopes_gradient(slopes: Tensor, sums: Tensor, width: float) -> Tensor:
    """The derivative by the slopes (pieces), from sums (tables, pieces, 2)."""
    out = torch.empty_like(slopes)
    launch(slopes_gradient_kernel, 1, {
        **_by_piece(slopes, width), "sums": sums.sum(0), "out": out,
    })  # fmt: skip
    return out


def _by_piece(slopes: Tensor, width: float) -> dict[str, object]:
    lanes = max(32, power_of_two(len(slopes)))
    return {
        "slopes": slopes, "pieces": len(slopes), "piece_width": width, "L": lanes,
        "num_warps": max(1, min(16, lanes // 256)),
    }  # fmt: skip


def sums_by_piece(rows: int, pieces: int, device: torch.device) -> Tensor:
    """Room for sums by piece of so many rows."""
    return torch.zeros((min(TABLES, rows), pieces, 2), device=device)


def _lanes(logits: Tensor, least: int = 32) -> dict[str, int]:
    lanes = min(2048, max(least, power_of_two(logits.shape[1])))
    return {"L": lanes, "num_warps": max(1, lanes // 256)}


def _pieces(logits: Tensor, link: Linked) -> dict[str, object]:
    table = logits if link.table is None else link.table
    return {
        "table": table, "bound": link.bound, "per_width": 1 / link.width, "pieces": len(table),
    }  # fmt: skip


@on_its_device
def normaliser(logits: Tensor, targets: Tensor, link: Linked) -> tuple[Tensor, Tensor]:
    """(log Σ exp f(z), f of the target's logit), (R) float32 each, of logits (R, C)."""
    lse = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    at_target = torch.empty_like(lse)
    launch(normaliser_kernel, len(logits), {
        **_lanes(logits), **_pieces(logits, link), "logits": logits, "targets": targets,
        "lse": lse, "at_target": at_target, "width": logits.shape[1], "stride": logits.stride(0),
        "LINK": link.kind,
    })  # fmt: skip
    return lse, at_target


@on_its_device
def linked_residual(
    logits: Tensor, targets: Tensor, lse: Tensor, coefficients: Tensor, link: Linked
) -> None:
    """logits (R, C) become the residual; of pieces, `link.sums` are added to."""
    shared = {
        "logits": logits, "targets": targets, "lse": lse, "coefficients": coefficients,
        "width": logits.shape[1], "stride": logits.stride(0),
    }  # fmt: skip
    if link.sums is None:
        launch(linked_residual_kernel, len(logits), {
            **shared, **_lanes(logits), "LINK": link.kind,
        })  # fmt: skip
        return
    launch(piecewise_residual_kernel, len(logits), {
        **shared, **_lanes(logits, 256), **_pieces(logits, link), "sums": link.sums,
        "tables": len(link.sums), "piece_width": link.width,
    })  # fmt: skip
