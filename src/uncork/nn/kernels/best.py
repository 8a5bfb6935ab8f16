"""Log-probabilities for decoding, in one launch: of a row's best classes, or of all.

A step of decoding has few rows, and launching takes longer than computing. One program holds a row:
it finds the largest logit of each lane, from these the row's one number (α-entmax's threshold, or
the sum that α-ReLU's scores are divided by), and then its best. Nothing as wide as a row is
written for these.
"""

from __future__ import annotations

from functools import lru_cache

import triton
import triton.language as tl

from uncork.nn._torch import torch
from uncork.nn.kernels.entmax import log_entmax_forward
from uncork.nn.kernels.launch import ceiling, launch, multiprocessors, on_its_device, power_of_two
from uncork.nn.kernels.math import (
    ENTMAX15,
    SPARSEMAX,
    STEPS,
    advance,
    finite,
    kind_of,
    largest_shift,
    largest_zero,
    log_probability,
    lowest_shift,
    positive,
    solve,
    terms,
    tolerance_of,
)

Tensor = torch.Tensor

MOST = 32  # best classes of a row that are taken one after the other
LOWEST = tl.constexpr(-3.4e38)  # what masked logits count as among others


@triton.jit
def _maxima(own, n, L: tl.constexpr):
    """The largest logit of each lane, (L): NaN where there is one, −inf where a lane is empty."""
    lanes = tl.arange(0, L)
    tops = tl.full([L], -float("inf"), tl.float32)
    for first in range(0, n, L):
        at = first + lanes
        x = tl.load(own + at, mask=at < n, other=-float("inf")).to(tl.float32)
        tops = tl.maximum(tops, x, propagate_nan=tl.PropagateNan.ALL)
    return tops


@triton.jit
def _largest(tops):
    """The largest of the maxima, 0 where all are −inf, NaN where one is NaN or +inf."""
    return finite(tl.max(tl.where(tops == tops, tops, float("inf"))))


@triton.jit
def _best(own, tops, n, k, L: tl.constexpr, TILES: tl.constexpr, K: tl.constexpr):
    """A row's k largest logits in order, and their classes, (K) each. NaN counts as the largest.

    The largest of the lanes' maxima is taken k times, and what its lane has left takes its place.
    """
    lanes = tl.arange(0, L)
    tops = tl.where(lanes < n, _in_order(tops), -float("inf"))
    places = tl.arange(0, K)
    values = tl.full([K], -float("inf"), tl.float32)
    classes = tl.full([K], -1, tl.int32)
    for i in range(k):
        _, lane = tl.max(tops, 0, return_indices=True)
        column = lane + L * tl.arange(0, TILES)
        taken = tl.sum((column[:, None] == classes[None, :]).to(tl.int32), 1) > 0
        x = tl.load(own + column, mask=column < n, other=0.0).to(tl.float32)
        x = tl.where((column < n) & (taken == 0), _in_order(x), -float("inf"))
        value = tl.max(x, 0)
        at = tl.min(tl.where((x == value) & (column < n) & (taken == 0), column, n), 0)
        values = tl.where(places == i, value, values)
        classes = tl.where(places == i, at, classes)
        left = tl.max(tl.where(column == at, -float("inf"), x), 0)
        tops = tl.where(lanes == lane, left, tops)
    # As they are: the masked, and NaN.
    there = places < k
    z = tl.load(own + classes, mask=there & (classes >= 0) & (classes < n), other=-float("inf"))
    return z.to(tl.float32), classes


@triton.jit
def _in_order(x):
    """Logits to be put in order: none of a row's is as small as what is not there."""
    return tl.where(x == x, tl.maximum(x, LOWEST), float("inf"))


@triton.jit
def _shift(
    own, tops, top, n, alpha, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """c of a row, from its lanes' maxima.

    They alone give a c that is too large, so only lanes whose maximum lies above its line are read
    again. A lane keeps up to four entries above the line in registers. Where one has more, every
    step reads the lanes again.
    """
    lanes = tl.arange(0, L)
    size = tl.full([], n, tl.float32)
    tops = tl.where(tops == tops, tops, float("inf"))
    c = largest_shift(alpha, KIND) + 0.0 * size
    high = c
    if not BRACKET:
        c = solve(tops - top, c, size, alpha, tolerance * 16, KIND, BRACKET, STEPS)
    line = largest_zero(top, c, alpha, KIND)
    live = ~(tops <= line)
    first = tl.full([L], -float("inf"), tl.float32)
    second = first
    third = first
    fourth = first
    count = tl.zeros([L], tl.int32)
    for begin in range(0, n, L):
        at = begin + lanes
        x = tl.load(own + at, mask=live & (at < n), other=-float("inf")).to(tl.float32)
        above = ~(x <= line)
        fourth = tl.where(above, third, fourth)
        third = tl.where(above, second, third)
        second = tl.where(above, first, second)
        first = tl.where(above, x, first)
        count += above.to(tl.int32)
    few = tl.max(count) <= 4
    size = tl.maximum(tl.sum(count.to(tl.float32)), 1.0)
    low = lowest_shift(size, alpha, KIND)
    before = float("inf")
    done = False
    step = 0
    while (step < STEPS) & (done == 0):
        total, slope = terms((first - top) + c, alpha, KIND)
        if few:
            mass, rate = terms((second - top) + c, alpha, KIND)
            total += mass
            slope += rate
            mass, rate = terms((third - top) + c, alpha, KIND)
            total += mass
            slope += rate
            mass, rate = terms((fourth - top) + c, alpha, KIND)
            total += mass
            slope += rate
        else:
            total = tl.zeros([L], tl.float32)
            slope = tl.zeros([L], tl.float32)
            for begin in range(0, n, L):
                at = begin + lanes
                x = tl.load(own + at, mask=live & (at < n), other=-float("inf")).to(tl.float32)
                mass, rate = terms((x - top) + c, alpha, KIND)
                total += mass
                slope += rate
        c, low, high, before, done = advance(
            tl.sum(total), tl.sum(slope), c, low, high, before, size, alpha, tolerance, KIND,
            BRACKET,
        )  # fmt: skip
        step += 1
    return c


@triton.jit
def entmax_best_kernel(
    z, out, classes, n, k, stride, alpha, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr,
    L: tl.constexpr, TILES: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """z (rows, n) → out and classes (rows, k): log p of the largest."""
    row = tl.program_id(0).to(tl.int64)
    own = z + row * stride
    tops = _maxima(own, n, L)
    top = _largest(tops)
    c = _shift(own, tops, top, n, alpha, tolerance, KIND, BRACKET, STEPS, L)
    x, at = _best(own, tops, n, k, L, TILES, K)
    log_p = log_probability((x - top) + c, alpha, KIND)
    _store_best(out, classes, row, k, log_p, at, K)


@triton.jit
def log_entmax_kernel(
    z, out, n, stride, alpha, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """z (rows, n) → out (rows, n): log p of all. Of lanes without support nothing is read again."""
    row = tl.program_id(0).to(tl.int64)
    own = z + row * stride
    tops = _maxima(own, n, L)
    top = _largest(tops)
    c = _shift(own, tops, top, n, alpha, tolerance, KIND, BRACKET, STEPS, L)
    live = ~(tops <= largest_zero(top, c, alpha, KIND))  # all, where c is NaN
    for first in range(0, n, L):
        at = first + tl.arange(0, L)
        x = tl.load(own + at, mask=live & (at < n), other=-float("inf")).to(tl.float32)
        log_p = log_probability((x - top) + c, alpha, KIND)
        tl.store(out + row * n + at, log_p.to(out.dtype.element_ty), mask=at < n)


@triton.jit
def _store_best(out, classes, row, k, log_p, at, K: tl.constexpr):
    places = tl.arange(0, K)
    tl.store(out + row * k + places, log_p.to(out.dtype.element_ty), mask=places < k)
    tl.store(classes + row * k + places, at.to(tl.int64), mask=places < k)


@triton.jit
def _relu_total(own, tops, top, n, less, tau, KIND: tl.constexpr, L: tl.constexpr):
    """log Σ (w/w_top)^{1/(α−1)} over a row's w = [(α−1) z − τ]₊, 1/w_top, and how many logits are
    as large as the largest. Lanes that hold none of either are not read again."""
    live = ~(less * tops - tau <= 0) | (tops == top)
    largest = less * top - tau
    unit = 1.0 / tl.where(largest > 0, largest, 1.0)
    total = tl.zeros([L], tl.float32)
    alike = tl.zeros([L], tl.float32)
    for first in range(0, n, L):
        at = first + tl.arange(0, L)
        x = tl.load(own + at, mask=live & (at < n), other=-float("inf")).to(tl.float32)
        w = positive(less * x - tau) * unit
        if KIND == ENTMAX15:
            w *= w
        elif KIND != SPARSEMAX:
            w = tl.where(w > 0, tl.exp(tl.log(tl.where(w > 0, w, 1.0)) / less), w)
        total += w
        alike += tl.where(x == top, 1.0, 0.0)
    return tl.log(tl.sum(total)), unit, tl.sum(alike)


@triton.jit
def _relu_log_score(x, top, log_total, unit, alike, less, tau):
    """log(p / Σp), of a row without support all on its largest logits."""
    w = positive(less * x - tau) * unit
    log_p = tl.where(w > 0, tl.log(tl.where(w > 0, w, 1.0)) / less, w - float("inf")) - log_total
    alone = tl.where((x == top) & (x > -float("inf")), -tl.log(alike), -float("inf"))
    log_p = tl.where(less * top - tau <= 0, alone, log_p)
    return tl.where(log_total == log_total, log_p, log_total)  # NaN for all


@triton.jit
def alpha_relu_best_kernel(
    z, out, classes, n, k, stride, less, tau,
    KIND: tl.constexpr, L: tl.constexpr, TILES: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The same of log(p / Σp), p = [(α−1) z − τ]₊^{1/(α−1)}; less is α − 1."""
    row = tl.program_id(0).to(tl.int64)
    own = z + row * stride
    tops = _maxima(own, n, L)
    x, at = _best(own, tops, n, k, L, TILES, K)
    top = tl.max(x, 0)
    log_total, unit, alike = _relu_total(own, tops, top, n, less, tau, KIND, L)
    log_p = _relu_log_score(x, top, log_total, unit, alike, less, tau)
    _store_best(out, classes, row, k, log_p, at, K)


@triton.jit
def log_alpha_relu_kernel(
    z, out, n, stride, less, tau, KIND: tl.constexpr, L: tl.constexpr
):  # fmt: skip
    """The same of all classes: z (rows, n) → out (rows, n). A row is read again from cache."""
    row = tl.program_id(0).to(tl.int64)
    own = z + row * stride
    tops = _maxima(own, n, L)
    top = tl.max(tops)
    log_total, unit, alike = _relu_total(own, tops, top, n, less, tau, KIND, L)
    for first in range(0, n, L):
        at = first + tl.arange(0, L)
        x = tl.load(own + at, mask=at < n, other=-float("inf")).to(tl.float32)
        log_p = _relu_log_score(x, top, log_total, unit, alike, less, tau)
        tl.store(out + row * n + at, log_p.to(out.dtype.element_ty), mask=at < n)


@on_its_device
def entmax_best(z: Tensor, alpha: float, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The k largest log p of rows z (R, n) in `dtype` and their classes, largest first."""
    out, classes = _room(z, k, dtype)
    launch(entmax_best_kernel, z.shape[0], {
        "z": z, "out": out, "classes": classes, "stride": z.stride(0),
        **_of_rows(z, alpha), **_of_search(alpha, dtype), **_of_best(z, k),
    })  # fmt: skip
    return out, classes


@on_its_device
def log_entmax(z: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    """log p of all classes of rows z (R, n), in `dtype`. Many rows keep a GPU busy by themselves:
    `kernels.entmax` has the faster way for these."""
    if z.shape[0] > multiprocessors(z.device):
        return log_entmax_forward(z, alpha, dtype)
    out = torch.empty(z.shape, dtype=dtype, device=z.device)
    launch(log_entmax_kernel, z.shape[0], {
        "z": z, "out": out, "stride": z.stride(0),
        **_of_rows(z, alpha), **_of_search(alpha, dtype),
    })  # fmt: skip
    return out


@on_its_device
def alpha_relu_best(
    z: Tensor, alpha: float, tau: float, k: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The same of log(p / Σp) with p = [(α−1) z − τ]₊^{1/(α−1)}."""
    out, classes = _room(z, k, dtype)
    launch(alpha_relu_best_kernel, z.shape[0], {
        "z": z, "out": out, "classes": classes, "stride": z.stride(0),
        "less": alpha - 1, "tau": float(tau),
        **_of_rows(z, alpha), **_of_best(z, k),
    })  # fmt: skip
    return out, classes


@on_its_device
def log_alpha_relu(z: Tensor, alpha: float, tau: float, dtype: torch.dtype) -> Tensor:
    """log(p / Σp) of rows z (R, n), in `dtype`."""
    out = torch.empty(z.shape, dtype=dtype, device=z.device)
    launch(log_alpha_relu_kernel, z.shape[0], {
        "z": z, "out": out, "stride": z.stride(0), "less": alpha - 1, "tau": float(tau),
        **_of_rows(z, alpha),
    })  # fmt: skip
    return out


def _room(z: Tensor, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = (z.shape[0], k)
    out = torch.empty(shape, dtype=dtype, device=z.device)
    return out, torch.empty(shape, dtype=torch.int64, device=z.device)


def _of_rows(z: Tensor, alpha: float) -> dict[str, object]:
    lanes = _lanes(z)
    return {"n": z.shape[1], "KIND": kind_of(alpha), "L": lanes, "num_warps": max(1, lanes // 256)}


@lru_cache
def _of_search(alpha: float, dtype: torch.dtype) -> dict[str, object]:
    return {
        "alpha": alpha, "tolerance": tolerance_of(dtype), "BRACKET": alpha > 2, "STEPS": STEPS,
    }  # fmt: skip


def _of_best(z: Tensor, k: int) -> dict[str, object]:
    return {"k": k, "K": power_of_two(k), "TILES": power_of_two(ceiling(z.shape[1], _lanes(z)))}


def _lanes(z: Tensor) -> int:
    """Few rows are read by many threads each. Many rows keep a GPU busy with fewer, which then have
    less to agree on."""
    rows, n = z.shape
    most = 1024 if rows >= 4 * multiprocessors(z.device) else 4096
    return min(most, max(32, power_of_two(n)))
