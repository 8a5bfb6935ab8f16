"""Shipped models, decided completely: with their bias in box:100, and without any bounds at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models import DDDDOCR, DDDDOCR_INT8, MAGIKA
from uncork import Audit, Box, Head, Unbounded, audit, load, verify

LOST = 202  # of PP-OCRv4's 6,625 classes


def test_pp_ocr_v4_loses_exactly_202_classes(pp_ocr_v4: Head, pp_ocr_v4_audit: Audit) -> None:
    assert (pp_ocr_v4.classes, pp_ocr_v4.features) == (6625, 120)
    assert pp_ocr_v4.domain == Box(100)
    assert pp_ocr_v4.bias is not None
    assert pp_ocr_v4_audit.counts == {
        "argmaxable": 6625 - LOST, "unargmaxable": LOST, "tied": 0, "undecided": 0,
    }  # fmt: skip


def test_pp_ocr_v4_verifies(pp_ocr_v4: Head, pp_ocr_v4_audit: Audit) -> None:
    result = verify(pp_ocr_v4_audit, pp_ocr_v4)
    assert result.ok
    assert result.held == {"argmaxable": 6625 - LOST, "unargmaxable": LOST, "tied": 0}


def test_pp_ocr_v4_loses_the_same_classes_without_bias_and_bounds(
    pp_ocr_v4: Head, pp_ocr_v4_audit: Audit
) -> None:
    head = pp_ocr_v4.replace(bias=None, domain=Unbounded())
    found = audit(head, device="cpu")
    assert found.counts["undecided"] == 0
    assert found.unargmaxable.tolist() == pp_ocr_v4_audit.unargmaxable.tolist()
    assert verify(found, head).ok


def test_every_lost_class_of_pp_ocr_v4_names_who_takes_its_place(pp_ocr_v4_audit: Audit) -> None:
    for t in pp_ocr_v4_audit.unargmaxable.tolist():
        thieves = pp_ocr_v4_audit.stolen_by(t)
        assert thieves
        assert t not in [thief["class"] for thief in thieves]
        shares = [thief["weight"] for thief in thieves]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1 + 1e-9
        assert pp_ocr_v4_audit.margin(t) <= 0


def test_a_sample_of_witnesses_of_pp_ocr_v4_wins_in_plain_float64(
    pp_ocr_v4: Head, pp_ocr_v4_audit: Audit
) -> None:
    rng = np.random.default_rng(0)
    weight, bias = pp_ocr_v4.rows(0, 6625), pp_ocr_v4.offsets
    for t in rng.choice(pp_ocr_v4_audit.argmaxable, 50, replace=False).tolist():
        x = pp_ocr_v4_audit.witness(t)
        assert x is not None
        assert np.abs(x).max() <= 100
        logits = weight @ x + bias
        assert int(np.argmax(logits)) == t
        lead = logits[t] - np.delete(logits, t).max()
        assert lead >= pp_ocr_v4_audit.margin(t) * (1 - 1e-6) > 0


BIASED, FREE = "bias in box:100", "no bias, unbounded"


@pytest.mark.parametrize(
    ("model", "classes", "bounds"),
    [
        pytest.param(MAGIKA, 214, BIASED, id="magika"),
        pytest.param(MAGIKA, 214, FREE, id="magika unbounded"),
        pytest.param(DDDDOCR, 8210, BIASED, id="ddddocr"),
        # Each takes seconds: the file in float32 with its bias, the one in int8 without.
        pytest.param(DDDDOCR_INT8, 8210, FREE, id="ddddocr int8 unbounded"),
    ],
)
def test_every_class_is_argmaxable(model: Path, classes: int, bounds: str) -> None:
    head = load(model)
    if bounds == FREE:
        head = head.replace(bias=None, domain=Unbounded())
    else:
        assert head.bias is not None
        assert head.domain == Box(100)
    found = audit(head, device="cpu")
    assert found.counts == {
        "argmaxable": classes, "unargmaxable": 0, "tied": 0, "undecided": 0,
    }  # fmt: skip
    assert verify(found, head).ok
