"""Against an earlier audit: which classes became unargmaxable since."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uncork.auditing import Audit
from uncork.core.errors import UncorkError
from uncork.core.head import Head

_MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Baseline:
    """The unargmaxable classes of an earlier audit, by number and, if it had labels, by label."""

    path: str
    classes: int
    unargmaxable: frozenset[int]
    labels: frozenset[str] | None

    def check(self, head: Head) -> None:
        """Raise if it cannot tell which classes of the head were unargmaxable then.

        A vocabulary of another size has other numbers: then only labels tell.
        """
        labelled = self.labels is not None and head.labels is not None
        if self.unargmaxable and self.classes != head.classes and not labelled:
            raise UncorkError(
                f"baseline {self.path} has {self.classes} classes and this head {head.classes}: "
                "without labels in both they cannot be compared"
            )

    def knows(self, audit: Audit, t: int) -> bool:
        """Whether class t was unargmaxable then already."""
        if self.classes == audit.classes:
            return t in self.unargmaxable
        return audit.label(t) in (self.labels or ())


def read_baseline(path: str) -> Baseline:
    """An earlier audit: a certificate file, or what --json of an audit or a check wrote."""
    file = Path(path)
    try:
        if file.exists() and not file.is_file():
            raise UncorkError(f"baseline {path} is not a regular file")
        if file.stat().st_size > _MOST_BYTES:
            raise UncorkError(f"baseline {path} is too large to be an audit")
        with file.open("rb") as opened:
            start = opened.read(2)
    except OSError as error:
        raise UncorkError(f"baseline {path} cannot be read: {error.strerror}") from None
    if start == b"PK":
        audit = Audit.load(file)
        return Baseline(path, audit.classes, frozenset(audit.unargmaxable.tolist()), None)
    try:
        content = json.loads(file.read_text("utf-8"))
        entries = content["unargmaxable"]
        ids = frozenset(int(entry["class"]) for entry in entries)
        # Without labels the JSON names a class by its number.
        named = all(entry["label"] != str(entry["class"]) for entry in entries)
        labels = frozenset(str(entry["label"]) for entry in entries) if named else None
        return Baseline(path, int(content["classes"]), ids, labels)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UncorkError(
            f"baseline {path} is not an audit: give a file that --json or --certificates wrote"
        ) from None


def failing(audit: Audit, baseline: Baseline | None) -> np.ndarray:
    """Classes the gate fails on: unargmaxable, and not known to be so from the baseline."""
    found = audit.unargmaxable
    if baseline is None:
        return found
    return np.array([t for t in found.tolist() if not baseline.knows(audit, t)], dtype=np.int64)
