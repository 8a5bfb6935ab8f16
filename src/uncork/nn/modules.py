"""The transforms and losses as torch.nn modules, with the arguments of their functions."""

from __future__ import annotations

from uncork.core.errors import UncorkError
from uncork.nn import functional as F
from uncork.nn._rows import Alpha, check_alpha
from uncork.nn._torch import torch

Tensor = torch.Tensor


def shown(value: Alpha) -> str:
    """A parameter in a module's repr: its value, or of several the shape."""
    if not isinstance(value, Tensor):
        return str(value)
    if value.numel() != 1 or value.is_meta:  # a meta tensor has no value
        return f"tensor{tuple(value.shape)}"
    return f"{float(value.detach()):.4f}"


class Sparsemax(torch.nn.Module):
    """:func:`uncork.nn.functional.sparsemax` over `dim`."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.sparsemax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class _WithAlpha(torch.nn.Module):
    """Keeps α: a number, or a tensor or Parameter that moves, saves and trains with the module."""

    alpha: Alpha

    def __init__(self, alpha: Alpha, lowest: float, *, strict: bool) -> None:
        super().__init__()
        alpha = check_alpha(alpha, lowest, strict=strict)
        if isinstance(alpha, Tensor) and not isinstance(alpha, torch.nn.Parameter):
            self.register_buffer("alpha", alpha)
        else:
            self.alpha = alpha

    def extra_repr(self) -> str:
        return f"alpha={shown(self.alpha)}"


class Entmax(_WithAlpha):
    """:func:`uncork.nn.functional.entmax` over `dim`.

    Give `alpha=torch.nn.Parameter(...)` to learn it, one value or one per head.
    """

    def __init__(self, alpha: Alpha = 1.5, dim: int = -1) -> None:
        super().__init__(alpha, 1.0, strict=False)
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.entmax(input, self.alpha, self.dim)


class LogEntmax(Entmax):
    """:func:`uncork.nn.functional.log_entmax` over `dim`."""

    def forward(self, input: Tensor) -> Tensor:
        return F.log_entmax(input, self.alpha, self.dim)


class Normmax(_WithAlpha):
    """:func:`uncork.nn.functional.normmax` over `dim`."""

    def __init__(self, alpha: Alpha = 2.0, dim: int = -1) -> None:
        super().__init__(alpha, 1.0, strict=True)
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.normmax(input, self.alpha, self.dim)


class Budget(torch.nn.Module):
    """:func:`uncork.nn.functional.budget` over `dim`."""

    def __init__(self, budget: float = 2.0, dim: int = -1) -> None:
        super().__init__()
        if isinstance(budget, Tensor):  # it would not learn
            raise UncorkError("budget must be a number here: functional.budget takes a tensor")
        self.budget, self.dim = float(check_alpha(budget, 0.0, strict=False, name="budget")), dim

    def forward(self, input: Tensor) -> Tensor:
        return F.budget(input, self.budget, self.dim)

    def extra_repr(self) -> str:
        return f"budget={self.budget}, dim={self.dim}"


class _WithTau(_WithAlpha):
    """Keeps τ as a buffer, saved with the model; :func:`uncork.nn.calibrate_tau` sets it."""

    tau: Tensor

    def __init__(self, alpha: Alpha, tau: float | Tensor) -> None:
        super().__init__(alpha, 1.0, strict=True)
        if isinstance(tau, torch.nn.Parameter):
            self.tau = tau
        else:
            self.register_buffer("tau", torch.as_tensor(tau, dtype=torch.float32).clone())

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, tau={shown(self.tau)}"


class AlphaReLU(_WithTau):
    """:func:`uncork.nn.functional.alpha_relu`. τ is a buffer, or a Parameter to learn."""

    class_dim = -1  #: where the classes are, for setting τ

    def __init__(self, alpha: Alpha = 1.5, tau: float | Tensor = 0.0) -> None:
        super().__init__(alpha, tau)

    def forward(self, input: Tensor) -> Tensor:
        return F.alpha_relu(input, self.alpha, self.tau)


class _Loss(torch.nn.Module):
    """The arguments every loss shares, as in torch.nn.CrossEntropyLoss."""

    weight: Tensor | None

    def _options(
        self, weight: Tensor | None, ignore_index: int, reduction: str, label_smoothing: float
    ) -> None:
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing


class SoftmaxLoss(_Loss):
    """:func:`uncork.nn.functional.softmax_loss`: torch.nn.CrossEntropyLoss by another road."""

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self._options(weight, ignore_index, reduction, label_smoothing)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.softmax_loss(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class SparsemaxLoss(SoftmaxLoss):
    """:func:`uncork.nn.functional.sparsemax_loss`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.sparsemax_loss(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class EntmaxLoss(_WithAlpha, _Loss):
    """:func:`uncork.nn.functional.entmax_loss`."""

    def __init__(
        self,
        alpha: Alpha = 1.5,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(alpha, 1.0, strict=False)
        self._options(weight, ignore_index, reduction, label_smoothing)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.entmax_loss(
            input,
            target,
            alpha=self.alpha,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class NormmaxLoss(_WithAlpha, _Loss):
    """:func:`uncork.nn.functional.normmax_loss`."""

    def __init__(
        self,
        alpha: float = 2.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        if isinstance(alpha, Tensor):  # it would not learn
            raise UncorkError("alpha must be a number here, got a tensor")
        super().__init__(alpha, 1.0, strict=True)
        self._options(weight, ignore_index, reduction, label_smoothing)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.normmax_loss(
            input,
            target,
            alpha=float(self.alpha),
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class AlphaReLULoss(_WithTau, _Loss):
    """:func:`uncork.nn.functional.alpha_relu_loss`. τ is a buffer, or a Parameter to learn."""

    class_dim = 1  #: where the classes are, for setting τ

    def __init__(
        self,
        alpha: Alpha = 1.5,
        tau: float | Tensor = 0.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(alpha, tau)
        self._options(weight, ignore_index, reduction, label_smoothing)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.alpha_relu_loss(
            input,
            target,
            alpha=self.alpha,
            tau=self.tau,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )
