"""The bulk of the rows: a ball around their mean that provably lies inside their hull.

In coordinates v_i = K(w_i − c), with K near the inverse square root of the covariance and c near
the mean, the second moment S = (1/C) Σ v_i v_iᵀ is near the identity. For any q solve
(S − q v̄ᵀ) p = q − v̄ and set μ_i = (1 + v_i·p)/C: then Σ μ_i v_i = q Σ μ_i. If ‖S − I‖ ≤ η and
‖v_i‖ ≤ M for all i, then ‖p‖ ≤ (‖q‖ + ‖v̄‖)/(1 − η − ‖q‖‖v̄‖), so every μ_i ≥ 0 as soon as M‖p‖ ≤ 1:
q is a mixture of the v_i. Only upper bounds on η, M and ‖v̄‖ are needed, and η need only be below
one, so nothing has to be computed accurately; it only has to be bounded rigorously.

Where inputs are x = F(u), w_i is the row as u sees it. Such rows may span less than their width
(LayerNorm leaves d − 1 dimensions), so K has as many rows as they can span dimensions. Stored rows
may span less too: then as many as they are proven to span at most (`dimension`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.auditing.certify.dimension import affine_dimension, varying_features
from uncork.auditing.certify.latent import Latent
from uncork.auditing.certify.products import Device, Skyline
from uncork.core.head import Head
from uncork.core.rigour import UNIT, add_up, gamma, row_norms, up
from uncork.domain.affine import Constants

_NO_BOUNDS = (np.inf, np.inf, np.inf, np.inf)
_SAFE = 1e100  # no square of a safe number over- or underflows


@dataclass(frozen=True)
class Bulk:
    """Bounds on the rows in coordinates where they are round; see the module's text."""

    centre: np.ndarray  # (d,) c, the mean row as a float
    centre_error: np.ndarray  # (d,) how far the true mean may be from c
    transform: np.ndarray | None  # (rank, d) K, or None where the rows span no ball
    transform_norm: float  # ≥ ‖K‖_F
    defect: float  # η ≥ ‖S − I‖
    offset: float  # ≥ ‖v̄‖
    reach: float  # M ≥ max ‖v_i‖
    bias_mean: float
    bias_error: float
    bias_range: tuple[float, float]

    @property
    def is_full(self) -> bool:
        """Whether the rows span their whole width, so that every small residual can be reached."""
        return self.transform is not None and len(self.transform) == len(self.centre)

    @classmethod
    def of(
        cls,
        head: Head,
        device: Device,
        latent: Latent | None = None,
        proposed: np.ndarray | None = None,
    ) -> Bulk:
        """The bulk of a head's rows. `proposed` is a K that somebody has found already: it need not
        be trusted, as whatever K it is, its bounds are computed here."""
        with np.errstate(all="ignore"):  # what overflows ends as a bound of infinity or NaN
            return cls._of(_Rows(head, device, latent), proposed)

    @classmethod
    def _of(cls, rows: _Rows, proposed: np.ndarray | None) -> Bulk:
        device, count = rows.device, rows.count
        total, size, wrong = np.zeros(rows.width), np.zeros(rows.width), np.zeros(rows.width)
        biases, bias_errors = [], []
        for block, error, block_bias, block_bias_error in rows.blocks():
            total += device.get(device.xp.sum(block, axis=0))
            size += device.get(device.xp.sum(device.xp.abs(block), axis=0))
            if error is not None:
                wrong += device.get(device.xp.sum(error, axis=0))
            biases.append(block_bias)
            bias_errors.append(block_bias_error)
        bias, wrong_bias = np.concatenate(biases), np.concatenate(bias_errors)
        centre = total / count
        centre_error = up((gamma(count + 8) * size + wrong) / count, count + 8)
        centre_error = add_up(centre_error, 4 * UNIT * np.abs(centre))
        transform, bounds = _best_root(rows, centre, proposed)
        if not _is_close(bounds) and rows.count_dimensions():
            transform, bounds = _best_root(rows, centre, proposed)
        bias_error = gamma(count + 8) * float(np.abs(bias).mean()) + float(wrong_bias.mean())
        return cls(
            centre, centre_error, transform, *bounds,
            bias_mean=float(bias.mean()), bias_error=up(bias_error, count + 8),
            bias_range=(_below(bias, wrong_bias), -_below(-bias, wrong_bias)),
        )  # fmt: skip

    def nudge(self, residual: np.ndarray, error: np.ndarray) -> float | None:
        """M‖p‖ for a mixture of all rows that lies `residual` away from the centre, or None.

        `residual` (d,) is known up to `error` (d,). None: the argument does not reach that far.
        """
        if self.transform is None or not np.isfinite(residual).all():
            return None
        # K undoes nothing outside the rows' span. That it is one to one on that span follows from
        # its being onto, and that from S not being singular about a mean that is nearly zero.
        if not self.is_full and not (self.defect < 0.5 and self.offset < 0.5):
            return None
        with np.errstate(all="ignore"):
            return self._nudge(self.transform, residual, error)

    def _nudge(
        self, transform: np.ndarray, residual: np.ndarray, error: np.ndarray
    ) -> float | None:
        count = len(residual) + 8
        moved, size, off = (
            float(row_norms(v[None])[0]) for v in (transform @ residual, residual, error)
        )
        # The product's own rounding, and what the residual's error can become; γ last.
        rounding = gamma(count) * (self.transform_norm * size)
        q = up(moved + rounding + self.transform_norm * off, count)
        room = 1 - self.defect - q * self.offset - 8 * UNIT
        if not room > 0:
            return None
        share = self.reach * (q + self.offset) / room * (1 + 16 * UNIT)
        # Below a half, no weight of the mixture is anywhere near zero.
        return float(share) if share <= 0.5 and np.isfinite(share) else None

    def nudges(self, residuals: Any, errors: Any, on: Constants) -> np.ndarray:
        """`nudge` of many (n, d), on a device; NaN where the argument does not reach: (n,)."""
        xp, get, width = on.xp, on.device.get, residuals.shape[1]
        close = self.defect < 0.5 and self.offset < 0.5
        if self.transform is None or not (self.is_full or close):
            return np.full(len(residuals), np.nan)
        turn = on.put(self.transform).T
        with np.errstate(all="ignore"):
            finite = get(xp.all(xp.isfinite(residuals), axis=1))
            moved, size, off = (
                get(row_norms(v, xp)) for v in (residuals @ turn, residuals, errors)
            )
            # As in `_nudge`.
            rounding = gamma(width + 8) * (self.transform_norm * size)
            q = up(moved + rounding + self.transform_norm * off, width + 8)
            room = 1 - self.defect - q * self.offset - 8 * UNIT
            share = self.reach * (q + self.offset) / room * (1 + 16 * UNIT)
            near = finite & (room > 0) & (share <= 0.5) & np.isfinite(share)
        return np.where(near, share, np.nan)

    def bias_low(self, nudge: Any) -> Any:
        """The least bias that the nudged mean row can have (`nudge` as returned above)."""
        low, high = self.bias_range
        spread = (high - low) * 2 * nudge / (1 - nudge)
        return np.maximum(low, self.bias_mean - self.bias_error - spread * (1 + 16 * UNIT))


class _Rows:
    """The rows and biases of a head as u sees them, each with an error bound (None: exact)."""

    def __init__(self, head: Head, device: Device, latent: Latent | None) -> None:
        self.head, self.device, self.latent = head, device, latent
        if latent is not None and latent.is_identity:
            self.latent = None
        self.count = head.classes
        self.width = head.features if self.latent is None else self.latent.width
        self.rank = self.width if self.latent is None else self.latent.rank
        self.constant: np.ndarray | None = None  # features that are the same in all rows, if known

    def count_dimensions(self) -> bool:
        """Find out whether rows span less than they could, which is dear; whether that helps."""
        if self.latent is not None or self.count <= self.rank:
            return False
        varying = varying_features(self.head)
        self.constant = np.setdiff1d(np.arange(self.width), varying)
        before, self.rank = self.rank, affine_dimension(self.head, varying)
        return self.rank < before or len(self.constant) == 0

    def blocks(self) -> Iterator[tuple[Any, Any, np.ndarray, np.ndarray]]:
        """Rows (n, d) and their error on the device, biases (n,) and theirs here."""
        for start, block in self.device.blocks(self.head):
            bias = self.head.offsets[start : start + block.shape[0]]
            if self.latent is None:
                yield block, None, bias, np.zeros(len(bias))
                continue
            rows, error, shift, shift_error = self.latent.back(block, 0.0 * block)
            total = bias + self.device.get(shift)
            wrong = add_up(self.device.get(shift_error), 4 * UNIT * np.abs(total))
            yield rows, error, total, wrong


def _below(values: np.ndarray, error: np.ndarray) -> float:
    """A lower bound on the smallest of values known up to `error`; itself where it is exact."""
    if not error.any():
        return float(values.min())
    return float(np.nextafter(values - error, -np.inf).min())


def _best_root(
    rows: _Rows, centre: np.ndarray, proposed: np.ndarray | None
) -> tuple[np.ndarray | None, tuple[float, float, float, float]]:
    """K, the one proposed if it will do, and its bounds."""
    if proposed is not None and _is_root(rows, proposed):
        bounds = _bounds(rows, centre, proposed)
        if _is_close(bounds):
            return proposed, bounds
    found = _whiten(rows, centre)
    return found, _NO_BOUNDS if found is None else _bounds(rows, centre, found)


def _is_close(bounds: tuple[float, float, float, float]) -> bool:
    """Whether η and ‖v̄‖ are what every argument asks of them."""
    return bounds[1] < 0.5 and bounds[2] < 0.5


def _is_root(rows: _Rows, proposed: np.ndarray) -> bool:
    """Whether a K is one that bounds can be computed for at all."""
    if proposed.shape != (rows.rank, rows.width) or rows.count <= rows.rank:
        return False
    return bool(np.isfinite(proposed).all() and np.abs(proposed).max() < _SAFE)


def _whiten(rows: _Rows, centre: np.ndarray) -> np.ndarray | None:
    """K with K Σ Kᵀ near the identity, however it was found; None where Σ is singular."""
    if rows.count <= rows.rank:  # and centred, so they span less than that
        return None
    device, total = rows.device, 0.0
    middle = device.put(centre)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for block, _, _, _ in rows.blocks():
            away = block - middle
            total = total + away.T @ away
        covariance: Any = total / rows.count
    xp = device.xp
    if rows.constant is None:
        diagonal = device.put(np.arange(rows.width))
        spread = np.sqrt(device.get(covariance[diagonal, diagonal]))
        if (spread <= gamma(rows.count + 8) * np.abs(centre)).any():  # perhaps mere rounding
            return None
    elif len(rows.constant):
        at = device.put(rows.constant)
        covariance[at, :] = covariance[:, at] = 0.0
    if not bool(xp.all(xp.isfinite(covariance))):
        return None
    transform = _inverse_root(covariance, rows, device)
    if transform is None or not bool(xp.all(xp.isfinite(transform))):
        return None
    return device.get(transform) if float(xp.max(xp.abs(transform))) < _SAFE else None


def _inverse_root(covariance: Any, rows: _Rows, device: Device) -> Any | None:
    """Where rows span fewer dimensions than they have features, by as many of these: (rank, d)."""
    width, rank = len(covariance), rows.rank
    diagonal = device.put(np.arange(width))
    spread = device.get(covariance[diagonal, diagonal])
    if rank == width:
        return device.inverse_root(covariance) if spread.min() > 1 / _SAFE else None
    kept = np.flatnonzero(spread)
    if rank < 1 or not len(kept) or not spread[kept].min() > 1 / _SAFE:
        return None
    if len(kept) == rank + 1 and rows.latent is not None:
        # A mean was taken out: any one feature follows from the others.
        kept = np.delete(kept, np.argmin(spread[kept]))
    if len(kept) != rank:
        return _inverse_root_on_span(covariance, rank, device)
    at = device.put(kept)
    root = device.inverse_root(covariance[at, :][:, at])
    if root is None:
        return _inverse_root_on_span(covariance, rank, device)
    transform = device.xp.zeros_like(covariance[:rank])
    transform[:, at] = root
    return transform


def _inverse_root_on_span(covariance: Any, rank: int, device: Device) -> Any | None:
    """On the `rank` directions in which the rows vary most; (rank, d)."""
    here = device.get(covariance)
    scale = np.sqrt(np.diag(here))
    scale[scale == 0] = 1.0
    try:
        values, vectors = np.linalg.eigh(here / scale / scale[:, None])
    except np.linalg.LinAlgError:
        return None
    values, vectors = values[-rank:], vectors[:, -rank:]
    if not values[0] > 1e-13 * values[-1] or not scale.min() > 1 / _SAFE:
        return None
    # The directions are those of the scaled rows: once more, for the rows as they are.
    transform = (vectors / np.sqrt(values)).T / scale
    again = device.inverse_root(device.put(transform @ here @ transform.T))
    return None if again is None else again @ device.put(transform)


def _bounds(
    rows: _Rows, centre: np.ndarray, transform: np.ndarray
) -> tuple[float, float, float, float]:
    """Rigorous ‖K‖, η, ‖v̄‖ and M for this centre and transform."""
    device, count, width = rows.device, rows.count, rows.width
    xp = device.xp
    norm = float(row_norms(transform.reshape(1, -1))[0])
    moment_sum: Any = 0.0
    mean = np.zeros(len(transform))
    middle, turn = device.put(centre), Skyline(transform.T, device)
    reach = energy = length = leak = drift = 0.0
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for block, error, _, _ in rows.blocks():
            away = block - middle
            product = turn.times(away)
            moment_sum = moment_sum + product.T @ product
            mean += device.get(xp.sum(product, axis=0))
            sizes = device.get(row_norms(product, xp))
            # ‖computed v_i − true v_i‖: one rounding for w − c, d products and additions.
            errors = gamma(width + 8) * (norm * device.get(row_norms(away, xp)))
            if error is not None:
                errors = errors + norm * device.get(row_norms(error, xp))
            errors = up(errors, width + 8)
            reach = max(reach, float((sizes + errors).max()))
            energy += float((sizes**2).sum())
            length += float(sizes.sum())
            leak += float((2 * sizes * errors + errors**2).sum())
            drift += float(errors.sum())
        # Sums over all rows, of squares of their d entries; and what squares lost to underflow.
        share, roundings = gamma(count + 8), count + width + 64
        moment, diagonal = moment_sum / count, device.put(np.arange(len(transform)))
        moment[diagonal, diagonal] -= 1.0
        far = float(row_norms(moment.reshape(1, -1), xp)[0]) + width * UNIT * 4
        defect = up(far + (2 * share * energy + leak) / count, roundings)
        middle_off = float(row_norms(mean[None])[0])
        offset = up((middle_off + 2 * share * length + drift) / count, roundings)
    return norm, defect, offset, up(reach, roundings)
