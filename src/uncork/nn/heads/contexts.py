"""MixtureOfContexts: several context vectors, mixed before the softmax. A control, not a cure."""

from __future__ import annotations

from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn._torch import torch
from uncork.nn.heads.softmax import LinearHead
from uncork.nn.linear.in_blocks import wide

Tensor = torch.Tensor
_ACTIVATIONS = {"tanh": torch.tanh, "identity": lambda values: values}


class Contexts(torch.nn.Module):
    """A hidden state's mixing weights and context vectors, as in Yang et al. 2018.

    log π_k = log softmax(A g)_k and h_k = tanh(P_k g + c_k), for k = 1 … K.
    """

    def __init__(
        self, features: int, embedding: int, components: int, activation: str, **factory: Any
    ) -> None:
        super().__init__()
        if not isinstance(components, int) or components < 1:
            raise UncorkError(f"components must be a positive whole number, got {components!r}")
        if activation not in _ACTIVATIONS:
            raise UncorkError(
                f"activation must be one of {', '.join(_ACTIVATIONS)}, got {activation!r}"
            )
        self.components, self.embedding, self.activation = components, embedding, activation
        self.prior = torch.nn.Linear(features, components, bias=False, **factory)
        self.projection = torch.nn.Linear(features, components * embedding, **factory)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """hidden (N, features) → contexts (N, K, embedding) and log π (N, K) in float32."""
        contexts = _ACTIVATIONS[self.activation](self.projection(hidden))
        logits = self.prior(hidden)
        log_prior = torch.log_softmax(logits.to(wide(logits.dtype)), -1)
        return contexts.reshape(-1, self.components, self.embedding), log_prior


class MixtureOfContexts(LinearHead):
    """P(x | g) = softmax(W Σ_k π_k h_k + b)_x with h_k = tanh(P_k g + c_k), π = softmax(A g).

    Yang et al. 2018's control: as many parameters as a mixture of softmaxes, but mixed before the
    softmax, so that the rank of its log-probabilities is bounded as plain softmax's is.

    Args:
        components: K.
        embedding: size of a context vector and of the weight's rows; the features' unless given.
        activation: "tanh" or "identity".
        Others as for :class:`OutputHead`.
    """

    name = "moc"
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

    def options(self) -> dict[str, Any]:
        made = {"components": self.components, "activation": self.contexts.activation}
        return super().options() | made

    def _row_tensors(self, hidden: Tensor) -> tuple[Tensor, ...]:
        contexts, log_prior = self.contexts(hidden)
        mixed = (log_prior.exp().unsqueeze(-1) * contexts).sum(1)  # (N, embedding)
        return (mixed.to(contexts.dtype),)
