"""Newton steps for one set: they end at the minimum, and what they propose is what is true."""

from __future__ import annotations

import numpy as np
import pytest

from uncork import Ball, Box, Head, Unbounded
from uncork.auditing.backend import Backend
from uncork.domain import Domain
from uncork.labels import LabelSets, SetVerdict, decide_sets
from uncork.labels.certify import LabelCertifier
from uncork.labels.newton import _way, propose_one
from uncork.labels.one_set import decide_one
from uncork.labels.search import Asker, LabelSearch, Proposed


def small_head(domain: Domain, bias: float | None) -> Head:
    rng = np.random.default_rng(2)
    weight = rng.normal(-0.2, 1.0, size=(25, 5))
    return Head(weight, None if bias is None else bias + rng.normal(size=25), domain=domain)


@pytest.mark.parametrize(
    ("domain", "bias"),
    [(Box(0, np.inf), -0.5), (Box(1), -1.0), (Ball(1.5), -1.0), (Unbounded(), None)],
    ids=str,
)
def test_newton_alone_decides_and_agrees_with_the_question_about_a_class(
    domain: Domain, bias: float | None
) -> None:
    head = small_head(domain, bias)
    sets = LabelSets.of_size(25, 1).joined(LabelSets.sample(25, 2, 15))
    search = LabelSearch(head, np.zeros(25), domain, Backend(1))
    certifier = LabelCertifier(head, np.zeros(25), domain)
    found = np.zeros(len(sets), dtype=np.int8)

    def settle(proposed: Proposed, signs: np.ndarray) -> np.ndarray:
        if proposed.targets is None:
            accepted = certifier.witnesses(signs, proposed.u) > 0
            found[proposed.sets[accepted]] = SetVerdict.FEASIBLE
        else:
            accepted = certifier.tilted(signs, proposed.u, proposed.targets) >= 0
            found[proposed.sets[accepted]] = SetVerdict.INFEASIBLE
        return np.asarray(accepted)

    asker = Asker(sets.signs, settle)
    decided = np.array([propose_one(search, k, asker) for k in range(len(sets))])
    assert decided.mean() > 0.9  # the rest touch their walls, or nearly
    for k in np.flatnonzero(decided)[::5].tolist():
        one = decide_one(head, certifier.offsets, sets.signs(np.array([k]))[0], domain)
        assert (found[k] == SetVerdict.FEASIBLE) == (one.u is not None)
    whole = decide_sets(head, sets, jobs=1)
    np.testing.assert_array_equal(found[decided], whole.verdicts[decided])


def test_a_step_goes_to_the_minimum_of_the_terms_that_count() -> None:
    """Where no term begins or ends, the objective is a quadratic, and one step minimises it."""
    head = Head([[1.0, 0.0], [0.0, 2.0], [-1.0, -1.0]], [-9.0, -9.0, -9.0], domain=Unbounded())
    search = LabelSearch(head, np.zeros(3), Unbounded(), Backend(1))
    held = search.sharp.held(np.ones((1, 3), dtype=np.int8))  # all on: every term counts near 0
    v = np.zeros((1, 2)) + _way(search, np.zeros((1, 2)), held, 1.0, rough=False)
    least = np.linalg.lstsq(head.weight, 1.0 - head.bias, rcond=None)[0]
    np.testing.assert_allclose(v[0], least, rtol=1e-8)
