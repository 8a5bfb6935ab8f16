"""The linear losses as one differentiable function: where the gradients are made, kept and scaled.

With reduction "mean" or "sum" the gradients are made together with the loss, in one pass over the
vocabulary; backward then only multiplies them by the number from upstream, in place, and hands them
over. A second backward through the same graph makes them again. With "none", and in float16 (whose
range is too small for gradients before the upstream factor), they are made in backward.

For torch.compile the work is one opaque operator, `uncork::linear_loss`: there nothing is changed
in place, and nothing is differentiable twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn import kernels
from uncork.nn._rows import Alpha, are_transformed, is_traced, under_autocast, without_autocast
from uncork.nn._torch import torch
from uncork.nn.linear import blocks
from uncork.nn.linear.in_blocks import apart
from uncork.nn.linear.problem import (
    NOTHING,
    LinearOptions,
    LinearResult,
    LinearTensors,
    Shard,
    Wanted,
    as_tensor,
    check,
    check_classes,
    logits,
    of_counted,
    one_value,
    refuse_shard,
    upstream_of,
    with_level_weights,
)
from uncork.nn.losses.specification import (
    LOSSES,
    LinearArguments,
    LinearLossResult,
    Loss,
    Parameters,
    Reduction,
)

Tensor = torch.Tensor

_LARGE = 1 << 22  # numbers of a gradient: see `_scale`


# Rows up to which the kernels count the targets and add up the losses themselves: few launches,
# and not much waiting for programs that read all rows.
COUNTED_ROWS = 1 << 15


def linear_loss(
    loss: Loss,
    parameters: Parameters,
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    how: Reduction,
    linear: LinearArguments,
    shard: Shard | None = None,
) -> LinearLossResult:
    """`loss` of input @ linear_weightᵀ + linear_bias: (), or with reduction "none" target's shape.

    `parameters` are those of the loss's family: numbers, but for a τ, which may be a tensor.
    """
    if how.ignore_index is None:  # as torch's linear_cross_entropy has it
        how = how._replace(ignore_index=-100)
    all_classes = None if shard is None else shard.classes
    check(input, linear_weight, target, how, linear, all_classes)
    dense = target.is_floating_point()
    if not dense:
        target = target.long()
    if linear.token_weight is not None and not dense:
        linear = linear._replace(token_weight=of_counted(linear.token_weight, target, how))
    if linear.z_loss:
        how = with_level_weights(how, target, linear.token_weight, input.dtype)
    tau: Alpha = 0.0
    if loss.family.threshold_given:
        tau, parameters = one_value(parameters[-1], input), parameters[:-1]
    numbers = tuple(value for value in parameters if not isinstance(value, Tensor))  # all of them
    device = input.device.type
    if under_autocast(device) and input.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
        input, linear_weight = input.to(dtype), linear_weight.to(dtype)
    if input.dtype != linear_weight.dtype:
        raise UncorkError(
            f"input is {input.dtype} and linear_weight {linear_weight.dtype}: give them one dtype, "
            "or compute under torch.autocast"
        )
    options = LinearOptions(  # plain numbers: kernels take no others
        loss, numbers, int(how.ignore_index), float(how.label_smoothing),
        None if linear.softcap is None else float(linear.softcap), linear.float32_accumulation,
        float(linear.z_loss), linear.return_lse, linear.return_predictions, shard,
    )  # fmt: skip
    rows, shape = input.reshape(-1, input.shape[-1]), input.shape[:-1]
    token_weight = linear.token_weight
    tensors = LinearTensors(
        rows if linear.input_grad else rows.detach(), linear_weight, linear.linear_bias, tau,
        target.reshape(-1, target.shape[-1]) if dense else target.reshape(-1), how.weight,
        None if token_weight is None or how.reduction == "none" else token_weight.reshape(-1),
    )  # fmt: skip
    value, lse, predicted = _apply(tensors, how.reduction, options)
    if how.reduction == "none":
        value = value.reshape(shape)
        if token_weight is not None:
            value = value * token_weight.to(value.dtype)
    elif how.reduction == "mean" and rows.shape[0] == 0:  # `len` would fix an open size
        value = value + math.nan  # of no rows: gradients are 0, as cross_entropy's are
    accuracy = None
    if predicted is not None:
        accuracy = _accuracy(predicted, tensors.target, options.ignore_index, token_weight)
        predicted = predicted.reshape(shape)
    return LinearLossResult(value, None if lse is None else lse.reshape(shape), predicted, accuracy)


def _accuracy(
    predicted: Tensor, target: Tensor, ignore_index: int, token_weight: Tensor | None
) -> Tensor:
    """Among the rows that are not ignored and whose loss counts something."""
    dense = target.is_floating_point()
    right = predicted == (target.argmax(-1) if dense else target)
    counted = torch.ones_like(right) if dense else target != ignore_index
    if token_weight is not None:
        counted = counted & (token_weight.reshape(-1) != 0)
    return (right & counted).float().sum() / counted.sum()


Output = tuple[Tensor, Tensor | None, Tensor | None]  # loss, lse, predicted


def _apply(tensors: LinearTensors, reduction: str, options: LinearOptions) -> Output:
    """Loss of rows input @ weightᵀ + bias, () or, with reduction "none", (N), and what else was
    asked for, (N) each."""
    if _seen_through(tensors):
        refuse_shard(options.shard)
        return _at_once(tensors, reduction, options)
    wanted = Wanted(*(_asked(leaf) for leaf in tensors[:4]))
    # What may be differentiated by row is known in backward only.
    by_row = reduction == "none" or options.lse
    early = wanted.any and not by_row and tensors.input.dtype != torch.float16
    apply = _TracedLinearLoss.apply if torch.compiler.is_compiling() else _LinearLoss.apply
    made: Output = apply(reduction, early, options, wanted, *tensors)
    return made


def _seen_through(tensors: LinearTensors) -> bool:
    """Whether somebody needs to see the operators that the loss is made of."""
    if torch.compiler.is_compiling():
        return torch.onnx.is_in_onnx_export()
    return is_traced() or are_transformed(*tensors)


def _at_once(tensors: LinearTensors, reduction: str, options: LinearOptions) -> Output:
    """The same by way of all logits and by torch's own means, through which its transforms go."""
    z = logits(*tensors[:3])
    target, tau = tensors.target, tensors.tau
    if not target.is_floating_point():
        check_classes(target.masked_fill(target == options.ignore_index, 0), z.shape[1])
    loss = blocks.loss_of_logits(z, target, tensors.class_weight, tau, options)
    if reduction != "none":
        loss = torch.dot(loss, upstream_of(reduction, tensors, options))
    return (
        loss,
        blocks.conjugate_of_logits(z, target, tau, options) if options.lse else None,
        z.argmax(-1) if options.predictions else None,
    )


def _asked(leaf: Tensor | float | None) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad and torch.is_grad_enabled()


class _LinearLoss(torch.autograd.Function):
    """The reduced loss (), or with "none" losses by row (N), of tensors as in `LinearTensors`; and
    lse and predicted (N) where options ask for them. `early`: gradients are made in forward."""

    @staticmethod
    def forward(
        ctx: Any, reduction: str, early: bool, options: LinearOptions, wanted: Wanted, *given: Any
    ) -> Output:
        tensors = LinearTensors(*given)
        upstream = None
        added_up = reduction != "none" and adds_up(tensors, options)
        if reduction != "none" and not added_up:
            upstream = upstream_of(reduction, tensors, options)
        made = compute(
            tensors, upstream if early else None, options, wanted if early else NOTHING,
            reduction if added_up else None,
        )  # fmt: skip
        tau = tensors.tau
        ctx.tau = None if isinstance(tau, Tensor) else tau  # only tensors can be saved
        saved_tau = tau if ctx.tau is None else None
        ctx.save_for_backward(*tensors[:3], saved_tau, *tensors[4:])
        ctx.reduction, ctx.options, ctx.wanted = reduction, options, wanted
        ctx.ready = made[1:5] if early else None
        ctx.set_materialize_grads(False)
        if made.predicted is not None:
            ctx.mark_non_differentiable(made.predicted)
        loss = made.total
        if loss is None:
            assert made.losses is not None
            loss = made.losses if upstream is None else torch.dot(made.losses, upstream)
        return loss, made.lse, made.predicted

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor | None, grad_lse: Tensor | None, _: Tensor | None
    ) -> tuple[Any, ...]:
        gradients: Any
        if grad is None and grad_lse is None:
            gradients = [None] * 4
        elif torch.is_grad_enabled() or are_transformed(grad, grad_lse):  # many at once, batched
            gradients = _differentiable(ctx, grad, grad_lse)
        elif ctx.ready is not None and grad is not None:
            gradients, ctx.ready = ctx.ready, None  # handed over: who holds them may keep them
            _scale([made for made in gradients if made is not None], grad)
        else:
            tensors = _saved(ctx)
            rows = _by_row(ctx, tensors, grad)
            gradients = compute(tensors, rows, ctx.options, ctx.wanted, extra=grad_lse)[1:5]
        return (None, None, None, None, *gradients, None, None, None)


def _saved(ctx: Any) -> LinearTensors:
    tensors = LinearTensors(*ctx.saved_tensors)
    return tensors if ctx.tau is None else tensors._replace(tau=ctx.tau)


def _by_row(ctx: Any, tensors: LinearTensors, grad: Tensor | None) -> Tensor:
    """The gradient from upstream for every row's loss."""
    if grad is None:
        wide = torch.float64 if tensors.input.dtype == torch.float64 else torch.float32
        return torch.zeros(len(tensors.input), dtype=wide, device=tensors.input.device)
    if ctx.reduction == "none":
        return grad
    return grad * upstream_of(ctx.reduction, tensors, ctx.options)


def _differentiable(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> list[Tensor | None]:
    """Gradients that can be differentiated again, or of many losses at once: by way of all logits
    and by torch's own means."""
    again = torch.is_grad_enabled()
    refuse_shard(ctx.options.shard)
    tensors = _saved(ctx)
    target, class_weight = tensors.target, tensors.class_weight
    with torch.enable_grad():
        input, weight, bias, tau = leaves = apart(tensors[:4], ctx.wanted)
        z = logits(input, weight, bias)
        values = [blocks.loss_of_logits(z, target, class_weight, tau, ctx.options)]
        if grad_lse is not None:
            values.append(blocks.conjugate_of_logits(z, target, tau, ctx.options))
    asked = [leaf for leaf, wanted in zip(leaves, ctx.wanted, strict=True) if wanted]
    rows = [_by_row(ctx, tensors, grad).to(z.dtype)]
    if grad_lse is not None:
        rows.append(grad_lse.to(z.dtype))
    made = iter(torch.autograd.grad(values, asked, rows, create_graph=again))
    return [next(made) if wanted else None for wanted in ctx.wanted]


def _scale(gradients: list[Tensor], factor: Tensor) -> None:
    """Every gradient times factor, in place. The kernel leaves the memory alone where the factor is
    1, which it is for a loss that is the last thing computed; below some size launching it takes
    longer than torch's multiplications."""
    large: list[Tensor] = []
    small: list[Tensor] = []
    for made in gradients:
        (large if made.numel() >= _LARGE and kernels.usable(made) else small).append(made)
    if large:
        from uncork.nn.kernels.ends import scale

        for values, others in zip_longest(large[::2], large[1::2]):
            scale(values, others, factor)
    if small:
        torch._foreach_mul_(small, factor)


# --- which way the work is done ------------------------------------------------------------


def compute(
    tensors: LinearTensors,
    upstream: Tensor | None,
    options: LinearOptions,
    wanted: Wanted,
    reduction: str | None = None,
    extra: Tensor | None = None,
) -> LinearResult:
    """Losses of the rows and the gradients wanted, by whichever way the tensors allow.

    upstream (N): dL/d(loss of a row). reduction "mean" or "sum", in its place: only where `adds_up`
    says so. extra (N): dL/d(Ω* of a row), beside upstream.
    """
    with torch.no_grad(), without_autocast(tensors.input.device.type):
        if options.shard is not None:
            from uncork.nn.linear import vocab_parallel

            return vocab_parallel.compute(tensors, upstream, options, wanted, extra)
        if _by_kernels(tensors, options):
            from uncork.nn.linear import cuda

            return cuda.compute(tensors, upstream, options, wanted, reduction, extra)
        return blocks.compute(tensors, upstream, options, wanted, extra)


def adds_up(tensors: LinearTensors, options: LinearOptions) -> bool:
    """Whether the kernels make the reduced loss too."""
    small = len(tensors.input) <= COUNTED_ROWS and options.shard is None
    plain = not (options.z_loss or options.lse) and tensors.token_weight is None
    return small and plain and _by_kernels(tensors, options)


def _by_kernels(tensors: LinearTensors, options: LinearOptions) -> bool:
    dense = tensors.target.is_floating_point()
    alpha = options.exponent
    if alpha is None or dense:
        return False
    known = alpha == 1 or options.family.threshold_given or kernels.take_entmax(alpha)
    return known and kernels.usable(tensors.input, tensors.weight)


# --- for torch.compile ---------------------------------------------------------------------

# Losses; gradients, lse and predicted, empty where not wanted
Made = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]

# Tensors as in `LinearTensors`, upstream, options as in `LinearOptions` (no shard), `Wanted`.
_SCHEMA = (
    "(Tensor input, Tensor weight, Tensor? bias, Tensor tau, Tensor target, Tensor? class_weight, "
    "Tensor? upstream, Tensor? extra, str loss, float[] numbers, int ignore_index, "
    "float label_smoothing, float? softcap, bool? float32_accumulation, float z_loss, bool lse, "
    "bool predictions, bool[] wanted) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _run(*given: Any) -> Made:
    *tensors, upstream, extra = given[:8]
    name, numbers, *others = given[8:17]
    options, wanted = LinearOptions(LOSSES[name], tuple(numbers), *others), Wanted(*given[17])
    result = compute(LinearTensors(*tensors), upstream, options, wanted, extra=extra)
    losses, input = result.losses, given[0]
    assert losses is not None
    made = [
        input.new_empty(0) if one is None else one.contiguous()
        for one in (*result[1:5], result.lse, result.predicted)
    ]
    return losses, made[0], made[1], made[2], made[3], made[4], made[5]


_operator = torch.library.custom_op("uncork::linear_loss", _run, mutates_args=(), schema=_SCHEMA)


@_operator.register_fake
def _shapes(*given: Any) -> Made:
    input, wanted = given[0], given[17]
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
    made = [
        leaf.new_empty(leaf.shape) if asked and leaf is not None else input.new_empty(0)
        for leaf, asked in zip(given[:4], wanted, strict=True)
    ]
    for asked, kind in zip(given[15:17], (wide, torch.int64), strict=True):
        made.append(input.new_empty(input.shape[0], dtype=kind) if asked else input.new_empty(0))
    losses = input.new_empty(input.shape[0], dtype=wide)
    return losses, made[0], made[1], made[2], made[3], made[4], made[5]


def _call(
    tensors: LinearTensors,
    upstream: Tensor | None,
    extra: Tensor | None,
    options: LinearOptions,
    wanted: Wanted,
) -> Made:
    made: Made = _operator(
        *tensors[:6], upstream, extra, options.loss.name, list(options.numbers),
        options.ignore_index, options.label_smoothing, options.softcap,
        options.float32_accumulation, options.z_loss, options.lse, options.predictions,
        list(wanted),
    )  # fmt: skip
    return made


class _TracedLinearLoss(torch.autograd.Function):
    """As `_LinearLoss`."""

    @staticmethod
    def forward(
        ctx: Any, reduction: str, early: bool, options: LinearOptions, wanted: Wanted, *given: Any
    ) -> Output:
        tensors = LinearTensors(*given)
        if not isinstance(tensors.tau, Tensor):
            wide = torch.float64 if tensors.input.dtype == torch.float64 else torch.float32
            tensors = tensors._replace(tau=as_tensor(tensors.tau, wide, tensors.input.device))
        upstream = None
        if reduction != "none":
            upstream = upstream_of(reduction, tensors, options)
        losses, *gradients, lse, predicted = _call(
            tensors, upstream if early else None, None, options, wanted if early else NOTHING
        )
        ctx.early, ctx.options, ctx.wanted = early, options, wanted
        if early:
            ctx.save_for_backward(*gradients)
        else:
            ctx.save_for_backward(*tensors, upstream)
        if options.predictions:
            ctx.mark_non_differentiable(predicted)
        return (
            losses if upstream is None else torch.dot(losses, upstream),
            lse if options.lse else None,
            predicted if options.predictions else None,
        )

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor, grad_lse: Tensor | None, _: Tensor | None
    ) -> tuple[Any, ...]:
        made: Sequence[Tensor]
        if ctx.early:
            made = [gradient * grad for gradient in ctx.saved_tensors]
        else:
            *tensors, upstream = ctx.saved_tensors
            rows = grad if upstream is None else grad * upstream
            extra = grad_lse if ctx.options.lse else None
            made = _call(LinearTensors(*tensors), rows, extra, ctx.options, ctx.wanted)[1:5]
        gradients = (one if asked else None for one, asked in zip(made, ctx.wanted, strict=True))
        return (None, None, None, None, *gradients, None, None, None)
