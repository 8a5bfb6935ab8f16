"""A linear loss at several positions, each with a layer of its own, as torch's K-dimensional one.

A weight (C, d1, …, dK, d) is d1·…·dK weights (C, d) over the same hidden states (N, d). Each is a
linear loss by itself; what is left is to put their results together.
"""

from __future__ import annotations

import math

from uncork.core.errors import UncorkError
from uncork.nn._rows import check_tensor
from uncork.nn._torch import torch
from uncork.nn.linear.autograd import linear_loss
from uncork.nn.linear.problem import row_weights, with_level_weights
from uncork.nn.losses.specification import (
    LinearArguments,
    LinearLossResult,
    Loss,
    Parameters,
    Reduction,
)

Tensor = torch.Tensor


def loss_at_positions(
    loss: Loss,
    parameters: Parameters,
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    how: Reduction,
    linear: LinearArguments,
) -> LinearLossResult:
    """() or, with reduction "none", (N, d1, …, dK), of input (N, d), linear_weight
    (C, d1, …, dK, d), linear_bias (C, d1, …, dK) and target (N, d1, …, dK), or probabilities
    (N, C, d1, …, dK)."""
    classes, *places, features = linear_weight.shape
    if linear.token_weight is not None or linear.return_lse or linear.return_predictions:
        raise UncorkError(
            "token_weight, return_lse and return_predictions are for a linear_weight of shape "
            f"(classes, features), got {tuple(linear_weight.shape)}"
        )
    if input.dim() != 2:
        raise UncorkError(
            f"a linear_weight of shape {tuple(linear_weight.shape)} needs input (N, {features}), "
            f"got {tuple(input.shape)}"
        )
    if 0 in linear_weight.shape:
        raise UncorkError(
            f"linear_weight must have classes, positions and features, got shape "
            f"{tuple(linear_weight.shape)}"
        )
    if how.ignore_index is None:  # as torch's linear_cross_entropy has it
        how = how._replace(ignore_index=-100)
    how.check(classes, input.device)  # each position is summed, whatever the reduction
    check_tensor("target", target)
    dense, rows = target.is_floating_point(), input.shape[0]  # `len` would fix an open size
    expected = (rows, classes, *places) if dense else (rows, *places)
    if tuple(target.shape) != expected:
        raise UncorkError(f"target must have shape {expected}, got {tuple(target.shape)}")
    bias = linear.linear_bias
    if bias is not None:
        check_tensor("linear_bias", bias)
    if bias is not None and tuple(bias.shape) != (classes, *places):
        raise UncorkError(
            f"linear_bias must have shape {(classes, *places)}, got {tuple(bias.shape)}"
        )
    if not dense:
        target = target.long()
    weights = linear_weight.reshape(classes, -1, features).unbind(1)
    biases = [None] * len(weights) if bias is None else bias.reshape(classes, -1).unbind(1)
    targets = target.flatten(2 if dense else 1).unbind(-1)
    if linear.z_loss:
        how = with_level_weights(how, target, None, input.dtype)
    summed = how if how.reduction == "none" else how._replace(reduction="sum")
    made = [
        linear_loss(
            loss, parameters, input, one, at, summed, linear._replace(linear_bias=beside)
        ).loss
        for one, beside, at in zip(weights, biases, targets, strict=True)
    ]
    if how.reduction == "none":
        value = torch.stack(made, -1).reshape(rows, *places)
    else:
        value = torch.stack(made).sum()
    if how.reduction == "mean":
        shares = [row_weights(at, how.weight, how.ignore_index) for at in targets]
        total = torch.stack(shares).sum(dtype=value.dtype)
        # NaN where no row counts, and gradients of 0
        value = torch.where(total == 0, math.nan, value / torch.where(total == 0, 1.0, total))
    return LinearLossResult(value, None, None, None)
