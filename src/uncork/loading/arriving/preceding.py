"""The domain that a located head's norm or activation gives, from the numbers stored for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from uncork.core.text import printable
from uncork.domain import Box, Domain, Image, LayerNorm, RMSNorm
from uncork.loading.arriving.activation_ranges import COMPARED, RANGES, computed, known_type
from uncork.loading.arriving.known import LAYER_NORM_ASSUMED, NORM_ASSUMED
from uncork.loading.contents import FoundDomain, Tensor
from uncork.loading.hugging_face.architectures import (
    NO_PARAMETERS,
    ONE_PLUS,
    ONE_PLUS_FLOAT32,
    Activation,
    Norm,
)
from uncork.loading.hugging_face.locate import Located

# Files spell some types their own way.
_FLOATS = {"f8": "float64", "f4": "float32", "f2": "float16", "F64": "float64", "F32": "float32",
           "F16": "float16", "BF16": "bfloat16"}  # fmt: skip


def found_domain(
    located: Located, tensors: Mapping[str, Tensor], features: int
) -> FoundDomain | None:
    """What precedes the head, as a domain; None where that is not known or does not fit."""
    step = located.before
    assumed = []
    if isinstance(step, Norm):
        found = _norm(located, step, tensors, features)
        assumed.append(LAYER_NORM_ASSUMED if step.kind == "LayerNorm" else NORM_ASSUMED)
    else:
        found = None if step is None else _activation(step, tensors[located.weight].dtype)
    if found is None:
        return None
    domain, why = found
    if located.layout.padding:
        assumed.append("padded positions, whose inputs are set to zero, are left out")
    if located.config.get("auto_map"):
        assumed.append(
            "the model's own code (auto_map in config.json) does what transformers' "
            f"{located.kind!r} does"
        )
    return FoundDomain(domain, why, "; ".join(assumed))


def _activation(step: Activation, dtype: str) -> tuple[Domain, str] | None:
    """Its range as computed in the type the head is stored in, which the model runs in."""
    sides = RANGES[step.name]  # `locate` leaves none whose range is not known
    what = f"{step.name} of {step.of}"
    if step.name in COMPARED:
        return Box(*sides), f"{what} precedes the head"
    dtype = _FLOATS.get(dtype, dtype)
    if not known_type(dtype):
        return None
    return Box(*computed(sides, dtype)), f"{what}, computed in {dtype}, precedes the head"


def _norm(
    located: Located, step: Norm, tensors: Mapping[str, Tensor], features: int
) -> tuple[Domain, str] | None:
    matrix, shift = _array(tensors, located.project), _array(tensors, located.project_offset)
    width = features // step.times
    if width * step.times != features:
        return None
    if matrix is not None:
        if matrix.ndim != 2 or matrix.shape[0] != features:
            return None
        width = matrix.shape[1]
    gain = _gain(step, _array(tensors, located.gain))
    offset = _array(tensors, located.offset)
    if any(array is not None and array.shape != (width,) for array in (gain, offset)):
        return None
    steps = [f"{step.kind} {_parameters(located, step)}"]
    if step.times > 1:
        # Side by side, their lengths are known one by one; together they are bounded by both.
        gain, offset = (a if a is None else np.tile(a, step.times) for a in (gain, offset))
        width = features
        steps[0] += f", {step.times} outputs of it side by side,"
    if located.layout.divisor:
        divisor = _divisor(located)
        if divisor is None:
            return None
        gain = (np.ones(width) if gain is None else gain) / divisor
        offset = None if offset is None else offset / divisor
        steps.append(f"the divisor {divisor:g} ({' / '.join(located.layout.divisor)})")
    if located.layout.shrink and _shrinks(located):
        # A power of two in T5's own sizes; elsewhere within rounding, as the model's product is.
        gain = (np.ones(width) if gain is None else gain) * float(features) ** -0.5
        steps.append(f"the factor {features}^-½ of a tied head")
    inner: LayerNorm | RMSNorm
    if step.kind == "LayerNorm":
        inner = LayerNorm(gain, offset, features=width)
    else:
        inner = RMSNorm(gain, features=width)
    if matrix is not None:
        steps.append(f"the linear map {printable(str(located.project))}")
    last = ", then ".join(steps) + (" precede the head" if len(steps) > 1 else " precedes the head")
    return (inner if matrix is None else Image(inner, matrix, shift)), last


def _divisor(located: Located) -> float | None:
    """What the head's input is divided by; None where the configuration does not say."""
    found = [located.config.get(key) for key in located.layout.divisor]
    sizes = [float(v) for v in found if isinstance(v, int | float) and v > 0]
    if not sizes or len(sizes) < len(found):
        return None
    return sizes[0] / (sizes[1] if len(sizes) > 1 else 1.0)


def _gain(step: Norm, stored: np.ndarray | None) -> np.ndarray | None:
    """The gain as the model computes it from what is stored."""
    if stored is None or step.gain == NO_PARAMETERS:
        return None
    if step.gain == ONE_PLUS:
        stored = (stored + stored.dtype.type(1)).astype(stored.dtype)
    elif step.gain == ONE_PLUS_FLOAT32:
        stored = np.float32(1) + stored.astype(np.float32)
    return stored.astype(np.float64)


def _parameters(located: Located, step: Norm) -> str:
    if located.gain is None:
        return f"without parameters, as model type {located.kind!r} has it,"
    gain = printable(located.gain)
    if step.gain in (ONE_PLUS, ONE_PLUS_FLOAT32):
        gain = f"1 + {gain}"
    if located.offset is None:
        return f"with gain {gain}"
    return f"with gain {gain} and offset {printable(located.offset)}"


def _shrinks(located: Located) -> bool:
    config: Mapping[str, Any] = located.config
    setting = config.get(located.layout.shrink)
    # Older configurations say it by `tie_word_embeddings` alone.
    return (config.get("tie_word_embeddings") if setting is None else setting) is not False


def _array(tensors: Mapping[str, Tensor], name: str | None) -> np.ndarray | None:
    return None if name is None else tensors[name].read()
