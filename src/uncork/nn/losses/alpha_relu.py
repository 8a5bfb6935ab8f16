"""The loss of α-ReLU: α-entmax's with the threshold given (Tezekbayev et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from uncork.nn import kernels
from uncork.nn._autograd import apply
from uncork.nn._torch import torch
from uncork.nn.losses.specification import Family, Fused, Loss, Option, Parameters, register
from uncork.nn.transforms.alpha_relu import AlphaReLU, alpha_relu_log_scores
from uncork.nn.transforms.deformed import on_support, power_sum, slopes

Tensor = torch.Tensor


@dataclass(frozen=True)
class AlphaReLUFamily(Family):
    """Ω = Σp^α/(α(α−1)) + τ Σp/(α−1) − const on p ≥ 0: α-ReLU (Tezekbayev et al. 2022).

    The constant makes Ω(e_y) = 0, so the loss is 0 exactly where p = e_y.
    """

    shift_invariant: ClassVar[bool] = False
    threshold_given: ClassVar[bool] = True

    def predict(self, z: Tensor, parameters: Parameters) -> Tensor:
        alpha, tau = parameters
        p: Tensor = apply(AlphaReLU, z, alpha, tau)
        return p

    def conjugate(self, v: Tensor, p: Tensor, parameters: Parameters) -> Tensor:
        """Ω*(z) = (1/α) Σp^α + (τ + 1/α)/(α−1), from z = (p^{α−1} + τ)/(α−1) on the support."""
        alpha, tau = parameters
        power = power_sum(p, alpha)
        return power / alpha + (tau + 1 / alpha) / (alpha - 1)

    def vjp(self, p: Tensor, grad: Tensor, parameters: Parameters) -> Tensor:
        return slopes(p, parameters[0]) * grad

    def direction(self, index: int, p: Tensor, parameters: Parameters) -> Tensor:
        """∂p/∂α = (z p^{2−α} − p log p)/(α−1) at fixed z and τ, z from p; ∂p/∂τ."""
        alpha, tau = parameters
        if index == 1:
            return -slopes(p, alpha) / (alpha - 1)
        support, safe = on_support(p)
        z = (safe.pow(alpha - 1) + tau) / (alpha - 1)
        along = (z * safe.pow(2 - alpha) - safe * safe.log()) / (alpha - 1)
        return torch.where(support, along, torch.zeros_like(p))

    def conjugate_slope(self, index: int, p: Tensor, parameters: Parameters) -> Tensor:
        """−∂Ω/∂α or −∂Ω/∂τ at fixed p, constant included."""
        alpha, tau = parameters
        if index == 1:
            return (1 - p.sum(-1, keepdim=True)) / (alpha - 1)
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

    def fused(self, z: Tensor, parameters: Parameters) -> Fused | None:
        alpha, tau = parameters
        if isinstance(alpha, Tensor) or isinstance(tau, Tensor) or not kernels.launches(z):
            return None
        from uncork.nn.kernels.alpha_relu import alpha_relu_losses

        return partial(alpha_relu_losses, alpha=alpha, tau=tau)

    def exponent(self, parameters: Parameters) -> float | None:
        alpha = parameters[0]
        return None if isinstance(alpha, Tensor) else alpha

    def log_probabilities(self, z: Tensor, parameters: Parameters) -> Tensor:
        alpha, tau = parameters
        return alpha_relu_log_scores(z, alpha, tau)


register(
    Loss(
        "alpha_relu",
        AlphaReLUFamily(),
        (
            Option("alpha", 1.5, "p = [(α−1) z − τ]₊^{1/(α−1)}.", above=1.0),
            Option("tau", 0.0, "the threshold."),
        ),
        """ℓ(z; y) = (1/α) Σp^α − z_y + (τ + 1/α)/(α−1) with p = alpha_relu(z): gradient p − e_y.

        α-entmax's loss without the search for τ. Set `tau` once with
        :func:`uncork.nn.tau_from_data` or :func:`uncork.nn.tau_from_shape`. A tensor receives the
        gradient (1 − Σp)/(α−1): at its root the outputs are normalised on average.
        """,
        title="AlphaReLU",
    )
)
