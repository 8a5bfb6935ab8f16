"""The loss functions: one Fenchel-Young core, each adding only its family and parameters.

Public through `uncork.nn.functional`; the modules are in `modules.py`.
"""

from __future__ import annotations

from uncork.core.errors import UncorkError
from uncork.nn._rows import Alpha, check_alpha
from uncork.nn._torch import torch
from uncork.nn.families import AlphaReLUFamily, EntmaxFamily, NormmaxFamily
from uncork.nn.fenchel_young import reduce_loss

Tensor = torch.Tensor


def softmax_loss(
    input: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The Fenchel-Young loss of softmax, which is cross entropy. See :func:`entmax_loss`."""
    return entmax_loss(
        input,
        target,
        alpha=1.0,
        weight=weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def sparsemax_loss(
    input: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The Fenchel-Young loss of sparsemax (α = 2). See :func:`entmax_loss`."""
    return entmax_loss(
        input,
        target,
        alpha=2.0,
        weight=weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def entmax_loss(
    input: Tensor,
    target: Tensor,
    *,
    alpha: Alpha = 1.5,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """ℓ(z; y) = (p − e_y)·z + H_α(p) with p = entmax(z): gradient exactly p − e_y.

    The loss to train a model whose output is :func:`entmax`. It is convex, at least 0, and 0
    exactly where p puts everything on the target, at finite logits.

    Args:
        input: logits (C), (N, C) or (N, C, d1, ...).
        target: class indices of shape (), (N) or (N, d1, ...); or probabilities shaped like
            `input`, whose loss is Σ_c target_c ℓ(z; c), as in cross_entropy (its least value is
            then the target's entropy H_α, not 0; the gradient is p − target).
        alpha: a float ≥ 1, or a tensor, scalar or one per row (the shape of index targets), which
            receives a gradient.
        weight, ignore_index, reduction, label_smoothing: exactly as in
            :func:`torch.nn.functional.cross_entropy`, with ℓ(z; c) in place of −log softmax(z)_c.
            Smoothing gives every class ε/C of the target.
    """
    return reduce_loss(
        input,
        target,
        EntmaxFamily(),
        check_alpha(alpha, 1.0, strict=False),
        0.0,
        weight=weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def alpha_relu_loss(
    input: Tensor,
    target: Tensor,
    *,
    alpha: Alpha = 1.5,
    tau: Alpha = 0.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """ℓ = (1/α) Σp^α − z_y + (τ + 1/α)/(α−1) with p = alpha_relu(z): gradient exactly p − e_y.

    As :func:`entmax_loss`, without its search for τ: set `tau` once with
    :func:`uncork.nn.tau_from_data` or :func:`uncork.nn.tau_from_shape`. A tensor `tau` receives
    a gradient, (1 − Σp)/(α−1): at its root the outputs are normalised on average.
    """
    return reduce_loss(
        input,
        target,
        AlphaReLUFamily(),
        check_alpha(alpha, 1.0, strict=True),
        tau if isinstance(tau, Tensor) else float(tau),
        weight=weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def normmax_loss(
    input: Tensor,
    target: Tensor,
    *,
    alpha: float = 2.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The Fenchel-Young loss of :func:`normmax`, Ω = ‖p‖_α − 1. See :func:`entmax_loss`.

    α is a number here.
    """
    if isinstance(alpha, Tensor) and alpha.requires_grad:
        raise UncorkError("alpha receives no gradient here: give a number")
    return reduce_loss(
        input,
        target,
        NormmaxFamily(),
        float(check_alpha(alpha, 1.0, strict=True)),
        0.0,
        weight=weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
