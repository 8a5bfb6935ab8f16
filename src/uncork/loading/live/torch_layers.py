"""What torch's own modules do to ranges: one rule a class, by the class itself, not its name.

`known_after` walks back through layers that run one after the other. A rule is looked up by
`type(module)`, so that a subclass or a namesake has none; attributes a rule depends on are read
from the module as it is now. What has no rule ends the search.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from uncork.loading.arriving.activation_ranges import (
    COMPARED,
    MORE_RANGES,
    Sides,
    computed,
    known_type,
    rounded_outward,
)
from uncork.loading.arriving.known import Known, Stopped, layer_norm, rms_norm
from uncork.loading.live.library_code import changed

Before = Callable[[], Known]  # what is known of a module's input, asked only where it matters
Rule = Callable[[Any, str, str, Before], Known]  # module, its name in words, float type, before


def known_after(steps: Sequence[tuple[str, Any]], dtype: str) -> Known:
    """What is known of the value after the last of these layers."""
    if not known_type(dtype):
        raise Stopped(f"the model computes in {dtype}, whose rounding is not known")
    if not steps:
        raise Stopped("nothing precedes the head in its nn.Sequential")
    name, module = steps[-1]
    what = f"{type(module).__name__} {name}"
    if (reason := changed(module)) is not None:
        raise Stopped(f"{what}: {reason}")
    rule = _rules().get(type(module))
    if rule is None:
        raise Stopped(f"{what} precedes the head, and what it gives is not bounded")
    return rule(module, what, dtype, lambda: known_after(steps[:-1], dtype))


@functools.cache
def _rules() -> dict[type, Rule]:
    from torch import nn

    named = {
        nn.ReLU: "relu", nn.ReLU6: "relu6", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid",
        nn.SiLU: "silu", nn.Mish: "mish", nn.Hardswish: "hardswish", nn.SELU: "selu",
        nn.Softsign: "softsign", nn.Hardsigmoid: "hard_sigmoid", nn.LogSigmoid: "log_sigmoid",
        nn.Softmax: "softmax", nn.Softmin: "softmax", nn.Softmax2d: "softmax",
        nn.LogSoftmax: "log_softmax",
    }  # fmt: skip
    rules: dict[type, Rule] = {
        kind: functools.partial(_activation, name) for kind, name in named.items()
    }
    rules |= dict.fromkeys((nn.ELU, nn.CELU), _elu)
    rules |= dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), _dropout)
    rules |= dict.fromkeys((nn.AlphaDropout, nn.FeatureAlphaDropout), _alpha_dropout)
    rules |= dict.fromkeys((nn.Flatten, nn.Unflatten), _rearranged)
    rules |= dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), _largest)
    rules |= dict.fromkeys(
        (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d), _adaptive_largest
    )
    rules |= dict.fromkeys(
        (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d), _adaptive_mean
    )
    rules |= {nn.AvgPool1d: _mean(1), nn.AvgPool2d: _mean(2), nn.AvgPool3d: _mean(3)}
    return rules | {
        nn.GELU: _gelu, nn.Softplus: _softplus, nn.Hardtanh: _hardtanh, nn.Identity: _passed,
        nn.LayerNorm: _layer_norm, nn.RMSNorm: _rms_norm,
    }  # fmt: skip


def _source(what: str, sides: Sides, dtype: str, exact: bool = False) -> Known:
    if exact:
        return Known(what, sides, dtype=dtype)
    within = computed(sides, dtype)
    # A bound that rounding moves holds for the type it was computed in.
    return Known(what if within == sides else f"{what} in {dtype}", within, dtype=dtype)


def _activation(name: str, module: Any, what: str, dtype: str, before: Before) -> Known:
    return _source(what, MORE_RANGES[name], dtype, name in COMPARED)


def _gelu(module: Any, what: str, dtype: str, before: Before) -> Known:
    forms = {"none": "gelu", "tanh": "gelu_new"}
    if module.approximate not in forms:
        raise Stopped(f"{what} is approximated by {module.approximate!r}")
    return _source(what, MORE_RANGES[forms[module.approximate]], dtype)


def _elu(module: Any, what: str, dtype: str, before: Before) -> Known:
    """α(eˣ − 1) > −α below zero, x above."""
    alpha = float(module.alpha)
    if not alpha > 0:
        raise Stopped(f"{what} has α = {alpha:g}")
    return _source(what, (-alpha, math.inf), dtype)


def _softplus(module: Any, what: str, dtype: str, before: Before) -> Known:
    """log(1 + exp βx)/β ≥ 0 for β > 0, and x itself above the threshold."""
    if not module.beta > 0 or not module.threshold >= 0:
        raise Stopped(f"{what} has β = {module.beta:g} and the threshold {module.threshold:g}")
    return _source(what, MORE_RANGES["softplus"], dtype)


def _hardtanh(module: Any, what: str, dtype: str, before: Before) -> Known:
    sides = float(module.min_val), float(module.max_val)
    if not sides[0] <= sides[1]:
        raise Stopped(f"{what} has no range")
    return Known(what, rounded_outward(sides, dtype), dtype=dtype)


def _passed(module: Any, what: str, dtype: str, before: Before) -> Known:
    return before().passed(what)


def _rearranged(module: Any, what: str, dtype: str, before: Before) -> Known:
    return before().rearranged(what)


def _dropout(module: Any, what: str, dtype: str, before: Before) -> Known:
    if not module.training or module.p == 0:
        return before().passed(what)
    return before().dropped(what, float(module.p))


def _alpha_dropout(module: Any, what: str, dtype: str, before: Before) -> Known:
    if module.training and module.p != 0:
        raise Stopped(f"{what} is in training mode: call the model's eval() first")
    return before().passed(what)


def _largest(module: Any, what: str, dtype: str, before: Before) -> Known:
    """The largest of some numbers. A dilated window can lie in the padding alone."""
    if set(_sizes(module.dilation, 3)) != {1} or module.return_indices:
        raise Stopped(f"{what} is dilated, or gives indices")
    return before().rearranged(what)


def _adaptive_largest(module: Any, what: str, dtype: str, before: Before) -> Known:
    if module.return_indices:
        raise Stopped(f"{what} gives indices")
    return before().rearranged(what)


def _adaptive_mean(module: Any, what: str, dtype: str, before: Before) -> Known:
    return before().averaged(what, None)


def _mean(axes: int) -> Rule:
    def rule(module: Any, what: str, dtype: str, before: Before) -> Known:
        if getattr(module, "divisor_override", None) is not None:
            raise Stopped(f"{what} divides by {module.divisor_override}")
        known = before()
        if any(_sizes(module.padding, axes)):
            known = known.with_zero(what)
        return known.averaged(what, math.prod(_sizes(module.kernel_size, axes)))

    return rule


def _sizes(value: Any, axes: int) -> tuple[int, ...]:
    """One number for every axis, as torch reads it: a single one stands for all."""
    sizes = tuple(int(n) for n in value) if isinstance(value, tuple | list) else (int(value),)
    return sizes if len(sizes) == axes else sizes * axes


def _layer_norm(module: Any, what: str, dtype: str, before: Before) -> Known:
    features, gain, offset = _norm_parameters(module, what)
    if not module.eps >= 0:
        raise Stopped(f"{what} has the epsilon {module.eps}")
    return layer_norm(what, gain, offset, features, dtype)


def _rms_norm(module: Any, what: str, dtype: str, before: Before) -> Known:
    import torch

    features, gain, _ = _norm_parameters(module, what)
    epsilon = torch.finfo(getattr(torch, dtype)).eps if module.eps is None else module.eps
    return rms_norm(what, gain, features, float(epsilon), dtype)


def _norm_parameters(module: Any, what: str) -> tuple[int, np.ndarray | None, np.ndarray | None]:
    shape = tuple(module.normalized_shape)
    if len(shape) != 1:
        raise Stopped(f"{what} normalises over {len(shape)} axes")
    found = []
    for part in ("weight", "bias"):
        value = getattr(module, part, None)
        found.append(None if value is None else value.detach().cpu().double().numpy())
    return shape[0], found[0], found[1]
