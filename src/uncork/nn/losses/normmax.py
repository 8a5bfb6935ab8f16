"""The loss of α-normmax (Blondel, Martins and Niculae 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from uncork.nn._torch import torch
from uncork.nn.losses.specification import Family, Loss, Option, Parameters, register
from uncork.nn.transforms.deformed import inner_product
from uncork.nn.transforms.normmax import norm, normmax_rows, normmax_vjp

Tensor = torch.Tensor


@dataclass(frozen=True)
class NormmaxFamily(Family):
    """Ω = ‖p‖_α − 1 on the simplex (Blondel, Martins and Niculae 2020). α is a float here."""

    def predict(self, z: Tensor, parameters: Parameters) -> Tensor:
        (alpha,) = parameters
        return normmax_rows(z, alpha)

    def conjugate(self, v: Tensor, p: Tensor, parameters: Parameters) -> Tensor:
        (alpha,) = parameters
        return (inner_product(p, v) - norm(p, alpha) + 1).clamp(min=0)

    def vjp(self, p: Tensor, grad: Tensor, parameters: Parameters) -> Tensor:
        (alpha,) = parameters
        return normmax_vjp(p, grad, alpha)


register(
    Loss(
        "normmax",
        NormmaxFamily(),
        (Option("alpha", 2.0, "the norm's exponent.", above=1.0, learnable=False),),
        """ℓ(z; y) = (p − e_y)·z + 1 − ‖p‖_α with p = normmax(z): gradient exactly p − e_y.

        For outputs that spread their mass evenly over a set of classes.
        """,
    )
)
