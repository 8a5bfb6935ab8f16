"""Lost classes that are nearly alike: a mixture that beats one of them is bent to beat the others.

Classes that training never touched lie close together, by the thousand in some heads. With
Σ λ_i (u_i, 1) = (u_s, 1), the mean row among the u_i, the smallest change of λ, in units of λ
itself, that moves the mixture from s to t is

    λ' = λ + Λ² Aᵀ (A Λ² Aᵀ)⁻¹ (u_t − u_s, 0),   the columns of A being (u_i, 1):

one factorisation for all classes near s. A few classes are decided one by one (`centre`), the
mixtures of neighbours among them averaged, so that many classes have weight, and bent to whoever is
near, as long as λ' ≥ 0. They mix none of the undecided, whose mixtures would be as small as their
neighbourhood. Where that stops paying, the rest is decided one by one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from uncork.auditing.proofs.verdict import Mixture
from uncork.auditing.search import centre
from uncork.auditing.search.proposer import Mixtures, Proposal, Proposer, Search
from uncork.auditing.search.space import Space

_WIDE = 512  # beyond this many features a factorisation is no longer cheap
_FEWEST = 400  # classes to decide, below which one by one is as fast
_SAMPLE = 96  # classes decided one by one, each time
_AVERAGED = 2  # mixtures, so that more classes have weight
_ROUNDS = 8
_WORTH_IT = 0.1  # share of the classes that a round must decide
_KEPT = 1e-3  # of its weight that a class in a mixture must keep


def propose(space: Space, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
    """A sample one by one, and then everybody near them, until that stops paying."""
    if not _fits(classes, space):
        return
    plan = next(centre.plans(space))
    rng, left = np.random.default_rng(0), classes
    for _ in range(_ROUNDS):
        if len(left) < _FEWEST or search.late():
            return
        sample = np.sort(rng.choice(left, _SAMPLE, replace=False))
        pairs: list[tuple[int, Mixture]] = []
        for proposal in centre.propose_in_batches(space, sample, search, plan, left):
            if isinstance(proposal, Mixtures):
                pairs.extend(proposal.pairs)
            yield proposal
        others = np.setdiff1d(left, sample)
        if len(pairs) >= _AVERAGED:
            with space.backend.threads(1):  # small products: threads would only wait
                found = bent(space, pairs, others)
            yield Mixtures(found)
        left = search.undecided(others)
        if len(others) - len(left) < _WORTH_IT * len(others):
            return


def _fits(classes: np.ndarray, space: Space) -> bool:
    return space.width <= _WIDE and len(classes) >= _FEWEST


def _steps(classes: np.ndarray, space: Space) -> int | None:
    """How many classes are alike is what is asked."""
    return None if _fits(classes, space) else 0


PROPOSER = Proposer("alike", "decide", propose, "neighbours", _steps)


def bent(
    space: Space, pairs: list[tuple[int, Mixture]], classes: np.ndarray
) -> list[tuple[int, Mixture]]:
    """Mixtures for those of the classes that are near enough to one that has a mixture."""
    known = np.array([t for t, _ in pairs], dtype=np.int64)
    points = space.exact_points(known)
    targets = space.exact_points(classes)
    nearest = _distances(targets, points).argmin(axis=1)
    neighbours = np.argsort(_distances(points, points), axis=1, kind="stable")[:, :_AVERAGED]
    found: list[tuple[int, Mixture]] = []
    for s in np.unique(nearest).tolist():
        near = np.flatnonzero(nearest == s)
        some = neighbours[s]
        found.extend(
            _bent(space, [pairs[k][1] for k in some], points[some], classes[near], targets[near])
        )
    return found


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Squared distances, up to rounding: (n, m), (k, m) → (n, k)."""
    sizes = np.einsum("ij,ij->i", a, a)[:, None] + np.einsum("ij,ij->i", b, b)
    return np.asarray(sizes - 2 * (a @ b.T))


def _bent(
    space: Space,
    mixtures: list[Mixture],
    points: np.ndarray,
    classes: np.ndarray,
    targets: np.ndarray,
) -> list[tuple[int, Mixture]]:
    """The average of some mixtures, for classes at `points`, bent to others at `targets`."""
    ids = np.unique(np.concatenate([mixture.classes for mixture in mixtures])).astype(np.int64)
    weights = np.zeros(len(ids) + 1)
    for mixture in mixtures:
        total = float(mixture.weights.sum()) + mixture.bulk
        weights[np.searchsorted(ids, mixture.classes)] += mixture.weights / total
        weights[-1] += mixture.bulk / total
    weights /= len(mixtures)
    # The mean row is the origin, and stands last.
    rows = np.concatenate([space.exact_points(ids), np.zeros((1, space.width))])
    columns = np.column_stack([rows, np.ones(len(rows))])
    scaled = columns * weights[:, None]
    away = np.column_stack([targets - points.mean(axis=0), np.zeros(len(targets))])
    hessian = scaled.T @ scaled
    hessian[np.diag_indices(len(hessian))] *= 1 + 1e-12
    result, wanted = (
        np.broadcast_to(weights, (len(targets), len(weights))),
        weights @ columns + away,
    )
    try:
        for _ in range(2):  # once more for what rounding left
            change = np.linalg.solve(hessian, (wanted - result @ columns).T)  # (m + 1, n)
            result = result + weights * (scaled @ change).T  # (n, k + 1)
    except np.linalg.LinAlgError:
        return []
    fine = (result >= _KEPT * weights).all(axis=1)
    narrow = ids.astype(np.int32)
    return [
        (int(t), _without(narrow, own, int(t)))
        for t, own in zip(classes[fine], result[fine], strict=True)
    ]


def _without(ids: np.ndarray, weights: np.ndarray, t: int) -> Mixture:
    """The mixture of the other classes: weight on t itself proves nothing, and is left out."""
    kept = ids != t
    total = float(weights[:-1][kept].sum() + weights[-1])
    return Mixture(ids[kept], weights[:-1][kept] / total, bulk=float(weights[-1]) / total)
