"""Unfinished audits: where they stay until `--resume`."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np

from uncork.auditing import Audit
from uncork.cli.output import note
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.reading import words_of


def partial_file(name: str) -> Path:
    """Where what a command did not finish stays under that name."""
    # As XDG asks: a relative path in the variable is ignored.
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = cache if cache.is_absolute() else Path.home() / ".cache"
    return folder / "uncork" / "partial" / f"{name}.npz"


class Unfinished:
    """The place for the unfinished audit of one head on one domain, of all or some classes.

    Its name follows from the weights' fingerprint, the domain and the classes, so that the same
    command finds it wherever it is started, and no other command does. Its proofs are checked again
    before they count.
    """

    def __init__(self, head: Head, classes: np.ndarray | None = None) -> None:
        self.head = head
        domain = hashlib.sha256(head.domain.spec().encode()).hexdigest()[:12]
        weights = head.fingerprint.rpartition(":")[2]
        name = f"{weights}-{domain}"
        if classes is not None:
            name += "-" + hashlib.sha256(classes.astype("<i8").tobytes()).hexdigest()[:12]
        self.classes = classes
        self.path = partial_file(name)
        self.ranges = self.path.with_suffix(".ranges")  # finished ones of `--engine`

    def exists(self) -> bool:
        return self.path.is_file() or self.ranges.is_dir()

    def load(self) -> Audit | None:
        """What is saved of either kind; where both are, what decided more."""
        saved = [audit for audit in (self._whole(), self._of_ranges()) if audit is not None]
        return max(saved, key=decided, default=None)

    def _whole(self) -> Audit | None:
        if not self.path.is_file():
            return None
        try:
            return Audit.load(self.path, self.head)
        except UncorkError as error:
            raise UncorkError(f"{error}; delete it, or leave out --resume") from None

    def _of_ranges(self) -> Audit | None:
        if not self.ranges.is_dir():
            return None
        from uncork.workers.split import kept_ranges

        return kept_ranges(self.ranges, self.head, self.classes)

    def save(self, audit: Audit) -> int:
        """Save the audit, unless a saved one got further; how many classes that one decided."""
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
            earlier = self._whole()
        except UncorkError:  # damaged: there is nothing to save in it
            return 0
        return 0 if earlier is None else decided(earlier)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        shutil.rmtree(self.ranges, ignore_errors=True)


def decided(audit: Audit) -> int:
    """How many classes have a verdict."""
    return int((audit.proofs.verdicts != 0).sum())


def earlier_audit(unfinished: Unfinished, resume: bool, quiet: bool) -> Audit | None:
    """What an earlier run decided, where it is to be continued; says where there is something."""
    if resume:
        earlier = unfinished.load()
        if earlier is None and not quiet:
            note(
                "there is no unfinished audit of this head and domain: starting from the beginning"
            )
        return earlier
    if unfinished.exists() and not quiet:
        note("there is an unfinished audit of this head and domain: --resume continues it")
    return None


def keep(unfinished: Unfinished, audit: Audit, why: str) -> None:
    """Save what was decided for `--resume`, and say so."""
    try:
        kept = unfinished.save(audit)
    except UncorkError as error:
        note(f"{why}; what was decided could not be saved: {error}")
        return
    done = words_of(audit.reading).say(f"{decided(audit):,} classes decided")
    done += f", {len(audit.undecided):,} not"
    if kept > decided(audit):
        done += f"; an earlier run decided {kept:,}, and is the one that stays saved"
    note(f"{why}: {done}; the same command with --resume continues")
