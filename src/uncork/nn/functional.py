"""Sparse output transforms and losses, called as those of torch.nn.functional are.

Transforms take logits of any shape and a `dim`; losses take what
:func:`torch.nn.functional.cross_entropy` takes. Everything is computed in float32 or better and
is differentiable twice. −inf logits are masked classes: probability 0, gradient 0. A row that is
masked entirely gives all zeros (torch.softmax gives NaN) with gradient zero.
"""

from __future__ import annotations

from typing import Literal, overload

from uncork.nn import kernels
from uncork.nn._rows import (
    Alpha,
    check_alpha,
    check_floating,
    check_hint,
    output_dtype,
    per_row,
    rows_back,
    rows_last,
)
from uncork.nn._torch import torch
from uncork.nn.alpha_relu import AlphaReLU, alpha_relu_kernel_takes
from uncork.nn.budget import budget_rows
from uncork.nn.deformed import on_support
from uncork.nn.entmax import Entmax, SparseOutput, threshold_of
from uncork.nn.linear_losses import (
    linear_alpha_relu_loss,
    linear_cross_entropy,
    linear_entmax_loss,
    linear_sparsemax_loss,
)
from uncork.nn.losses import (
    alpha_relu_loss,
    entmax_loss,
    normmax_loss,
    softmax_loss,
    sparsemax_loss,
)
from uncork.nn.normmax import normmax_rows

Tensor = torch.Tensor

__all__ = [
    "SparseOutput",
    "alpha_relu",
    "alpha_relu_log_scores",
    "alpha_relu_loss",
    "budget",
    "entmax",
    "entmax_loss",
    "linear_alpha_relu_loss",
    "linear_cross_entropy",
    "linear_entmax_loss",
    "linear_sparsemax_loss",
    "log_entmax",
    "log_sparsemax",
    "normmax",
    "normmax_loss",
    "softmax_loss",
    "sparsemax",
    "sparsemax_loss",
]


@overload
def sparsemax(
    input: Tensor,
    dim: int = ...,
    *,
    k: int | None = ...,
    dtype: torch.dtype | None = ...,
    return_support: Literal[False] = ...,
) -> Tensor: ...
@overload
def sparsemax(
    input: Tensor,
    dim: int = ...,
    *,
    k: int | None = ...,
    dtype: torch.dtype | None = ...,
    return_support: Literal[True],
) -> SparseOutput: ...
def sparsemax(
    input: Tensor,
    dim: int = -1,
    *,
    k: int | None = None,
    dtype: torch.dtype | None = None,
    return_support: bool = False,
) -> Tensor | SparseOutput:
    """The distribution nearest to the logits: argmin_p ‖p − z‖² over the simplex.

    The sparsest member of the entmax family in common use (α = 2); choose it where few classes
    should keep any probability, as in attention that must point. Martins and Astudillo 2016.

    Args:
        input: logits, any shape.
        dim: the dimension that sums to one.
        k: a hint about the support's size. It never changes the result.
        dtype: dtype of the result, as for :func:`torch.softmax`.
        return_support: return :class:`SparseOutput` with τ and the support's size as well.
    """
    return _entmax(input, 2.0, dim, k, dtype, return_support)


@overload
def entmax(
    input: Tensor,
    alpha: Alpha = ...,
    dim: int = ...,
    *,
    k: int | None = ...,
    dtype: torch.dtype | None = ...,
    return_support: Literal[False] = ...,
) -> Tensor: ...
@overload
def entmax(
    input: Tensor,
    alpha: Alpha = ...,
    dim: int = ...,
    *,
    k: int | None = ...,
    dtype: torch.dtype | None = ...,
    return_support: Literal[True],
) -> SparseOutput: ...
def entmax(
    input: Tensor,
    alpha: Alpha = 1.5,
    dim: int = -1,
    *,
    k: int | None = None,
    dtype: torch.dtype | None = None,
    return_support: bool = False,
) -> Tensor | SparseOutput:
    """p = [(α−1) z − τ]₊^{1/(α−1)} with the τ that makes it sum to one (Peters et al. 2019).

    α = 1 is softmax, 2 is sparsemax; 1.5 is the usual choice for a model's output layer.

    Args:
        input: logits, any shape.
        alpha: a float ≥ 1; or a tensor that broadcasts against `input` with size 1 along `dim`
            (one α for all, per row or per head), which receives a gradient.
        dim, k, dtype, return_support: as for :func:`sparsemax`.
    """
    return _entmax(input, check_alpha(alpha, 1.0, strict=False), dim, k, dtype, return_support)


def _entmax(
    input: Tensor,
    alpha: Alpha,
    dim: int,
    k: int | None,
    dtype: torch.dtype | None,
    return_support: bool,
) -> Tensor | SparseOutput:
    check_floating(input)
    check_hint(k)
    dtype = output_dtype(input, dtype)
    if (
        dtype == input.dtype
        and not return_support
        and not isinstance(alpha, Tensor)
        and alpha != 1
        and input.dim() > 0
        and kernels.launches(input)
    ):
        # The kernels widen 16-bit logits as they read them: no copy in float32.
        narrow: Tensor = Entmax.apply(input.movedim(dim, -1), alpha)
        return narrow.movedim(-1, dim)
    z = rows_last(input, dim, dtype)
    alpha = per_row(alpha, input, dim, z, "alpha")
    p: Tensor = Entmax.apply(z, alpha)
    output = rows_back(p, input, dim, dtype)
    if not return_support:
        return output
    tau = rows_back(threshold_of(z, p, alpha), input, dim, dtype)
    return SparseOutput(output, tau, rows_back(_size(p), input, dim, torch.int64))


def _size(p: Tensor) -> Tensor:
    return (p > 0).sum(-1, keepdim=True)


@overload
def alpha_relu(
    input: Tensor,
    alpha: Alpha = ...,
    tau: Alpha = ...,
    *,
    dim: int = ...,
    dtype: torch.dtype | None = ...,
    return_support: Literal[False] = ...,
) -> Tensor: ...
@overload
def alpha_relu(
    input: Tensor,
    alpha: Alpha = ...,
    tau: Alpha = ...,
    *,
    dim: int = ...,
    dtype: torch.dtype | None = ...,
    return_support: Literal[True],
) -> SparseOutput: ...
def alpha_relu(
    input: Tensor,
    alpha: Alpha = 1.5,
    tau: Alpha = 0.0,
    *,
    dim: int = -1,
    dtype: torch.dtype | None = None,
    return_support: bool = False,
) -> Tensor | SparseOutput:
    """p = [(α−1) z − τ]₊^{1/(α−1)} with τ given: α-entmax without the search (Tezekbayev 2022).

    As fast as ReLU; not normalised, though training with :func:`alpha_relu_loss` drives it
    towards a distribution. Set τ with :func:`uncork.nn.tau_from_data` or
    :func:`uncork.nn.tau_from_shape`. To decode, use :func:`alpha_relu_log_scores`.

    Args:
        input: logits, any shape; every element is treated alike.
        alpha: > 1, a float or a tensor that broadcasts against `input` (receives a gradient).
        tau: a float or a tensor that broadcasts against `input` (receives a gradient).
        dim: only for `return_support`: the dimension over which the support is counted.
    """
    check_floating(input)
    alpha = check_alpha(alpha, 1.0, strict=True)
    dtype = output_dtype(input, dtype)
    if dtype == input.dtype and kernels.launches(input) and alpha_relu_kernel_takes(alpha, tau):
        output: Tensor = AlphaReLU.apply(input, alpha, tau)  # widened as it is read
    else:
        z = rows_last(input, -1, dtype)
        p: Tensor = AlphaReLU.apply(z, _like(alpha, z), _like(tau, z))
        output = rows_back(p, input, -1, dtype)
    if not return_support:
        return output
    given = tau if isinstance(tau, Tensor) else torch.full((), float(tau), device=input.device)
    size = (output > 0).sum(dim, keepdim=True)
    return SparseOutput(output, given.to(dtype), size)


def _like(value: Alpha, z: Tensor) -> Alpha:
    return value.to(z.dtype) if isinstance(value, Tensor) else float(value)


def normmax(
    input: Tensor, alpha: Alpha = 2.0, dim: int = -1, *, dtype: torch.dtype | None = None
) -> Tensor:
    """argmax_p ⟨z, p⟩ − ‖p‖_α over the simplex (Blondel, Martins and Niculae 2020).

    For large α it spreads its mass evenly over the support: choose it to select a set.

    Args:
        input: logits, any shape.
        alpha: > 1, a float or a tensor as for :func:`entmax` (receives a gradient).
        dim, dtype: as for :func:`sparsemax`.
    """
    check_floating(input)
    alpha = check_alpha(alpha, 1.0, strict=True)
    dtype = output_dtype(input, dtype)
    z = rows_last(input, dim, dtype)
    p = normmax_rows(z, per_row(alpha, input, dim, z, "alpha"))
    return rows_back(p, input, dim, dtype)


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
    budget = check_alpha(budget, 0.0, strict=False, name="budget")
    dtype = output_dtype(input, dtype)
    z = rows_last(input, dim, dtype)
    return rows_back(budget_rows(z, per_row(budget, input, dim, z, "budget")), input, dim, dtype)


def log_entmax(
    input: Tensor, alpha: Alpha = 1.5, dim: int = -1, *, dtype: torch.dtype | None = None
) -> Tensor:
    """log of :func:`entmax`: −inf where the probability is zero (with gradient zero there).

    For decoding: beam search adds these, and a class off the support ends its beam.
    """
    dtype = output_dtype(input, dtype)
    if not isinstance(alpha, Tensor) and alpha == 1:
        if input.numel() == 0:
            return torch.log_softmax(input, dim, dtype=dtype)
        masked = input.detach().amax(dim, keepdim=True) == -torch.inf
        known = torch.where(masked, torch.zeros_like(input), input)
        return torch.where(masked, -torch.inf, torch.log_softmax(known, dim, dtype=dtype))
    wide = input.to(torch.float32) if input.dtype in (torch.float16, torch.bfloat16) else input
    return _log(entmax(wide, alpha, dim)).to(dtype)


def log_sparsemax(input: Tensor, dim: int = -1, *, dtype: torch.dtype | None = None) -> Tensor:
    """log of :func:`sparsemax`, as :func:`log_entmax`."""
    return log_entmax(input, 2.0, dim, dtype=dtype)


def _log(p: Tensor) -> Tensor:
    support, safe = on_support(p)
    return torch.where(support, safe.log(), p.detach() - torch.inf)  # −inf, or NaN


def alpha_relu_log_scores(
    input: Tensor,
    alpha: Alpha = 1.5,
    tau: Alpha = 0.0,
    dim: int = -1,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """log(p / Σp) of α-ReLU: what a decoder should sample from, or add up in a beam.

    α-ReLU is not normalised, so log p of two steps are not comparable: each is divided by its sum
    first. Greedy decoding needs no score (the order is that of the logits). A row with no support
    at all, where α-ReLU says nothing, puts everything on its largest logit.
    """
    check_floating(input)
    alpha = check_alpha(alpha, 1.0, strict=True)
    dtype = output_dtype(input, dtype)
    wide = input.to(torch.float32) if input.dtype in (torch.float16, torch.bfloat16) else input
    if wide.numel() == 0:
        return wide.to(dtype)
    # In logarithms: near α = 1 the power 1/(α−1) takes p out of float32's range either way.
    finite = torch.where(wide == -torch.inf, torch.zeros_like(wide), wide)  # no 0 · −inf
    alpha, tau = _like(alpha, wide), _like(tau, wide)
    base = finite * (alpha - 1) - tau
    base = torch.where(wide == -torch.inf, torch.zeros_like(base), base.relu())
    support, safe = on_support(base)
    log_p = torch.where(support, safe.log() / (alpha - 1), base.detach() - torch.inf)  # or NaN
    empty = ~(support | base.isnan()).any(dim, keepdim=True)
    total = torch.where(empty, torch.zeros_like(log_p), log_p).logsumexp(dim, keepdim=True)
    top = (wide == wide.amax(dim, keepdim=True)) & (wide > -torch.inf)
    alone = (top.to(wide.dtype) / top.sum(dim, keepdim=True).clamp(min=1)).log()
    return torch.where(empty, alone, log_p - total).to(dtype)
