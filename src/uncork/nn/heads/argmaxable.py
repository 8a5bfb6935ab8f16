"""ArgmaxableHead: plain softmax on a layer in which no class can be lost."""

from __future__ import annotations

from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn._torch import torch
from uncork.nn.argmaxable import ArgmaxableLinear
from uncork.nn.heads.softmax import LinearHead

Tensor = torch.Tensor


class ArgmaxableHead(LinearHead):
    """P(x | h) = softmax(W h + b)_x with W and b such that every class can come first.

    :class:`uncork.nn.ArgmaxableLinear` as a head: rows of one length (``how="norm"``), or a bias
    that follows from the rows (``how="bias"``). The rank is softmax's; what is gained is that no
    class is unargmaxable. `weight` and `bias` are computed from the parameter `linear.rows`.
    """

    name = "argmaxable"

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        how: str = "norm",
        scale: float | None = None,
        bias: bool | None = None,
        **settings: Any,
    ) -> None:
        if bias is not None and bias != (how == "bias"):
            raise UncorkError(f"bias={bias} with how={how!r}: the bias follows from how")
        if how not in ("norm", "bias"):
            raise UncorkError(f"how={how!r}: expected norm or bias")
        super().__init__(features, classes, **settings)
        self._given_scale = scale
        self.linear = ArgmaxableLinear(features, classes, how, scale=scale, **self._factory)
        if settings.get("weight") is not None:
            self.tie(settings["weight"])

    def _make(self, bias: bool, weight: Tensor | None) -> None:
        """The layer has them."""

    @torch.no_grad()
    def start_from(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Begin with another layer's rows; with ``how="norm"`` as long as they are on average."""
        self.linear.rows.copy_(weight)
        if self.linear.how == "norm" and self._given_scale is None:
            length = weight.float().norm(dim=1).mean().clamp_min(1e-12)
            self.linear.log_scale.copy_(length.log())

    def _share(self, weight: torch.nn.Parameter) -> None:
        self.linear.rows = weight

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.linear.weight

    @property
    def bias(self) -> Tensor | None:  # type: ignore[override]
        return self.linear.bias

    @property
    def _dtype(self) -> torch.dtype:
        return self.linear.rows.dtype  # without computing the weight

    def reset_parameters(self) -> None:
        self.linear.reset_parameters()

    def options(self) -> dict[str, Any]:
        return {"how": self.linear.how, "scale": self.linear.initial_scale}

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits (..., classes), in the type of the hidden states."""
        made = torch.nn.functional.linear(self._rows(hidden), self.weight, self.bias)
        return self._as_given(made, hidden)
