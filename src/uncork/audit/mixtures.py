"""From a solver's duals to a mixture worth certifying: few classes, balanced in float64."""

from __future__ import annotations

import numpy as np

from uncork.audit.backend import Backend
from uncork.audit.space import Space
from uncork.audit.verdict import Mixture


def mixtures_from_duals(
    space: Space,
    classes: np.ndarray,  # (B,)
    ids: np.ndarray,  # (B, n) class of each row, −1 for a side of the domain
    duals: np.ndarray,  # (B, n + extras) λ on unit rows; extras: the mean row, then the height
    rows: np.ndarray,  # (B, n + extras, m) the unit rows themselves, for the sides
) -> list[Mixture | None]:
    """A mixture for each class, or None where the duals do not balance with λ ≥ 0.

    The duals come in search precision and on many rows: they are balanced anew in float64, and
    the smallest dropped as far as the rest can still balance without them.
    """
    return [
        _mixture(space, int(t), own_ids, weight, own_rows)
        for t, own_ids, weight, own_rows in zip(classes, ids, duals, rows, strict=True)
    ]


def _mixture(
    space: Space, t: int, ids: np.ndarray, weight: np.ndarray, rows: np.ndarray
) -> Mixture | None:
    if not np.isfinite(weight).all():
        return None
    count = len(ids)
    points = space.backend.get(space.precise(np.append(np.where(ids >= 0, ids, t), t)))
    a = rows.astype(np.float64)
    away = points[:-1] - points[-1]
    norms = np.linalg.norm(away, axis=1)
    norms[norms == 0] = 1.0
    own = ids >= 0
    a[:count][own] = (away / norms[:, None])[own]
    mean_length = float(np.linalg.norm(points[-1])) or 1.0
    a[count] = -points[-1] / mean_length
    lam = balanced(space.backend, a, np.maximum(weight, 0.0))
    if lam is None:
        return None
    lam = _sparser(space.backend, a, lam, np.flatnonzero(own), space.width + 1)
    share = np.zeros(count)
    share[own] = lam[:count][own] / norms[own]
    bulk = lam[count] / mean_length
    total = share.sum() + bulk
    kept = np.flatnonzero(share)
    if not total > 0:
        return None
    kept = kept[np.argsort(ids[kept])]
    return Mixture(ids[kept].astype(np.int32), share[kept] / total, bulk=float(bulk / total))


def _sparser(
    backend: Backend, a: np.ndarray, lam: np.ndarray, classes: np.ndarray, least: int
) -> np.ndarray:
    """Drop the smallest class weights, a part at a time, while the rest still balances."""
    for share in (0.5, 0.7, 0.7):
        held = classes[lam[classes] > 0]
        keep = max(least, int(share * len(held)))
        if keep >= len(held):
            break
        smallest = held[np.argpartition(lam[held], len(held) - keep)[: len(held) - keep]]
        fewer = lam.copy()
        fewer[smallest] = 0
        support = np.flatnonzero(fewer)
        part = balanced(backend, a[support], fewer[support])
        if part is not None:
            lam = fewer
            lam[support] = part
    return lam


def balanced(backend: Backend, a: np.ndarray, lam: np.ndarray) -> np.ndarray | None:
    """λ near the given one with Σ λ_k a_k = 0 to rounding and λ ≥ 0, or None: (n, m), (n,) → (n,).

    The smallest change in units of λ itself: a row's weight moves in proportion to its square.
    """
    rows, weights = backend.put(a), backend.put(lam)
    for _ in range(4):
        residual = rows.T @ weights
        if float(backend.xp.max(backend.xp.abs(residual))) <= 1e-15 * float(lam.sum()):
            break
        scaled = rows * weights[:, None]
        z = backend.solve((scaled.T @ scaled)[None], residual[None])[0]
        weights = weights - weights * (scaled @ z)
        lam = backend.get(weights)
        if not np.isfinite(lam).all() or (lam < 0).any():
            return None
    return lam
