"""Singular values of matrices too large to hold, and the numerical rank that follows from them.

A matrix is seen as panels, a few of its longer side's rows at a time. Where the shorter side is
moderate, panels are folded into one triangular factor by Householder QR, which keeps small
singular values (a Gram matrix would square the condition number and lose those below 1e-8).
Otherwise a random sketch finds the leading directions first, and panels are folded along them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from uncork.core.progress import Progress

_PANEL_BYTES = 256 << 20
_EXACT_WIDTH = 1024  # shorter sides up to this are always done in full
_EXACT_WORK = 2e12  # and longer ones while the multiplications stay below this
_FIRST_SKETCH = 256
_PROBES = 8
_BASIS_BYTES = 3 << 30
_SPARE = 16  # directions below the tolerance that a sketch must have found before it is believed
_EPS = 2.0**-52

# Unit roundoff of a type, and how many times that a value computed in it may be off. Wide types
# hold sums of many rounded terms; narrow ones are rounded once, from sums in a wider type.
ROUNDOFF = {
    "float64": (2.0**-53, 16.0),
    "float32": (2.0**-24, 16.0),
    "float16": (2.0**-11, 2.0),
    "bfloat16": (2.0**-8, 2.0),
}


class Matrix(Protocol):
    """A matrix by panels. `long` ≥ `short` are its sides, whichever way round it is stored."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def noise(self) -> float:
        """How large the spectral norm of its rounding errors may be; 0 where values are exact."""

    @property
    def total_noise(self) -> float:
        """The same for their Frobenius norm."""

    def panel(self, start: int, stop: int) -> np.ndarray:
        """Rows start to stop along the longer side, in float64: (stop − start, short)."""


@dataclass(frozen=True)
class Spectrum:
    """Singular values, largest first, and what is known of the rest.

    `tolerance` is the rule of `rank`: max(m, n)·2⁻⁵²·σ₁ for the arithmetic, or the largest singular
    value that rounding of the stored values alone can make, whichever is greater.
    """

    values: np.ndarray  # (k,)
    shape: tuple[int, int]
    energy: float  # the sum of all squared singular values
    noise: float = 0.0
    complete: bool = True  # whether these are all of them
    rest: float = 0.0  # Frobenius norm of what lies outside the directions found
    settled: bool = True  # whether nothing outside them can raise the rank, by all signs

    @classmethod
    def whole(cls, values: np.ndarray, shape: tuple[int, int]) -> Spectrum:
        """From all singular values, largest first."""
        with np.errstate(over="ignore", under="ignore"):
            return cls(values, shape, float((values**2).sum()))

    @property
    def tolerance(self) -> float:
        largest = float(self.values[0]) if len(self.values) else 0.0
        return max(max(self.shape) * _EPS * largest, self.noise)

    @property
    def rank(self) -> int:
        """How many singular values exceed the tolerance (of those found; see `settled`)."""
        return int((self.values > self.tolerance).sum())

    @property
    def effective_rank(self) -> float:
        """exp of the entropy of σ/Σσ: how many directions there are, counted by their size."""
        compared = self._compared()
        if not len(compared):
            return 0.0
        shares = compared / compared.sum()
        shares = shares[shares > 0]
        return float(np.exp(-(shares * np.log(shares)).sum()))

    def directions(self, share: float) -> int | None:
        """The fewest directions with that share of the energy Σσ²; None where it takes more."""
        squares = self._compared() ** 2
        if not len(squares):
            return 0
        largest = float(self.values[0])
        energy = float(squares.sum()) if self.complete else self.energy / largest / largest
        reached = np.cumsum(squares) >= share * energy * (1 - 1e-12)
        return int(np.argmax(reached)) + 1 if reached.any() else None

    def _compared(self) -> np.ndarray:
        """The values above 0 over the largest: its square, or their sum, may be beyond float64."""
        positive = self.values[self.values > 0]
        return positive / positive[0] if len(positive) else positive


def spectrum(
    matrix: Matrix,
    *,
    expected: int | None = None,
    most: int = 8448,
    progress: Progress | None = None,
) -> Spectrum:
    """The singular values of a matrix, all of them where that is affordable.

    `expected` is a guess at the rank, which spares a sketch its growing; at most `most` directions
    are looked for. Memory: a few panels of 256 MB and two arrays of short side × directions.
    """
    progress = Progress() if progress is None else progress
    long, short = max(matrix.shape), min(matrix.shape)
    if short <= _EXACT_WIDTH or 4.0 * long * short * short <= _EXACT_WORK:
        step = _step(long, short)
        progress.stage("spectrum", long)
        energy = 0.0
        factor = np.zeros((0, short))
        for start, stop in _parts(long, step):
            panel = matrix.panel(start, stop)
            energy += _energy(panel)
            factor = _fold(factor, panel)
            progress.advance(stop - start)
        values = np.linalg.svd(factor, compute_uv=False)
        return Spectrum(values, matrix.shape, energy, matrix.noise)
    affordable = max(_FIRST_SKETCH, _BASIS_BYTES // (8 * short))
    return _sketched(matrix, expected, min(most, short, affordable), progress)


def triangular(panels: Iterable[np.ndarray], width: int) -> np.ndarray:
    """R of the QR decomposition of panels (·, width) stacked: (≤ width, width), same spectrum."""
    factor = np.zeros((0, width))
    for panel in panels:
        factor = _fold(factor, panel)
    return factor


def _fold(factor: np.ndarray, panel: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.qr(np.vstack([factor, panel]), mode="r"))


def _parts(size: int, step: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, step):
        yield start, min(start + step, size)


def _step(long: int, short: int) -> int:
    """Rows a panel: enough to make the triangular factor worth its work, within the memory."""
    fitting = max(1, _PANEL_BYTES // (8 * short))
    return max(1, min(long, max(fitting, 2 * short if short <= _EXACT_WIDTH else short // 2)))


def _sketched(matrix: Matrix, expected: int | None, most: int, progress: Progress) -> Spectrum:
    """The leading singular values, by a random range finder that grows until it finds only noise.

    Halko, Martinsson and Tropp (2011), Algorithms 4.2 and 5.1, one pass a stage and one at the end.
    """
    long, short = max(matrix.shape), min(matrix.shape)
    step = max(1, min(long, _PANEL_BYTES // (8 * short)))
    basis = np.zeros((short, 0))
    width = min(most, _FIRST_SKETCH if expected is None else expected + 2 * _SPARE)
    while True:
        image = np.zeros((short, width + _PROBES))
        rng = np.random.default_rng(basis.shape[1])
        progress.stage(f"sketch {basis.shape[1] + width}", long)
        energy = 0.0
        for start, stop in _parts(long, step):
            panel = matrix.panel(start, stop)
            energy += _energy(panel)
            image += panel.T @ rng.standard_normal((len(panel), width + _PROBES))
            progress.advance(stop - start)
        _remove(image, basis)
        probes = image[:, width:]
        basis = np.hstack([basis, np.linalg.qr(image[:, :width])[0]])
        _remove(probes, basis)
        # The probes had no part in the basis: what they lack of it, everything lacks.
        left = math.sqrt(float(np.vdot(probes, probes)) / _PROBES)  # ≈ ‖A − A Q Qᵀ‖_F
        floor = max(long * _EPS * math.sqrt(energy), matrix.total_noise)
        if basis.shape[1] >= most or left <= floor:
            break
        width = min(basis.shape[1], most - basis.shape[1])
    progress.stage("spectrum", long)
    factor = np.zeros((0, basis.shape[1]))
    rest = 0.0
    for start, stop in _parts(long, step):
        panel = matrix.panel(start, stop)
        inside = panel @ basis
        panel -= inside @ basis.T
        rest += _energy(panel)
        factor = _fold(factor, inside)
        progress.advance(stop - start)
    values = np.linalg.svd(factor, compute_uv=False)
    complete = basis.shape[1] >= short
    found = Spectrum(values, matrix.shape, energy, matrix.noise, complete, math.sqrt(rest))
    # What is left is rounding by its size, or the sketch has met enough directions of rounding.
    settled = complete or found.rest <= floor or len(values) - found.rank >= _SPARE
    return replace(found, settled=settled)


def _remove(vectors: np.ndarray, basis: np.ndarray) -> None:
    """Take what lies along an orthonormal basis out of vectors, in place. Twice is enough."""
    for _ in range(2):
        vectors -= basis @ (basis.T @ vectors)


def _energy(panel: np.ndarray) -> float:
    return float(np.einsum("ij,ij->", panel, panel))
