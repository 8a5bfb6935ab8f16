"""Unfinished retrievals: where they stay until `--resume`."""

from __future__ import annotations

import contextlib
import hashlib
import json

from uncork.cli.audits.unfinished import partial_file
from uncork.cli.output import note
from uncork.core.errors import UncorkError
from uncork.core.items import Items
from uncork.domain import Domain
from uncork.retrieval.judgements import Judgements
from uncork.retrieval.result import Retrieval


class UnfinishedSets:
    """The place for an unfinished retrieval of one index, domain and k, about the same sets.

    Its name follows from these, so that the same command finds it wherever it is started, and no
    other command does. Its proofs are checked again before they count.
    """

    def __init__(self, items: Items, judgements: Judgements, domain: Domain, k: int) -> None:
        self.items = items
        digest = hashlib.sha256(f"{domain.spec()}\n{k}\n".encode())
        for name, ids in zip(judgements.queries, judgements.relevant, strict=True):
            digest.update(json.dumps(name).encode() + b"\n" + ids.astype("<i8").tobytes())
        vectors = items.fingerprint.rpartition(":")[2]
        self.path = partial_file(f"{vectors}-retrieve-{digest.hexdigest()[:24]}")
        self.saved = False  # whether the file is of this run

    def earlier(self, resume: bool, quiet: bool) -> Retrieval | None:
        """What an earlier run decided, where it is to be continued; says where there is one."""
        there = self.path.is_file()
        if resume and there:
            try:
                return Retrieval.load(self.path, self.items)
            except UncorkError as error:
                raise UncorkError(f"{error}; delete it, or leave out --resume") from None
        if resume and not quiet:
            note("there is no unfinished retrieval of these sets: starting from the beginning")
        elif there and not quiet:
            note("there is an unfinished retrieval of these sets: --resume continues it")
        return None

    def checkpoint(self, found: Retrieval) -> None:
        """Save what is decided so far, in case that this process is killed: unless a saved one got
        further, or it cannot be saved, which is said at the end."""
        if self.saved or self._further(found) is None:
            with contextlib.suppress(UncorkError, OSError):
                self._save(found)

    def keep(self, found: Retrieval, why: str) -> None:
        """Save what was decided for `--resume`, unless a saved one got further, and say so."""
        done, open_ = progress(found)
        said = f"{done:,} queries decided, {len(found.judgements) - done:,} not"
        said += f", and how many can be among the first {found.k} is open for {open_:,}"
        before = self._further(found)
        if before is not None:
            said += f"; an earlier run decided {before[0]:,} ({before[1]:,} open), and stays saved"
        else:
            try:
                self._save(found)
            except (UncorkError, OSError) as error:
                note(f"{why}; what was decided could not be saved: {error}")
                return
        note(f"{why}: {said}; the same command with --resume continues")

    def _further(self, found: Retrieval) -> tuple[int, int] | None:
        """The progress of the saved one, if that is more."""
        if not self.path.is_file():
            return None
        done, open_ = progress(found)
        with contextlib.suppress(UncorkError):  # damaged: there is nothing to save in it
            before = progress(Retrieval.load(self.path, self.items))
            return before if (before[0], -before[1]) > (done, -open_) else None
        return None

    def _save(self, found: Retrieval) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        found.save(self.path)
        self.saved = True

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def progress(found: Retrieval) -> tuple[int, int]:
    """How many queries have a verdict, and of how many the two bounds still differ."""
    open_ = sum(place.lower < place.upper for place in found.places)
    return int((found.verdicts != 0).sum()), open_
