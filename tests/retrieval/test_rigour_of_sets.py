"""The trusted code of retrieval against fractions, from subnormal numbers to the largest."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from sets_by_z3 import possible

from uncork.core.items import Items
from uncork.domain import Box, Domain, Unbounded
from uncork.retrieval.certify import Mixtures, SetCertifier
from uncork.retrieval.questions import Question, Questions
from uncork.retrieval.scored import Scored
from uncork.retrieval.separate import whole_mixtures

SCALES = (-1070, -1000, -500, -40, 0, 40, 400, 480)


def scores(items: Items, x: np.ndarray) -> list[Fraction]:
    """Exact scores; of cosine their squares with the sign kept, which have the same order."""
    point = [Fraction(v) for v in x.tolist()]
    found = []
    for i in range(len(items)):
        row = [Fraction(v) for v in items.rows(i, i + 1)[0].tolist()]
        inner = sum((a * b for a, b in zip(row, point, strict=True)), Fraction(0))
        square = sum((v * v for v in row), Fraction(0))
        if items.metric == "euclidean":
            inner -= square / 2
        elif items.metric == "cosine" and square:
            inner = inner * abs(inner) / square
        found.append(inner)
    return found


@pytest.mark.parametrize("metric", ["inner", "euclidean", "cosine"])
def test_a_proven_margin_and_a_proven_place_are_real_at_every_scale(metric: str) -> None:
    rng = np.random.default_rng(0)
    proven = 0
    for trial in range(160):
        rows = rng.integers(-3, 4, (6, 3)) * 1.0
        rows += rng.integers(-1, 2, (6, 3)) * 2.0**-50
        exponent = SCALES[trial % len(SCALES)]
        if metric == "euclidean":
            exponent = max(-500, min(480, exponent))
        items = Items(rows * 2.0**exponent, metric)
        x = rng.integers(-3, 4, 3) * 2.0 ** float(rng.choice([-500, -30, 0, 30, 400]))
        if metric == "euclidean" and rng.random() < 0.7:
            x = rng.integers(-3, 4, 3) * 2.0**exponent
        relevant = np.sort(rng.choice(6, 2, replace=False))
        certifier = SetCertifier(items, Unbounded())
        seen = certifier.look(x[None], [relevant], 6)[0]
        if seen is None:
            continue
        exact = scores(items, x)
        others = [exact[j] for j in range(6) if j not in relevant]
        lead = min(exact[i] for i in relevant) - max(others)
        settled = certifier.settled(x, relevant, seen)
        for view in (seen, settled):
            if view.margin > 0:
                proven += 1
                assert lead > 0
            for k in (1, 2, 3):
                ahead = [sum(z >= exact[i] for z in exact) - 1 for i in relevant]
                assert view.among_first(k) <= sum(a < k for a in ahead)
        if metric != "cosine":
            assert (settled.margin > 0) == (lead > 0)
    assert proven > 10


@pytest.mark.parametrize("metric", ["inner", "euclidean"])
@pytest.mark.parametrize("domain", [Unbounded(), Box(0, np.inf), Box(0.25, 1)])
def test_mixtures_are_accepted_only_where_the_set_is_impossible(
    metric: str, domain: Domain
) -> None:
    """Weights from the search, and the same after small and large changes."""
    rng = np.random.default_rng(1)
    accepted = refused = 0
    for trial in range(24):
        rows = rng.integers(-2, 3, (6, 2)) + rng.integers(-1, 2, (6, 2)) * 2.0**-45
        items = Items(
            rows * 2.0 ** (0 if metric == "euclidean" else SCALES[trial % 8] // 2), metric
        )
        question = Question(np.sort(rng.choice(6, int(rng.integers(1, 3)), replace=False)))
        others = np.setdiff1d(np.arange(6), question.items)
        certifier = SetCertifier(items, domain)
        found = Questions(certifier).ask([question])[0]
        proofs = [found.proof] if found.proof is not None else []
        for _ in range(4):
            left, right = rng.random(len(question.items)), rng.random(len(others))
            proofs.append(whole_mixtures(question.items, left, others, right))
        if found.proof is not None:
            nudged = list(found.proof.other_weights)
            if len(nudged) > 1 and nudged[1] > 1:
                nudged[0], nudged[1] = nudged[0] + 1, nudged[1] - 1
                proofs.append(Mixtures(found.proof.relevant, found.proof.relevant_weights,
                                       found.proof.others, tuple(nudged)))  # fmt: skip
        truth = possible(items, domain, question)
        for proof in proofs:
            assert proof is not None
            if certifier.mixtures(proof) >= 0:
                accepted += 1
                assert not truth
            else:
                refused += 1
    assert accepted > 5
    assert refused > 20


@pytest.mark.parametrize("exponent", [-1070, -540, 0, 500, 1000])
def test_rows_of_cosine_are_within_their_bounds(exponent: int) -> None:
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(20, 5)) * 2.0**exponent
    rows[0, 1:] = 0.0
    rows[1] = 0.0
    taken = Scored(Items(rows, "cosine")).take(np.arange(20))
    for i in range(20):
        row = [Fraction(v) for v in rows[i].tolist()]
        square = sum((v * v for v in row), Fraction(0))
        for v, a, e in zip(row, taken.values[i].tolist(), taken.error[i].tolist(), strict=True):
            if not square:
                assert a == e == 0
                continue
            # |v|/‖w‖ lies between |a| − e and |a| + e: compared as squares
            low, high = (
                max(Fraction(0), abs(Fraction(a)) - Fraction(e)),
                abs(Fraction(a)) + Fraction(e),
            )
            assert low * low * square <= v * v <= high * high * square
            assert (v > 0) == (a > 0) or v == 0 or abs(Fraction(a)) <= Fraction(e)


def test_constants_of_distances_are_within_their_bounds() -> None:
    rng = np.random.default_rng(3)
    for exponent in (-560, -300, 0, 300, 500):
        rows = rng.normal(size=(10, 4)) * 2.0**exponent
        scored = Scored(Items(rows, "euclidean"))
        for i in range(10):
            exact = scored.exactly(i)[-1]
            assert abs(Fraction(float(scored.constants[i])) - exact) <= Fraction(
                float(scored.slack[i])
            )
