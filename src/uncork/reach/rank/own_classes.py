"""Mixtures proven on their own classes alone, as disjointness asks.

The certifier absorbs rounding by spreading a share of a mixture over all classes of a head. Where
mixtures must not share classes, that head is the one of t and the mixture's own classes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from uncork.auditing.backend import Backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.proofs.verdict import Mixture
from uncork.auditing.search.exact import Limit, decide_exactly
from uncork.auditing.search.mixtures import balanced
from uncork.core.head import Head

_BULK = 1e-3  # the share spread over the mixture's classes
_EXACT = 4000  # numbers in the rows of a mixture that is also sought exactly
_SECONDS = 2.0


def holds(certifier: Certifier, t: int, mixture: Mixture) -> bool:
    """Whether the mixture is proven to have a class at or above t at every input."""
    if mixture.tilt is not None or not len(mixture.classes):
        return False
    if mixture.bulk == 0:
        return certifier.mixture(t, mixture) >= 0
    part, members = _part(certifier, t, mixture)
    local = replace(mixture, classes=np.searchsorted(members[:-1], mixture.classes))
    return Certifier(part, certifier.domain).mixture(len(members) - 1, local) >= 0


def proven(certifier: Certifier, points: np.ndarray, t: int, mixture: Mixture) -> Mixture | None:
    """The mixture, or one of the same classes, that is proven; None where there is none.

    `points` (C, width) are the classes in whitened coordinates: where a mixture must balance
    exactly, it is balanced there with its mean row as one more.
    """
    if holds(certifier, t, mixture):
        return mixture
    spread = _spread(points, t, mixture)
    if spread is not None and holds(certifier, t, spread):
        return spread
    if len(mixture.classes) * certifier.head.features > _EXACT:
        return None
    part, members = _part(certifier, t, mixture)
    last = len(members) - 1
    try:
        found = decide_exactly(
            part, certifier.domain, last, np.arange(last), np.empty(0, np.int64), _SECONDS
        )
    except Limit:
        return None
    if not isinstance(found, Mixture):
        return None
    found = replace(found, classes=members[found.classes])
    return found if holds(certifier, t, found) else None


def _part(certifier: Certifier, t: int, mixture: Mixture) -> tuple[Head, np.ndarray]:
    """The head of the mixture's classes, ascending, and t at the end."""
    head = certifier.head
    members = np.append(np.setdiff1d(mixture.classes, [t]), t)
    bias = None if head.bias is None else head.bias[members]
    return Head(head.weight[members], bias, domain=certifier.domain), members


def _spread(points: np.ndarray, t: int, mixture: Mixture) -> Mixture | None:
    members = np.append(np.setdiff1d(mixture.classes, [t]), t)
    away = points[mixture.classes] - points[t]
    mean = points[members].mean(axis=0) - points[t]
    rows = np.concatenate([away, mean[None]])
    lengths = np.linalg.norm(rows, axis=1)
    if not (lengths > 0).all():
        return None
    weights = np.append(mixture.weights / np.sum(mixture.weights), _BULK) * lengths
    unit = rows / lengths[:, None]
    moved, good = balanced(Backend(1, np.float64), unit[None], weights[None])
    shares = moved[0] / lengths
    if not good[0] or not np.isfinite(shares).all() or not shares[-1] > 0:
        return None
    return Mixture(mixture.classes, shares[:-1], float(shares[-1]))
