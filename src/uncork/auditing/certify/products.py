"""The certifier's large products: bounds on all logits at many inputs, sums over all classes.

Float32 first, where it is enough: its products cost half as much and its error bound, though
wider, holds as rigorously. What it leaves open is bounded again in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from uncork.auditing.certify.arithmetic import SINGLE, Arithmetic
from uncork.core.head import Head
from uncork.core.rigour import TINY, UNIT, gamma, row_norms

if TYPE_CHECKING:
    from uncork.auditing.folded import Folded

_ROWS = 4096  # rows of W looked at in one go where no product is made
_UNIT32, _TINY32 = 2.0**-24, 2.0**-126
_SAFE32 = 1e30  # no sum of safe products overflows in float32
MOST_FEATURES32 = 100_000  # beyond, the float32 bound's second-order terms would count
_PAID = 1.04  # what drift costs, with the rounding of whatever it passes through


Beside = tuple[tuple[Any, Any], tuple[Any, Any]]


class Device:
    """Where products are computed: NumPy here, another array library in a subclass."""

    xp: Any = np
    inputs = 1024  # inputs in one product
    rows = 4096  # rows of W in one product
    gather_bytes = 2 << 20  # rows of W held at a time for mixtures
    single = True  # whether float32 products are worth trying first
    panel = 2048  # classes on either side of a tile of the product of all first guesses
    panel_bytes = 512 << 20  # held of its panels at a time
    measured_bytes = 8 << 20  # of rows in float64 that are measured in one go

    def put(self, array: np.ndarray) -> Any:
        return array

    def get(self, array: Any) -> np.ndarray:
        host: np.ndarray = array
        return host

    def blocks(self, head: Head | Folded) -> Iterator[tuple[int, Any]]:
        """The rows of the head in float64, a block at a time: (first row, (n, d))."""
        return head.blocks(self.rows)

    def take(self, head: Head | Folded, classes: np.ndarray) -> Any:
        """Some rows of the head in float64: (n, d)."""
        return head.take(classes)

    # The product of all first guesses (`guesses`)

    def arithmetic(self, strict: bool) -> Arithmetic:
        """What it is computed in; `strict`: nothing assumed but IEEE arithmetic."""
        return SINGLE

    def cast(self, array: Any, dtype: Any) -> Any:
        """In another type, rounded to nearest."""
        return array.astype(dtype, copy=False)

    def beside(self, points: Any, columns: Any) -> Any:
        """A panel: points (n, k) and columns (n, m) beside them, and zeros where that is faster."""
        return np.concatenate([points, columns], axis=1)

    def product(self, left: Any, right: Any) -> Any:
        """All scores of two panels, (n, k) and (m, k), in float32 or wider: (n, m)."""
        return left @ right.T

    def maxima(
        self, left: Any, right: Any, same: bool, beside: Beside | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The largest score of every row and of every column, in float64: (n,), (m,).

        `same`: the panels are of the same classes, and a class does not count for itself. `beside`:
        outer products to be added to the scores, for the columns' maxima and for the rows'.
        """
        rows, columns = np.empty(len(left)), np.full(len(right), -np.inf)
        step = 512 if beside is None else 128  # what stays in the caches
        for start in range(0, len(left), step):
            part = slice(start, start + step)
            scores = self.product(left[part], right)
            if same:
                np.fill_diagonal(scores[:, start:], -np.inf)
            of_rows = of_columns = scores
            if beside is not None:
                of_columns, of_rows = (np.multiply.outer(a[part], b) for a, b in beside)
                of_columns += scores
                of_rows += scores
            rows[part] = of_rows.max(axis=1)
            columns = np.maximum(columns, of_columns.max(axis=0))
        return rows, columns

    def squares(self, rows: Any) -> Any:
        """Σ_j a_ij² for every row: (n,)."""
        return np.einsum("ij,ij->i", rows, rows)

    def columns(self, head: Head | Folded, features: np.ndarray) -> np.ndarray:
        """Some features of all rows in float64, here: (C, n)."""
        if head.stored is not None:
            return np.asarray(head.stored[:, features], dtype=np.float64)
        at = self.put(features)
        return np.concatenate([self.get(block[:, at]) for _, block in self.blocks(head)])

    def largest_weight(self, head: Head) -> float:
        """The largest magnitude of a weight."""
        return head.largest_weight

    def inverse_root(self, covariance: Any) -> Any | None:
        """K with K Σ Kᵀ near the identity for a positive definite Σ (n, n), else None."""
        try:
            return np.linalg.inv(np.linalg.cholesky(covariance))
        except np.linalg.LinAlgError:
            return None


class Skyline:
    """A matrix M (n, m) on a device, for products x M: zeros above or below a column's entries, as
    a triangular matrix has them, are left out of the sums."""

    def __init__(self, matrix: np.ndarray, device: Device) -> None:
        self.device = device
        width = matrix.shape[1]
        step = width if width < 512 else -(-width // 8)
        self.parts: list[tuple[slice, Any]] = []
        for start in range(0, width, step):
            block = matrix[:, start : start + step]
            rows = np.flatnonzero(block.any(axis=1))
            kept = slice(rows[0], rows[-1] + 1) if len(rows) else slice(0, 1)
            self.parts.append((kept, device.put(np.ascontiguousarray(block[kept]))))

    def times(self, x: Any) -> Any:
        """x M for every row of x: (k, n) → (k, m)."""
        parts = [x[:, kept] @ block for kept, block in self.parts]
        return parts[0] if len(parts) == 1 else self.device.xp.concat(parts, axis=1)


@dataclass(frozen=True)
class Tilted:
    """Sums over all classes of l_i = exp(w_i·x − peak), l_i (w_i − c) and l_i b_i, bounded."""

    mass: np.ndarray  # (n,)
    mass_error: np.ndarray
    rows: np.ndarray  # (n, d)
    rows_error: np.ndarray
    bias: np.ndarray  # (n,)
    bias_error: np.ndarray


class Products:
    """Bounds that need every row of the head."""

    def __init__(self, head: Head, device: Device) -> None:
        self.head, self.device, self.offsets = head, device, head.offsets
        # One rounding for each of d products and d additions, the rest for norms, bias and bounds.
        self.kappa = gamma(head.features + 16) * 1.001
        self.slop = (head.features + 16) * TINY

    @property
    def _kappa32(self) -> float:
        """As `kappa` in float32, with a further rounding for storing w − c."""
        count = self.head.features + 16
        return count * _UNIT32 / (1 - count * _UNIT32) * 1.01

    @cached_property
    def norms(self) -> np.ndarray:
        """An upper bound on ‖w_i‖₂ for every row: (C,)."""
        return self._norms(np.zeros(self.head.features))

    @cached_property
    def centre(self) -> np.ndarray:
        """A row to subtract from all, which changes no difference of logits: near their mean."""
        total: Any = 0.0
        for _, block in self.device.blocks(self.head):
            total = total + self.device.xp.sum(block / self.head.classes, axis=0)
        return self.device.get(total)

    @cached_property
    def centred_norms(self) -> np.ndarray:
        """An upper bound on ‖w_i − c‖₂ for every row: (C,)."""
        return self._norms(self.centre) * (1 + 4 * UNIT)

    def _norms(self, centre: np.ndarray) -> np.ndarray:
        middle = self.device.put(centre)
        blocks = self.device.blocks(self.head)
        parts = [row_norms(block - middle, self.device.xp) for _, block in blocks]
        return np.concatenate([self.device.get(part) for part in parts])

    def own_and_rivals(
        self,
        classes: np.ndarray,
        x: Any,
        drift: np.ndarray,
        groups: dict[int, list[int]],
        single: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """A lower bound on z_t and an upper bound on the other z_i, less one number for each row.

        `x` (n, d) lies on the device, each row within `drift` (n,) of the true input; `groups`
        names classes that count as t itself. Where a bound cannot be had, NaN: (n,), (n,).
        """
        xp, put, get = self.device.xp, self.device.put, self.device.get
        centre = put(self.centre if single else np.zeros(self.head.features))
        norms = self.centred_norms if single else self.norms
        reach = get(row_norms(x, xp))  # (n,)
        largest = reach * norms.max() + np.abs(self.offsets).max()
        bias = self.offsets[classes]
        own = get(xp.sum((self.device.take(self.head, classes) - centre) * x, axis=1)) + bias
        own -= self.kappa * (reach * norms[classes] + np.abs(bias)) + self.slop
        own -= _PAID * (drift * norms[classes])
        # For the rivals the drift rides along with the rounding: κ‖w‖(‖x‖ + drift/κ).
        reach = reach + _PAID * (drift / (self._kappa32 if single else self.kappa))
        # Where a partial sum may have overflowed, to either side, the bounds say nothing.
        safe = 4 * largest < (_SAFE32 if single else np.inf)
        if single:
            # Each factor has to fit too: an entry that overflows is infinite whatever it meets.
            small = norms.max() < _SAFE32 and np.abs(self.offsets).max() < _SAFE32
            safe &= small & (reach < _SAFE32) & (x.astype(np.float32) == x).all(axis=1)
        rivals = np.full(len(classes), np.nan)
        at = np.flatnonzero(safe)
        if len(at):
            rivals[at] = self._rivals(classes[at], x[put(at)], reach[at], groups, single)
        return own, rivals

    def hidden(self, x: Any, drift: np.ndarray, single: bool) -> np.ndarray:
        """About how far from the truth the bounds on a logit may be at each input: (n,). Nothing is
        proven by it."""
        kappa, tiny = (self._kappa32, _TINY32) if single else (self.kappa, TINY)
        norms = self.centred_norms if single else self.norms
        reach = self.device.get(row_norms(x, self.device.xp)) + drift / kappa
        size = reach * norms.max() + np.abs(self.offsets).max()
        return np.asarray(kappa * size + (self.head.features + 16) * tiny * (1 + reach))

    def _rivals(
        self,
        classes: np.ndarray,
        x: Any,
        reach: np.ndarray,
        groups: dict[int, list[int]],
        single: bool,
    ) -> np.ndarray:
        """Bias and error bound ride along as two more features, so that one product gives every
        upper bound: [w, b + κ|b| + slop, κ‖w‖] · [x, 1, ‖x‖]."""
        xp, put = self.device.xp, self.device.put
        dtype = np.float32 if single else np.float64
        beside = put(_up(np.column_stack([np.ones(len(classes)), reach]), dtype))
        inputs = xp.concat([x.astype(dtype) if single else x, beside], axis=1)
        extra = put(self._columns(single))
        centre = put(self.centre)
        ids = classes.tolist() if groups else []
        grouped = [(k, i) for k, t in enumerate(ids) for i in groups.get(t, ())]
        best = put(np.full(len(classes), -np.inf, dtype=dtype))
        for start, block in self.device.blocks(self.head):
            stop = start + block.shape[0]
            if single:
                block = (block - centre).astype(np.float32)
            scores = inputs @ xp.concat([block, extra[start:stop]], axis=1).T
            here = np.flatnonzero((classes >= start) & (classes < stop))
            if len(here):
                scores[put(here), put(classes[here] - start)] = -np.inf
            for k, i in grouped:
                if start <= i < stop:
                    scores[k, i - start] = -np.inf
            # NaN (an overflow) must not vanish in a maximum: a NaN here refuses the witness.
            best = xp.maximum(best, xp.max(scores, axis=1))
        return self.device.get(best).astype(np.float64)

    def _columns(self, single: bool) -> np.ndarray:
        """The bias with its error bound, and the error bound of a row at an input of length one."""
        size = np.abs(self.offsets)
        if not single:
            bias = self.offsets + self.kappa * size + self.slop
            return np.column_stack([bias, np.nextafter(self.kappa * self.norms, np.inf)])
        count, kappa = self.head.features + 16, self._kappa32
        # An underflow of each entry, besides.
        bias = self.offsets + kappa * size + count * _TINY32
        rows = kappa * self.centred_norms + np.sqrt(self.head.features) * 2 * _TINY32
        return _up(np.column_stack([bias, rows]), np.float32)

    def close_rows(self, x: np.ndarray, drift: float, lowest: float) -> tuple[np.ndarray, float]:
        """Rows that float64 does not put clearly below `lowest` at one input (known up to `drift`),
        and how high the others can be."""
        reach = float(row_norms(x[None])[0]) + _PAID * (drift / self.kappa)
        close, highest = [], -np.inf
        for start, block in self.head.blocks(_ROWS):
            stop = start + len(block)
            bias, norms = self.offsets[start:stop], self.norms[start:stop]
            upper = block @ x + bias
            upper += self.kappa * (reach * norms + np.abs(bias)) + self.slop
            below = (upper < lowest) & np.isfinite(4 * reach * norms)
            close.append(start + np.flatnonzero(~below))
            highest = max(highest, float(upper[below].max(initial=-np.inf)))
        return np.concatenate(close), highest

    def tilted(self, x: np.ndarray, peaks: np.ndarray) -> Tilted:
        """Sums over all classes with weights l_i = exp(w_i·x − peak), one row for each input.

        The weights are whatever floats come out: they are non-negative, and that is all a mixture
        asks of them. Only the sums of these floats are bounded.
        """
        inputs, peaks_here = self.device.put(x), self.device.put(peaks)[:, None]
        return self.weighted(lambda _, block: self.device.xp.exp(inputs @ block.T - peaks_here))

    def weighted(self, weigh: Callable[[int, Any], Any]) -> Tilted:
        """Sums over all classes with any weights ≥ 0: (first row, block (m, d)) → (n, m)."""
        xp, put, get = self.device.xp, self.device.put, self.device.get
        centre = put(self.centre)
        sums: list[Any] = [0.0] * 5
        for start, block in self.device.blocks(self.head):
            weights, away = weigh(start, block), block - centre
            bias = put(self.offsets[start : start + block.shape[0]])
            parts = (
                xp.sum(weights, axis=1), weights @ away, weights @ xp.abs(away),
                weights @ bias, weights @ xp.abs(bias),
            )  # fmt: skip
            sums = [total + part for total, part in zip(sums, parts, strict=True)]
        mass, rows, rows_size, bias_sum, bias_size = (get(total) for total in sums)
        error = gamma(self.head.classes + 16)
        tiny = (self.head.classes + 16) * TINY
        bias_error = error * bias_size + (tiny * (1 + mass) if self.offsets.any() else 0.0)
        return Tilted(
            mass, error * mass + tiny, rows, error * rows_size + tiny * (1 + mass[:, None]),
            bias_sum, bias_error,
        )  # fmt: skip


def _up(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Rounded to the type, never down (what is exact stays exact)."""
    narrow = values.astype(dtype)
    return np.where(narrow < values, np.nextafter(narrow, dtype(np.inf)), narrow).astype(dtype)
