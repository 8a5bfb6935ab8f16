"""What was read: one value that goes with a head, its lines for people and its keys for JSON."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import uncork
from uncork import Audit, Box, Head, UncorkError
from uncork.core.reading import Reading, doubt_lines, json_keys, reading_from

FULL = Reading(
    weight="lm_head.weight",
    bias="lm_head.bias",
    why="its name is that of an output layer",
    folded=("dequantised: int8 codes times a scale a row",),
    labels_from="tokenizer.json",
    preceded_by="LayerNorm ln_f",
    domain_from="what precedes the head",
    doubts=("nothing says whether classes are rows or columns: --transpose",),
    notes=("the logits are capped afterwards",),
)


def test_doubts_come_first_and_every_line_says_what_it_is_about() -> None:
    assert FULL.lines() == [
        "careful: nothing says whether classes are rows or columns: --transpose",
        "weight: lm_head.weight (its name is that of an output layer)",
        "bias: lm_head.bias",
        "folded in: dequantised: int8 codes times a scale a row",
        "labels from: tokenizer.json",
        "preceded by: LayerNorm ln_f",
        "domain from: what precedes the head",
        "note: the logits are capped afterwards",
    ]
    assert doubt_lines(FULL) == FULL.lines()[:1]


def test_json_has_the_same_keys_whatever_is_known() -> None:
    said = json_keys(FULL)
    assert said["weight"] == "lm_head.weight"
    assert said["bias_tensor"] == "lm_head.bias"
    assert said["preceded_by"] == "LayerNorm ln_f"
    assert said["notes"] == [*FULL.doubts, *FULL.folded, *FULL.notes]
    nothing = json_keys(None)
    assert nothing.keys() == said.keys()
    assert (nothing["weight"], nothing["bias_tensor"], nothing["preceded_by"]) == (None,) * 3
    assert nothing["notes"] == nothing["doubts"] == []


def test_a_bias_that_has_no_name_is_still_a_bias() -> None:
    unnamed = Reading("w", bias="")
    assert "bias: yes, under no name of its own" in unnamed.lines()
    assert json_keys(unnamed)["bias_tensor"] is None
    assert "bias: none" in Reading("w").lines()


@given(st.text(), st.lists(st.text(), max_size=5))
def test_whatever_a_file_holds_every_line_is_one_printable_line(
    name: str, texts: list[str]
) -> None:
    made = Reading(name, bias=name, why=name, doubts=tuple(texts), notes=tuple(texts))
    assert all(line.isprintable() for line in made.lines())
    assert reading_from(made.as_dict()) == made


def test_endless_texts_are_cut() -> None:
    made = Reading("x" * 10**6, doubts=tuple(map(str, range(10**4))))
    assert len(made.weight) == 2000
    assert len(made.doubts) == 200


@pytest.mark.parametrize(
    "damaged",
    [5, [], {}, {"weight": 3}, {"weight": "w", "notes": "text"}, {"weight": "w", "doubts": [1]},
     {"weight": "w", "why": None}],
)  # fmt: skip
def test_a_damaged_one_is_refused(damaged: object) -> None:
    with pytest.raises(UncorkError, match="damaged"):
        reading_from(damaged)


def test_what_a_later_version_adds_is_passed_over() -> None:
    assert reading_from({"weight": "w", "colour": "green"}) == Reading("w")


@pytest.fixture
def head() -> Head:
    weight = np.random.default_rng(0).normal(size=(12, 3))
    return Head(weight, np.arange(12.0), domain=Box(10), source="x.npz", reading=FULL)


def test_it_stays_with_a_head_that_changes_and_is_no_part_of_the_fingerprint(head: Head) -> None:
    assert head.replace(domain=Box(1)).reading == FULL
    assert Head(head.weight, head.bias).fingerprint == head.fingerprint
    without = head.replace(bias=None).reading
    assert without is not None
    assert without.bias is None
    assert Head(head.weight).reading is None


def test_an_audit_carries_it_and_its_certificates_too(head: Head, tmp_path: Path) -> None:
    audit = uncork.audit(head, jobs=1)
    assert audit.reading == FULL
    audit.save(tmp_path / "proofs.npz")
    loaded = Audit.load(tmp_path / "proofs.npz")
    assert loaded.reading == FULL
    assert loaded.to_dict()["doubts"] == list(FULL.doubts)
    assert uncork.verify(loaded, Head(head.weight, head.bias)).ok  # it proves nothing


def test_a_domain_given_to_the_audit_is_said_to_be_given(head: Head) -> None:
    found = uncork.audit(head, domain=Box(2), jobs=1).reading
    assert found is not None
    assert found.domain_from == "given"


def test_what_is_read_from_a_file_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "m.npz", weight=rng.normal(size=(9, 2)), bias=rng.normal(size=9))
    (tmp_path / "labels.txt").write_text("\n".join("abcdefghi"))
    head = uncork.load(tmp_path / "m.npz", labels=tmp_path / "labels.txt", domain="box:3")
    found = head.reading
    assert found is not None
    assert (found.weight, found.bias, found.domain_from) == ("weight", "bias", "given")
    assert "labels.txt" in found.labels_from
    dropped = uncork.load(tmp_path / "m.npz", drop_bias=True).reading
    assert dropped is not None
    assert dropped.bias is None
    assert dropped.notes == ("any bias was left out (--drop-bias)",)
