"""Unfinished audits: where they are kept until `--resume`."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from uncork.audit import Audit
from uncork.errors import UncorkError
from uncork.head import Head


class Partial:
    """The place for the unfinished audit of one head on one domain.

    Its name follows from the weights' fingerprint and the domain, so that the same command finds
    it wherever it is started. What is in it is proven anew before it counts.
    """

    def __init__(self, head: Head) -> None:
        self.head = head
        # What XDG asks for: a relative path in the variable is as good as none.
        cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = cache if cache.is_absolute() else Path.home() / ".cache"
        domain = hashlib.sha256(head.domain.spec().encode()).hexdigest()[:12]
        weights = head.fingerprint.rpartition(":")[2]
        self.path = folder / "uncork" / "partial" / f"{weights}-{domain}.npz"

    def exists(self) -> bool:
        return self.path.is_file()

    def load(self) -> Audit | None:
        if not self.exists():
            return None
        try:
            return Audit.load(self.path, self.head)
        except UncorkError as error:
            raise UncorkError(f"{error}; delete it, or leave out --resume") from None

    def save(self, audit: Audit) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            audit.save(self.path)
        except OSError as error:
            raise UncorkError(f"{self.path} cannot be written: {error.strerror}") from None

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
