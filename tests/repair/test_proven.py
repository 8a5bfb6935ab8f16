"""A changed head is proven by what the certifier accepts: proposals alone count for nothing."""

from __future__ import annotations

import numpy as np
import pytest

from oracle import expected, false_verdicts
from uncork import Ball, Box, Domain, Head, LayerNorm, Verdict, audit
from uncork.auditing.backend import Backend
from uncork.repair import audit_repaired
from uncork.repair.proven import (
    audit_proposed,
    bias_type,
    certified,
    come_first,
    first_of_equals,
    replace_bias,
    witnesses_of,
)


def head_of(domain: Domain) -> Head:
    rng = np.random.default_rng(2)
    weight = rng.normal(size=(14, 3))
    weight[12], weight[13] = weight[0], 0.05  # an equal, and a row inside the hull
    return Head(weight, domain=domain)


@pytest.mark.parametrize("domain", [Box(2.0), Ball(1.0), LayerNorm(features=3)], ids=str)
def test_with_an_audits_own_witnesses_it_says_what_the_audit_says(domain: Domain) -> None:
    head = head_of(domain)
    known = audit(head, device="cpu", jobs=1)
    again = audit_repaired(head, witnesses_of(known, head), device="cpu", jobs=1)
    assert again.proven
    np.testing.assert_array_equal(again.verdicts, known.verdicts)


@pytest.mark.parametrize("inputs", ["nonsense", "nothing", "outside"])
def test_wrong_witnesses_change_no_verdict(inputs: str) -> None:
    head = head_of(Box(2.0))
    rng = np.random.default_rng(0)
    proposed = {
        "nonsense": rng.uniform(-2, 2, (14, 3)),
        "nothing": np.full((14, 3), np.nan),
        "outside": 50 * head.weight,
    }[inputs]
    result = audit_repaired(head, proposed, device="cpu", jobs=1)
    assert result.verdicts.tolist() == expected(head)
    assert not false_verdicts(result, head)


def test_only_what_is_wanted_has_to_be_decided() -> None:
    head = head_of(Box(2.0))
    wanted = np.zeros(14, dtype=bool)
    wanted[[0, 1]] = True
    known = audit(head, device="cpu", jobs=1)
    result = audit_repaired(head, witnesses_of(known, head), wanted=wanted, device="cpu", jobs=1)
    assert come_first(result.proofs.verdicts)[wanted].all()
    nothing = np.full((14, 3), np.nan)
    result = audit_repaired(head, nothing, wanted=wanted, device="cpu", jobs=1)
    assert come_first(result.proofs.verdicts)[wanted].all()


def test_one_of_equal_classes_is_proposed_for_and_all_of_them_tie() -> None:
    head = head_of(Box(2.0))
    asked: list[int] = []

    def propose(classes: np.ndarray) -> np.ndarray:
        asked.extend(classes.tolist())
        return witnesses[classes]

    witnesses = witnesses_of(audit(head, device="cpu", jobs=1), head)
    every = np.isfinite(witnesses).all(axis=1)
    recorder = certified(head, propose, every, Backend(1))
    assert 12 not in asked
    assert np.flatnonzero(~first_of_equals(recorder)).tolist() == [12]
    result = audit_proposed(head, propose, every, device="cpu", jobs=1)
    assert result.tied.tolist() == [0, 12]
    assert result.verdicts[13] == Verdict.UNARGMAXABLE


@pytest.mark.parametrize(
    ("weight", "bias", "stored"),
    [
        (np.float16, np.float32, np.float32), (np.float16, None, np.float16),
        (np.int8, None, np.float64), (np.int8, np.float32, np.float32),
        (np.float32, np.int32, np.float64),
    ],
)  # fmt: skip
def test_biases_are_stored_in_the_type_of_biases_or_else_of_weights(
    weight: type, bias: type | None, stored: type
) -> None:
    head = Head(np.eye(3, dtype=weight), None if bias is None else np.zeros(3, dtype=bias))
    assert bias_type(head) == stored
    changed = replace_bias(head, np.array([0.1, 0.2, 0.3]))
    assert changed.bias is not None
    assert changed.bias.dtype == stored
    np.testing.assert_array_equal(changed.weight, head.weight)
