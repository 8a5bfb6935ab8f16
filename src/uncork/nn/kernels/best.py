"""Log-probabilities for decoding, from a row's one number: of its best classes, or of all.

Of α-entmax that is the threshold, of α-ReLU the sum that its scores are divided by. Of the best
classes nothing as wide as a row is written.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn._torch import torch
from uncork.nn.kernels.entmax import entmax_shift, power_level
from uncork.nn.kernels.launch import ceiling, launch, on_its_device, power_of_two
from uncork.nn.kernels.math import (
    ENTMAX15,
    SPARSEMAX,
    kind_of,
    largest_shift,
    log_probability,
    positive,
)

Tensor = torch.Tensor

MOST = 32  # best classes of a row that are taken one after the other
LOWEST = tl.constexpr(-3.4e38)  # what masked logits count as among others


@triton.jit
def _best(own, n, k, L: tl.constexpr, TILES: tl.constexpr, K: tl.constexpr):
    """A row's k largest logits in order, and their classes, (K) each. NaN counts as the largest.

    One pass over the row leaves the largest of each lane. The largest of these is taken k times,
    and what its lane has left takes its place."""
    lanes = tl.arange(0, L)
    tops = tl.full([L], -float("inf"), tl.float32)
    for first in range(0, n, L):
        tops = tl.maximum(tops, _ranked(own, first + lanes, n))
    places = tl.arange(0, K)
    values = tl.full([K], -float("inf"), tl.float32)
    classes = tl.full([K], -1, tl.int32)
    for i in range(k):
        _, lane = tl.max(tops, 0, return_indices=True)
        column = lane + L * tl.arange(0, TILES)
        taken = tl.sum((column[:, None] == classes[None, :]).to(tl.int32), 1) > 0
        x = tl.where(taken, -float("inf"), _ranked(own, column, n))
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
def _ranked(own, at, n):
    """Logits to be put in order: none of a row's is as small as what is not there."""
    x = tl.load(own + at, mask=at < n, other=0.0).to(tl.float32)
    x = tl.where(x == x, tl.maximum(x, LOWEST), float("inf"))
    return tl.where(at < n, x, -float("inf"))


@triton.jit
def entmax_best_kernel(
    z, shift, out, classes, n, k, stride, alpha,
    KIND: tl.constexpr, LEVEL: tl.constexpr, L: tl.constexpr, TILES: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """z (rows, n) → out and classes (rows, k): log p of the largest. shift (rows): s, LEVEL: c."""
    row = tl.program_id(0).to(tl.int64)
    x, at = _best(z + row * stride, n, k, L, TILES, K)
    top = tl.max(x, 0)
    top = tl.where(top == -float("inf"), 0.0, top)
    c = tl.load(shift + row)
    if not LEVEL:
        c = largest_shift(alpha, KIND) - c
    log_p = log_probability((x - top) + c, alpha, KIND)
    _store_best(out, classes, row, k, log_p, at, K)


@triton.jit
def _store_best(out, classes, row, k, log_p, at, K: tl.constexpr):
    places = tl.arange(0, K)
    tl.store(out + row * k + places, log_p.to(out.dtype.element_ty), mask=places < k)
    tl.store(classes + row * k + places, at.to(tl.int64), mask=places < k)


@triton.jit
def _relu_total(own, top, n, less, tau, KIND: tl.constexpr, L: tl.constexpr):
    """log Σ (w/w_top)^{1/(α−1)} over a row's w = [(α−1) z − τ]₊, 1/w_top, and how many logits are
    as large as the largest."""
    largest = less * top - tau
    unit = 1.0 / tl.where(largest > 0, largest, 1.0)
    total = tl.zeros([L], tl.float32)
    alike = tl.zeros([L], tl.float32)
    for first in range(0, n, L):
        at = first + tl.arange(0, L)
        x = tl.load(own + at, mask=at < n, other=-float("inf")).to(tl.float32)
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
    x, at = _best(own, n, k, L, TILES, K)
    top = tl.max(x, 0)
    log_total, unit, alike = _relu_total(own, top, n, less, tau, KIND, L)
    log_p = _relu_log_score(x, top, log_total, unit, alike, less, tau)
    _store_best(out, classes, row, k, log_p, at, K)


@triton.jit
def log_alpha_relu_kernel(
    z, out, n, stride, less, tau, KIND: tl.constexpr, L: tl.constexpr
):  # fmt: skip
    """The same of all classes: z (rows, n) → out (rows, n). A row is read again from cache."""
    row = tl.program_id(0).to(tl.int64)
    own = z + row * stride
    tops = tl.full([L], -float("inf"), tl.float32)
    for first in range(0, n, L):
        at = first + tl.arange(0, L)
        x = tl.load(own + at, mask=at < n, other=-float("inf")).to(tl.float32)
        tops = tl.maximum(tops, x)
    top = tl.max(tops)
    log_total, unit, alike = _relu_total(own, top, n, less, tau, KIND, L)
    for first in range(0, n, L):
        at = first + tl.arange(0, L)
        x = tl.load(own + at, mask=at < n, other=-float("inf")).to(tl.float32)
        log_p = _relu_log_score(x, top, log_total, unit, alike, less, tau)
        tl.store(out + row * n + at, log_p.to(out.dtype.element_ty), mask=at < n)


@on_its_device
def entmax_best(z: Tensor, alpha: float, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The k largest log p of rows z (R, n) in `dtype` and their classes, largest first."""
    steep = alpha > 2
    shift = power_level(z, alpha) if steep else entmax_shift(z, alpha)
    out, classes = _room(z, k, dtype)
    launch(entmax_best_kernel, len(z), {
        **_of_rows(z, alpha), **_of_best(z, k), "shift": shift, "out": out, "classes": classes,
        "alpha": float(alpha), "LEVEL": steep,
    })  # fmt: skip
    return out, classes


@on_its_device
def alpha_relu_best(
    z: Tensor, alpha: float, tau: float, k: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The same of log(p / Σp) with p = [(α−1) z − τ]₊^{1/(α−1)}."""
    out, classes = _room(z, k, dtype)
    launch(alpha_relu_best_kernel, len(z), {
        **_of_rows(z, alpha), **_of_best(z, k), "out": out, "classes": classes,
        "less": float(alpha - 1), "tau": float(tau),
    })  # fmt: skip
    return out, classes


@on_its_device
def log_alpha_relu(z: Tensor, alpha: float, tau: float, dtype: torch.dtype) -> Tensor:
    """log(p / Σp) of rows z (R, n), in `dtype`."""
    out = torch.empty(z.shape, dtype=dtype, device=z.device)
    launch(log_alpha_relu_kernel, len(z), {
        **_of_rows(z, alpha), "out": out, "less": float(alpha - 1), "tau": float(tau),
    })  # fmt: skip
    return out


def _room(z: Tensor, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    out = torch.empty((len(z), k), dtype=dtype, device=z.device)
    return out, torch.empty((len(z), k), dtype=torch.int64, device=z.device)


def _of_rows(z: Tensor, alpha: float) -> dict[str, object]:
    lanes = _lanes(z)
    return {
        "z": z, "n": z.shape[1], "stride": z.stride(0), "KIND": kind_of(alpha), "L": lanes,
        "num_warps": max(1, lanes // 256),
    }  # fmt: skip


def _of_best(z: Tensor, k: int) -> dict[str, object]:
    tiles = power_of_two(ceiling(z.shape[1], _lanes(z)))
    return {"k": k, "K": power_of_two(k), "TILES": tiles}


def _lanes(z: Tensor) -> int:
    return min(4096, max(32, power_of_two(z.shape[1])))
