"""MixtapeHead: several context vectors, mixed anew for every class before one softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn._torch import torch
from uncork.nn.heads.base import OutputHead, linear_scores
from uncork.nn.linear.gated import GatedLoss, Tensors
from uncork.nn.linear.in_blocks import loss_in_blocks, wide
from uncork.nn.losses.specification import Reduction

Tensor = torch.Tensor


class MixtapeHead(OutputHead):
    """P(x | g) = softmax over x of Σ_k π_{k,x}(g) w_xᵀ h_k + b_x (Yang et al. 2019, "Mixtape").

    The mixing weights depend on the class too, so that mixing logits raises the rank, and one
    softmax is enough (logit space vector gating). With h_k = tanh(H_k g), the weights come from
    K − 1 gates arranged as a tree (sigmoid tree decomposition), here for K = 4:

        γ_j = σ(v_xᵀ tanh(U_j g) + u_jᵀ g + b_{x,j}),
        π = γ₁γ₂, γ₁(1 − γ₂), (1 − γ₁)γ₃, (1 − γ₁)(1 − γ₃).

    Classes that are not `frequent` share their gates, σ(u_jᵀ g) (gate sharing), and cost one
    product together: among themselves they are a linear head. So the rank of log P is at most
    e + frequent + 1, and one more with a bias, where e is the size of a context vector.

    Written from the paper's description; its own choice of sizes and of the share of frequent
    classes was not at hand, and the defaults for them are ours.

    Args:
        components: K, a power of two; 4 in the paper.
        gate_features: size of v_x.
        frequent: how many classes, counted from class 0, have gates of their own, or their
            ids; a tenth of them unless given.
        embedding: size of a context vector and of the weight's rows; the features' unless given.
        Others as for :class:`OutputHead`.
    """

    name = "mixtape"
    takes_embedding = True

    frequent_classes: Tensor

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        components: int = 4,
        gate_features: int = 64,
        frequent: int | Sequence[int] | Tensor | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(features, classes, **settings)
        if not isinstance(components, int) or components < 2 or components & (components - 1):
            raise UncorkError(f"components must be 2, 4, 8, … for Mixtape, got {components!r}")
        if not isinstance(gate_features, int) or gate_features < 1:
            raise UncorkError(f"gate_features must be a positive number, got {gate_features!r}")
        self.components, self.gate_features = components, gate_features
        self._new_ids = ids = _ids(frequent, classes)
        self.register_buffer("frequent_classes", torch.empty_like(ids, device=self.weight.device))
        gates, made = components - 1, self._factory
        self.projection = torch.nn.Linear(features, components * self.embedding, **made)
        self.gate_projection = torch.nn.Linear(features, gates * gate_features, bias=False, **made)
        self.shared_gate = torch.nn.Linear(features, gates, bias=False, **made)
        self.gate_weight = torch.nn.Parameter(torch.empty(len(ids), gate_features, **made))
        self.gate_bias = torch.nn.Parameter(torch.empty(len(ids), gates, **made))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        bound = self.gate_features**-0.5
        torch.nn.init.uniform_(self.gate_weight, -bound, bound)
        torch.nn.init.zeros_(self.gate_bias)
        self.frequent_classes.copy_(self._new_ids)

    def options(self) -> dict[str, Any]:
        return super().options() | {
            "components": self.components,
            "gate_features": self.gate_features,
            "frequent": len(self.frequent_classes),
        }

    @property
    def copies(self) -> int:
        share = len(self.frequent_classes) / self.classes
        return 3 + int(6 * self.components * share)

    def _row_tensors(self, hidden: Tensor) -> tuple[Tensor, ...]:
        contexts = torch.tanh(self.projection(hidden))
        gates = torch.tanh(self.gate_projection(hidden))
        common = self.shared_gate(hidden)
        return (
            contexts.reshape(-1, self.components, self.embedding),
            gates.reshape(-1, self.components - 1, self.gate_features),
            common.to(wide(common.dtype)),
        )

    def _shared_tensors(self) -> tuple[Tensor | None, ...]:
        ids = self.frequent_classes
        rows = self.weight.index_select(0, ids)  # here, where its gradient is added up once
        return self.weight, self.bias, rows, self.gate_weight, self.gate_bias, ids

    def _loss(self, hidden: Tensor, target: Tensor, how: Reduction) -> Tensor:
        if how.label_smoothing:
            return super()._loss(hidden, target, how)
        contexts, gates, common = self._row_tensors(hidden)
        weight, bias, frequent, gate_weight, gate_bias, ids = self._cast(
            contexts, self._shared_tensors()
        )
        assert weight is not None
        assert frequent is not None
        assert gate_weight is not None
        assert gate_bias is not None
        assert ids is not None
        tensors = Tensors(
            _mixed(contexts, common), contexts, gates, common, weight, bias,
            frequent.to(contexts.dtype), gate_weight.to(gates.dtype), gate_bias,
        )  # fmt: skip

        def in_full(given: Tensors, target: Tensor, how: Reduction) -> Tensor:
            scores = self._combined(given, ids)
            return torch.nn.functional.cross_entropy(
                scores, target, None if how.weight is None else how.weight.to(scores.dtype),
                ignore_index=how.ignore_index, reduction="none",
            )  # fmt: skip

        return loss_in_blocks(GatedLoss(ids, _leaves, in_full), tensors, target, how)

    def _scores(self, rows: Sequence[Tensor], shared: Sequence[Tensor | None]) -> Tensor:
        contexts, gates, common = rows  # (R, K, e), (R, K − 1, g), (R, K − 1)
        weight, bias, frequent, gate_weight, gate_bias, ids = shared
        assert weight is not None
        assert frequent is not None
        assert gate_weight is not None
        assert gate_bias is not None
        assert ids is not None
        given = Tensors(
            _mixed(contexts, common), contexts, gates, common, weight, bias,
            frequent.to(contexts.dtype), gate_weight.to(gates.dtype), gate_bias,
        )  # fmt: skip
        return self._combined(given, ids)

    def _combined(self, given: Tensors, ids: Tensor) -> Tensor:
        """Scores (R, classes) of everything at once."""
        contexts, gates, common, bias = given.contexts, given.gates, given.common, given.bias
        scores = linear_scores(given.mixed, given.weight, None)
        own = linear_scores(gates.flatten(0, 1), given.gate_weight, None)
        own = own.unflatten(0, gates.shape[:2]) + given.gate_bias.T.to(own.dtype)
        shares = _leaves(torch.sigmoid(own + common.unsqueeze(-1)))  # (R, K, frequent)
        logits = linear_scores(contexts.flatten(0, 1), given.frequent, None)
        part = (shares * logits.unflatten(0, contexts.shape[:2])).sum(1)
        scores = scores.index_copy(1, ids, part)
        return scores if bias is None else scores + bias.to(scores.dtype)


def _mixed(contexts: Tensor, common: Tensor) -> Tensor:
    """Contexts (R, e), mixed by the gates of the classes that have none of their own."""
    prior = _leaves(torch.sigmoid(common).unsqueeze(-1))  # (R, K, 1)
    return (prior * contexts).sum(1).to(contexts.dtype)


def _leaves(gates: Tensor) -> Tensor:
    """Mixing weights (R, K, …) of a tree's leaves from its gates (R, K − 1, …), the root first and
    level by level."""
    level = torch.stack([gates[:, 0], 1 - gates[:, 0]], 1)
    used = 1
    while used < gates.shape[1]:
        below = gates[:, used : used + level.shape[1]]
        used += level.shape[1]
        level = torch.stack([level * below, level * (1 - below)], 2).flatten(1, 2)
    return level


def _ids(frequent: int | Sequence[int] | Tensor | None, classes: int) -> Tensor:
    """On the CPU, where a head that is made without memory finds them again."""
    if isinstance(frequent, Tensor | Sequence):
        ids = torch.as_tensor(frequent, device="cpu").to(torch.int64)
        if ids.dim() != 1 or len(ids.unique()) != len(ids) or len(ids) == 0:
            raise UncorkError("frequent must be a list of different class ids")
        if int(ids.min()) < 0 or int(ids.max()) >= classes:
            raise UncorkError(f"frequent has ids outside the {classes} classes")
        return ids.clone()
    count = max(1, classes // 10) if frequent is None else frequent
    if not isinstance(count, int) or not 1 <= count <= classes:
        raise UncorkError(f"frequent must be between 1 and {classes}, got {frequent!r}")
    return torch.arange(count, device="cpu")
