"""Best ranks of heads of few features: exact, by going through all planes."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from uncork import Box, Head, Unbounded
from uncork.auditing.certify.certifier import Certifier
from uncork.reach.bounds.planes import can_enumerate, depth, exact_depth
from uncork.reach.bounds.rank import rank_at
from uncork.reach.certificates import (
    Certificates,
    check_certificates,
    read_certificates,
    write_certificates,
)
from uncork.reach.rank import best_rank


def by_fractions(head: Head, t: int) -> int:
    """The best rank of t, less one, in fractions alone."""
    biased = bool((head.offsets != head.offsets[0]).any())
    rows, weights = [], []
    table = np.column_stack([head.rows(0, head.classes), head.offsets])
    own = [Fraction(v) for v in table[t].tolist()]
    for row in table.tolist():
        away = [Fraction(a) - b for a, b in zip(row, own, strict=True)]
        if any(away):
            rows.append(away if biased else away[:-1])
            weights.append(1)
    if biased:
        rows.append([Fraction(0)] * head.features + [Fraction(-1)])
        weights.append(head.classes)
    return exact_depth(rows, weights)


def by_trying(head: Head, t: int, tries: int = 4000) -> int:
    """An upper bound on the same: the fewest classes ahead at any of many random inputs."""
    rng = np.random.default_rng(t)
    x = rng.normal(size=(tries, head.features)) * np.exp(rng.normal(size=(tries, 1)) * 2)
    z = x @ head.rows(0, head.classes).T + head.offsets
    return int((z >= z[:, t : t + 1]).sum(axis=1).min()) - 1


@pytest.mark.parametrize("seed", range(24))
def test_all_planes_give_what_fractions_give(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = 2 + seed % 3
    classes = int(rng.integers(features + 2, 9))
    if seed % 2:  # few different numbers: planes that coincide, and more than d − 1 at a corner
        weight = rng.integers(-2, 3, (classes, features)).astype(float)
    else:
        weight = rng.normal(size=(classes, features))
    bias = rng.integers(-1, 2, classes) * 1.0 if features < 4 and seed % 5 == 0 else None
    head = Head(weight, bias, domain=Unbounded())
    certifier = Certifier(head)
    for t in range(classes):
        equals = np.array([i for i in range(classes) if certifier.equal(i, t)])
        found = depth(certifier, t, equals)
        if found is None:  # the rows do not span all features
            continue
        assert found.least == by_fractions(head, t)
        if len(equals) == 1:
            assert found.least <= by_trying(head, t)


def test_corners_where_many_planes_meet_are_settled_in_fractions() -> None:
    """A grid: every corner has more planes than features."""
    weight = np.array(list(itertools.product((-1.0, 0.0, 1.0), repeat=3)))
    head = Head(weight, domain=Unbounded())
    certifier = Certifier(head)
    centre = 13
    found = depth(certifier, centre, np.array([centre]))
    assert found is not None
    assert found.least == 13  # of 26 others, one of each opposite pair
    corner = depth(certifier, 0, np.array([0]))
    assert corner is not None
    assert corner.least == 0


def test_whether_so_many_are_always_ahead_is_told_as_all_planes_tell_it() -> None:
    rng = np.random.default_rng(3)
    head = Head(rng.normal(size=(110, 3)).astype(np.float32), domain=Unbounded())
    certifier = Certifier(head)
    for t in range(0, 110, 5):
        exact = depth(certifier, t, np.array([t]))
        assert exact is not None
        for enough in (1, 4, 60):
            found = depth(certifier, t, np.array([t]), enough=enough)
            assert found is not None
            assert found.least == min(exact.least, enough)
    assert depth(certifier, 0, np.array([0]), stop=lambda: True) is None


@pytest.mark.parametrize("features", [2, 3, 4])
def test_best_ranks_of_few_features_are_exact(features: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(features)
    head = Head(rng.normal(size=(40, features)).astype(np.float32), domain=Box(100))
    found = best_rank(head)
    assert (found.lower == found.upper).all()
    assert found.lower.max() > 1
    certifier = Certifier(head)
    for k, t in enumerate(found.classes.tolist()):
        assert rank_at(certifier, t, found.inputs[k], np.array([t])) == found.upper[k]
    path = tmp_path / "r.npz"
    write_certificates(Certificates(head.fingerprint, head.domain, rank=found), path)
    again = read_certificates(path, head)
    assert check_certificates(again, head).ok
    assert again.rank is not None
    assert again.rank.planes.any()
    # One better, or one worse, than the planes say is refused.
    lost = int(np.flatnonzero(again.rank.planes)[0])
    again.rank.lower[lost] += 1
    again.rank.upper[lost] += 1
    assert not check_certificates(again, head).ok


def test_with_a_bias_the_length_is_one_more_feature() -> None:
    rng = np.random.default_rng(7)
    head = Head(rng.normal(size=(30, 2)), rng.normal(size=30), domain=Unbounded())
    found = best_rank(head)
    assert (found.lower == found.upper).all()
    for t in range(30):
        assert found.upper[t] - 1 <= by_trying(head, t)


def test_where_lengths_matter_or_features_are_many_planes_are_not_enough() -> None:
    rng = np.random.default_rng(0)
    assert not can_enumerate(Certifier(Head(rng.normal(size=(9, 5)))))
    assert not can_enumerate(Certifier(Head(rng.normal(size=(9, 3)), rng.normal(size=9))))
    assert not can_enumerate(Certifier(Head(rng.normal(size=(9, 3)), domain=Box(0, 1))))
    assert not can_enumerate(Certifier(Head(rng.normal(size=(5000, 4)))))
