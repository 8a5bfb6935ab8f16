"""How far a class has to lead for the model's own arithmetic to see it.

A logit that is summed in float32 over d features is off by about √d·2⁻²⁴·Σ|w_j x_j|, the usual
estimate (Higham and Mary 2019; the bound that holds without exception has d for √d). Logits that
are stored in 16 bits are rounded once more, and so are their inputs. A lead beyond what both
classes may be off by survives. Float64 gets the bound without exception: it is what proofs in
floats need. A margin that the user sets, in logits, takes the place of all this; 0 asks for none.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head

_SUMMED = 2.0**-24  # float32, in which accelerators sum
_BLOCK = 512


def check_margin(margin: float | None) -> None:
    """Raise unless it is None or a finite number that is not below 0."""
    if margin is not None and not (margin >= 0 and np.isfinite(margin)):
        raise UncorkError(f"margin must be a number of logits, 0 or more, not {margin}")


def allowance(
    head: Head, bias: np.ndarray, classes: np.ndarray, x: np.ndarray, margin: float | None
) -> np.ndarray:
    """What the lead of each class has to exceed at its input x (n, d), with biases (C,) of that
    size: (n,), in logits. None stands for what the type of the head's weights takes.
    """
    if margin is not None:
        return np.full(len(classes), margin)
    every = head.take(np.arange(head.classes))
    sizes = np.abs(every)
    needed = np.empty(len(classes))
    for start in range(0, len(classes), _BLOCK):
        some, at = classes[start : start + _BLOCK], x[start : start + _BLOCK]
        z = at @ every.T + bias
        off = _errors(head, z, np.abs(at) @ sizes.T + np.abs(bias), every, at)
        here = np.arange(len(some))
        own = off[here, some]
        z[here, some] = -np.inf
        needed[start : start + len(some)] = own + (z + off).max(axis=1) - z.max(axis=1)
    return needed


def _errors(
    head: Head, z: np.ndarray, sizes: np.ndarray, rows: np.ndarray, x: np.ndarray
) -> np.ndarray:
    """What each logit may be off by: (n, C)."""
    kind, features = head.weight.dtype, head.features
    if kind == np.float64:
        return np.asarray((features + 2) * 2.0**-53 * sizes)
    summed = np.sqrt(features) * _SUMMED * sizes
    grain = _grain(kind)
    if grain <= _SUMMED:
        return np.asarray(summed)
    return np.asarray(summed + grain * (np.abs(z) + 2 * np.sqrt((x * x) @ (rows * rows).T)))


def _grain(kind: np.dtype) -> float:
    """Half of what a type's numbers around 1 are apart by; whole numbers are computed with in
    float32."""
    if kind.kind in "iub":
        return _SUMMED
    return float(ml_dtypes.finfo(kind).eps) / 2
