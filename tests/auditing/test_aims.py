"""First inputs are chosen for the domain there is: where its zero lies does not matter."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import lsq_linear

import uncork
from uncork.auditing.backend import Backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.search import centre, rows
from uncork.auditing.search.aims import aims
from uncork.auditing.search.screen import winners
from uncork.auditing.search.space import Space
from uncork.domain import Image


def made_head(classes: int = 1500, features: int = 64, seed: int = 0) -> uncork.Head:
    """Rows around a shared mean with a decaying spectrum, and a bias."""
    rng = np.random.default_rng(seed)
    spectrum = (1 + np.arange(features) / 2) ** -0.75
    weight = rng.standard_normal((classes, features)) * spectrum
    weight *= rng.uniform(0.7, 1, (classes, 1))
    weight += 0.3 * rng.standard_normal(features)
    return uncork.Head(weight.astype(np.float32), 0.1 * rng.standard_normal(classes))


def test_a_box_beside_zero_is_the_box_around_zero_with_another_bias() -> None:
    head, every = made_head(), np.arange(1500)
    moved = uncork.Head(head.weight, head.offsets + head.weight.astype(float).sum(axis=1) / 2)
    beside = Space(head, uncork.Box(0, 1), Backend(1, np.float64))
    around = Space(moved, uncork.Box(0.5), Backend(1, np.float64))
    pairs = [
        (one, other)
        for one, other in zip(aims(beside), aims(around), strict=True)
        if not one.straight
    ]
    assert pairs
    for one, other in pairs:
        assert one.length == other.length
        difference = one.inputs(every) - other.inputs(every)
        np.testing.assert_allclose(difference, 0.5, atol=0.01)


def test_inputs_from_where_logits_are_most_even_win_where_straight_ones_lose() -> None:
    head = made_head()
    moved = head.replace(bias=head.offsets + head.weight.astype(float).sum(axis=1) / 2)
    space, every = Space(moved, uncork.Box(0.5), Backend(1)), np.arange(1500)
    won = {
        (aim.straight, aim.length): np.mean(
            winners(space, space.directions(aim.inputs(every))) == every
        )
        for aim in aims(space)
    }
    assert max(v for (straight, _), v in won.items() if straight) < 0.2
    assert max(v for (straight, _), v in won.items() if not straight) > 0.7


@pytest.mark.parametrize(
    "domain",
    [
        uncork.Box(0, 1),
        uncork.Box(0, 6),
        uncork.Box(0, np.inf),
        Image(
            uncork.Box(-0.278, np.inf),
            np.random.default_rng(1).standard_normal((64, 128)) / 8,
            np.random.default_rng(2).standard_normal(64),
        ),
    ],
    ids=["sigmoid", "ReLU6", "ReLU", "linear layer"],
)
def test_screening_leaves_few_classes_that_can_win(
    domain: uncork.Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []

    def note(space: Space, classes: np.ndarray, *rest: object) -> object:
        left.extend(classes.tolist())
        return original(space, classes, *rest)  # type: ignore[arg-type]

    original = centre.decide_batch
    monkeypatch.setattr(centre, "decide_batch", note)
    found = uncork.audit(made_head(), domain=domain, device="cpu")
    assert found.counts["undecided"] == 0
    assert len(set(left) & set(found.argmaxable.tolist())) <= 30


def test_a_witness_that_is_far_behind_is_refused_without_exact_arithmetic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = made_head(200, 8)
    x = np.random.default_rng(3).standard_normal((40, 8)).astype(np.float32).astype(np.float64)
    logits = x @ head.weight.astype(np.float64).T + head.offsets
    first, last = logits.argmax(axis=1), logits.argmin(axis=1)
    monkeypatch.setattr(Certifier, "_exact_margin", lambda *_: pytest.fail("not needed"))
    certifier = Certifier(head)
    assert (certifier.witnesses(first, x) > 0).all()
    assert (certifier.witnesses(last, x) <= 0).all()


def test_the_mixture_of_a_programme_leaves_a_share_to_the_mean_where_it_can() -> None:
    """An unbounded side forgives no rounding: the mean's share has to absorb it."""
    head = made_head(300, 6).replace(domain=uncork.Box(0, np.inf))
    found = uncork.audit(head, device="cpu")
    lost = found.unargmaxable
    assert len(lost) > 20
    space, certifier = Space(head, head.domain, Backend(1)), Certifier(head)
    for t in lost[:20].tolist():
        _, mixture, _ = rows.decide_by_rows(space, t)
        assert mixture is not None
        assert mixture.bulk > 0
        assert certifier.mixture(t, mixture) > 0


@pytest.mark.parametrize("domain", [uncork.Box(0, np.inf), uncork.Box(-0.5, 1)], ids=str)
def test_a_few_rounds_lead_to_the_input_of_the_box_nearest_in_the_rows_metric(
    domain: uncork.Box,
) -> None:
    head = made_head(400, 24)
    head = head.replace(weight=head.weight @ np.random.default_rng(1).standard_normal((24, 24)))
    space = Space(head, domain, Backend(1, np.float64))
    wanted = 2 * np.random.default_rng(2).standard_normal((20, 24))
    rows = head.weight.astype(float) - head.weight.astype(float).mean(axis=0)

    def missed(inputs: np.ndarray) -> np.ndarray:
        return np.linalg.norm((inputs - wanted) @ rows.T, axis=1)

    nearest = [lsq_linear(rows, rows @ x, bounds=domain.bounds(24), tol=1e-12).x for x in wanted]
    found = space.projected(wanted, 30)
    assert domain.contains(found).all()
    assert (missed(found) <= 1.02 * missed(np.array(nearest))).all()
    clipped = missed(np.clip(wanted, *domain.bounds(24)))
    least = missed(np.array(nearest))
    gained = (clipped - missed(space.projected(wanted, 4))).sum() / (clipped - least).sum()
    assert gained > 0.9
