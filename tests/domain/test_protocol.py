"""What domains bring themselves agrees with what follows from their support and contains; and
nobody asks for their type."""

from __future__ import annotations

import ast
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import uncork
from uncork import Ball, Box, Domain, Unbounded
from uncork.auditing.certify.products import Device
from uncork.domain import LayerNorm
from uncork.domain.ball import NormBall
from uncork.domain.protocol import KINDS

INF = np.inf
BOXES = [
    Box(1), Box(0, INF), Box(-1, 3), Box(-INF, INF), Box(0.125, 0.125), Unbounded(),
    Box(np.array([-INF, 0.25, -2.0]), np.array([1.0, 0.75, -1.0])),
]  # fmt: skip
_MOSTLY_FINITE = [0.02, 0.2, 0.2, 0.2, 0.26, 0.1, 0.02]
SRC = Path(uncork.__file__).parent
CASES = {"Centre", "Matrix", "NormBall", "Scale", "Shift", *(c.__name__ for c in KINDS.values())}
ALLOWED = {
    "core/head.py": 1,  # Head(…, domain=x): whether x is a domain at all
    "loading/source.py": 1,  # the same of what was chosen
    # Torch code that knows boxes and balls, and says so of every other domain.
    "nn/heads/audit.py": 1,
    "nn/heads/search.py": 3,
    "nn/watch/counting.py": 1,
    "nn/watch/leads.py": 2,
}


def test_code_outside_this_room_does_not_ask_which_domain_it_has() -> None:
    names = {"Domain", *CASES}
    found: dict[str, list[str]] = {}
    for path in sorted(SRC.rglob("*.py")):
        where = path.relative_to(SRC).as_posix()
        if where.startswith("domain/"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            asked: ast.expr | None = None
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                asked = node.args[1]
            elif isinstance(node, ast.MatchClass):
                asked = node.cls
            if asked is not None:
                types = {n.id for n in ast.walk(asked) if isinstance(n, ast.Name)} & names
                types |= {n.attr for n in ast.walk(asked) if isinstance(n, ast.Attribute)} & CASES
                if types:
                    found.setdefault(where, []).append(f"line {node.lineno}: {sorted(types)}")
    more = {where: at for where, at in found.items() if len(at) > ALLOWED.get(where, 0)}
    assert not more, "give Domain or Outline a method instead"


@pytest.mark.parametrize("domain", BOXES, ids=str)
def test_fast_answers_of_a_set_are_those_that_follow_from_two_slow_ones(domain: Domain) -> None:
    rng = np.random.default_rng(0)
    x = rng.choice([-INF, -2, -1.5, -1, 0, 0.125, 0.25, 0.5, 1, 3, np.nan, 1e300], (300, 3))
    assert domain.contains(x).tolist() == Domain.contains(domain, x).tolist()
    outline, box = domain.outline(3), Domain.outline(domain, 3)
    assert (outline.lower.tolist(), outline.upper.tolist()) == (
        box.lower.tolist(),
        box.upper.tolist(),
    )
    for _ in range(300):
        r = rng.integers(-2, 3, 3) * rng.choice([0, 0.5, 1.0], 3)
        error = rng.choice([0, 0, 0.25], 3)
        fast, slow = domain.support(r, error), Domain.support(domain, r, error)
        if np.isfinite(fast.value):
            assert slow.value >= fast.value  # |x_j| pays for an error on both sides
        if not error.any():
            assert slow.value == fast.value


@pytest.mark.parametrize("domain", [*BOXES, Ball(1.5), NormBall(3)], ids=repr)
def test_supports_of_many_are_those_of_one_at_a_time(domain: Domain) -> None:
    rng = np.random.default_rng(1)
    r = rng.choice([-INF, -2, -5e-324, 0, 0.3, 1e308, np.nan], (400, 3), p=_MOSTLY_FINITE)
    error = rng.choice([0, 0, 0.25, 1e308], (400, 3))
    with np.errstate(all="ignore"):
        alone = [domain.support(a, b) for a, b in zip(r, error, strict=True)]
        slow, fast = (
            Domain.supports(domain, r, error, Device()),
            domain.supports(r, error, Device()),
        )
    for name, values in zip(("value", "size", "underflows"), zip(*alone, strict=True), strict=True):
        finite = np.isfinite(fast.value)
        assert np.array_equal(np.isposinf(fast.value), np.isposinf([a.value for a in alone]))
        for many in (slow, fast):
            found = getattr(many, name)
            assert found[finite].tolist() == np.array(values)[finite].tolist()


@pytest.mark.parametrize("domain", [*BOXES, Ball(1.5), NormBall(3)], ids=repr)
def test_what_lies_inside_on_a_device_lies_inside(domain: Domain) -> None:
    rng = np.random.default_rng(2)
    x = rng.choice([-INF, -2, -1.5, -1, 0, 0.125, 0.25, 0.5, 1, 3, np.nan, 1e300], (300, 3))
    directions = rng.standard_normal((200, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    near = directions * 1.5 * (1 + rng.integers(-20, 20, (200, 1)) * 2.0**-53)
    with np.errstate(all="ignore"):
        inside = domain.contains_on(Device(), x)
        assert inside.tolist() == domain.contains(x).tolist()
        for point in near[domain.contains_on(Device(), near)]:
            assert domain.contains_exactly([Fraction(v) for v in point.tolist()])


@pytest.mark.parametrize("domain", [Box(-1, 3), Box(0.5, 2), Ball(1.5)], ids=str)
def test_an_input_outside_is_pulled_in_and_one_inside_is_left_alone(domain: Domain) -> None:
    x = 4 * np.random.default_rng(0).standard_normal((200, 3))
    moved = Domain.pulled_in(domain, x)
    inside = domain.contains(x)
    assert inside.any() or domain == Box(0.5, 2)
    assert not inside.all()
    assert domain.contains(moved).all()
    assert (moved[inside] == x[inside]).all()


@pytest.mark.parametrize("domain", [Box(-1, 3), Box(0.5, 2), Ball(1.5)], ids=str)
def test_the_default_normal_cuts_off_what_is_clearly_outside(domain: Domain) -> None:
    x = 4 * np.random.default_rng(1).standard_normal((50, 3))
    for point in x[~domain.contains(x)]:
        normal = Domain.normal(domain, point)
        assert normal is not None
        bound = domain.support(normal, np.zeros(3)).value
        assert normal @ point > bound


def test_the_support_of_a_ball_is_exact_where_a_proof_asks() -> None:
    ball, r = Ball(2.5), [Fraction(3), Fraction(4)]
    assert ball.upper_bound_exactly(r, Fraction(-25, 2)) == 0
    assert ball.upper_bound_exactly(r, Fraction(-25, 2) + Fraction(1, 10**40)) is None
    assert ball.upper_bound_exactly([Fraction(0)], Fraction(-1)) == -1
    assert ball.upper_bound_exactly([Fraction(0)], Fraction(1)) is None


def test_sides_hold_the_set_and_a_box_is_all_of_them() -> None:
    rng = np.random.default_rng(0)
    for features in (1, 2, 7):
        gain, offset = rng.normal(size=(2, features))
        norm = LayerNorm(gain, offset)
        found = norm.sides(features)
        assert found is not None
        assert not norm.is_box
        for j in range(features):  # the farthest input: all of √d along the centred axis j
            axis = np.eye(features)[j] - 1 / features
            length = np.linalg.norm(axis)
            u = axis / length * np.sqrt(features) if length > 1e-9 else axis * 0
            for x in (gain * u + offset, gain * -u + offset):
                assert (found[0] <= x).all()
                assert (x <= found[1]).all()
                short = min(x[j] - found[0][j], found[1][j] - x[j])
                assert short < 1e-4
    box = Box(np.array([0.0, -1.0]), np.array([1.0, 2.0]))
    assert box.is_box
    sides = box.sides(2)
    assert sides is not None
    assert (sides[0] == box.lower).all()
    assert (sides[1] == box.upper).all()
    assert Ball(1.0).sides(2) is None
