"""The behaviour check: did a model ever put a class first that was proven never to be?

A proof is about real numbers and inputs in the domain. So each such prediction is looked at: was
the input outside the domain? Or was the class first only in the model's own rounding, where close
logits tie or change places? What is left contradicts the proof, and means a fault in uncork or in
how the model was read.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Any

import numpy as np

from uncork.activations.batch import Batch
from uncork.auditing import Audit
from uncork.auditing.certify.certifier import Certifier
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.domain import Unbounded

_ROUNDINGS = 32  # of the model's type: how far outside the domain an input may lie by rounding
_MOST_EXAMPLES = 20
_BLOCK_ROWS = 8192


class Behaviour:
    """Holds every batch of a running model against an audit. Call it with batches."""

    def __init__(
        self, audit: Audit, head: Head, unit: float, tolerance: float | None = None
    ) -> None:
        self.audit, self.head = audit, head
        self.tolerance = _ROUNDINGS * unit if tolerance is None else tolerance
        self.lost = np.zeros(head.classes, dtype=bool)
        self.lost[audit.unargmaxable] = True
        self.inputs = self.inside = self.shared = 0
        self.seen = np.zeros(head.classes, dtype=np.int64)
        self.outside: Counter[int] = Counter()  # classes put first by inputs outside the domain
        self.lost_outside: Counter[int] = Counter()
        self.rounded: Counter[int] = Counter()  # lost classes first by rounding alone
        self.contradictions: list[dict[str, Any]] = []
        self.contradicted = 0

    @cached_property
    def _certifier(self) -> Certifier:
        return Certifier(self.head, Unbounded())

    @property
    def ok(self) -> bool:
        return self.contradicted == 0

    def __call__(self, batch: Batch) -> None:
        if not len(batch.first):
            return
        x = np.asarray(batch.inputs, dtype=np.float64)
        inside = self.audit.domain.contains(x, self.tolerance)
        self.inputs += len(x)
        self.inside += int(inside.sum())
        self.shared += int(batch.shared.sum())
        np.add.at(self.seen, batch.first, 1)
        lost = self.lost[batch.first]
        self.outside.update(batch.first[~inside].tolist())
        self.lost_outside.update(batch.first[~inside & lost].tolist())
        at = np.flatnonzero(inside & lost)
        if not len(at):
            return
        # A positive margin proves that the class is first in real numbers, too.
        margins = self._certifier.witnesses(batch.first[at], x[at])
        for k, margin in zip(at.tolist(), margins.tolist(), strict=True):
            t = int(batch.first[k])
            if not margin > 0:
                self.rounded[t] += 1
                continue
            self.contradicted += 1
            if len(self.contradictions) < _MOST_EXAMPLES:
                self.contradictions.append(
                    {
                        "class": t,
                        "label": self.audit.label(t),
                        "margin": margin,
                        "inside_exactly": bool(self.audit.domain.contains(x[k : k + 1])[0]),
                        "input": x[k].tolist(),
                    }
                )

    def as_dict(self) -> dict[str, Any]:
        """The findings as plain values, for JSON."""

        def named(counts: Counter[int]) -> list[dict[str, Any]]:
            return [
                {"class": t, "label": self.audit.label(t), "times": n}
                for t, n in counts.most_common()
            ]

        return {
            "ok": self.ok,
            "inputs": self.inputs,
            "inside": self.inside,
            "outside": self.inputs - self.inside,
            "tolerance": self.tolerance,
            "classes_seen": int((self.seen > 0).sum()),
            "shared_first": self.shared,
            "unargmaxable": int(self.lost.sum()),
            "contradictions": self.contradicted,
            "contradicting": self.contradictions,
            "by_rounding": named(self.rounded),
            "unargmaxable_outside": named(self.lost_outside),
            "first_outside": named(self.outside),
        }


def check_same_head(audited: Head, running: Head, model: str) -> None:
    """Raise unless the model that runs has the very head that was audited."""
    if audited.fingerprint == running.fingerprint:
        return
    shapes = [(h.classes, h.features) for h in (audited, running)]
    if shapes[0] != shapes[1]:
        raise UncorkError(
            f"--check {model}: its head has {shapes[1][0]} classes × {shapes[1][1]} features, and "
            f"the audited one {shapes[0][0]} × {shapes[0][1]}"
        )
    same = np.array_equal(audited.offsets, running.offsets) and all(
        np.array_equal(audited.rows(k, k + _BLOCK_ROWS), running.rows(k, k + _BLOCK_ROWS))
        for k in range(0, audited.classes, _BLOCK_ROWS)
    )
    if not same:
        raise UncorkError(
            f"--check {model}: its head holds other numbers than the audited one, and a proof "
            "about one says nothing of the other"
        )
