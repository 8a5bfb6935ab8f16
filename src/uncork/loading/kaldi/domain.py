"""What can arrive at the output layer of a Kaldi network, by rules over the components before it.

A ReLU, a sigmoid or a norm starts anew; batch normalisation with its stored statistics and linear
layers carry a range on, as a box or as the image of one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from uncork.core.text import printable
from uncork.domain import Box, Image
from uncork.loading.arriving.activation_ranges import MORE_RANGES, Sides, computed
from uncork.loading.arriving.known import Known, Stopped, rms_norm
from uncork.loading.kaldi.nnet import Component, Network, Node

_ACTIVATIONS = {
    "RectifiedLinearComponent": "relu", "SigmoidComponent": "sigmoid", "TanhComponent": "tanh",
    "SoftmaxComponent": "softmax", "LogSoftmaxComponent": "log_softmax",
}  # fmt: skip
_KEPT = ("NoOpComponent", "DropoutComponent", "GeneralDropoutComponent")
_LINEAR = ("AffineComponent", "NaturalGradientAffineComponent", "FixedAffineComponent",
           "LinearComponent", "TdnnComponent")  # fmt: skip
_MOST_STEPS = 64
_MOST_MATRIX = 1 << 26
_SLACK = 2.0**-18  # of statistics that Kaldi keeps as sums and turns into float32 scales
_TESTING = (
    "batch normalisation uses its stored statistics and dropout is off, as Kaldi's decoders set "
    "them"
)
_EXACT = "linear maps before the head are taken in real numbers, without rounding"


@dataclass(frozen=True)
class Matrix:
    """A linear component: weight (out, in), bias (out,) or None, and how many frames it takes."""

    weight: np.ndarray
    bias: np.ndarray | None
    frames: int


def matrix_of(component: Component) -> Matrix | None:
    """The linear map of a component; None where it has none, or its parts do not fit."""
    if component.kind not in _LINEAR:
        return None
    name = "<Params>" if component.kind == "LinearComponent" else "<LinearParams>"
    weight = component.array(name, 2)
    bias = component.array("<BiasParams>", 1)
    offsets = component.fields.get("<TimeOffsets>")
    frames = len(offsets) if isinstance(offsets, list) else 1
    if weight is None or frames < 1 or weight.shape[1] % frames:
        return None
    if bias is not None and bias.shape == (0,):
        bias = None
    if bias is not None and bias.shape != weight.shape[:1]:
        return None
    return Matrix(weight.read(), None if bias is None else bias.read(), frames)


def arriving(network: Network, node: Node, frames: int, features: int) -> Known:
    """What is known of what a node is given, over the frames that it takes."""
    known = _given(network, node, _MOST_STEPS)
    return _beside(known, frames, features)


def _given(network: Network, node: Node, steps: int) -> Known:
    before = network.before(node)
    if before is None:
        raise Stopped(f"{printable(node.name)} is given {printable(node.input)[:80]}")
    return _value(network, before, steps - 1)


def _value(network: Network, node: Node, steps: int) -> Known:
    component = network.component(node)
    if steps < 0:
        raise Stopped("the way back from the head has no end")
    if component is None:
        raise Stopped(f"{printable(node.name)} precedes the head, which can be anything")
    kind, name = component.kind, printable(node.name)
    if kind in _ACTIVATIONS:
        return Known(f"{_short(kind)} ({name})", _range(_ACTIVATIONS[kind]))
    if kind == "NormalizeComponent":
        return _normalised(component, f"{_short(kind)} ({name})")
    if kind in _KEPT:
        known = _given(network, node, steps).passed(f"{_short(kind)} ({name})")
        return known if kind == "NoOpComponent" else replace(known, assumed=_with(known, _TESTING))
    if kind == "BatchNormComponent":
        return _batch_norm(_given(network, node, steps), component, name)
    linear = matrix_of(component)
    if linear is not None:
        return _mapped(_given(network, node, steps), linear, f"{_short(kind)} ({name})")
    raise Stopped(f"{_short(kind)} ({name}) precedes the head, and what it gives is not bounded")


def _short(kind: str) -> str:
    return printable(kind.removesuffix("Component"))[:40]


def _range(name: str) -> Sides:
    sides = MORE_RANGES[name]
    return sides if name == "relu" else computed(sides, "float32")


def _with(known: Known, text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*known.assumed, text)))


def _normalised(component: Component, what: str) -> Known:
    """x divided by its root mean square over blocks, times a number: in a ball of that size."""
    features = component.integer("<InputDim>", component.integer("<Dim>", -1))
    whole = component.integer("<BlockDim>", features) == features
    target = component.real("<TargetRms>", 1.0)
    if component.fields.get("<AddLogStddev>") is True or not whole:
        raise Stopped(f"{what} precedes the head, and its form is not read")
    if features < 1 or not 0 < target < 1e6:
        raise Stopped(f"{what} has {features} features and the size {target:g}")
    return rms_norm(what, np.full(features, target), features, 2.0**-66, "float32")


def _batch_norm(known: Known, component: Component, name: str) -> Known:
    """(x − mean)·scale with the stored statistics; a block of them is repeated."""
    mean, variance = (component.array(key, 1) for key in ("<StatsMean>", "<StatsVar>"))
    features = component.integer("<Dim>", -1)
    if mean is None or variance is None or mean.shape != variance.shape or not mean.shape[0]:
        raise Stopped(f"BatchNorm ({name}) has no statistics")
    if features < 1 or features % mean.shape[0] or features > _MOST_MATRIX:
        raise Stopped(f"BatchNorm ({name}) has statistics that do not fit its size")
    if not component.real("<Count>", 0.0) > 0:
        raise Stopped(f"BatchNorm ({name}) has counted nothing")
    middle, spread = (one.read().astype(np.float64) for one in (mean, variance))
    with np.errstate(all="ignore"):
        scale = component.real("<TargetRms>", 1.0) / np.sqrt(
            np.maximum(spread, 0.0) + component.real("<Epsilon>", 1e-3)
        )
        offset = -middle * scale
    repeats = features // mean.shape[0]
    scale, offset = np.tile(scale, repeats), np.tile(offset, repeats)
    if not (np.isfinite(scale).all() and np.isfinite(offset).all() and (scale > 0).all()):
        raise Stopped(f"BatchNorm ({name}) has statistics that are not finite")
    assumed = _with(known, _TESTING)
    domain = known.domain
    if domain is None or domain.is_box:
        lower, upper = _sides(known, features)
        with np.errstate(all="ignore"):
            ends = lower * scale + offset, upper * scale + offset
            slack = [
                _SLACK * (np.where(np.isfinite(end), np.abs(end * scale), 0.0) + np.abs(offset))
                for end in (lower, upper)
            ]
        found = Box(ends[0] - slack[0], ends[1] + slack[1])
        known = replace(known, sides=None, domain=found, assumed=assumed)
    else:
        domain.check(features)
        found_image = Image(domain, np.diag(scale), offset)
        known = replace(known, domain=found_image, assumed=assumed)
    return known.passed(f"BatchNorm ({name})")


def _sides(known: Known, features: int) -> tuple[np.ndarray, np.ndarray]:
    if known.sides is not None:
        return np.full(features, known.sides[0]), np.full(features, known.sides[1])
    assert known.domain is not None
    found = known.domain.sides(features)
    assert found is not None
    return found


def _beside(known: Known, frames: int, features: int) -> Known:
    """The same for rows of several frames, one beside the other."""
    if frames == 1:
        return known
    if known.domain is not None and not known.domain.is_box:
        raise Stopped(f"the head takes {frames} frames of {known.what}")
    lower, upper = _sides(known, features // frames)
    found = Box(np.tile(lower, frames), np.tile(upper, frames))
    return replace(known, sides=None, domain=found)


def _mapped(known: Known, linear: Matrix, what: str) -> Known:
    """The image of a range under a linear layer, exactly."""
    rows, columns = linear.weight.shape
    if rows * columns > _MOST_MATRIX:
        raise Stopped(f"{what} is too large to be followed")
    known = _beside(known, linear.frames, columns)
    inner = known.domain
    if inner is None:
        inner = Box(*_sides(known, columns))
    inner.check(columns)
    found = Image(inner, linear.weight, linear.bias)
    return replace(known, sides=None, domain=found, assumed=_with(known, _EXACT)).passed(what)
