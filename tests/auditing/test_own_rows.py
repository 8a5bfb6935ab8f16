"""Cosine and Euclidean distance: every item is first at its own vector, ties decided exactly."""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import uncork
from uncork import Audit, Ball, Box, Items, LayerNorm, UncorkError, Verdict, verify
from uncork.auditing.certify.own_rows import alike, zero_items
from uncork.auditing.own_rows import audit_items

METRICS = ["cosine", "euclidean"]


def direction(row: list[float]) -> tuple[int, ...]:
    """The shortest vector of whole numbers in the same direction."""
    values = [Fraction(v) for v in row]
    scale = math.lcm(*(v.denominator for v in values))
    whole = [int(v * scale) for v in values]
    common = math.gcd(*whole)
    return tuple(v // common for v in whole)


def alike_exactly(rows: np.ndarray, metric: str) -> list[list[int]]:
    """The obvious twin: by fractions, one row after another."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for k, row in enumerate(rows.astype(np.float64).tolist()):
        if metric == "euclidean":
            groups[tuple(map(Fraction, row))].append(k)
        elif any(row):
            groups[direction(row)].append(k)
    return sorted(group for group in groups.values() if len(group) > 1)


values = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 0.1, 0.3, 5e-324, 1e-300, 1e300, 2.0**-1074]),
    st.floats(allow_nan=False, allow_infinity=False),
)
factors = st.sampled_from([1.0, 2.0, 3.0, 0.1, -1.0, 1 / 3])


@st.composite
def matrices(draw: st.DrawFn) -> np.ndarray:
    features = draw(st.integers(1, 3))
    base = draw(st.lists(st.lists(values, min_size=features, max_size=features), min_size=1,
                         max_size=6))  # fmt: skip
    rows = np.array(base)
    with np.errstate(all="ignore"):
        more = [rows[draw(st.integers(0, len(base) - 1))] * draw(factors) for _ in range(4)]
    rows = np.vstack([rows, *more])
    rows = np.where(np.isfinite(rows), rows, 1.0)
    dtype = draw(st.sampled_from([np.float64, np.float32, np.float16]))
    with np.errstate(all="ignore"):
        narrow = rows.astype(dtype)
    return np.where(np.isfinite(narrow), narrow, dtype(1))


@given(matrices(), st.sampled_from(METRICS))
def test_items_are_alike_exactly_where_fractions_say_so(rows: np.ndarray, metric: str) -> None:
    items = Items(rows, metric)
    assert [group.tolist() for group in alike(items)] == alike_exactly(rows, metric)
    assert zero_items(items).tolist() == np.flatnonzero(~rows.any(axis=1)).tolist()


def test_directions_that_round_to_one_quotient_are_told_apart() -> None:
    third = 1 / 3
    rows = np.array([[1.0, third], [3.0, 3 * third], [3.0, np.nextafter(1.0, 0)], [2, 2 * third]])
    # 3·fl(1/3) is rounded to 1, so that row 1 is not a multiple of row 0; all quotients are alike.
    assert len(set((rows[:, 1] / rows[:, 0]).tolist())) < 4
    assert alike_exactly(rows, "cosine") == [[0, 3]]
    assert [group.tolist() for group in alike(Items(rows, "cosine"))] == [[0, 3]]


@given(matrices(), st.sampled_from(METRICS))
def test_at_its_own_vector_an_item_is_first_in_exact_arithmetic(
    rows: np.ndarray, metric: str
) -> None:
    items = Items(rows, metric)
    audit = audit_items(items)
    exact = [[Fraction(float(v)) for v in row] for row in rows]

    def dot(a: list[Fraction], b: list[Fraction]) -> Fraction:
        return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))

    for t in range(len(rows)):
        x = audit.witness(t)
        if audit.proofs.verdicts[t] == Verdict.UNDECIDED:
            assert metric == "cosine"
            assert not rows[t].any()
            continue
        assert x is not None
        group = set(next((g.tolist() for g in audit.proofs.groups if t in g), [t]))
        query = [Fraction(float(v)) for v in x]
        for i, row in enumerate(exact):
            if i in group or (metric == "cosine" and not any(row)):
                continue
            if metric == "euclidean":
                ours, theirs = (
                    [a - b for a, b in zip(r, query, strict=True)] for r in (exact[t], row)
                )
                assert dot(ours, ours) < dot(theirs, theirs)
            else:  # compared as signed squares: w·x |w·x| / w·w
                mine, other = dot(exact[t], query), dot(row, query)
                assert mine > 0
                assert mine**2 * dot(row, row) > (other * abs(other)) * dot(exact[t], exact[t])


@pytest.mark.parametrize("metric", METRICS)
def test_items_that_share_a_vector_are_tied_and_every_other_is_argmaxable(metric: str) -> None:
    rows = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    rows[7] = rows[3] if metric == "euclidean" else 2 * rows[3]
    rows[20] = -rows[3]
    audit = audit_items(Items(rows, metric))
    assert audit.counts == {"argmaxable": 48, "unargmaxable": 0, "tied": 2, "undecided": 0}
    assert audit.tied.tolist() == [3, 7]
    assert audit.to_dict()["tied"][0]["group"] == [3, 7]
    assert audit.proven


def test_zeros_are_undecided_under_cosine_and_found_by_distance() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    audit = audit_items(Items(rows, "cosine"))
    assert audit.undecided.tolist() == [1, 2]
    assert "no direction" in audit.proofs.reasons[1]
    assert audit_items(Items(rows, "euclidean")).tied.tolist() == [1, 2]


def test_a_domain_must_hold_the_vector_itself_or_under_cosine_a_shorter_one() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 3.0], [-300.0, 1.0]])
    assert audit_items(Items(rows, "euclidean"), Box(2)).argmaxable.tolist() == [0]
    found = audit_items(Items(rows, "cosine"), Ball(2))
    assert found.argmaxable.tolist() == [0, 1, 2]
    for t in range(3):
        witness = found.witness(t)
        assert witness is not None
        assert np.linalg.norm(witness) <= 2
        assert np.allclose(witness / np.linalg.norm(witness), rows[t] / np.linalg.norm(rows[t]))
    assert audit_items(Items(rows, "cosine"), Box(0, 5)).argmaxable.tolist() == [0, 1]
    with pytest.raises(UncorkError, match="only plain domains"):
        audit_items(Items(rows, "cosine"), LayerNorm(np.ones(2), np.zeros(2)))


def test_inner_products_have_no_such_theorem() -> None:
    with pytest.raises(UncorkError, match="are a head"):
        audit_items(Items(np.eye(3)))


@pytest.mark.parametrize(("metric", "lost"), [("inner", [4]), ("cosine", []), ("euclidean", [])])
def test_items_are_audited_by_their_own_metric(metric: str, lost: list[int]) -> None:
    rows = np.array([[0.0, 1], [0, -1], [-1, 0], [1, 0], [0.1, 0.1]])
    audit = uncork.audit(Items(rows, metric), domain=uncork.Unbounded(), jobs=1)
    assert audit.metric == metric
    assert audit.unargmaxable.tolist() == lost
    assert verify(audit, Items(rows, metric)).ok


# Certificates


@pytest.fixture(params=METRICS)
def items(request: pytest.FixtureRequest) -> Items:
    rows = np.random.default_rng(1).standard_normal((30, 3)).astype(np.float32)
    rows[5] = rows[2]
    rows[6] = 0
    return Items(rows, request.param, labels=[f"item {k}" for k in range(30)])


def test_certificates_are_read_back_and_hold(tmp_path: Path, items: Items) -> None:
    audit = audit_items(items, Box(10))
    audit.save(tmp_path / "proofs.npz")
    again = Audit.load(tmp_path / "proofs.npz", items)
    assert again.metric == items.metric
    assert again.counts == audit.counts
    assert again.labels == items.labels
    assert not again.proven
    found = verify(again, items)
    assert found.ok
    assert again.proven
    assert found.held["tied"] == 2
    np.testing.assert_array_equal(again.witness(0), audit.witness(0))


def test_certificates_of_another_metric_or_other_vectors_prove_nothing(
    tmp_path: Path, items: Items
) -> None:
    audit_items(items).save(tmp_path / "proofs.npz")
    other = "cosine" if items.metric == "euclidean" else "euclidean"
    for given_ in (items.replace(metric=other), items.replace(vectors=items.vectors[::-1])):
        with pytest.raises(UncorkError, match="prove nothing"):
            verify(Audit.load(tmp_path / "proofs.npz", given_), given_)
    inner = items.replace(metric="inner")
    for head in (inner, inner.head()):
        with pytest.raises(UncorkError, match="prove nothing"):
            verify(Audit.load(tmp_path / "proofs.npz", head), head)
    uncork.audit(inner.head(), jobs=1).save(tmp_path / "inner.npz")
    with pytest.raises(UncorkError, match="prove nothing"):
        verify(Audit.load(tmp_path / "inner.npz", items), items)


def test_false_claims_are_refused(tmp_path: Path, items: Items) -> None:
    def forged(change: str) -> dict[int, str]:
        audit = audit_items(items, Box(2))
        proofs = audit.proofs
        if change == "argmaxable though tied":
            proofs.verdicts[[2, 5]] = Verdict.ARGMAXABLE
        elif change == "tied with a stranger":
            proofs.groups = [np.array([0, 1])]
            proofs.verdicts[[0, 1]] = Verdict.TIED
        elif change == "tied without a group":
            proofs.verdicts[3] = Verdict.TIED
        elif change == "unargmaxable":
            proofs.verdicts[3] = Verdict.UNARGMAXABLE
        elif change == "outside":
            far = int(np.abs(items.vectors).max(axis=1).argmax())
            proofs.verdicts[far], proofs.scales[far] = Verdict.ARGMAXABLE, 1.0
        elif change == "another scale":
            proofs.scales[:] = np.where(proofs.scales > 0, 0.75, 0)
        elif change == "zero":
            proofs.verdicts[6] = Verdict.ARGMAXABLE
        audit.save(tmp_path / "forged.npz")
        return verify(Audit.load(tmp_path / "forged.npz", items), items).failed

    assert set(forged("argmaxable though tied")) == {2, 5}
    assert {0, 1} <= set(forged("tied with a stranger"))
    assert set(forged("tied without a group")) == {3}
    assert set(forged("unargmaxable")) == {3}
    assert len(forged("outside")) == 1
    assert len(forged("another scale")) > 10
    if items.metric == "cosine":
        assert set(forged("zero")) == {6}
