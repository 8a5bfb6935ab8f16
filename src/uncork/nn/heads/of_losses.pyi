# Written by `python -m uncork.nn.losses.stubs`.

import torch
from torch import Tensor

from uncork.nn.heads.loss_head import LossHead, ThresholdHead

__all__ = [
    "AlphaReLUHead",
    "EntmaxHead",
    "NormmaxHead",
    "SparsemaxHead",
]

class SparsemaxHead(LossHead):
    """An output layer whose loss is :func:`uncork.nn.functional.sparsemax_loss`.

    ℓ(z; y) = (p − e_y)·z + ½ (1 − ‖p‖²) with p = sparsemax(z): gradient exactly p − e_y.

    α-entmax's loss at α = 2, the sparsest in common use (Martins and Astudillo 2016).

    P(x | h) = p(W h + b)_x with p the map of a loss, trained with that loss.

    Log-probabilities are −inf off the support, and `loss` is the Fenchel-Young loss, not −log P:
    the logarithm of zero trains nothing.
    """

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        bias: bool = True,
        weight: Tensor | None = None,
        embedding: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None: ...

class EntmaxHead(LossHead):
    """An output layer whose loss is :func:`uncork.nn.functional.entmax_loss`.

    ℓ(z; y) = (p − e_y)·z + H_α(p) with p = entmax(z): gradient exactly p − e_y.

    The loss to train a model whose output is α-entmax. It is convex, at least 0, and 0 exactly
    where p puts everything on the target, at finite logits (Peters et al. 2019).

    P(x | h) = p(W h + b)_x with p the map of a loss, trained with that loss.

    Log-probabilities are −inf off the support, and `loss` is the Fenchel-Young loss, not −log P:
    the logarithm of zero trains nothing.
    """

    alpha: float
    def __init__(
        self,
        features: int,
        classes: int,
        *,
        alpha: float = 1.5,
        bias: bool = True,
        weight: Tensor | None = None,
        embedding: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None: ...

class AlphaReLUHead(ThresholdHead):
    """An output layer whose loss is :func:`uncork.nn.functional.alpha_relu_loss`.

    ℓ(z; y) = (1/α) Σp^α − z_y + (τ + 1/α)/(α−1) with p = alpha_relu(z): gradient p − e_y.

    α-entmax's loss without the search for τ. Set `tau` once with
    :func:`uncork.nn.tau_from_data` or :func:`uncork.nn.tau_from_shape`. A tensor receives the
    gradient (1 − Σp)/(α−1): at its root the outputs are normalised on average.

    A head whose threshold τ is given, and whose scores do not sum to one.

    What stands for the log-probabilities, in `log_probabilities`, `top_k` and `sample`, is the
    logarithm of the scores divided by their sum; a row without any support puts everything on its
    largest logit. `loss` is that of the scores as they are. τ is computed for the head as it is
    initialised, after a layer norm, unless given; :meth:`calibrate` measures it.
    """

    alpha: float
    def __init__(
        self,
        features: int,
        classes: int,
        *,
        alpha: float = 1.5,
        tau: float | None = None,
        bias: bool = True,
        weight: Tensor | None = None,
        embedding: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None: ...

class NormmaxHead(LossHead):
    """An output layer whose loss is :func:`uncork.nn.functional.normmax_loss`.

    ℓ(z; y) = (p − e_y)·z + 1 − ‖p‖_α with p = normmax(z): gradient exactly p − e_y.

    For outputs that spread their mass evenly over a set of classes.

    P(x | h) = p(W h + b)_x with p the map of a loss, trained with that loss.

    Log-probabilities are −inf off the support, and `loss` is the Fenchel-Young loss, not −log P:
    the logarithm of zero trains nothing.
    """

    alpha: float
    def __init__(
        self,
        features: int,
        classes: int,
        *,
        alpha: float = 2.0,
        bias: bool = True,
        weight: Tensor | None = None,
        embedding: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None: ...
