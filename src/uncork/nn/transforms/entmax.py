"""sparsemax and α-entmax: the functions, the map and its derivatives, for every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, overload

from uncork.core.errors import UncorkError
from uncork.nn import kernels
from uncork.nn._autograd import apply, forward_mode
from uncork.nn._rows import (
    Alpha,
    check_floating,
    check_hint,
    check_parameter,
    compute_dtype,
    output_dtype,
    per_row,
    rows_back,
    rows_last,
    runs_eagerly_on_cpu,
)
from uncork.nn._torch import torch
from uncork.nn.transforms.deformed import (
    along_simplex,
    alpha_rates,
    log_alpha,
    log_exp_alpha,
    log_on_support,
    on_support,
)
from uncork.nn.transforms.grouped import (
    NARROW,
    entmax_rows,
    entmax_rows_topk,
    entmax_rows_vjp,
    finish,
)
from uncork.nn.transforms.sharded import is_sharded, of_shards, refuse_support
from uncork.nn.transforms.threshold import (
    by_power,
    entmax_shift_anywhere,
    power_level_anywhere,
    shifted,
)

Tensor = torch.Tensor


class SparseOutput(NamedTuple):
    """What a transform returns when asked for more than the probabilities."""

    output: Tensor  #: the probabilities, shaped like the input
    tau: Tensor  #: threshold τ of p = [(α−1) z − τ]₊^{1/(α−1)}; size 1 along `dim`
    support_size: Tensor  #: int64, how many entries are positive; size 1 along `dim`


class LogTopK(NamedTuple):
    """The k most probable classes, largest first, as :func:`torch.topk` returns them."""

    values: Tensor  #: log-probabilities, −inf for a class off the support; size k along `dim`
    indices: Tensor  #: int64, which classes


@forward_mode
class Entmax(torch.autograd.Function):
    """z (..., n), alpha a float > 0 or a tensor (..., 1)  →  p (..., n).

    z is float32 or float64; also 16-bit where the kernels take it (`kernels.launches`).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, alpha: Alpha) -> Tensor:
        n = z.shape[-1]
        if z.numel() == 0:
            return z.clone()
        if not isinstance(alpha, Tensor) and alpha == 1:
            return _softmax(z)
        if not isinstance(alpha, Tensor) and kernels.take_entmax(alpha) and kernels.launches(z):
            from uncork.nn.kernels.entmax import entmax_forward

            return entmax_forward(z, alpha, z.dtype)
        if runs_eagerly_on_cpu(z) and (not isinstance(alpha, Tensor) or runs_eagerly_on_cpu(alpha)):
            if isinstance(alpha, Tensor):
                alpha = alpha.expand((*z.shape[:-1], 1)).reshape(-1, 1)
            return entmax_rows(z.reshape(-1, n), alpha).reshape(z.shape)
        v, _ = shifted(z)
        if not isinstance(alpha, Tensor) and alpha > 2:
            return by_power(v, alpha, power_level_anywhere(v, alpha))
        p = finish(v - entmax_shift_anywhere(v, alpha), alpha)
        if isinstance(alpha, Tensor):
            return torch.where(alpha > 2, by_power(v, alpha, power_level_anywhere(v, alpha)), p)
        return p

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, alpha = inputs
        saved = (output, alpha) if isinstance(alpha, Tensor) else (output,)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)
        ctx.alpha = None if isinstance(alpha, Tensor) else alpha

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        p, alpha = _saved(ctx)
        dz = dalpha = None
        if ctx.needs_input_grad[0]:
            dz = entmax_vjp(p, grad, alpha)
        if ctx.needs_input_grad[1]:
            assert isinstance(alpha, Tensor)  # only tensors need gradients
            along = entmax_alpha_direction(p, alpha)
            dalpha = (grad * along).sum(-1, keepdim=True).sum_to_size(alpha.shape)
        return dz, dalpha

    @staticmethod
    def jvp(ctx: Any, dz: Tensor | None, dalpha: Tensor | None) -> Tensor:
        p, alpha = _saved(ctx)
        # The Jacobian in z is symmetric.
        moved = torch.zeros_like(p) if dz is None else entmax_vjp(p, dz, alpha)
        if dalpha is not None:
            moved = moved + dalpha * entmax_alpha_direction(p, alpha)
        return moved


def _saved(ctx: Any) -> tuple[Tensor, Alpha]:
    saved = ctx.saved_tensors
    return saved[0], saved[1] if len(saved) == 2 else ctx.alpha


def _softmax(z: Tensor) -> Tensor:
    """softmax whose all-masked rows are 0, as for every other α, and not NaN."""
    p = torch.softmax(z, -1)
    masked = z.amax(-1, keepdim=True) == -torch.inf
    if runs_eagerly_on_cpu(masked) and not masked.any():
        return p
    return torch.where(masked, 0.0, p)


def entmax_vjp(p: Tensor, grad: Tensor, alpha: Alpha) -> Tensor:
    """(diag(s) − s sᵀ/Σs) grad with s = p^{2−α}, differentiable in p, grad and alpha."""
    number = None if torch.is_grad_enabled() or isinstance(alpha, Tensor) else float(alpha)
    # The kernel has not what `along_simplex` does beyond 2.
    if number is not None and 1 <= number <= 2 and kernels.launches(p, grad):
        from uncork.nn.kernels.entmax import entmax_backward

        return entmax_backward(p, grad, number, p.dtype)
    if number is not None and runs_eagerly_on_cpu(p, grad) and p.numel():
        n = p.shape[-1]
        return entmax_rows_vjp(p.reshape(-1, n), grad.reshape(-1, n), number).reshape(p.shape)
    wide = compute_dtype(p.dtype)
    if p.dtype != wide:
        return entmax_vjp(p.to(wide), grad.to(wide), alpha).to(p.dtype)
    return along_simplex(p, grad, alpha)


def entmax_alpha_direction(p: Tensor, alpha: Alpha) -> Tensor:
    """dp/dα: what α does at fixed S, less the change of S that keeps Σp = 1."""
    return along_simplex(p, alpha_rates(p, alpha), alpha)


def threshold_of(z: Tensor, p: Tensor, alpha: Alpha) -> Tensor:
    """τ from a solved row, differentiable: the mean over the support of (α−1) z − p^{α−1}.

    z, p (..., n) → (..., 1). −inf for a row with no support; for softmax (α = 1) it is −1.
    """
    support, safe = on_support(p)
    terms = (alpha - 1) * torch.where(support, z, torch.zeros_like(z)) - safe.pow(alpha - 1)
    size = support.sum(-1, keepdim=True)
    mean = torch.where(support, terms, torch.zeros_like(terms)).sum(-1, keepdim=True) / size
    return torch.where(size == 0, p.detach().sum(-1, keepdim=True) - torch.inf, mean)  # or NaN


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
        alpha: a float > 0 (below 1 no entry is zero); or a tensor with one value for all, per row
            or per head, which receives a gradient: it broadcasts against `input` with size 1 along
            `dim`, or has the shape of `input` without `dim`.
        dim, k, dtype, return_support: as for :func:`sparsemax`.
    """
    return _entmax(input, check_parameter(alpha, above=0.0), dim, k, dtype, return_support)


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
    if is_sharded(input):
        if return_support:
            refuse_support("entmax")
        sharded: Tensor = of_shards(
            lambda local, alpha: _entmax(local, alpha, dim, None, dtype, False),
            input, (alpha,), dim, dtype, entmax=True,
        )  # fmt: skip
        return sharded
    dtype = output_dtype(input, dtype)
    if (
        dtype == input.dtype
        and not return_support
        and kernels.take_entmax(alpha)
        and input.dim() > 0
        and kernels.launches(input)
    ):
        # The kernels widen 16-bit logits as they read them: no copy in float32.
        narrow: Tensor = apply(Entmax, input.movedim(dim, -1), alpha)
        return narrow.movedim(-1, dim)
    z = rows_last(input, dim, dtype)
    alpha = per_row(alpha, input, dim, z, "alpha")
    p: Tensor = apply(Entmax, z, alpha)
    output = rows_back(p, input, dim, dtype)
    if not return_support:
        return output
    tau = rows_back(threshold_of(z, p, alpha), input, dim, dtype)
    return SparseOutput(output, tau, rows_back(_size(p), input, dim, torch.int64))


def _size(p: Tensor) -> Tensor:
    return (p > 0).sum(-1, keepdim=True)


def log_entmax(
    input: Tensor, alpha: Alpha = 1.5, dim: int = -1, *, dtype: torch.dtype | None = None
) -> Tensor:
    """log of :func:`entmax`: −inf where the probability is zero (with gradient zero there).

    For decoding: beam search adds these, and a class off the support ends its beam.
    """
    check_floating(input)
    if is_sharded(input):
        p = entmax(input, alpha, dim, dtype=compute_dtype(output_dtype(input, dtype)))
        logs: Tensor = of_shards(
            lambda local: log_on_support(local).to(output_dtype(input, dtype)),
            p, (), dim, dtype, elementwise=True,
        )  # fmt: skip
        return logs
    dtype = output_dtype(input, dtype)
    if not isinstance(alpha, Tensor) and alpha == 1:
        if input.numel() == 0:
            return torch.log_softmax(input, dim, dtype=dtype)
        masked = input.detach().amax(dim, keepdim=True) == -torch.inf
        known = torch.where(masked, torch.zeros_like(input), input)
        return torch.where(masked, -torch.inf, torch.log_softmax(known, dim, dtype=dtype))
    if decodes_by_kernels(input, alpha):
        from uncork.nn.kernels.best import log_entmax as by_kernel

        number = float(alpha)
        return all_of(input, dim, lambda rows: by_kernel(rows, number, dtype))
    wide = input.to(torch.float32) if input.dtype in (torch.float16, torch.bfloat16) else input
    alpha = check_parameter(alpha, above=0.0)
    if not isinstance(alpha, Tensor) and _decodes_on_cpu(wide, alpha):
        # Logarithms where the support is, as it is found.
        z = wide.movedim(dim, -1)
        rows = entmax_rows(z.reshape(-1, z.shape[-1]), alpha, logarithm=True)
        return rows.reshape(z.shape).movedim(-1, dim).to(dtype)
    z = rows_last(wide, dim, wide.dtype)
    alpha = per_row(alpha, wide, dim, z, "alpha")
    return rows_back(_log_of_rows(z, alpha), wide, dim, dtype)


# From here on p on the support, at least (6e-8)^{1/(α−1)}, is in float32's range, and so is 1/p.
LEAST_ALPHA_BY_P = 1.2


def _log_of_rows(z: Tensor, alpha: Alpha) -> Tensor:
    """log p of z (..., n), differentiable."""
    if not z.numel():
        return z.clone()
    p: Tensor = apply(Entmax, z, alpha)
    if isinstance(alpha, Tensor):
        small = alpha < LEAST_ALPHA_BY_P
        near = log_near_1(z, p, torch.where(small, alpha, torch.ones_like(alpha)))
        far = log_on_support(torch.where(small, torch.ones_like(p), p))  # no 1/p of these
        return torch.where(small, near, far)
    return log_near_1(z, p, alpha) if alpha < LEAST_ALPHA_BY_P else log_on_support(p)


def log_near_1(z: Tensor, p: Tensor, alpha: Alpha) -> Tensor:
    """The same from the largest p of each row: near α = 1 others leave the range of floating point
    long before their logarithms do, and so would 1/p in the gradient.

    p = exp_α(x), and x is that of the largest, less how far z lies below it.
    """
    at = z.detach().argmax(-1, keepdim=True)
    top, share = z.gather(-1, at), p.gather(-1, at)
    masked = top.detach() == -torch.inf
    below = torch.where(masked, torch.zeros_like(z), z) - torch.where(masked, 0.0, top)
    log_share = torch.where(masked, torch.ones_like(share), share).log()
    x = log_alpha(log_share, alpha) + below
    support = (x * (alpha - 1) > -1) & (below > -torch.inf)
    made = log_exp_alpha(torch.where(support, x, torch.zeros_like(x)), alpha)
    nothing = (p - torch.inf).detach()  # or NaN
    return torch.where(support & ~masked, made, nothing)


def _decodes_on_cpu(z: Tensor, alpha: float) -> bool:
    """Whether logarithms can be taken of p as it is found: without a gradient, and of no α so near
    to 1 that p is 0 to floating point where its logarithm is not −inf."""
    return bool(
        alpha >= LEAST_ALPHA_BY_P
        and not z.requires_grad
        and z.dim()
        and z.numel()
        and runs_eagerly_on_cpu(z)
    )


def decodes_by_kernels(input: Tensor, alpha: Alpha, k: int = 1) -> bool:
    """Whether kernels go from the logits to log-probabilities, or to those of the k best: no
    gradient is asked for, and k is small."""
    if (
        not kernels.take_entmax(alpha)
        or input.dim() == 0
        or (input.requires_grad and torch.is_grad_enabled())
        or not kernels.launches(input)
    ):
        return False
    from uncork.nn.kernels.best import MOST

    return k <= MOST


def log_sparsemax(input: Tensor, dim: int = -1, *, dtype: torch.dtype | None = None) -> Tensor:
    """log of :func:`sparsemax`, as :func:`log_entmax`."""
    return log_entmax(input, 2.0, dim, dtype=dtype)


def log_entmax_topk(
    input: Tensor,
    k: int,
    alpha: Alpha = 1.5,
    dim: int = -1,
    *,
    dtype: torch.dtype | None = None,
) -> LogTopK:
    """The k largest of :func:`log_entmax` and their classes: all that a step of beam search needs.

    The order is that of the logits. Where the support is small nothing as large as `input` is made
    (without gradients), which makes it faster than :func:`torch.log_softmax` and
    :func:`torch.topk`.

    Args:
        input: logits, any shape.
        k: how many, at most the classes there are.
        alpha, dim, dtype: as for :func:`entmax`.
    """
    check_topk(input, k, dim)
    alpha = check_parameter(alpha, above=0.0)
    if decodes_by_kernels(input, alpha, k):
        from uncork.nn.kernels.best import entmax_best

        number, kind = float(alpha), output_dtype(input, dtype)
        return best_of(input, dim, lambda rows: entmax_best(rows, number, k, kind))
    wide = input.to(torch.float32) if input.dtype in (torch.float16, torch.bfloat16) else input
    if not isinstance(alpha, Tensor) and _decodes_on_cpu(wide, alpha) and wide.shape[dim] >= NARROW:
        z = wide.movedim(dim, -1)
        made = entmax_rows_topk(z.reshape(-1, z.shape[-1]), alpha, k)
        values, classes = (one.reshape((*z.shape[:-1], k)).movedim(-1, dim) for one in made)
        return LogTopK(values.to(output_dtype(input, dtype)), classes)
    return topk_of(input, log_entmax(input, alpha, dim, dtype=dtype), k, dim)


def all_of(input: Tensor, dim: int, log_p: Callable[[Tensor], Tensor]) -> Tensor:
    """A kernel's log-probabilities of rows (R, n), along `dim` of the input."""
    from uncork.nn.kernels.launch import as_rows

    if _has_rows(input, dim):
        return log_p(as_rows(input))
    z = input.movedim(dim, -1)
    return log_p(as_rows(z)).reshape(z.shape).movedim(-1, dim)


def _has_rows(input: Tensor, dim: int) -> bool:
    """As decoders have it. Every view takes its time, and launching a step takes most of it."""
    return input.dim() == 2 and dim in (1, -1)


def best_of(input: Tensor, dim: int, best: Callable[[Tensor], tuple[Tensor, Tensor]]) -> LogTopK:
    """A kernel's best of rows (R, n), (R, k) twice, along `dim` of the input."""
    from uncork.nn.kernels.launch import as_rows

    if _has_rows(input, dim):
        return LogTopK(*best(as_rows(input)))
    z = input.movedim(dim, -1)
    values, classes = (
        one.reshape((*z.shape[:-1], one.shape[-1])).movedim(-1, dim) for one in best(as_rows(z))
    )
    return LogTopK(values, classes)


def check_topk(input: Tensor, k: int, dim: int) -> None:
    check_floating(input)
    classes = input.size(dim) if input.dim() else 1
    if not 1 <= k <= classes:
        raise UncorkError(f"k must be between 1 and the {classes} classes along dim={dim}, got {k}")


def topk_of(input: Tensor, log_p: Tensor, k: int, dim: int) -> LogTopK:
    """By the logits' order, which many log-probabilities of −inf have lost."""
    indices = input.detach().topk(k, dim).indices
    return LogTopK(log_p.gather(dim, indices), indices)
