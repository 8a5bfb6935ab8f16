"""A linear loss as a problem to solve: tensors, options, what each target asks for, and checks."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

from uncork.core.errors import UncorkError
from uncork.nn._rows import (
    Alpha,
    check_floating,
    check_number,
    check_tensor,
    is_batched,
    is_traced,
)
from uncork.nn._torch import torch
from uncork.nn.losses.specification import (
    Family,
    LinearArguments,
    Loss,
    Parameters,
    Reduction,
    check_beside,
    check_indices,
    check_per_class,
)
from uncork.nn.transforms.sharded import refuse_linear

Tensor = torch.Tensor


@dataclass(frozen=True)
class Shard:
    """Which classes a process holds: `first` and those after it, of `classes` in all."""

    first: int
    classes: int
    group: Any  #: a torch.distributed process group, or None for all processes


def shard_of(
    weight: Tensor, name: str, first_class: int | None, classes: int | None, group: Any
) -> Shard:
    """The place of a process's weight (its classes, d) among all classes: as given, or asked of
    the others."""
    check_weight(weight, name)
    if (first_class is None) != (classes is None):
        raise UncorkError(
            "first_class and classes, how many there are in all, are given together, or neither is"
        )
    if first_class is None or classes is None:
        return Shard(*_place_of(weight, group), group)
    first_class, classes = operator.index(first_class), operator.index(classes)
    if first_class < 0 or first_class + len(weight) > classes:
        raise UncorkError(
            f"first_class={first_class} and classes={classes} do not fit {name} "
            f"{tuple(weight.shape)}: its rows are classes first_class and those after it"
        )
    return Shard(first_class, classes, group)


def _place_of(weight: Tensor, group: Any) -> tuple[int, int]:
    """(first class of this process, all classes), from everybody's number of rows."""
    distributed = torch.distributed
    size, rank = distributed.get_world_size(group), distributed.get_rank(group)
    counts = torch.zeros(size, dtype=torch.int64, device=weight.device)
    counts[rank] = len(weight)
    distributed.all_reduce(counts, group=group)
    shares = counts.tolist()
    return sum(shares[:rank]), sum(shares)


def refuse_shard(shard: Shard | None) -> None:
    """Of what takes all logits at once."""
    if shard is not None:
        raise UncorkError(
            "where processes share the classes out there are first derivatives only, one loss at a "
            "time: leave create_graph, batched gradients, torch.func and forward mode out"
        )


@dataclass(frozen=True)
class LinearOptions:
    """A linear loss but for its tensors."""

    loss: Loss
    numbers: tuple[float, ...]  #: parameters of its family, but for a given τ
    ignore_index: int = -100
    label_smoothing: float = 0.0
    softcap: float | None = None
    #: None: in float32 where that costs memory for the rows, or little for the classes
    float32_accumulation: bool | None = None
    z_loss: float = 0.0  #: ζ, of ζ Ω*(z)² added to every row's loss
    lse: bool = False  #: Ω*(z) of every row is asked for
    predictions: bool = False  #: and its most probable class
    #: the weight is this process's share of the classes
    shard: Shard | None = None

    @property
    def family(self) -> Family:
        return self.loss.family

    @property
    def fixed(self) -> bool:
        """τ is given (α-ReLU) and not searched for (α-entmax)."""
        return self.loss.family.threshold_given

    @property
    def exponent(self) -> float | None:
        """α of p = exp_α(z − S), for losses of that form."""
        return self.loss.family.exponent(self.numbers)

    @property
    def alpha(self) -> float:
        """The exponent of a loss that has one: the kernels take no others."""
        exponent = self.exponent
        assert exponent is not None
        return exponent

    def parameters(self, tau: Alpha) -> Parameters:
        """All parameters of the family."""
        return (*self.numbers, tau) if self.fixed else self.numbers


class LinearTensors(NamedTuple):
    """What a linear loss is computed from. The first four may want gradients."""

    input: Tensor  #: (N, d)
    weight: Tensor  #: (C, d)
    bias: Tensor | None  #: (C)
    tau: Tensor | float
    target: Tensor  #: (N) int64, or probabilities (N, C)
    class_weight: Tensor | None = None  #: (C)
    token_weight: Tensor | None = None  #: (N), what each row counts in a mean or a sum


class Wanted(NamedTuple):
    """Which gradients are asked for."""

    input: bool
    weight: bool
    bias: bool
    tau: bool

    @property
    def any(self) -> bool:
        return self.input or self.weight or self.bias or self.tau


NOTHING = Wanted(False, False, False, False)


class LinearResult(NamedTuple):
    """Losses by row, 0 where ignored, and the gradients that were wanted."""

    losses: Tensor | None  #: (N) float32, or float64 for float64 input; None beside a total
    input: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    tau: Tensor | None = None
    total: Tensor | None = None  #: (), the losses times upstream, added up
    lse: Tensor | None = None  #: (N), Ω*(z), 0 where ignored
    predicted: Tensor | None = None  #: (N) int64


class RowTargets(NamedTuple):
    """A row's loss is mass·Ω*(z) − hit·z_target − smooth·Σ_c weight_c z_c."""

    classes: Tensor  #: (N) int64, 0 where ignored
    counted: Tensor  #: (N) bool
    mass: Tensor  #: (N)
    hit: Tensor  #: (N)
    smooth: float  #: ε/C

    def of(self, rows: slice) -> RowTargets:
        return RowTargets(
            self.classes[rows], self.counted[rows], self.mass[rows], self.hit[rows], self.smooth
        )


def logits(x: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None = None) -> Tensor:
    """x · weightᵀ + bias in float32 or better, capped."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    z = torch.nn.functional.linear(x, weight).to(wide)
    if bias is not None:
        z = z + bias.to(wide)
    return z if softcap is None else softcap * torch.tanh(z / softcap)


def row_targets(
    target: Tensor,
    class_weight: Tensor | None,
    classes: int,
    options: LinearOptions | Reduction,
    dtype: torch.dtype = torch.float32,
) -> RowTargets:
    """Index targets as cross_entropy reads them."""
    counted = target != options.ignore_index
    index = torch.where(counted, target, torch.zeros_like(target))
    share = options.label_smoothing
    if class_weight is None:
        mass = counted.to(dtype)
        hit = mass if share == 0 else (1 - share) * mass
    else:
        wide = class_weight.to(dtype)
        hit = (1 - share) * torch.where(counted, wide[index], 0.0)
        spread = share / classes * wide.sum()
        mass = torch.where(counted, hit + spread, 0.0)
    return RowTargets(index, counted, mass, hit, share / classes)


def check_classes(index: Tensor, classes: int, name: str = "target") -> None:
    """Class indices lie among the classes; on a GPU nobody waits to see, and nobody can under vmap,
    in an export, and of tensors without values."""
    plain = index.device.type == "cpu" and type(index) is Tensor
    if not plain or is_traced() or is_batched(index):
        return
    outside = (index < 0) | (index >= classes)
    if bool(outside.any()):
        raise IndexError(f"{name} {int(index[outside][0])} is out of bounds for {classes} classes")


def upstream_of(reduction: str, tensors: LinearTensors, options: LinearOptions) -> Tensor:
    """dL/d(loss of a row), (N), where L is the rows' mean or sum."""
    wide = torch.float64 if tensors.input.dtype == torch.float64 else torch.float32
    shares = row_weights(tensors.target, tensors.class_weight, options.ignore_index).to(wide)
    upstream = torch.ones_like(shares)
    if tensors.token_weight is not None:
        upstream = tensors.token_weight.to(wide)
        shares = shares * upstream
    if reduction == "mean":
        upstream = divided(upstream, shares.sum())
    return upstream


def of_counted(token_weight: Tensor, target: Tensor, how: Reduction) -> Tensor:
    """An ignored row's weight counts nothing, whatever it is; but of no rows that count a mean is
    NaN. Both are of one shape."""
    counted = target != how.ignore_index
    if how.reduction == "mean":
        counted = counted | ~counted.any()
    return torch.where(counted, token_weight, torch.zeros_like(token_weight))


def divided(token_weight: Tensor, total: Tensor) -> Tensor:
    """A row of weight 0 counts nothing, also where no row counts and the total is 0."""
    return torch.where(token_weight == 0, torch.zeros_like(token_weight), token_weight / total)


def row_weights(target: Tensor, class_weight: Tensor | None, ignore_index: int) -> Tensor:
    """What a mean divides by, summed: (N), 0 where ignored; of probabilities the rows."""
    if target.is_floating_point():
        return torch.ones_like(target[:, 0])  # `len` would fix an open size
    counted = target != ignore_index
    if class_weight is None:
        return counted.float()
    index = torch.where(counted, target, torch.zeros_like(target))
    return torch.where(counted, class_weight[index], 0.0)


def with_level_weights(
    how: Reduction, target: Tensor, token_weight: Tensor | None, dtype: torch.dtype
) -> Reduction:
    """Class weights that are 1 on average over the targets. A weighted mean does not change by it,
    and what is added to every row's loss beside, as a z-loss is, is divided by the rows then.
    `dtype` is the input's."""
    if how.weight is None or how.reduction != "mean" or target.is_floating_point():
        return how
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    weight = how.weight.to(torch.promote_types(how.weight.dtype, wide))
    shares = row_weights(target, weight, how.ignore_index)
    rows = (target != how.ignore_index).to(shares.dtype)
    if token_weight is not None:
        shares, rows = shares * token_weight, rows * token_weight
    level = torch.where(shares.sum() == 0, 1.0, rows.sum() / shares.sum())  # 1: no row counts
    return how._replace(weight=weight * level.to(weight.dtype))


def as_tensor(tau: Tensor | float, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(tau, Tensor):
        return tau.to(dtype)
    return torch.full((), tau, dtype=dtype, device=device)


def one_value(tau: Alpha, input: Tensor) -> Alpha:
    """τ as a float, or a tensor of one value beside the input."""
    if not isinstance(tau, Tensor):
        return float(tau)
    check_one_value(tau)
    return tau.to(input.device).reshape(())


def check_one_value(tau: Alpha) -> None:
    if isinstance(tau, Tensor) and tau.numel() != 1:
        raise UncorkError(f"tau must be one value for all rows, got shape {tuple(tau.shape)}")


def check(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    how: Reduction,
    linear: LinearArguments,
    all_classes: int | None,
) -> None:
    """Shapes, devices and values, each named where it is wrong. `all_classes`: of all processes
    together, where there are several."""
    check_floating(input)
    refuse_linear("input", input)
    check_weight(linear_weight, "linear_weight")
    classes, features = linear_weight.shape
    if input.dim() == 0 or input.shape[-1] != features:
        raise UncorkError(
            f"input of shape {tuple(input.shape)} does not end in the {features} features of "
            f"linear_weight {tuple(linear_weight.shape)}"
        )
    if not isinstance(target, Tensor):
        raise UncorkError(f"target must be a tensor of class indices, got {type(target).__name__}")
    expected = tuple(input.shape[:-1])
    if target.is_floating_point():
        if all_classes is not None:
            raise UncorkError("target must be class indices where processes share the classes out")
        if how.ignore_index >= 0:  # as cross_entropy has it
            raise UncorkError(
                f"ignore_index={how.ignore_index} is not supported for floating point target"
            )
        expected = (*expected, classes)
    else:
        check_indices("target", target)
    if tuple(target.shape) != expected:
        raise UncorkError(
            f"target must be class indices of shape {tuple(input.shape[:-1])} for input "
            f"{tuple(input.shape)}, or probabilities with {classes} classes more, got "
            f"{target.dtype} {tuple(target.shape)}"
        )
    if target.requires_grad:
        raise UncorkError("target receives no gradient here: give target.detach()")
    check_beside("linear_weight", linear_weight, input.device)
    check_beside("target", target, input.device)
    check_per_class("linear_bias", linear.linear_bias, classes, input.device)
    how.check(classes if all_classes is None else all_classes, input.device)
    if how.weight is not None and how.weight.requires_grad:
        raise UncorkError("weight receives no gradient here: give weight.detach()")
    check_softcap(linear.softcap)
    check_number(linear.z_loss, "z_loss", "a number, at least 0", lambda z: 0.0 <= z < math.inf)
    check_token_weight(linear.token_weight, input, how.reduction)


def check_weight(weight: Tensor, name: str) -> None:
    check_floating(weight, name)
    refuse_linear(name, weight)
    if weight.dim() != 2 or 0 in weight.shape:
        raise UncorkError(f"{name} must be (classes, features), got shape {tuple(weight.shape)}")


def check_softcap(softcap: float | None, name: str = "softcap") -> None:
    if softcap is not None:
        check_number(softcap, name, "a positive number or None", lambda cap: 0.0 < cap < math.inf)


def check_token_weight(token_weight: Tensor | None, input: Tensor, reduction: str) -> None:
    """One value for each row of the input, which receives a gradient by row only."""
    if token_weight is None:
        return
    check_tensor("token_weight", token_weight)
    if token_weight.shape != input.shape[:-1]:
        raise UncorkError(
            f"token_weight must have shape {tuple(input.shape[:-1])} for input "
            f"{tuple(input.shape)}, got {tuple(token_weight.shape)}"
        )
    check_beside("token_weight", token_weight, input.device)
    if token_weight.requires_grad and reduction != "none":
        raise UncorkError(
            'token_weight receives a gradient with reduction="none" alone: give it detached'
        )
