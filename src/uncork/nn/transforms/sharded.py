"""Transforms of DTensors: rows where they are, classes the vocabulary-parallel way.

Sharded along other dimensions than `dim`, every process takes its own rows. Sharded along `dim`,
α-entmax of a number α exchanges a few sums a row and its result stays sharded; α-ReLU needs
nothing of the others. What has no such rule is gathered along `dim` first, as torch's softmax is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn._rows import Alpha, output_dtype, rows_back, rows_last
from uncork.nn._torch import torch
from uncork.nn.transforms.together import Together

Tensor = torch.Tensor


def is_sharded(value: Any) -> bool:
    """Whether it is a DTensor."""
    if torch.compiler.is_compiling():  # which does not look into sys.modules
        return hasattr(value, "device_mesh") and hasattr(value, "placements")
    if type(value) in (Tensor, torch.nn.Parameter):
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


@torch.compiler.disable  # a graph break, where torch.compile finds a DTensor
def of_shards(
    transform: Callable[..., Any],
    input: Any,
    parameters: tuple[Alpha, ...],
    dim: int,
    dtype: torch.dtype | None,
    *,
    elementwise: bool = False,
    entmax: bool = False,
) -> Any:
    """`transform(local, *parameters)` of a DTensor, as a DTensor.

    `elementwise`: no entry needs another; `entmax`: it is α-entmax of the only parameter.
    """
    from torch.distributed.tensor import DTensor, Replicate, Shard

    numbers = tuple(_number(parameter) for parameter in parameters)
    axis = dim % max(input.dim(), 1)
    mesh, placements = input.device_mesh, list(input.placements)
    holders = [at for at, place in enumerate(placements) if _along(place, axis)]
    together = (
        entmax
        and len(holders) == 1
        and not isinstance(numbers[0], Tensor)
        and _nobody_is_empty(input.shape[axis], mesh.size(holders[0]))
    )
    for at, place in enumerate(placements):
        plain = type(place) in (Replicate, Shard)
        if not plain or (at in holders and not elementwise and not together):
            placements[at] = Replicate()
    local = input.redistribute(mesh, placements).to_local()
    if together:
        group = mesh.get_group(holders[0])
        made = _entmax_together(local, numbers[0], dim, dtype, group, input.shape[axis])
    else:
        made = transform(local, *numbers)
    return DTensor.from_local(
        made, mesh, placements, run_check=False, shape=input.shape, stride=_strides(input.shape)
    )


def refuse_support(name: str) -> None:
    raise UncorkError(
        f"{name} of a DTensor: return_support is not there for sharded logits; ask for it of "
        "input.full_tensor()"
    )


def refuse_linear(name: str, tensor: Tensor) -> None:
    """Of the losses that have a layer in them."""
    if is_sharded(tensor):
        raise UncorkError(
            f"{name} is a DTensor: give {name}.to_local() where rows of the input are sharded, and "
            "where classes are the local rows of the weight to vocab_parallel_loss, or as `group` "
            "says; fully_shard gathers the weight of a module that it calls"
        )


def _along(place: Any, axis: int) -> bool:
    return bool(place.is_shard()) and place.dim == axis


def _number(parameter: Alpha) -> Alpha:
    """One value for all rows: others would have to be sharded as the rows are."""
    if not isinstance(parameter, Tensor):
        return parameter
    if parameter.numel() != 1:
        raise UncorkError(
            f"a parameter of shape {tuple(parameter.shape)} beside a DTensor: expected a number, "
            "or a tensor with one value for all rows"
        )
    if parameter.requires_grad:
        raise UncorkError(
            "a parameter that receives a gradient beside a DTensor: expected a number, or a tensor "
            "without a gradient (each process would find its own rows' share of it only)"
        )
    whole: Any = parameter
    return float(whole.full_tensor() if is_sharded(parameter) else whole)


def _nobody_is_empty(classes: int, processes: int) -> bool:
    return -(-classes // processes) * (processes - 1) < classes


def _strides(shape: Any) -> tuple[int, ...]:
    made, step = [], 1
    for size in reversed(shape):
        made.append(step)
        step *= max(size, 1)
    return tuple(reversed(made))


def _entmax_together(
    local: Tensor, alpha: Alpha, dim: int, dtype: torch.dtype | None, group: Any, classes: int
) -> Tensor:
    dtype = output_dtype(local, dtype)
    z = rows_last(local, dim, dtype)
    p: Tensor = _EntmaxTogether.apply(z, alpha, group, classes)
    return rows_back(p, local, dim, dtype).contiguous()


class _EntmaxTogether(torch.autograd.Function):
    """This process's part of p, of its part of the logits z (..., n of it)."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, alpha: float, group: Any, classes: int) -> Tensor:
        ctx.together, ctx.alpha = Together(group, 0, classes), alpha
        p = ctx.together.probabilities(z, alpha)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # `once_differentiable` would say so only where grad asks
            raise UncorkError(
                "entmax of a DTensor whose classes are sharded has first derivatives only: leave "
                "create_graph out, or give input.full_tensor()"
            )
        (p,) = ctx.saved_tensors
        return ctx.together.along_simplex(p, grad, ctx.alpha), None, None, None
