"""α-entmax of rows of logits, its loss and its gradient.

*Narrow rows* fit in one multiprocessor's registers: one read, one write. A program holds a row as a
(G, L) tile, each column of it in one thread. The maxima of the columns are solved first, almost for
free, and leave two or three steps for the whole row.

*Wide rows* may have any width: one read and one write of a sparse row. While a row streams past,
entries that may be positive are kept, with their places. A sample of the row tells which those are:
its entries alone give an S that is too small, and an entry at or below S − 1/(α−1) has probability
zero. Each of the L lanes keeps its own stack, so that keeping an entry is one store and needs no
search for room. The threshold is found on the stacks, zeros are written, and over them the few
entries that are positive. A row whose stacks would overflow (nearly flat, or α near 1) is read
again for every step instead, from a guess so good that two or three are enough.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from uncork.nn._rows import Alpha
from uncork.nn._torch import torch
from uncork.nn.kernels.launch import (
    alignment,
    as_rows,
    launch,
    multiprocessors,
    on_its_device,
    power_of_two,
)
from uncork.nn.kernels.logits import aligned, edge, edge_at, edge_inside, entry_at, inner
from uncork.nn.kernels.math import (
    ENTMAX15,
    GENERAL,
    POWER,
    SPARSEMAX,
    STEPS,
    advance,
    fenchel_young,
    finite,
    kind_of,
    largest_shift,
    largest_zero,
    log_probability,
    lowest_shift,
    newton_step,
    power_term,
    probability,
    reach,
    scaled,
    slope_of,
    solve,
    terms,
    tolerance_of,
)

Tensor = torch.Tensor

WIDEST = 32768  # float32 values of a narrow row: half of the registers
LANES = 1024  # of a wide row
DEPTH = 8  # entries a lane can keep
SAMPLED = tl.constexpr(4)  # tiles of a sample: a wide row must have as many
# Wide rows in flight on a multiprocessor, tiles read ahead and registers of a thread, by the bytes
# of an entry: measured on an H200.
_WIDE = {2: (5, 5, 96), 4: (4, 4, 128)}


# --- launching ------------------------------------------------------------------------------------


@on_its_device
def entmax_forward(z: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    """p of rows z (..., n), contiguous and of `dtype`."""
    p = torch.empty(z.shape, dtype=dtype, device=z.device)
    _solve_rows(z, alpha, p, None)
    return p


@on_its_device
def log_entmax_forward(z: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    """log p of the same, −inf off the support."""
    log_p = torch.empty(z.shape, dtype=dtype, device=z.device)
    _solve_rows(z, alpha, log_p, None, log=True)
    return log_p


@on_its_device
def entmax_shift(v: Tensor, alpha: Alpha) -> Tensor:
    """s of rows v (..., n) → (..., 1) float32, relative to the row's largest entry. alpha is a
    float, or a tensor that broadcasts to (..., 1)."""
    s = torch.empty((*v.shape[:-1], 1), dtype=torch.float32, device=v.device)
    _solve_rows(v, alpha, None, s)
    return s


@on_its_device
def power_level(v: Tensor, alpha: Alpha) -> Tensor:
    """c = 1/(α−1) − s of rows v (..., n) → (..., 1) float32, α ≥ 2, as `entmax_shift`."""
    c = torch.empty((*v.shape[:-1], 1), dtype=torch.float32, device=v.device)
    _solve_rows(v, alpha, None, c, level=True)
    return c


@on_its_device
def entmax_losses(
    z: Tensor, target: Tensor, ignore_index: int, alpha: float
) -> tuple[Tensor, Tensor]:
    """(losses (N) float32, p like z) of rows z (N, n) against classes (N)."""
    p = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    losses = torch.empty(len(z), dtype=torch.float32, device=z.device)
    _solve_rows(z, alpha, p, losses, target, ignore_index)
    return losses, p


def _solve_rows(
    z: Tensor,
    alpha: Alpha,
    p: Tensor | None,
    shift: Tensor | None,
    target: Tensor | None = None,
    ignore_index: int = 0,
    level: bool = False,
    log: bool = False,
) -> None:
    """Write p of rows z (..., n) (`log`: log p); or s into shift (`level`: 1/(α−1) − s, for α ≥ 2);
    or with a target (rows) p, and the losses into shift."""
    n = z.shape[-1]
    rows = as_rows(z)
    by_row = isinstance(alpha, Tensor)
    alphas = z
    if isinstance(alpha, Tensor):
        alphas = alpha.float().expand((*z.shape[:-1], 1)).contiguous()
    dtype = z.dtype if p is None else p.dtype
    out = rows if p is None else p.view(-1, n)
    s = alphas if shift is None else shift
    common: dict[str, Any] = {
        "z": rows, "p": out, "shift": s, "alphas": alphas, "n": n,
        "targets": s if target is None else target, "stride_z": rows.stride(0),
        "stride_p": out.stride(0),
        "alpha": 1.5 if by_row else float(alpha),
        "tolerance": tolerance_of(dtype),
        "KIND": _kind(alpha, level),
        "BRACKET": isinstance(alpha, Tensor) or alpha > 2,
        "STEPS": STEPS,
        "ROW_ALPHA": by_row,
        "WRITE": p is not None,
        "LEVEL": level,
        "LOG": log,
        "LOSS": target is not None,
        "ignore_index": ignore_index,
    }  # fmt: skip
    # Powers take registers: with a general α the wide kernel takes over sooner.
    fast = common["KIND"] in (SPARSEMAX.value, ENTMAX15.value)
    if n <= (WIDEST if fast else min(WIDEST, 8192)):
        block = max(32, power_of_two(n))
        warps = min(16, max(1, block // 512))
        lanes = min(block, warps * 32 * (16 // z.element_size()))  # 16 bytes a thread
        launch(entmax_narrow_kernel, len(rows), {
            **common, "G": block // lanes, "L": lanes, "num_warps": warps,
        })  # fmt: skip
        return
    in_flight, stages, registers = _WIDE[z.element_size()]
    programs = min(len(rows), in_flight * multiprocessors(z.device))
    stacks = torch.empty((programs, DEPTH, LANES), dtype=z.dtype, device=z.device)
    tags = torch.empty_like(stacks, dtype=torch.int16 if z.element_size() == 2 else torch.int32)
    launch(entmax_wide_kernel, programs, {
        **common, "stacks": stacks, "tagged": tags, "rows": len(rows), "L": LANES, "DEPTH": DEPTH,
        "ALIGN": alignment(rows, out), "STAGES": stages, "num_warps": 4, "maxnreg": registers,
    })  # fmt: skip


def _kind(alpha: Alpha, level: bool) -> int:
    if level:
        return POWER.value
    return GENERAL.value if isinstance(alpha, Tensor) else kind_of(alpha)


@on_its_device
def entmax_backward(p: Tensor, grad: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    """The gradient for z, in `dtype`: p, grad (..., n) → (..., n)."""
    n = p.shape[-1]
    out = torch.empty(p.shape, dtype=dtype, device=p.device)
    rows, pulled, result = as_rows(p), as_rows(grad), out.view(-1, n)
    one = n <= 8192
    lanes = max(32, power_of_two(n)) if one else 2048
    warps = min(8, max(1, lanes // 512)) if one else 8
    launch(entmax_backward_kernel, len(rows), {
        "p": rows, "grad": pulled, "out": result, "n": n, "stride_p": rows.stride(0),
        "stride_g": pulled.stride(0), "stride_out": result.stride(0), "alpha": alpha,
        "KIND": kind_of(alpha), "L": lanes, "ONE": one, "ALIGN": alignment(rows, result),
        "STAGES": 3, "num_warps": warps,
    })  # fmt: skip
    return out


@triton.jit
def _written(x, alpha, KIND: tl.constexpr, LOG: tl.constexpr):
    if LOG:
        return log_probability(x, alpha, KIND)
    else:
        return probability(x, alpha, KIND)


# --- narrow rows ----------------------------------------------------------------------------------


@triton.jit
def entmax_narrow_kernel(
    z, p, shift, alphas, targets, n, stride_z, stride_p, alpha, tolerance, ignore_index,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, ROW_ALPHA: tl.constexpr,
    WRITE: tl.constexpr, LEVEL: tl.constexpr, LOG: tl.constexpr, LOSS: tl.constexpr,
    G: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """z (rows, n) → p (rows, n), with LOG log p; or with WRITE off only shift (rows): s, with LEVEL
    c.

    LOSS: p, and in shift the loss of each row against its class in targets (rows), 0 where that is
    ignore_index.
    """
    row = tl.program_id(0).to(tl.int64)
    if ROW_ALPHA:
        alpha = tl.load(alphas + row)
    columns = tl.arange(0, G)[:, None] * L + tl.arange(0, L)[None, :]
    inside = columns < n
    v = tl.load(z + row * stride_z + columns, mask=inside, other=-float("inf")).to(tl.float32)
    tops = tl.max(v, 0)
    top = finite(tl.max(tops))
    v = v - top
    size = tl.full([], n, tl.float32)  # n = 1 is a constant to Triton, without .to
    c = largest_shift(alpha, KIND) + 0.0 * size
    if G > 1 and not BRACKET:
        c = solve(tops - top, c, size, alpha, tolerance * 16, KIND, BRACKET, STEPS)
    c = solve(v, c, size, alpha, tolerance, KIND, BRACKET, STEPS)
    if WRITE:
        out = _written(v + c, alpha, KIND, LOG)
        tl.store(p + row * stride_p + columns, out.to(p.dtype.element_ty), mask=inside)
        if LOSS:
            power = tl.sum(power_term(v + c, out, alpha, KIND))
            _store_loss(
                shift, z + row * stride_z, targets, row, n, top, c, power, alpha, ignore_index, KIND
            )
    else:
        tl.store(shift + row, c if LEVEL else largest_shift(alpha, KIND) - c)


@triton.jit
def _store_loss(
    losses, own_z, targets, row, n, top, c, power, alpha, ignore_index, KIND: tl.constexpr
):
    """The row's loss, from its Σp^α."""
    target = tl.load(targets + row)
    at_target = entry_at(own_z, target, n) - top
    loss = fenchel_young(c, power, at_target, alpha, KIND)
    tl.store(losses + row, tl.where(target == ignore_index, 0.0, loss))


# --- wide rows ------------------------------------------------------------------------------------


@triton.jit
def _keep(x, tile, line, count, stack, tags, lanes, L: tl.constexpr, DEPTH: tl.constexpr):
    """Push entries above `line` on their lanes' stacks, with the number of their tile."""
    above = ~(x <= line) & (count < DEPTH)  # NaN is kept and makes its row NaN, as it should
    # Claimed to be contiguous, so that stores keep the layout of the loads and no thread has to
    # hand its entries to another first. Nothing is claimed of the mask: each entry is stored by
    # itself.
    place = tl.max_contiguous(tl.multiple_of(count * L + lanes, 8), 8)
    tl.store(stack + place, x.to(stack.dtype.element_ty), mask=above)
    tl.store(tags + place, (tile + tl.zeros_like(count)).to(tags.dtype.element_ty), mask=above)
    # The count goes on past the end: that is how an overflow is noticed.
    return count + (~(x <= line)).to(tl.int32)


@triton.jit
def _from_maxima(
    tops, top, c, size, alpha, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """(top, c) of the lanes' maxima, from those of the sample: S only rises."""
    new = finite(tl.max(tops))
    if BRACKET:
        c = largest_shift(alpha, KIND) + 0.0 * size
    else:
        c = tl.minimum(c + (new - top), largest_shift(alpha, KIND) + 0.0 * size)
        c = solve(tops - new, c, size, alpha, tolerance, KIND, BRACKET, STEPS)
    return new, c


@triton.jit
def _sampled(
    base, off, n, lanes, size, alpha, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, L: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """Of evenly spread tiles: (lane maxima, top, c, guess of the row's c, crowded, full).

    c is that of the maxima alone, so too large for the row. The guess lets each entry stand for
    its share of the row, and may lie on either side. crowded: too many entries of the row lie above
    the sample's own line. full: too many are positive, and stacks would overflow.
    """
    which = (tl.arange(0, SAMPLED) * (tl.cdiv(n + off, L))) // SAMPLED
    at = which[:, None] * L + lanes[None, :]
    inside = (at >= off) & (at < n + off)
    x = tl.load(base + at, mask=inside, other=-float("inf")).to(tl.float32)
    tops = tl.max(x, 0)
    top = finite(tl.max(tops))
    c = largest_shift(alpha, KIND) + 0.0 * size
    if not BRACKET:
        c = solve(tops - top, c, size, alpha, tolerance * 64, KIND, BRACKET, STEPS)
    guess = c
    crowded = False
    full = False
    if not BRACKET:
        copies = tl.maximum(size / (SAMPLED * L), 1.0)
        above = tl.sum(tl.where((x - top) + c > -reach(alpha, KIND), 1.0, 0.0))
        crowded = above * copies > 0.5 * L
        if above * copies > 2.0 * L:
            guess = solve(x - top, c, size, alpha, 1e-3, KIND, BRACKET, STEPS, copies)
            above = tl.sum(tl.where((x - top) + guess > -reach(alpha, KIND), 1.0, 0.0))
            full = above * copies > 0.1 * DEPTH * L  # some lanes have many more than others
    return tops, top, c, guess, crowded, full


@triton.jit
def entmax_wide_kernel(
    z, p, shift, alphas, targets, stacks, tagged, n, rows, stride_z, stride_p, alpha, tolerance,
    ignore_index,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, ROW_ALPHA: tl.constexpr,
    WRITE: tl.constexpr, LEVEL: tl.constexpr, LOG: tl.constexpr, LOSS: tl.constexpr,
    L: tl.constexpr, DEPTH: tl.constexpr, ALIGN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As `entmax_narrow_kernel`. stacks and tagged (programs, DEPTH, L) are room to work in, of z's
    type and of integers of that size. ALIGN as for `aligned`."""
    lanes = tl.arange(0, L)
    stack = stacks + tl.program_id(0).to(tl.int64) * (DEPTH * L)
    tags = tagged + tl.program_id(0).to(tl.int64) * (DEPTH * L)
    size = tl.full([], n, tl.float32)
    row = tl.program_id(0).to(tl.int64)
    while row < rows:
        if ROW_ALPHA:
            alpha = tl.load(alphas + row)
        base, out, off, whole = aligned(z, p, row, n, stride_z, stride_p, L, ALIGN)
        tops, top, c, guess, crowded, full = _sampled(
            base, off, n, lanes, size, alpha, tolerance, KIND, BRACKET, STEPS, L, DEPTH
        )
        count = tl.zeros([L], tl.int32)
        if full:
            # Sums at the guess on the first pass through the row: a step for free.
            total = tl.zeros([L], tl.float32)
            slope = tl.zeros([L], tl.float32)
            for k in tl.range(1, whole, num_stages=STAGES):
                x = inner(base, k, lanes, L)
                tops = tl.maximum(tops, x)
                mass, rate = terms((x - top) + guess, alpha, KIND)
                total += mass
                slope += rate
            for end in range(2):
                x = edge(base, end, off, n, whole, lanes, L)
                tops = tl.maximum(tops, x)
                mass, rate = terms((x - top) + guess, alpha, KIND)
                total += mass
                slope += rate
            a, b = scaled(tl.sum(total), tl.sum(slope), KIND)
            guess = tl.where(a > 0, guess - newton_step(a, b, alpha, KIND), c)
            before_top = top
            top, c = _from_maxima(tops, top, c, size, alpha, tolerance * 64, KIND, BRACKET, STEPS)
            c = tl.minimum(c, guess + (top - before_top))
            depth = DEPTH + 1
        else:
            line = largest_zero(top, c, alpha, KIND)
            x = edge(base, 0, off, n, whole, lanes, L)
            count = _keep(x, 0, line, count, stack, tags, lanes, L, DEPTH)
            # A crowded row raises its line on the way, by the lanes' maxima: after an eighth, or in
            # a long row after a sixteenth and a quarter.
            part = tl.where(whole < 96, whole // 8, whole // 16) + 1
            last = tl.where(crowded, tl.minimum(part, whole), whole)
            first = tl.minimum(1, whole)
            while (first > 0) & (first < whole):
                for k in tl.range(first, last, num_stages=STAGES):
                    x = inner(base, k, lanes, L)
                    count = _keep(x, k, line, count, stack, tags, lanes, L, DEPTH)
                    tops = tl.maximum(tops, x)
                first = last
                last = tl.where(8 * last > whole, whole, 4 * last)
                if first < whole:
                    top, c = _from_maxima(
                        tops, top, c, size, alpha, tolerance * 64, KIND, BRACKET, STEPS
                    )
                    line = largest_zero(top, c, alpha, KIND)
            x = edge(base, 1, off, n, whole, lanes, L)
            count = _keep(x, whole, line, count, stack, tags, lanes, L, DEPTH)
            tops = tl.maximum(tops, x)
            top, c = _from_maxima(tops, top, c, size, alpha, tolerance, KIND, BRACKET, STEPS)
            depth = tl.max(count)

        tl.debug_barrier()
        low = lowest_shift(size, alpha, KIND)
        high = largest_shift(alpha, KIND) + 0.0 * size
        before = float("inf")
        done = False
        step = 0
        while (step < STEPS) & (done == 0):
            total = tl.zeros([L], tl.float32)
            slope = tl.zeros([L], tl.float32)
            there = tl.zeros([L], tl.float32)
            if depth <= DEPTH:
                for d in range(depth):
                    x = tl.load(stack + d * L + lanes, mask=d < count, other=-float("inf"))
                    mass, rate = terms((x.to(tl.float32) - top) + c, alpha, KIND)
                    total += mass
                    slope += rate
                    there += tl.where(rate > 0, 1.0, 0.0)
            else:
                for k in tl.range(1, whole, num_stages=STAGES):
                    x = inner(base, k, lanes, L)
                    mass, rate = terms((x - top) + c, alpha, KIND)
                    total += mass
                    slope += rate
                    if KIND == ENTMAX15:
                        there += tl.where(rate > 0, 1.0, 0.0)
                for end in range(2):
                    x = edge(base, end, off, n, whole, lanes, L)
                    mass, rate = terms((x - top) + c, alpha, KIND)
                    total += mass
                    slope += rate
                    if KIND == ENTMAX15:
                        there += tl.where(rate > 0, 1.0, 0.0)
            c, low, high, before, done = advance(
                tl.sum(total), tl.sum(slope), c, low, high, before, tl.sum(there), alpha,
                tolerance, KIND, BRACKET,
            )  # fmt: skip
            step += 1

        power = tl.zeros([L], tl.float32)
        if WRITE:
            # NaN must reach every entry: such a row is written in full.
            if (depth <= DEPTH) & (c == c):
                nothing = tl.full([L], -float("inf") if LOG else 0.0, p.dtype.element_ty)
                for k in range(1, whole):
                    tl.store(out + k * L + lanes, nothing)
                for end in range(2):
                    at = edge_at(end, whole, lanes, L)
                    tl.store(out + at, nothing, mask=edge_inside(at, end, off, n, whole))
                tl.debug_barrier()
                for d in range(depth):
                    x = tl.load(stack + d * L + lanes, mask=d < count, other=-float("inf"))
                    tile = tl.load(tags + d * L + lanes, mask=d < count, other=0).to(tl.int32)
                    x = (x.to(tl.float32) - top) + c
                    y = _written(x, alpha, KIND, LOG)
                    tl.store(out + tile * L + lanes, y.to(p.dtype.element_ty), mask=d < count)
                    if LOSS:
                        power += power_term(x, y, alpha, KIND)
            else:
                for k in tl.range(1, whole, num_stages=STAGES):
                    x = (inner(base, k, lanes, L) - top) + c
                    y = _written(x, alpha, KIND, LOG)
                    tl.store(out + k * L + lanes, y.to(p.dtype.element_ty))
                    if LOSS:
                        power += power_term(x, y, alpha, KIND)
                for end in range(2):
                    x = (edge(base, end, off, n, whole, lanes, L) - top) + c
                    y = _written(x, alpha, KIND, LOG)
                    if LOSS:
                        power += power_term(x, y, alpha, KIND)
                    at = edge_at(end, whole, lanes, L)
                    inside = edge_inside(at, end, off, n, whole)
                    tl.store(out + at, y.to(p.dtype.element_ty), mask=inside)
            if LOSS:
                _store_loss(
                    shift, z + row * stride_z, targets, row, n, top, c, tl.sum(power), alpha,
                    ignore_index, KIND,
                )  # fmt: skip
        else:
            tl.store(shift + row, c if LEVEL else largest_shift(alpha, KIND) - c)
        tl.debug_barrier()  # the next row's entries go on the same stacks
        row += tl.num_programs(0)


# --- gradient -------------------------------------------------------------------------------------


@triton.jit
def entmax_backward_kernel(
    p, grad, out, n, stride_p, stride_g, stride_out, alpha,
    KIND: tl.constexpr, L: tl.constexpr, ONE: tl.constexpr, ALIGN: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient s∘(g − ⟨s, g⟩/Σs), s = p^{2−α}: p, grad (rows, n) → out (rows, n). ONE: the row
    is one tile and stays in registers.

    The upstream gradient is read only where p is positive. A sparse row costs one read of p from
    memory, a second from cache, and one write.
    """
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, L)
    if ONE:
        inside = lanes < n
        y = tl.load(p + row * stride_p + lanes, mask=inside, other=0.0).to(tl.float32)
        s = slope_of(y, alpha, KIND)
        g = tl.load(grad + row * stride_g + lanes, mask=y > 0, other=0.0).to(tl.float32)
        mass = tl.sum(s)
        mean = tl.sum(s * g) / tl.where(mass == 0, 1.0, mass)
        result = s * (g - mean)
        tl.store(out + row * stride_out + lanes, result.to(out.dtype.element_ty), mask=inside)
    else:
        base, base_out, off, whole = aligned(p, out, row, n, stride_p, stride_out, L, ALIGN)
        base_g = grad + (row * stride_g - off)
        mass = tl.zeros([L], tl.float32)
        pushed = tl.zeros([L], tl.float32)
        for k in tl.range(1, whole, num_stages=STAGES):
            y = inner(base, k, lanes, L)
            s = slope_of(y, alpha, KIND)
            g = tl.load(base_g + k * L + lanes, mask=y > 0, other=0.0).to(tl.float32)
            mass += s
            pushed += s * g
        for end in range(2):
            at = edge_at(end, whole, lanes, L)
            inside = edge_inside(at, end, off, n, whole)
            y = tl.load(base + at, mask=inside, other=0.0).to(tl.float32)
            s = slope_of(y, alpha, KIND)
            g = tl.load(base_g + at, mask=y > 0, other=0.0).to(tl.float32)
            mass += s
            pushed += s * g
        total = tl.sum(mass)
        mean = tl.sum(pushed) / tl.where(total == 0, 1.0, total)
        for k in tl.range(1, whole, num_stages=STAGES):
            y = inner(base, k, lanes, L)
            g = tl.load(base_g + k * L + lanes, mask=y > 0, other=0.0).to(tl.float32)
            result = slope_of(y, alpha, KIND) * (g - mean)
            tl.store(base_out + k * L + lanes, result.to(out.dtype.element_ty))
        for end in range(2):
            at = edge_at(end, whole, lanes, L)
            inside = edge_inside(at, end, off, n, whole)
            y = tl.load(base + at, mask=inside, other=0.0).to(tl.float32)
            g = tl.load(base_g + at, mask=y > 0, other=0.0).to(tl.float32)
            result = slope_of(y, alpha, KIND) * (g - mean)
            tl.store(base_out + at, result.to(out.dtype.element_ty), mask=inside)
