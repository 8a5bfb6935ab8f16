"""What is true of a small head, found without uncork: exact rational arithmetic, and Z3 for ∄ x."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import z3

from uncork import Audit, Ball, Box, Domain, Head, Verdict
from uncork.domain import Hull, Image, LayerNorm, RMSNorm, Unbounded

Row = list[Fraction]


def exact_rows(head: Head) -> list[Row]:
    """(w_i, b_i) of every class as fractions."""
    rows = np.column_stack([head.rows(0, head.classes), head.offsets])
    return [[Fraction(v) for v in row] for row in rows.tolist()]


def logit(row: Row, x: Sequence[Fraction]) -> Fraction:
    return sum((w * v for w, v in zip(row[:-1], x, strict=True)), row[-1])


def lies_in(domain: Domain, x: Sequence[Fraction]) -> bool:
    if isinstance(domain, Box):
        lower, upper = domain.bounds(len(x))
        return all(
            (low == -np.inf or Fraction(low) <= v) and (high == np.inf or v <= Fraction(high))
            for v, low, high in zip(x, lower.tolist(), upper.tolist(), strict=True)
        )
    if isinstance(domain, Ball):
        return sum(v * v for v in x) <= Fraction(domain.radius) ** 2
    return True


def lead_at(head: Head, t: int, x: Sequence[float | Fraction]) -> Fraction:
    """z_t minus the best logit of the classes that do not equal t, at x, exactly."""
    rows = exact_rows(head)
    at = [Fraction(v) for v in x]
    others = [logit(row, at) for row in rows if row != rows[t]]
    return logit(rows[t], at) - max(others) if others else Fraction(1)


def equals(head: Head, t: int) -> list[int]:
    rows = exact_rows(head)
    return [i for i in range(head.classes) if rows[i] == rows[t]]


def first_somewhere(head: Head, t: int, domain: Domain | None = None) -> bool:
    """Whether some real x of the domain puts t, or t with its equals, strictly first (Z3)."""
    domain = head.domain if domain is None else domain
    rows = exact_rows(head)
    x = [f"x{j}" for j in range(head.features)]
    claims = [
        f"(> {_sum([a - b for a, b in zip(rows[t], row, strict=True)], x)} 0.0)"
        for row in rows
        if row != rows[t]
    ]
    if isinstance(domain, Box):
        lower, upper = domain.bounds(head.features)
        for v, low, high in zip(x, lower.tolist(), upper.tolist(), strict=True):
            if low > -np.inf:
                claims.append(f"(>= {v} {_number(Fraction(low))})")
            if high < np.inf:
                claims.append(f"(<= {v} {_number(Fraction(high))})")
    elif isinstance(domain, Ball):
        squares = " ".join(f"(* {v} {v})" for v in x)
        claims.append(f"(<= (+ {squares} 0.0) {_number(Fraction(domain.radius) ** 2)})")
    # Z3 reads text faster than Python builds its terms: answers take half as long.
    solver = z3.Solver() if isinstance(domain, Ball) else z3.SimpleSolver()
    solver.from_string(
        "".join(f"(declare-const {v} Real)" for v in x)
        + "".join(f"(assert {claim})" for claim in claims)
    )
    answer = solver.check()
    assert answer != z3.unknown
    return bool(answer == z3.sat)


def real(value: Fraction | float) -> z3.RatNumRef:
    """A number for z3, exactly."""
    return z3.RealVal(str(Fraction(value)))


def inputs_of(domain: Domain, features: int) -> tuple[list[z3.ArithRef], list[z3.BoolRef]]:
    """x as terms, and what must hold for it to lie in the domain."""
    if isinstance(domain, Image) and isinstance(domain.inner, Unbounded):
        shares = [z3.Real(f"s{k}") for k in range(domain.matrix.shape[1])]
        return [_combined(row, shares) for row in domain.matrix.tolist()], []
    if isinstance(domain, Hull):
        shares = [z3.Real(f"s{k}") for k in range(len(domain.points))]
        claims = [z3.Sum(shares) == 1, *(s >= 0 for s in shares)]
        return [_combined(column, shares) for column in domain.points.T.tolist()], claims
    u = [z3.Real(f"u{j}") for j in range(features)]
    if isinstance(domain, LayerNorm | RMSNorm):
        claims = [z3.Sum([v * v for v in u]) <= features]
        gain = [1.0] * features if domain.gain is None else domain.gain.tolist()
        offset = [0.0] * features if domain.offset is None else domain.offset.tolist()
        if isinstance(domain, LayerNorm):
            claims.append(z3.Sum(u) == 0)
        return [real(g) * v + real(o) for g, v, o in zip(gain, u, offset, strict=True)], claims
    claims = []
    if isinstance(domain, Box):
        lower, upper = domain.bounds(features)
        for v, low, high in zip(u, lower.tolist(), upper.tolist(), strict=True):
            claims += [v >= real(low)] if np.isfinite(low) else []
            claims += [v <= real(high)] if np.isfinite(high) else []
    elif isinstance(domain, Ball):
        claims.append(z3.Sum([v * v for v in u]) <= real(Fraction(domain.radius) ** 2))
    else:
        assert isinstance(domain, Unbounded)
    return u, claims


def _combined(row: list[float], values: list[z3.ArithRef]) -> z3.ArithRef:
    return z3.Sum([real(a) * v for a, v in zip(row, values, strict=True)])


def mixture_lead(
    head: Head,
    t: int,
    classes: Sequence[int] | np.ndarray,
    weights: Sequence[float | int | Fraction],
    domain: Domain | None = None,
) -> Fraction | None:
    """How far Σ λ_i z_i stays ahead of Σ λ_i z_t on the domain, or None where it does not.

    Weight on t and on its equals is left out; in a ball a lead is not rational and 0 is returned.
    """
    domain = head.domain if domain is None else domain
    rows = exact_rows(head)
    residual, total = [Fraction(0)] * (head.features + 1), Fraction(0)
    for i, weight in zip(np.asarray(classes).tolist(), weights, strict=True):
        if weight < 0:
            return None
        if rows[i] != rows[t]:
            total += Fraction(weight)
            residual = [
                r + Fraction(weight) * (a - b)
                for r, a, b in zip(residual, rows[t], rows[i], strict=True)
            ]
    if total == 0:
        return None
    *r, highest = residual  # the maximum of r·x + highest is wanted
    if isinstance(domain, Ball):
        square = sum(v * v for v in r) * Fraction(domain.radius) ** 2
        return Fraction(0) if highest <= 0 and square <= highest**2 else None
    if isinstance(domain, Box):
        lower, upper = domain.bounds(head.features)
        for v, low, high in zip(r, lower.tolist(), upper.tolist(), strict=True):
            end = high if v > 0 else low
            if v != 0 and np.isinf(end):
                return None
            highest += v * Fraction(end) if v != 0 else 0
    elif any(r):
        return None
    return -highest if highest <= 0 else None


def expected(head: Head, domain: Domain | None = None) -> list[Verdict]:
    """The true verdict of every class."""
    return [
        Verdict.UNARGMAXABLE if not first_somewhere(head, t, domain)
        else Verdict.TIED if len(equals(head, t)) > 1
        else Verdict.ARGMAXABLE
        for t in range(head.classes)
    ]  # fmt: skip


def false_verdicts(audit: Audit, head: Head, domain: Domain | None = None) -> dict[int, str]:
    """Classes whose verdict is not true, or whose witness does not win: class → what is wrong.

    Witnesses are evaluated in fractions; that a class has none is asked of Z3. Undecided claims
    nothing and is never false.
    """
    domain = audit.domain if domain is None else domain
    wrong: dict[int, str] = {}
    for t, verdict in enumerate(audit.verdicts):
        alone = len(equals(head, t)) == 1
        if verdict == Verdict.UNARGMAXABLE:
            mixture = audit.proofs.mixtures.get(t)
            if mixture is not None and mixture.bulk == 0:
                weights = mixture.integers or mixture.weights.tolist()
                if mixture_lead(head, t, mixture.classes, weights, domain) is not None:
                    continue  # shown by fractions alone
            if first_somewhere(head, t, domain):
                wrong[t] = "unargmaxable, but some x puts it first"
        elif verdict in (Verdict.ARGMAXABLE, Verdict.TIED):
            if alone != (verdict == Verdict.ARGMAXABLE):
                wrong[t] = f"{verdict}, but it has {'no' if alone else 'an'} equal class"
                continue
            witness = audit.proofs.witness(head, t)
            if witness is None:
                wrong[t] = f"{verdict} without a witness"
                continue
            x = witness.fractions()
            if not lies_in(domain, x):
                wrong[t] = f"{verdict}, but its witness lies outside the domain"
            elif not lead_at(head, t, x) > 0:
                wrong[t] = f"{verdict}, but its witness does not win"
    return wrong


def _sum(row: Row, x: Sequence[str]) -> str:
    """row · (x, 1) in the language of SMT-LIB."""
    terms = [f"(* {_number(w)} {v})" for w, v in zip(row[:-1], x, strict=True)]
    return f"(+ {' '.join(terms)} {_number(row[-1])})"


def _number(value: Fraction) -> str:
    size = f"(/ {abs(value.numerator)}.0 {value.denominator}.0)"
    return size if value >= 0 else f"(- {size})"
