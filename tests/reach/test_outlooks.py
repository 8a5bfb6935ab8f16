"""How near lost classes come, as reports show it: the numbers of reach, and a file of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uncork
from uncork import Box, Head, UncorkError
from uncork.reach import best_rank, highest_probability
from uncork.reach.first_places import first_places
from uncork.reach.outlooks import Outlook, outlook


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


def test_classes_are_asked_about_in_batches_until_time_is_up(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uncork.reach.outlooks._LIMITED", 1)
    assert outlook(head, None, [12, 13, 14], time_limit=1e-9, jobs=1).classes.tolist() == [12]
    whole = outlook(head, None, [13, 0], time_limit=1e9, jobs=1)
    assert whole.classes.tolist() == [13, 0]
    assert whole.best_rank_lower is not None
    assert whole.best_rank_lower.tolist() == [2, 1]


def test_the_domain_asked_about_is_the_audits(head: Head) -> None:
    narrow = uncork.audit(head, domain=Box(0.5))
    found = outlook(head, narrow, [12], jobs=1)
    assert found.domain == str(Box(0.5))
    wide = outlook(head, uncork.audit(head), [12], jobs=1)
    assert found.probability_lower[0] <= wide.probability_upper[0]


def test_its_summary_says_how_near_they_come(found: Outlook) -> None:
    text = found.summary()
    low, high = found.probability_lower.min(), found.probability_upper.max()
    assert f"highest probability {low:.3g} to {high:.3g}" in text
    assert found.best_rank_lower is not None
    assert f"none is ever in the top {found.best_rank_lower.min() - 1}" in text
    without = Outlook(found.classes, found.probability_lower, found.probability_upper)
    assert "rank" not in without.summary()


def test_an_outlook_of_more_classes_than_the_head_has_is_refused(head: Head) -> None:
    beyond = Outlook([99], [0.1], [0.2], fingerprint=head.fingerprint)  # type: ignore[arg-type]
    with pytest.raises(UncorkError, match="names class 99: the head has 15 classes"):
        beyond.check(head)


def test_ranks_alone_are_an_outlook_and_of_two_bounds_the_closer_one_counts(
    head: Head, found: Outlook, tmp_path: Path
) -> None:
    audit = uncork.audit(head)
    places = first_places(head, audit, [1, 3])
    alone = places.outlook(head, audit.domain)
    assert alone.probability_lower is None
    assert alone.ranks is not None
    alone.save(tmp_path / "ranks.json")
    assert Outlook.load(tmp_path / "ranks.json", head).of(12) == alone.of(12)
    assert "probability" not in alone.summary()
    assert "in the top" in alone.summary()
    wide = found.with_ranks(np.array([1, 1, 1]), np.array([15, 15, 15]))
    assert wide.of(13) == found.of(13)
    narrow = wide.with_ranks(np.array([2, 9, 2]), np.array([3, 9, 15]))
    assert narrow.best_rank_lower is not None
    assert narrow.best_rank_lower[1] == 9
    both = places.outlook(head, audit.domain, found)
    assert both.of(12)["probability_upper"] == found.of(12)["probability_upper"]  # type: ignore[index]


def test_a_file_with_one_bound_of_two_or_with_none_is_refused(
    found: Outlook, tmp_path: Path
) -> None:
    found.save(tmp_path / "near.json")
    plain = json.loads((tmp_path / "near.json").read_text())
    for gone in (["probability_lower"], ["best_rank_upper"]):
        (tmp_path / "near.json").write_text(json.dumps(plain | dict.fromkeys(gone)))
        with pytest.raises(UncorkError, match="missing"):
            Outlook.load(tmp_path / "near.json")
    every = [name for name in plain if name.startswith(("probability", "best_rank"))]
    (tmp_path / "near.json").write_text(json.dumps(plain | dict.fromkeys(every)))
    with pytest.raises(UncorkError, match="neither"):
        Outlook.load(tmp_path / "near.json")
