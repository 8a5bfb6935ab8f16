"""α-ReLU: p = [(α−1) z − τ]₊^{1/(α−1)} with τ fixed. No search, no sum, not normalised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

from uncork.nn import kernels
from uncork.nn._autograd import apply, forward_mode
from uncork.nn._rows import (
    Alpha,
    blocks,
    check_floating,
    check_parameter,
    compute_dtype,
    output_dtype,
    rows_back,
    rows_last,
    runs_eagerly_on_cpu,
)
from uncork.nn._threads import over_rows
from uncork.nn._torch import torch
from uncork.nn.transforms.deformed import log_in_place, on_support
from uncork.nn.transforms.entmax import SparseOutput
from uncork.nn.transforms.pages import empty_like

Tensor = torch.Tensor


@forward_mode
class AlphaReLU(torch.autograd.Function):
    """z of any shape, alpha > 1 and tau floats or tensors that broadcast against z → p like z."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        if kernels.launches(z) and alpha_relu_kernel_takes(alpha, tau):
            from uncork.nn.kernels.alpha_relu import alpha_relu_forward

            return alpha_relu_forward(z, float(alpha), tau, z.dtype)
        known = _numbers(z, alpha, tau)
        if known is not None:
            return _forward_blocks(z, *known)
        return _power((z * (alpha - 1) - tau).relu(), alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        z, alpha, tau = inputs
        tensors = [value for value in (alpha, tau) if isinstance(value, Tensor)]
        ctx.save_for_backward(z, *tensors)
        ctx.save_for_forward(z, *tensors)
        ctx.alpha = None if isinstance(alpha, Tensor) else alpha
        ctx.tau = None if isinstance(tau, Tensor) else tau

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, alpha, tau = _saved(ctx)
        dz = dalpha = dtau = None
        if ctx.needs_input_grad[0]:
            dz = _vjp(z, grad, alpha, tau)
        if any(ctx.needs_input_grad[1:]):
            z, grad = z.to(compute_dtype(z.dtype)), grad.to(compute_dtype(grad.dtype))
        if ctx.needs_input_grad[1]:
            dalpha = (grad * _alpha_slope(z, alpha, tau)).sum_to_size(alpha.shape)
        if ctx.needs_input_grad[2]:
            dtau = (-grad * _slope(z, alpha, tau) / (alpha - 1)).sum_to_size(tau.shape)
        return dz, dalpha, dtau

    @staticmethod
    def jvp(ctx: Any, dz: Tensor | None, dalpha: Tensor | None, dtau: Tensor | None) -> Tensor:
        z, alpha, tau = _saved(ctx)
        slope = _slope(z.to(compute_dtype(z.dtype)), alpha, tau)
        moved = torch.zeros_like(slope) if dz is None else slope * dz
        if dalpha is not None:
            moved = moved + dalpha * _alpha_slope(z.to(slope.dtype), alpha, tau)
        if dtau is not None:
            moved = moved - dtau * slope / (alpha - 1)
        return moved.to(z.dtype)


def alpha_relu_kernel_takes(alpha: Alpha, tau: Alpha) -> bool:
    """A float α, and one τ for all: what the kernel is written for."""
    if isinstance(alpha, Tensor):
        return False
    return not isinstance(tau, Tensor) or (tau.numel() == 1 and kernels.launches(tau))


def _saved(ctx: Any) -> tuple[Tensor, Any, Any]:
    saved = ctx.saved_tensors  # z, then alpha and tau where they are tensors
    alpha = saved[1] if ctx.alpha is None else ctx.alpha
    tau = saved[-1] if ctx.tau is None else ctx.tau
    return saved[0], alpha, tau


def _numbers(z: Tensor, alpha: Alpha, tau: Alpha) -> tuple[float, float] | None:
    """(α, τ) as floats where they are one number each and reading them makes nobody wait."""
    values = [value for value in (alpha, tau) if isinstance(value, Tensor)]
    if not runs_eagerly_on_cpu(z, *values) or any(value.numel() != 1 for value in values):
        return None
    if any(value.dim() > z.dim() for value in values):
        return None
    return float(alpha), float(tau)


def _power(w: Tensor, alpha: Alpha) -> Tensor:
    """w^{1/(α−1)} for w ≥ 0."""
    if not isinstance(alpha, Tensor):
        if alpha == 2:
            return w
        if alpha == 1.5:
            return w.square()
    return w.pow(1 / (alpha - 1))


def _base(z: Tensor, alpha: Alpha, tau: Alpha) -> tuple[Tensor, Tensor]:
    """Where w = (α−1) z − τ is positive, and w there (1 elsewhere, so that powers are safe)."""
    return on_support((z * (alpha - 1) - tau).relu())


def _slope(z: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
    """dp/dz = w^{(2−α)/(α−1)} on the support."""
    support, w = _base(z, alpha, tau)
    return torch.where(support, w.pow((2 - alpha) / (alpha - 1)), torch.zeros_like(w))


def _alpha_slope(z: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
    """∂p/∂α at fixed z and τ: (z p^{2−α} − p log p)/(α−1)."""
    support, w = _base(z, alpha, tau)
    p = w.pow(1 / (alpha - 1))
    finite = torch.where(support, z, torch.zeros_like(z))  # no 0 · −inf from masked logits
    along = (finite * (p / w) - p * w.log() / (alpha - 1)) / (alpha - 1)
    return torch.where(support, along, torch.zeros_like(w))


def _forward_blocks(z: Tensor, alpha: float, tau: float) -> Tensor:
    """The same in place, block by block in cache: one trip through memory instead of four."""

    def power(block: Tensor) -> None:
        if alpha == 1.5:
            block.square_()
        elif alpha != 2:
            block.pow_(1 / (alpha - 1))

    return _of_base(power, z, alpha, tau)


def _of_base(
    change: Callable[..., None], z: Tensor, alpha: float, tau: float, *others: Tensor
) -> Tensor:
    """w = [(α−1) z − τ]₊, changed in place by `change(block, *blocks of others)`."""
    out = empty_like(z)
    source = _as_rows(z)
    offset = torch.tensor(-tau, dtype=z.dtype)
    views = [tensor.reshape(source.shape) for tensor in (out, z, *others)]

    def some(rows: slice) -> None:
        parts = [view[rows] for view in views]
        for part in blocks(*parts[0].shape):
            block, piece, *rest = (view[part] for view in parts)
            torch.add(offset, piece, alpha=alpha - 1, out=block).relu_()
            change(block, *rest)

    over_rows(some, *source.shape)
    return out


def _vjp(z: Tensor, grad: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
    """grad · dp/dz, in blocks where that is the derivative of nothing."""
    wide = compute_dtype(z.dtype)
    if (
        not torch.is_grad_enabled()
        and kernels.launches(z, grad)
        and alpha_relu_kernel_takes(alpha, tau)
    ):
        from uncork.nn.kernels.alpha_relu import alpha_relu_backward

        return alpha_relu_backward(z, grad, float(alpha), tau)
    if z.dtype != wide:
        return (_slope(z.to(wide), alpha, tau) * grad).to(z.dtype)
    known = None if torch.is_grad_enabled() else _numbers(z, alpha, tau)
    if known is None or not runs_eagerly_on_cpu(grad):
        return _slope(z, alpha, tau) * grad
    alpha, tau = known

    def pull(block: Tensor, pulled: Tensor) -> None:
        if alpha == 2:
            block.sign_()
        elif alpha < 2 and alpha != 1.5:
            block.pow_((2 - alpha) / (alpha - 1))
        elif alpha > 2:
            support, w = on_support(block)
            block.copy_(torch.where(support, w.pow((2 - alpha) / (alpha - 1)), 0.0))
        block.mul_(pulled)

    return _of_base(pull, z, alpha, tau, grad)


def _as_rows(z: Tensor) -> Tensor:
    """(R, n), also for a scalar and for an empty tensor."""
    if z.numel() == 0:
        return z.reshape(0, 1)
    return z.reshape(1, -1) if z.dim() == 0 else z.reshape(-1, z.shape[-1])


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
    alpha = check_parameter(alpha, above=1.0)
    dtype = output_dtype(input, dtype)
    if dtype == input.dtype and kernels.launches(input) and alpha_relu_kernel_takes(alpha, tau):
        output: Tensor = apply(AlphaReLU, input, alpha, tau)  # widened as it is read
    else:
        z = rows_last(input, -1, dtype)
        p: Tensor = apply(AlphaReLU, z, _like(alpha, z), _like(tau, z))
        output = rows_back(p, input, -1, dtype)
    if not return_support:
        return output
    given = tau if isinstance(tau, Tensor) else torch.full((), float(tau), device=input.device)
    size = (output > 0).sum(dim, keepdim=True)
    return SparseOutput(output, given.to(dtype), size)


def _like(value: Alpha, z: Tensor) -> Alpha:
    return value.to(z.dtype) if isinstance(value, Tensor) else float(value)


def _log_scores_on_cpu(z: Tensor, alpha: float, tau: float, dim: int) -> Tensor | None:
    """The same in few passes, for decoding; None where a row has no support."""
    if not runs_eagerly_on_cpu(z):
        return None
    rows = z.movedim(dim, -1) if z.dim() else z.reshape(1)
    if not rows.is_contiguous():
        return None

    empty = []  # blocks with a row without support

    def log(block: Tensor) -> None:
        top = block.amax(-1, keepdim=True)
        if not bool((top != 0).all()):
            empty.append(True)
            return
        power = 1 / (alpha - 1)
        share = (block / top).pow_(power).sum(-1, keepdim=True)  # of the largest, so in range
        total = share.log_().add_(top.log(), alpha=power)
        log_in_place(block).mul_(power).sub_(total)

    scores = _of_base(log, rows, alpha, tau)
    if empty:
        return None
    return scores.movedim(-1, dim) if z.dim() else scores.reshape(())


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
    alpha = check_parameter(alpha, above=1.0)
    dtype = output_dtype(input, dtype)
    wide = input.to(torch.float32) if input.dtype in (torch.float16, torch.bfloat16) else input
    if wide.numel() == 0:
        return wide.to(dtype)
    if not isinstance(alpha, Tensor) and not isinstance(tau, Tensor) and not wide.requires_grad:
        known = _log_scores_on_cpu(wide, alpha, tau, dim)
        if known is not None:
            return known.to(dtype)
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


def log_alpha_relu(
    input: Tensor,
    alpha: Alpha = 1.5,
    tau: Alpha = 0.0,
    dim: int = -1,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """:func:`alpha_relu_log_scores`, under the name that goes with :func:`log_entmax`."""
    return alpha_relu_log_scores(input, alpha, tau, dim, dtype=dtype)
