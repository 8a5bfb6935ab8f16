"""Ids with several vectors: what follows for them from the verdicts on each vector."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import z3

from oracle import inputs_of, real
from uncork import Box, Domain, Head, Unbounded, audit
from uncork.auditing.shared_ids import shared_ids
from uncork.domain import Hull


def first_by_any(head: Head, own: list[int]) -> bool:
    """Whether z3 finds an input at which one of these rows is above all others (not of its own)."""
    values = np.column_stack([head.rows(0, head.classes), head.offsets])
    rows = [[Fraction(v) for v in row] for row in values.tolist()]
    x, claims = inputs_of(head.domain, head.features)
    for t in own:
        solver = z3.Solver()
        solver.add(*claims)
        for i in set(range(head.classes)) - set(own):
            apart = [a - b for a, b in zip(rows[t], rows[i], strict=True)]
            terms = [real(a) * v for a, v in zip(apart, x, strict=False)]
            solver.add(z3.Sum([*terms, real(apart[-1])]) > 0)
        if solver.check() == z3.sat:
            return True
    return False


@pytest.mark.parametrize("domain", [Unbounded(), Box(1), Box(0, 2)])
@pytest.mark.parametrize("seed", range(6))
def test_an_id_is_never_found_exactly_where_z3_finds_no_query(domain: Domain, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(-2, 3, (12, 2)) / 2.0 if seed % 2 else rng.normal(size=(12, 2))
    bias = rng.integers(-1, 2, 12) / 2.0 if seed % 3 else None
    names = [f"id {k}" for k in rng.integers(0, 5, 12)]
    head = Head(rows, bias, names, domain)
    result = audit(head, progress=False)
    found = shared_ids(result)
    assert found is not None
    assert found.undecided == 0
    never = set(found.never)
    tied = {names[t] for t in result.tied.tolist()}  # level with a vector of another id, perhaps
    for name in set(names) - tied:
        own = [t for t, one in enumerate(names) if one == name]
        assert (name in never) == (not first_by_any(head, own))
    assert found.count == len(set(names))
    assert found.shared == sum(names.count(name) > 1 for name in set(names))


def test_nothing_is_said_where_each_has_its_own_id_or_the_domain_is_flat() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 2))
    assert shared_ids(audit(Head(rows, domain=Unbounded()), progress=False)) is None
    own = Head(rows, labels=[str(k) for k in range(6)], domain=Unbounded())
    assert shared_ids(audit(own, progress=False)) is None
    # On a line rows that differ may be level everywhere: what holds for each says nothing of both.
    flat = Head(rows, labels=["a", "a", "b", "c", "d", "e"], domain=Hull([[0, 0], [1, 1]]))
    assert shared_ids(audit(flat, progress=False)) is None
    thin = flat.replace(domain=Box([0, 1], [1, 1]))
    assert shared_ids(audit(thin, progress=False)) is None
