"""Every bound of the trusted code, for magnitudes from the least subnormal to 1e308: held to
fractions, and never on the wrong side of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oracle import exact_rows, lead_at, logit
from small_heads import quick
from uncork import (
    Audit,
    Ball,
    Box,
    Domain,
    Head,
    Image,
    LayerNorm,
    Mixture,
    RMSNorm,
    Unbounded,
    Verdict,
    audit,
    verify,
)
from uncork.auditing.certify.balance import Balance, balance_of
from uncork.auditing.certify.bulk import Bulk
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.certify.latent import Latent
from uncork.auditing.certify.one_mixture import OneMixture
from uncork.auditing.certify.products import Device, Products
from uncork.auditing.certify.support import upper_bound
from uncork.core.rigour import LARGEST, add_up, mul_up, row_norms, up
from uncork.reach.bounds.probability import logit_error, logits, weighted_sums

EDGES = [0.0, 5e-324, 1e-323, 2.0**-1022, 2.0**-1021, 2.0**-537, 1.0, 2.0**511, 1e308, LARGEST]


def exponents(top: int) -> st.SearchStrategy[int]:
    """Any, but often so small or so large that their products come out ordinary."""
    return st.one_of(
        st.integers(-1074, top - 1), st.integers(-1074, -990), st.integers(top - 70, top - 1)
    )


@st.composite
def arrays(draw: st.DrawFn, *shape: int, positive: bool = False, top: int = 1023) -> np.ndarray:
    """Numbers of one magnitude, so that they cancel; of all magnitudes; or from the edges."""
    count = math.prod(shape)
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    kind = draw(st.sampled_from(["one", "one", "two", "all", "edges"]))
    mantissas = 1 + rng.random(count)
    if kind == "edges":
        values = rng.choice([e for e in EDGES if e < 2.0**top], count)
    else:
        first, second = draw(exponents(top)), draw(exponents(top))
        powers = {
            "one": first + rng.integers(-2, 1, count),
            "two": rng.choice([first, second], count),
            "all": rng.integers(-1074, top, count),
        }[kind]
        values = np.ldexp(mantissas, np.maximum(powers, -1074))
    signs = 1.0 if positive else rng.choice([-1.0, 1.0], count)
    kept = rng.random(count) < draw(st.sampled_from([1.0, 1.0, 0.6]))
    return np.where(kept, values * signs, 0.0).reshape(shape)


def whole(values: np.ndarray) -> list[Fraction]:
    return [Fraction(v) for v in values.tolist()]


def dot(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


def within(value: Fraction, middle: float, error: float) -> bool:
    """Where a bound overflowed, nothing is claimed."""
    if not (math.isfinite(middle) and math.isfinite(error)):
        return True
    return abs(value - Fraction(float(middle))) <= Fraction(float(error))


def at_least(bound: float, value: Fraction) -> bool:
    return not math.isfinite(bound) or Fraction(float(bound)) >= value


@st.composite
def images(draw: st.DrawFn) -> tuple[Domain, int]:
    features, latent = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    plain = draw(st.sampled_from([Unbounded(), Ball(2.0), Box(-np.inf, np.inf)]))
    norm = LayerNorm(draw(arrays(latent)), draw(arrays(latent)))
    matrix, offset = draw(arrays(features, latent)), draw(arrays(features))
    return draw(
        st.sampled_from(
            [
                (norm, latent),
                (RMSNorm(norm.gain), latent),
                (Image(norm, matrix, offset), features),
                (Image(plain, matrix, offset), features),
                (Image(plain, matrix), features),
            ]
        )
    )


# The rule


@quick(166)
@given(data=st.data())
def test_products_and_sums_of_bounds_are_bounds(data: st.DataObject) -> None:
    a, b, c = (data.draw(arrays(3, positive=True)) for _ in range(3))
    with np.errstate(all="ignore"):
        product, total, both = mul_up(a, b), add_up(a, b, c), up(a * b + c, 3)
    for k in range(3):
        x, y, z = Fraction(a[k]), Fraction(b[k]), Fraction(c[k])
        assert at_least(product[k], x * y)
        assert at_least(total[k], x + y + z)
        assert at_least(both[k], x * y + z)
        assert product[k] > 0 or x * y == 0
        assert x * y > 0 or product[k] == 0


@quick(100)
@given(values=arrays(2, 4))
def test_a_norm_is_never_below_the_true_one(values: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        norms = row_norms(values)
    for norm, row in zip(norms, values, strict=True):
        if math.isfinite(norm):
            assert Fraction(norm) ** 2 >= dot(whole(row), whole(row))


def test_arithmetic_that_flushes_subnormals_is_refused() -> None:
    torch = pytest.importorskip("torch")
    head = Head(np.eye(3))
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush")
    try:
        with pytest.raises(Exception, match="flushes subnormal numbers"):
            Certifier(head).witnesses(np.array([0]), np.eye(3)[:1])
        with pytest.raises(Exception, match="flushes subnormal numbers"):
            Certifier(head).mixture(0, Mixture(np.array([1]), np.ones(1)))
    finally:
        torch.set_flush_denormal(False)


# From u to x and back


@quick(200)
@given(image=images(), data=st.data())
def test_an_input_is_as_near_the_true_one_as_claimed(
    image: tuple[Domain, int], data: st.DataObject
) -> None:
    latent = Latent(*image)
    u = data.draw(arrays(latent.width))
    with np.errstate(all="ignore"):
        x, error = latent.forward(u[None])
    exact = latent.forward_exactly(whole(u))
    assert all(within(v, *pair) for v, *pair in zip(exact, x[0], error[0], strict=True))


@quick(200)
@given(image=images(), data=st.data())
def test_a_residual_pulled_back_is_as_near_the_true_one_as_claimed(
    image: tuple[Domain, int], data: st.DataObject
) -> None:
    latent = Latent(*image)
    r, wrong = data.draw(arrays(image[1])), data.draw(arrays(image[1], positive=True))
    signs = data.draw(st.sampled_from([-1, 0, 1]))
    exact = [a + signs * b for a, b in zip(whole(r), whole(wrong), strict=True)]
    with np.errstate(all="ignore"):
        rows, error, shift, slack = latent.back(r[None], wrong[None])
    g, s = latent.back_exactly(exact)
    assert all(within(v, *pair) for v, *pair in zip(g, rows[0], error[0], strict=True))
    assert within(s, shift[0], slack[0])


@pytest.mark.parametrize("forward", [True, False])
def test_what_underflows_before_a_huge_matrix_is_not_forgotten(forward: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        width = int(rng.integers(1, 5))
        small = np.ldexp(rng.standard_normal(width), int(rng.integers(-1074, -1030)))
        large = np.ldexp(rng.standard_normal((width, width)), int(rng.integers(1000, 1022)))
        latent = Latent(Image(Unbounded(), large), width)
        if forward:
            (values, error), exact = (
                latent.forward(small[None]),
                latent.forward_exactly(whole(small)),
            )
        else:
            values, error, _, _ = latent.back(small[None], np.zeros((1, width)))
            exact = latent.back_exactly(whole(small))[0]
        assert np.isfinite(error).all()
        assert all(within(v, *pair) for v, *pair in zip(exact, values[0], error[0], strict=True))


# What a mixture leaves


def holds(balance: Balance, r: list[Fraction], s: Fraction, total: Fraction) -> bool:
    each = zip(r, balance.residual, balance.error, strict=True)
    return (
        all(within(v, float(m), float(e)) for v, m, e in each)
        and within(s, balance.constant, balance.constant_error)
        and within(total, balance.total, balance.total_error)
    )


def exact_balance(
    head: Head, t: int, classes: Sequence[int], weights: list[Fraction]
) -> tuple[list[Fraction], Fraction, Fraction]:
    rows = exact_rows(head)
    away = [[a - b for a, b in zip(rows[t], rows[i], strict=True)] for i in classes]
    sums = [dot(weights, column) for column in zip(*away, strict=True)]
    return sums[:-1], sums[-1], sum(weights, Fraction(0))


@quick(166)
@given(image=images(), data=st.data())
def test_a_balance_is_as_near_the_true_one_as_claimed(
    image: tuple[Domain, int], data: st.DataObject
) -> None:
    domain, features = image
    head = Head(data.draw(arrays(5, features)), data.draw(arrays(5)), domain=domain)
    weights, more = (data.draw(arrays(4, positive=True)) for _ in range(2))
    with np.errstate(all="ignore"):
        away, bias = head.rows(0, 1) - head.rows(1, 5), head.offsets[0] - head.offsets[1:]
        one, two = balance_of(away, bias, weights), balance_of(away, bias, more)
        both = one.plus(two)
        seen = both.seen_through(Latent(domain, features))
    assert holds(one, *exact_balance(head, 0, range(1, 5), whole(weights)))
    sums = [a + b for a, b in zip(whole(weights), whole(more), strict=True)]
    r, s, total = exact_balance(head, 0, range(1, 5), sums)
    assert holds(both, r, s, total)
    g, shift = Latent(domain, features).back_exactly(r)
    assert holds(seen, g, s + shift, total)


@quick(166)
@given(data=st.data())
def test_sums_over_all_classes_are_as_near_the_true_ones_as_claimed(data: st.DataObject) -> None:
    head = Head(data.draw(arrays(5, 2)), data.draw(arrays(5)))
    weights = data.draw(arrays(1, 5, positive=True))
    certifier = Certifier(head)
    with np.errstate(all="ignore"):
        sums = weighted_sums(certifier, weights)
        centre = certifier.products.centre
        balances = [OneMixture(certifier).tilted(t, sums, 0) for t in range(5)]
    exact, rows = whole(weights[0]), exact_rows(head)
    assert within(sum(exact, Fraction(0)), sums.mass[0], sums.mass_error[0])
    assert within(dot(exact, [row[-1] for row in rows]), sums.bias[0], sums.bias_error[0])
    if np.isfinite(centre).all():
        for k, c in enumerate(whole(centre)):
            true = dot(exact, [row[k] - c for row in rows])
            assert within(true, sums.rows[0, k], sums.rows_error[0, k])
        for t, balance in enumerate(balances):
            assert holds(balance, *exact_balance(head, t, range(5), exact))


def true_maximum(
    domain: Domain, residual: np.ndarray, error: np.ndarray, constant: Fraction, bound: float
) -> bool:
    """Whether `bound` is at least r·x + s for every r that the error allows and every x."""
    for signs in itertools.product((-1, 1), repeat=len(residual)):
        r = [Fraction(a) + g * Fraction(b) for a, b, g in zip(residual, error, signs, strict=True)]
        if isinstance(domain, Ball):
            room = Fraction(bound) - constant
            if room < 0 or room**2 < dot(r, r) * domain.square:
                return False
            continue
        assert isinstance(domain, Box)
        sides = zip(r, *(side.tolist() for side in domain.bounds(len(r))), strict=True)
        if sum(max(v * Fraction(a), v * Fraction(b)) for v, a, b in sides) + constant > bound:
            return False
    return True


@quick(266)
@given(data=st.data())
def test_the_largest_value_on_a_domain_is_never_underestimated(data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 3))
    sides = np.sort([data.draw(arrays(width)), data.draw(arrays(width))], axis=0)
    radius = float(data.draw(arrays(1, positive=True))[0]) or 1.0
    domain = data.draw(st.sampled_from([Box(*sides), Ball(radius)]))
    residual, error = data.draw(arrays(width)), data.draw(arrays(width, positive=True))
    constant, slack = data.draw(arrays(1))[0], data.draw(arrays(1, positive=True))[0]
    if data.draw(st.booleans()):  # nearly touching zero, where a verdict hangs on the last bit
        with np.errstate(all="ignore"):
            constant = -upper_bound(domain, residual, error, 0.0, 0.0)
        assume(math.isfinite(constant))
    with np.errstate(all="ignore"):
        bound = upper_bound(domain, residual, error, constant, slack)
    if math.isfinite(bound):
        exact = Fraction(constant) + Fraction(slack)
        assert true_maximum(domain, residual, error, exact, bound)


# All logits at once


@quick(166)
@given(data=st.data(), single=st.booleans())
def test_logits_are_never_bounded_from_the_wrong_side(data: st.DataObject, single: bool) -> None:
    top = 120 if single else 1023
    head = Head(data.draw(arrays(5, 3, top=top)), data.draw(arrays(5, top=top)))
    x, away = data.draw(arrays(3, top=top)), data.draw(arrays(3, top=top))
    if single:
        x = x.astype(np.float32).astype(np.float64)
    products = Products(head, Device())
    drifts = data.draw(st.booleans())
    with np.errstate(all="ignore"):
        drift = row_norms(away[None]) if drifts else np.zeros(1)
    true = [a + b * drifts for a, b in zip(whole(x), whole(away), strict=True)]
    for t in range(head.classes):
        with np.errstate(all="ignore"):
            own, rivals = products.own_and_rivals(np.array([t]), x[None], drift, {}, single)
        if not (np.isfinite(own[0]) and np.isfinite(rivals[0])):
            continue
        exact = [logit(row, true) for row in exact_rows(head)]
        middle = dot(whole(products.centre), true) if single else Fraction(0)
        if single:  # bounds are on logits less that of the centre, which is known up to the drift
            lead = exact[t] - max(z for i, z in enumerate(exact) if i != t)
            assert Fraction(own[0]) - Fraction(rivals[0]) <= lead
        else:
            assert Fraction(own[0]) <= exact[t] - middle
            assert at_least(rivals[0], max(z for i, z in enumerate(exact) if i != t))


@quick(166)
@given(data=st.data())
def test_rows_called_clear_are_below(data: st.DataObject) -> None:
    head = Head(data.draw(arrays(5, 3)), data.draw(arrays(5)))
    x, lowest = data.draw(arrays(3)), float(data.draw(arrays(1))[0])
    with np.errstate(all="ignore"):
        close, highest = Products(head, Device()).close_rows(x, 0.0, lowest)
    exact = [logit(row, whole(x)) for row in exact_rows(head)]
    for i in set(range(5)) - set(close.tolist()):
        assert exact[i] < Fraction(lowest)
        assert at_least(highest, exact[i])


@quick(100)
@given(data=st.data())
def test_logits_err_by_no_more_than_claimed(data: st.DataObject) -> None:
    head = Head(data.draw(arrays(4, 2)), data.draw(arrays(4)))
    x, beta = data.draw(arrays(1, 2)), float(data.draw(arrays(1, positive=True))[0])
    certifier = Certifier(head)
    with np.errstate(all="ignore"):
        z = logits(certifier, x)
        off = logit_error(certifier, x, np.zeros(1), z, np.zeros(1, dtype=np.int64), beta)[0]
        s = (z[0] - z[0, 0]) * beta
    exact = [logit(row, whole(x[0])) for row in exact_rows(head)]
    least = Fraction(5e-324)  # of the product with beta itself: far below what exp can tell
    for i in range(4):
        if math.isfinite(off[i]) and math.isfinite(s[i]):
            wrong = abs((exact[i] - exact[0]) * Fraction(beta) - Fraction(s[i]))
            assert wrong <= Fraction(off[i]) + least


# The bulk


def square(vector: list[Fraction]) -> Fraction:
    return dot(vector, vector)


@quick(100)
@given(data=st.data())
def test_the_bulk_is_bounded_from_the_right_side(data: st.DataObject) -> None:
    width, count = data.draw(st.integers(1, 2)), 6
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    scale = 2.0 ** data.draw(st.integers(-160, 160))
    weight = rng.standard_normal((count, width)) * scale
    weight = data.draw(st.sampled_from([weight, data.draw(arrays(count, width))]))
    head = Head(weight, data.draw(arrays(count)))
    bulk = Bulk.of(head, Device())
    rows = exact_rows(head)
    mean = [sum(column, Fraction(0)) / count for column in zip(*rows, strict=True)]
    each = zip(mean[:-1], bulk.centre, bulk.centre_error, strict=True)
    assert all(within(v, float(c), float(e)) for v, c, e in each)
    assert within(mean[-1], bulk.bias_mean, bulk.bias_error)
    low, high = bulk.bias_range
    assert Fraction(low) <= min(row[-1] for row in rows)
    assert Fraction(high) >= max(row[-1] for row in rows)
    if bulk.transform is None or not np.isfinite(bulk.centre).all():
        return
    K, centre = [whole(line) for line in bulk.transform], whole(bulk.centre)
    v = [[dot(line, [a - c for a, c in zip(row[:-1], centre, strict=True)]) for line in K]
         for row in rows]  # fmt: skip
    moments = [[sum(a[i] * a[j] for a in v) / count - (i == j) for j in range(len(K))]
               for i in range(len(K))]  # fmt: skip
    if math.isfinite(bulk.defect):
        assert Fraction(bulk.defect) ** 2 >= sum(map(square, moments))
    if math.isfinite(bulk.offset):
        middle = [sum(column, Fraction(0)) / count for column in zip(*v, strict=True)]
        assert Fraction(bulk.offset) ** 2 >= square(middle)
    if math.isfinite(bulk.reach):
        assert Fraction(bulk.reach) ** 2 >= max(map(square, v))
    assert at_least(bulk.transform_norm, Fraction(0))
    residual = data.draw(arrays(width)) if data.draw(st.booleans()) else weight[0] * 2.0**-20
    error = data.draw(arrays(width, positive=True)) * data.draw(st.sampled_from([0.0, 1.0]))
    nudge = bulk.nudge(residual, error)
    if nudge is None:
        return
    defect, offset, reach = Fraction(bulk.defect), Fraction(bulk.offset), Fraction(bulk.reach)
    for signs in itertools.product((-1, 1), repeat=width):
        r = [a + g * b for a, b, g in zip(whole(residual), whole(error), signs, strict=True)]
        # nudge ≥ M(q + ω)/(1 − η − qω), solved for q: no square root needed.
        claim = Fraction(nudge)
        q = (claim * (1 - defect) - reach * offset) / (reach + claim * offset)
        assert q >= 0
        assert q**2 >= square([dot(line, r) for line in K])
    least = bulk.bias_low(nudge)
    spread = (Fraction(high) - Fraction(low)) * 2 * Fraction(nudge) / (1 - Fraction(nudge))
    assert Fraction(least) <= max(Fraction(low), mean[-1] - spread)


# Domains, and the certifier as a whole


@quick(133)
@given(data=st.data())
def test_nothing_outside_a_ball_is_called_inside(data: st.DataObject) -> None:
    x = data.draw(arrays(3))
    with np.errstate(all="ignore"):
        radius = float(np.linalg.norm(x)) if data.draw(st.booleans()) else 0.0
    radius = radius or float(data.draw(arrays(1, positive=True))[0])
    assume(0 < radius < math.inf)
    ball = Ball(radius)
    with np.errstate(all="ignore"):
        inside = bool(ball.contains(x))
    if inside:
        assert square(whole(x)) <= ball.square


@st.composite
def heads(draw: st.DrawFn) -> Head:
    domain, features = draw(images() | st.tuples(st.sampled_from([Box(1), Ball(3.0), Unbounded()]),
                                                 st.integers(1, 3)))  # fmt: skip
    bias = draw(arrays(4)) if draw(st.booleans()) else None
    return Head(draw(arrays(4, features)), bias, domain=domain)


@quick(200)
@given(head=heads(), data=st.data())
def test_no_witness_is_credited_with_more_than_its_lead(head: Head, data: st.DataObject) -> None:
    certifier = Certifier(head)
    u = data.draw(arrays(certifier.latent.width))
    margins = certifier.witnesses(np.arange(4), np.repeat(u[None], 4, axis=0))
    x = certifier.latent.forward_exactly(whole(u))
    for t in np.flatnonzero(margins > 0).tolist():
        lead = lead_at(head, t, x)
        assert lead > 0
        assert margins[t] == math.inf or Fraction(margins[t]) <= max(lead, Fraction(5e-324))


@quick(200)
@given(head=heads(), data=st.data())
def test_no_mixture_is_credited_with_more_than_its_lead(head: Head, data: st.DataObject) -> None:
    certifier = Certifier(head)
    weights = data.draw(arrays(3, positive=True))
    lead = certifier.mixture(0, Mixture(np.arange(1, 4), weights))
    if not lead >= 0:
        return
    r, s, total = exact_balance(head, 0, range(1, 4), whole(weights))
    g, shift = certifier.latent.back_exactly(r)
    s, base = s + shift, certifier.base
    room = -Fraction(lead) * total - s  # must be at least the largest g·u
    least = Fraction(5e-324) * total if lead == 5e-324 else Fraction(0)
    if isinstance(base, Ball):
        assert room + least >= 0
        assert (room + least) ** 2 >= dot(g, g) * base.square
    elif isinstance(base, Box) and np.isfinite(base.upper).all():
        assert room + least >= sum(abs(v) * Fraction(float(base.upper.max())) for v in g)
    else:
        assert not any(g)
        assert room + least >= 0


def test_a_certificate_file_that_lives_on_underflow_is_refused(tmp_path: Path) -> None:
    """γ·|u| is nothing and |A| is huge: the only input, −2.5e-21, seemed positive."""
    u = np.array([2.118510733415e-312, 3.2982767749e-312, 4.17528730146e-312])
    matrix = [[3.1272278903673243e307, 3.44406392724552e307, -4.3073782989243273e307]]
    head = Head([[1.0], [0.0]], domain=Image(Box(u, u), matrix))
    assert lead_at(head, 0, Latent(head.domain, 1).forward_exactly(whole(u))) < 0
    found = audit(head, jobs=1)
    assert found.verdicts.tolist() == [Verdict.UNARGMAXABLE, Verdict.ARGMAXABLE]
    found.proofs.verdicts[:] = Verdict.ARGMAXABLE, Verdict.UNARGMAXABLE
    found.proofs.mixtures = {1: Mixture(np.array([0], np.int32), np.ones(1))}
    found.proofs.inputs, found.proofs.exact = {0: u}, {}
    found.save(tmp_path / "forged.npz")
    checked = verify(Audit.load(tmp_path / "forged.npz"), head, jobs=1)
    assert set(checked.failed) == {0, 1}
