"""Unfinished audits: where they are kept until `--resume`."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

from uncork.auditing import Audit
from uncork.core.errors import UncorkError
from uncork.core.head import Head


class Partial:
    """The place for the unfinished audit of one head on one domain, of all or some classes.

    Its name follows from the weights' fingerprint, the domain and the classes, so that the same
    command finds it wherever it is started, and no other. What is in it is proven anew before it
    counts.
    """

    def __init__(self, head: Head, classes: np.ndarray | None = None) -> None:
        self.head = head
        # What XDG asks for: a relative path in the variable is as good as none.
        cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = cache if cache.is_absolute() else Path.home() / ".cache"
        domain = hashlib.sha256(head.domain.spec().encode()).hexdigest()[:12]
        weights = head.fingerprint.rpartition(":")[2]
        name = f"{weights}-{domain}"
        if classes is not None:
            name += "-" + hashlib.sha256(classes.astype("<i8").tobytes()).hexdigest()[:12]
        self.path = folder / "uncork" / "partial" / f"{name}.npz"

    def exists(self) -> bool:
        return self.path.is_file()

    def load(self) -> Audit | None:
        if not self.exists():
            return None
        try:
            return Audit.load(self.path, self.head)
        except UncorkError as error:
            raise UncorkError(f"{error}; delete it, or leave out --resume") from None

    def save(self, audit: Audit) -> int:
        """Keep the audit, unless one that got further is kept already; how many that decided."""
        further = self._decided_before()
        if further > decided(audit):
            return further
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            audit.save(self.path)
        except OSError as error:
            raise UncorkError(f"{self.path} cannot be written: {error.strerror}") from None
        return decided(audit)

    def _decided_before(self) -> int:
        try:
            earlier = self.load()
        except UncorkError:  # damaged: nothing is lost with it
            return 0
        return 0 if earlier is None else decided(earlier)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def decided(audit: Audit) -> int:
    """How many classes have a verdict."""
    return int((audit.proofs.verdicts != 0).sum())
