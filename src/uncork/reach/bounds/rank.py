"""Proven bounds on the best rank of a class: an input from above, mixtures from below.

At every input each mixture against t has a class at or above t. So k mixtures of pairwise disjoint
classes prove that t is never in the top k, and so do mixtures for every case of classes left out, k
levels deep.

Mixtures are proven on their own classes alone, as disjointness asks. The certifier absorbs rounding
by spreading a share of a mixture over all classes of a head; where mixtures must not share classes,
that head consists of t and the mixture's own classes.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.proofs.verdict import Mixture
from uncork.core.head import Head
from uncork.core.rigour import row_norms

_OPEN = 400  # pairs settled exactly at one input
_ROWS = 4096  # of the head in one product
_SCORES = 8 << 20  # scores looked at together, at most

Cases = dict[frozenset[int], Mixture]  # classes left out → a mixture of others


def rank_at(certifier: Certifier, t: int, u: np.ndarray, equals: np.ndarray) -> int:
    """Proven: the rank of t at this input is no worse. The number of classes + 1 if outside."""
    worst = certifier.head.classes + 1
    device, products = certifier.device, certifier.products
    x, drift, inside = certifier.seen(device.put(np.asarray(u, dtype=np.float64)[None]))
    if not inside[0]:
        return worst
    point = device.get(x)[0]
    reach = float(row_norms(point[None])[0])
    z = np.concatenate([block @ point for _, block in certifier.head.blocks(4096)])
    z += certifier.offsets
    error = products.kappa * (reach * products.norms + np.abs(certifier.offsets)) + products.slop
    error = error + 1.04 * float(drift[0]) * products.norms
    room = (error + error[t]) * (1 + 2.0**-40) + 2.0**-50 * np.abs(z - z[t])
    lead = z - z[t]
    above = ~(lead < -room)
    above[equals] = False
    above[t] = False
    open_ = np.flatnonzero(above & ~(lead > room))
    if len(open_) <= _OPEN:
        exact = [Fraction(v) for v in np.asarray(u, dtype=np.float64).tolist()]
        for i in open_.tolist():
            above[i] = not certifier.exact_lead(t, exact, i) > 0
    return 1 + int(above.sum())


def holds(certifier: Certifier, t: int, mixture: Mixture) -> bool:
    """Whether the mixture is proven to have a class at or above t at every input."""
    if mixture.tilt is not None or not len(mixture.classes):
        return False
    if mixture.bulk == 0:
        return certifier.mixture(t, mixture) >= 0
    if not (mixture.classes != t).any():  # beside itself it has nobody
        return False
    part, members = own_head(certifier, t, mixture)
    local = replace(mixture, classes=np.searchsorted(members[:-1], mixture.classes))
    return Certifier(part, certifier.domain).mixture(len(members) - 1, local) >= 0


def own_head(certifier: Certifier, t: int, mixture: Mixture) -> tuple[Head, np.ndarray]:
    """The head of the mixture's classes, ascending, and t at the end."""
    head = certifier.head
    members = np.append(np.setdiff1d(mixture.classes, [t]), t)
    bias = None if head.bias is None else head.bias[members]
    return Head(head.weight[members], bias, domain=certifier.domain), members


def disjoint_bound(certifier: Certifier, t: int, mixtures: list[Mixture]) -> int:
    """Proven: so many classes are at or above t at every input; 0 where mixtures share a class."""
    members = np.concatenate([m.classes for m in mixtures] or [np.empty(0, np.int64)])
    if len(np.unique(members)) != len(members):
        return 0
    return sum(holds(certifier, t, mixture) for mixture in mixtures)


def cases_bound(certifier: Certifier, t: int, cases: Cases) -> int:
    """Proven: so many classes are at or above t at every input."""
    known: dict[frozenset[int], int] = {}

    def bound(left_out: frozenset[int]) -> int:
        if left_out in known:
            return known[left_out]
        mixture, result = cases.get(left_out), 0
        if mixture is not None:
            members = set(mixture.classes.tolist())
            if members and not left_out & members and holds(certifier, t, mixture):
                result = 1 + min(bound(left_out | {i}) for i in members)
        known[left_out] = result
        return result

    return bound(frozenset())


def ranks_at(
    certifier: Certifier, classes: np.ndarray, u: np.ndarray, equals: dict[int, np.ndarray]
) -> np.ndarray:
    """As `rank_at` for many classes, each at its own input (n, latent), in bounded floats alone:
    (n,). `equals` has the classes that equal one, itself among them."""
    head, device, products = certifier.head, certifier.device, certifier.products
    found = np.full(len(classes), head.classes + 1)
    groups = np.array([sum(certifier.equal(int(i), t) for i in equals.get(t, [t]))
                       for t in classes.tolist()])  # fmt: skip
    step = max(1, min(device.inputs, _SCORES // head.classes))
    for start in range(0, len(classes), step):
        part = slice(start, start + step)
        x, drift, inside = certifier.seen(device.put(np.asarray(u[part], dtype=np.float64)))
        x = device.get(x)
        reach = row_norms(x)
        size = reach + 1.05 * drift / products.kappa  # what is not known of x rides along

        def off(norms: np.ndarray, offsets: np.ndarray, size: np.ndarray = size) -> np.ndarray:
            error = products.kappa * (np.multiply.outer(size, norms) + np.abs(offsets))
            return np.asarray(error * 1.01 + 2 * products.slop)

        own = (head.take(classes[part]) * x).sum(axis=1) + certifier.offsets[classes[part]]
        own -= np.diag(off(products.norms[classes[part]], certifier.offsets[classes[part]]))
        above = np.zeros(len(x), dtype=np.int64)
        for first, block in head.blocks(_ROWS):
            rows = slice(first, first + len(block))
            z = x @ block.T + certifier.offsets[rows]
            z += off(products.norms[rows], certifier.offsets[rows])
            above += (~(z < own[:, None])).sum(axis=1)
        safe = inside & np.isfinite(4 * size * products.norms.max())
        found[part] = np.where(safe, 1 + above - groups[part], found[part])
    return found
