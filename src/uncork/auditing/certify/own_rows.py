"""The trusted code for cosine and Euclidean distance: an item is first at its own vector.

With the query x = w_t:

    Euclidean   ‖w_i − w_t‖ > 0 = ‖w_t − w_t‖ for every i with w_i ≠ w_t;
    cosine      w_i·w_t ≤ ‖w_i‖ ‖w_t‖ (Cauchy and Schwarz), equal only where w_i = c w_t with c > 0.

So an item is first alone exactly if no other has its vector (its direction), and items that share
one are always level with each other. Nothing is computed but which rows these are, and that is
decided exactly. A cosine does not see how long a query is: x = s·w_t does as well, for any s > 0.
A vector of zeros has no direction: about its cosine nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np

from uncork.auditing.proofs.proofs import Proofs
from uncork.auditing.proofs.verdict import Verdict
from uncork.core.items import Items
from uncork.domain import Domain

_BYTES = 64 << 20  # of rows in float64 looked at in one go
# Types whose products of two values are exact in float64: at most 26 significant bits each.
_NARROW = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
           "int8", "int16", "uint8", "uint16", "bool")  # fmt: skip


def zero_items(items: Items) -> np.ndarray:
    """Items whose vector is zero, ascending."""
    step = _step(items)
    zero = [first + np.flatnonzero(~block.any(axis=1)) for first, block in items.blocks(step)]
    return np.concatenate(zero)


def alike(items: Items, tick: Callable[[int], None] = lambda n: None) -> list[np.ndarray]:
    """Groups of two or more items that the metric never tells apart, ids ascending: equal vectors,
    or under cosine positive multiples of one another; exactly. Zeros have no group under cosine."""
    keys = np.empty(len(items), dtype=np.uint64)
    valid = np.ones(len(items), dtype=bool)
    for first, block in items.blocks(_step(items)):
        here = slice(first, first + len(block))
        if items.metric == "cosine":
            valid[here] = block.any(axis=1)
        keys[here] = _keys(_canonical(items.metric, block))
        tick(len(block))
    order = np.flatnonzero(valid)
    order = order[np.argsort(keys[order], kind="stable")]
    groups = [
        group
        for run in _runs(order, keys[order])
        for same in _same_canonical(items, run)
        for group in _really_alike(items, same)
    ]
    return sorted(groups, key=lambda group: int(group[0]))


def _step(items: Items) -> int:
    return max(1, _BYTES // (8 * items.features))


def _canonical(metric: str, rows: np.ndarray) -> np.ndarray:
    """Rows (n, d) in a form that is the same for all that are alike.

    Under cosine each row over its largest magnitude: w_k/|w_p| is the same number for all multiples
    of w, and a division rounds the same number to the same float.
    """
    if metric == "cosine":
        largest = np.abs(rows).max(axis=1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore", under="ignore"):
            rows = rows / largest
    return rows + 0.0  # −0 and 0 are the same number


def _keys(rows: np.ndarray) -> np.ndarray:
    """A 64-bit number for each row, the same for equal rows: (n, d) → (n,)."""
    multipliers = np.random.default_rng(0).integers(
        0, 2**64, size=rows.shape[1], dtype=np.uint64, endpoint=False
    ) | np.uint64(1)
    bits = np.ascontiguousarray(rows).view(np.uint64)
    mixed: np.ndarray = (bits ^ (bits >> np.uint64(29))) @ multipliers
    return mixed


def _runs(order: np.ndarray, keys: np.ndarray) -> Iterator[np.ndarray]:
    """Parts of `order`, by ascending key, in which all keys are equal: those of two or more."""
    edges = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])) if len(keys) else keys[:0]
    edges = np.append(edges.astype(np.int64), len(keys))
    for k in np.flatnonzero(np.diff(edges) > 1).tolist():
        yield order[edges[k] : edges[k + 1]]


def _same_canonical(items: Items, run: np.ndarray) -> Iterator[np.ndarray]:
    """A run told apart by its canonical rows, not only by their keys."""
    step = _step(items)
    left = run
    while len(left) > 1:
        first = _canonical(items.metric, items.take(left[:1]))
        same = np.concatenate([
            (_canonical(items.metric, items.take(left[k : k + step])) == first).all(axis=1)
            for k in range(0, len(left), step)
        ])  # fmt: skip
        if same.sum() > 1:
            yield left[same]
        left = left[~same]


def _really_alike(items: Items, same: np.ndarray) -> Iterator[np.ndarray]:
    """Under cosine, told apart exactly: quotients that differ can round to one float."""
    if items.metric != "cosine":
        yield np.sort(same)
        return
    left = np.sort(same)
    while len(left) > 1:
        parallel = _parallel(items, int(left[0]), left)
        if parallel.sum() > 1:
            yield left[parallel]
        left = left[~parallel]


def _parallel(items: Items, one: int, others: np.ndarray) -> np.ndarray:
    """Whether each of the others is a positive multiple of one: w_k v_p = v_k w_p for every k, at a
    p where both are not zero and of one sign. Exact."""
    w = items.take(np.array([one]))[0]
    p = int(np.abs(w).argmax())
    found = np.zeros(len(others), dtype=bool)
    step = _step(items)
    for start in range(0, len(others), step):
        rows = items.take(others[start : start + step])
        sign = np.sign(rows[:, p]) == np.sign(w[p])
        if items.dtype in _NARROW:
            equal = (rows * w[p] == rows[:, p : p + 1] * w).all(axis=1)
        else:
            equal = np.array([_parallel_exactly(w, row, p) for row in rows], dtype=bool)
        found[start : start + step] = equal & sign
    return found


def _parallel_exactly(w: np.ndarray, row: np.ndarray, p: int) -> bool:
    ours, theirs = Fraction(float(w[p])), Fraction(float(row[p]))
    return all(
        Fraction(a) * theirs == Fraction(b) * ours
        for a, b in zip(w.tolist(), row.tolist(), strict=True)
    )


def in_domain(items: Items, domain: Domain, ids: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Whether s·w of each of these items lies in the domain, for powers of two s: (n,)."""
    if domain.is_everything:
        return np.asarray(scales > 0)
    found = np.zeros(len(ids), dtype=bool)
    step = _step(items)
    for start in range(0, len(ids), step):
        rows = items.take(ids[start : start + step])
        part = scales[start : start + step].astype(np.float64)[:, None]
        with np.errstate(all="ignore"):
            inputs = rows * part
            exact = (inputs / part == rows).all(axis=1) & (np.frexp(part[:, 0])[0] == 0.5)
        found[start : start + step] = exact & domain.contains(np.where(exact[:, None], inputs, 0.0))
    return found


def failed_claims(
    items: Items, domain: Domain, proofs: Proofs, tick: Callable[[int], None] = lambda n: None
) -> dict[int, str]:
    """The verdicts that do not hold, each with what is wrong: item → why. Undecided claims
    nothing."""
    group_of = np.full(len(items), -1, dtype=np.int64)
    for number, group in enumerate(alike(items, tick)):
        group_of[group] = number
    zero = zero_items(items) if items.metric == "cosine" else np.empty(0, dtype=np.int64)
    verdicts = proofs.verdicts
    failed = dict.fromkeys(
        np.flatnonzero(verdicts == Verdict.UNARGMAXABLE).tolist(),
        f"under {items.metric_in_words} every item is first at its own vector",
    )
    alone = np.flatnonzero(verdicts == Verdict.ARGMAXABLE)
    failed |= dict.fromkeys(alone[group_of[alone] >= 0].tolist(), "another item equals it")
    tied = np.zeros(len(items), dtype=bool)
    for group in proofs.groups:
        if len(group) > 1 and len(np.unique(group)) == len(group):
            tied[group] = (group_of[group[0]] >= 0) & (group_of[group] == group_of[group[0]]).all()
    claimed = np.flatnonzero(verdicts == Verdict.TIED)
    failed |= dict.fromkeys(claimed[~tied[claimed]].tolist(), "it does not equal its group")
    failed |= dict.fromkeys(
        zero[verdicts[zero] != Verdict.UNDECIDED].tolist(), "a vector of zeros has no direction"
    )
    decided = np.flatnonzero(verdicts != Verdict.UNDECIDED)
    inside = np.zeros(len(items), dtype=bool)
    inside[decided] = in_domain(items, domain, decided, proofs.scales[decided])
    if items.metric == "euclidean":  # only the vector itself is at distance zero
        inside &= proofs.scales == 1
    for group in proofs.groups:  # what puts one of them first puts them all there
        inside[group] = (inside[group] & tied[group]).any()
    for t in decided[~inside[decided]].tolist():
        failed.setdefault(t, "its own vector is not in the domain")
    return failed
