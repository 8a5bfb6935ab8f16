"""budget: the relaxed k-subset, argmin ½‖z − p‖² over 0 ≤ p ≤ 1, Σp = k.

p = clip(z − t, 0, 1) with one t per row; k = 1 is sparsemax.
"""

from __future__ import annotations

import math
from typing import Any

from uncork.nn._autograd import apply, forward_mode
from uncork.nn._rows import (
    Alpha,
    check_floating,
    check_parameter,
    output_dtype,
    per_row,
    rows_back,
    rows_last,
)
from uncork.nn._torch import torch
from uncork.nn.transforms.operator import Bracket, as_operator
from uncork.nn.transforms.sharded import is_sharded, of_shards
from uncork.nn.transforms.threshold import MOST_STEPS

Tensor = torch.Tensor


def budget_rows(z: Tensor, budget: Alpha) -> Tensor:
    """z (..., n), budget ≥ 0 a float or (..., 1)  →  p (..., n).

    Where fewer than `budget` entries are finite they are all 1 and the sum falls short.
    """
    if z.numel() == 0:
        return z.clone()
    # Shifting z leaves p unchanged: shift by the entry t must lie just below, so that t ∈ [−1, 0].
    pivot = _pivot(z.detach(), budget)
    v = z - torch.where(pivot.isfinite(), pivot, torch.zeros_like(pivot))
    threshold = apply(BudgetThreshold, v, budget)
    inside = _inside(v, threshold)
    outside = (v - threshold).detach().clamp(0, 1)
    moving = torch.where(inside, v - threshold, outside)
    unmasked = v.detach() > -math.inf
    everything = unmasked.sum(-1, keepdim=True) <= budget
    p = torch.where(everything, unmasked.to(v.dtype), moving)
    # As softmax's: NaN, or +inf, is all over its row, and nowhere else.
    known = (z.detach() < math.inf).all(-1, keepdim=True)
    if isinstance(budget, Tensor):
        known = known & ~budget.detach().isnan()
    return torch.where(known, p, math.nan)


def _pivot(z: Tensor, budget: Alpha) -> Tensor:
    """The ⌈k⌉-th largest entry: above it at most ⌈k⌉ − 1 entries can be positive."""
    n = z.shape[-1]
    if not isinstance(budget, Tensor):
        rank = min(max(math.ceil(budget), 1), n)
        return z.topk(rank, -1).values[..., -1:]
    order = z.sort(-1, descending=True).values
    index = (budget.detach().nan_to_num(1).ceil().clamp(1, n) - 1).long().expand((*z.shape[:-1], 1))
    return order.gather(-1, index)


def _inside(v: Tensor, threshold: Tensor) -> Tensor:
    """Where 0 < p < 1: the entries that move with t."""
    x = (v - threshold).detach()
    return (x > 0) & (x < 1)


@forward_mode
class BudgetThreshold(torch.autograd.Function):
    """t ∈ [−1, 0] with Σ clip(v − t, 0, 1) = k.  v (..., n)  →  t (..., 1)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(v: Tensor, budget: Alpha) -> Tensor:
        return _threshold(v, budget)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        v, budget = inputs
        ctx.shape = budget.shape if isinstance(budget, Tensor) else None
        ctx.save_for_backward(v, output)
        ctx.save_for_forward(v, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        v, threshold = ctx.saved_tensors
        inside = _inside(v, threshold).to(v.dtype)
        size = inside.sum(-1, keepdim=True).clamp(min=1)
        dbudget = None
        if ctx.needs_input_grad[1]:
            dbudget = (-grad * (inside.sum(-1, keepdim=True) > 0) / size).sum_to_size(ctx.shape)
        return grad * inside / size, dbudget

    @staticmethod
    def jvp(ctx: Any, dv: Tensor | None, dbudget: Tensor | None) -> Tensor:
        v, threshold = ctx.saved_tensors
        inside = _inside(v, threshold).to(v.dtype)
        count = inside.sum(-1, keepdim=True)
        moved = torch.zeros_like(threshold)
        if dv is not None:
            moved = (inside * dv).sum(-1, keepdim=True)
        if dbudget is not None:
            moved = moved - dbudget * (count > 0)
        return moved / count.clamp(min=1)


def _solve(v: Tensor, budget: Alpha) -> Tensor:
    """Newton on a piecewise linear function, kept inside a bracket that bisection closes."""
    tiny = torch.finfo(v.dtype).eps
    low = v.new_full((*v.shape[:-1], 1), -1.0)
    high = torch.zeros_like(low)
    threshold = 0.5 * (low + high)
    done = torch.zeros_like(low, dtype=torch.bool)
    before = torch.full_like(low, math.inf)
    for _ in range(MOST_STEPS[v.dtype]):
        x = v - threshold
        excess = x.clamp(0, 1).sum(-1, keepdim=True) - budget
        size = ((x > 0) & (x < 1)).sum(-1, keepdim=True)
        low = torch.where(excess >= 0, threshold, low)
        high = torch.where(excess <= 0, threshold, high)
        proposal = threshold + excess / size
        unsafe = ~((proposal >= low) & (proposal <= high)) | (excess.abs() > 0.5 * before)
        proposal = torch.where(unsafe, 0.5 * (low + high), proposal)
        before = excess.abs()
        done = done | (excess == 0) | (high - low <= tiny) | (proposal == threshold)
        threshold = torch.where(done, threshold, proposal)
        if v.device.type == "cpu" and bool(done.all()):
            break
    return threshold


_threshold = as_operator(
    "budget_threshold",
    _solve,
    Bracket(
        lambda v, t, budget: (v - t).clamp(0, 1).sum(-1, keepdim=True) - budget,
        lambda v, budget: (-1.0, 0.0),
    ),
)


def budget(
    input: Tensor, budget: Alpha = 2.0, dim: int = -1, *, dtype: torch.dtype | None = None
) -> Tensor:
    """The relaxed k-subset nearest to the logits: 0 ≤ p ≤ 1, Σp = `budget`.

    Choose it to pick about k items of a row, differentiably; `budget=1` is sparsemax.

    Args:
        input: logits, any shape.
        budget: how much the row sums to, ≥ 0; a float or a tensor as `alpha` of
            :func:`entmax` (receives a gradient). At or above the number of entries all are 1.
        dim, dtype: as for :func:`sparsemax`.
    """
    check_floating(input)
    budget = check_parameter(budget, "budget", at_least=0.0)
    if is_sharded(input):
        whole = _budget_of  # the parameter has the function's name
        sharded: Tensor = of_shards(
            lambda local, k: whole(local, k, dim, dtype=dtype), input, (budget,), dim, dtype
        )
        return sharded
    dtype = output_dtype(input, dtype)
    z = rows_last(input, dim, dtype)
    return rows_back(budget_rows(z, per_row(budget, input, dim, z, "budget")), input, dim, dtype)


_budget_of = budget
