"""What arrives at the last Dense layer of a Keras model: the range of what precedes it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from uncork.domain import Ball, Box, Domain, LayerNorm, RMSNorm
from uncork.load.activation_ranges import RANGES
from uncork.load.contents import FoundDomain, printable
from uncork.load.keras.graph import Layer

Variables = Callable[[Layer], list[np.ndarray]]  # a layer's stored arrays, in Keras's order

_SLACK = 2.0**-20  # what float32 run-times are off by, and a little more
_ACTIVATIONS: dict[str, tuple[float, float]] = RANGES | {
    "gelu": RANGES["gelu_new"],  # either form: the wider range
    "softplus": (0, math.inf), "exponential": (0, math.inf), "softsign": (-1, 1),
    "hard_tanh": (-1, 1), "hard_sigmoid": (0, 1), "softmax": (0, 1), "sparsemax": (0, 1),
    "mish": (-0.30885, math.inf), "elu": (-1, math.inf), "selu": (-1.7581, math.inf),
    "hard_silu": RANGES["hardswish"], "hard_swish": RANGES["hardswish"],
    "log_softmax": (-math.inf, 0), "log_sigmoid": (-math.inf, 0),
}  # fmt: skip
# Layers that hand on some of their values, or means of them: a range stays the same.
_PASSED = (
    "Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "AlphaDropout",
    "GaussianDropout", "GaussianNoise", "ActivityRegularization", "Identity", "Masking",
)  # fmt: skip
_AVERAGES = (
    "GlobalAveragePooling1D", "GlobalAveragePooling2D", "GlobalAveragePooling3D",
    "AveragePooling1D", "AveragePooling2D", "AveragePooling3D",
)  # fmt: skip
_REARRANGED = (
    "Flatten", "Reshape", "Permute", "RepeatVector", "Cropping1D", "Cropping2D", "Cropping3D",
    "MaxPooling1D", "MaxPooling2D", "MaxPooling3D", "GlobalMaxPooling1D", "GlobalMaxPooling2D",
    "GlobalMaxPooling3D", "UpSampling1D", "UpSampling2D",
)  # fmt: skip
_MERGED = ("Concatenate", "Average", "Maximum", "Minimum")
_RECURRENT = ("LSTM", "GRU", "SimpleRNN")
_BOUNDED_GATES = ("sigmoid", "hard_sigmoid", "tanh", "softmax")
_MOST_STEPS = 200


def domain_before(layer: Layer, variables: Variables) -> FoundDomain | None:
    """The inputs that can arrive at a layer; None where the model does not bound them."""
    given = layer.scope.given(layer)
    if len(given) != 1 or given[0] is None:
        return None
    through: list[str] = []
    convex = True  # whether only means were taken so far, which no convex set is left by
    current = given[0]
    for _ in range(_MOST_STEPS):
        if current.kind in _PASSED or current.kind in _AVERAGES or current.kind in _REARRANGED:
            through.append(current.kind)
            convex &= current.kind not in _REARRANGED
            inner = current.scope.given(current)
            if len(inner) != 1 or inner[0] is None:
                return None
            current = inner[0]
            continue
        found = _norm(current, variables) if convex else None
        if found is None:
            sides = _range(current, _MOST_STEPS)
            found = None if sides is None else (Box(*_widened(sides)), _describe(current))
        if found is None:
            return None
        way = f", through {' and '.join(dict.fromkeys(reversed(through)))}" if through else ""
        return FoundDomain(found[0], f"{found[1]} precedes the head{way}")
    return None


def _describe(layer: Layer) -> str:
    name = printable(layer.name)
    if layer.kind in _MERGED or layer.activation == "linear" or layer.kind in _RECURRENT:
        return f"{layer.kind} {name!r}"
    return f"{layer.activation} ({layer.kind} {name!r})"


def _norm(layer: Layer, variables: Variables) -> tuple[Domain, str] | None:
    """A layer that normalises the last axis, with its stored parameters."""
    what = f"{layer.kind} {printable(layer.name)!r}"
    if layer.kind == "UnitNormalization" and layer.setting("axis") in (-1, [-1]):
        return Ball(1 + _SLACK), what
    if layer.kind not in ("LayerNormalization", "RMSNormalization"):
        return None
    if layer.setting("axis") not in (-1, [-1], None) or layer.setting("rms_scaling"):
        return None
    stored = [np.asarray(value, np.float64) for value in variables(layer)]
    if layer.kind == "RMSNormalization":
        return (RMSNorm(stored[0]), what) if len(stored) == 1 else None
    scale, centre = layer.setting("scale") is not False, layer.setting("center") is not False
    if len(stored) != scale + centre or not stored:
        return None
    return LayerNorm(stored[0] if scale else None, stored[-1] if centre else None), what


def _range(layer: Layer, steps: int) -> tuple[float, float] | None:
    """The least and the largest a layer can give, None where neither is bounded."""
    if steps <= 0:
        return None
    if layer.kind in _MERGED:
        sides = []
        for part in layer.scope.given(layer)[:64]:
            side = None if part is None else _range_through(part, steps // 4)
            if side is None:
                return None
            sides.append(side)
        return (min(s[0] for s in sides), max(s[1] for s in sides)) if sides else None
    if layer.kind in _RECURRENT or layer.kind == "Bidirectional":
        return _recurrent(layer)
    if layer.kind == "ReLU":
        return _relu(layer)
    if layer.kind == "ELU":
        alpha = layer.setting("alpha")
        alpha = 1.0 if alpha is None else alpha
        return (-float(alpha), math.inf) if isinstance(alpha, int | float) and alpha >= 0 else None
    if layer.kind == "Softmax":
        return 0.0, 1.0
    if layer.kind in ("Dense", "Activation", "EinsumDense") or "Conv" in layer.kind:
        return _ACTIVATIONS.get(layer.activation)
    return None


def _range_through(layer: Layer, steps: int) -> tuple[float, float] | None:
    for _ in range(steps):
        if layer.kind not in (*_PASSED, *_AVERAGES, *_REARRANGED):
            return _range(layer, steps - 1)
        given = layer.scope.given(layer)
        if len(given) != 1 or given[0] is None:
            return None
        layer = given[0]
    return None


def _relu(layer: Layer) -> tuple[float, float] | None:
    slope = layer.setting("negative_slope")
    most, threshold = layer.setting("max_value"), layer.setting("threshold")
    if slope not in (None, 0, 0.0) or threshold not in (None, 0, 0.0):
        return None
    return 0.0, float(most) if isinstance(most, int | float) else math.inf


def _recurrent(layer: Layer) -> tuple[float, float] | None:
    """A gate times tanh, or means of tanh, stays within ±1."""
    if layer.kind == "Bidirectional":
        inner = layer.setting("layer")
        if not isinstance(inner, dict) or not isinstance(inner.get("config"), dict):
            return None
        kind = str(inner.get("class_name"))
        sides = _recurrent(Layer(kind, layer.name, inner["config"], layer.scope, layer.node))
        if layer.setting("merge_mode") == "sum" and sides is not None:
            return 2 * sides[0], 2 * sides[1]
        return sides if layer.setting("merge_mode") in ("concat", "ave", "mul", None) else None
    if layer.kind not in _RECURRENT or layer.activation not in ("tanh", "sigmoid", "hard_sigmoid"):
        return None
    gate = layer.setting("recurrent_activation")
    if layer.kind != "SimpleRNN" and gate not in _BOUNDED_GATES:
        return None
    return -1.0, 1.0


def _widened(sides: tuple[float, float]) -> tuple[float, float]:
    """A little more than the range in real numbers, as float32 can step over a limit."""
    lower, upper = sides
    return lower - _SLACK * abs(lower), upper + _SLACK * abs(upper)
