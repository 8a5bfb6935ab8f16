"""What an Audit tells in Python: witnesses, mixtures, margins, who steals a place, tables."""

from __future__ import annotations

import copy
import json
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import uncork
from oracle import lead_at, lies_in
from uncork import Audit, Box, Head, Unbounded, UncorkError, Verdict


@pytest.fixture
def head() -> Head:
    """A triangle with names, a class inside it, and one that equals a corner."""
    return Head(
        [[0.0, 2.0], [-2.0, -1.0], [2.0, -1.0], [0.0, 0.5], [2.0, -1.0]],
        labels=["top", "left", "right", "inside", "right again"],
        source="triangle",
    )


@pytest.fixture
def audit(head: Head) -> Audit:
    return uncork.audit(head, device="cpu", jobs=1)


def test_verdicts_are_counted_and_listed(audit: Audit) -> None:
    assert audit.argmaxable.tolist() == [0, 1]
    assert audit.unargmaxable.tolist() == [3]
    assert audit.tied.tolist() == [2, 4]
    assert audit.undecided.tolist() == []
    assert audit.counts == {"argmaxable": 2, "unargmaxable": 1, "tied": 2, "undecided": 0}
    assert all(isinstance(verdict, Verdict) for verdict in audit.verdicts)
    assert audit.proven


def test_a_witness_puts_its_class_first_by_its_margin(head: Head, audit: Audit) -> None:
    for t in (0, 1, 2, 4):
        x = audit.witness(t)
        assert x is not None
        assert x.shape == (2,)
        assert head.domain.contains(x)
        assert lead_at(head, t, x.tolist()) >= Fraction(audit.margin(t)) > 0
    assert audit.witness(3) is None


def test_a_witness_lies_in_the_domain_even_where_its_direction_is_mostly_rounding() -> None:
    # The second feature is unbounded above and may grow until rounding fills the others.
    weight = np.array(
        [[-1e-300, 0, 1e-300, 1e-300], [1e-300, 0, -1, -1], [0, 0, 0, 0], [-1e-300, 0, -1, 1],
         [1, 1, 0, 1], [1, 0, -1, 1e-300]]
    )  # fmt: skip
    domain = Box(np.full(4, -1.0), np.array([1, np.inf, 1, np.inf]))
    head = Head(weight, [-1.0, -1.0, 0.0, 0.0, 1.0, 1.0], domain=domain)
    found = uncork.audit(head, device="cpu", jobs=1)
    for t in found.argmaxable.tolist():
        witness = found.proofs.witness(head, t)
        assert witness is not None
        assert lies_in(domain, witness.fractions())
        assert lead_at(head, t, witness.fractions()) > 0


def test_a_mixture_beats_its_class_everywhere(head: Head, audit: Audit) -> None:
    mixture = audit.mixture(3)
    assert mixture is not None
    assert 3 not in mixture.classes.tolist()
    weights = np.asarray(mixture.weights, dtype=np.float64)
    total = weights.sum() + mixture.bulk
    mean = np.asarray(head.weight).mean(axis=0)
    mixed = (weights @ head.take(mixture.classes) + mixture.bulk * mean) / total
    assert mixed == pytest.approx([0.0, 0.5], abs=1e-6)
    assert audit.margin(3) <= 0
    assert audit.mixture(0) is None


def test_an_undecided_class_has_no_margin() -> None:
    rng = np.random.default_rng(0)
    head = Head(rng.standard_normal((60, 2)))
    found = uncork.audit(head, approximate=True, patience=0, device="cpu", jobs=1)
    t = int(found.undecided[0])
    assert np.isnan(found.margin(t))
    assert found.witness(t) is None
    assert found.mixture(t) is None
    assert found.stolen_by(t) == []


def test_stolen_by_names_the_largest_shares_first(audit: Audit) -> None:
    thieves = audit.stolen_by(3)
    assert {thief["label"] for thief in thieves} <= {"top", "left", "right", "right again"}
    assert [set(thief) for thief in thieves] == [{"class", "label", "weight"}] * len(thieves)
    weights = [thief["weight"] for thief in thieves]
    assert weights == sorted(weights, reverse=True)
    assert all(0 < weight <= 1 for weight in weights)
    assert audit.stolen_by(3, top=1) == thieves[:1]
    assert audit.stolen_by(0) == []


def test_labels_name_classes_and_numbers_do_where_there_are_none(head: Head, audit: Audit) -> None:
    assert audit.label(3) == "inside"
    unnamed = uncork.audit(head.replace(labels=None), device="cpu", jobs=1)
    assert unnamed.label(3) == "3"


@pytest.mark.parametrize("t", [-1, 5, 100])
def test_a_class_that_is_not_there_is_named(audit: Audit, t: int) -> None:
    for ask in (audit.witness, audit.mixture, audit.margin, audit.stolen_by):
        with pytest.raises(UncorkError, match=f"class {t} is not one of the 5 classes"):
            ask(t)


def test_the_dictionary_is_plain_json(audit: Audit, head: Head) -> None:
    told = json.loads(json.dumps(audit.to_dict(), allow_nan=False))
    assert told["counts"] == audit.counts
    assert told["fingerprint"] == head.fingerprint
    assert (told["classes"], told["features"], told["bias"]) == (5, 2, False)
    assert told["domain"] == "box:-100,100"
    assert told["source"] == "triangle"
    assert told["proven"] is True
    assert [entry["label"] for entry in told["unargmaxable"]] == ["inside"]
    assert told["unargmaxable"][0]["slack"] >= 0
    assert told["unargmaxable"][0]["stolen_by"]
    assert [(entry["class"], entry["group"]) for entry in told["tied"]] == [
        (2, [2, 4]), (4, [2, 4]),
    ]  # fmt: skip
    assert told["undecided"] == []


def test_the_dictionary_gives_the_reason_of_what_is_undecided() -> None:
    head = Head(np.random.default_rng(0).standard_normal((60, 2)))
    found = uncork.audit(head, approximate=True, patience=0, device="cpu", jobs=1)
    told = found.to_dict()
    assert told["approximate"] is True
    assert len(told["undecided"]) == len(found.undecided)
    assert all(entry["reason"] for entry in told["undecided"])


def test_the_table_has_a_row_a_class(audit: Audit) -> None:
    table = audit.to_pandas()
    assert table["class"].tolist() == [0, 1, 2, 3, 4]
    assert table["verdict"].tolist() == [
        "argmaxable", "argmaxable", "tied", "unargmaxable", "tied",
    ]  # fmt: skip
    assert table["label"].tolist()[3] == "inside"
    assert table["margin"].tolist() == [audit.margin(t) for t in range(5)]
    assert table["stolen_by"].tolist()[3] != ""
    assert table["stolen_by"].tolist()[0] == ""


def test_the_table_of_a_part_has_the_classes_asked_for(head: Head) -> None:
    found = uncork.audit(head, classes=[3, 0], device="cpu", jobs=1)
    assert found.to_pandas()["class"].tolist() == [0, 3]


def test_a_file_without_its_head_says_what_a_formula_needs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    head = Head(rng.standard_normal((200, 4)))
    found = uncork.audit(head, device="cpu", jobs=1)
    found.save(tmp_path / "c.npz")
    alone = Audit.load(tmp_path / "c.npz")
    by_formula = np.flatnonzero(found.proofs.scales > 0)
    assert len(by_formula)
    with pytest.raises(UncorkError, match="load it together with the head"):
        alone.witness(int(by_formula[0]))
    together = Audit.load(tmp_path / "c.npz", head)
    assert together.witness(int(by_formula[0])) is not None


def test_a_witness_exact_only_as_a_fraction_is_still_given() -> None:
    least = 5e-324  # class 0 wins only between 0 and the least float
    head = Head([[0.0], [1.0], [-1.0]], [least, 0.0, least], domain=Unbounded())
    found = uncork.audit(head, device="cpu", jobs=1)
    assert found.verdicts[0] == Verdict.ARGMAXABLE
    witness = found.proofs.witness(head, 0)
    assert witness is not None
    assert witness.is_exact
    assert lead_at(head, 0, witness.fractions()) > 0


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=str)
def test_low_precision_counts_every_witness_once(dtype: type) -> None:
    rng = np.random.default_rng(0)
    head = Head(rng.standard_normal((100, 8)).astype(dtype))
    found = uncork.audit(head, device="cpu", jobs=1, low_precision=True)
    fate = found.low_precision
    assert fate is not None
    assert fate["wins"] + fate["ties"] + fate["loses"] == len(found.argmaxable)
    assert fate["wins"] >= 0.9 * len(found.argmaxable)
    assert not len(found.undecided)


def test_a_win_that_bfloat16_cannot_see_is_no_win_there() -> None:
    # Logits 256 and 256 + 2^-7·… differ by less than bfloat16's spacing of 2 at 256.
    weight = np.array([[1.0, 0.0], [1.0, 2.0**-7]]).astype(ml_dtypes.bfloat16)
    head = Head(weight, domain=Box(np.array([256.0, -1.0]), np.array([256.0, 1.0])))
    found = uncork.audit(head, device="cpu", jobs=1, low_precision=True)
    assert found.counts["argmaxable"] == 2
    fate = found.low_precision
    assert fate is not None
    assert (fate["wins"], fate["ties"] + fate["loses"]) == (0, 2)


def test_audits_are_equal_where_they_say_the_same() -> None:
    head = Head(np.random.default_rng(0).standard_normal((30, 3)))
    found = uncork.audit(head)
    assert found == copy.deepcopy(found)
    assert found == uncork.audit(head)
    assert found != uncork.audit(head, classes=[1, 2])
    assert found != uncork.audit(head.replace(domain=Box(1)))
    assert found != uncork.audit(Head(2 * head.weight))
    assert found != "an audit"
