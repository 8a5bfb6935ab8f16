"""What can arrive at the output layer of a Thinc model, by rules over the layers before it.

A LayerNorm starts anew; residual connections add ranges, linear layers and maxima carry them on.
The ranges hold with float32's rounding, but for that inside a LayerNorm, which is said.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from uncork.core.text import printable
from uncork.domain import Box
from uncork.loading.arriving.activation_ranges import MORE_RANGES, MOST_TERMS, computed
from uncork.loading.arriving.known import Known, Stopped, layer_norm
from uncork.loading.spacy.head import PASSING
from uncork.loading.spacy.model import PARSER, Layer, Model

_UNIT = 2.0**-24  # of float32, in which Thinc computes
_DEEPEST = 200
_MOST_WINDOW = 64
LISTENER = "tok2vec-listener"
_KEPT = ("dropout", "noop", "list2ragged", "ragged2list", "list2array", "list2padded",
         "padded2list", "array_getitem")  # fmt: skip
_REDUCED = ("reduce_first", "reduce_last", "reduce_max", "reduce_mean")
_ACTIVATIONS = {"relu": "relu", "mish": "mish", "swish": "silu", "gelu": "gelu",
                "sigmoid": "sigmoid"}  # fmt: skip

_RESIDUAL = " with residual connections"

Before = Callable[[], Known]
Upstream = Callable[[], tuple[str, Model]]  # the component that a listener listens to


@dataclass(frozen=True)
class Walk:
    """The layers of one model, and where what it listens to comes from."""

    model: Model
    upstream: Upstream

    def arriving(self, target: Layer) -> Known:
        """What is known of the numbers that a layer is given."""
        if not self.model.whole:
            raise Stopped("the file does not show how its layers are put together")
        return self._towards(self.model.root, target.index, _input, 0)()

    def _towards(self, layer: Layer, target: int, before: Before, depth: int) -> Before:
        if layer.index == target:
            return before
        for part in self.model.parts(layer):
            if self._holds(part, target, depth):
                if layer.how != ">>" and layer.how not in PASSING and layer.how != PARSER:
                    raise Stopped(f"the head lies inside {printable(layer.how)[:40]}")
                return self._towards(part, target, before, depth + 1)
            before = self._after(part, before, depth)
        raise Stopped("the head is not among the model's layers")

    def _holds(self, layer: Layer, target: int, depth: int) -> bool:
        if depth > _DEEPEST:
            raise Stopped("its layers are nested too deeply")
        return layer.index == target or any(
            self._holds(part, target, depth + 1) for part in self.model.parts(layer)
        )

    def _after(self, layer: Layer, before: Before, depth: int) -> Before:
        """What leaves a layer, worked out when it is asked for."""
        return functools.cache(lambda: self._value(layer, before, depth + 1))

    def _value(self, layer: Layer, before: Before, depth: int) -> Known:
        if depth > _DEEPEST:
            raise Stopped("its layers are nested too deeply")
        name, parts = layer.name, self.model.parts(layer)
        if layer.how == ">>":
            for part in parts:
                before = self._after(part, before, depth)
            return before()
        if layer.how in PASSING and layer.how != "with_getitem":
            return self._value(parts[0], before, depth + 1)
        if layer.how == "residual":
            return _added(before(), self._value(parts[0], before, depth + 1))
        if layer.how == "|":
            return _joined([self._value(part, before, depth + 1) for part in parts])
        if name == LISTENER:
            return self._heard()
        if name == "layernorm":
            return _norm(layer)
        if name in _KEPT:
            return before()
        if name in _REDUCED:
            return _reduced(before(), name)
        if name == "expand_window":
            return _window(before(), layer.attributes.get("window_size"))
        if name in ("linear", "maxout"):
            return _affine(layer, before())
        if name == "precomputable_affine":
            return _state(layer, before())
        if name in _ACTIVATIONS:
            return _activated(layer, before)
        raise Stopped(f"{printable(name)[:80]} precedes the head, and what it gives is not bounded")

    def _heard(self) -> Known:
        name, model = self.upstream()
        if not model.whole:
            raise Stopped(f"the file of {name} does not show how its layers are put together")
        known = Walk(model, _nothing_upstream)._value(model.root, _input, 0)
        said = f"{name} runs before it (spaCy puts zeros in its place otherwise)"
        return replace(known, what=f"{known.what} of {name}", assumed=(*known.assumed, said))


def _input() -> Known:
    raise Stopped("the model's own input arrives, which can be anything")


def _nothing_upstream() -> tuple[str, Model]:
    raise Stopped("it listens to a component that listens itself")


def _norm(layer: Layer) -> Known:
    gain, offset = (layer.arrays.get(name) for name in ("G", "b"))
    if gain is None or offset is None or len(gain.shape) != 1 or gain.shape != offset.shape:
        raise Stopped("layernorm has no gain and offset of one size")
    values = [one.read().astype(np.float64) for one in (gain, offset)]
    if gain.shape[0] < 2 or not all(np.isfinite(one).all() for one in values):
        raise Stopped("layernorm has a gain or offset that is not finite")
    return layer_norm("layernorm", values[0], values[1], gain.shape[0], "float32")


def sides(known: Known) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest value of each feature: (d,), (d,)."""
    domain = known.domain
    features = None if domain is None else domain.features
    found = None if domain is None or features is None else domain.sides(features)
    if found is None:
        raise Stopped(f"{known.what} gives no range for each feature")
    return found


def _ranged(known: Known, what: str, lower: np.ndarray, upper: np.ndarray) -> Known:
    if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
        raise Stopped(f"{what} gives numbers that are not bounded")
    return replace(known, what=what, sides=None, domain=Box(lower, upper), through=())


def _added(kept: Known, more: Known) -> Known:
    """A residual connection: both, added feature by feature."""
    low, high = sides(kept)
    least, most = sides(more)
    if low.shape != least.shape:
        raise Stopped("a residual connection adds values of two sizes")
    size = (np.maximum(np.abs(low), np.abs(high)) + np.maximum(np.abs(least), np.abs(most))) * (
        2 * _UNIT
    )
    assumed = tuple(dict.fromkeys((*kept.assumed, *more.assumed)))
    what = kept.what if kept.what.endswith(_RESIDUAL) else f"{more.what}{_RESIDUAL}"
    return replace(_ranged(kept, what, low + least - size, high + most + size), assumed=assumed)


def _joined(parts: list[Known]) -> Known:
    ranges = [sides(part) for part in parts]
    lower, upper = (np.concatenate([one[k] for one in ranges]) for k in (0, 1))
    assumed = tuple(dict.fromkeys(text for part in parts for text in part.assumed))
    what = " | ".join(dict.fromkeys(part.what for part in parts))
    return replace(_ranged(parts[0], what, lower, upper), assumed=assumed)


def _reduced(known: Known, name: str) -> Known:
    """The mean, largest, first or last of some rows; of none, zeros."""
    low, high = sides(known)
    wide = (MOST_TERMS + 2) * _UNIT if name == "reduce_mean" else 0.0
    low, high = low - wide * np.abs(low), high + wide * np.abs(high)
    made = _ranged(known, known.what, np.minimum(low, 0.0), np.maximum(high, 0.0)).passed(name)
    if name != "reduce_mean":
        return made
    return replace(
        made, assumed=(*made.assumed, f"{name} averages at most {MOST_TERMS:,} rows each")
    )


def _window(known: Known, size: object) -> Known:
    """Each row beside its neighbours; beyond the ends there are zeros."""
    if type(size) is not int or not 0 <= size <= _MOST_WINDOW:
        raise Stopped("expand_window has a width that is not known")
    low, high = sides(known)
    ends = np.minimum(low, 0.0), np.maximum(high, 0.0)
    lower, upper = (np.tile(end, 2 * size + 1) for end in ends)
    return _ranged(known, known.what, lower, upper).passed("expand_window")


def _product(weight: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, ...]:
    """Ranges of weight @ x, (…, d) and (d,) → (…,), and the size of the terms."""
    if weight.shape[-1] != low.size:
        raise Stopped(f"a layer of {weight.shape[-1]} inputs is given {low.size}")
    wide = weight.astype(np.float64)
    positive, negative = np.maximum(wide, 0.0), np.minimum(wide, 0.0)
    terms = np.abs(wide) @ np.maximum(np.abs(low), np.abs(high))
    return positive @ low + negative @ high, positive @ high + negative @ low, terms


def _affine(layer: Layer, known: Known) -> Known:
    """W x + b; of a maxout the largest of its pieces."""
    weight, bias = layer.arrays.get("W"), layer.arrays.get("b")
    if weight is None or bias is None or weight.shape[:-1] != bias.shape or len(weight.shape) < 2:
        raise Stopped(f"{layer.name} has no weight and bias that fit each other")
    offset = bias.read().astype(np.float64)
    lower, upper, terms = _product(weight.read(), *sides(known))
    slack = (weight.shape[-1] + 8) * _UNIT * (terms + np.abs(offset))
    lower, upper = lower + offset - slack, upper + offset + slack
    if layer.name == "maxout":
        lower, upper = lower.max(axis=-1), upper.max(axis=-1)
    return _ranged(known, layer.name, lower, upper)


def _state(layer: Layer, known: Known) -> Known:
    """A parser's state: for each place a token's vector or padding, added; the largest piece."""
    arrays = [layer.arrays.get(name) for name in ("W", "b", "pad")]
    shapes = [() if one is None else one.shape for one in arrays]
    if len(shapes[0]) != 4 or shapes[1] != shapes[0][1:3] or shapes[2] != (1, *shapes[0][:3]):
        raise Stopped("precomputable_affine has arrays that do not fit each other")
    weight, bias, padding = (one.read().astype(np.float64) for one in arrays if one is not None)
    lower, upper, terms = _product(weight, *sides(known))  # (places, width, pieces)
    lower, upper = np.minimum(lower, padding[0]), np.maximum(upper, padding[0])
    size = (np.maximum(terms, np.abs(padding[0]))).sum(axis=0) + np.abs(bias)
    slack = (weight.shape[0] + weight.shape[-1] + 8) * _UNIT * size
    low, high = lower.sum(axis=0) + bias - slack, upper.sum(axis=0) + bias + slack
    pieces = "maxout of a parser's state" if weight.shape[2] > 1 else "a parser's state"
    return _ranged(known, pieces, low.max(axis=-1), high.max(axis=-1))


def _activated(layer: Layer, before: Before) -> Known:
    """A linear layer with an activation: never below the activation's own least value."""
    name = _ACTIVATIONS[layer.name]
    ends = MORE_RANGES[name]
    ends = ends if name == "relu" else computed(ends, "float32")
    try:
        known = _affine(layer, before())
    except Stopped:
        return Known(layer.name, ends)
    low, high = sides(known)
    if name == "relu":
        return _ranged(known, "relu", np.maximum(low, 0.0), np.maximum(high, 0.0))
    # None of them gives more than its input, where that is positive, or than 0.
    upper = np.minimum(np.maximum(high, 0.0) * (1 + 2.0**-19), ends[1])
    lower = np.full(low.shape, ends[0])
    if name == "sigmoid":
        upper = np.full(low.shape, ends[1])
    return _ranged(known, layer.name, lower, upper)
