"""From u to x and back with every rounding bounded, and lies about images refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import image_oracle
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
    UncorkError,
    Witness,
    audit,
    verify,
)
from uncork.auditing.certify import products
from uncork.auditing.certify.bulk import Bulk
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.certify.latent import Latent
from uncork.auditing.certify.products import Device
from uncork.auditing.search import centre, exact, rows, screen
from uncork.auditing.search.proposer import Mixtures, Proposal, Witnesses

SIZES = [0.0, 1.0, -1.0, 3.0, 1e-300, -1e300, 5e-324, 0.1, 1e8, -1e-8]


def vectors(size: int) -> st.SearchStrategy[np.ndarray]:
    numbers = st.sampled_from(SIZES) | st.floats(-100, 100)
    return st.lists(numbers, min_size=size, max_size=size).map(lambda v: np.array(v, np.float64))


@st.composite
def images(draw: st.DrawFn) -> tuple[Domain, int]:
    features, latent = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    norm = LayerNorm(draw(vectors(latent)), draw(vectors(latent)))
    matrix = np.array([draw(vectors(latent)) for _ in range(features)])
    return draw(
        st.sampled_from(
            [
                (norm, latent),
                (RMSNorm(norm.gain), latent),
                (Image(norm, matrix, draw(vectors(features))), features),
                (Image(Ball(2.0), matrix), features),
            ]
        )
    )


def is_within(value: Fraction, middle: float, error: float) -> bool:
    if not np.isfinite(middle) or not np.isfinite(error):
        return True  # nothing is claimed
    return abs(value - Fraction(middle)) <= Fraction(error)


@quick(150)
@given(image=images(), data=st.data())
def test_an_input_computed_from_u_is_as_near_the_true_one_as_claimed(
    image: tuple[Domain, int], data: st.DataObject
) -> None:
    domain, features = image
    latent = Latent(domain, features)
    u = data.draw(vectors(latent.width))
    with np.errstate(all="ignore"):
        x, error = latent.forward(u[None])
    exact = image_oracle.inputs(domain, [Fraction(v) for v in u])
    assert exact == latent.forward_exactly([Fraction(v) for v in u])
    assert all(is_within(v, *pair) for v, *pair in zip(exact, x[0], error[0], strict=True))


@quick(150)
@given(image=images(), data=st.data())
def test_a_residual_pulled_back_is_the_same_function_of_u_up_to_the_error_claimed(
    image: tuple[Domain, int], data: st.DataObject
) -> None:
    domain, features = image
    latent = Latent(domain, features)
    r, wrong = data.draw(vectors(features)), data.draw(vectors(features))
    exact_r = [Fraction(a) + Fraction(b) / 2 for a, b in zip(r, wrong, strict=True)]
    with np.errstate(all="ignore"):
        rows, error, shift, slack = latent.back(r[None], np.abs(wrong)[None])
    g, s = latent.back_exactly(exact_r)
    assert all(is_within(v, *pair) for v, *pair in zip(g, rows[0], error[0], strict=True))
    assert is_within(s, shift[0], slack[0])
    u = [Fraction(v) for v in data.draw(vectors(latent.width))]
    product = sum(a * b for a, b in zip(exact_r, image_oracle.inputs(domain, u), strict=True))
    assert product == sum(a * b for a, b in zip(g, u, strict=True)) + s


def test_the_radius_of_a_norm_is_rounded_to_the_safe_side_each_way() -> None:
    for features in range(1, 200):
        ball = LayerNorm(features=features).affine(features).base
        assert isinstance(ball, Ball)
        assert Fraction(ball.radius) ** 2 <= features == ball.square <= Fraction(ball.outer) ** 2
        assert (ball.radius == ball.outer) == (round(features**0.5) ** 2 == features)


@pytest.mark.parametrize(
    ("domain", "rank"),
    [
        (LayerNorm(features=5), 4),
        (LayerNorm([1, 2, 0, 1, 1]), 4),
        (LayerNorm([1, 0, 0, 1, 1]), 3),
        (LayerNorm([1.0]), 0),
        (RMSNorm([1, 2, 0, 1]), 3),
        (RMSNorm(features=4), 4),
        (Image(LayerNorm(features=3), np.ones((5, 3))), 2),
        (Image(Unbounded(), np.array([[1.0, 0.0], [2.0, 0.0]])), 1),
    ],
    ids=str,
)
def test_no_more_dimensions_are_claimed_than_a_domain_can_have(domain: Domain, rank: int) -> None:
    view = domain.affine(domain.features)  # type: ignore[attr-defined]
    assert view.rank == rank
    assert np.linalg.matrix_rank(view.parts()[0]) <= rank


def random_head(domain: Domain, seed: int = 3) -> Head:
    rng = np.random.default_rng(seed)
    weight = np.vstack([rng.integers(-3, 4, (14, 2)), 0.1 * rng.standard_normal((4, 2))])
    bias = np.append(rng.integers(-1, 2, 14), np.zeros(4)).astype(np.float64)
    return Head(np.vstack([weight, weight[0]]), np.append(bias, bias[0]), domain=domain)


DOMAINS = [
    LayerNorm([2.0, -1.0], [0.5, 0.25]),
    RMSNorm([3.0, 0.5]),
    Image(LayerNorm(features=2), [[1.0, 2.0], [0.5, -1.0]], [0.25, 0.0]),
    Image(Box(0, 1), [[1.0, -2.0], [0.5, 1.0]], [0.1, 0.0]),
]


@pytest.fixture(params=DOMAINS, ids=str)
def head(request: pytest.FixtureRequest) -> Head:
    return random_head(request.param)


def check(head: Head) -> Audit:
    found = audit(head, device="cpu", jobs=1)
    assert image_oracle.false_verdicts(found, head) == {}
    assert verify(found, head, jobs=1).ok
    return found


def test_an_honest_solver_decides_these_heads(head: Head) -> None:
    assert list(check(head).verdicts) == image_oracle.expected(head)


@pytest.mark.parametrize("seed", range(3))
def test_noise_from_the_solvers_falsifies_nothing(
    head: Head, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)

    def mixture(t: int) -> Mixture:
        classes = np.arange(head.classes, dtype=np.int32)
        if rng.random() < 0.3:
            whole = tuple(int(n) for n in rng.integers(0, 10**6, head.classes))
            return Mixture(classes, rng.random(head.classes), 0.0, whole)
        return Mixture(classes, rng.random(head.classes) ** 8, float(rng.choice([0.0, 1e-3, 0.5])))

    def lie(space: Any, classes: np.ndarray, *_: Any, **__: Any) -> tuple[Proposal, ...]:
        inputs = rng.standard_normal((len(classes), 2)) * rng.choice([0.1, 1.0, 1.4, 10.0])
        beaten = [(int(t), mixture(int(t))) for t in classes for _ in range(6)]
        return Witnesses(classes, inputs), Mixtures(beaten)

    def lie_exactly(*_: Any) -> Mixture | Witness:
        if rng.random() < 0.5:
            return mixture(0)
        whole = tuple(int(n) for n in rng.integers(-100, 100, 2))
        return Witness(np.array(whole) / 70, whole, 70)

    monkeypatch.setattr(centre, "decide_batch", lie)
    monkeypatch.setattr(rows, "decide_by_rows", lambda *_: (None, None, np.empty(0, np.int64)))
    monkeypatch.setattr(exact, "decide_exactly", lie_exactly)
    monkeypatch.setattr(screen, "winners", lambda space, y: rng.integers(0, head.classes, len(y)))
    check(head)


def test_these_lies_would_falsify_verdicts_but_for_the_certifier(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    everyone = Mixture(np.arange(head.classes), np.ones(head.classes))
    monkeypatch.setattr(
        centre,
        "decide_batch",
        lambda space, classes, *_: (Mixtures([(int(t), everyone) for t in classes]),),
    )
    monkeypatch.setattr(screen, "winners", lambda space, y: np.zeros(len(y), dtype=np.int64))
    monkeypatch.setattr(Certifier, "mixtures", lambda self, classes, found: np.ones(len(found)))
    assert image_oracle.false_verdicts(audit(head, device="cpu", jobs=1), head) != {}


def test_a_mixture_is_accepted_only_where_it_beats_everywhere(head: Head) -> None:
    certifier, rng = Certifier(head), np.random.default_rng(0)
    accepted = 0
    for _ in range(300):
        t, count = int(rng.integers(head.classes)), int(rng.integers(1, 5))
        classes = rng.choice(head.classes, count, replace=False).astype(np.int32)
        mixture = Mixture(classes, rng.integers(1, 5, count).astype(np.float64))
        if certifier.mixture(t, mixture) >= 0:
            accepted += 1
            assert image_oracle.beats_everywhere(head, t, mixture)
    assert accepted >= 3


def test_a_witness_outside_the_ball_or_of_the_wrong_width_is_refused() -> None:
    domain = LayerNorm([2.0, -1.0], [0.5, 0.25])
    head = random_head(domain)
    found = audit(head, jobs=1)
    certifier = Certifier(head)
    for t in found.argmaxable.tolist():
        u = found.latent_witness(t)
        assert u is not None
        assert certifier.witnesses(np.array([t]), u[None])[0] > 0
        far = u / np.linalg.norm(u) * np.sqrt(2) * (1 + 1e-15)
        assert not certifier.witnesses(np.array([t]), far[None])[0] > 0
        whole = tuple(int(v * 10**6) for v in u)
        assert not certifier.exact_witness(t, Witness(u, (*whole, 0), 10**6)) > 0
        twice = tuple(int(v * 10**6 * 3) for v in u)
        assert not certifier.exact_witness(t, Witness(3 * u, twice, 10**6)) > 0 or (
            np.linalg.norm(3 * u) < np.sqrt(2)
        )


def test_near_ties_are_settled_exactly_not_by_luck() -> None:
    """Two classes whose logits differ by less than any float64 product can see."""
    domain = LayerNorm([1.0, 1.0, 1.0], [1e8, -1e8, 3.0])
    tiny = 2.0**-60
    head = Head(np.array([[1.0, 1.0, 0.0], [1.0, 1.0, tiny]]), domain=domain)
    found = audit(head, jobs=1)
    assert found.argmaxable.tolist() == [1]  # tiny · x₂ with x₂ = u₂ + 3 ≥ 3 − √2 > 0
    assert found.unargmaxable.tolist() == [0]
    assert image_oracle.false_verdicts(found, head) == {}


def test_the_ball_in_the_hull_reaches_no_further_than_the_rows_seen_from_u() -> None:
    rng = np.random.default_rng(0)
    gain = rng.standard_normal(6)
    head = Head(rng.standard_normal((200, 6)), domain=LayerNorm(gain))
    latent = Latent(head.domain, 6)
    bulk = Bulk.of(head, Device(), latent)
    assert bulk.transform is not None
    assert bulk.transform.shape == (5, 6)
    assert not bulk.is_full
    seen = head.rows(0, 200) * gain
    seen -= seen.mean(axis=1, keepdims=True)
    direction = seen[0] - seen.mean(axis=0)
    near = bulk.nudge(1e-3 * direction, np.zeros(6))
    assert near is not None
    assert bulk.nudge(10 * direction, np.zeros(6)) is None
    # With a mean that is not near zero in these coordinates, K need not be one to one.
    assert replace(bulk, offset=0.6).nudge(1e-9 * direction, np.zeros(6)) is None


def test_another_domain_in_the_file_makes_its_proofs_fail(tmp_path: Path) -> None:
    head = random_head(DOMAINS[0])
    found = audit(head, jobs=1)
    found.domain = LayerNorm([0.1, 5.0], [3.0, -2.0])
    found.save(tmp_path / "c.npz")
    assert not verify(Audit.load(tmp_path / "c.npz", head), head, jobs=1).ok


@pytest.mark.parametrize("change", ["gain", "missing", "kind", "text"])
def test_a_file_whose_domain_was_tampered_with_is_refused(change: str, tmp_path: Path) -> None:
    head = random_head(DOMAINS[0])
    audit(head, jobs=1).save(tmp_path / "c.npz")
    with np.load(tmp_path / "c.npz") as archive:
        members = dict(archive)
    if change == "gain":
        members["domain_gain"] = members["domain_gain"] * 2
    elif change == "missing":
        del members["domain_gain"]
    else:
        old = '"kind": "layernorm"' if change == "kind" else "of 2 features"
        new = '"kind": "rmsnorm"' if change == "kind" else "of 9 features"
        text = str(members["header"])
        assert old in text
        members["header"] = np.array(text.replace(old, new))
    np.savez(tmp_path / "t.npz", **members)
    with pytest.raises(UncorkError, match=r"t\.npz"):
        Audit.load(tmp_path / "t.npz", head)


def near_tie(seed: int) -> tuple[Head, np.ndarray]:
    """Two classes that tie at an input, but for the rounding it took to compute it from u."""
    rng = np.random.default_rng(seed)
    features = int(rng.integers(2, 5))
    u = 0.5 * rng.standard_normal(features)
    if seed % 2:
        offset = rng.standard_normal(features) * 10.0 ** rng.integers(0, 9)
        domain: Domain = LayerNorm(rng.standard_normal(features), offset)
    else:  # x is what little is left of terms that cancel
        matrix = 1e8 * rng.standard_normal((features, features))
        matrix -= np.outer(matrix @ u, u) / (u @ u) * (1 - 1e-9)
        domain = Image(Ball(10.0), matrix)
    x = domain.affine(features).image(u)
    w, v = rng.standard_normal((2, features))
    return Head(np.array([w, w + v - x * (v @ x) / (x @ x)]), domain=domain), u


def witnesses_of_near_ties(seeds: range) -> list[bool]:
    """Of the witnesses accepted: whether each wins, by as much as is claimed."""
    held = []
    for seed in seeds:
        head, u = near_tie(seed)
        margins = Certifier(head).witnesses(np.array([0, 1]), np.array([u, u]))
        for t in np.flatnonzero(margins > 0).tolist():
            lead = image_oracle.lead_at(head, t, [Fraction(v) for v in u])
            held.append(lead is not None and lead >= Fraction(float(margins[t])) > 0)
    return held


def test_a_win_smaller_than_the_rounding_of_its_input_is_decided_by_the_exact_one() -> None:
    held = witnesses_of_near_ties(range(200))
    assert len(held) > 150
    assert all(held)


@pytest.mark.parametrize("lie", ["no drift", "rounded fractions"])
def test_without_these_bounds_false_witnesses_would_pass(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lie == "no drift":
        monkeypatch.setattr(products, "_PAID", 0.0)
    else:
        monkeypatch.setattr(
            Latent,
            "forward_exactly",
            lambda self, u: [Fraction(v) for v in self.forward(np.array([u], float))[0][0]],
        )
    assert not all(witnesses_of_near_ties(range(60)))


def mixtures_of_near_ties(seeds: range) -> list[bool]:
    """Of mixtures that all but touch the edge of the domain: whether each accepted one holds."""
    held = []
    for seed in seeds:
        head, _ = near_tie(seed)
        latent = Latent(head.domain, head.features)
        ball = latent.base
        assert isinstance(ball, Ball)
        pairs = zip(*head.weight.tolist(), strict=True)
        g, s = latent.back_exactly([Fraction(a) - Fraction(b) for a, b in pairs])
        length = float(sum(v * v for v in g) * ball.square) ** 0.5
        edge = length + float(s)  # the bias at which class 1 just never loses to class 0
        for ulps in range(-3, 4):
            bias = np.array([0.0, edge + ulps * np.spacing(edge)])
            tried = head.replace(bias=bias)
            if Certifier(tried).mixture(0, Mixture(np.array([1]), np.ones(1))) >= 0:
                room = Fraction(float(bias[1])) - s
                held.append(room >= 0 and sum(v * v for v in g) * ball.square <= room * room)
    return held


def test_a_mixture_at_the_edge_of_the_domain_holds_wherever_it_is_accepted() -> None:
    held = mixtures_of_near_ties(range(80))
    assert len(held) > 80
    assert all(held)


def test_without_the_bound_on_pulling_back_false_mixtures_would_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = Latent.back

    def bold(self: Latent, rows: Any, error: Any) -> tuple[Any, Any, Any, Any]:
        g, wrong, shift, slack = honest(self, rows, error)
        return g, 0 * wrong, shift, 0 * slack

    monkeypatch.setattr(Latent, "back", bold)
    assert not all(mixtures_of_near_ties(range(80)))
