"""MixtureOfSoftmaxes: several softmaxes over one weight, mixed as probabilities, in log space.

A row's loss needs of each component no more than its target's log-probability: `linear.mixture`
computes it and its gradients block by block, and never makes the logits in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from uncork.nn._torch import torch
from uncork.nn.heads.base import OutputHead, linear_scores
from uncork.nn.heads.contexts import Contexts
from uncork.nn.linear.links import Identity, Link
from uncork.nn.losses.specification import Reduction

Tensor = torch.Tensor


class Mixture(OutputHead):
    """P(x | g) = Σ_k π_k P_k(x | h_k): components that share a weight, each with its context."""

    takes_embedding = True

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        components: int = 10,
        activation: str = "tanh",
        **settings: Any,
    ) -> None:
        super().__init__(features, classes, **settings)
        self.contexts = Contexts(features, self.embedding, components, activation, **self._factory)
        self.reset_parameters()

    @property
    def components(self) -> int:
        return self.contexts.components

    @property
    def copies(self) -> int:
        """Each component's log-probabilities and two sums stay for the derivative."""
        return 4 * self.components

    def options(self) -> dict[str, Any]:
        made = {"components": self.components, "activation": self.contexts.activation}
        return super().options() | made

    def _row_tensors(self, hidden: Tensor) -> tuple[Tensor, ...]:
        contexts, log_prior = self.contexts(hidden)
        return contexts, log_prior

    def _link(self, logits: Tensor) -> Tensor:
        """What becomes of a component's logits before its softmax."""
        return logits

    def _scores(self, rows: Sequence[Tensor], shared: Sequence[Tensor | None]) -> Tensor:
        contexts, log_prior = rows
        weight, bias = shared
        assert weight is not None
        mixed: Tensor | None = None
        for k in range(contexts.shape[1]):  # one component's logits at a time
            logits = self._link(linear_scores(contexts[:, k], weight, bias))
            part = torch.log_softmax(logits, -1) + log_prior[:, k, None]
            mixed = part if mixed is None else torch.logaddexp(mixed, part)
        assert mixed is not None
        return mixed

    def _log_probabilities(self, scores: Tensor) -> Tensor:
        return scores  # they are

    def _losses(
        self,
        rows: Sequence[Tensor],
        shared: Sequence[Tensor | None],
        target: Tensor,
        how: Reduction,
    ) -> Tensor:
        if how.label_smoothing:  # every class's probability counts
            return super()._losses(rows, shared, target, how)
        contexts, log_prior = rows
        weight, bias = shared
        assert weight is not None
        logits = self._link(linear_scores(contexts.flatten(0, 1), weight, bias))  # (R · K, C)
        parts = torch.nn.functional.cross_entropy(
            logits, target.repeat_interleave(contexts.shape[1]), ignore_index=how.ignore_index,
            reduction="none",
        )  # fmt: skip
        return mixed_losses(parts, log_prior, target, how)


def mixed_losses(parts: Tensor, log_prior: Tensor, target: Tensor, how: Reduction) -> Tensor:
    """−log Σ_k π_k P_k(target), weighted, from −log P_k(target) (N · K) and log π (N, K): (N)."""
    joint = log_prior - parts.reshape(log_prior.shape)
    counted = target != how.ignore_index
    losses = torch.where(counted, -torch.logsumexp(joint, -1), 0.0)
    if how.weight is None:
        return losses
    index = torch.where(counted, target, torch.zeros_like(target))
    return losses * how.weight.to(losses.dtype)[index]


class MixtureOfSoftmaxes(Mixture):
    """P(x | g) = Σ_k π_k softmax(W h_k + b)_x with h_k = tanh(P_k g + c_k), π = softmax(A g).

    The mixture of Yang et al. 2018: log P is a logarithm of a sum, and no longer of low rank. It
    costs K plain softmaxes in time, and about one in memory. Mixed in log space:
    log P(x) = logsumexp_k(log π_k + log softmax(W h_k + b)_x). With K = 1 it is a softmax.

    Args:
        components: K; 10 or 15 in the paper.
        embedding: size of a context vector and of the weight's rows; the features' unless given.
        activation: "tanh", as there, or "identity".
        Others as for :class:`OutputHead`.
    """

    name = "mos"

    @property
    def _softmax_link(self) -> Link:
        return Identity()
