"""The transforms and losses as torch.nn modules, with the arguments of their functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uncork.core.errors import UncorkError
from uncork.nn import functional as F
from uncork.nn._rows import Alpha, check_parameter
from uncork.nn._torch import torch
from uncork.nn.losses import modules as loss_modules
from uncork.nn.losses.forms import in_words
from uncork.nn.losses.modules import *  # noqa: F403

Tensor = torch.Tensor

__all__: list[str] = [
    "AlphaReLU",
    "Budget",
    "Entmax",
    "LogEntmax",
    "Normmax",
    "Sparsemax",
]
__all__ += loss_modules.__all__


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

    def __init__(self, alpha: Alpha) -> None:
        super().__init__()
        if isinstance(alpha, Tensor) and not isinstance(alpha, torch.nn.Parameter):
            self.register_buffer("alpha", alpha)
        else:
            self.alpha = alpha

    def extra_repr(self) -> str:
        return f"alpha={in_words(self.alpha)}"


class Entmax(_WithAlpha):
    """:func:`uncork.nn.functional.entmax` over `dim`.

    Give `alpha=torch.nn.Parameter(...)` to learn it, one value or one per head.
    """

    def __init__(self, alpha: Alpha = 1.5, dim: int = -1) -> None:
        super().__init__(check_parameter(alpha, above=0.0))
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
        super().__init__(check_parameter(alpha, above=1.0))
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.normmax(input, self.alpha, self.dim)


class Budget(torch.nn.Module):
    """:func:`uncork.nn.functional.budget` over `dim`."""

    def __init__(self, budget: float = 2.0, dim: int = -1) -> None:
        super().__init__()
        if isinstance(budget, Tensor):  # it would not learn
            raise UncorkError("budget must be a number here: functional.budget takes a tensor")
        self.budget, self.dim = float(check_parameter(budget, "budget", at_least=0.0)), dim

    def forward(self, input: Tensor) -> Tensor:
        return F.budget(input, self.budget, self.dim)

    def extra_repr(self) -> str:
        return f"budget={self.budget}, dim={self.dim}"


class AlphaReLU(_WithAlpha):
    """:func:`uncork.nn.functional.alpha_relu`. τ is a buffer, or a Parameter to learn; it is saved
    with the model, and :func:`uncork.nn.calibrate_tau` sets it."""

    class_dim = -1  #: where the classes are, for setting τ
    tau: Tensor

    def __init__(self, alpha: Alpha = 1.5, tau: float | Tensor = 0.0) -> None:
        super().__init__(check_parameter(alpha, above=1.0))
        if isinstance(tau, torch.nn.Parameter):
            self.tau = tau
        else:
            self.register_buffer("tau", torch.as_tensor(tau, dtype=torch.float32).clone())

    def forward(self, input: Tensor) -> Tensor:
        return F.alpha_relu(input, self.alpha, self.tau)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, tau={in_words(self.tau)}"


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """The module of a loss that was registered after this one was imported."""
        if name in loss_modules.__all__:
            return getattr(loss_modules, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*__all__, *loss_modules.__all__})
