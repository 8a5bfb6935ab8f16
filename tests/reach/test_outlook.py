"""How near lost classes come, as reports show it: the numbers of reach, and a file of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uncork
from uncork import Box, Head, UncorkError
from uncork.reach.outlook import Outlook, outlook
from uncork.reach.probability.search import highest_probability
from uncork.reach.rank.search import best_rank


@pytest.fixture(scope="module")
def head() -> Head:
    turn = np.arange(12) * np.pi / 6
    ring = np.column_stack([np.cos(turn), np.sin(turn)])
    weight = np.concatenate([ring, [[0.0, 0.0], [0.9, 0.0], [0.3, 0.4]]])
    return Head(weight, np.append(np.zeros(12), [-0.01, -0.02, 0.0]), domain=Box(5.0))


@pytest.fixture(scope="module")
def found(head: Head) -> Outlook:
    return outlook(head, uncork.audit(head), jobs=1)


def test_it_holds_the_bounds_of_the_unargmaxable_classes(head: Head, found: Outlook) -> None:
    assert found.classes.tolist() == [12, 13, 14]
    p, r = highest_probability(head, found.classes, jobs=1), best_rank(head, [12, 13, 14], jobs=1)
    np.testing.assert_allclose(found.probability_lower, p.lower, rtol=1e-6)
    np.testing.assert_allclose(found.probability_upper, p.upper, rtol=1e-6)
    for t, low, high in zip([12, 13, 14], r.lower.tolist(), r.upper.tolist(), strict=True):
        known = found.of(t)
        assert known is not None
        assert (known["best_rank_lower"], known["best_rank_upper"]) == (low, high)
    assert found.of(0) is None


def test_it_comes_back_from_a_file_as_it_was(head: Head, found: Outlook, tmp_path: Path) -> None:
    needed = np.array([0.5, np.inf, 0.25])
    kept = Outlook(
        found.classes, found.probability_lower, found.probability_upper, bias_needed=needed,
        fingerprint=head.fingerprint,
    )  # fmt: skip
    for one in (found, kept):
        one.save(tmp_path / "near.json")
        back = Outlook.load(tmp_path / "near.json", head)
        assert (back.of(12), back.of(14)) == (one.of(12), one.of(14))
        assert back.fingerprint == head.fingerprint
    assert np.isnan(back.of(13)["bias_needed"])  # type: ignore[index]


def test_ranks_and_classes_are_as_asked_and_time_can_be_limited(head: Head) -> None:
    some = outlook(head, None, [3, 12], rank=False, time_limit=1e-9, jobs=1)
    assert some.classes.tolist() == [3, 12]
    assert some.best_rank_lower is None
    assert set(some.of(3) or {}) == {"probability_lower", "probability_upper"}
    assert len(outlook(head, None, [], jobs=1)) == 0
    with pytest.raises(UncorkError, match="time_limit"):
        outlook(head, None, [3], time_limit=0.0)
    with pytest.raises(UncorkError, match="audit"):
        outlook(head, None)


def test_other_weights_and_damage_are_refused(head: Head, found: Outlook, tmp_path: Path) -> None:
    path = tmp_path / "near.json"
    found.save(path)
    with pytest.raises(UncorkError, match="other weights"):
        Outlook.load(path, Head(np.eye(15)))
    plain = json.loads(path.read_text())
    damage: list[dict[str, Any]] = [
        {"classes": [12, 12, 14]}, {"classes": [12, -1, 14]}, {"classes": 3}, {"classes": None},
        {"classes": [12, True, 14]}, {"classes": [12, 13, 10**30]},
        {"probability_lower": [0.1, 0.2]}, {"probability_lower": [0.1, 0.2, "x"]},
        {"probability_upper": [0.1, 0.2, 1.5]}, {"probability_upper": [0.0, 0.2, 0.3]},
        {"best_rank_lower": [0, 1, 1]}, {"best_rank_upper": [1, 1, 1]}, {"best_rank_upper": None},
        {"fingerprint": 5}, {"kind": "a cat"}, {"version": 2},
    ]  # fmt: skip
    for change in damage:
        path.write_text(json.dumps({**plain, **change}))
        with pytest.raises(UncorkError, match=r"near\.json"):
            Outlook.load(path)
    for text in ("", "{", "[1]", "[" * 100_000, '{"classes": NaN}'):
        path.write_text(text)
        with pytest.raises(UncorkError, match="outlook"):
            Outlook.load(path)
    with pytest.raises(UncorkError, match="No such file"):
        Outlook.load(tmp_path / "nowhere.json")
