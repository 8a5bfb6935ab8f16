"""Links: the layered graph that an HNSW index searches, and the nodes that no search can visit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uncork.core.errors import UncorkError


@dataclass(frozen=True, eq=False)
class Level:
    """The links of one level: those of node i are `targets[starts[i]:starts[i + 1]]`."""

    starts: np.ndarray  # (nodes + 1,) int64
    targets: np.ndarray  # (links,) int64


@dataclass(frozen=True, eq=False)
class Links:
    """The graph of an HNSW index: `levels[0]` is the base, the last one the top.

    A search begins at `entry` on the top level. On each level above the base it moves along links
    of that level to the best node it finds, then goes down; on the base level it follows links
    from where it has arrived. So it can only visit what a path leads to whose links go down level
    by level, and `unreachable` are the nodes without such a path: no query and no search width ever
    finds them. `items` (nodes,) is the item of each node, −1 for one that was deleted, through
    which a search still passes.
    """

    entry: int
    levels: tuple[Level, ...]
    items: np.ndarray

    def __post_init__(self) -> None:
        nodes = len(self.items)
        if not 0 <= self.entry < nodes:
            raise UncorkError(f"the entry point is node {self.entry}, and there are {nodes} nodes")
        for number, level in enumerate(self.levels):
            if len(level.starts) != nodes + 1 or (np.diff(level.starts) < 0).any():
                raise UncorkError(f"the links of level {number} are damaged")
            if level.targets.min(initial=0) < 0 or level.targets.max(initial=0) >= nodes:
                raise UncorkError(f"level {number} has a link to a node that does not exist")

    @property
    def nodes(self) -> int:
        return len(self.items)

    def reached(self) -> np.ndarray:
        """Whether a path leads to each node: (nodes,)."""
        found = np.zeros(self.nodes, dtype=bool)
        found[self.entry] = True
        for level in reversed(self.levels):
            _spread(level, found)
        return found

    def unreachable(self) -> np.ndarray:
        """The items that no path leads to, in ascending order."""
        lost = np.unique(self.items[~self.reached()])
        return lost[lost >= 0]


def _spread(level: Level, found: np.ndarray) -> None:
    """Mark every node that links of this level lead to from those marked: whole waves at once."""
    wave = np.flatnonzero(found)
    while len(wave):
        begin, count = level.starts[wave], level.starts[wave + 1] - level.starts[wave]
        ends = np.cumsum(count)
        places = np.arange(ends[-1]) + np.repeat(begin - (ends - count), count)
        wave = np.unique(level.targets[places])
        wave = wave[~found[wave]]
        found[wave] = True


def level_of(links: np.ndarray, counts: np.ndarray, nodes: np.ndarray, total: int) -> Level:
    """A level from a table (n, most) of links, of which the first `counts` (n,) of each row hold,
    for the nodes (n,) that are on it, in ascending order, of `total`."""
    used = np.arange(links.shape[1]) < counts[:, None]
    sizes = np.zeros(total, dtype=np.int64)
    sizes[nodes] = used.sum(axis=1)
    return Level(np.concatenate([[0], np.cumsum(sizes)]), links[used].astype(np.int64))
