"""Best ranks by hitting sets: equal to enumeration and to trying all sets of classes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from small_heads import quick
from uncork import Ball, Box, Domain, Head, Unbounded, UncorkError
from uncork.reach import (
    Certificates,
    best_rank,
    check_certificates,
    rank,
    read_certificates,
    write_certificates,
)


def can_be_first(head: Head, t: int, left_out: tuple[int, ...]) -> bool:
    """Whether t is strictly first somewhere without these classes: by a linear programme of its
    own. Heads are random, so that it is clearly so or clearly not."""
    others = [i for i in range(head.classes) if i != t and i not in left_out]
    rows = head.weight[others] - head.weight[t]
    right = head.offsets[t] - head.offsets[others]
    side = head.domain.upper if isinstance(head.domain, Box) else None
    bound = 1.0 if side is None else float(np.max(side))
    solved = linprog(
        np.append(np.zeros(head.features), -1.0),
        A_ub=np.column_stack([rows, np.ones(len(rows))]), b_ub=right,
        bounds=[(-bound, bound)] * head.features + [(None, 1.0)],
    )  # fmt: skip
    assert abs(solved.x[-1]) > 1e-7 or solved.x[-1] <= 0
    return bool(solved.x[-1] > 1e-7)


def inside(features: int, domain: Domain, seed: int = 0) -> Head:
    """Three classes that lie deep inside random others."""
    rng = np.random.default_rng(seed)
    classes = 4 * features + 4
    weight = rng.standard_normal((classes, features))
    weight[:3] *= 0.05
    bias = None if isinstance(domain, Unbounded) else 0.1 * rng.standard_normal(classes)
    return Head(weight, bias, domain=domain)


@pytest.mark.slow
@pytest.mark.parametrize("features", [5, 6, 7, 8])
@pytest.mark.parametrize("domain", [Unbounded(), Box(1.0)], ids=str)
def test_in_five_to_eight_features_it_equals_trying_all_sets_of_classes(
    features: int, domain: Domain
) -> None:
    head = inside(features, domain)
    found = best_rank(head, [0, 1, 2], jobs=1)
    assert found.upper.tolist() == found.lower.tolist()
    assert found.upper.max() > 2
    for t, best in enumerate(found.lower.tolist()):
        z = head.weight @ found.inputs[t] + head.offsets
        assert (z >= z[t]).sum() == best  # the class itself among them
        others = [i for i in range(head.classes) if i != t]
        size = min(best - 2, 3 if features == 5 else 2)  # all sets of three take minutes beyond
        fewer = itertools.combinations(others, size) if best > 1 else []
        assert not any(can_be_first(head, t, left_out) for left_out in fewer)


@pytest.mark.parametrize("features", [2, 3, 4])
def test_it_equals_the_enumeration_of_all_planes(
    features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = Head(np.random.default_rng(features).standard_normal((24, features)), domain=Unbounded())
    exact = best_rank(head, jobs=1)
    monkeypatch.setattr(rank, "can_enumerate", lambda certifier: False)
    found = best_rank(head, jobs=1)
    assert exact.planes.any()
    assert not found.planes.any()
    assert found.lower.tolist() == found.upper.tolist() == exact.lower.tolist()


@pytest.mark.parametrize("domain", [Box(1.0), Ball(1.0), Unbounded()], ids=str)
@quick(5)
@given(data=st.data())
def test_degenerate_heads_have_bounds_that_hold(domain: Domain, data: st.DataObject) -> None:
    """Small whole numbers: many classes tie, and many mixtures lie on faces."""
    numbers = st.lists(st.integers(-2, 2), min_size=45, max_size=45)
    weight = np.array(data.draw(numbers), dtype=np.float64).reshape(9, 5)
    if data.draw(st.booleans()):
        weight[:, 4] = 0.0
    head = Head(weight, domain=domain)
    found = best_rank(head, jobs=1)
    assert (found.lower <= found.upper).all()
    x = np.random.default_rng(0).standard_normal((4000, 5))
    z = (x / np.linalg.norm(x, axis=1, keepdims=True) * 0.4) @ weight.T
    for t in range(9):
        equal = (weight == weight[t]).all(axis=1)
        ahead = (z[:, ~equal] >= z[:, [t]]).sum(axis=1)
        assert found.lower[t] <= 1 + ahead.min()


@pytest.mark.slow
def test_places_of_three_hundred_classes_in_eight_features_are_decided() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((300, 8))
    weight /= np.linalg.norm(weight, axis=1, keepdims=True)
    weight[:6] *= 0.72
    head = Head(weight, domain=Unbounded())
    found = best_rank(head, range(6), top=5, jobs=1)
    assert ((found.lower > 5) | (found.upper <= 5)).all()


@pytest.fixture(scope="module")
def head() -> Head:
    return inside(6, Unbounded(), 4)


@pytest.fixture(scope="module")
def proofs(head: Head, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = best_rank(head, [0, 1, 2], jobs=1)
    assert any(found.tree(k) is not None for k in range(3))
    path = tmp_path_factory.mktemp("hitting") / "rank.npz"
    write_certificates(Certificates(head.fingerprint, head.domain, rank=found), path)
    return path


def failures(head: Head, arrays: dict[str, Any], path: Path) -> int:
    """How many bounds of such a file are not proven; all of them where it is refused."""
    np.savez(path, **arrays)
    try:
        checked = check_certificates(read_certificates(path, head), head, device="cpu", jobs=1)
    except UncorkError:
        return 3
    return len(checked.failed)


def members(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as stored:
        return dict(stored)


def test_trees_are_proven_again_from_the_file(head: Head, proofs: Path, tmp_path: Path) -> None:
    assert failures(head, members(proofs), tmp_path / "same.npz") == 0


@pytest.mark.parametrize(
    "change",
    [
        {"rank_lower": lambda v: v + 1},
        {"tree_share": lambda v: v * 2},  # more than one at a class
        {"tree_share": lambda v: -v},
        {"tree_share": lambda v: v // 3},
        {"tree_mixture": lambda v: v + 1000},
        {"tree_mixture": lambda v: v - 1000},
        {"tree_node": lambda v: np.where(v < -1, v, -1)},
        {"tree_node": lambda v: np.append(v[1:], v[0])},
        {"tree_node": lambda v: v - (1 << 62)},
        {"tree_node": lambda v: v[:-1], "rank_nodes": lambda v: v - (np.cumsum(v) == v.sum())},
        {"rank_nodes": lambda v: v * 0},
        {"rank_nodes": lambda v: -v},
        {"rank_nodes": lambda v: v.astype(np.float64)},
        {"mixture_weight": lambda v: v[::-1]},
        {"mixture_class": lambda v: (v + 1) % 28},
    ],
    ids=lambda change: "-".join(change),
)
def test_a_changed_tree_is_refused_or_proves_nothing(
    change: dict[str, Any], head: Head, proofs: Path, tmp_path: Path
) -> None:
    arrays = members(proofs)
    for name, of in change.items():
        changed = of(arrays[name])
        assert changed.dtype != arrays[name].dtype or not np.array_equal(changed, arrays[name])
        arrays[name] = changed
    assert failures(head, arrays, tmp_path / "changed.npz")


def test_a_tree_that_forgets_a_branch_is_refused(tmp_path: Path) -> None:
    """All of a tree but the case in which the first class is not above."""
    head = inside(5, Unbounded(), 4)
    found = best_rank(head, range(3), jobs=1)
    k = next(k for k in range(3) if (one := found.tree(k)) is not None and len(one.nodes) > 1)
    tree = found.tree(k)
    assert tree is not None
    open_, at = 0, 0
    for node in tree.nodes[1:].tolist():  # the first child of the root
        open_, at = open_ + (1 if node >= 0 else -1), at + 1
        if open_ < 0:
            break
    kept = tree.nodes[: 1 + at]
    count = int(np.maximum(-1 - kept, 0).sum())
    found.trees[k] = type(tree)(kept, tree.mixtures[:count], tree.shares[:count])
    path = tmp_path / "cut.npz"
    write_certificates(Certificates(head.fingerprint, head.domain, rank=found), path)
    checked = check_certificates(read_certificates(path, head), head, device="cpu", jobs=1)
    assert [t for t, _ in checked.failed] == [k]


def test_a_file_from_before_there_were_trees_is_read(tmp_path: Path) -> None:
    """Its bounds rest on disjoint mixtures, as they do in the plane's square."""
    square = Head(np.array([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 0]]))
    found = best_rank(square, [4], top=2, jobs=1)
    assert found.tree(0) is None
    path = tmp_path / "old.npz"
    write_certificates(Certificates(square.fingerprint, square.domain, rank=found), path)
    old = {k: a for k, a in members(path).items() if k != "rank_nodes" and "tree_" not in k}
    np.savez(path, **old)  # type: ignore[arg-type]
    back = read_certificates(path, square)
    assert check_certificates(back, square, device="cpu", jobs=1).held == {"rank": 1}


def test_limits_leave_bounds_that_hold_and_are_said(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = best_rank(head, [0, 1, 2], jobs=1)
    assert exact.notes == ()
    monkeypatch.setattr(rank, "_RUNS", (1, 1, 1))
    found = best_rank(head, [0, 1, 2], jobs=1)
    assert (found.lower <= exact.lower).all()
    assert (found.upper >= exact.upper).all()
    assert (found.lower < found.upper).any()
    assert "not all cases" in found.notes[0]


def test_a_time_limit_leaves_counts_alone(head: Head) -> None:
    exact = best_rank(head, [0, 1, 2], jobs=1)
    found = best_rank(head, [0, 1, 2], time_limit=1e-9, jobs=1)
    assert found.lower.tolist() == [1, 1, 1]
    assert (found.upper >= exact.upper).all()
    assert found.notes == ("3 came after the time limit",)
    with pytest.raises(UncorkError, match="time limit must be positive"):
        best_rank(head, [0], time_limit=0.0, jobs=1)
