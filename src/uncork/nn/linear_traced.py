"""The linear losses for a tracer: torch.compile sees one opaque operator.

As `linear_core`, but nothing is changed in place, and nothing is differentiable twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from uncork.nn._torch import torch
from uncork.nn.linear_rows import (
    NOTHING,
    LinearOptions,
    LinearTensors,
    Wanted,
    as_tensor,
    upstream_of,
)
from uncork.nn.linear_ways import compute

Tensor = torch.Tensor
Made = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # losses; gradients, empty where not wanted

# Tensors as in `LinearTensors`, upstream, options as in `LinearOptions` (no shard), `Wanted`.
_SCHEMA = (
    "(Tensor input, Tensor weight, Tensor? bias, Tensor tau, Tensor target, Tensor? class_weight, "
    "Tensor? upstream, float alpha, bool fixed, int ignore_index, float label_smoothing, "
    "float? softcap, bool? float32_accumulation, bool[] wanted) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _run(*given: Any) -> Made:
    *tensors, upstream = given[:7]
    options, wanted = LinearOptions(*given[7:13]), Wanted(*given[13])
    losses, *gradients = compute(LinearTensors(*tensors), upstream, options, wanted)[:5]
    assert losses is not None
    input = given[0]
    made = [input.new_empty(0) if one is None else one.contiguous() for one in gradients]
    return losses, made[0], made[1], made[2], made[3]


_operator = torch.library.custom_op("uncork::linear_loss", _run, mutates_args=(), schema=_SCHEMA)


@_operator.register_fake
def _shapes(*given: Any) -> Made:
    input, wanted = given[0], given[13]
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
    made = [
        leaf.new_empty(leaf.shape) if asked and leaf is not None else input.new_empty(0)
        for leaf, asked in zip(given[:4], wanted, strict=True)
    ]
    return input.new_empty(input.shape[0], dtype=wide), made[0], made[1], made[2], made[3]


def _call(
    tensors: LinearTensors, upstream: Tensor | None, options: LinearOptions, wanted: Wanted
) -> Made:
    made: Made = _operator(
        *tensors, upstream, options.alpha, options.fixed, options.ignore_index,
        options.label_smoothing, options.softcap, options.float32_accumulation, list(wanted),
    )  # fmt: skip
    return made


class TracedLinearLoss(torch.autograd.Function):
    """As `linear_core._LinearLoss`."""

    @staticmethod
    def forward(
        ctx: Any, reduction: str, early: bool, options: LinearOptions, wanted: Wanted, *given: Any
    ) -> Tensor:
        tensors = LinearTensors(*given)
        if not isinstance(tensors.tau, Tensor):
            wide = torch.float64 if tensors.input.dtype == torch.float64 else torch.float32
            tensors = tensors._replace(tau=as_tensor(tensors.tau, wide, tensors.input.device))
        upstream = None
        if reduction != "none":
            upstream = upstream_of(reduction, tensors, options)
        losses, *gradients = _call(
            tensors, upstream if early else None, options, wanted if early else NOTHING
        )
        ctx.early, ctx.options, ctx.wanted = early, options, wanted
        if early:
            ctx.save_for_backward(*gradients)
        else:
            ctx.save_for_backward(*tensors, upstream)
        return losses if upstream is None else torch.dot(losses, upstream)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        made: Sequence[Tensor]
        if ctx.early:
            made = [gradient * grad for gradient in ctx.saved_tensors]
        else:
            *tensors, upstream = ctx.saved_tensors
            rows = grad if upstream is None else grad * upstream
            made = _call(LinearTensors(*tensors), rows, ctx.options, ctx.wanted)[1:]
        gradients = (one if asked else None for one, asked in zip(made, ctx.wanted, strict=True))
        return (None, None, None, None, *gradients, None, None)
