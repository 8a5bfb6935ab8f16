"""The linear losses as torch.nn modules: call them with hidden states, weight and target."""

from __future__ import annotations

from uncork.core.errors import UncorkError
from uncork.nn import linear_losses as F
from uncork.nn._torch import torch
from uncork.nn.linear_losses import check_number
from uncork.nn.modules import shown

Tensor = torch.Tensor


class LinearCrossEntropyLoss(torch.nn.Module):
    """:func:`uncork.nn.functional.linear_cross_entropy`.

    `forward(input, linear_weight, target, linear_bias=None)`: the layer stays where it is, and its
    weight is given at every call.
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        softcap: float | None = None,
        input_grad: bool = True,
        float32_accumulation: bool | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.softcap = softcap
        self.input_grad = input_grad
        self.float32_accumulation = float32_accumulation

    def forward(
        self,
        input: Tensor,
        linear_weight: Tensor,
        target: Tensor,
        linear_bias: Tensor | None = None,
    ) -> Tensor:
        return F.linear_cross_entropy(
            input, linear_weight, target, linear_bias=linear_bias, weight=self.weight,
            ignore_index=self.ignore_index, reduction=self.reduction,
            label_smoothing=self.label_smoothing, softcap=self.softcap,
            input_grad=self.input_grad, float32_accumulation=self.float32_accumulation,
        )  # fmt: skip


class LinearEntmaxLoss(LinearCrossEntropyLoss):
    """:func:`uncork.nn.functional.linear_entmax_loss`."""

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
    ) -> None:
        super().__init__(
            weight, ignore_index, reduction, label_smoothing, softcap, input_grad,
            float32_accumulation,
        )  # fmt: skip
        self.alpha = check_number(alpha, 1.0, strict=False)

    def forward(
        self,
        input: Tensor,
        linear_weight: Tensor,
        target: Tensor,
        linear_bias: Tensor | None = None,
    ) -> Tensor:
        return F.linear_entmax_loss(
            input, linear_weight, target, alpha=self.alpha, linear_bias=linear_bias,
            weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
            label_smoothing=self.label_smoothing, softcap=self.softcap,
            input_grad=self.input_grad, float32_accumulation=self.float32_accumulation,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class LinearSparsemaxLoss(LinearEntmaxLoss):
    """:func:`uncork.nn.functional.linear_sparsemax_loss`."""

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        softcap: float | None = None,
        input_grad: bool = True,
        float32_accumulation: bool | None = None,
    ) -> None:
        super().__init__(
            2.0, weight, ignore_index, reduction, label_smoothing, softcap, input_grad,
            float32_accumulation,
        )  # fmt: skip


class LinearAlphaReLULoss(LinearCrossEntropyLoss):
    """:func:`uncork.nn.functional.linear_alpha_relu_loss`. τ is a buffer or a Parameter."""

    tau: Tensor

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
    ) -> None:
        super().__init__(
            weight, ignore_index, reduction, label_smoothing, softcap, input_grad,
            float32_accumulation,
        )  # fmt: skip
        self.alpha = check_number(alpha, 1.0, strict=True)
        if isinstance(tau, Tensor) and tau.numel() != 1:
            raise UncorkError(f"tau must be one value for all rows, got shape {tuple(tau.shape)}")
        if isinstance(tau, torch.nn.Parameter):
            self.tau = tau
        else:
            self.register_buffer("tau", torch.as_tensor(tau, dtype=torch.float32).clone())

    def forward(
        self,
        input: Tensor,
        linear_weight: Tensor,
        target: Tensor,
        linear_bias: Tensor | None = None,
    ) -> Tensor:
        return F.linear_alpha_relu_loss(
            input, linear_weight, target, alpha=self.alpha, tau=self.tau, linear_bias=linear_bias,
            weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
            label_smoothing=self.label_smoothing, softcap=self.softcap,
            input_grad=self.input_grad, float32_accumulation=self.float32_accumulation,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}, tau={shown(self.tau)}"
