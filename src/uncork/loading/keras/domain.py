"""What arrives at the last Dense layer of a Keras model: one rule a class of Keras's own.

`graph` gives classes and functions that are not Keras's own a name that no rule has. Rules read
the settings they depend on; a setting that a rule does not know ends the search.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from uncork.core.text import printable
from uncork.loading.arriving.activation_ranges import (
    COMPARED,
    MORE_RANGES,
    Sides,
    computed,
    known_type,
    rounded_outward,
)
from uncork.loading.arriving.known import Known, Stopped, found_by, layer_norm, rms_norm, unit_norm
from uncork.loading.contents import FoundDomain, UnknownDomain
from uncork.loading.keras.graph import Layer, kind_of

Variables = Callable[[Layer], list[np.ndarray]]  # a layer's stored arrays, in Keras's order

_ACTIVATIONS: dict[str, Sides] = {
    name: MORE_RANGES[name]
    for name in ("relu", "relu6", "tanh", "sigmoid", "silu", "swish", "mish", "selu", "softplus",
                 "softsign", "exponential", "hard_sigmoid", "softmax", "log_softmax", "log_sigmoid")
} | {
    "gelu": MORE_RANGES["gelu_new"],  # either form: the wider range
    "hard_silu": MORE_RANGES["hardswish"], "hard_swish": MORE_RANGES["hardswish"],
    "hard_tanh": (-1.0, 1.0), "elu": (-1.0, math.inf), "celu": (-1.0, math.inf),
}  # fmt: skip
_GATES = ("sigmoid", "hard_sigmoid")  # between 0 and 1
_STATES = ("tanh", "sigmoid", "hard_sigmoid", "softsign", "hard_tanh")  # within ±1
_MOST_LAYERS = 200  # looked at on the way back
_MOST_INPUTS = 64  # of a layer that joins values


def domain_before(layer: Layer, variables: Variables) -> FoundDomain | UnknownDomain:
    """The inputs that can arrive at a layer, or the layer of which nothing is known."""
    return found_by(lambda: _Walk(variables).into_head(layer))


class _Walk:
    """One walk back from the head."""

    def __init__(self, variables: Variables) -> None:
        self.variables = variables
        self.seen = 0

    def into_head(self, head: Layer) -> Known:
        known = self.before(head)
        if head.kind != "Dense" and _features_first(head):
            known = known.rearranged(_called(head))
        return known

    def before(self, layer: Layer) -> Known:
        """What is known of a layer's only input, in the layer's own type."""
        given = layer.scope.given(layer)
        if len(given) != 1:
            raise Stopped(f"{_called(layer)} is given {len(given)} values")
        return self._cast(layer, self._after(given[0], layer))

    def _cast(self, layer: Layer, known: Known) -> Known:
        if not known_type(layer.float_type):
            raise Stopped(f"{_called(layer)} computes in {printable(layer.float_type)[:80]}")
        return known.cast(_called(layer), layer.float_type)

    def _after(self, layer: Layer | None, user: Layer) -> Known:
        if layer is None:
            raise Stopped(f"{_called(user)} is given the model's own input, which can be anything")
        what = _called(layer)
        self.seen += 1
        if self.seen > _MOST_LAYERS:
            raise Stopped(f"{what} is too far from the head: {_MOST_LAYERS} layers were looked at")
        rule = _RULES.get(layer.kind)
        if rule is None:
            raise Stopped(f"{what} precedes the head, and what it gives is not bounded")
        if layer.tensor:
            raise Stopped(f"of {what} it is result {layer.tensor}, which is not known")
        if not known_type(layer.float_type):
            raise Stopped(f"{what} computes in {printable(layer.float_type)[:80]}")
        return rule(self, layer)

    # Layers that say themselves what they give

    def function(self, layer: Layer) -> Known:
        """A layer that ends in one of Keras's functions."""
        sides = _ACTIVATIONS.get(layer.activation)
        if sides is None:
            given = "any number" if layer.activation == "linear" else "what is not known"
            raise Stopped(
                f"{_called(layer)} ends in {printable(layer.activation)[:80]} and gives {given}"
            )
        return _source(
            layer, f"{layer.activation} ({_called(layer)})", sides, layer.activation in COMPARED
        )

    def relu(self, layer: Layer) -> Known:
        slope, threshold, most = (
            layer.setting(key) for key in ("negative_slope", "threshold", "max_value")
        )
        if slope not in (None, 0) or threshold not in (None, 0):
            raise Stopped(f"{_called(layer)} has a slope below zero or a threshold")
        upper = math.inf if most is None else _number(layer, "max_value")
        return Known(
            _called(layer), rounded_outward((0.0, max(upper, 0.0)), layer.float_type),
            dtype=layer.float_type,
        )  # fmt: skip

    def elu(self, layer: Layer) -> Known:
        alpha = 1.0 if layer.setting("alpha") is None else _number(layer, "alpha")
        if not alpha >= 0:
            raise Stopped(f"{_called(layer)} has α = {alpha:g}")
        return _source(layer, _called(layer), (0.0 - alpha, math.inf))

    def softmax(self, layer: Layer) -> Known:
        return _source(layer, _called(layer), (0.0, 1.0))

    def recurrent(self, layer: Layer) -> Known:
        """Whatever arrives, the state stays within ±1: see `_state`."""
        if len(layer.scope.given(layer)) != 1 or layer.scope.call_settings(
            layer.name, layer.node
        ).get("initial_state"):
            raise Stopped(f"{_called(layer)} is given a state to begin with")
        return _source(layer, _called(layer), _state(layer, layer.kind, layer.config))

    def both_ways(self, layer: Layer) -> Known:
        merge = layer.setting("merge_mode")
        sides = (0.0, 0.0)
        forward = layer.setting("layer")
        for inner in (forward, layer.setting("backward_layer") or forward):
            config = inner.get("config") if isinstance(inner, dict) else None
            if not isinstance(inner, dict) or not isinstance(config, dict):
                raise Stopped(f"{_called(layer)} does not say what it runs")
            one = _state(layer, kind_of(inner), config)
            sides = min(sides[0], one[0]), max(sides[1], one[1])
        if len(layer.scope.given(layer)) != 1 or layer.scope.call_settings(
            layer.name, layer.node
        ).get("initial_state"):
            raise Stopped(f"{_called(layer)} is given a state to begin with")
        if merge == "sum":
            sides = 2 * sides[0], 2 * sides[1]
        elif merge not in ("concat", "ave", "mul"):
            raise Stopped(f"{_called(layer)} joins its two ways by {str(merge)[:80]}")
        return _source(layer, _called(layer), sides)

    def layer_norm(self, layer: Layer) -> Known:
        if layer.setting("rms_scaling"):
            raise Stopped(f"{_called(layer)} divides by the variance without taking the mean out")
        scale, centre = layer.setting("scale") is not False, layer.setting("center") is not False
        stored = self._stored(layer, scale + centre)
        features = self._features(layer, stored)
        return layer_norm(
            _called(layer), stored[0] if scale else None, stored[-1] if centre else None,
            features, layer.float_type,
        )  # fmt: skip

    def rms_norm(self, layer: Layer) -> Known:
        stored = self._stored(layer, 1)
        epsilon = _number(layer, "epsilon") if "epsilon" in layer.config else 1e-6
        return rms_norm(
            _called(layer), stored[0], self._features(layer, stored), epsilon, layer.float_type
        )

    def unit_norm(self, layer: Layer) -> Known:
        if layer.float_type not in ("float32", "float64"):
            raise Stopped(f"{_called(layer)} sums squares in {layer.float_type}")
        return unit_norm(_called(layer), self._features(layer, []), layer.float_type)

    def _stored(self, layer: Layer, count: int) -> list[np.ndarray]:
        stored = [np.asarray(value, np.float64) for value in self.variables(layer)]
        if len(stored) != count or any(value.ndim != 1 for value in stored):
            raise Stopped(f"the parameters of {_called(layer)} are not found")
        return stored

    def _features(self, layer: Layer, stored: list[np.ndarray]) -> int:
        """How many features a norm of the last axis has."""
        axis, shape = layer.setting("axis"), layer.shape
        axis = axis[0] if isinstance(axis, list) and len(axis) == 1 else axis
        if axis not in (-1, None) and (shape is None or axis != len(shape) - 1 or layer.wrapped):
            raise Stopped(f"{_called(layer)} normalises over axis {str(axis)[:80]}, not the last")
        size = len(stored[0]) if stored else shape[-1] if shape else None
        if size is None or size < 1:
            raise Stopped(f"how many features {_called(layer)} has is not said")
        return size

    # Layers that hand on what they are given

    def passed(self, layer: Layer) -> Known:
        return self.before(layer).passed(layer.kind)

    def dropout(self, layer: Layer) -> Known:
        known = self.before(layer)
        if not layer.training:
            return known.passed(layer.kind)
        if layer.kind not in (
            "Dropout",
            "SpatialDropout1D",
            "SpatialDropout2D",
            "SpatialDropout3D",
        ):
            raise Stopped(f"{_called(layer)} is called in training mode")
        return known.dropped(_called(layer), _number(layer, "rate"))

    def zeroed(self, layer: Layer) -> Known:
        return self.before(layer).with_zero(layer.kind)

    def rearranged(self, layer: Layer) -> Known:
        return self.before(layer).rearranged(layer.kind)

    def nearest(self, layer: Layer) -> Known:
        if layer.setting("interpolation") not in ("nearest", None):
            raise Stopped(f"{_called(layer)} interpolates")
        return self.before(layer).rearranged(layer.kind)

    def largest(self, layer: Layer) -> Known:
        return self.before(layer).with_zero(layer.kind)  # what "same" pads with

    def mean(self, layer: Layer) -> Known:
        first = _features_first(layer)
        return self.before(layer).averaged(layer.kind, _terms(layer, first), not first)

    def joined(self, layer: Layer) -> Known:
        given = layer.scope.given(layer)
        if not 0 < len(given) <= _MOST_INPUTS:
            raise Stopped(f"{_called(layer)} joins {len(given)} values")
        parts = [self._cast(layer, self._after(part, layer)) for part in given]
        known = functools.reduce(lambda a, b: a.hull(b, _called(layer)), parts)
        known = replace(known.rearranged(_called(layer)), what=_called(layer), through=())
        return known.averaged(_called(layer), len(given)) if layer.kind == "Average" else known


def _rules() -> dict[str, Callable[[_Walk, Layer], Known]]:
    many: list[tuple[Callable[[_Walk, Layer], Known], str]] = [
        (_Walk.function,
         "Dense EinsumDense Activation Conv1D Conv2D Conv3D Conv1DTranspose Conv2DTranspose "
         "Conv3DTranspose SeparableConv1D SeparableConv2D DepthwiseConv1D DepthwiseConv2D"),
        (_Walk.relu, "ReLU"), (_Walk.elu, "ELU"), (_Walk.softmax, "Softmax"),
        (_Walk.recurrent, "LSTM GRU SimpleRNN"), (_Walk.both_ways, "Bidirectional"),
        (_Walk.layer_norm, "LayerNormalization"), (_Walk.rms_norm, "RMSNormalization"),
        (_Walk.unit_norm, "UnitNormalization"),
        (_Walk.passed, "Identity ActivityRegularization"),
        (_Walk.dropout,
         "Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D AlphaDropout "
         "GaussianDropout GaussianNoise"),
        (_Walk.zeroed, "Masking ZeroPadding1D ZeroPadding2D ZeroPadding3D"),
        (_Walk.rearranged,
         "Flatten Reshape Permute RepeatVector Cropping1D Cropping2D Cropping3D UpSampling1D "
         "UpSampling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D"),
        (_Walk.nearest, "UpSampling2D"),
        (_Walk.largest, "MaxPooling1D MaxPooling2D MaxPooling3D"),
        (_Walk.mean,
         "GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D "
         "AveragePooling1D AveragePooling2D AveragePooling3D"),
        (_Walk.joined, "Concatenate Average Maximum Minimum"),
    ]  # fmt: skip
    return {kind: rule for rule, kinds in many for kind in kinds.split()}


_RULES = _rules()


def _source(layer: Layer, what: str, sides: Sides, exact: bool = False) -> Known:
    dtype = layer.float_type
    return Known(what, sides if exact else computed(sides, dtype), dtype=dtype)


def _state(layer: Layer, kind: str, config: Any) -> Sides:
    """What a recurrent layer can give.

    SimpleRNN: a function of something. LSTM: a gate within ±1 times a function of something. GRU:
    from zero, means of such functions, if its gate is between 0 and 1; with tanh it is not a mean.
    """
    what = _called(layer)
    inner = replace(layer, kind=kind, config=config)
    gates: tuple[str, ...] = _GATES if kind == "GRU" else (*_GATES, "tanh")
    gate = inner.setting("recurrent_activation")
    if kind not in ("LSTM", "GRU", "SimpleRNN") or inner.activation not in _STATES:
        raise Stopped(f"{what} runs {printable(kind)[:80]} with {printable(inner.activation)[:80]}")
    if kind != "SimpleRNN" and gate not in gates:
        raise Stopped(f"{what} has the gate {printable(str(gate))[:80]}, not one between 0 and 1")
    return -1.0, 1.0


def _features_first(layer: Layer) -> bool:
    """Whether its features may come before its places."""
    return layer.setting("data_format") not in ("channels_last", None)


def _terms(layer: Layer, first: bool) -> int | None:
    """How many numbers an average is made of, where the configuration says so."""
    sizes: Any
    if layer.kind.startswith("Global"):
        sizes = layer.shape and (layer.shape[2:] if first else layer.shape[1:-1])
        if layer.wrapped:
            return None
    else:
        size, axes = layer.setting("pool_size"), int(layer.kind[-2])
        sizes = size if isinstance(size, list) and len(size) == axes else [size] * axes
    known = isinstance(sizes, list) and all(type(n) is int and n > 0 for n in sizes)
    return math.prod(sizes) if known else None


def _number(layer: Layer, key: str) -> float:
    value = layer.setting(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Stopped(f"{_called(layer)} has {key} = {printable(str(value))[:80]}")
    return float(value)


def _called(layer: Layer) -> str:
    return f"{printable(layer.kind)[:80]} {printable(layer.name)!r}"
