"""Launching the transforms' kernels: shapes, strides and sizes of blocks."""

from __future__ import annotations

from typing import Any

from uncork.nn._rows import Alpha
from uncork.nn._torch import torch
from uncork.nn.kernels import ceiling, multiprocessors, on_its_device, power_of_two
from uncork.nn.kernels._math import POWER, kind_of
from uncork.nn.kernels.alpha_relu import alpha_relu_backward_kernel, alpha_relu_kernel
from uncork.nn.kernels.entmax_backward import entmax_backward_kernel
from uncork.nn.kernels.entmax_narrow import WIDEST, entmax_narrow_kernel
from uncork.nn.kernels.entmax_wide import DEPTH, LANES, entmax_wide_kernel

Tensor = torch.Tensor

STEPS = 56  # a bracket halved every other step closes within these
# Wide rows in flight on a multiprocessor, tiles read ahead and registers of a thread, by the bytes
# of an entry: measured on an H200.
_WIDE = {2: (5, 5, 96), 4: (4, 4, 128)}


@on_its_device
def entmax_forward(z: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    """p of rows z (..., n), contiguous, in `dtype`."""
    p = torch.empty(z.shape, dtype=dtype, device=z.device)
    solve_rows(z, alpha, p, None)
    return p


@on_its_device
def entmax_shift(v: Tensor, alpha: Alpha) -> Tensor:
    """s of rows v (..., n) → (..., 1) float32, relative to the row's largest entry; alpha a float,
    or a tensor that broadcasts to (..., 1)."""
    s = torch.empty((*v.shape[:-1], 1), dtype=torch.float32, device=v.device)
    solve_rows(v, alpha, None, s)
    return s


@on_its_device
def power_level(v: Tensor, alpha: Alpha) -> Tensor:
    """c = 1/(α−1) − s of rows v (..., n) → (..., 1) float32, α ≥ 2, as `entmax_shift`."""
    c = torch.empty((*v.shape[:-1], 1), dtype=torch.float32, device=v.device)
    solve_rows(v, alpha, None, c, level=True)
    return c


def solve_rows(
    z: Tensor,
    alpha: Alpha,
    p: Tensor | None,
    shift: Tensor | None,
    target: Tensor | None = None,
    ignore_index: int = 0,
    level: bool = False,
) -> None:
    """Rows z (..., n) into p, or s into shift (`level`: 1/(α−1) − s, for α ≥ 2); with a target
    (rows) p, and losses into shift."""
    n = z.shape[-1]
    rows = as_rows(z)
    by_row = isinstance(alpha, Tensor)
    alphas = z
    if isinstance(alpha, Tensor):
        alphas = alpha.float().expand((*z.shape[:-1], 1)).contiguous()
    dtype = z.dtype if p is None else p.dtype
    out = rows if p is None else p.view(-1, n)
    common: dict[str, Any] = {
        "alpha": 1.5 if by_row else alpha,
        # Of the sum: a few units of float32, or well under half a unit of a 16-bit result.
        "tolerance": 4 * 2.0**-23 if dtype == torch.float32 else 2.0**-14,
        "KIND": POWER.value if level else 0 if isinstance(alpha, Tensor) else kind_of(alpha),
        "BRACKET": isinstance(alpha, Tensor) or alpha > 2,
        "STEPS": STEPS,
        "ROW_ALPHA": by_row,
        "WRITE": p is not None,
        "LEVEL": level,
        "LOSS": target is not None,
        "ignore_index": ignore_index,
    }
    s = alphas if shift is None else shift
    classes = s if target is None else target
    # Powers take registers: rows of a general α go the wide way sooner.
    if n <= (WIDEST if common["KIND"] in (2, 15) else min(WIDEST, 8192)):
        block = max(32, power_of_two(n))
        warps = min(16, max(1, block // 512))
        lanes = min(block, warps * 32 * (16 // z.element_size()))  # 16 bytes a thread
        entmax_narrow_kernel[(len(rows),)](
            rows, out, s, alphas, classes, n, rows.stride(0), out.stride(0),
            G=block // lanes, L=lanes, num_warps=warps, **common,
        )  # fmt: skip
        return
    in_flight, stages, registers = _WIDE[z.element_size()]
    programs = min(len(rows), in_flight * multiprocessors(z.device))
    stacks = torch.empty((programs, DEPTH, LANES), dtype=z.dtype, device=z.device)
    tags = torch.empty_like(stacks, dtype=torch.int16 if z.element_size() == 2 else torch.int32)
    entmax_wide_kernel[(programs,)](
        rows, out, s, alphas, classes, stacks, tags, n, len(rows), rows.stride(0),
        out.stride(0),
        L=LANES, DEPTH=DEPTH, ALIGN=alignment(rows, out),
        STAGES=stages, num_warps=4, maxnreg=registers, **common,
    )  # fmt: skip


@on_its_device
def entmax_backward(p: Tensor, grad: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    """The gradient for z, in `dtype`: p, grad (..., n) → (..., n)."""
    n = p.shape[-1]
    out = torch.empty(p.shape, dtype=dtype, device=p.device)
    rows, pulled, result = as_rows(p), as_rows(grad), out.view(-1, n)
    one = n <= 8192
    lanes = max(32, power_of_two(n)) if one else 2048
    warps = min(8, max(1, lanes // 512)) if one else 8
    entmax_backward_kernel[(len(rows),)](
        rows, pulled, result, n, rows.stride(0), pulled.stride(0), result.stride(0), alpha,
        KIND=kind_of(alpha), L=lanes, ONE=one, ALIGN=alignment(rows, result), STAGES=3,
        num_warps=warps,
    )  # fmt: skip
    return out


def as_rows(z: Tensor) -> Tensor:
    """(rows, n) whose rows lie in one piece each; a view where the strides allow."""
    rows = z.reshape(-1, z.shape[-1])
    return rows if rows.stride(1) == 1 or rows.shape[1] == 1 else rows.contiguous()


def alignment(source: Tensor, out: Tensor) -> int:
    """How many entries make 16 bytes, where rows of both begin alike modulo that; otherwise 1."""
    entries = 16 // min(source.element_size(), out.element_size())
    aligned = (
        (source.stride(0) - out.stride(0)) % entries == 0
        and source.data_ptr() % 16 == 0
        and out.data_ptr() % 16 == 0
    )
    return entries if aligned else 1


@on_its_device
def alpha_relu_forward(z: Tensor, alpha: float, tau: Alpha, dtype: torch.dtype) -> Tensor:
    """p like z (of any strides without overlap), tau a float or a tensor of one value."""
    z = _dense(z)
    p = torch.empty_like(z, dtype=dtype)
    given = isinstance(tau, Tensor)
    block = 1024 * (16 // z.element_size()) // 2
    alpha_relu_kernel[(ceiling(z.numel(), block),)](
        z, p, tau if given else z, z.numel(), alpha, 0.0 if given else tau,
        KIND=kind_of(alpha), L=block, TAU_TENSOR=given, num_warps=4,
    )  # fmt: skip
    return p


@on_its_device
def alpha_relu_backward(z: Tensor, grad: Tensor, alpha: float, tau: Alpha) -> Tensor:
    """grad · dp/dz like z."""
    z = _dense(z)
    if grad.stride() != z.stride():
        grad = torch.empty_like(z, dtype=grad.dtype).copy_(grad)
    out = torch.empty_like(z)
    given = isinstance(tau, Tensor)
    block = 1024 * (16 // z.element_size()) // 2
    alpha_relu_backward_kernel[(ceiling(z.numel(), block),)](
        z, grad, out, tau if given else z, z.numel(), alpha, 0.0 if given else tau,
        KIND=kind_of(alpha), L=block, TAU_TENSOR=given, num_warps=4,
    )  # fmt: skip
    return out


def _dense(z: Tensor) -> Tensor:
    """Memory without gaps or overlaps, in any order of dimensions."""
    return z if _without_gaps(z) else z.contiguous()


def _without_gaps(z: Tensor) -> bool:
    expected = 1
    for size, stride in sorted(zip(z.shape, z.stride(), strict=True), key=lambda pair: pair[1]):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
