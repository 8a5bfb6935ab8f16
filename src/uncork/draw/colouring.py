"""Which class gets which colour: each its own while there are enough, then unlike neighbours."""

from __future__ import annotations

from collections.abc import Iterable

from uncork.draw.style import PALETTE


def coloured(classes: int, touching: Iterable[tuple[int, int]]) -> list[int]:
    """For each class a place in the palette, so that classes that touch have different ones.

    Greedy, those with the fewest neighbours last: in the plane six colours are then enough. Of the
    colours that are free a class takes the one used least, so that all of them are seen.
    """
    if classes <= len(PALETTE):
        return list(range(classes))
    near: list[set[int]] = [set() for _ in range(classes)]
    for i, j in touching:
        near[i].add(j)
        near[j].add(i)
    chosen = [-1] * classes
    used = [0] * len(PALETTE)
    for t in _smallest_last(near):
        taken = [sum(chosen[i] == k for i in near[t]) for k in range(len(PALETTE))]
        chosen[t] = min(range(len(PALETTE)), key=lambda k: (taken[k], used[k], k))
        used[chosen[t]] += 1
    return chosen


def _smallest_last(near: list[set[int]]) -> list[int]:
    left = {t: len(others) for t, others in enumerate(near)}
    order = []
    while left:
        t = min(left, key=lambda t: (left[t], t))
        del left[t]
        order.append(t)
        for i in near[t]:
            if i in left:
                left[i] -= 1
    return order[::-1]
