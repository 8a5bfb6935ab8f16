"""What ops that move elements about do to bounds: one move a kind of op, as a function of arrays.

A move takes bounds of a value (an extent of 1 stands for any size) and gives those of the result.
Where several elements may end up in one place it takes the least, or the largest, of their bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.loading.onnx.arriving.value import Move
from uncork.loading.onnx.shapes import Axis, Dims

_MOST = 1 << 20  # elements that a move may spread bounds over


def reshaped(dims: Dims, wanted: Dims) -> Move | None:
    """Elements keep their order. From both ends axes are matched, or cut where one divides the
    other; whatever is left in the middle is set against each other as a whole."""
    if 0 in dims or 0 in wanted:
        return None
    before = [axis for axis in dims if axis != 1]
    after = [axis for axis in wanted if axis != 1]
    atoms = _matched(before, after)
    if atoms is None:
        return None
    a, b = atoms

    def move(bounds: np.ndarray, reduce: Any) -> np.ndarray:
        extents = [n for n, axis in zip(bounds.shape, dims, strict=True) if axis != 1]
        shape: list[int] = []
        for extent, parts in zip(extents, a, strict=True):
            shape += [1] * len(parts) if extent == 1 else [int(part.size) for part in parts]
        array = bounds.reshape(shape)
        flat_a = [part for parts in a for part in parts]
        flat_b = [part for parts in b for part in parts]
        first = sum(part.end == "front" for part in flat_a)
        last = sum(part.end == "back" for part in flat_a)
        middle = range(first, len(flat_a) - last)
        sizes_b = [part.size for part in flat_b[first : len(flat_b) - last]]
        extents_b = [1] * len(sizes_b)
        if any(array.shape[k] > 1 for k in middle):
            sizes_a = [flat_a[k].size for k in middle]
            whole = all(isinstance(n, int) for n in (*sizes_a, *sizes_b))
            total = math.prod(int(n) for n in sizes_a) if whole else 0
            rest = math.prod(array.shape[:first]) * math.prod(array.shape[first + len(middle) :])
            if whole and 0 < total * rest <= _MOST:
                full = [*array.shape[:first], *(int(n) for n in sizes_a),
                        *array.shape[first + len(middle) :]]  # fmt: skip
                array = np.broadcast_to(array, full)
                extents_b = [int(n) for n in sizes_b]
            else:
                array = reduce(array, axis=tuple(middle), keepdims=True)
        front, back = array.shape[:first], array.shape[first + len(middle) :]
        return _merged(array.reshape((*front, *extents_b, *back)), b, wanted, reduce)

    return move


@dataclass(frozen=True)
class _Atom:
    """A factor of an axis: matched from the front, from the back, or left in the middle."""

    size: Axis
    end: str


def _matched(
    before: list[Axis], after: list[Axis]
) -> tuple[list[list[_Atom]], list[list[_Atom]]] | None:
    """Each axis as its factors, outermost first, so that both shapes have the same ones at both
    ends."""
    rests = [list(before), list(after)]
    starts: list[list[list[_Atom]]] = [[[] for _ in before], [[] for _ in after]]
    ends: list[list[list[_Atom]]] = [[[] for _ in before], [[] for _ in after]]
    for end in ("back", "front"):
        kept = ends if end == "back" else starts
        ways = [list(range(len(side)))[:: -1 if end == "back" else 1] for side in rests]
        while all(ways):
            x, y = (rests[side][ways[side][0]] for side in (0, 1))
            both = isinstance(x, int) and isinstance(y, int)
            if 1 in (x, y) and x != y:  # used up from the other end
                side = 0 if x == 1 else 1
                ways[side].pop(0)
                continue
            if x == y:
                size = x
            elif both and int(x) % int(y) == 0:
                size = y
            elif both and int(y) % int(x) == 0:
                size = x
            else:
                break
            for side in (0, 1):
                axis = ways[side][0]
                if size != 1:
                    place = 0 if end == "back" else len(kept[side][axis])
                    kept[side][axis].insert(place, _Atom(size, end))
                rest = rests[side][axis]
                rests[side][axis] = 1 if rest == size else int(rest) // int(size)
                if rests[side][axis] == 1:
                    ways[side].pop(0)
    parts = []
    for side in (0, 1):
        parts.append([
            [*start, *([] if rest == 1 else [_Atom(rest, "middle")]), *end]
            for start, rest, end in zip(starts[side], rests[side], ends[side], strict=True)
        ])  # fmt: skip
    for flat in ([atom.end for axis in side for atom in axis] for side in parts):
        if flat != sorted(flat, key=["front", "middle", "back"].index):
            return None
    return parts[0], parts[1]


def _merged(array: np.ndarray, parts: list[list[_Atom]], wanted: Dims, reduce: Any) -> np.ndarray:
    """Factors put together again to the axes of the result."""
    shape: list[int] = []
    spread: list[int] = []
    at = 0
    for axis in parts:
        extents = array.shape[at : at + len(axis)]
        at += len(axis)
        if all(n == 1 for n in extents):
            shape.append(1)
            spread += [1] * len(axis)
        else:
            shape.append(math.prod(int(atom.size) for atom in axis))
            spread += [int(atom.size) for atom in axis]
    if math.prod(spread) > _MOST:
        return np.full((1,) * len(wanted), reduce(array))
    array = np.broadcast_to(array, spread).reshape(shape)
    kept = iter(array.shape)
    return array.reshape([1 if axis == 1 else next(kept) for axis in wanted])


def transposed(perm: list[int]) -> Move:
    return lambda bounds, reduce: np.transpose(bounds, perm)


def squeezed(axes: list[int]) -> Move:
    return lambda bounds, reduce: np.squeeze(bounds, tuple(axes))


def unsqueezed(axes: list[int]) -> Move:
    return lambda bounds, reduce: np.expand_dims(bounds, tuple(axes))


def along(axis: int, places: np.ndarray) -> Move:
    """Entries picked along an axis, each by its place."""

    def move(bounds: np.ndarray, reduce: Any) -> np.ndarray:
        if bounds.shape[axis] > 1:
            return np.take(bounds, places, axis=axis)
        rank = np.ndim(places)
        return bounds.reshape((*bounds.shape[:axis], *[1] * rank, *bounds.shape[axis + 1 :]))

    return move


def any_along(axes: list[int], count: int = 1) -> Move:
    """Any entries at all along axes, of which `count` take the place of the one."""

    def move(bounds: np.ndarray, reduce: Any) -> np.ndarray:
        kept = reduce(bounds, axis=tuple(axes), keepdims=True)
        if count == 1:
            return np.asarray(kept)
        axis = axes[0]
        return np.asarray(kept).reshape((*kept.shape[:axis], *[1] * count, *kept.shape[axis + 1 :]))

    return move


def tiled(repeats: list[int]) -> Move:
    def move(bounds: np.ndarray, reduce: Any) -> np.ndarray:
        times = [n if extent > 1 else 1 for n, extent in zip(repeats, bounds.shape, strict=True)]
        if math.prod(times) * bounds.size > _MOST:
            return np.full((1,) * bounds.ndim, reduce(bounds))
        return np.tile(bounds, times)

    return move


def widened(rank: int) -> Move:
    """More axes in front, as broadcasting adds them."""
    return lambda bounds, reduce: bounds.reshape((1,) * (rank - bounds.ndim) + bounds.shape)


def same(bounds: np.ndarray, reduce: Any) -> np.ndarray:
    return bounds
