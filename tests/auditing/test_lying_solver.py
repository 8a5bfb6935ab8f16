"""Whatever solvers say, only what the certifier accepts is reported: lies cost, never falsify."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import highspy
import numpy as np
import pytest

from oracle import expected, false_verdicts
from uncork import Ball, Box, Domain, Head, Mixture, Unbounded, Verdict, Witness, audit, verify
from uncork.auditing import backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.search import centre, exact, mixtures, reference, rows, screen, tilt
from uncork.auditing.search.exact import Limit
from uncork.auditing.search.proposer import Mixtures, Proposal, Witnesses

Highs = highspy.Highs
DOMAINS = [Box(100), Unbounded(), Box(0, np.inf), Ball(5.0)]


def make_head(domain: Domain) -> Head:
    """Some classes on the hull, some inside, some on a face, two of them equal."""
    rng = np.random.default_rng(3)
    weight = np.vstack([rng.integers(-3, 4, (14, 2)), 0.1 * rng.standard_normal((4, 2))])
    bias = np.append(rng.integers(-1, 2, 14), np.zeros(4)).astype(np.float64)
    return Head(np.vstack([weight, weight[0]]), np.append(bias, bias[0]), domain=domain)


@pytest.fixture(params=DOMAINS, ids=str)
def head(request: pytest.FixtureRequest) -> Head:
    return make_head(request.param)


def noise(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def noisy_mixture(head: Head, t: int, rng: np.random.Generator) -> Mixture:
    classes = np.arange(head.classes, dtype=np.int32)
    kind = rng.integers(0, 5)
    weights = rng.standard_normal(head.classes) if kind == 0 else rng.random(head.classes)
    if kind == 1:
        weights[rng.integers(head.classes)] = np.nan
    if kind == 2:
        return Mixture(classes[:1], np.ones(1), bulk=float(rng.choice([0.0, 1e-3, np.inf, -1.0])))
    if kind == 3:
        whole = tuple(int(n) for n in rng.integers(-3, 10**9, head.classes))
        return Mixture(classes, weights, 0.0, whole)
    if kind == 4:
        return Mixture(np.array([t], dtype=np.int32), np.ones(1))
    return Mixture(classes, weights, bulk=0.5)


def noisy_witness(head: Head, rng: np.random.Generator) -> Witness:
    whole = tuple(int(n) for n in rng.integers(-100, 100, head.features))
    denominator = int(rng.integers(1, 50))
    return Witness(np.array(whole) / denominator, whole, denominator)


def check(head: Head, **options: Any) -> Any:
    found = audit(head, device="cpu", jobs=1, **options)
    assert false_verdicts(found, head) == {}
    assert verify(found, head, jobs=1).ok
    for t in found.undecided.tolist():
        assert found.proofs.reasons[t]
    return found


def test_an_honest_solver_decides_these_heads() -> None:
    for domain in DOMAINS[:3]:
        head = make_head(domain)
        assert list(check(head).verdicts) == expected(head)


def test_these_lies_would_falsify_verdicts_but_for_the_certifier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lie(space: Any, classes: np.ndarray, *_: Any, **__: Any) -> tuple[Proposal, ...]:
        everyone = Mixture(np.arange(space.head.classes), np.ones(space.head.classes))
        return (Mixtures([(int(t), everyone) for t in classes]),)

    monkeypatch.setattr(centre, "decide_batch", lie)
    monkeypatch.setattr(screen, "winners", lambda space, y: np.zeros(len(y), dtype=np.int64))
    monkeypatch.setattr(Certifier, "mixture", lambda self, t, mixture: 1.0)
    monkeypatch.setattr(Certifier, "mixtures", lambda self, classes, found: np.ones(len(found)))
    head = make_head(Box(100))
    assert false_verdicts(audit(head, device="cpu", jobs=1), head) != {}


@pytest.mark.parametrize("seed", range(3))
def test_noise_from_the_centres(head: Head, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = noise(seed)

    def lie(space: Any, classes: np.ndarray, *_: Any, **__: Any) -> tuple[Proposal, ...]:
        inputs = rng.standard_normal((len(classes), head.features)) * 10
        beaten = [(int(t), noisy_mixture(head, int(t), rng)) for t in classes for _ in range(4)]
        return Witnesses(classes, inputs), Mixtures(beaten)

    monkeypatch.setattr(centre, "decide_batch", lie)
    check(head)


def test_the_right_answers_for_the_wrong_classes(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = centre.decide_batch

    def lie(space: Any, classes: np.ndarray, *rest: Any) -> tuple[Proposal, ...]:
        won, beaten = honest(space, classes, *rest)
        swapped = zip(np.roll(beaten.classes, 1).tolist(), beaten.pairs, strict=True)
        return (
            Witnesses(np.roll(won.classes, 1), won.inputs),
            Mixtures([(t, mixture) for t, (_, mixture) in swapped]),
        )

    monkeypatch.setattr(centre, "decide_batch", lie)
    check(head)


def test_everything_called_won_and_everything_called_lost(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(space: Any, classes: np.ndarray, *_: Any, **__: Any) -> tuple[Proposal, ...]:
        nan = np.full((len(classes), head.features), np.nan)
        everyone = Mixture(np.arange(head.classes, dtype=np.int32), np.ones(head.classes))
        return Witnesses(classes, nan), Mixtures([(int(t), everyone) for t in classes])

    monkeypatch.setattr(centre, "decide_batch", lie)
    check(head)


@pytest.mark.parametrize(
    "answer",
    [
        lambda m, v: np.full_like(v, np.nan),
        lambda m, v: np.zeros_like(v),
        lambda m, v: -v,
        lambda m, v: noise(1).standard_normal(v.shape),
        lambda m, v: np.full_like(v, 1e300),
    ],
    ids=["NaN", "zero", "backwards", "noise", "huge"],
)
def test_wrong_newton_steps(
    head: Head, answer: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend.Backend, "solve", lambda self, m, v: answer(m, v))
    check(head)


@pytest.mark.parametrize("seed", range(2))
def test_wrong_duals(head: Head, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = noise(seed)
    honest = mixtures.mixtures_from_duals

    def lie(*arguments: Any, **named: Any) -> list[Mixture]:
        return [noisy_mixture(head, 0, rng) for _ in honest(*arguments, **named)]

    for module in (centre, rows):
        monkeypatch.setattr(module, "mixtures_from_duals", lie)
    check(head)


@pytest.mark.parametrize("seed", range(3))
def test_noise_from_the_tilts(head: Head, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = noise(seed)

    def lie(space: Any, classes: np.ndarray) -> list[tuple[int, Mixture]]:
        tilts = rng.standard_normal((len(classes), head.features)).astype(np.float32)
        return [
            (
                int(t),
                Mixture(
                    np.arange(seed + 1),
                    rng.random(seed + 1),
                    bulk=float(rng.choice([0.0, 0.1, 1.0])),
                    tilt=tilt,
                    peak=float(rng.choice([0.0, -5.0, np.nan])),
                ),
            )
            for t, tilt in zip(classes, tilts, strict=True)
        ]

    monkeypatch.setattr(tilt, "tilted_mixtures", lie)
    monkeypatch.setattr(tilt, "_WIDE", 0)
    check(head)


def test_screening_that_names_the_wrong_winners(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = noise()
    monkeypatch.setattr(
        screen, "winners", lambda space, y: rng.integers(0, head.classes - 1, y.shape[0])
    )
    check(head)


class LyingHighs:
    """HiGHS whose every programme is "optimal", at a solution of our choosing."""

    rng = noise()

    def __init__(self) -> None:
        self.solver = Highs()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.solver, name)

    def getModelStatus(self) -> Any:
        return highspy.HighsModelStatus.kOptimal

    def getSolution(self) -> Any:
        columns, count = self.solver.getNumCol(), self.solver.getNumRow()
        kind = self.rng.integers(0, 4)
        values = self.rng.standard_normal(columns)
        duals = self.rng.standard_normal(count)
        if kind == 0:
            values[-1] = -1.0  # "no room": proposes the noisy duals as a mixture
        elif kind == 1:
            values[:] = np.nan
        elif kind == 2:
            values[-1], duals[:] = 0.0, np.nan
        return SimpleNamespace(col_value=values.tolist(), row_dual=duals.tolist())


def only_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave every class that screening does not settle to the linear programme."""

    def nothing(space: Any, classes: np.ndarray, *_: Any, **__: Any) -> tuple[Proposal, ...]:
        return ()

    monkeypatch.setattr(centre, "decide_batch", nothing)


def test_a_linear_programme_that_is_always_optimal(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(highspy, "Highs", LyingHighs)
    only_rows(monkeypatch)
    check(head)


@pytest.mark.parametrize("seed", range(3))
def test_noise_from_the_linear_programme(
    head: Head, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = noise(seed)

    def lie(space: Any, t: int, stop: Any) -> tuple[np.ndarray, Mixture, np.ndarray]:
        x = rng.standard_normal(head.features) * 10
        return x, noisy_mixture(head, t, rng), rng.integers(0, head.classes, 3)

    monkeypatch.setattr(rows, "decide_by_rows", lie)
    only_rows(monkeypatch)
    check(head)


@pytest.mark.parametrize("seed", range(3))
def test_noise_from_exact_arithmetic(
    head: Head, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = noise(seed)

    def lie(head: Head, domain: Domain, t: int, *_: Any, **__: Any) -> Witness | Mixture:
        return noisy_witness(head, rng) if rng.random() < 0.5 else noisy_mixture(head, t, rng)

    monkeypatch.setattr(rows, "decide_by_rows", lambda *_: (None, None, np.empty(0, int)))
    monkeypatch.setattr(exact, "decide_exactly", lie)
    only_rows(monkeypatch)
    check(head)


def test_solvers_that_give_up_leave_classes_undecided_with_a_reason(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_up(*_: Any, **__: Any) -> None:
        raise Limit

    monkeypatch.setattr(rows, "decide_by_rows", lambda *_: (None, None, np.empty(0, int)))
    monkeypatch.setattr(exact, "decide_exactly", give_up)
    only_rows(monkeypatch)
    found = check(head)
    assert len(found.undecided)
    assert not (found.verdicts == Verdict.UNARGMAXABLE).any()
    assert "exact arithmetic took more than" in found.proofs.reasons[int(found.undecided[0])]


@pytest.mark.parametrize("status", ["infeasible", "noise"])
def test_the_reference_algorithms_word_is_not_a_verdict(
    status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = noise()
    answer = (-np.inf, None) if status == "infeasible" else (1.0, rng.standard_normal(2))
    monkeypatch.setattr(reference, "chebyshev", lambda head, t: answer)
    monkeypatch.setattr(reference, "braid_reflect", lambda head, t, n: (rng.random(2), 0))
    for domain in DOMAINS[:3]:
        check(make_head(domain), algorithm="reference")
