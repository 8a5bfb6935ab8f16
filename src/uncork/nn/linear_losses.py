"""A linear layer and a loss in one: the logits of all rows and classes never exist together.

    loss = linear_entmax_loss(hidden, lm_head.weight, labels, alpha=1.5)

is `entmax_loss(F.linear(hidden, lm_head.weight), labels)`, in a fraction of its memory. Public
through `uncork.nn.functional`; the modules are in `linear_modules.py`.
"""

from __future__ import annotations

from uncork.core.errors import UncorkError
from uncork.nn._rows import Alpha, check_alpha, check_floating, under_autocast
from uncork.nn._torch import torch
from uncork.nn.linear_core import linear_loss
from uncork.nn.linear_rows import LinearOptions, LinearTensors, Shard

Tensor = torch.Tensor


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
) -> Tensor:
    """`cross_entropy(linear(input, linear_weight, linear_bias), target)`.

    Arguments as for :func:`linear_entmax_loss`.
    """
    return linear_entmax_loss(
        input,
        linear_weight,
        target,
        alpha=1.0,
        linear_bias=linear_bias,
        weight=weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
        softcap=softcap,
        input_grad=input_grad,
        float32_accumulation=float32_accumulation,
    )


def linear_sparsemax_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
) -> Tensor:
    """`sparsemax_loss(linear(input, linear_weight, linear_bias), target)`.

    Arguments as for :func:`linear_entmax_loss`.
    """
    return linear_entmax_loss(
        input,
        linear_weight,
        target,
        alpha=2.0,
        linear_bias=linear_bias,
        weight=weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
        softcap=softcap,
        input_grad=input_grad,
        float32_accumulation=float32_accumulation,
    )


def linear_entmax_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    alpha: float = 1.5,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
) -> Tensor:
    """`entmax_loss(linear(input, linear_weight, linear_bias), target)` for many classes.

    On a GPU only what may have positive probability is kept of a row, so that training with
    sparse outputs costs one large product and not three. The loss is float32 or better.

    Args:
        input: hidden states (..., d).
        linear_weight: (C, d), the layer's weight.
        target: class indices, the shape of `input` without d.
        alpha: a float ≥ 1.
        linear_bias: (C).
        weight, ignore_index, reduction, label_smoothing: as for :func:`entmax_loss`.
        softcap: logits become softcap · tanh(logits / softcap), as in Gemma 2.
        input_grad: False leaves the gradient of the hidden states out (a frozen body).
        float32_accumulation: for 16-bit tensors, how sums over several products are kept. None
            keeps the hidden states' gradient in float32, and the weight's, where it takes more than
            one product (cross entropy, entmax of flat logits, small problems), if that costs little
            memory. True keeps everything in float32, at the price of a further product; False
            nothing.
    """
    return checked_loss(
        input, linear_weight, target, check_number(alpha, 1.0, strict=False), None,
        linear_bias, weight, ignore_index, reduction, label_smoothing, softcap, input_grad,
        float32_accumulation,
    )  # fmt: skip


def linear_alpha_relu_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    alpha: float = 1.5,
    tau: Alpha = 0.0,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
) -> Tensor:
    """`alpha_relu_loss(linear(input, linear_weight, linear_bias), target)` for many classes.

    Needs nothing but τ of a row, so one pass over the vocabulary gives the loss and both
    gradients.

    Args:
        alpha: a float > 1.
        tau: a float, or a tensor of one value, which receives a gradient.
        The others are as for :func:`linear_entmax_loss`.
    """
    return checked_loss(
        input, linear_weight, target, check_number(alpha, 1.0, strict=True), tau,
        linear_bias, weight, ignore_index, reduction, label_smoothing, softcap, input_grad,
        float32_accumulation,
    )  # fmt: skip


def check_number(alpha: float, lowest: float, *, strict: bool) -> float:
    if isinstance(alpha, Tensor):
        raise UncorkError("alpha must be a number here: a tensor is taken by the losses of logits")
    value = check_alpha(alpha, lowest, strict=strict)
    assert isinstance(value, float)
    return value


def checked_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    alpha: float,
    tau: Alpha | None,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    softcap: float | None,
    input_grad: bool,
    float32_accumulation: bool | None,
    shard: Shard | None = None,
) -> Tensor:
    """Checks, shapes and autocast around the one function that does the work."""
    all_classes = None if shard is None else shard.classes
    _check(
        input, linear_weight, target, linear_bias, weight, reduction, label_smoothing, softcap,
        all_classes,
    )  # fmt: skip
    if tau is not None:
        tau = _one_value(tau, input)
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
        alpha, tau is not None, int(ignore_index), float(label_smoothing),
        None if softcap is None else float(softcap), float32_accumulation, shard,
    )  # fmt: skip
    rows = input.reshape(-1, input.shape[-1])
    tensors = LinearTensors(
        rows if input_grad else rows.detach(), linear_weight, linear_bias,
        0.0 if tau is None else tau, target.reshape(-1).long(), weight,
    )  # fmt: skip
    loss = linear_loss(tensors, reduction, options)
    return loss.reshape(target.shape) if reduction == "none" else loss


def _one_value(tau: Alpha, input: Tensor) -> Alpha:
    """τ as a float, or a tensor of one value beside the input."""
    if not isinstance(tau, Tensor):
        return float(tau)
    if tau.numel() != 1:
        raise UncorkError(f"tau must be one value for all rows, got shape {tuple(tau.shape)}")
    return tau.to(input.device).reshape(())


def _check(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    reduction: str,
    label_smoothing: float,
    softcap: float | None,
    all_classes: int | None,
) -> None:
    """Shapes, places and values, each named where it is wrong. `all_classes`: of all processes
    together, where there are several."""
    check_floating(input)
    check_floating(linear_weight)
    if linear_weight.dim() != 2 or 0 in linear_weight.shape:
        raise UncorkError(
            f"linear_weight must be (classes, features), got shape {tuple(linear_weight.shape)}"
        )
    classes, features = linear_weight.shape
    if input.dim() == 0 or input.shape[-1] != features:
        raise UncorkError(
            f"input of shape {tuple(input.shape)} does not end in the {features} features of "
            f"linear_weight {tuple(linear_weight.shape)}"
        )
    if not isinstance(target, Tensor):
        raise UncorkError(f"target must be a tensor of class indices, got {type(target).__name__}")
    if target.is_floating_point() or target.is_complex():
        raise UncorkError(
            "target must be class indices: probabilities for every class would be as large as the "
            "logits this function avoids"
        )
    if target.shape != input.shape[:-1]:
        raise UncorkError(
            f"target must have shape {tuple(input.shape[:-1])} for input {tuple(input.shape)}, "
            f"got {tuple(target.shape)}"
        )
    weighted = classes if all_classes is None else all_classes
    for name, tensor, size in (("linear_bias", linear_bias, classes), ("weight", weight, weighted)):
        if tensor is not None and tuple(tensor.shape) != (size,):
            raise UncorkError(
                f"{name} must have one value per class, shape ({size},), got {tuple(tensor.shape)}"
            )
    if weight is not None and weight.requires_grad:
        raise UncorkError("weight receives no gradient here: give weight.detach()")
    beside = {"linear_weight": linear_weight, "target": target} | {
        name: tensor
        for name, tensor in (("linear_bias", linear_bias), ("weight", weight))
        if tensor is not None
    }
    for name, tensor in beside.items():
        if tensor.device != input.device:
            raise UncorkError(
                f"{name} is on {tensor.device} and input on {input.device}: move them to one device"
            )
    if reduction not in ("none", "mean", "sum"):
        raise UncorkError(f"reduction must be 'none', 'mean' or 'sum', got {reduction!r}")
    if not 0.0 <= label_smoothing <= 1.0:
        raise UncorkError(f"label_smoothing must be between 0 and 1, got {label_smoothing!r}")
    if softcap is not None and not 0.0 < softcap < float("inf"):
        raise UncorkError(f"softcap must be a positive number or None, got {softcap!r}")
