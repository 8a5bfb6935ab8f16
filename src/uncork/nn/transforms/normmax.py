"""α-normmax: argmax_p ⟨z, p⟩ − ‖p‖_α over the simplex, a sparse map without α-entmax's temperature.

With w = [z − t]₊ the solution is p = w^{1/(α−1)} / Σ w^{1/(α−1)}, where t makes ‖w‖_β = 1 for the
conjugate exponent β = α/(α−1) (Blondel, Martins and Niculae 2020, Sec. 4.3).
"""

from __future__ import annotations

from typing import Any

from uncork.nn import kernels
from uncork.nn._autograd import apply, forward_mode
from uncork.nn._rows import (
    Alpha,
    blocks,
    check_floating,
    check_parameter,
    output_dtype,
    per_row,
    rows_back,
    rows_last,
    runs_eagerly_on_cpu,
)
from uncork.nn._threads import over_rows
from uncork.nn._torch import torch
from uncork.nn.transforms.deformed import on_support, power_sum, slopes
from uncork.nn.transforms.operator import Bracket, as_operator
from uncork.nn.transforms.pages import empty_like
from uncork.nn.transforms.sharded import is_sharded, of_shards
from uncork.nn.transforms.threshold import MOST_STEPS, shifted

Tensor = torch.Tensor


def normmax_rows(z: Tensor, alpha: Alpha) -> Tensor:
    """z (..., n), alpha > 1 a float or (..., 1)  →  p (..., n). Masked rows give 0."""
    if z.numel() == 0:
        return z.clone()
    if not isinstance(alpha, Tensor) and not torch.onnx.is_in_onnx_export():
        made: Tensor = apply(Normmax, z, alpha)
        return made
    return _differentiated(z, alpha)


def _differentiated(z: Tensor, alpha: Alpha) -> Tensor:
    """By the rules of its parts: gradients in z and in a tensor α."""
    # p does not change when z is shifted, so the maximum is a constant to the gradient.
    v = z - shifted(z.detach())[1]
    threshold = apply(NormmaxThreshold, v, alpha)
    base = (v - threshold).relu()
    support, w = on_support(base)
    power = torch.where(support, w.pow(1 / (alpha - 1)), base)  # off the support 0, or NaN
    total = power.sum(-1, keepdim=True)
    return power / torch.where(total == 0, torch.ones_like(total), total)


@forward_mode
class Normmax(torch.autograd.Function):
    """z (..., n), alpha > 1 a float  →  p (..., n). The Jacobian is a function of p alone."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, alpha: float) -> Tensor:
        if not runs_eagerly_on_cpu(z):
            return _differentiated(z, alpha)
        rows = z.reshape(-1, z.shape[-1])
        out = empty_like(rows)

        def some(piece: slice) -> None:
            for block in blocks(*rows[piece].shape):
                out[piece][block] = _differentiated(rows[piece][block], alpha)

        over_rows(some, *rows.shape)
        return out.reshape(z.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.alpha = inputs[1]
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (p,) = ctx.saved_tensors
        return normmax_vjp(p, grad, ctx.alpha), None

    @staticmethod
    def jvp(ctx: Any, dz: Tensor, _: None) -> Tensor:
        (p,) = ctx.saved_tensors
        return normmax_vjp(p, dz, ctx.alpha)  # the Jacobian is symmetric


def normmax_vjp(p: Tensor, grad: Tensor, alpha: Alpha) -> Tensor:
    """(I − p1ᵀ) diag(s) (I − 1pᵀ) grad with s = p^{2−α} ‖p‖_α^{α−1}/(α−1), differentiable in both.

    Since w = (p/‖p‖_α)^{α−1}, and p moves by p/((α−1) w) times what its own z − t does. With
    r = p/m it is s = m r^{2−α} ‖r‖_α^{α−1}/(α−1), whatever m is.
    """
    if (
        isinstance(alpha, Tensor)
        or torch.is_grad_enabled()
        or not runs_eagerly_on_cpu(p, grad)
        or not p.numel()
    ):
        return _vjp(p, grad, alpha)
    shape = p.shape
    p, grad = p.reshape(-1, shape[-1]), grad.reshape(-1, shape[-1])
    out = empty_like(p)

    def some(piece: slice) -> None:
        for block in blocks(*p[piece].shape):
            out[piece][block] = _vjp(p[piece][block], grad[piece][block], alpha)

    over_rows(some, *p.shape)
    return out.reshape(shape)


def _vjp(p: Tensor, grad: Tensor, alpha: Alpha) -> Tensor:
    ratio, top = _by_largest(p)
    scale = top * power_sum(ratio, alpha).pow((alpha - 1) / alpha) / (alpha - 1)
    pushed = slopes(ratio, alpha) * (scale * (grad - (p * grad).sum(-1, keepdim=True)))
    return pushed - p * pushed.sum(-1, keepdim=True)


def norm(p: Tensor, alpha: Alpha) -> Tensor:
    """‖p‖_α of each row: (..., 1)."""
    ratio, top = _by_largest(p)
    return top * power_sum(ratio, alpha).pow(1 / alpha)


def _by_largest(p: Tensor) -> tuple[Tensor, Tensor]:
    """p divided by each row's largest, whose powers stay in range for every α, and these (..., 1):
    constants to a derivative. 1 for masked rows."""
    top = p.detach().amax(-1, keepdim=True)
    top = torch.where(top == 0, torch.ones_like(top), top)
    return p / top, top


@forward_mode
class NormmaxThreshold(torch.autograd.Function):
    """t with ‖[v − t]₊‖_β = 1.  v (..., n) with largest entry 0  →  t (..., 1)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(v: Tensor, alpha: Alpha) -> Tensor:
        return _threshold(v, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        v, alpha = inputs
        ctx.constant = None if isinstance(alpha, Tensor) else alpha
        saved = (v, output, alpha) if isinstance(alpha, Tensor) else (v, output)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        share, along_alpha, alpha = _threshold_slopes(ctx, ctx.needs_input_grad[1])
        dalpha = None
        if along_alpha is not None:
            dalpha = (grad * along_alpha).sum_to_size(alpha.shape)
        return grad * share, dalpha

    @staticmethod
    def jvp(ctx: Any, dv: Tensor | None, dalpha: Tensor | None) -> Tensor:
        share, along_alpha, _ = _threshold_slopes(ctx, dalpha is not None)
        moved = torch.zeros_like(share[..., :1])
        if dv is not None:
            moved = (share * dv).sum(-1, keepdim=True)
        if dalpha is None or along_alpha is None:
            return moved
        return moved + dalpha * along_alpha


def _threshold_slopes(ctx: Any, by_alpha: bool) -> tuple[Tensor, Tensor | None, Any]:
    """∂t/∂v (..., n), ∂t/∂α (..., 1) where it is asked for, and α."""
    v, threshold, *rest = ctx.saved_tensors
    alpha = rest[0] if rest else ctx.constant
    support, w = on_support((v - threshold).relu())
    power = torch.where(support, w.pow(1 / (alpha - 1)), torch.zeros_like(w))
    total = power.sum(-1, keepdim=True)
    total = torch.where(total == 0, torch.ones_like(total), total)
    slope = None
    if by_alpha:
        # Σ w^β = 1 differentiated in α: dβ/dα = −1/(α−1)², and β Σ w^{β−1} = β Σ power.
        moved = (power * w * w.log()).sum(-1, keepdim=True)
        slope = -moved / (alpha * (alpha - 1) * total)
    return power / total, slope, alpha


def _solve(v: Tensor, alpha: Alpha) -> Tensor:
    """Newton from below on the norm itself, convex in t: monotone, each row stops by its error. By
    kernels Σ [v − t]₊^β = 1 is read as the equation of α-entmax's threshold, of α′ = 1 + 1/β and
    logits β v."""
    if v.dtype == torch.float32 and kernels.usable(v):
        from uncork.nn.kernels.entmax import entmax_shift

        return entmax_shift(v * (alpha / (alpha - 1)), 2 - 1 / alpha) * ((alpha - 1) / alpha) - 1
    tiny = torch.finfo(v.dtype).eps
    beta = alpha / (alpha - 1)
    threshold = v.new_full((*v.shape[:-1], 1), -1.0)  # the largest entry alone has norm 1 here
    done = torch.zeros_like(threshold, dtype=torch.bool)
    for _ in range(MOST_STEPS[v.dtype]):
        w = (v - threshold).relu()
        power = w.pow(beta - 1)
        if not isinstance(beta, Tensor):
            power = torch.where(w > 0, power, torch.zeros_like(power))
        total = (power * w).sum(-1, keepdim=True)  # Σ w^β
        norm = total.pow(1 / beta)
        step = (norm - 1) * norm.pow(beta - 1) / power.sum(-1, keepdim=True)
        done = done | ~((norm > 1 + 2 * tiny) & (threshold + step > threshold))
        threshold = torch.where(done, threshold, threshold + step)
        if v.device.type == "cpu" and bool(done.all()):
            break
    return threshold


_threshold = as_operator(
    "normmax_threshold",
    _solve,
    Bracket(
        lambda v, t, alpha: (v - t).relu().pow(alpha / (alpha - 1)).sum(-1, keepdim=True) - 1,
        lambda v, alpha: (-1.0, 0.0),
    ),
)


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
    alpha = check_parameter(alpha, above=1.0)
    if is_sharded(input):
        sharded: Tensor = of_shards(
            lambda local, alpha: normmax(local, alpha, dim, dtype=dtype),
            input,
            (alpha,),
            dim,
            dtype,
        )
        return sharded
    dtype = output_dtype(input, dtype)
    z = rows_last(input, dim, dtype)
    p = normmax_rows(z, per_row(alpha, input, dim, z, "alpha"))
    return rows_back(p, input, dim, dtype)
