"""SigSoftmaxHead and its mixture: softmax of z + log σ(z), which is not linear in z."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from uncork.nn._torch import torch
from uncork.nn.heads.base import OutputHead, linear_scores
from uncork.nn.heads.mixture import Mixture
from uncork.nn.linear.links import Link, Sigmoid

Tensor = torch.Tensor


def sigsoftmax_scores(logits: Tensor) -> Tensor:
    """log(exp(z) σ(z)) = z + log σ(z), increasing in z (Kanai et al. 2018, Eq. 10)."""
    # Not logsigmoid, which ONNX takes apart into log and sigmoid: −inf from −18 on. Beyond the
    # threshold softplus is its argument, exactly so in float64.
    return logits - torch.nn.functional.softplus(-logits, threshold=50.0)


class SigSoftmaxHead(OutputHead):
    """P(x | h) = exp(z_x) σ(z_x) / Σ_c exp(z_c) σ(z_c) with z = W h + b (Kanai et al. 2018).

    No parameters beyond softmax's. The log-probabilities are 2z − log(1 + exp z) up to a constant a
    row, and no longer of bounded rank; but the order of the classes is that of z, so a class that a
    linear head can never put first stays so. Adding a constant to a row of z does change it.
    """

    name = "sigsoftmax"

    def __init__(self, features: int, classes: int, **settings: Any) -> None:
        super().__init__(features, classes, **settings)
        self.reset_parameters()

    @property
    def copies(self) -> int:
        return 4

    @property
    def _softmax_link(self) -> Link:
        return Sigmoid()

    def _row_tensors(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return (hidden,)

    def _scores(self, rows: Sequence[Tensor], shared: Sequence[Tensor | None]) -> Tensor:
        weight, bias = shared
        assert weight is not None
        return sigsoftmax_scores(linear_scores(rows[0], weight, bias))


class MixtureOfSigSoftmaxes(Mixture):
    """P(x | g) = Σ_k π_k sigsoftmax(W h_k + b)_x: "MoSS" of Kanai et al. 2018.

    Everything else as for :class:`uncork.nn.MixtureOfSoftmaxes`.
    """

    name = "mos-sigsoftmax"

    def _link(self, logits: Tensor) -> Tensor:
        return sigsoftmax_scores(logits)

    @property
    def _softmax_link(self) -> Link:
        return Sigmoid()
