"""What each Fenchel-Young loss adds to the shared core: its map p = ∇Ω*(z), and Ω* itself.

A family is a frozen value with a few small methods over rows (..., C); parameters (α, τ) are floats
or tensors (..., 1). `fenchel_young.py` does everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from uncork.nn import kernels
from uncork.nn._rows import Alpha, blocks, runs_eagerly_on_cpu
from uncork.nn._torch import torch
from uncork.nn.alpha_relu import AlphaReLU
from uncork.nn.deformed import on_support, slopes, tsallis_terms
from uncork.nn.entmax import Entmax, entmax_alpha_direction, entmax_vjp
from uncork.nn.normmax import normmax_rows

Tensor = torch.Tensor
# z (N, C), classes (N), the class to ignore → losses (N), p (N, C)
Fused = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Family:
    """The common shape. A family without gradients for its parameters leaves the last four out."""

    #: Ω*(z + c) = Ω*(z) + c: true for every map onto the simplex
    shift_invariant: ClassVar[bool] = True

    def predict(self, z: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        """p = ∇Ω*(z).  (..., C) → (..., C)"""
        raise NotImplementedError

    def fused(self, z: Tensor, alpha: Alpha, tau: Alpha) -> Fused | None:
        """A kernel that makes losses and p of rows in one pass, where there is one for z."""
        return None

    def conjugate(self, v: Tensor, p: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        """Ω*(v), given p = ∇Ω*(v).  (..., C) → (..., 1)"""
        raise NotImplementedError

    def vjp(self, p: Tensor, grad: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        """The Jacobian of `predict` (symmetric) times grad, as a function of p."""
        raise NotImplementedError

    def alpha_direction(self, p: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        """∂p/∂α.  (..., C)"""
        raise NotImplementedError

    def tau_direction(self, p: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        """∂p/∂τ.  (..., C)"""
        raise NotImplementedError

    def conjugate_alpha(self, p: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        """∂Ω*/∂α = −∂Ω/∂α at fixed p, since p is the maximiser (envelope theorem).  (..., 1)"""
        raise NotImplementedError

    def conjugate_tau(self, p: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        """∂Ω*/∂τ.  (..., 1)"""
        raise NotImplementedError


@dataclass(frozen=True)
class EntmaxFamily(Family):
    """Ω = −H_α on the simplex (Peters et al. 2019): softmax at α = 1, sparsemax at α = 2."""

    def predict(self, z: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        p: Tensor = Entmax.apply(z, alpha)
        return p

    def fused(self, z: Tensor, alpha: Alpha, tau: Alpha) -> Fused | None:
        if isinstance(alpha, Tensor) or alpha == 1 or not kernels.launches(z):
            return None
        from uncork.nn.kernels.entmax import entmax_losses

        return partial(entmax_losses, alpha=alpha)

    def conjugate(self, v: Tensor, p: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        """Ω*(v) = s/α + (1 − 1/α)⟨p, v⟩ for a row whose largest entry is 0.

        From Σp^α = Σp (1 + (α−1)(v − s)); no entropy has to be computed, and s itself is
        −log_α of the largest probability.
        """
        top = p.amax(-1, keepdim=True)
        if not isinstance(alpha, Tensor):
            if alpha == 1:
                return -top.log()
            s = -torch.expm1((alpha - 1) * top.log()) / (alpha - 1)
        else:
            eps = alpha - 1
            safe = torch.where(eps == 0, torch.ones_like(eps), eps)
            log = top.log()
            s = torch.where(eps == 0, -log, -torch.expm1(safe * log) / safe)
        # Ω*(v) ≥ v_c for every class c, so a negative value is rounding.
        return (s / alpha + (1 - 1 / alpha) * inner_product(p, v)).clamp(min=0)

    def vjp(self, p: Tensor, grad: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        return entmax_vjp(p, grad, alpha)

    def alpha_direction(self, p: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        return entmax_alpha_direction(p, alpha)

    def conjugate_alpha(self, p: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        first, second = tsallis_terms(p, alpha)
        return (first / alpha - second) / alpha


@dataclass(frozen=True)
class AlphaReLUFamily(Family):
    """Ω = Σp^α/(α(α−1)) + τ Σp/(α−1) − const on p ≥ 0: α-ReLU (Tezekbayev et al. 2022).

    The constant makes Ω(e_y) = 0, so the loss is 0 exactly where p = e_y.
    """

    shift_invariant: ClassVar[bool] = False

    def predict(self, z: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        p: Tensor = AlphaReLU.apply(z, alpha, tau)
        return p

    def fused(self, z: Tensor, alpha: Alpha, tau: Alpha) -> Fused | None:
        if isinstance(alpha, Tensor) or isinstance(tau, Tensor) or not kernels.launches(z):
            return None
        from uncork.nn.kernels.alpha_relu import alpha_relu_losses

        return partial(alpha_relu_losses, alpha=alpha, tau=tau)

    def conjugate(self, v: Tensor, p: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        """Ω*(z) = (1/α) Σp^α + (τ + 1/α)/(α−1), from z = (p^{α−1} + τ)/(α−1) on the support."""
        power = _power_sum(p, alpha)
        return power / alpha + (tau + 1 / alpha) / (alpha - 1)

    def vjp(self, p: Tensor, grad: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        return slopes(p, alpha) * grad

    def alpha_direction(self, p: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        """∂p/∂α at fixed z, τ: (z p^{2−α} − p log p)/(α−1), z from p."""
        support, safe = on_support(p)
        z = (safe.pow(alpha - 1) + tau) / (alpha - 1)
        along = (z * safe.pow(2 - alpha) - safe * safe.log()) / (alpha - 1)
        return torch.where(support, along, torch.zeros_like(p))

    def conjugate_alpha(self, p: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        """−∂Ω/∂α at fixed p, constant included."""
        support, safe = on_support(p)
        power = torch.where(support, safe.pow(alpha), torch.zeros_like(p))
        log = torch.where(support, safe.log(), torch.zeros_like(p))
        product = alpha * (alpha - 1)
        entropy = (power * log).sum(-1, keepdim=True) / product
        scale = (2 * alpha - 1) / product**2
        total = torch.where(support, safe, torch.zeros_like(p)).sum(-1, keepdim=True)
        return (
            scale * (power.sum(-1, keepdim=True) - 1)
            - entropy
            + tau * (total - 1) / (alpha - 1) ** 2
        )

    def conjugate_tau(self, p: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        return (1 - p.sum(-1, keepdim=True)) / (alpha - 1)

    def tau_direction(self, p: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        return -slopes(p, alpha) / (alpha - 1)


@dataclass(frozen=True)
class NormmaxFamily(Family):
    """Ω = ‖p‖_α − 1 on the simplex (Blondel, Martins and Niculae 2020). α is a float here."""

    def predict(self, z: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        return normmax_rows(z, alpha)

    def conjugate(self, v: Tensor, p: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        norm = _power_sum(p, alpha).pow(1 / alpha)
        return (inner_product(p, v) - norm + 1).clamp(min=0)

    def vjp(self, p: Tensor, grad: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        """c (diag b − b pᵀ − p bᵀ + Σb p pᵀ) grad, b = p^{2−α}, c = ‖p‖_α^{α−1}/(α−1)."""
        b = slopes(p, alpha)
        mean = (p * grad).sum(-1, keepdim=True)
        centred = b * (grad - mean)
        total = _power_sum(p, alpha)
        total = torch.where(total == 0, torch.ones_like(total), total)
        scale = total.pow((alpha - 1) / alpha) / (alpha - 1)
        return scale * (centred - p * centred.sum(-1, keepdim=True))


def inner_product(p: Tensor, v: Tensor) -> Tensor:
    """Σ p v over the support (masked v = −inf has p = 0 and counts nothing): (..., 1)."""
    if runs_eagerly_on_cpu(p, v) and not torch.is_grad_enabled() and p.numel():
        n = p.shape[-1]
        p, rows = p.reshape(-1, n), v.reshape(-1, n)
        out = p.new_empty(len(p), 1)
        lowest = torch.finfo(p.dtype).min
        for block in blocks(*p.shape):
            # 0 · lowest is 0, where 0 · −inf would be NaN.
            product = rows[block].clamp(min=lowest).mul_(p[block])
            torch.sum(product, -1, keepdim=True, out=out[block])
        return out.reshape((*v.shape[:-1], 1))
    support = p > 0
    return (p * torch.where(support, v, torch.zeros_like(v))).sum(-1, keepdim=True)


def _power_sum(p: Tensor, alpha: Alpha) -> Tensor:
    """Σ p^α over the last dimension: (..., 1)."""
    if not isinstance(alpha, Tensor):
        if alpha == 2:
            return p.square().sum(-1, keepdim=True)
        if alpha == 1.5:  # p^{3/2} without the square root of zeros, slow in vector libraries
            tiny = torch.finfo(p.dtype).tiny
            return (p * p * p.clamp(min=tiny).rsqrt()).sum(-1, keepdim=True)
    support, safe = on_support(p)
    return torch.where(support, safe.pow(alpha), p).sum(-1, keepdim=True)  # 0, or NaN
