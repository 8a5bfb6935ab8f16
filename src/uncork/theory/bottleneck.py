"""The softmax bottleneck: what a head of d features can and cannot represent, as functions.

Yang et al. (2018). Log-probabilities are logits shifted row by row: log P = H Wᵀ + 1bᵀ − ℓ1ᵀ. So
their rank is at most d + 1, or d + 2 with a bias, whatever the contexts; a softmax cannot see
the shift; and a distribution whose centred logarithms have a higher rank than d is out of reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.theory.outputs import Outputs
from uncork.theory.spectrum import spectrum

_DIGITS = 60
_ZERO = Decimal(10) ** -30  # a pivot this small against the largest counts as none, of 60 digits
_SHIFT = 2.0**-40
_AGREED = 1e-6


def rank_bound(features: int, *, bias: bool = False) -> int:
    """The highest rank that log-probabilities of a softmax head can have: d + 1 (d + 2)."""
    return features + (2 if bias else 1)


def log_softmax(logits: Any) -> np.ndarray:
    """Row-wise logarithms of the softmax: (contexts, classes)."""
    z = np.asarray(logits, dtype=np.float64)
    z = z - z.max(axis=-1, keepdims=True)
    return np.asarray(z - np.log(np.exp(z).sum(axis=-1, keepdims=True)))


def shift_between(first: Any, second: Any, *, tolerance: float = _SHIFT) -> np.ndarray | None:
    """The c (contexts,) with second = first + c1ᵀ, or None.

    Two matrices of logits have the same softmax if and only if there is one: a shift cancels in the
    quotient, and the logarithm of a softmax is its logits shifted by −logsumexp.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 2:
        raise UncorkError(f"shapes {a.shape} and {b.shape} are not two matrices of the same size")
    difference = b - a
    shift = difference.mean(axis=1)
    scale = max(float(np.abs(a).max()), float(np.abs(b).max()), 1.0)
    uneven = np.abs(difference - shift[:, None]).max()
    return shift if uneven <= tolerance * scale else None


def exact_rank(rows: Sequence[Sequence[Any]]) -> int:
    """The rank of a matrix of whole numbers or fractions, by elimination without rounding."""
    left = [[Fraction(value) for value in row] for row in rows]
    rank = 0
    for column in range(len(left[0]) if left else 0):
        pivot = next((i for i in range(rank, len(left)) if left[i][column]), None)
        if pivot is None:
            continue
        left[rank], left[pivot] = left[pivot], left[rank]
        top = left[rank]
        for i in range(rank + 1, len(left)):
            if left[i][column]:
                ratio = left[i][column] / top[column]
                left[i] = [x - ratio * y for x, y in zip(left[i], top, strict=True)]
        rank += 1
    return rank


def precise_rank(
    hidden: Sequence[Sequence[Any]],
    weight: Sequence[Sequence[Any]],
    bias: Sequence[Any] | None = None,
) -> int:
    """The rank of log softmax(hidden Wᵀ + b) for small matrices of exact numbers, in 60 digits.

    Logits are exact; only their normalisers, which are not fractions, are rounded. A pivot below
    1e-30 of the largest counts as zero: sixty digits leave no doubt, though they are not a proof.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        offsets = [Fraction(0)] * len(weight) if bias is None else [Fraction(v) for v in bias]
        left: list[list[Decimal]] = []
        for state in hidden:
            logits = [
                sum((Fraction(x) * Fraction(w) for x, w in zip(state, row, strict=True)), offset)
                for row, offset in zip(weight, offsets, strict=True)
            ]
            z = [Decimal(v.numerator) / Decimal(v.denominator) for v in logits]
            top = max(z)
            normaliser = top + sum(((v - top).exp() for v in z), Decimal(0)).ln()
            left.append([v - normaliser for v in z])
        return _decimal_rank(left)


def _decimal_rank(left: list[list[Decimal]]) -> int:
    """Elimination with complete pivoting."""
    largest = max(abs(value) for row in left for value in row)
    rank, columns = 0, list(range(len(left[0])))
    while left and columns:
        size, i, j = max((abs(left[i][j]), i, j) for i in range(len(left)) for j in columns)
        if size <= _ZERO * largest:
            break
        top = left.pop(i)
        columns.remove(j)
        for row in left:
            ratio = row[j] / top[j]
            for k in columns:
                row[k] -= ratio * top[k]
        rank += 1
    return rank


def smallest_width(logits: Any, *, bias: bool = False) -> int:
    """The fewest features of a softmax head that gives exactly these distributions.

    `logits` (contexts, classes) are log-probabilities or any shift of them. The minimum over all
    shifts c of rank(A + c1ᵀ) is the rank with each row's mean taken away: no shift changes that
    matrix, and it is one of them itself. With a bias, columns are centred as well, by the same
    argument. Exact for whole numbers and fractions; else numerical, by the rule of `Spectrum.rank`.
    """
    exact = _fractions(logits)
    if exact is None:
        values = np.asarray(logits, dtype=np.float64)
        lowest = Outputs(values, "logits", "both" if bias else "classes", name="logits")
        return spectrum(lowest).rank
    centred = [[x - sum(row, Fraction(0)) / len(row) for x in row] for row in exact]
    if bias:
        means = [sum(column, Fraction(0)) / len(centred) for column in zip(*centred, strict=True)]
        centred = [[x - m for x, m in zip(row, means, strict=True)] for row in centred]
    return exact_rank(centred)


def rank_of_shifts(logits: Any) -> tuple[int, int]:
    """The lowest and highest rank among all matrices with the same softmax; they differ by at most
    one. The higher one needs a shift outside the columns' span, which exists where there are more
    contexts than the lower rank; and then 1ᵀ lies outside the centred rows' span by itself."""
    low = smallest_width(logits)
    contexts = len(logits)
    return low, min(low + 1, contexts)


def _fractions(logits: Any) -> list[list[Fraction]] | None:
    """The values as fractions, if all of them are whole numbers or fractions."""
    if isinstance(logits, np.ndarray):
        if logits.dtype.kind not in "iu":
            return None
        logits = logits.tolist()
    rows = [list(row) for row in logits]
    if all(isinstance(value, int | Fraction) for row in rows for value in row):
        return [[Fraction(value) for value in row] for row in rows]
    return None


@dataclass(frozen=True)
class Divergence:
    """The best mean KL divergence found for heads of so many features, in nats.

    The problem is not convex, so that `nats` is an upper bound on the least: `agreed` says how many
    of `tries` starts came within 1e-6 of it.
    """

    width: int
    nats: float
    agreed: int
    tries: int


def best_divergence(
    probabilities: Any, width: int, *, bias: bool = False, tries: int = 8, seed: int = 0
) -> Divergence:
    """How near a head of `width` features can come to distributions (contexts, classes).

    Minimises the mean over contexts of KL(p ‖ softmax(H Wᵀ + b)) over hidden states, weights and
    bias by L-BFGS, once from the truncated singular vectors of the centred logarithms and then
    from random starts. For small examples.
    """
    from scipy.optimize import minimize

    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 2 or (p < 0).any() or not np.allclose(p.sum(axis=1), 1, atol=1e-6):
        raise UncorkError("probabilities must be contexts × classes, each row summing to 1")
    if width < 0 or tries < 1:
        raise UncorkError(f"width {width} and tries {tries}: expected at least 0 and at least 1")
    contexts, classes = p.shape
    entropy = float(np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0).sum()) / contexts
    sizes = (contexts * width, classes * width, classes if bias else 0)

    def split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        states, weight, offsets = np.split(x, np.cumsum(sizes)[:-1])
        return states.reshape(contexts, width), weight.reshape(classes, width), offsets

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        states, weight, offsets = split(x)
        log_q = log_softmax(states @ weight.T + (offsets if bias else 0.0))
        change = (np.exp(log_q) - p) / contexts
        parts = [(change @ weight).ravel(), (change.T @ states).ravel()]
        if bias:
            parts.append(change.sum(axis=0))
        return entropy - float((p * log_q).sum()) / contexts, np.concatenate(parts)

    if sum(sizes) == 0:
        uniform = entropy + float(np.log(classes))
        return Divergence(width, max(0.0, uniform), tries, tries)
    rng = np.random.default_rng(seed)
    centred = np.log(np.maximum(p, 1e-12))
    centred = centred - centred.mean(axis=1, keepdims=True)
    offsets = centred.mean(axis=0) if bias else np.zeros(0)
    left, values, right = np.linalg.svd(centred - (offsets if bias else 0.0), full_matrices=False)
    count = min(width, len(values))
    states, weight = np.zeros((contexts, width)), np.zeros((classes, width))
    states[:, :count] = left[:, :count] * np.sqrt(values[:count])
    weight[:, :count] = right[:count].T * np.sqrt(values[:count])
    starts = [np.concatenate([states.ravel(), weight.ravel(), offsets])]
    starts += [rng.standard_normal(sum(sizes)) for _ in range(tries - 1)]
    options = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-10}
    found = [
        float(minimize(loss, x, jac=True, method="L-BFGS-B", options=options).fun) for x in starts
    ]
    best = max(0.0, min(found))
    return Divergence(width, best, sum(value <= best + _AGREED for value in found), tries)
