# Written by `python -m uncork.nn.losses.stubs`.

from typing import Any

from torch import Tensor

from uncork.nn.losses.forms import LinearLayerLossModule, LinearLossModule, LossModule

__all__ = [
    "AlphaReLULoss",
    "EntmaxLoss",
    "LinearAlphaReLULoss",
    "LinearCrossEntropyLoss",
    "LinearEntmaxLoss",
    "LinearNormmaxLoss",
    "LinearSparsemaxLoss",
    "NormmaxLoss",
    "SparsemaxLoss",
]

class LinearCrossEntropyLoss(LinearLayerLossModule):
    """:func:`uncork.nn.functional.linear_cross_entropy` as a module, as torch's own is called.

    With `in_features` and `num_classes` it has a layer of its own, `linear`, and is called
    with `(input, target)`. Without them the layer stays where it is, and the call is
    `(input, linear_weight, target, linear_bias=None, token_weight=None)`.
    """

    ignore_index: int
    reduction: str
    label_smoothing: float
    def __init__(
        self,
        in_features: int | None = None,
        num_classes: int | None = None,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = -100,
        label_smoothing: float = 0.0,
        options: Any = None,
        softcap: float | None = None,
        input_grad: bool = True,
        float32_accumulation: bool | None = None,
        z_loss: float = 0.0,
    ) -> None: ...

class SparsemaxLoss(LossModule):
    """ℓ(z; y) = (p − e_y)·z + ½ (1 − ‖p‖²) with p = sparsemax(z): gradient exactly p − e_y.

    α-entmax's loss at α = 2, the sparsest in common use (Martins and Astudillo 2016).

    :func:`uncork.nn.functional.sparsemax_loss` as a module.
    """

    ignore_index: int
    reduction: str
    label_smoothing: float
    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None: ...

class LinearSparsemaxLoss(LinearLossModule):
    """:func:`uncork.nn.functional.linear_sparsemax_loss` as a module.

    Called with `(input, linear_weight, target, linear_bias=None, token_weight=None)`: the
    layer stays where it is.
    """

    ignore_index: int
    reduction: str
    label_smoothing: float
    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        softcap: float | None = None,
        input_grad: bool = True,
        float32_accumulation: bool | None = None,
        z_loss: float = 0.0,
    ) -> None: ...

class EntmaxLoss(LossModule):
    """ℓ(z; y) = (p − e_y)·z + H_α(p) with p = entmax(z): gradient exactly p − e_y.

    The loss to train a model whose output is α-entmax. It is convex, at least 0, and 0 exactly
    where p puts everything on the target, at finite logits (Peters et al. 2019).

    :func:`uncork.nn.functional.entmax_loss` as a module.
    """

    alpha: float | Tensor
    ignore_index: int
    reduction: str
    label_smoothing: float
    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None: ...

class LinearEntmaxLoss(LinearLossModule):
    """:func:`uncork.nn.functional.linear_entmax_loss` as a module.

    Called with `(input, linear_weight, target, linear_bias=None, token_weight=None)`: the
    layer stays where it is.
    """

    alpha: float
    ignore_index: int
    reduction: str
    label_smoothing: float
    def __init__(
        self,
        alpha: float = 1.5,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        softcap: float | None = None,
        input_grad: bool = True,
        float32_accumulation: bool | None = None,
        z_loss: float = 0.0,
    ) -> None: ...

class AlphaReLULoss(LossModule):
    """ℓ(z; y) = (1/α) Σp^α − z_y + (τ + 1/α)/(α−1) with p = alpha_relu(z): gradient p − e_y.

    α-entmax's loss without the search for τ. Set `tau` once with
    :func:`uncork.nn.tau_from_data` or :func:`uncork.nn.tau_from_shape`. A tensor receives the
    gradient (1 − Σp)/(α−1): at its root the outputs are normalised on average.

    :func:`uncork.nn.functional.alpha_relu_loss` as a module.
    """

    alpha: float | Tensor
    tau: Tensor
    ignore_index: int
    reduction: str
    label_smoothing: float
    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        tau: float | Tensor = 0.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None: ...

class LinearAlphaReLULoss(LinearLossModule):
    """:func:`uncork.nn.functional.linear_alpha_relu_loss` as a module.

    Called with `(input, linear_weight, target, linear_bias=None, token_weight=None)`: the
    layer stays where it is.
    """

    alpha: float
    tau: Tensor
    ignore_index: int
    reduction: str
    label_smoothing: float
    def __init__(
        self,
        alpha: float = 1.5,
        tau: float | Tensor = 0.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        softcap: float | None = None,
        input_grad: bool = True,
        float32_accumulation: bool | None = None,
        z_loss: float = 0.0,
    ) -> None: ...

class NormmaxLoss(LossModule):
    """ℓ(z; y) = (p − e_y)·z + 1 − ‖p‖_α with p = normmax(z): gradient exactly p − e_y.

    For outputs that spread their mass evenly over a set of classes.

    :func:`uncork.nn.functional.normmax_loss` as a module.
    """

    alpha: float
    ignore_index: int
    reduction: str
    label_smoothing: float
    def __init__(
        self,
        alpha: float = 2.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None: ...

class LinearNormmaxLoss(LinearLossModule):
    """:func:`uncork.nn.functional.linear_normmax_loss` as a module.

    Called with `(input, linear_weight, target, linear_bias=None, token_weight=None)`: the
    layer stays where it is.
    """

    alpha: float
    ignore_index: int
    reduction: str
    label_smoothing: float
    def __init__(
        self,
        alpha: float = 2.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        softcap: float | None = None,
        input_grad: bool = True,
        float32_accumulation: bool | None = None,
        z_loss: float = 0.0,
    ) -> None: ...
