"""Heads whose probabilities can be exactly zero: α-entmax, sparsemax, α-ReLU."""

from __future__ import annotations

import math
from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn import functional as F
from uncork.nn._torch import torch
from uncork.nn.heads.softmax import LinearHead
from uncork.nn.linear_losses import check_number
from uncork.nn.shape import tau_from_shape

Tensor = torch.Tensor


class EntmaxHead(LinearHead):
    """P(x | h) = α-entmax(W h + b)_x, with its Fenchel-Young loss (Peters et al. 2019).

    Log-probabilities are −inf off the support, and `loss` is :func:`entmax_loss`, not −log P: the
    logarithm of zero trains nothing. α = 1 is softmax and cross entropy.
    """

    name = "entmax"

    def __init__(self, features: int, classes: int, *, alpha: float = 1.5, **settings: Any) -> None:
        super().__init__(features, classes, **settings)
        self.alpha = check_number(alpha, 1.0, strict=False)
        self.reset_parameters()

    def options(self) -> dict[str, Any]:
        return super().options() | {"alpha": self.alpha}

    def forward(self, hidden: Tensor) -> Tensor:
        """Log-probabilities (..., classes): −inf where the probability is zero."""
        return self._log_of_ranked(super().forward(hidden))

    def _log_of_ranked(self, ranked: Tensor) -> Tensor:
        return F.log_entmax(ranked, self.alpha, -1)

    def _log_probabilities(self, scores: Tensor) -> Tensor:
        return scores  # they are

    def _ranked(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden)  # logits: no threshold to find

    def _loss(
        self,
        hidden: Tensor,
        target: Tensor,
        weight: Tensor | None,
        ignore_index: int,
        reduction: str,
        label_smoothing: float,
    ) -> Tensor:
        return F.linear_entmax_loss(
            hidden, self.weight, target, alpha=self.alpha, linear_bias=self.bias, weight=weight,
            ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing,
        )  # fmt: skip


class SparsemaxHead(EntmaxHead):
    """:class:`EntmaxHead` with α = 2: the sparsest (Martins and Astudillo 2016)."""

    name = "sparsemax"

    def __init__(self, features: int, classes: int, **settings: Any) -> None:
        super().__init__(features, classes, alpha=2.0, **settings)

    def options(self) -> dict[str, Any]:
        return {key: value for key, value in super().options().items() if key != "alpha"}


class AlphaReLUHead(LinearHead):
    """α-ReLU: [(α−1) z − τ]₊^{1/(α−1)} with z = W h + b and τ fixed (Tezekbayev et al. 2022).

    These scores do not sum to one. What stands for the log-probabilities, in `log_probabilities`,
    `top_k` and `sample`, is the logarithm of the scores divided by their sum
    (:func:`alpha_relu_log_scores`); a row without any support puts everything on its largest
    logit. `loss` is :func:`alpha_relu_loss`, of the scores as they are.

    Args:
        alpha: > 1.
        tau: the threshold; computed for the head as it is initialised, after a layer norm, unless
            given. :meth:`calibrate` measures it.
        Others as for :class:`OutputHead`.
    """

    name = "alpha-relu"

    tau: Tensor

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        alpha: float = 1.5,
        tau: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(features, classes, **settings)
        self.alpha = check_number(alpha, 1.0, strict=True)
        if tau is None:  # rows are uniform ±1/√d: logits of standard deviation 1/√3
            tau = 0.0
            if classes > 1:
                tau = tau_from_shape(features, classes, self.alpha, logit_std=1 / math.sqrt(3))
        if not math.isfinite(tau):
            raise UncorkError(f"tau must be a number, got {tau!r}")
        device = self.weight.device
        self.register_buffer("tau", torch.full((), tau, dtype=torch.float32, device=device))
        self.reset_parameters()

    def options(self) -> dict[str, Any]:
        return super().options() | {"alpha": self.alpha}

    @torch.no_grad()
    def calibrate(self, hidden: Tensor) -> float:
        """Set τ to the mean threshold of α-entmax on these hidden states; returns it."""
        meter_of = [
            F.entmax(scores, self.alpha, return_support=True).tau
            for scores in self._linear_blocks(hidden)
        ]
        if not meter_of:
            raise UncorkError("no hidden states to calibrate with")
        self.tau.fill_(torch.cat(meter_of).double().mean())
        return float(self.tau)

    def _linear_blocks(self, hidden: Tensor) -> list[Tensor]:
        return [LinearHead.forward(self, rows) for rows in self._rows(hidden).split(256)]

    def forward(self, hidden: Tensor) -> Tensor:
        """log(score / Σ scores), (..., classes): −inf where the score is zero."""
        return self._log_of_ranked(super().forward(hidden))

    def _log_of_ranked(self, ranked: Tensor) -> Tensor:
        return F.alpha_relu_log_scores(ranked, self.alpha, self.tau)

    def _log_probabilities(self, scores: Tensor) -> Tensor:
        return scores

    def _ranked(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden)

    def _loss(
        self,
        hidden: Tensor,
        target: Tensor,
        weight: Tensor | None,
        ignore_index: int,
        reduction: str,
        label_smoothing: float,
    ) -> Tensor:
        return F.linear_alpha_relu_loss(
            hidden, self.weight, target, alpha=self.alpha, tau=self.tau, linear_bias=self.bias,
            weight=weight, ignore_index=ignore_index, reduction=reduction,
            label_smoothing=label_smoothing,
        )  # fmt: skip
