"""Made models for the checks: small heads of which it is known what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from uncork import Box, Head, audit
from uncork.check import CHECKS, Given, Result, Subject
from uncork.check.protocol import Condition
from uncork.core.reading import Reading
from uncork.domain import Domain
from uncork.loading.contents import Contents, FoundDomain, Tensor, Vocabulary
from uncork.loading.source import Found

SQUARE = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=np.float32)  # every class wins
MIDDLE = np.array([[0.1, 0]], dtype=np.float32)  # inside the square: it never does


def circle(count: int) -> np.ndarray:
    """Rows on a circle: every class wins."""
    angles = 2 * np.pi * np.arange(count) / count
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def subject(
    weight: Any,
    bias: Any = None,
    labels: Sequence[str] | None = None,
    *,
    vocabulary: Vocabulary | None = None,
    domain: Domain | None = None,
    shown: Domain | None = None,
    given: Given | None = None,
    reading: Reading | None = None,
    stored: str = "float32",
) -> Subject:
    """What checks look at, of a head made by hand; `shown` is the domain that its source shows."""
    if vocabulary is None:
        vocabulary = Vocabulary(None if labels is None else tuple(labels), "made" * bool(labels))
    head = Head(
        weight, bias, vocabulary.labels, domain or Box(100), source="made.npz",
        reading=reading or Reading("weight"),
    )  # fmt: skip
    tensor = Tensor("weight", head.weight.shape, stored, lambda: head.weight)
    contents = Contents(Path("made.npz"), "npz", {"weight": tensor}, choose=_no_choice)
    seen = None if shown is None else FoundDomain(shown, "a layer made up for this precedes it")
    found = Found(head, contents, "weight", None, "", vocabulary, seen, "given", ())
    decided = audit(head, device="cpu", jobs=1, low_precision=True)
    return Subject(found, decided, given or Given())


def _no_choice() -> Any:
    raise AssertionError("nobody chooses here")


def result(name: str, of: Subject, **limits: Any) -> Result:
    """What came of one check."""
    (check,) = [check for check in CHECKS if check.name == name]
    allow = frozenset(limits.pop("allow", ()))
    return check.run(of, Condition(check.severity, {**check.limits, **limits}, allow))
