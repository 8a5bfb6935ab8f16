"""What is true of a small head on an image domain, found without uncork's own arithmetic.

Inputs are x = F(u). F is written out here once more, over fractions and over Z3's reals, and Z3
answers whether some u of the plain set puts a class first (nonlinear, but small).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import z3

from oracle import equals, exact_rows, logit
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
)

_PATIENCE = 20_000_000  # Z3's own count of its steps: the same on every machine


class Unknown(Exception):
    """Z3 gave up: the case says nothing."""


def latent_size(domain: Domain, features: int) -> int:
    if isinstance(domain, Image) and domain.matrix is not None:
        return latent_size(domain.inner, domain.matrix.shape[1])
    if isinstance(domain, Image):
        return latent_size(domain.inner, features)
    return features


def number(value: Any, like: Any) -> Any:
    """A float as a fraction, or as a number of Z3 where the unknowns are Z3's."""
    exact = Fraction(float(value))
    return exact if isinstance(like, Fraction) else z3.Q(exact.numerator, exact.denominator)


def inputs(domain: Domain, u: Sequence[Any]) -> list[Any]:
    """x = F(u), term by term."""
    if isinstance(domain, (LayerNorm, RMSNorm)):
        values = list(u)
        if isinstance(domain, LayerNorm):
            mean = sum(values[1:], values[0]) / len(values)
            values = [v - mean for v in values]
        if domain.gain is not None:
            values = [number(g, v) * v for g, v in zip(domain.gain, values, strict=True)]
        if domain.offset is not None:
            values = [v + number(c, v) for c, v in zip(domain.offset, values, strict=True)]
        return values
    if isinstance(domain, Image):
        values = inputs(domain.inner, u)
        if domain.matrix is not None:
            terms = [[number(a, v) * v for a, v in zip(row, values, strict=True)]
                     for row in domain.matrix]  # fmt: skip
            values = [sum(row[1:], row[0]) for row in terms]
        if domain.offset is not None:
            values = [v + number(c, v) for c, v in zip(domain.offset, values, strict=True)]
        return values
    return list(u)


def limits(domain: Domain, u: Sequence[Any]) -> list[Any]:
    """What u has to obey, as inequalities."""
    if isinstance(domain, Image):
        return limits(domain.inner, u)
    square = sum((v * v for v in u[1:]), u[0] * u[0])
    if isinstance(domain, (LayerNorm, RMSNorm)):
        return [square <= len(u)]
    if isinstance(domain, Ball):
        return [square <= number(domain.radius, u[0]) * number(domain.radius, u[0])]
    if isinstance(domain, Box):
        lower, upper = domain.bounds(len(u))
        return [v >= number(low, v) for v, low in zip(u, lower, strict=True) if low > -np.inf] + [
            v <= number(high, v) for v, high in zip(u, upper, strict=True) if high < np.inf
        ]
    assert isinstance(domain, Unbounded)
    return []


def first_somewhere(head: Head, t: int) -> bool:
    """Whether some u puts t, or t with its equals, strictly first."""
    rows = exact_rows(head)
    u = [z3.Real(f"u{j}") for j in range(latent_size(head.domain, head.features))]
    x = inputs(head.domain, u)
    solver = z3.Solver()
    solver.add(*limits(head.domain, u))
    for row in rows:
        if row != rows[t]:
            away = [a - b for a, b in zip(rows[t], row, strict=True)]
            lead = z3.Sum([z3.Q(a.numerator, a.denominator) * v
                           for a, v in zip(away, x, strict=False)])  # fmt: skip
            solver.add(lead + z3.Q(away[-1].numerator, away[-1].denominator) > 0)
    solver.set("rlimit", _PATIENCE)
    answer = solver.check()
    if answer == z3.unknown:
        raise Unknown
    return bool(answer == z3.sat)


def lead_at(head: Head, t: int, u: Sequence[Fraction]) -> Fraction | None:
    """z_t minus the best logit of the classes that do not equal t, exactly; None outside."""
    at = [Fraction(v) for v in u]
    if not all(limits(head.domain, at)):
        return None
    rows, x = exact_rows(head), inputs(head.domain, at)
    others = [logit(row, x) for row in rows if row != rows[t]]
    return logit(rows[t], x) - max(others) if others else Fraction(1)


def expected(head: Head) -> list[Verdict]:
    """The true verdict of every class."""
    return [
        Verdict.UNARGMAXABLE if not first_somewhere(head, t)
        else Verdict.TIED if len(equals(head, t)) > 1
        else Verdict.ARGMAXABLE
        for t in range(head.classes)
    ]  # fmt: skip


def false_verdicts(audit: Audit, head: Head) -> dict[int, str]:
    """Classes whose verdict is not true, or whose witness does not win: class → what is wrong."""
    wrong: dict[int, str] = {}
    for t in range(head.classes):
        verdict = Verdict(int(audit.proofs.verdicts[t]))
        if verdict in (Verdict.ARGMAXABLE, Verdict.TIED):
            witness = audit.proofs.witness(head, t)
            lead = None if witness is None else lead_at(head, t, witness.fractions())
            if lead is None or lead <= 0:
                wrong[t] = "its witness does not win"
            if (verdict == Verdict.TIED) != (len(equals(head, t)) > 1):
                wrong[t] = "tied or not"
        elif verdict == Verdict.UNARGMAXABLE:
            if first_somewhere(head, t):
                wrong[t] = "some input puts it first"
            if audit.mixture(t) is None:
                wrong[t] = "there is no mixture"
    return wrong


def beats_everywhere(head: Head, t: int, mixture: Mixture) -> bool:
    """Whether Σ λ_i (z_t − z_i) ≤ 0 wherever u may be, asked of Z3. No bulk, no tilt."""
    rows = exact_rows(head)
    weights = mixture.integers if mixture.integers is not None else mixture.weights.tolist()
    total = [Fraction(0)] * (head.features + 1)
    some = Fraction(0)
    for i, weight in zip(mixture.classes.tolist(), weights, strict=True):
        if rows[i] != rows[t]:
            some += Fraction(weight)
            total = [s + Fraction(weight) * (a - b)
                     for s, a, b in zip(total, rows[t], rows[i], strict=True)]  # fmt: skip
    u = [z3.Real(f"u{j}") for j in range(latent_size(head.domain, head.features))]
    x = [*inputs(head.domain, u), z3.RealVal(1)]
    solver = z3.Solver()
    solver.add(*limits(head.domain, u))
    solver.add(z3.Sum([z3.Q(a.numerator, a.denominator) * v
                       for a, v in zip(total, x, strict=True)]) > 0)  # fmt: skip
    return some > 0 and solver.check() == z3.unsat
