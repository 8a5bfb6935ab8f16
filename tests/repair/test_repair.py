"""Repair: the smallest edit that frees every class, proven after rounding, with what it needs."""

from __future__ import annotations

from fractions import Fraction
from operator import mul

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.spatial import ConvexHull

from models import PP_OCR_V4
from small_heads import quick
from uncork import Ball, Box, Domain, Head, Image, Unbounded, UncorkError, audit, load
from uncork.auditing.backend import choose_backend
from uncork.auditing.low_precision import low_precision
from uncork.domain import LayerNorm
from uncork.repair.price import price
from uncork.repair.repair import Repair, bias_needed, change_size, repair

DOMAINS = [Box(10), Box(1), Ball(2.0), Unbounded(), Box(0, np.inf), Box(-0.28, np.inf)]


def head_of(
    seed: int,
    classes: int,
    features: int,
    domain: Domain,
    bias: bool = True,
    dtype: type = np.float32,
) -> Head:
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(classes, features)).astype(dtype)
    offsets = (0.5 * rng.normal(size=classes)).astype(dtype) if bias else None
    return Head(weight, offsets, domain=domain)


def repaired(head: Head, **how: object) -> Repair:
    """Repaired, and audited from scratch: nothing of the repair is believed."""
    made = repair(head, device="cpu", jobs=1, **how)  # type: ignore[arg-type]
    again = audit(made.head(head), device="cpu", jobs=1)
    assert len(made.left) == 0
    assert again.counts["argmaxable"] + again.counts["tied"] == head.classes
    return made


def best_by_brute_force(head: Head, norm: str) -> float:
    """The infimum over all biases and all witnesses at once: one large linear programme."""
    weight, bias = head.take(np.arange(head.classes)), head.offsets
    classes, features = weight.shape
    lower, upper = np.full(features, -1e5), np.full(features, 1e5)
    if isinstance(head.domain, Box):
        lower, upper = head.domain.bounds(features)
    # c = p − n, then a witness for each class, then the largest |c|.
    width = 2 * classes + classes * features + 1
    rows, right = [], []
    for t in range(classes):
        for i in range(classes):
            if i != t:
                row = np.zeros(width)
                row[[i, classes + t]], row[[t, classes + i]] = 1.0, -1.0
                at = 2 * classes + t * features
                row[at : at + features] = weight[i] - weight[t]
                rows.append(row)
                right.append(bias[t] - bias[i])
    for t in range(classes):
        row = np.zeros(width)
        row[[t, classes + t]], row[-1] = 1.0, -1.0
        rows.append(row)
        right.append(0.0)
    cost = np.zeros(width)
    if norm == "inf":
        cost[-1] = 1.0
    else:
        cost[: 2 * classes] = 1.0
    sides = list(zip(lower.tolist(), upper.tolist(), strict=True)) * classes
    bounds = [(0, None)] * (2 * classes) + sides + [(0, None)]
    solved = linprog(cost, np.array(rows), right, bounds=bounds, method="highs")
    return float(solved.fun)


@pytest.mark.parametrize("domain", [Box(10), Box(1), Unbounded()], ids=str)
@pytest.mark.parametrize(("norm", "above"), [("inf", 1.04), ("1", 1.15)])
def test_the_change_is_the_least_over_all_biases_and_witnesses(
    domain: Domain, norm: str, above: float
) -> None:
    for seed, (classes, features) in enumerate([(12, 2), (14, 2), (18, 3)]):
        head = head_of(seed, classes, features, domain)
        lost = len(audit(head, device="cpu", jobs=1).unargmaxable)
        assert lost > 0
        least = best_by_brute_force(head, norm)
        made = repaired(head, norm=norm)
        assert len(made.freed) == lost
        assert made.needed <= least * (1 + 1e-6)
        assert made.needed >= least * 0.98
        assert least * (1 - 1e-6) <= made.size <= above * least
        change = made.head(head).offsets - head.offsets
        assert made.size == pytest.approx(change_size(change, norm))


def test_both_bounds_of_the_least_sum_meet_on_boxes_away_from_zero() -> None:
    # Here most classes are lost, and those that one of them buries are lost ones too.
    for seed, (classes, features) in ((56, (11, 3)), (54, (8, 2))):
        rng = np.random.default_rng(seed)
        weight, bias = rng.normal(size=(classes, features)), 3 * rng.normal(size=classes)
        lower = rng.uniform(-5, 5, features)
        domain = Box(lower, lower + rng.uniform(0.1, 10, features))
        head = Head(weight, bias, domain=domain)
        least = best_by_brute_force(head, "1")
        made = repaired(head, norm="1")
        assert 0.99 * least <= made.needed <= least * (1 + 1e-6)
        assert made.size <= 1.02 * least


def test_equal_rows_are_raised_no_further_than_the_largest_raise_needed() -> None:
    rng = np.random.default_rng(3080)
    for _ in range(6):
        weight, bias = rng.integers(-2, 3, (13, 2)), 0.1 * rng.normal(size=13)
        head = Head(weight.astype(np.float64), bias, domain=Box(10))
        least = best_by_brute_force(head, "inf")
        made = repaired(head)
        assert 0.98 * least <= made.needed <= least * (1 + 1e-6)
        assert made.size <= 1.04 * least


def test_the_equal_of_a_winner_needs_what_it_lacks() -> None:
    weight = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1], [1, 0]])
    made = repaired(Head(weight, np.array([0.0, 0, 0, 0, -10]), domain=Box(5)))
    assert made.size == 5.0
    assert made.needed == pytest.approx(5.0)
    assert made.tied.tolist() == [0, 4]


@pytest.mark.parametrize(
    "domain", [*DOMAINS, LayerNorm(np.linspace(0.5, 2, 5), np.ones(5))], ids=str
)
@pytest.mark.parametrize("bias", [True, False])
def test_every_class_wins_afterwards_on_every_domain(domain: Domain, bias: bool) -> None:
    head = head_of(3, 60, 5, domain, bias)
    made = repaired(head)
    assert made.size >= made.needed


@quick(12)
@given(st.integers(0, 10_000), st.sampled_from([np.float64, np.float32, np.float16]))
def test_lattices_are_repaired_in_the_stored_type(seed: int, dtype: type) -> None:
    rng = np.random.default_rng(seed)
    weight = np.unique(rng.integers(-2, 3, (30, 2)), axis=0).astype(dtype)
    bias = rng.integers(-2, 3, len(weight)).astype(dtype)
    made = repaired(Head(weight, bias, domain=Box(100)))
    assert made.bias is not None
    np.testing.assert_array_equal(made.bias.astype(dtype).astype(np.float64), made.bias)


def test_rows_that_crowd_within_the_biases_rounding_are_told_apart() -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(300, 12)).astype(np.float32)
    weight[200:] = np.float32(0.03) + 2.0**-29 * rng.integers(-40, 40, (100, 12))
    assert len(np.unique(weight[200:], axis=0)) == 100
    bias = np.full(300, 0.01, np.float32)
    head = Head(weight, bias)
    assert len(audit(head, device="cpu", jobs=1).unargmaxable) >= 100
    repaired(head)


def crowded(lost: int = 250) -> Head:
    """Trained rows, and many that were hardly trained: within 1e-7 of one another, far inside."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(200 + lost, 10))
    weight[200:] = 0.02 + 1e-8 * rng.normal(size=(lost, 10))
    bias = np.where(np.arange(len(weight)) < 200, 0.05, 0.0)
    return Head(weight.astype(np.float32), bias.astype(np.float32))


def test_a_crowd_is_freed_by_lowering_the_few_above_it() -> None:
    head = crowded()
    before = audit(head, device="cpu", jobs=1)
    lost = before.unargmaxable
    assert len(lost) >= 250
    alone = float(bias_needed(head, lost, audit=before, jobs=1).upper.sum())
    made = repair(head, norm="1", audit=before, device="cpu", jobs=1)
    assert len(made.left) == 0
    assert made.size < 0.8 * alone
    assert made.needed <= made.size < 1.1 * made.needed


def test_the_rows_of_a_crowd_move_together_and_are_told_apart() -> None:
    head = crowded()
    made = repair(head, how="row", device="cpu", jobs=1)
    assert len(made.left) == 0
    assert made.audit.counts["argmaxable"] == head.classes
    moved = np.linalg.norm(made.weight.astype(np.float64) - head.weight, axis=1)
    assert moved.max() < 1.3 * np.median(moved[200:])


def test_classes_that_are_not_asked_for_stay_lost_and_none_is_lost_for_another() -> None:
    head = head_of(0, 80, 4, Box(10))
    before = audit(head, device="cpu", jobs=1)
    asked = before.unargmaxable[:3]
    made = repair(head, asked, audit=before, device="cpu", jobs=1)
    after = audit(made.head(head), device="cpu", jobs=1)
    assert list(made.freed) == list(asked)
    assert set(after.argmaxable) >= set(before.argmaxable) | set(asked)
    assert len(after.unargmaxable) > 0


def test_equal_rows_can_only_tie() -> None:
    weight = np.array([[1.0, 0], [0, 1], [-1, -1], [0, 0], [0, 0], [1, 0]])
    head = Head(weight, np.array([0.0, 0, 0, -1, -2, -3]), domain=Box(10))
    made = repair(head, device="cpu", jobs=1)
    assert made.audit.counts == {"argmaxable": 2, "unargmaxable": 0, "tied": 4, "undecided": 0}
    assert list(made.tied) == [0, 3, 4, 5]


def test_what_no_bias_can_free_is_said() -> None:
    # After a LayerNorm rows that differ by a constant are one function.
    weight = np.array([[1.0, 0, 0], [2, 1, 1], [0, 1, 0], [0, 0, 1], [-1, 0, 0]])
    head = Head(weight, np.zeros(5), domain=LayerNorm(np.ones(3), np.zeros(3)))
    made = repair(head, margin=0, device="cpu", jobs=1)
    assert len(made.left) > 0
    assert set(made.left) <= {0, 1}


def test_a_head_that_has_lost_nothing_is_left_alone() -> None:
    head = Head(np.eye(3), np.zeros(3))
    made = repair(head, device="cpu", jobs=1)
    assert made.size == 0
    assert len(made.freed) == 0
    np.testing.assert_array_equal(made.head(head).weight, head.weight)


@pytest.mark.parametrize("domain", [Box(10), Ball(2.0), Box(-0.28, np.inf)], ids=str)
def test_rows_move_no_further_than_to_the_surface_and_a_little(domain: Domain) -> None:
    head = head_of(1, 60, 5, domain)
    lost = audit(head, device="cpu", jobs=1).unargmaxable
    made = repaired(head, how="row")
    moved = np.linalg.norm(made.weight.astype(np.float64) - head.weight, axis=1)
    assert set(np.flatnonzero(moved)) >= set(lost)
    assert made.size == pytest.approx(moved.max())
    assert made.needed <= made.size
    assert made.size < np.linalg.norm(head.weight, axis=1).max()
    np.testing.assert_array_equal(made.head(head).offsets, head.offsets)


@quick(15)
@given(st.integers(0, 10_000))
def test_the_raise_a_class_needs_is_bounded_from_both_sides(seed: int) -> None:
    head = head_of(seed, 25, 3, Box(5), dtype=np.float64)
    found = audit(head, device="cpu", jobs=1)
    lost = found.unargmaxable
    if not len(lost):
        return
    needed = bias_needed(head, np.arange(head.classes), audit=found, jobs=1)
    assert (needed.lower[found.argmaxable] == 0).all()
    assert (np.asarray(needed)[found.argmaxable] == 0).all()
    t = int(lost[0])
    for raised, freed in (
        (needed.lower[t] * (1 - 1e-6), False),
        (needed.upper[t] * (1 + 1e-6), True),
    ):
        bias = head.offsets.copy()
        bias[t] += raised
        verdict = audit(head.replace(bias=bias), classes=[t], device="cpu", jobs=1)
        assert (t in verdict.argmaxable) == freed


def test_what_is_enough_is_enough_exactly() -> None:
    for seed in range(4):
        head = head_of(seed, 12, 2, Box(5), dtype=np.float64)
        lost = audit(head, device="cpu", jobs=1).unargmaxable
        needed = bias_needed(head, lost, jobs=1)
        for t, upper, x in zip(lost.tolist(), needed.upper, needed.inputs, strict=True):
            z = [
                sum(map(mul, map(Fraction, row), map(Fraction, x)), Fraction(b))
                for row, b in zip(head.weight.tolist(), head.offsets.tolist(), strict=True)
            ]
            assert max(z) - z[t] <= Fraction(upper) <= max(z) - z[t] + Fraction(1e-9)


def test_large_weights_on_a_box_away_from_zero_need_what_they_need() -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(12, 3))
    domain = Box(np.array([3.0, -8.0, 2.0]), np.array([10.0, -2.0, 4.0]))
    plain = Head(weight, domain=domain)
    large = plain.replace(weight=weight * 2.0**20)
    lost = audit(plain, device="cpu", jobs=1).unargmaxable
    assert len(lost) > 3
    for head, scale in ((plain, 1.0), (large, 2.0**20)):
        needed = bias_needed(head, lost, jobs=1)
        np.testing.assert_allclose(needed.lower, needed.upper, rtol=1e-6)
        if scale == 1.0:
            expected = needed.upper
        np.testing.assert_allclose(needed.upper, scale * expected, rtol=1e-6)


def test_a_price_is_the_share_of_predictions_that_change() -> None:
    head = Head(np.array([[1.0], [-1], [0]]), np.array([0.0, 0, -0.5]))
    after = head.replace(bias=np.array([0.0, 0, 0.5]))
    cost = price(head, after, np.array([[0.1], [-0.2], [3.0], [-4.0]]), np.array([2]))
    assert (cost.inputs, cost.changed, cost.to_freed, cost.share) == (4, 2, 2, 0.5)


@pytest.mark.parametrize("mask", [-1e18, -1e30, -3.4e38, -1e100])
@pytest.mark.parametrize("norm", ["inf", "1"])
def test_a_mask_does_not_drown_the_other_biases(mask: float, norm: str) -> None:
    """Such a bias on one class once left nobody to carry the surface."""
    weight = np.random.default_rng(0).normal(size=(12, 2))
    head = Head(weight, np.concatenate([[0.0, mask], np.arange(10.0)]))
    made = repair(head, norm=norm, device="cpu", jobs=1, time_limit=5)
    assert not len(made.left)
    assert made.audit.counts["argmaxable"] == 12


@pytest.mark.parametrize("size", [1e80, 1e120])
def test_a_plan_that_buries_everybody_is_left(size: float) -> None:
    """The solver takes 1e20 for infinite: what it plans then need not make sense."""
    head = Head(np.random.default_rng(0).normal(size=(12, 2)) * size)
    made = repair(head, norm="1", device="cpu", jobs=1, time_limit=5)
    assert not len(made.left)


def test_rows_that_would_overflow_their_type_are_not_taken() -> None:
    weight = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float16)
    head = Head(weight, np.append(np.zeros(11), -1e9), domain=Box(1))
    made = repair(head, how="row", device="cpu", jobs=1)
    assert 11 in made.left
    assert np.isfinite(made.weight).all()


def test_bad_questions_are_refused() -> None:
    head = head_of(0, 10, 2, Box(1))
    with pytest.raises(UncorkError, match="how 'magic'"):
        repair(head, how="magic")
    with pytest.raises(UncorkError, match="norm '2'"):
        repair(head, norm="2")
    other = audit(head_of(1, 10, 2, Box(1)), device="cpu", jobs=1)
    with pytest.raises(UncorkError, match="another head"):
        repair(head, audit=other)
    some = audit(head, classes=[0, 1], device="cpu", jobs=1)
    for ask in (repair, bias_needed):
        with pytest.raises(UncorkError, match="some classes only"):
            ask(head, [5], audit=some)
        for wrong in (-1, 10):
            with pytest.raises(UncorkError, match=f"class {wrong} does not exist"):
                ask(head, [wrong])


@pytest.mark.parametrize("options", [{}, {"norm": "1"}, {"how": "row"}], ids=str)
@pytest.mark.parametrize(
    "domain", [Box(0, 0), Box(1, 1), Image(Box(1, 1), np.eye(2)), LayerNorm([0.0, 0.0], [1.0, 2.0])]
)
def test_at_a_single_input_no_edit_frees_two_classes(
    domain: Domain, options: dict[str, str]
) -> None:
    head = Head([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], np.zeros(3), domain=domain)
    with pytest.raises(UncorkError, match="a single point, where only one class can come first"):
        repair(head, device="cpu", jobs=1, **options)


@pytest.mark.parametrize("norm", ["inf", "1"])
@pytest.mark.parametrize("domain", [Box(0, 0), Image(Box(1), [[1.0, 0.0], [0.0, 0.0]])])
def test_where_all_classes_tie_everywhere_one_can_be_freed(domain: Domain, norm: str) -> None:
    """Nobody wins anywhere, so there is no surface of winners to rise to."""
    head = Head([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]], np.zeros(3), domain=domain)
    assert audit(head, jobs=1).counts["unargmaxable"] == 3
    made = repair(head, [1], norm=norm, device="cpu", jobs=1)
    assert made.freed.tolist() == [1]
    assert made.audit.counts["argmaxable"] == 1


def test_rows_that_no_bias_tells_apart_are_parted() -> None:
    # After a LayerNorm rows that differ by a constant are one function.
    weight = np.array([[1.0, 0, 0], [2, 1, 1], [0, 1, 0], [0, 0, 1], [-1, 0, 0]])
    head = Head(weight, np.zeros(5), domain=LayerNorm(np.ones(3), np.zeros(3)))
    made = repaired(head)
    assert 0 < made.parted < 0.1


@pytest.mark.parametrize(
    ("how", "dtype"),
    [("bias", np.float32), ("bias", np.float16), ("bias", ml_dtypes.bfloat16),
     ("row", np.float32), ("row", np.float16)],
)  # fmt: skip
def test_freed_classes_win_in_the_models_own_type(how: str, dtype: type) -> None:
    whole = crowded(40)
    head = Head(whole.weight.astype(dtype), whole.offsets.astype(dtype), domain=whole.domain)
    made = repaired(head, how=how)
    assert len(made.freed)
    assert not len(made.faint)
    after = made.head(head)
    fared = low_precision(after, made.audit.proofs, choose_backend("cpu", 1))
    assert fared is not None
    assert not set(made.freed) & {*fared["tying"], *fared["losing"]}


def test_a_margin_is_kept_and_what_it_adds_is_said() -> None:
    head = head_of(3, 60, 6, Box(10))
    sizes = []
    for margin in (0.0, 0.05, 0.5):
        made = repaired(head, margin=margin)
        z = made.inputs[made.freed] @ made.weight.astype(np.float64).T + made.bias
        leads = z[np.arange(len(made.freed)), made.freed]
        z[np.arange(len(made.freed)), made.freed] = -np.inf
        assert (leads - z.max(axis=1) > margin).all()
        assert made.needed <= made.touching * (1 + 1e-9) <= made.size
        sizes.append(made.size)
    assert sizes == sorted(sizes)
    assert sizes[0] < 1.05 * made.needed < sizes[2]


def test_with_no_margin_the_bias_alone_changes() -> None:
    head = crowded(40)
    made = repaired(head, margin=0)
    assert made.parted == 0
    np.testing.assert_array_equal(made.weight, head.weight)


@pytest.mark.parametrize("seed", range(6))
def test_a_row_moves_as_far_as_the_hull_asks(seed: int) -> None:
    features = 2 + seed % 3
    head = head_of(seed, 20 * (features - 1), features, Box(100), bias=False)
    found = audit(head, device="cpu", jobs=1)
    hull = ConvexHull(head.take(found.argmaxable))
    walls = head.take(found.unargmaxable) @ hull.equations[:, :-1].T + hull.equations[:, -1]
    far = (-walls).min(axis=1)  # to the nearest facet
    t = int(found.unargmaxable[np.argmax(far)])
    made = repair(head, [t], how="row", audit=found, device="cpu", jobs=1)
    assert list(made.freed) == [t]
    assert far.max() <= made.size < 1.02 * far.max()
    assert 0.4 * far.max() < made.needed < far.max()


def test_a_shipped_recogniser_is_repaired_within_two_percent_and_a_margin_of_the_least() -> None:
    head = load(PP_OCR_V4)
    found = audit(head, device="cpu", jobs=1)
    made = repair(head, audit=found, device="cpu", jobs=1)
    again = audit(made.head(head), classes=made.freed, device="cpu", jobs=1)  # from scratch
    assert set(made.freed) <= set(again.argmaxable)
    assert made.audit.counts["argmaxable"] == head.classes == 6625
    assert len(made.freed) == 202
    assert 0.01530 < made.needed < made.touching < 1.02 * made.needed
    assert made.touching < made.size < 1.1 * made.needed
    fared = low_precision(made.head(head), made.audit.proofs, choose_backend("cpu", 1))
    assert fared is not None
    assert fared["wins"] == 6625
