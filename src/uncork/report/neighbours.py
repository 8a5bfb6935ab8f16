"""Which rows lie near a class, and who comes next where it wins: details of a report.

Searched in float32 and block by block, so that a large head is read once and never copied whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from uncork.auditing.certify.products import Device
from uncork.auditing.result import Audit
from uncork.core.head import Head
from uncork.core.items import Items

_BLOCK = 8192  # rows of the weight looked at in one go
_CHUNK = 1024  # classes asked about in one go
_Scores = Callable[[int, np.ndarray], np.ndarray]


class _Directions:
    """The rows of items over their lengths; zeros stay zeros."""

    def __init__(self, items: Items) -> None:
        self.items, self.features = items, items.features

    def __len__(self) -> int:
        return len(self.items)

    def take(self, ids: np.ndarray) -> np.ndarray:
        return _unit(self.items.take(ids))

    def blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        for start, block in self.items.blocks(rows):
            yield start, _unit(block)


def _unit(rows: np.ndarray) -> np.ndarray:
    rows = rows / np.maximum(np.abs(rows).max(axis=1, keepdims=True), 1e-300)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300))


_Rows = Head | Items | _Directions


def _count(rows: _Rows) -> int:
    return rows.classes if isinstance(rows, Head) else len(rows)


def next_items(items: Items, ids: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Who comes next where the query is an item's own vector, and how far behind: (n, k), (n, k).

    By Euclidean distance that is how far away it is, by cosine one minus its cosine. In floats.
    """
    if items.metric == "euclidean":
        return nearest_rows(items, ids, k)
    directions = _Directions(items)
    others, apart = nearest_rows(directions, ids, k)
    zero = ~directions.take(others.ravel()).any(axis=1).reshape(others.shape)
    return others, np.where(zero, 1.0, apart**2 / 2)  # of unit vectors: ‖a − b‖² = 2 − 2 a·b


def nearest_rows(head: _Rows, classes: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """For each class the k nearest other rows and their Euclidean distances: (n, k), (n, k)."""
    k = min(k, _count(head) - 1)
    centre, size = _middle(head)
    found = np.empty((len(classes), k), dtype=np.int64)
    for start in range(0, len(classes), _CHUNK):
        some = classes[start : start + _CHUNK]
        own = ((head.take(some) - centre) / size).astype(np.float32)

        def score(first: int, block: np.ndarray, own: np.ndarray = own) -> np.ndarray:
            rows = ((block - centre) / size).astype(np.float32)
            return own @ rows.T - 0.5 * np.einsum("ij,ij->i", rows, rows)

        found[start : start + _CHUNK] = _best(head, some, score, k)
    distances = np.empty(found.shape)
    for start in range(0, len(classes), _CHUNK):
        here = slice(start, start + _CHUNK)
        own = head.take(classes[here]) / size
        for j in range(k):
            away = head.take(found[here, j]) / size - own
            distances[here, j] = size * np.linalg.norm(away, axis=1)
    order = np.argsort(distances, axis=1, kind="stable")
    return np.take_along_axis(found, order, 1), np.take_along_axis(distances, order, 1)


def runners_up(
    audit: Audit, head: Head, classes: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Who comes next at the witness of each class, and by how much it leads there: (n, k), (n, k).

    Classes without a witness have −1 and NaN.
    """
    k = min(k, head.classes - 1)
    size = _middle(head)[1]
    found = np.full((len(classes), k), -1, dtype=np.int64)
    leads = np.full((len(classes), k), np.nan)
    for start in range(0, len(classes), _CHUNK):
        some = classes[start : start + _CHUNK]
        known, inputs = _witnesses(audit, head, some)
        if not known.any():
            continue
        some, x = some[known], inputs[known]
        sizes = np.maximum(np.abs(x).max(axis=1, keepdims=True), 1e-300)
        unit, scale = (x / sizes).astype(np.float32), sizes[:, 0] * size

        def score(
            first: int, block: np.ndarray, unit: np.ndarray = unit, scale: np.ndarray = scale
        ) -> np.ndarray:
            z = unit @ (block / size).astype(np.float32).T
            if head.bias is None:
                return z
            offsets = head.offsets[first : first + len(block)]
            with np.errstate(over="ignore"):  # a bias that large decides alone
                return z + (offsets[None, :] / scale[:, None]).astype(np.float32)

        next_ones = _best(head, some, score, k)
        own = np.einsum("ij,ij->i", head.take(some), x) + head.offsets[some]
        lead = np.empty(next_ones.shape)
        for j in range(k):
            other = next_ones[:, j]
            lead[:, j] = own - np.einsum("ij,ij->i", head.take(other), x) - head.offsets[other]
        order = np.argsort(lead, axis=1, kind="stable")
        places = start + np.flatnonzero(known)
        found[places] = np.take_along_axis(next_ones, order, 1)
        leads[places] = np.take_along_axis(lead, order, 1)
    return found, leads


def row_norms(head: Head | Items) -> np.ndarray:
    """The Euclidean length of every row: (C,)."""
    norms = np.empty(_count(head))
    for first, block in head.blocks(_BLOCK):
        size = np.maximum(np.abs(block).max(axis=1), 1e-300)
        norms[first : first + len(block)] = size * np.linalg.norm(block / size[:, None], axis=1)
    return norms


def _witnesses(audit: Audit, head: Head, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which classes have a witness (n,), and the inputs: (n, d), NaN where there is none."""
    proofs, view = audit.proofs, audit.domain.affine(head.features)
    inputs = np.full((len(classes), head.features), np.nan)
    known = proofs.has_input(classes)
    if known.any():
        latent = np.asarray(proofs.stored_inputs(head, classes[known], view.latent, Device()))
        inputs[known] = view.image(latent)
    for k in np.flatnonzero(~known).tolist():
        found = proofs.witness(head, int(classes[k]))
        if found is not None:
            inputs[k], known[k] = view.image(found.x), True
    return known, inputs


def _best(head: _Rows, classes: np.ndarray, score: _Scores, k: int) -> np.ndarray:
    """The k rows of the highest score for each class, the class itself apart: (n, k)."""
    best = np.full((len(classes), k), -np.inf, dtype=np.float32)
    which = np.zeros((len(classes), k), dtype=np.int64)
    lines = np.arange(len(classes))
    for first, block in head.blocks(_BLOCK):
        scores = score(first, block)
        inside = (classes >= first) & (classes < first + len(block))
        scores[lines[inside], classes[inside] - first] = -np.inf
        # A few maxima, one after the other, cost less than sorting every line.
        for _ in range(min(k, len(block))):
            top = scores.argmax(axis=1)
            values = scores[lines, top]
            if not (values > best[:, -1]).any():
                break
            scores[lines, top] = -np.inf
            both = np.concatenate([best, values[:, None]], axis=1)
            ids = np.concatenate([which, (top + first)[:, None]], axis=1)
            order = np.argsort(-both, axis=1, kind="stable")[:, :k]
            best, which = np.take_along_axis(both, order, 1), np.take_along_axis(ids, order, 1)
    return which


def _middle(head: _Rows) -> tuple[np.ndarray, float]:
    """The mean row (d,), and a size that brings every value near one."""
    total, largest = np.zeros(head.features), 0.0
    for _, block in head.blocks(_BLOCK):
        total += block.sum(axis=0) / _count(head)
        largest = max(largest, float(np.abs(block).max()))
    return total, max(largest, 1e-300)
