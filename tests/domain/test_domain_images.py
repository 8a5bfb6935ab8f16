"""Domains that are images: what lies inside, what they are called, what is refused."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_heads import quick
from uncork import Ball, Box, Domain, Head, Image, LayerNorm, RMSNorm, Unbounded, UncorkError
from uncork.domain import parse_domain

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("zeros", [False, True], ids=["", "with zeros"])
def test_what_torch_computes_lies_in_the_domain_and_what_it_cannot_does_not(
    dtype: str, zeros: bool
) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    gain, offset = (torch.from_numpy(RNG.standard_normal(64)).to(kind) for _ in range(2))
    if zeros:
        gain[[3, 40]] = 0
    hidden = torch.from_numpy(RNG.standard_normal((50, 64)) * 7 + 2).to(kind)
    tolerance = {"float32": 1e-5, "bfloat16": 0.02, "float64": 1e-12}[dtype]
    layer = torch.nn.functional.layer_norm(hidden, (64,), gain, offset).double().numpy()
    rms = torch.nn.functional.rms_norm(hidden, (64,), gain).double().numpy()
    for domain, x in ((LayerNorm(gain, offset), layer), (RMSNorm(gain), rms)):
        assert domain.contains(x, tolerance).all()
        origin = 0.0 if domain.offset is None else domain.offset
        # A rounded offset leaves room for much where the gain beside it is small.
        outside = 2.0 if dtype == "bfloat16" else 1.2
        assert not domain.contains(origin + outside * (x - origin), tolerance).any()
        if isinstance(domain, LayerNorm) and not zeros and dtype != "bfloat16":
            moved = origin + 0.9 * (x - origin) + 0.1 * gain.double().numpy()
            assert not domain.contains(moved, tolerance).any()


def test_what_leaves_a_linear_layer_lies_in_the_image() -> None:
    matrix, offset = RNG.standard_normal((5, 9)), RNG.standard_normal(5)
    thin = RNG.standard_normal((9, 4))
    u = RNG.standard_normal((20, 9))
    u *= np.sqrt(9) * RNG.random((20, 1)) / np.linalg.norm(u, axis=1, keepdims=True)
    through = Image(RMSNorm(features=9), matrix, offset)
    assert through.contains(u @ matrix.T + offset).all()
    assert not through.contains(50 * (u @ matrix.T + offset), 1e-6).any()
    positive = np.abs(u[:, :4])
    behind_relu = Image(Box(0, np.inf), thin)
    assert behind_relu.contains(positive @ thin.T).all()
    assert not behind_relu.contains(-positive @ thin.T, 1e-6).any()
    assert not behind_relu.contains(positive @ thin.T + 1, 1e-6).any()
    assert Image(Unbounded(), thin).contains(-1e9 * positive @ thin.T).all()


@quick(200)
@given(
    u=st.lists(st.fractions(-2, 2, max_denominator=8), min_size=2, max_size=4),
    power=st.integers(-3, 3),
)
def test_without_a_tolerance_the_answer_is_exact(u: list[Fraction], power: int) -> None:
    gain = np.full(len(u), 2.0**power)
    x = np.array([float(v) * 2.0**power for v in u])
    short = sum(v * v for v in u) <= len(u)
    assert bool(RMSNorm(gain).contains(x)) == short
    assert bool(LayerNorm(gain).contains(x)) == (short and sum(u) == 0)


def test_a_gain_of_zero_leaves_exactly_the_offset() -> None:
    domain = LayerNorm([1.0, 1.0, 0.0], [0.0, 0.0, 0.5])
    x = np.array([[1.0, -1.0, 0.5], [1.0, -1.0, 0.25], [1.0, -0.5, 0.5], [1.5, 1.5, 0.5]])
    # The third: u₂ makes up for the sum at a price. The fourth: the price is too high.
    assert domain.contains(x).tolist() == [True, False, True, False]


def test_points_of_an_image_stay_in_it_where_the_solver_steps_over_a_bound() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        matrix = rng.normal(size=(5, 6)).astype(np.float32)
        u = np.where(rng.random((4, 6)) < 0.5, 0, rng.random((4, 6))).astype(np.float32)
        arrived = (u @ matrix.T).astype(np.float64)
        assert Image(Box(0, 1), matrix).contains(arrived, 1e-3).all()


def test_tolerance_is_relative_for_plain_domains_too() -> None:
    assert Box(1).contains(np.array([1.001]), 0.01)
    assert not Box(1).contains(np.array([1.001]))
    assert not Box(0, 1).contains(np.array([-1e-9]), 0.01)
    assert Ball(1).contains(np.array([1.001, 0.0]), 0.01)
    assert not Ball(1).contains(np.array([1.1, 0.0]), 0.01)


@pytest.mark.parametrize(
    ("domain", "text"),
    [
        (LayerNorm(np.ones(4), np.ones(4)), "layernorm(gain, offset) of 4 features"),
        (LayerNorm(features=4), "layernorm() of 4 features"),
        (RMSNorm(np.ones(4)), "rmsnorm(gain) of 4 features"),
        (Image(Box(0, np.inf), np.ones((4, 2))), "image(matrix, of box:0,inf) of 4 features"),
        (Image(LayerNorm(features=2), np.ones((4, 2)), np.ones(4)),
         "image(matrix, offset, of layernorm() of 2 features) of 4 features"),
    ],
)  # fmt: skip
def test_a_short_text_names_what_it_is_and_a_digest_which(domain: Domain, text: str) -> None:
    assert str(domain) == text
    assert domain.spec().startswith(f"{text}, sha256:")
    assert "4 features" in repr(Head(np.ones((2, 4)), domain=domain))
    with pytest.raises(UncorkError, match="give @FILE"):
        parse_domain(domain.spec())


def test_domains_are_equal_where_their_numbers_are() -> None:
    gain = RNG.random(3).astype(np.float32)
    assert LayerNorm(gain) == LayerNorm(gain.astype(np.float64))
    assert LayerNorm(gain).spec() == LayerNorm(gain.astype(np.float64)).spec()
    assert LayerNorm([0.0, 1.0]) == LayerNorm([-0.0, 1.0])
    assert LayerNorm(gain) != RMSNorm(gain)
    assert LayerNorm(gain) != LayerNorm(np.nextafter(gain, 2))
    assert LayerNorm(features=2) != LayerNorm(features=3)
    assert Image(Box(1), np.eye(2)) != Image(Box(2), np.eye(2))
    assert len({LayerNorm(gain), LayerNorm(gain.copy()), RMSNorm(gain)}) == 2
    narrow = ml_dtypes.bfloat16
    assert RMSNorm(gain.astype(narrow)) == RMSNorm(gain.astype(narrow).astype(np.float32))


def test_a_domain_keeps_the_numbers_it_was_given() -> None:
    gain = np.ones(2)
    domain = LayerNorm(gain)
    gain[0] = 7.0
    assert domain.gain is not None
    assert domain.gain.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="read-only"):
        domain.gain[0] = 7.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LayerNorm(), "say how many features"),
        (lambda: LayerNorm(features=0), "one or more"),
        (lambda: LayerNorm(np.ones(3), np.ones(4)), "must agree, and have 3 and 4"),
        (lambda: LayerNorm(np.ones(3), features=5), "must agree, and have 3 and 5"),
        (lambda: LayerNorm([1.0, np.nan]), "gain of layernorm is nan at 1"),
        (lambda: RMSNorm([np.inf]), "every value must be finite"),
        (lambda: RMSNorm(np.ones((2, 2))), "one number a feature"),
        (lambda: RMSNorm([1j]), "expected floats or integers"),
        (lambda: RMSNorm([2**60]), "beyond"),
        (lambda: Image("box:1"), "must be a domain"),  # type: ignore[arg-type]
        (lambda: Image(Box(1), np.ones(3)), "two dimensions"),
        (lambda: Image(LayerNorm(features=3), np.ones((2, 4))), "gives inputs of 3 features"),
        (lambda: Image(Box(1), np.ones((2, 4)), np.ones(3)), "the counts must agree"),
        (
            lambda: Head(np.ones((2, 3)), domain=LayerNorm(features=4)),
            "4 features but the head has",
        ),
        (lambda: Head(np.ones((2, 3)), domain=Image(Box(1), np.ones((2, 3)))), "head has 3"),
    ],
)
def test_a_senseless_image_is_refused(make: object, message: str) -> None:
    with pytest.raises(UncorkError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("size", [1e-24, 1.0, 1e24])
def test_whether_a_point_is_in_an_image_does_not_depend_on_the_unit(size: float) -> None:
    matrix = size * np.array(
        [[-1.083, 0.926, 0.449, 0.884, 0.367, 1.552], [-0.173, -1.429, -0.147, 1.047, 0.372, -1.04]]
    )
    domain = Image(Box(-0.3, np.inf), matrix)
    u = np.array([1e30, -0.2, 5.0, 1e30, 0.0, -0.1])
    assert domain.contains(matrix @ u)
    assert not Image(Box(0, 1), matrix).contains(matrix @ u)
