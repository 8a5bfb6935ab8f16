"""The forms of a loss, from its specification: functions and modules, of logits and of a layer.

Their parameters are put together here: those of the call, the loss's own options, and what every
loss takes (`Reduction`, `LinearArguments`). Calls are bound by hand, which takes a microsecond;
`inspect.signature` and `help` show the full list, and type checkers read it in the stubs beside
`functions.py` and `modules.py` (`stubs.py` writes them).
"""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from uncork.core.errors import UncorkError
from uncork.nn._rows import Alpha
from uncork.nn._torch import torch
from uncork.nn.linear.autograd import linear_loss
from uncork.nn.linear.positions import loss_at_positions
from uncork.nn.linear.problem import check_one_value
from uncork.nn.losses.fenchel_young import reduce_loss
from uncork.nn.losses.specification import (
    LinearArguments,
    LinearLossResult,
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
    "target: class indices, the shape of `input` without d; or probabilities of that shape and C, "
    "which take as much memory as the logits would.",
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
    "z_loss: ζ of ζ·lse² added to every loss that counts, which keeps the normaliser near 1 (PaLM "
    "has 1e-4). Class weights have no part in it: a mean divides it by the rows that count.",
)
_LINEAR_CALL = (
    "token_weight: what each loss is multiplied by, of target's shape, as 0 for a prompt. A mean "
    "divides by the sum of these weights, those of the classes included; where all are 0, it is 0, "
    "and so are the gradients. Of an ignored target it counts nothing, whatever it is.",
    "return_lse, return_predictions: the result is a `LinearLossResult(loss, lse, predicted, "
    "accuracy)`, with None for what was not asked for. lse is logsumexp of the logits (of other "
    "losses Ω*(z)) and differentiable, 0 where ignored; gradients are then made in backward, with "
    "one product more. predicted is the most probable class, and accuracy the share of targets "
    "predicted, among those that are not ignored and whose token_weight is not 0.",
)
_AS_TORCH = (
    "options: torch's LinearCrossEntropyOptions, taken so that calls of torch's function work, and "
    "not needed: blocks are chosen here. A linear_weight (C, d1, …, dK, d) is taken as there too.",
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


def docstring(
    loss: Loss, opening: str, arguments: Iterable[str], common: Iterable[str], linear: bool
) -> str:
    """The loss's own words and those of its arguments, as Google's style has them."""
    options = [f"{option.name}: {_bounds(option, linear)}{option.doc}" for option in loss.options]
    listed = [
        textwrap.fill(one, 92, initial_indent="    ", subsequent_indent="        ")
        for one in (*arguments, *options, *common)
    ]
    return "\n".join([opening, "", "Args:", *listed])


def _bounds(option: Option, linear: bool) -> str:
    least = option.linear_at_least if linear else None
    least = option.at_least if least is None else least
    if least is not None:
        return f"≥ {least:g}; "
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
_OF_CALL = ("linear_bias", "token_weight", "return_lse", "return_predictions")  # not of a module


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
    doc = docstring(loss, words(loss), _OF_LOGITS, _COMMON, linear=False)
    return described(function, name, "uncork.nn.functional", parameters, "Tensor", doc)


def linear_function_of(loss: Loss) -> Callable[..., Any]:
    """The loss of hidden states and a weight."""
    name = loss.names.linear_function
    as_torch = name == "linear_cross_entropy"  # torch's own, by this name and with these arguments
    known = _REDUCTION | _LINEAR | {option.name for option in loss.options}
    if as_torch:
        known |= {"options"}

    def function(
        input: Tensor, linear_weight: Tensor, target: Tensor, **given: Any
    ) -> Tensor | LinearLossResult:
        check_names(name, given, known)
        if as_torch:
            given.pop("options", None)
        parameters = loss.parameters_from(given, linear=True)
        linear = LinearArguments(**{one: given.pop(one) for one in _LINEAR if one in given})
        how = Reduction(**given)
        several = as_torch and isinstance(linear_weight, Tensor) and linear_weight.dim() > 2
        compute = loss_at_positions if several else linear_loss
        made = compute(loss, parameters, input, linear_weight, target, how, linear)
        return made if linear.return_lse or linear.return_predictions else made.loss

    parameters = [
        parameter("input", "Tensor", kind=POSITIONAL),
        parameter("linear_weight", "Tensor", kind=POSITIONAL),
        parameter("target", "Tensor", kind=POSITIONAL),
        *options_of(loss, linear=True),
        parameter("linear_bias", "Tensor | None", None),
        *[
            one.replace(annotation="int | None") if one.name == "ignore_index" else one
            for one in fields_of(Reduction)
        ],
        *fields_of(LinearArguments, leave_out=["linear_bias"]),
        *([parameter("options", "Any", None)] if as_torch else []),
    ]
    opening = (
        f"`{loss.names.function}(linear(input, linear_weight, linear_bias), target)`, fused.\n\n"
        "Logits are made for some rows or some classes at a time, in a fraction of the memory.\n"
        "The loss is float32 or better."
    )
    more = _AS_TORCH if as_torch else ()
    common = (*_COMMON, *_LINEAR_COMMON, *_LINEAR_CALL, *more)
    doc = docstring(loss, opening, _OF_LAYER, common, linear=True)
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
    z_loss: float

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
        token_weight: Tensor | None = None,
    ) -> Tensor:
        given = self._given()
        loss = self.specification
        parameters = loss.parameters_from(given, linear=True)
        linear = LinearArguments(
            linear_bias, self.softcap, self.input_grad, self.float32_accumulation, self.z_loss,
            token_weight,
        )  # fmt: skip
        how = Reduction(**given)
        return linear_loss(loss, parameters, input, linear_weight, target, how, linear).loss


class LinearLayerLossModule(LinearLossModule):
    """The same with a layer of its own, where sizes are given: torch's LinearCrossEntropyLoss."""

    linear: torch.nn.Linear | None
    num_classes: int | None
    out_features: tuple[int, ...]

    def __init__(self, **given: Any) -> None:
        features, classes = given.pop("in_features"), given["num_classes"]
        bias, made = given.pop("bias"), {key: given.pop(key) for key in ("device", "dtype")}
        given.pop("options")
        if (features is None) != (classes is None):
            raise UncorkError("in_features and num_classes are given together, or neither is")
        given["out_features"] = tuple(given["out_features"])
        super().__init__(**given)
        self.linear = None
        if features is not None:
            rows = math.prod(self.out_features, start=classes)
            self.linear = torch.nn.Linear(features, rows, bias=bias, **made)

    def forward(self, input: Tensor, *given: Any, **more: Any) -> Tensor:
        """Of `(input, target)`; without a layer of its own, of `(input, linear_weight, target)`."""
        if self.linear is None:
            return super().forward(input, *given, **more)
        return self._of_own_layer(input, *given, **more)

    def _of_own_layer(
        self, input: Tensor, target: Tensor, token_weight: Tensor | None = None
    ) -> Tensor:
        assert self.linear is not None
        assert self.num_classes is not None
        weight, bias = self.linear.weight, self.linear.bias
        if not self.out_features:
            return super().forward(input, weight, target, bias, token_weight)
        shape = (self.num_classes, *self.out_features)
        given, loss = self._given(), self.specification
        parameters = loss.parameters_from(given, linear=True)
        linear = LinearArguments(
            None if bias is None else bias.reshape(shape), self.softcap, self.input_grad,
            self.float32_accumulation, self.z_loss, token_weight,
        )  # fmt: skip
        return loss_at_positions(
            loss, parameters, input, weight.reshape(*shape, -1), target, Reduction(**given), linear
        ).loss


def module_of(loss: Loss, name: str) -> type[LossModule]:
    parameters = [*options_of(loss, False, POSITIONAL), *fields_of(Reduction, POSITIONAL)]
    doc = f"{words(loss)}\n\n:func:`uncork.nn.functional.{loss.names.function}` as a module."
    return _module(loss, LossModule, name, parameters, doc)


def linear_module_of(loss: Loss) -> type[LinearLossModule]:
    if loss.names.linear_module == "LinearCrossEntropyLoss":
        return _linear_module_as_torch(loss)
    parameters = [
        *options_of(loss, True, POSITIONAL),
        *fields_of(Reduction, POSITIONAL),
        *fields_of(LinearArguments, POSITIONAL, leave_out=_OF_CALL),
    ]
    doc = (
        f":func:`uncork.nn.functional.{loss.names.linear_function}` as a module.\n\n"
        "Called with `(input, linear_weight, target, linear_bias=None, token_weight=None)`: the\n"
        "layer stays where it is."
    )
    return _module(loss, LinearLossModule, loss.names.linear_module, parameters, doc)


def _linear_module_as_torch(loss: Loss) -> type[LinearLossModule]:
    """torch's module by this name (2.13): its arguments in its order, then ours."""
    reductions = {one.name: one for one in fields_of(Reduction)}
    reductions["ignore_index"] = reductions["ignore_index"].replace(annotation="int | None")
    order = ("reduction", "weight", "ignore_index", "label_smoothing")
    parameters = [
        parameter("in_features", "int | None", None, POSITIONAL),
        parameter("num_classes", "int | None", None, POSITIONAL),
        parameter("out_features", "tuple[int, ...]", ()),
        parameter("bias", "bool", False),
        parameter("device", "Any", None),
        parameter("dtype", "Any", None),
        *[reductions[name] for name in order],
        parameter("options", "Any", None),
        *fields_of(LinearArguments, leave_out=_OF_CALL),
    ]
    doc = (
        ":func:`uncork.nn.functional.linear_cross_entropy` as a module, as torch's own is called.\n"
        "\n"
        "With `in_features` and `num_classes` it has a layer of its own, `linear`, and is called\n"
        "with `(input, target)`. Without them the layer stays where it is, and the call is\n"
        "`(input, linear_weight, target, linear_bias=None, token_weight=None)`."
    )
    return _module(loss, LinearLayerLossModule, loss.names.linear_module, parameters, doc)


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
