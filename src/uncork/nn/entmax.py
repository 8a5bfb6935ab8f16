"""sparsemax and α-entmax: the map and its derivatives, for every device."""

from __future__ import annotations

from typing import Any, NamedTuple

from uncork.nn import kernels
from uncork.nn._rows import Alpha, compute_dtype, runs_eagerly_on_cpu
from uncork.nn._torch import torch
from uncork.nn.deformed import alpha_slopes, on_support, slopes
from uncork.nn.grouped import entmax_rows, entmax_rows_vjp, finish
from uncork.nn.threshold import by_power, entmax_shift_anywhere, power_level_anywhere, shifted

Tensor = torch.Tensor


class SparseOutput(NamedTuple):
    """What a transform returns when asked for more than the probabilities."""

    output: Tensor  #: the probabilities, shaped like the input
    tau: Tensor  #: threshold τ of p = [(α−1) z − τ]₊^{1/(α−1)}; size 1 along `dim`
    support_size: Tensor  #: int64, how many entries are positive; size 1 along `dim`


class Entmax(torch.autograd.Function):
    """z (..., n), alpha a float ≥ 1 or a tensor (..., 1)  →  p (..., n).

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
        if kernels.launches(z) and not isinstance(alpha, Tensor):
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
        if isinstance(alpha, Tensor):
            ctx.save_for_backward(output, alpha)
        else:
            ctx.save_for_backward(output)
            ctx.alpha = alpha

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


def _saved(ctx: Any) -> tuple[Tensor, Alpha]:
    saved = ctx.saved_tensors
    return saved[0], saved[1] if len(saved) == 2 else ctx.alpha


def _softmax(z: Tensor) -> Tensor:
    """softmax whose all-masked rows are 0, as for every other α, and not NaN."""
    p = torch.softmax(z, -1)
    masked = z.amax(-1, keepdim=True) == -torch.inf
    return torch.where(masked, torch.zeros_like(p), p)


def entmax_vjp(p: Tensor, grad: Tensor, alpha: Alpha) -> Tensor:
    """(diag(s) − s sᵀ/Σs) grad with s = p^{2−α}, differentiable in p, grad and alpha."""
    if not torch.is_grad_enabled() and not isinstance(alpha, Tensor) and kernels.launches(p, grad):
        from uncork.nn.kernels.entmax import entmax_backward

        return entmax_backward(p, grad, alpha, p.dtype)
    if (
        not torch.is_grad_enabled()
        and not isinstance(alpha, Tensor)
        and runs_eagerly_on_cpu(p, grad)
        and p.numel()
    ):
        n = p.shape[-1]
        return entmax_rows_vjp(p.reshape(-1, n), grad.reshape(-1, n), alpha).reshape(p.shape)
    wide = compute_dtype(p.dtype)
    if p.dtype != wide:
        return entmax_vjp(p.to(wide), grad.to(wide), alpha).to(p.dtype)
    slope = slopes(p, alpha)
    pushed = slope * grad
    return pushed - slope * (pushed.sum(-1, keepdim=True) / _mass(slope))


def entmax_alpha_direction(p: Tensor, alpha: Alpha) -> Tensor:
    """dp/dα: what α does at fixed S, less the change of S that keeps Σp = 1."""
    slope = slopes(p, alpha)
    direct = alpha_slopes(p, alpha)
    return direct - slope * (direct.sum(-1, keepdim=True) / _mass(slope))


def _mass(slope: Tensor) -> Tensor:
    total = slope.sum(-1, keepdim=True)
    return torch.where(total == 0, torch.ones_like(total), total)  # masked rows


def threshold_of(z: Tensor, p: Tensor, alpha: Alpha) -> Tensor:
    """τ from a solved row, differentiable: the mean over the support of (α−1) z − p^{α−1}.

    z, p (..., n) → (..., 1). −inf for a row with no support; for softmax (α = 1) it is −1.
    """
    support, safe = on_support(p)
    terms = (alpha - 1) * torch.where(support, z, torch.zeros_like(z)) - safe.pow(alpha - 1)
    size = support.sum(-1, keepdim=True)
    mean = torch.where(support, terms, torch.zeros_like(terms)).sum(-1, keepdim=True) / size
    return torch.where(size == 0, p.detach().sum(-1, keepdim=True) - torch.inf, mean)  # or NaN
