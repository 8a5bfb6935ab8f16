"""The piecewise link's residual of bfloat16 logits, and its sums by piece by counting values.

A slope's derivative needs Σ r and Σ r z over the logits on its piece, r = a · exp f(z) with one
number a = coefficient / Σ exp f for a row. An addition to memory for each logit is what that took
most of its time for. But bfloat16 has few values: 8,192 hold all from 2⁻²⁶ to 2⁶, zero, and their
opposites. So each program counts, in its own shared memory and in whole numbers, how often each
value occurs in a row, and adds a times the counts to a sum for each value, which stay in its
registers from row to row. After the last row `values_kernel` multiplies them by exp f and z. That
is the sum over all logits, as exact as if each were added by itself: what is nearer to zero than
2⁻²⁶ is counted as zero, which float32 does too when it adds `bound`.

Rows that have other logits, or lie so far from zero that a might leave float32's range, have no
`unit` = 1 / Σ exp f. They are left to `linked.piecewise_residual_kernel`, which adds one by one.

Triton has no atomic addition to shared memory. It is written in PTX, around a table that the first
of these lines declares. With SHARED = False, which is what the interpreter runs, counts are in
global memory, a table for each program.
"""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from uncork.nn._torch import torch
from uncork.nn.kernels.launch import ceiling, launch, multiprocessors, on_its_device
from uncork.nn.kernels.links.pieces import Piecewise, apart, pair_at, piece_of, together

Tensor = torch.Tensor

VALUES = 8192
HALF = tl.constexpr(VALUES // 2)  # of one sign
# Exponents are biased by 127 and followed by 7 bits. Number 0 is zero, and the last of a sign
# stands for all that is not counted: −inf, and what is too small to matter.
BELOW = tl.constexpr((127 - 26) << 7)
LARGEST = tl.constexpr(63.0)  # what is less is counted

PROGRAMS = 2  # for each multiprocessor
SPAN = 65536  # logits of a row that a program takes before it adds up their counts
LANES = 4096
LEAST = 4096  # classes: the counts of a shorter row take longer to add up than its logits
SHARED = True
REGISTERS: int | None = 64  # two programs of 512 threads run on a multiprocessor
# Older GPUs' compiled form has 32 KiB of its own beside the table. Triton, which does not know of
# the table, asks CUDA for no more than the 48 KiB that a program has unasked, and the launch fails.
OLDEST = (9, 0)

_DECLARE = tl.constexpr(".shared .align 16 .b32 uncork_counts[8192]; mov.b32 $0, $1;")
_COUNT = tl.constexpr("""{
    .reg .u32 at;
    mov.u32 at, uncork_counts;
    mad.lo.u32 at, $1, 4, at;
    red.shared.add.u32 [at], 1;
    mov.u32 $0, 0;
}""")
_READ = tl.constexpr("""{
    .reg .u32 at;
    mov.u32 at, uncork_counts;
    mad.lo.u32 at, $1, 4, at;
    ld.shared.u32 $0, [at];
}""")
_CLEAR = tl.constexpr("""{
    .reg .u32 at;
    mov.u32 at, uncork_counts;
    mad.lo.u32 at, $1, 4, at;
    st.shared.u32 [at], 0;
    mov.u32 $0, 0;
}""")


@triton.jit
def _number(z):
    """Which of the values z is, a bfloat16 in float32."""
    bits = z.to(tl.int32, bitcast=True) >> 16
    number = tl.minimum(tl.maximum((bits & 0x7FFF) - BELOW, 0), HALF - 1)
    return number | ((bits >> 15) & HALF)


@triton.jit
def _value(number):
    """The value of that number, in float32."""
    size = number & (HALF - 1)
    bits = tl.where(size == 0, 0, size + BELOW) << 16
    value = bits.to(tl.float32, bitcast=True)
    return tl.where(number < HALF, value, -value)


@triton.jit
def _count(number, counts, SHARED: tl.constexpr):
    """One more of each number. (Nobody uses what the PTX returns, so it is there only once.)"""
    if SHARED:
        tl.inline_asm_elementwise(_COUNT, "=r,r", [number], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.atomic_add(counts + number, 1, sem="relaxed")


@triton.jit
def _take(counts, VALUES: tl.constexpr, SHARED: tl.constexpr):
    """All counts; they begin at 0 again.

    The compiler may give a line of PTX to the threads in two ways, one after the other, which is
    why one line does not both read and clear: a thread would clear what another has yet to read.
    """
    numbers = tl.arange(0, VALUES)
    tl.debug_barrier()
    if SHARED:
        taken = tl.inline_asm_elementwise(
            _READ, "=r,r", [numbers], dtype=tl.int32, is_pure=False, pack=1
        )
    else:
        taken = tl.load(counts + numbers, cache_modifier=".cg")
    tl.debug_barrier()
    _clear(counts, VALUES, SHARED)
    return taken


@triton.jit
def _clear(counts, VALUES: tl.constexpr, SHARED: tl.constexpr):
    numbers = tl.arange(0, VALUES)
    if SHARED:
        tl.inline_asm_elementwise(_CLEAR, "=r,r", [numbers], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.store(counts + numbers, tl.zeros([VALUES], tl.int32))
    tl.debug_barrier()


@triton.jit
def _unaimed(
    z, times, table, counts, bound, per_width, pieces, SHARED: tl.constexpr
):  # fmt: skip
    """times · exp f(z) · f′(z) of one logit a lane, which is counted."""
    height, steep = pair_at(table, piece_of(z, bound, per_width, pieces))
    _count(_number(z), counts, SHARED)
    r = times * tl.exp(height + steep * z) * steep
    return tl.where(z == -float("inf"), 0.0, r)


@triton.jit
def counted_residual_kernel(
    logits, targets, table, units, coefficients, sums, by_value, counts,
    rows, width, span, parts, stride, bound, per_width, piece_width, pieces, tables,
    VALUES: tl.constexpr, SHARED: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """As `linked.piecewise_residual_kernel`, of rows that have a unit; by_value (programs, VALUES)
    and sums are added to. A program takes every so-manieth part of a row, `span` logits each."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    G: tl.constexpr = L // 8
    lanes = tl.arange(0, G)
    numbers = tl.arange(0, VALUES)
    own_sums = by_value + program * VALUES + numbers
    own_counts = counts + program * VALUES
    if SHARED:
        tl.inline_asm_elementwise(
            _DECLARE, "=r,r", [tl.arange(0, 32)], dtype=tl.int32, is_pure=False, pack=1
        )
    _clear(own_counts, VALUES, SHARED)
    total = tl.load(own_sums)
    for turn in range(0, tl.cdiv(rows * parts - program, programs)):
        item = program + turn * programs
        row = (item // parts).to(tl.int64)
        first = (item % parts) * span
        unit = tl.load(units + row)
        if unit > 0:
            own = logits + row * stride
            coefficient = tl.load(coefficients + row)
            times = coefficient * unit
            target = tl.load(targets + row)
            here = (target >= first) & (target < first + span)
            aim = tl.load(own + target, mask=here, other=0.0).to(tl.float32)
            tl.debug_barrier()  # before it is overwritten
            for k in range(0, span, L):
                at = first + k + 8 * lanes[:, None] + tl.arange(0, 8)[None, :]
                inside = at < width
                z = tl.load(own + at, mask=inside, other=-float("inf")).to(tl.float32)
                z0, z1, z2, z3, z4, z5, z6, z7 = apart(z, G)
                z0 = _unaimed(z0, times, table, own_counts, bound, per_width, pieces, SHARED)
                z1 = _unaimed(z1, times, table, own_counts, bound, per_width, pieces, SHARED)
                z2 = _unaimed(z2, times, table, own_counts, bound, per_width, pieces, SHARED)
                z3 = _unaimed(z3, times, table, own_counts, bound, per_width, pieces, SHARED)
                z4 = _unaimed(z4, times, table, own_counts, bound, per_width, pieces, SHARED)
                z5 = _unaimed(z5, times, table, own_counts, bound, per_width, pieces, SHARED)
                z6 = _unaimed(z6, times, table, own_counts, bound, per_width, pieces, SHARED)
                z7 = _unaimed(z7, times, table, own_counts, bound, per_width, pieces, SHARED)
                out = together(z0, z1, z2, z3, z4, z5, z6, z7, G)
                tl.store(own + at, out.to(logits.dtype.element_ty), mask=inside)
            taken = _take(own_counts, VALUES, SHARED)  # and all of the row is stored
            total += times * taken.to(tl.float32)
            # The target's own part
            piece = piece_of(aim, bound, per_width, pieces)
            height, steep = pair_at(table, piece)
            there = here & (aim != -float("inf"))
            to = sums + ((row % tables) * pieces + piece) * 2
            tl.atomic_add(to, -coefficient, mask=there, sem="relaxed")
            beyond = -coefficient * (aim - (piece * piece_width - bound))
            tl.atomic_add(to + 1, beyond, mask=there, sem="relaxed")
            r = coefficient * (unit * tl.exp(height + steep * aim) - 1.0) * steep
            tl.store(own + target, r.to(logits.dtype.element_ty), mask=there)
    tl.store(own_sums, total)


@triton.jit
def values_kernel(
    by_value, table, sums, programs, bound, per_width, piece_width, pieces,
    VALUES: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """by_value (programs, VALUES) → added to sums (pieces, 2)."""
    number = tl.program_id(0) * L + tl.arange(0, L)
    some = tl.zeros([L, L], tl.float32)
    for k in range(0, programs, L):
        of = k + tl.arange(0, L)
        places = by_value + of[:, None] * VALUES + number[None, :]
        some += tl.load(places, mask=(of < programs)[:, None], other=0.0)
    total = tl.sum(some, 0)
    z = _value(number)
    piece = piece_of(z, bound, per_width, pieces)
    height, steep = pair_at(table, piece)
    occurs = (total != 0.0) & ((number & (HALF - 1)) < HALF - 1)
    r = tl.where(occurs, total * tl.exp(height + steep * z), 0.0)
    beyond = r * (z - (piece * piece_width - bound))
    tl.atomic_add(sums + 2 * piece, r, mask=occurs, sem="relaxed")
    tl.atomic_add(sums + 2 * piece + 1, beyond, mask=occurs, sem="relaxed")


def room_for_counts(logits: Tensor, rows: int) -> Tensor | None:
    """Sums by value (programs, VALUES) of blocks of so many rows like these, if they are to be
    counted."""
    if logits.dtype != torch.bfloat16 or logits.shape[1] < LEAST or not _fits(logits.device):
        return None
    programs = min(PROGRAMS * multiprocessors(logits.device), rows)
    return torch.zeros((programs, VALUES), device=logits.device)


def _fits(device: torch.device) -> bool:
    """Whether the table has room in shared memory there, or is not kept in it."""
    if device.type != "cuda" or not SHARED:
        return True
    return torch.cuda.get_device_capability(device) >= OLDEST


@on_its_device
def counted_residual(
    logits: Tensor, units: Tensor, by_value: Tensor, shared: Mapping[str, object]
) -> None:
    """Rows of logits (R, C) bfloat16 that have a unit (R) become the residual."""
    rows, width = logits.shape
    parts = ceiling(width, SPAN)
    # The interpreter knows no PTX.
    in_shared_memory = SHARED and isinstance(counted_residual_kernel, triton.JITFunction)
    counts = by_value
    if not in_shared_memory:
        counts = torch.empty_like(by_value, dtype=torch.int32)
    launch(counted_residual_kernel, len(by_value), {
        **shared, "units": units, "by_value": by_value, "counts": counts, "rows": rows,
        "parts": parts, "span": ceiling(ceiling(width, parts), LANES) * LANES, "VALUES": VALUES,
        "SHARED": in_shared_memory, "L": LANES, "num_warps": LANES // 256, "maxnreg": REGISTERS,
    })  # fmt: skip


@on_its_device
def add_counted(by_value: Tensor, pieces: Piecewise, sums: Tensor) -> None:
    """To the first of sums (tables, pieces, 2)."""
    launch(values_kernel, VALUES // 32, {
        **pieces.arguments(), "by_value": by_value, "sums": sums, "programs": len(by_value),
        "piece_width": pieces.width, "VALUES": VALUES, "L": 32, "num_warps": 4,
    })  # fmt: skip
