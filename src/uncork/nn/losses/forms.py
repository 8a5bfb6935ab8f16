"""The forms of a loss, from its specification: functions and modules, of logits and of a layer.

Their parameters are put together here: those of the call, the loss's own options, and what every
loss takes (`Reduction`, `LinearArguments`). Calls are bound by hand, which takes a microsecond;
`inspect.signature` and `help` show the full list, and type checkers read it in the stubs beside
`functions.py` and `modules.py` (`stubs.py` writes them).
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from uncork.core.errors import UncorkError
from uncork.nn._rows import Alpha
from uncork.nn._torch import torch
from uncork.nn.linear.autograd import linear_loss
from uncork.nn.linear.problem import check_one_value
from uncork.nn.losses.fenchel_young import reduce_loss
from uncork.nn.losses.specification import (
    LinearArguments,
    Loss,
    Option,
    Reduction,
)

Tensor = torch.Tensor
Parameter = inspect.Parameter
Named = TypeVar("Named", bound=Any)

POSITIONAL, KEYWORD = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY

_OF_LOGITS = (
    "input: logits (C), (N, C) or (N, C, d1, ...).",
    "target: class indices of shape (), (N) or (N, d1, ...); or probabilities shaped like `input`, "
    "whose loss is Σ_c target_c ℓ(z; c), as in cross_entropy (its least value is then the target's "
    "entropy, not 0; the gradient is p − target).",
)
_OF_LAYER = (
    "input: hidden states (..., d).",
    "linear_weight: (C, d), the layer's weight.",
    "target: class indices, the shape of `input` without d.",
)
_COMMON = (
    "weight, ignore_index, reduction, label_smoothing: exactly as in "
    ":func:`torch.nn.functional.cross_entropy`, with ℓ(z; c) in place of −log softmax(z)_c. "
    "Smoothing gives every class ε/C of the target.",
)
_LINEAR_COMMON = (
    "linear_bias: (C), the layer's bias.",
    "softcap: logits become softcap · tanh(logits / softcap), as in Gemma 2.",
    "input_grad: False leaves the gradient of the hidden states out (a frozen body).",
    "float32_accumulation: for 16-bit tensors, how sums over several products are kept. None keeps "
    "the hidden states' gradient in float32, and the weight's, where it takes more than one "
    "product (cross entropy, entmax of flat logits, small problems), if that costs little memory. "
    "True keeps everything in float32, at the price of a further product; False nothing.",
)


# --- parameters ---------------------------------------------------------------------------


def parameter(
    name: str, annotation: str, default: Any = Parameter.empty, kind: Any = KEYWORD
) -> Parameter:
    return Parameter(name, kind, default=default, annotation=annotation)


def fields_of(
    arguments: type, kind: Any = KEYWORD, leave_out: Iterable[str] = ()
) -> list[Parameter]:
    """The fields of a NamedTuple as parameters."""
    kinds = {name: kind.__forward_arg__ for name, kind in arguments.__annotations__.items()}
    defaults: dict[str, Any] = arguments._field_defaults  # type: ignore[attr-defined]
    return [
        parameter(name, kinds[name], default, kind)
        for name, default in defaults.items()
        if name not in leave_out
    ]


def annotation_of(option: Option, loss: Loss, linear: bool) -> str:
    """Losses of logits take tensors for whatever can be learned, linear ones for τ alone."""
    learnable = option.learnable and (not linear or option is loss.threshold)
    return "float | Tensor" if learnable else "float"


def options_of(loss: Loss, linear: bool, kind: Any = KEYWORD) -> list[Parameter]:
    return [
        parameter(option.name, annotation_of(option, loss, linear), option.default, kind)
        for option in loss.options
    ]


def described(
    made: Named, name: str, module: str, parameters: Iterable[Parameter], result: str, doc: str
) -> Named:
    """A function or class under its public name, with its signature."""
    made.__name__ = made.__qualname__ = name
    made.__module__, made.__doc__ = module, doc
    made.__signature__ = inspect.Signature(list(parameters), return_annotation=result)
    return made


def docstring(loss: Loss, opening: str, arguments: Iterable[str], common: Iterable[str]) -> str:
    """The loss's own words and those of its arguments, as Google's style has them."""
    options = [f"{option.name}: {_bounds(option)}{option.doc}" for option in loss.options]
    listed = [
        textwrap.fill(one, 92, initial_indent="    ", subsequent_indent="        ")
        for one in (*arguments, *options, *common)
    ]
    return "\n".join([opening, "", "Args:", *listed])


def _bounds(option: Option) -> str:
    if option.at_least is not None:
        return f"≥ {option.at_least:g}; "
    return "" if option.above is None else f"> {option.above:g}; "


def words(loss: Loss) -> str:
    """What the specification says, dedented."""
    return inspect.cleandoc(loss.doc)


def check_names(name: str, given: dict[str, Any], known: frozenset[str]) -> None:
    if not given.keys() <= known:
        unknown = next(one for one in given if one not in known)
        raise TypeError(f"{name}() got an unexpected keyword argument {unknown!r}")


# --- functions ----------------------------------------------------------------------------

_REDUCTION = frozenset(Reduction._fields)
_LINEAR = frozenset(LinearArguments._fields)


def function_of(loss: Loss) -> Callable[..., Tensor]:
    """The loss of logits."""
    name = loss.names.function
    known = _REDUCTION | {option.name for option in loss.options}

    def function(
        input: Tensor, target: Tensor, weight: Tensor | None = None, **given: Any
    ) -> Tensor:
        check_names(name, given, known)
        given["weight"] = weight
        parameters = loss.parameters_from(given, linear=False)
        return reduce_loss(input, target, loss.family, parameters, Reduction(**given))

    parameters = [
        parameter("input", "Tensor", kind=POSITIONAL),
        parameter("target", "Tensor", kind=POSITIONAL),
        parameter("weight", "Tensor | None", None, POSITIONAL),
        *options_of(loss, linear=False),
        *fields_of(Reduction, leave_out=["weight"]),
    ]
    doc = docstring(loss, words(loss), _OF_LOGITS, _COMMON)
    return described(function, name, "uncork.nn.functional", parameters, "Tensor", doc)


def linear_function_of(loss: Loss) -> Callable[..., Tensor]:
    """The loss of hidden states and a weight."""
    name = loss.names.linear_function
    known = _REDUCTION | _LINEAR | {option.name for option in loss.options}

    def function(input: Tensor, linear_weight: Tensor, target: Tensor, **given: Any) -> Tensor:
        check_names(name, given, known)
        parameters = loss.parameters_from(given, linear=True)
        linear = LinearArguments(**{one: given.pop(one) for one in _LINEAR & given.keys()})
        how = Reduction(**given)
        return linear_loss(loss, parameters, input, linear_weight, target, how, linear)

    parameters = [
        parameter("input", "Tensor", kind=POSITIONAL),
        parameter("linear_weight", "Tensor", kind=POSITIONAL),
        parameter("target", "Tensor", kind=POSITIONAL),
        *options_of(loss, linear=True),
        parameter("linear_bias", "Tensor | None", None),
        *fields_of(Reduction),
        *fields_of(LinearArguments, leave_out=["linear_bias"]),
    ]
    opening = (
        f"`{loss.names.function}(linear(input, linear_weight, linear_bias), target)`, fused.\n\n"
        "Logits are made for some rows or some classes at a time, in a fraction of the memory.\n"
        "The loss is float32 or better."
    )
    doc = docstring(loss, opening, _OF_LAYER, (*_COMMON, *_LINEAR_COMMON))
    return described(function, name, "uncork.nn.functional", parameters, "Tensor", doc)


# --- modules ------------------------------------------------------------------------------


def in_words(value: Alpha) -> str:
    """A parameter in a module's repr: its value, or of several the shape."""
    if not isinstance(value, Tensor):
        return str(value)
    if value.numel() != 1 or value.is_meta:  # a meta tensor has no value
        return f"tensor{tuple(value.shape)}"
    return f"{float(value.detach()):.4f}"


class LossModule(torch.nn.Module):
    """What the modules of all losses share: they keep the arguments of their function.

    τ and tensors are buffers, or Parameters to learn: they move, save and train with the module.
    """

    specification: ClassVar[Loss]
    class_dim: ClassVar[int] = 1  #: where the classes are, for setting τ
    weight: Tensor | None

    def __init__(self, **given: Any) -> None:
        super().__init__()
        loss = self.specification
        for option in loss.options:
            self._keep(option, given.pop(option.name))
        self.register_buffer("weight", given.pop("weight"))
        for name, value in given.items():
            setattr(self, name, value)

    def _keep(self, option: Option, value: Alpha) -> None:
        """An option of the loss: a number as it is, a tensor as a buffer or a Parameter."""
        if isinstance(value, Tensor) and not option.learnable:  # it would not learn
            raise UncorkError(f"{option.name} must be a number here, got a tensor")
        value = option.checked(value)
        if option is self.specification.threshold and not isinstance(value, torch.nn.Parameter):
            value = torch.as_tensor(value, dtype=torch.float32).clone()
        if isinstance(value, Tensor) and not isinstance(value, torch.nn.Parameter):
            self.register_buffer(option.name, value)
        else:
            setattr(self, option.name, value)

    def _given(self) -> dict[str, Any]:
        """The arguments of the function, as they are now."""
        names = [option.name for option in self.specification.options]
        return {name: getattr(self, name) for name in (*names, *Reduction._fields)}

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        given = self._given()
        parameters = self.specification.parameters_from(given, linear=False)
        return reduce_loss(input, target, self.specification.family, parameters, Reduction(**given))

    def extra_repr(self) -> str:
        options = self.specification.options
        return ", ".join(f"{one.name}={in_words(getattr(self, one.name))}" for one in options)


class LinearLossModule(LossModule):
    """The losses of hidden states and a weight. The layer stays where it is: its weight, and its
    bias, are given at every call."""

    softcap: float | None
    input_grad: bool
    float32_accumulation: bool | None

    def _keep(self, option: Option, value: Alpha) -> None:
        if option is self.specification.threshold:
            check_one_value(value)
        else:
            value = option.number(value)
        super()._keep(option, value)

    def forward(  # type: ignore[override]
        self,
        input: Tensor,
        linear_weight: Tensor,
        target: Tensor,
        linear_bias: Tensor | None = None,
    ) -> Tensor:
        given = self._given()
        loss = self.specification
        parameters = loss.parameters_from(given, linear=True)
        linear = LinearArguments(
            linear_bias, self.softcap, self.input_grad, self.float32_accumulation
        )
        how = Reduction(**given)
        return linear_loss(loss, parameters, input, linear_weight, target, how, linear)


def module_of(loss: Loss, name: str) -> type[LossModule]:
    parameters = [*options_of(loss, False, POSITIONAL), *fields_of(Reduction, POSITIONAL)]
    doc = f"{words(loss)}\n\n:func:`uncork.nn.functional.{loss.names.function}` as a module."
    return _module(loss, LossModule, name, parameters, doc)


def linear_module_of(loss: Loss) -> type[LinearLossModule]:
    parameters = [
        *options_of(loss, True, POSITIONAL),
        *fields_of(Reduction, POSITIONAL),
        *fields_of(LinearArguments, POSITIONAL, leave_out=["linear_bias"]),
    ]
    doc = (
        f":func:`uncork.nn.functional.{loss.names.linear_function}` as a module.\n\n"
        "Called with `(input, linear_weight, target, linear_bias=None)`: the layer stays where it"
        " is."
    )
    return _module(loss, LinearLossModule, loss.names.linear_module, parameters, doc)


Kind = TypeVar("Kind", bound=LossModule)


def _module(
    loss: Loss, base: type[Kind], name: str, parameters: list[Parameter], doc: str
) -> type[Kind]:
    signature = inspect.Signature(parameters)

    def __init__(self: Any, *arguments: Any, **given: Any) -> None:
        try:
            bound = signature.bind(*arguments, **given)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        bound.apply_defaults()
        base.__init__(self, **bound.arguments)

    own = [parameter("self", "", kind=POSITIONAL).replace(annotation=Parameter.empty)]
    described(__init__, "__init__", "uncork.nn.modules", [*own, *parameters], "None", doc)
    made = type(name, (base,), {"__init__": __init__, "specification": loss})
    return described(made, name, "uncork.nn.modules", parameters, "None", doc)
