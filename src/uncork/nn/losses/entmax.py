"""The losses of softmax, sparsemax and α-entmax (Peters et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from uncork.nn import kernels
from uncork.nn._autograd import apply
from uncork.nn._torch import torch
from uncork.nn.losses.specification import (
    Family,
    Fused,
    Loss,
    Names,
    Option,
    Parameters,
    register,
)
from uncork.nn.transforms.deformed import inner_product, tsallis_terms
from uncork.nn.transforms.entmax import Entmax, entmax_alpha_direction, entmax_vjp, log_entmax

Tensor = torch.Tensor


@dataclass(frozen=True)
class EntmaxFamily(Family):
    """Ω = −H_α on the simplex (Peters et al. 2019): softmax at α = 1, sparsemax at α = 2."""

    def predict(self, z: Tensor, parameters: Parameters) -> Tensor:
        (alpha,) = parameters
        p: Tensor = apply(Entmax, z, alpha)
        return p

    def conjugate(self, v: Tensor, p: Tensor, parameters: Parameters) -> Tensor:
        """Ω*(v) = s/α + (1 − 1/α)⟨p, v⟩ for a row whose largest entry is 0.

        From Σp^α = Σp (1 + (α−1)(v − s)); no entropy has to be computed, and s itself is
        −log_α of the largest probability.
        """
        (alpha,) = parameters
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

    def vjp(self, p: Tensor, grad: Tensor, parameters: Parameters) -> Tensor:
        (alpha,) = parameters
        return entmax_vjp(p, grad, alpha)

    def direction(self, index: int, p: Tensor, parameters: Parameters) -> Tensor:
        (alpha,) = parameters
        return entmax_alpha_direction(p, alpha)

    def conjugate_slope(self, index: int, p: Tensor, parameters: Parameters) -> Tensor:
        (alpha,) = parameters
        first, second = tsallis_terms(p, alpha)
        return (first / alpha - second) / alpha

    def fused(self, z: Tensor, parameters: Parameters) -> Fused | None:
        (alpha,) = parameters
        if isinstance(alpha, Tensor) or not (kernels.take_entmax(alpha) and kernels.launches(z)):
            return None
        from uncork.nn.kernels.entmax import entmax_losses

        return partial(entmax_losses, alpha=alpha)

    def exponent(self, parameters: Parameters) -> float | None:
        (alpha,) = parameters
        return None if isinstance(alpha, Tensor) else alpha

    def log_probabilities(self, z: Tensor, parameters: Parameters) -> Tensor:
        (alpha,) = parameters
        return log_entmax(z, alpha)


register(
    Loss(
        "softmax",
        EntmaxFamily(),
        (1.0,),
        """Cross entropy: the Fenchel-Young loss of softmax.

        For logits torch's own is the same, and faster.
        """,
        # torch has the module, and `heads.softmax` a head that hands its logits on.
        other_names=Names(
            "softmax_loss", None, "linear_cross_entropy", "LinearCrossEntropyLoss", None
        ),
    )
)
register(
    Loss(
        "sparsemax",
        EntmaxFamily(),
        (2.0,),
        """ℓ(z; y) = (p − e_y)·z + ½ (1 − ‖p‖²) with p = sparsemax(z): gradient exactly p − e_y.

        α-entmax's loss at α = 2, the sparsest in common use (Martins and Astudillo 2016).
        """,
    )
)
register(
    Loss(
        "entmax",
        EntmaxFamily(),
        (Option("alpha", 1.5, "1 is softmax, 2 sparsemax.", above=0.0, linear_at_least=1.0),),
        """ℓ(z; y) = (p − e_y)·z + H_α(p) with p = entmax(z): gradient exactly p − e_y.

        The loss to train a model whose output is α-entmax. It is convex, at least 0, and 0 exactly
        where p puts everything on the target, at finite logits (Peters et al. 2019).
        """,
    )
)
