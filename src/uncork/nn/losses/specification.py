"""What a loss is, said once: the map it trains, its options, its names.

Every loss here is a Fenchel-Young loss, ℓ(z; y) = Ω*(z) − z_y with gradient p − e_y, p = ∇Ω*(z). A
`Family` is the mathematics: p and Ω*. A `Loss` gives a family a name and options. All forms that
people use follow from the two:

    losses.register(Loss("entmax", EntmaxFamily(), (Option("alpha", 1.5, …),), …))

    functional.entmax_loss            a function of logits, called as cross_entropy is
    EntmaxLoss                        the same as a module
    functional.linear_entmax_loss     of hidden states and a weight: logits never exist as a whole
    LinearEntmaxLoss                  the same as a module
    heads.EntmaxHead                  an output layer with this loss, "entmax" in heads.HEADS
    fuse_loss(model, "entmax")        in a model of transformers; causal_lm_loss("entmax"), …
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from uncork.core.errors import UncorkError
from uncork.nn._rows import (
    Alpha,
    check_number,
    check_parameter,
    check_tensor,
    compute_dtype,
    output_dtype,
)
from uncork.nn._torch import torch
from uncork.nn.transforms.deformed import log_on_support

Tensor = torch.Tensor
#: a family's parameters: floats, or tensors (..., 1) beside rows (..., C)
Parameters = tuple[Alpha, ...]
#: z (N, C), classes (N), the class to ignore → losses (N), p (N, C)
Fused = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


class Reduction(NamedTuple):
    """What every loss takes beside its input and target, as torch's cross_entropy does."""

    weight: Tensor | None = None
    ignore_index: int = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0

    def check(self, classes: int, device: torch.device) -> None:
        if self.reduction not in ("none", "mean", "sum"):
            raise UncorkError(f"reduction must be 'none', 'mean' or 'sum', got {self.reduction!r}")
        check_number(
            self.label_smoothing, "label_smoothing", "between 0 and 1", lambda e: 0.0 <= e <= 1.0
        )
        ignored_class(self.ignore_index)
        check_per_class("weight", self.weight, classes, device)


class LinearArguments(NamedTuple):
    """What a loss of hidden states and a weight takes beside what every loss takes."""

    linear_bias: Tensor | None = None
    softcap: float | None = None
    input_grad: bool = True
    float32_accumulation: bool | None = None
    z_loss: float = 0.0
    token_weight: Tensor | None = None
    return_lse: bool = False
    return_predictions: bool = False


class LinearLossResult(NamedTuple):
    """A linear loss and what was asked for beside it; None where it was not."""

    loss: Tensor  #: (), or with reduction "none" target's shape
    #: logsumexp of the logits, of other losses Ω*(z): target's shape, 0 where ignored
    lse: Tensor | None
    predicted: Tensor | None  #: int64, the most probable class: target's shape
    #: (), the share of targets that are predicted, among those that are not ignored and whose
    #: token weight is not 0
    accuracy: Tensor | None


def ignored_class(ignore_index: Any) -> int:
    try:
        return operator.index(ignore_index)
    except TypeError:
        raise UncorkError(f"ignore_index must be an integer, got {ignore_index!r}") from None


def check_indices(name: str, tensor: Tensor) -> None:
    """Class indices by their type: a mask given in their place would count as classes 0 and 1."""
    check_tensor(name, tensor)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise UncorkError(f"{name} must be class indices, got dtype {tensor.dtype}")


def check_per_class(name: str, tensor: Tensor | None, classes: int, device: torch.device) -> None:
    """One value per class, on the input's device."""
    if tensor is None:
        return
    check_tensor(name, tensor)
    if tuple(tensor.shape) != (classes,):
        raise UncorkError(
            f"{name} must have one value per class, shape ({classes},), got {tuple(tensor.shape)}"
        )
    check_beside(name, tensor, device)


def check_beside(name: str, tensor: Tensor, device: torch.device) -> None:
    """A real tensor on the input's device."""
    check_tensor(name, tensor)
    if tensor.is_complex():
        raise UncorkError(f"{name} must be real, got dtype {tensor.dtype}")
    if tensor.device != device:
        raise UncorkError(
            f"{name} is on {tensor.device} and input on {device}: move them to one device"
        )


@dataclass(frozen=True)
class Family:
    """p = ∇Ω*(z) and Ω* over rows (..., C). A family defines the first three methods.

    The next two are for options that receive a gradient, the last three for what a family may have
    besides: CUDA kernels, and log-probabilities that are not log p.
    """

    #: Ω*(z + c) = Ω*(z) + c: true for every map onto the simplex
    shift_invariant: ClassVar[bool] = True
    #: the last parameter is a threshold τ, given and not searched for: p need not sum to one
    threshold_given: ClassVar[bool] = False

    def predict(self, z: Tensor, parameters: Parameters) -> Tensor:
        """p = ∇Ω*(z).  (..., C) → (..., C)"""
        raise NotImplementedError

    def conjugate(self, v: Tensor, p: Tensor, parameters: Parameters) -> Tensor:
        """Ω*(v), given p = ∇Ω*(v).  (..., C) → (..., 1).

        The largest entry of v is 0 where the family is shift invariant.
        """
        raise NotImplementedError

    def vjp(self, p: Tensor, grad: Tensor, parameters: Parameters) -> Tensor:
        """The Jacobian of `predict` (symmetric) times grad, as a function of p."""
        raise NotImplementedError

    def direction(self, index: int, p: Tensor, parameters: Parameters) -> Tensor:
        """∂p/∂parameters[index].  (..., C)"""
        raise NotImplementedError

    def conjugate_slope(self, index: int, p: Tensor, parameters: Parameters) -> Tensor:
        """∂Ω*/∂parameters[index] = −∂Ω/∂parameters[index] at fixed p, since p is the maximiser
        (envelope theorem).  (..., 1)"""
        raise NotImplementedError

    def fused(self, z: Tensor, parameters: Parameters) -> Fused | None:
        """A kernel that makes losses and p of rows z in one pass, if there is one for z."""
        return None

    def exponent(self, parameters: Parameters) -> float | None:
        """α, if p = exp_α(z − S) with S searched for, or given by τ: the kernels of linear losses
        and the vocabulary-parallel loss are written for this map."""
        return None

    def log_probabilities(self, z: Tensor, parameters: Parameters) -> Tensor:
        """The logarithm of what a decoder samples from: −inf off the support.  (..., C)"""
        p = self.predict(z.to(compute_dtype(z.dtype)), parameters)
        return log_on_support(p).to(output_dtype(z, None))


@dataclass(frozen=True)
class Option:
    """A parameter of a family that the caller gives."""

    name: str
    default: float
    doc: str
    at_least: float | None = None
    above: float | None = None
    learnable: bool = True  #: takes a tensor, which receives a gradient
    linear_at_least: float | None = None  #: a higher bound, of the linear losses

    def checked(self, value: Any) -> Alpha:
        """A float or, where the option is learnable, a floating tensor."""
        if isinstance(value, Tensor) and not self.learnable:
            if value.requires_grad:
                raise UncorkError(f"{self.name} receives no gradient here: give a number")
            if value.numel() != 1:
                raise UncorkError(f"{self.name} must be one number here, got {value!r}")
            value = float(value)
        return check_parameter(value, self.name, at_least=self.at_least, above=self.above)

    def number(self, value: Any) -> float:
        """A float: what the linear losses take."""
        if isinstance(value, Tensor):
            raise UncorkError(
                f"{self.name} must be a number here: a tensor is taken by the losses of logits"
            )
        if self.linear_at_least is not None:
            check_parameter(value, self.name, at_least=self.linear_at_least)
        return float(self.checked(value))


class Names(NamedTuple):
    """What the forms of a loss are called; None where there is no such form."""

    function: str
    module: str | None
    linear_function: str
    linear_module: str
    head: str | None


@dataclass(frozen=True)
class Loss:
    """A family under a name. `parameters` are the family's, in its order: an `Option` is given by
    the caller, a number is fixed."""

    name: str  #: in snake case, as "alpha_relu"
    family: Family
    parameters: tuple[Option | float, ...]
    doc: str  #: a line that says what it is, then when to choose it
    title: str = ""  #: in class names: "AlphaReLU"; from the name if not given
    other_names: Names | None = None  #: where the forms are not called after the loss

    @property
    def names(self) -> Names:
        if self.other_names is not None:
            return self.other_names
        title = self.title or "".join(word.capitalize() for word in self.name.split("_"))
        return Names(
            f"{self.name}_loss", f"{title}Loss", f"linear_{self.name}_loss",
            f"Linear{title}Loss", f"{title}Head",
        )  # fmt: skip

    @property
    def options(self) -> tuple[Option, ...]:
        return tuple(option for option in self.parameters if isinstance(option, Option))

    @property
    def threshold(self) -> Option | None:
        """The option that is τ, which a linear loss takes as a tensor too."""
        last = self.parameters[-1] if self.family.threshold_given else None
        return last if isinstance(last, Option) else None

    def parameters_from(self, given: dict[str, Any], *, linear: bool) -> Parameters:
        """The family's parameters, in its order; the options are taken out of `given`."""
        made: list[Alpha] = []
        for one in self.parameters:
            if not isinstance(one, Option):
                made.append(one)
                continue
            value = given.pop(one.name, one.default)
            by_number = linear and one is not self.threshold
            made.append(one.number(value) if by_number else one.checked(value))
        return tuple(made)


#: every loss by name
LOSSES: dict[str, Loss] = {}
_uses: list[Callable[[Loss], None]] = []


def register(loss: Loss) -> Loss:
    """Make a loss known: all its forms exist from here on."""
    if not loss.name.isidentifier() or loss.name in LOSSES:
        raise UncorkError(
            f"a loss needs a name of its own that Python can spell, got {loss.name!r}"
        )
    LOSSES[loss.name] = loss
    for use in _uses:
        use(loss)
    return loss


def for_each_loss(use: Callable[[Loss], None]) -> None:
    """Call `use` with every loss: those registered, and those still to come."""
    _uses.append(use)
    for loss in list(LOSSES.values()):
        use(loss)


def loss_named(name: str) -> Loss:
    if name not in LOSSES:
        raise UncorkError(f"loss must be one of {', '.join(sorted(LOSSES))}, got {name!r}")
    return LOSSES[name]
