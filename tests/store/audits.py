"""Audits for the store's tests: small real ones, and large ones that were never decided."""

from __future__ import annotations

import numpy as np

import uncork
from uncork.auditing.proofs.proofs import Proofs
from uncork.auditing.result import Audit
from uncork.theory.random_heads import random_head

AWKWARD = (
    "",
    " ",
    "a\x00b",
    "\ud800",
    "\x1astart",
    "</script>",
    "\u202e",
    "\\u0041",
    "%",
    "_x" * 900,
)


def small_audit(seed: int = 0, classes: int = 40, **settings: object) -> Audit:
    head = random_head(classes, 3, seed=seed)
    labels = [AWKWARD[k] if k < len(AWKWARD) else f"word{k}" for k in range(classes)]
    return uncork.audit(head.replace(labels=labels), device="cpu", jobs=1, **settings)


def large_audit(classes: int, fingerprint: str = "sha256:large") -> Audit:
    """Verdicts made up: what it costs to store them does not depend on how they came about."""
    proofs = Proofs.empty(classes)
    proofs.verdicts[:] = 1
    proofs.verdicts[::7] = 2
    proofs.margins[:] = np.random.default_rng(0).normal(size=classes)
    labels = tuple(f"token {k}" for k in range(classes))
    return Audit(
        proofs, fingerprint, uncork.Box(100), 64, "float32", True, labels=labels, source="large",
        proven=True,
    )  # fmt: skip
