"""From a solver's duals to mixtures worth certifying: few classes, balanced in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from uncork.auditing.backend import Backend
from uncork.auditing.proofs.verdict import Mixture

_BALANCED = 1e-5  # what rounding leaves is far less, and what no step brings down far more
_FEWER = (0.5, 0.7, 0.7)  # shares of the rows kept, tried one after the other


def mixtures_from_duals(
    backend: Backend,
    ids: np.ndarray,  # (B, n) class of each row, −1 for a side of the domain
    duals: Any,  # (B, n + extras) λ on unit rows; extras: the mean row, then perhaps the height
    rows: Any,  # (B, n + extras, m) the unit rows in float64, on the device
    lengths: Any,  # (B, n + 1) the lengths of class rows and mean before they were made unit
) -> list[Mixture | None]:
    """A mixture for each class, or None where the duals do not balance with λ ≥ 0.

    The duals are balanced to rounding, and the smallest dropped as far as the rest can still
    balance without them.
    """
    xp = backend.xp
    count = ids.shape[1]
    weights, good = balanced(backend, rows, xp.where(duals > 0, duals, xp.zeros_like(duals)))
    for share in _FEWER if bool(xp.any(good)) else ():
        fewer = _without_smallest(backend, weights, ids, rows.shape[2] + 1, share)
        fewer, fine = balanced(backend, rows, fewer)
        weights = xp.where((good & fine)[:, None], fewer, weights)
    weights = weights[:, : count + 1] / lengths
    shares, proper = backend.get(weights).astype(np.float64), backend.get(good)
    return [
        _mixture(own, share) if fine else None
        for own, share, fine in zip(ids, shares, proper.tolist(), strict=True)
    ]


def _without_smallest(
    backend: Backend, weights: Any, ids: np.ndarray, fewest: int, share: float
) -> Any:
    """Weights with the smallest of each row's class weights set to zero."""
    count = ids.shape[1]
    if not count:  # every other class is a repeat: only the mean and the domain are left
        return weights
    xp, is_class = backend.xp, backend.put(ids >= 0)
    # Sides stay: they are not the mixture's to drop.
    classes = xp.where(is_class, weights[:, :count], xp.zeros_like(weights[:, :count]))
    held = backend.get(xp.sum(xp.astype(classes > 0, xp.int64), axis=1))
    keep = np.minimum(held, np.maximum(fewest, (share * held).astype(np.int64)))
    order = xp.sort(classes, axis=1, descending=True)
    limit = order[backend.index(np.arange(len(ids))), backend.index(np.maximum(keep - 1, 0))]
    dropped = (classes < limit[:, None]) & is_class
    fewer = xp.where(dropped, xp.zeros_like(classes), weights[:, :count])
    return xp.concat([fewer, weights[:, count:]], axis=1)


def _mixture(ids: np.ndarray, share: np.ndarray) -> Mixture | None:
    bulk, named = float(share[-1]), np.where(ids >= 0, share[:-1], 0.0)
    total = float(named.sum()) + bulk
    if not total > 0 or not np.isfinite(total):
        return None
    at = np.flatnonzero(named)
    at = at[np.argsort(ids[at], kind="stable")]
    return Mixture(ids[at].astype(np.int32), named[at] / total, bulk=bulk / total)


def balanced(backend: Backend, rows: Any, weights: Any) -> tuple[Any, Any]:
    """λ near the given one with Σ λ_k a_k = 0 to rounding, and where that λ is ≥ 0.

    (B, n, m), (B, n) → (B, n), (B,). The smallest change in units of λ itself: a weight moves in
    proportion to its square, and one that is zero stays zero.
    """
    xp = backend.xp
    good = xp.all(xp.isfinite(weights), axis=1)
    turned = rows.swapaxes(1, 2)
    for left in reversed(range(5)):
        residual = (turned @ weights[:, :, None])[:, :, 0]
        off = xp.max(xp.abs(residual), axis=1) / xp.sum(weights, axis=1)
        if not left:
            return weights, good & (off < _BALANCED)
        off = off > 1e-15
        if not bool(xp.any(off & good)):
            break
        scaled = rows * weights[:, :, None]
        z = backend.solve(scaled.swapaxes(1, 2) @ scaled, residual)
        moved = weights - weights * (scaled @ z[:, :, None])[:, :, 0]
        good = good & xp.all(moved >= 0, axis=1)  # NaN is not ≥ 0
        weights = xp.where((good & off)[:, None], moved, weights)
    return weights, good
