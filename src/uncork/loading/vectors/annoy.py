"""Annoy's files: the vectors of its items, mapped. Width and metric are found, not stored.

A file is a row of nodes of one size (src/annoylib.h of Annoy 1.15 to 1.17). Items come first, each
with one descendant; the roots of the trees come last, each with as many descendants as there are
items. The size of a node and the fields before its vector are tried until both fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.contents import UNSAID, Contents
from uncork.loading.vectors.found import APPROXIMATE, Vectors, id_labels, vectors_of

_SMALLEST = 16  # bytes of a node with one feature
_LARGEST = 4 * (1 << 16)
_MOST_TRIED = 4096
_LOOKED_AT = 256  # items whose norms tell the metric


@dataclass(frozen=True)
class _Layout:
    """The fields before a vector, by metric."""

    metric: str
    before: int
    words: str


_ANGULAR = _Layout("cosine", 12, "angular")
_MINKOWSKI = _Layout(UNSAID, 16, "euclidean or manhattan, which its file does not tell apart")
_DOT = _Layout("inner", 16, "dot")
_DOT_WITH_NORM = _Layout("inner", 24, "dot")  # as Annoy's main branch writes it


def read_annoy(path: Path) -> Contents:
    """The vectors of an index built by Annoy."""
    size = path.stat().st_size
    words = np.memmap(path, "<i4", "r", 0, (size // 4,)) if size >= _SMALLEST else np.empty(0)
    if size % 4 or not len(words):
        raise UncorkError(f"{path} is not an index of Annoy, whatever its name")
    fits = _node_sizes(words, size)
    if len(fits) != 1:
        raise UncorkError(
            f"{path} does not say how many features its vectors have, and "
            + ("no number fits" if not fits else f"{len(fits)} numbers fit")
            + ": truncated or damaged, else save its vectors (get_item_vector) with numpy.save"
        )
    node, items = fits[0]
    layout = _told(path, words.view("<f4").reshape(-1, node // 4), items)
    features = (node - layout.before) // 4
    # The table of the largest id has a place for every id below it: the others are empty.
    there = words.reshape(-1, node // 4)[:items, 0] == 1
    kept = np.flatnonzero(there)

    def read() -> np.ndarray:
        rows = words.view("<f4").reshape(-1, node // 4)[:items, layout.before // 4 :]
        return rows if there.all() else rows[kept]

    found = Vectors(
        (len(kept), features), "float32", read, layout.metric,
        f"the vectors of an Annoy index ({layout.words})",
        lambda: id_labels(kept, "the items' numbers"), notes=(APPROXIMATE,),
    )  # fmt: skip
    return vectors_of(path, "annoy", found)


def _node_sizes(words: np.ndarray, size: int) -> list[tuple[int, int]]:
    """Sizes of a node that fit the whole file, each with the number of items."""
    found = []
    tried = 0
    for node in range(_SMALLEST, min(size, _LARGEST) + 1, 4):
        if size % node:
            continue
        tried += 1
        if tried > _MOST_TRIED:
            break
        descendants = words[:: node // 4]
        items = int(descendants[-1])
        nodes = len(descendants)
        if not 1 < items < nodes or descendants.min() < 0:
            continue
        first, rest = descendants[:items], descendants[items:]
        # The last item has been added, or there would be fewer of them.
        if first.max() > 1 or first[-1] != 1 or rest.min() < 1 or rest.max() != items:
            continue
        found.append((node, items))
    return found


def _told(path: Path, nodes: np.ndarray, items: int) -> _Layout:
    """Which metric's fields stand before the vectors, by what they hold.

    angular keeps ‖w‖²; dot keeps the f with ‖w‖² + f² the same for all items, and its main branch
    that sum beside it; euclidean and manhattan leave three empty fields.
    """
    some = np.asarray(nodes[: min(items, _LOOKED_AT)])
    some = some[some.view("<i4")[:, 0] == 1].astype(np.float64)
    # Bits of the Hamming metric, read as floats, are next to nothing.
    if np.isfinite(some).all() and (np.abs(some[:, 3:]) > 1e-30).any():
        for layout, told in _TELLING.items():
            if some.shape[1] > layout.before // 4:
                squares = (some[:, layout.before // 4 :] ** 2).sum(axis=1)
                if told(some, squares):
                    return layout
    raise UncorkError(
        f"{path} has nodes of {4 * nodes.shape[1]} bytes, laid out in no way that uncork knows of "
        "Annoy (angular, euclidean, manhattan, dot): save its vectors (get_item_vector) with "
        "numpy.save"
    )


def _same(values: np.ndarray, others: np.ndarray) -> bool:
    return bool(np.allclose(values, others, rtol=1e-4, atol=1e-4 * np.abs(others).max()))


_TELLING: dict[_Layout, Callable[[np.ndarray, np.ndarray], bool]] = {
    _ANGULAR: lambda some, squares: bool(some[:, 1].any()) and _same(some[:, 1], squares),
    _DOT_WITH_NORM: lambda some, squares: (
        not some[:, 1:3].any() and _same(some[:, 4], squares + some[:, 3] ** 2)
    ),
    _MINKOWSKI: lambda some, squares: not some[:, 1:4].any(),
    _DOT: lambda some, squares: (
        not some[:, 1:3].any() and _same(squares + some[:, 3] ** 2, np.full(
            len(some), (squares + some[:, 3] ** 2).max()))
    ),
}  # fmt: skip
