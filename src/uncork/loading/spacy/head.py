"""Which layer of a Thinc model gives its scores, and what follows it."""

from __future__ import annotations

from dataclasses import dataclass

from uncork.core.text import printable
from uncork.loading.spacy.model import PARSER, Layer, Model

LINEAR = ("softmax", "linear")
# Layers around another that only change how rows are kept together.
PASSING = ("with_array", "with_cpu", "with_list", "with_ragged", "with_padded", "with_flatten",
           "with_getitem", "resizable", "uniqued", "with_debug")  # fmt: skip
_AFTER = ("logistic", "sigmoid_activation", "softmax_activation", "dropout", "noop")
_MOST_STEPS = 1000


class NoHead(Exception):
    """The model has no linear layer at its end; the text says what it has."""


@dataclass(frozen=True)
class Ending:
    """The layer that gives the scores, and the names of what follows it."""

    layer: Layer
    after: tuple[str, ...]
    sure: bool = True  # whether the tree of layers shows it


def ending(model: Model) -> Ending:
    """The linear layer at the model's end."""
    if model.root.name == PARSER:
        return _upper(model)
    if not model.whole:
        return _referred(model)
    layer, after = model.root, []
    for _ in range(_MOST_STEPS):
        parts = model.parts(layer)
        if layer.how == ">>":
            while len(parts) > 1 and unwrapped(model, parts[-1]).name in _AFTER:
                after.append(unwrapped(model, parts.pop()).name)
            layer = parts[-1]
        elif layer.how in PASSING:
            layer = parts[0]
        else:
            break
    if not is_linear(layer):
        raise NoHead(f"it ends in {printable(layer.name)[:80]}")
    return Ending(layer, tuple(after))


def unwrapped(model: Model, layer: Layer) -> Layer:
    """The layer inside others that only change how rows are kept together."""
    for _ in range(_MOST_STEPS):
        if layer.how not in PASSING:
            break
        layer = model.parts(layer)[0]
    return layer


def is_linear(layer: Layer) -> bool:
    """Whether this is W x + b, as far as its name and its parameters go."""
    weight, bias = layer.arrays.get("W"), layer.arrays.get("b")
    if layer.name not in LINEAR or weight is None or len(weight.shape) != 2:
        return False
    return bias is None or bias.shape == weight.shape[:1]


def _upper(model: Model) -> Ending:
    """A transition-based parser scores its moves in its upper layer, where it has one."""
    if model.root.attributes.get("has_upper") is not True:
        raise NoHead(
            "its scores are sums over places of the parser's state, or maxima of such sums "
            "(use_upper = false), not one linear layer"
        )
    upper = model.referred("upper")
    if upper is None or not is_linear(upper):
        raise NoHead("its upper layer is not linear")
    return Ending(upper, ())


def _referred(model: Model) -> Ending:
    """Where the tree of layers is not known: the output layer by the name the model gives it."""
    for name in ("output_layer", "softmax"):
        layer = model.referred(name)
        if layer is not None and is_linear(layer):
            same = model.root.dims.get("nO") == layer.arrays["W"].shape[0]
            if same:
                return Ending(layer, (), sure=False)
    raise NoHead("its file does not show how its layers are put together")
