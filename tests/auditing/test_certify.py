"""The certifier: true claims are accepted, false ones refused, however close they are."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle import first_somewhere, lead_at, lies_in, mixture_lead
from small_heads import EXTREME, ORDINARY, heads, quick
from uncork import Ball, Box, Domain, Head, Mixture, Unbounded, Witness
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.proofs.verdict import Verdict

ANY = {**ORDINARY, **EXTREME}
any_head = st.sampled_from(sorted(ANY)).flatmap(lambda kind: heads(ANY[kind], extreme=True))
ball_head = st.sampled_from(sorted(ANY)).flatmap(
    lambda kind: heads(ANY[kind], extreme=True, ball=True)
)


def wins(head: Head, t: int, x: list[float]) -> bool:
    margin = Certifier(head).witnesses(np.array([t]), np.array([x], dtype=np.float64))
    return bool(margin[0] > 0)


def beaten(head: Head, t: int, classes: list[int], weights: list[float], bulk: float = 0) -> bool:
    mixture = Mixture(np.array(classes, dtype=np.int32), np.array(weights, dtype=float), bulk)
    return Certifier(head).mixture(t, mixture) >= 0


def beaten_exactly(head: Head, t: int, classes: list[int], weights: list[int]) -> bool:
    image = np.ones(len(classes))
    mixture = Mixture(np.array(classes, dtype=np.int32), image, 0.0, tuple(weights))
    return Certifier(head).mixture(t, mixture) >= 0


def step(value: float, ulps: int) -> float:
    for _ in range(abs(ulps)):
        value = float(np.nextafter(value, np.inf if ulps > 0 else -np.inf))
    return value


# Witnesses


def near_tie(head: Head, rng: np.random.Generator) -> np.ndarray:
    """An input of the domain at which two classes are as nearly equal as floats allow."""
    i, k = rng.integers(0, head.classes, 2)
    rows = head.take(np.array([i, k]))
    scale = float(np.abs(rows).max()) or 1.0
    normal = rows[0] / scale - rows[1] / scale
    x = rng.standard_normal(head.features) * 10.0 ** rng.integers(-3, 4)
    if normal @ normal > 0:
        gap = float(head.offsets[i] - head.offsets[k]) / scale
        x = x - normal * ((normal @ x + (gap if np.isfinite(gap) else 0)) / (normal @ normal))
    x = np.nextafter(x, x + rng.integers(-1, 2, head.features))
    if isinstance(head.domain, Box):
        lower, upper = head.domain.bounds(head.features)
        x = np.clip(x, lower, upper)
    if rng.random() < 0.5:  # which float32 holds exactly, so that float32 products are tried
        x = x.astype(np.float32).astype(np.float64)
    return np.nan_to_num(x, posinf=1.0, neginf=-1.0)


@quick(400)
@given(head=any_head, seed=st.integers(0, 2**32))
def test_a_witness_is_accepted_exactly_where_it_wins(head: Head, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        inputs = np.array([near_tie(head, rng) for _ in range(6)])
    certifier = Certifier(head)
    for t in range(head.classes):
        margins = certifier.witnesses(np.full(len(inputs), t), inputs)
        for x, margin in zip(inputs.tolist(), margins.tolist(), strict=True):
            at = [Fraction(v) for v in x]
            rivals = [i for i in range(head.classes) if i != t and certifier.equal(i, t)]
            lead = Fraction(0) if rivals else lead_at(head, t, at)
            assert (margin > 0) == (lead > 0 and lies_in(head.domain, at))
            if margin > 5e-324 and margin != np.inf:
                assert Fraction(margin) <= lead


@quick(150)
@given(head=ball_head, seed=st.integers(0, 2**32))
def test_a_witness_on_the_sphere_is_never_accepted_outside_the_ball(head: Head, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((20, head.features))
    x *= head.domain.radius / np.linalg.norm(x, axis=1, keepdims=True)  # type: ignore[attr-defined]
    x = np.nextafter(x, x + rng.integers(-1, 2, x.shape))
    for t in range(min(3, head.classes)):
        for point, margin in zip(x, Certifier(head).witnesses(np.full(20, t), x), strict=True):
            if margin > 0:
                at = [Fraction(v) for v in point.tolist()]
                assert lies_in(head.domain, at)
                assert lead_at(head, t, at) > 0


@pytest.mark.parametrize("ulps", [-1, 0, 1])
def test_a_witness_that_leads_by_one_ulp_or_less_is_told_apart(ulps: int) -> None:
    # z_0 − z_1 = w − 1 at x = (1, 1), in a sum whose float rounding hides the difference.
    head = Head([[1e16, step(1.0, ulps)], [1e16, 1.0]])
    assert wins(head, 0, [1.0, 1.0]) == (ulps > 0)


def test_ties_are_refused() -> None:
    head = Head([[1.0, 0.0], [0.0, 1.0]])
    assert not wins(head, 0, [3.0, 3.0])
    assert not wins(head, 1, [3.0, 3.0])
    assert not wins(head, 0, [0.0, 0.0])


def test_an_equal_class_is_a_rival_unless_it_is_named_as_an_equal() -> None:
    head = Head([[1.0], [1.0], [0.0]])
    x = np.array([[1.0]])
    assert not wins(head, 0, [1.0])
    assert Certifier(head).witnesses(np.array([0]), x, {0: np.array([0, 1])})[0] > 0
    # Naming a class that is not equal does not silence it.
    assert not Certifier(head).witnesses(np.array([2]), x, {2: np.array([0, 1, 2])})[0] > 0


@pytest.mark.parametrize("x", [100.00000000000001, -100.00000000000001, np.inf, np.nan])
def test_an_input_outside_the_box_is_refused(x: float) -> None:
    assert not wins(Head([[1.0], [-1.0]]), 0 if x > 0 else 1, [x])
    assert not wins(Head([[1.0], [-1.0]], domain=Unbounded()), 0, [np.inf])


def test_an_input_on_the_side_of_the_box_is_accepted() -> None:
    assert wins(Head([[1.0], [-1.0]]), 0, [100.0])
    assert wins(Head([[1.0], [0.0]], domain=Box(0, np.inf)), 0, [1e300])
    assert wins(Head([[1.0], [0.0]], [0.0, -1.0], domain=Box(0, np.inf)), 0, [0.0])
    assert not wins(Head([[1.0], [0.0]], [0.0, -1.0], domain=Box(0, np.inf)), 0, [-5e-324])


def test_an_overflow_hides_no_rival() -> None:
    # Class 1 is ahead, −1.5e307 against −2e307, but one of its products alone is below −max.
    head = Head(np.array([[-0.2, 0.0], [-1.9, 1.75]]) * 1e155, domain=Unbounded())
    assert not wins(head, 0, [1e153, 1e153])
    assert wins(head, 1, [1e153, 1e153])


def test_a_weight_beyond_float32_hides_no_rival() -> None:
    # Class 1 is ahead by 8.9e22, though its first weight and product are −inf in float32.
    head = Head([[0.0, 0.0], [-1e40, 1e38]], domain=Unbounded())
    assert not wins(head, 0, [2.0**-66, 2.0**-50])
    assert wins(head, 1, [2.0**-66, 2.0**-50])


@quick(300)
@given(seed=st.integers(0, 2**32))
def test_at_the_edges_of_float32_a_witness_is_accepted_exactly_where_it_wins(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, features = rng.integers(2, 6), rng.integers(1, 5)
    weight = rng.standard_normal((classes, features))
    weight = weight * 10.0 ** rng.choice([-46, -40, -20, 0, 20, 38, 40], size=weight.shape)
    bias = rng.standard_normal(classes) * 10.0 ** rng.choice([-46, 0, 30, 40])
    head = Head(weight, bias, domain=Unbounded())
    x = rng.standard_normal((8, features)) * 10.0 ** rng.choice(
        [-44, -20, 0, 20], size=(8, features)
    )
    x = x.astype(np.float32).astype(np.float64)
    for t in range(classes):
        margins = Certifier(head).witnesses(np.full(8, t), x)
        for point, margin in zip(x.tolist(), margins.tolist(), strict=True):
            assert (margin > 0) == (lead_at(head, t, point) > 0)


def test_logits_beyond_floating_point_are_compared_all_the_same() -> None:
    head = Head([[1e300], [2e300]], domain=Unbounded())
    assert wins(head, 1, [1e300])
    assert not wins(head, 0, [1e300])
    assert wins(head, 0, [-1e300])


@pytest.mark.parametrize("scale", [1e30, 1e-30, 1e-300])
def test_a_witness_holds_at_every_scale_of_the_rows(scale: float) -> None:
    head = Head(np.array([[1.0, 0.0], [0.0, 1.0]]) * scale)
    assert wins(head, 0, [step(1.0, 1), 1.0])
    assert not wins(head, 1, [step(1.0, 1), 1.0])


def test_a_lead_of_1e_300_is_enough_and_none_is_not() -> None:
    assert wins(Head([[1.0], [1.0]], [1e-300, 0.0]), 0, [1.0])
    assert not wins(Head([[1.0], [1.0]], [-1e-300, 0.0]), 0, [1.0])
    assert wins(Head([[5e-324], [0.0]], domain=Box(1)), 0, [5e-324])  # by 2e-647


def test_an_exact_witness_between_the_floats_is_accepted() -> None:
    # z_0 = 5e-324 beats both others only for 0 < x < 5e-324: no float lies between.
    least = 5e-324
    head = Head([[0.0], [1.0], [-1.0]], [least, 0.0, least], domain=Unbounded())
    numerator, denominator = Fraction(least).as_integer_ratio()
    half = Witness(np.array([0.0]), (numerator,), 2 * denominator)
    assert Certifier(head).exact_witness(0, half) > 0
    assert not Certifier(head).exact_witness(1, half) > 0
    assert not Certifier(head.replace(domain=Box(1, 2))).exact_witness(0, half) > 0


# Mixtures


@quick(800)
@given(head=any_head, seed=st.integers(0, 2**32))
def test_a_mixture_is_accepted_exactly_where_it_leads_everywhere(head: Head, seed: int) -> None:
    rng = np.random.default_rng(seed)
    certifier = Certifier(head)
    for _ in range(6):
        t = int(rng.integers(head.classes))
        classes = rng.permutation(head.classes)[: rng.integers(1, head.classes + 1)]
        weights = rng.integers(0, 4, len(classes)) * 2.0 ** rng.integers(-4, 5)
        if rng.random() < 0.3:
            weights = weights * 10.0 ** rng.integers(-300, 301)
        if rng.random() < 0.3:
            weights = np.nextafter(weights, weights + rng.integers(-1, 2, len(weights)))
        weights = np.maximum(weights, 0.0)
        lead = mixture_lead(head, t, classes, weights.tolist())
        found = certifier.mixture(t, Mixture(classes, weights))
        assert (found >= 0) == (lead is not None)


@quick(150)
@given(head=ball_head, seed=st.integers(0, 2**32))
def test_in_a_ball_a_mixture_is_accepted_exactly_where_it_leads(head: Head, seed: int) -> None:
    rng = np.random.default_rng(seed)
    certifier = Certifier(head)
    for _ in range(6):
        t = int(rng.integers(head.classes))
        classes = rng.permutation(head.classes)[: rng.integers(1, head.classes + 1)]
        weights = rng.integers(0, 4, len(classes)) * 2.0 ** rng.integers(-4, 5)
        lead = mixture_lead(head, t, classes, weights.tolist())
        assert (certifier.mixture(t, Mixture(classes, weights)) >= 0) == (lead is not None)


@st.composite
def balanced_head(draw: st.DrawFn) -> tuple[Head, list[int]]:
    """A head whose class 0 is, exactly, a mixture of the others with the weights given."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    features, others = draw(st.integers(1, 5)), draw(st.integers(2, 7))
    weights = rng.multinomial(16, np.ones(others) / others)
    rows = rng.integers(-(2**20), 2**20, (others, features + 1)) / 2.0**10
    own = (weights @ rows) / 16
    scale = 2.0 ** draw(st.sampled_from([0, 0, -100, 100, -900, 900]))
    table = np.vstack([own, rows]) * scale
    domain = draw(st.sampled_from([Box(100), Box(-1, 2), Ball(3.0), Unbounded(), Box(0, np.inf)]))
    return Head(table[:, :-1], table[:, -1], domain=domain), weights.tolist()


@quick(400)
@given(made=balanced_head(), where=st.integers(0, 100), ulps=st.sampled_from([-1, 1]))
def test_an_exact_balance_holds_and_one_ulp_of_any_weight_of_the_head_is_noticed(
    made: tuple[Head, list[int]], where: int, ulps: int
) -> None:
    head, weights = made
    classes = list(range(1, head.classes))
    assert beaten(head, 0, classes, weights)
    assert beaten_exactly(head, 0, classes, weights)
    weight, bias = np.array(head.weight), np.array(head.offsets)
    if where % (head.features + 1) == head.features:
        bias[0] = step(bias[0], ulps)
    else:
        feature = where % (head.features + 1)
        weight[0, feature] = step(weight[0, feature], ulps)
    moved = head.replace(weight=weight, bias=bias)
    truth = mixture_lead(moved, 0, classes, weights) is not None
    assert beaten(moved, 0, classes, weights) == truth
    assert beaten_exactly(moved, 0, classes, weights) == truth


@quick(150)
@given(made=balanced_head(), ulps=st.sampled_from([-1, 1]), data=st.data())
def test_one_ulp_of_a_weight_of_the_mixture_is_noticed(
    made: tuple[Head, list[int]], ulps: int, data: st.DataObject
) -> None:
    head, whole = made
    classes, weights = list(range(1, head.classes)), [float(w) for w in whole]
    k = data.draw(st.integers(0, len(weights) - 1))
    weights[k] = max(0.0, step(weights[k], ulps))
    truth = mixture_lead(head, 0, classes, weights) is not None
    assert beaten(head, 0, classes, weights) == truth


@quick(250)
@given(head=any_head, seed=st.integers(0, 2**32))
def test_a_mixture_with_a_bulk_is_only_accepted_for_a_lost_class(head: Head, seed: int) -> None:
    rng = np.random.default_rng(seed)
    certifier = Certifier(head)
    for t in range(head.classes):
        classes = rng.permutation(head.classes)[: rng.integers(0, head.classes)]
        weights = rng.dirichlet(np.ones(len(classes))) if len(classes) else np.zeros(0)
        bulk = float(10.0 ** rng.integers(-12, 3))
        if certifier.mixture(t, Mixture(classes, weights, bulk)) >= 0:
            assert not first_somewhere(head, t)


@quick(250)
@given(head=any_head, seed=st.integers(0, 2**32))
def test_a_tilted_mixture_is_only_accepted_for_a_lost_class(head: Head, seed: int) -> None:
    rng = np.random.default_rng(seed)
    certifier = Certifier(head)
    scale = float(np.abs(head.rows(0, head.classes)).max()) or 1.0
    for t in range(head.classes):
        classes = rng.permutation(head.classes)[: rng.integers(0, head.classes)]
        weights = rng.random(len(classes)) * rng.choice([0.0, 1e-3, 1.0])
        with np.errstate(over="ignore"):
            tilt = rng.standard_normal(head.features) * rng.choice([0.0, 1.0, 30.0]) / scale
        peak = float(rng.choice([0.0, 700.0, -700.0, np.nan, np.inf]))
        bulk = float(rng.choice([0.0, 1e-6, 1.0]))
        if certifier.mixture(t, Mixture(classes, weights, bulk, None, tilt, peak)) >= 0:
            assert not first_somewhere(head, t)


@pytest.mark.parametrize("bulk", [1e-300, 1e-10, 1.0, 1e300])
def test_a_bulk_does_not_hide_a_lead_of_a_subnormal_bias(bulk: float) -> None:
    head = Head([[0.0], [1.0], [-1.0]], [1e-315, 0.0, 0.0], domain=Unbounded())
    assert not beaten(head, 0, [], [], bulk)
    least = 5e-324  # the mean bias, two thirds of this, rounds up to it
    head = Head([[0.0], [1.0], [-1.0]], [least, 0.0, least], domain=Unbounded())
    assert not beaten(head, 0, [], [], bulk)


def test_a_bulk_absorbs_the_rounding_of_a_mixture_that_only_just_fails() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((50, 4))
    weights = rng.dirichlet(np.ones(49))
    weight[0] = 0.9 * (weights @ weight[1:]) + 0.1 * weight.mean(axis=0)
    head = Head(weight, domain=Unbounded())
    assert not beaten(head, 0, list(range(1, 50)), (0.9 * weights).tolist())
    assert beaten(head, 0, list(range(1, 50)), (0.9 * weights).tolist(), 0.1)


@pytest.mark.parametrize(
    ("weights", "domain"),
    [
        ([[1e-25], [0.0]], Box(1e-300)),
        ([[1e-25], [0.0]], Ball(1e-300)),
        ([[1e-200], [0.0]], Box(1e-200)),
        ([[5e-324], [0.0]], Box(5e-324)),
        ([[5e-324], [0.0]], Ball(5e-324)),
        ([[5e-324], [0.0]], Box(0, 5e-324)),
        ([[1e308], [-1e308]], Box(1e300)),
        ([[1e308], [-1e308]], Ball(1e300)),
    ],
    ids=str,
)
@pytest.mark.parametrize("weight", [5e-324, 1e-300, 1.0, 1e300])
def test_a_support_that_underflows_or_overflows_is_no_proof(
    weights: list[list[float]], domain: Domain, weight: float
) -> None:
    head = Head(weights, domain=domain)
    assert first_somewhere(head, 0)
    assert not beaten(head, 0, [1], [weight])
    assert not beaten(head, 0, [1], [weight / 2], weight / 2)


@pytest.mark.parametrize("domain", [Box(1), Ball(1.0), Unbounded()], ids=str)
def test_an_overflow_is_not_taken_for_balance(domain: Domain) -> None:
    head = Head([[1e308], [-1e308]], [-1.0, 0.0], domain=domain)
    assert not beaten(head, 0, [1], [1.0])
    assert not beaten(head, 0, [1], [1.0], 1.0)


@pytest.mark.parametrize("domain", [Box(1), Ball(1.0), Unbounded(), Box(0, 1)], ids=str)
@pytest.mark.parametrize("weight", [1, 10**40, 10**400])
def test_the_size_of_whole_number_weights_proves_nothing(domain: Domain, weight: int) -> None:
    assert not beaten_exactly(Head([[1.0], [0.0]], domain=domain), 0, [1], [weight])


def test_weights_that_are_no_mixture_are_refused() -> None:
    head = Head([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    assert beaten(head, 2, [0, 1], [1.0, 1.0])
    assert not beaten(head, 2, [0, 1], [0.0, 0.0])
    assert not beaten(head, 2, [], [])
    assert not beaten(head, 2, [0, 1], [np.nan, 1.0])
    assert not beaten(head, 2, [0, 1], [np.inf, np.inf])
    assert not beaten(head, 2, [0, 1], [1e308, 1e308], 1e308)
    assert not beaten(head, 0, [1, 2], [-1.0, 2.0])
    assert not beaten(head, 2, [0, 1, 3], [1.0, 1.0, 1.0])  # there is no class 3
    assert not beaten(head, 2, [0, -1], [1.0, 1.0])
    assert not beaten(head, 2, [0, 1], [1.0, 1.0], -1.0)
    assert not beaten(head, 2, [0, 1], [1.0, 1.0], np.nan)
    assert not beaten_exactly(head, 0, [1, 2], [-1, 2])
    assert not beaten_exactly(head, 2, [0, 1], [0, 0])
    assert not beaten_exactly(head, 2, [0, 1], [1])


def test_a_class_or_its_equal_does_not_beat_itself() -> None:
    head = Head([[1.0], [1.0], [0.0]])
    assert not beaten(head, 0, [0], [1.0])
    assert not beaten(head, 0, [1], [1.0])
    assert not beaten(head, 0, [0, 1], [1.0, 3.0])
    assert not beaten_exactly(head, 0, [1], [1])


@pytest.mark.parametrize("domain", [Box(1e-300), Box(100), Ball(1e-300), Unbounded()], ids=str)
def test_rows_that_are_all_equal_are_not_beaten_by_their_own_mean(domain: Domain) -> None:
    assert not beaten(Head([[1.0]] * 3, domain=domain), 0, [], [], 1.0)


def test_the_right_side_of_a_one_sided_box_is_used() -> None:
    head = Head([[1.0, 0.0], [0.0, 0.0]], domain=Box(np.array([0.0, -1.0]), np.array([np.inf, 1])))
    assert not beaten(head, 0, [1], [1.0])  # x₀ may be any positive number
    assert beaten(head, 1, [0], [1.0])
    head = head.replace(domain=Box(np.array([-np.inf, -1.0]), np.array([0.0, 1])))
    assert beaten(head, 0, [1], [1.0])
    assert not beaten(head, 1, [0], [1.0])


def test_a_bias_balances_the_support_of_the_box_and_not_an_ulp_more() -> None:
    # On box ±100: r·x ≤ 100, against a bias of 100 behind.
    head = Head([[1.0], [0.0]], [-100.0, 0.0])
    assert beaten(head, 0, [1], [1.0])
    assert not beaten(head.replace(bias=[step(-100.0, 1), 0.0]), 0, [1], [1.0])
    assert not beaten(head.replace(domain=Box(step(100.0, 1))), 0, [1], [1.0])


def test_a_bias_balances_the_support_of_the_ball_and_not_an_ulp_more() -> None:
    head = Head([[3.0, 4.0], [0.0, 0.0]], [-10.0, 0.0], domain=Ball(2.0))
    assert beaten(head, 0, [1], [1.0])
    assert not beaten(head.replace(bias=[step(-10.0, 1), 0.0]), 0, [1], [1.0])
    assert not beaten(head.replace(domain=Ball(step(2.0, 1))), 0, [1], [1.0])


@quick(200)
@given(head=any_head, seed=st.integers(0, 2**32))
def test_the_lead_of_a_mixture_is_a_lower_bound(head: Head, seed: int) -> None:
    rng = np.random.default_rng(seed)
    t = int(rng.integers(head.classes))
    weights = rng.random(head.classes)
    found = Certifier(head).mixture(t, Mixture(np.arange(head.classes), weights))
    lead = mixture_lead(head, t, np.arange(head.classes), weights.tolist())
    if found > 5e-324:
        total = sum(
            Fraction(w) for i, w in enumerate(weights.tolist()) if not Certifier(head).equal(i, t)
        )
        assert lead is not None
        assert Fraction(found) <= lead / total


def test_verdict_prints_as_its_name() -> None:
    assert [str(verdict) for verdict in Verdict] == [
        "undecided", "argmaxable", "unargmaxable", "tied",
    ]  # fmt: skip


@pytest.mark.parametrize("domain", [Ball(10.0), Box(10)], ids=str)
def test_a_lead_that_proves_nothing_is_no_larger_than_it_is(domain: Domain) -> None:
    """Of a ball only the sign is exact: repairs add such leads up, and need a bound."""
    head = Head(
        np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.25]]), np.array([0.0, 0.5, 1.0]), domain=domain
    )
    lead = Certifier(head).mixture(2, Mixture(np.array([0, 1]), np.array([0.5, 0.5])))
    away = np.array([0.0, -0.25])
    length = np.linalg.norm(away) if isinstance(domain, Ball) else np.abs(away).sum()
    assert lead == pytest.approx(0.25 - 1.0 - 10 * length, rel=1e-12)
