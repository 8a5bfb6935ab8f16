"""Rows worth a look before an audit: zero, equal, within rounding, special, unused, padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from uncork.core.head import Head
from uncork.core.items import Items
from uncork.loading.contents import Vocabulary
from uncork.loading.vocabulary import vocabulary_of

_BLOCK_VALUES = 1 << 21
_NEAR_COLUMN = 2.0**-20  # a column that varies less than this, against the most varied one
WITHIN_ROUNDING = 2.0**-8  # of a row's length: what rounding each value to bfloat16 can change
_DIRECTIONS = 8  # random ones that tell rows apart; two near rows are missed once in 300,000
_STRETCH = 40.0**0.5  # the length a short difference can have along them, at most
_NEIGHBOURS = 4


@dataclass(frozen=True)
class OddRows:
    """Rows and columns worth a look. Groups are classes, in ascending order.

    Rows are near when they differ by at most 2⁻⁸ of the shorter one's length, which is what
    rounding to bfloat16 can change; groups are joined by such pairs. Equal rows are not listed
    again as near ones.
    """

    zero_rows: tuple[int, ...] = ()
    equal_rows: tuple[tuple[int, ...], ...] = ()  # weights equal
    tied_rows: tuple[tuple[int, ...], ...] = ()  # weights and biases equal
    near_rows: tuple[tuple[int, ...], ...] = ()  # weights within rounding of each other
    special_rows: tuple[int, ...] = ()  # control tokens
    unused_rows: tuple[int, ...] = ()  # reserved tokens, and ids no token has
    padding_rows: tuple[int, ...] = ()  # past the tokenizer's last entry
    constant_columns: tuple[int, ...] = ()  # the same for every class: no say in the argmax
    near_constant_columns: tuple[int, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The same as lists, for JSON."""
        return {field.name: _lists(getattr(self, field.name)) for field in fields(self)}

    def kinds(self) -> list[tuple[str, list[int]]]:
        """Each kind of odd row in words, and the classes of that kind."""
        return [
            ("rows of special tokens", list(self.special_rows)),
            ("rows of reserved or unused tokens", list(self.unused_rows)),
            ("rows past the vocabulary's end", list(self.padding_rows)),
            ("rows that are all zero", list(self.zero_rows)),
            ("rows equal to another", _flat(self.equal_rows)),
            ("rows within rounding of another", _flat(self.near_rows)),
        ]


def some(ids: Sequence[int], most: int = 8) -> str:
    """The first few ids; a run of consecutive ones as a range."""
    if len(ids) > 2 and ids[-1] - ids[0] == len(ids) - 1:
        return f"{ids[0]}–{ids[-1]}"
    return ", ".join(map(str, ids[:most])) + (" …" if len(ids) > most else "")


def _flat(groups: Sequence[Sequence[int]]) -> list[int]:
    return [k for group in groups for k in group]


def _lists(values: Any) -> Any:
    return [_lists(value) for value in values] if isinstance(values, tuple) else values


def odd_rows(head: Head, vocabulary: Vocabulary | None = None) -> OddRows:
    """What is odd about a head's rows and columns. One pass over the weight, and one over the
    rows that look near to another. Without a vocabulary, kinds are told by the labels' names."""
    if vocabulary is None:
        vocabulary = Vocabulary()
        if head.labels is not None:
            vocabulary = vocabulary_of(head.labels, head.classes, "labels", byte_level=False)
    rng = np.random.default_rng(0)
    multipliers = rng.integers(0, 2**64, size=head.features, dtype=np.uint64) | np.uint64(1)
    exact = head.features <= _DIRECTIONS
    directions = (
        np.eye(head.features) if exact else rng.standard_normal((head.features, _DIRECTIONS))
    )
    low, high = np.full(head.features, np.inf), np.full(head.features, -np.inf)
    keys = np.empty(head.classes, dtype=np.uint64)
    sizes, lengths = np.empty(head.classes), np.empty(head.classes)
    points = np.empty((head.classes, directions.shape[1]))
    for first, block in head.blocks(max(1, _BLOCK_VALUES // head.features)):
        block = block + 0.0  # −0 and 0 are the same number
        here = slice(first, first + len(block))
        low, high = np.minimum(low, block.min(axis=0)), np.maximum(high, block.max(axis=0))
        bits = block.view(np.uint64)
        keys[here] = (bits ^ (bits >> np.uint64(29))) @ multipliers
        sizes[here] = np.maximum(block.max(axis=1), -block.min(axis=1))
        with np.errstate(invalid="ignore", divide="ignore"):
            block /= sizes[here, None]  # so that no square over- or underflows
        lengths[here] = np.sqrt(np.einsum("ij,ij->i", block, block))
        points[here] = block @ directions
    zero = np.flatnonzero(sizes == 0)
    equal = _equal(head, keys)
    repeats = {k for group in equal for k in group[1:]}
    distinct = np.array([k not in repeats for k in range(head.classes)]) & (sizes > 0)
    near = _near(head, np.flatnonzero(distinct), points, sizes, lengths, 1.0 if exact else _STRETCH)
    tied: list[tuple[int, ...]] = []
    for group in equal:
        by_bias: dict[float, list[int]] = {}
        for k in group:
            by_bias.setdefault(float(head.offsets[k]), []).append(k)
        tied += [tuple(same) for same in by_bias.values() if len(same) > 1]
    spread = high / 2 - low / 2  # halves, so that it cannot overflow
    hardly = (spread > 0) & (spread < _NEAR_COLUMN * spread.max())
    return OddRows(
        zero_rows=tuple(zero.tolist()),
        equal_rows=tuple(equal),
        tied_rows=tuple(tied),
        near_rows=near,
        special_rows=vocabulary.special,
        unused_rows=vocabulary.unused,
        padding_rows=vocabulary.padding,
        constant_columns=tuple(np.flatnonzero(low == high).tolist()),
        near_constant_columns=tuple(np.flatnonzero(hardly).tolist()),
    )


def odd_items(items: Items, vocabulary: Vocabulary | None = None) -> OddRows:
    """The same of items under any metric: their vectors are looked at, and no score."""
    if len(items) < 2:
        return OddRows()
    return odd_rows(Head(items.vectors, labels=items.labels), vocabulary)


def _equal(head: Head, keys: np.ndarray) -> list[tuple[int, ...]]:
    """Groups of rows that are equal value by value, found by their keys."""
    _, which, count = np.unique(keys, return_inverse=True, return_counts=True)
    candidates: dict[int, list[int]] = {}
    for k in np.flatnonzero(count[which] > 1).tolist():
        candidates.setdefault(int(which[k]), []).append(k)
    groups: list[tuple[int, ...]] = []
    for same in candidates.values():
        left = np.array(same)
        while len(left) > 1:
            first = head.take(left[:1])[0]
            alike = np.array([bool((head.take(left[k : k + 1])[0] == first).all())
                              for k in range(len(left))])  # fmt: skip
            if alike.sum() > 1:
                groups.append(tuple(np.sort(left[alike]).tolist()))
            left = left[~alike]
    return sorted(groups)


def _near(
    head: Head,
    rows: np.ndarray,
    points: np.ndarray,
    sizes: np.ndarray,
    lengths: np.ndarray,
    stretch: float,
) -> tuple[tuple[int, ...], ...]:
    """Groups among these rows that are joined by pairs within rounding of each other."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    if len(rows) < 2:
        return ()
    # Rows of length one along the directions, and the length itself: near rows are near in both.
    scaled = points[rows] / lengths[rows, None]
    octaves = np.log(lengths[rows]) + np.log(sizes[rows])
    places = np.column_stack([scaled, octaves])
    reach = 2 * WITHIN_ROUNDING * (stretch + 1)
    count = min(_NEIGHBOURS, len(rows))
    _, found = cKDTree(places).query(places, k=count, distance_upper_bound=reach)
    one, place = np.nonzero(found < len(rows))
    other = found[one, place]
    keep = one != other
    pairs = np.unique(np.sort(np.column_stack([one[keep], other[keep]]), axis=1), axis=0)
    close = np.zeros(len(pairs), dtype=bool)
    step = max(1, _BLOCK_VALUES // head.features)
    for start in range(0, len(pairs), step):
        a, b = rows[pairs[start : start + step, 0]], rows[pairs[start : start + step, 1]]
        scale = np.maximum(sizes[a], sizes[b])[:, None]
        first, second = head.take(a) / scale, head.take(b) / scale
        shorter = np.minimum(np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1))
        apart = np.linalg.norm(first - second, axis=1)
        close[start : start + step] = apart <= WITHIN_ROUNDING * shorter
    pairs = pairs[close]
    if not len(pairs):
        return ()
    ones = np.ones(len(pairs))
    graph = coo_array((ones, (pairs[:, 0], pairs[:, 1])), shape=(len(rows), len(rows)))
    _, group = connected_components(graph, directed=False)
    members = np.unique(pairs)
    by_group: dict[int, list[int]] = {}
    for k in members.tolist():
        by_group.setdefault(int(group[k]), []).append(int(rows[k]))
    return tuple(sorted(tuple(sorted(ids)) for ids in by_group.values()))
