"""How many dimensions the rows of a head span about one of them: a bound that is proven.

A normal n with n·w_i = n·w_0 for every row i takes one dimension away. Features that are the same
in all rows have one each. In heads of few features all normals are found, in whole numbers: those
orthogonal to some rows, then held against every row; a row that disagrees joins the first ones.
"""

from __future__ import annotations

from fractions import Fraction
from math import gcd, lcm

import numpy as np

from uncork.core.head import Head
from uncork.core.rigour import integers

_ROWS = 4096
_MOST = 64  # features, beyond which only those that never vary are looked for


def varying_features(head: Head) -> np.ndarray:
    """Which features are not the same in all rows: (n,)."""
    first, varies = head.rows(0, 1)[0], np.zeros(head.features, dtype=bool)
    for _, block in head.blocks(_ROWS):
        varies |= (block != first).any(axis=0)
    return np.flatnonzero(varies)


def affine_dimension(head: Head, features: np.ndarray) -> int:
    """An upper bound on the dimension of what the differences of rows span; `features` are those
    that vary."""
    if not 0 < len(features) <= _MOST:
        return len(features)
    own, own_scale = integers(head.rows(0, 1)[0][features])
    normals = _orthogonal([], len(features))
    levels = [_dot(n, own) for n in normals]
    away: list[list[Fraction]] = []
    for _, block in head.blocks(_ROWS):
        for row in block[:, features]:
            whole, scale = integers(row)
            # n·w_i = n·w_0, both over their own power of two.
            if all(
                _dot(n, whole) * own_scale == level * scale
                for n, level in zip(normals, levels, strict=True)
            ):
                continue
            pairs = zip(whole, own, strict=True)
            away.append([Fraction(a, scale) - Fraction(b, own_scale) for a, b in pairs])
            normals = _orthogonal(away, len(features))
            if not normals:
                return len(features)
            levels = [_dot(n, own) for n in normals]
    return len(features) - len(normals)


def _orthogonal(rows: list[list[Fraction]], width: int) -> list[list[int]]:
    """Independent whole vectors orthogonal to all rows, as many as there are: by elimination."""
    table = [list(row) for row in rows]
    pivots: list[int] = []
    for column in range(width):
        done = len(pivots)
        at = next((k for k in range(done, len(table)) if table[k][column]), None)
        if at is None:
            continue
        table[done], table[at] = table[at], table[done]
        lead = table[done][column]
        table[done] = [v / lead for v in table[done]]
        for k, row in enumerate(table):
            factor = row[column]
            if k != done and factor:
                table[k] = [a - factor * b for a, b in zip(row, table[done], strict=True)]
        pivots.append(column)
    found = []
    for free in (j for j in range(width) if j not in pivots):
        normal = [Fraction(0)] * width
        normal[free] = Fraction(1)
        for k, column in enumerate(pivots):
            normal[column] = -table[k][free]
        found.append(_whole(normal))
    return found


def _whole(values: list[Fraction]) -> list[int]:
    scale = lcm(*(v.denominator for v in values))
    numbers = [int(v * scale) for v in values]
    shared = gcd(*numbers) or 1
    return [n // shared for n in numbers]


def _dot(a: list[int], b: list[int]) -> int:
    return sum(p * q for p, q in zip(a, b, strict=True))
