"""Links: which nodes of a layered graph no search can visit, held to walking them one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uncork import UncorkError
from uncork.core.links import Level, Links, level_of


def links_of(entry: int, levels: list[list[list[int]]]) -> Links:
    """A graph from the neighbours of every node on every level, the base first."""
    made = []
    for lists in levels:
        starts = np.cumsum([0, *map(len, lists)])
        targets = np.array([t for one in lists for t in one], dtype=np.int64)
        made.append(Level(starts, targets))
    return Links(entry, tuple(made), np.arange(len(levels[0])))


def walked(entry: int, levels: list[list[list[int]]]) -> set[int]:
    """The obvious twin: from what was reached, follow every link of a level, then go down."""
    found = {entry}
    for lists in reversed(levels):
        waiting = list(found)
        while waiting:
            for target in lists[waiting.pop()]:
                if target not in found:
                    found.add(target)
                    waiting.append(target)
    return found


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[list[list[int]]]]:
    nodes = draw(st.integers(1, 12))
    node = st.integers(0, nodes - 1)
    lists = st.lists(st.lists(node, max_size=2), min_size=nodes, max_size=nodes)
    return draw(node), draw(st.lists(lists, min_size=1, max_size=3))


@given(graphs())
def test_reached_is_what_walking_finds(graph: tuple[int, list[list[list[int]]]]) -> None:
    entry, levels = graph
    links = links_of(entry, levels)
    assert set(np.flatnonzero(links.reached()).tolist()) == walked(entry, levels)
    assert set(links.unreachable().tolist()) == set(range(links.nodes)) - walked(entry, levels)


def test_a_link_of_an_upper_level_is_of_no_use_below_it() -> None:
    # 0 → 1 on the upper level, 1 → 2 below; 3 is linked only from 2, and only on the upper level.
    links = links_of(0, [[[], [2], [], []], [[1], [], [3], []]])
    assert links.unreachable().tolist() == [3]


def test_deleted_nodes_are_passed_through_and_not_counted() -> None:
    base = links_of(0, [[[1], [2], [], []]]).levels
    assert Links(0, base, np.array([0, -1, 1, 2])).unreachable().tolist() == [2]
    assert Links(0, base, np.array([0, 1, 2, -1])).unreachable().tolist() == []


def test_a_table_of_links_becomes_a_level() -> None:
    level = level_of(np.array([[1, 2], [0, 9]]), np.array([2, 1]), np.array([0, 3]), 4)
    assert level.starts.tolist() == [0, 2, 2, 2, 3]
    assert level.targets.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("entry", "starts", "targets"),
    [(2, [0, 0, 0], []), (-1, [0, 0, 0], []), (0, [0, 0], []), (0, [0, 1, 0], [1]),
     (0, [0, 1, 1], [2]), (0, [0, 1, 1], [-1])],
)  # fmt: skip
def test_links_to_nowhere_are_refused(entry: int, starts: list[int], targets: list[int]) -> None:
    with pytest.raises(UncorkError):
        Links(entry, (Level(np.array(starts), np.array(targets, dtype=np.int64)),), np.arange(2))
