"""SoftmaxHead: one linear map and a softmax, the head that the others are measured against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from uncork.nn._torch import torch
from uncork.nn.heads.base import OutputHead, linear_scores
from uncork.nn.linear.autograd import linear_loss
from uncork.nn.losses import LOSSES, Loss, Parameters
from uncork.nn.losses.specification import LinearArguments, Reduction

Tensor = torch.Tensor


class LinearHead(OutputHead):
    """A head whose scores are linear in the hidden states, or in one vector made of them."""

    #: what `loss` computes, from the logits
    specification: ClassVar[Loss] = LOSSES["softmax"]

    def _row_tensors(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return (hidden,)

    def _scores(self, rows: Sequence[Tensor], shared: Sequence[Tensor | None]) -> Tensor:
        weight, bias = shared
        assert weight is not None
        return linear_scores(rows[0], weight, bias)

    def _family_parameters(self) -> Parameters:
        """The parameters of the loss's family, as they are now."""
        given = {option.name: getattr(self, option.name) for option in self.specification.options}
        return self.specification.parameters_from(given, linear=True)

    def _loss(self, hidden: Tensor, target: Tensor, how: Reduction) -> Tensor:
        (rows,) = self._row_tensors(hidden)
        linear_weight, linear_bias = self._shared_tensors()
        assert linear_weight is not None
        return linear_loss(
            self.specification, self._family_parameters(), rows, linear_weight, target, how,
            LinearArguments(linear_bias),
        ).loss  # fmt: skip


class SoftmaxHead(LinearHead):
    """P(x | h) = softmax(W h + b)_x.

    The log-probabilities of any number of contexts have rank d + 1 at most (d + 2 with a bias):
    the softmax bottleneck. Choose it where the classes are few beside the features, or where the
    other heads have not been shown to do better. Logits are handed on as `torch.nn.Linear`'s.
    """

    name = "softmax"

    def __init__(self, features: int, classes: int, **settings: Any) -> None:
        super().__init__(features, classes, **settings)
        self.reset_parameters()

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits (..., classes), in the type of the hidden states."""
        rows = self._rows(hidden)
        made = torch.nn.functional.linear(rows, self.weight, self.bias)
        return self._as_given(made, hidden)
