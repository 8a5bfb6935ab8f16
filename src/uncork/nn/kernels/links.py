"""Softmax of linked logits and its residual; the link is sigsoftmax's, piecewise linear, or none.

Two passes over rows of logits: `normaliser_kernel` finds log Σ exp f(z) and the target's f, from
which the host makes each row's coefficient; `linked_residual_kernel` then puts
coefficient · (p − e_target) · f′(z) in the logits' place. A piecewise linear f also needs sums of
the residual by piece, which are added up in tables, a table for some rows each.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn._torch import torch
from uncork.nn.kernels.launch import launch, on_its_device, power_of_two
from uncork.nn.kernels.math import finite

Tensor = torch.Tensor

# What is done to a logit before the softmax
NONE = tl.constexpr(0)
SIGMOID = tl.constexpr(1)
PIECES = tl.constexpr(2)

TABLES = 512  # of sums by piece: so many rows at a time do not wait for one another


@triton.jit
def _linked(z, heights, steeps, bound, per_width, pieces, LINK: tl.constexpr):
    """f(z), f′(z) and the piece that z lies on (0 where there are none)."""
    if LINK == SIGMOID:
        e = tl.exp(-tl.abs(z))
        value = tl.where(z >= 0, z, 2.0 * z) - tl.log(1.0 + e)  # z + log σ(z)
        return value, 1.0 + tl.where(z >= 0, e, 1.0) / (1.0 + e), (0.0 * e).to(tl.int32)
    elif LINK == PIECES:
        place = tl.floor((z + bound) * per_width)
        place = tl.minimum(tl.maximum(place, 0.0), pieces - 1.0)
        piece = tl.where(place == place, place, 0.0).to(tl.int32)
        steep = tl.load(steeps + piece)
        return tl.load(heights + piece) + steep * z, steep, piece
    else:
        return z, 0.0 * z + 1.0, (0.0 * z).to(tl.int32)


@triton.jit
def normaliser_kernel(
    logits, targets, heights, steeps, lse, at_target, width, stride, bound, per_width, pieces,
    LINK: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """logits (R, width), targets (R) int64 → lse (R), at_target (R) = f of the target's logit."""
    row = tl.program_id(0).to(tl.int64)
    own = logits + row * stride
    lanes = tl.arange(0, L)
    tops = tl.full([L], -float("inf"), tl.float32)
    total = tl.zeros([L], tl.float32)
    for k in range(0, width, L):
        at = k + lanes
        z = tl.load(own + at, mask=at < width, other=-float("inf")).to(tl.float32)
        value, _, _ = _linked(z, heights, steeps, bound, per_width, pieces, LINK)
        value = tl.where((at < width) & (z != -float("inf")), value, -float("inf"))
        new = tl.maximum(tops, value, propagate_nan=tl.PropagateNan.ALL)
        safe = finite(new)
        total = total * tl.exp(tops - safe) + tl.exp(value - safe)
        tops = new
    top = finite(tl.max(tops))
    whole = tl.sum(total * tl.exp(tops - top))
    tl.store(lse + row, top + tl.log(whole))
    z = tl.load(own + tl.load(targets + row)).to(tl.float32)
    value, _, _ = _linked(z, heights, steeps, bound, per_width, pieces, LINK)
    tl.store(at_target + row, tl.where(z == -float("inf"), z, value))


@triton.jit
def linked_residual_kernel(
    logits, targets, heights, steeps, lse, coefficients, sums, moments,
    width, stride, bound, per_width, pieces, tables,
    LINK: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """logits (R, width) become r · f′(z), r = coefficient · (p − [class is the target]). Of PIECES,
    sums and moments (tables, pieces) are added to: Σ r and Σ r z of every piece."""
    row = tl.program_id(0).to(tl.int64)
    own = logits + row * stride
    lanes = tl.arange(0, L)
    target = tl.load(targets + row)
    scale = tl.load(lse + row)
    times = tl.load(coefficients + row)
    table = (row % tables) * pieces
    for k in range(0, width, L):
        at = k + lanes
        inside = at < width
        z = tl.load(own + at, mask=inside, other=-float("inf")).to(tl.float32)
        there = inside & (z != -float("inf"))
        z = tl.where(there, z, 0.0)
        value, slope, piece = _linked(z, heights, steeps, bound, per_width, pieces, LINK)
        p = tl.where(there, tl.exp(value - scale), 0.0)
        r = times * (p - tl.where(at == target, 1.0, 0.0))
        if LINK == PIECES:
            tl.atomic_add(sums + table + piece, r, mask=there, sem="relaxed")
            tl.atomic_add(moments + table + piece, r * z, mask=there, sem="relaxed")
        r = tl.where(there, r * slope, 0.0)
        tl.store(own + at, r.to(logits.dtype.element_ty), mask=inside)


def _shared(
    logits: Tensor, heights: Tensor | None, steeps: Tensor | None, bound: float, per_width: float
) -> dict[str, object]:
    spare = logits if heights is None or steeps is None else heights
    lanes = min(2048, max(32, power_of_two(logits.shape[1])))
    return {
        "logits": logits, "heights": spare, "steeps": logits if steeps is None else steeps,
        "width": logits.shape[1], "stride": logits.stride(0), "bound": bound,
        "per_width": per_width, "pieces": 1 if steeps is None else len(steeps), "L": lanes,
        "num_warps": max(1, lanes // 256),
    }  # fmt: skip


@on_its_device
def normaliser(
    logits: Tensor,
    targets: Tensor,
    link: int,
    heights: Tensor | None = None,
    steeps: Tensor | None = None,
    bound: float = 0.0,
    per_width: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(log Σ exp f(z), f of the target's logit), (R) float32 each, of logits (R, C)."""
    lse = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    at_target = torch.empty_like(lse)
    launch(normaliser_kernel, len(logits), {
        **_shared(logits, heights, steeps, bound, per_width), "targets": targets, "lse": lse,
        "at_target": at_target, "LINK": link,
    })  # fmt: skip
    return lse, at_target


@on_its_device
def linked_residual(
    logits: Tensor,
    targets: Tensor,
    lse: Tensor,
    coefficients: Tensor,
    link: int,
    heights: Tensor | None = None,
    steeps: Tensor | None = None,
    bound: float = 0.0,
    per_width: float = 0.0,
) -> tuple[Tensor, Tensor] | None:
    """logits (R, C) become the residual; of pieces, (Σ r, Σ r z) by piece."""
    tables, sums, moments = 1, lse, lse
    if steeps is not None:
        tables = min(TABLES, len(logits))
        sums, moments = torch.zeros((2, tables, len(steeps)), device=logits.device)
    launch(linked_residual_kernel, len(logits), {
        **_shared(logits, heights, steeps, bound, per_width), "targets": targets, "lse": lse,
        "coefficients": coefficients, "sums": sums, "moments": moments, "tables": tables,
        "LINK": link,
    })  # fmt: skip
    return None if steeps is None else (sums.sum(0), moments.sum(0))
