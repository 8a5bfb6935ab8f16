"""The weights behind stored audits: loaded from the files that were audited, where they still are.

Only local files are opened, by the same readers as everywhere (nothing in them is run), and only
weights with the audit's fingerprint are believed to be its own.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from uncork.audit import Audit
from uncork.audit.run import audit as decide
from uncork.domain import Domain, parse_domain
from uncork.errors import UncorkError
from uncork.head import Head
from uncork.load import Found, find
from uncork.load.hugging_face.hub_address import is_address
from uncork.load.odd_rows import OddRows, odd_rows
from uncork.random_heads import random_head
from uncork.reach.outlook import Outlook, outlook
from uncork.store import StoredAudit

_KEPT = 2  # heads in memory at once
_PROOFS = 256
_SECONDS = 20.0  # spent on one class
_MOST_DRAWN = 100_000_000  # numbers of a random head
_RANDOM = re.compile(r"random:(normal|uniform),(\d{1,9})x(\d{1,9}),seed=(\d{1,18})(,bias)?")


@dataclass
class Weights:
    """A head, the domain it was audited with (None where that is not known), its odd rows."""

    head: Head
    domain: Domain | None
    odd: OddRows


class Unavailable(Exception):
    """Why the weights of an audit are not at hand."""


class WeightsCache:
    """Loads heads and proves single classes, one at a time, and remembers the last few."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heads: OrderedDict[tuple[str, str, str], Weights | str] = OrderedDict()
        self._proofs: OrderedDict[tuple[str, str, int], Audit] = OrderedDict()
        self._outlooks: OrderedDict[tuple[str, str, int], Outlook] = OrderedDict()

    def of(self, stored: StoredAudit) -> Weights:
        """The weights of a stored audit, or `Unavailable`."""
        key = (stored.source, stored.fingerprint, stored.domain)
        with self._lock:
            if key not in self._heads:
                try:
                    self._heads[key] = _load(stored)
                except UncorkError as error:
                    self._heads[key] = str(error)
                while len(self._heads) > _KEPT:
                    self._heads.popitem(last=False)
            self._heads.move_to_end(key)
            found = self._heads[key]
        if isinstance(found, str):
            raise Unavailable(found)
        return found

    def outlook(self, stored: StoredAudit, class_id: int) -> Outlook:
        """How near the class comes to first place, from the weights, or `Unavailable`."""
        proof = self.proof(stored, class_id)
        head = self.of(stored).head.replace(domain=proof.domain)
        key = (stored.fingerprint, stored.domain, class_id)
        with self._lock:
            if key not in self._outlooks:
                self._outlooks[key] = outlook(head, proof, [class_id], device="cpu")
                while len(self._outlooks) > _PROOFS:
                    self._outlooks.popitem(last=False)
            return self._outlooks[key]

    def proof(self, stored: StoredAudit, class_id: int) -> Audit:
        """The class decided anew from the weights, or `Unavailable`."""
        weights = self.of(stored)
        if weights.domain is None:
            raise Unavailable(f"the domain {stored.domain} cannot be read back from the store")
        key = (stored.fingerprint, stored.domain, class_id)
        with self._lock:
            if key not in self._proofs:
                head = weights.head.replace(domain=weights.domain)
                self._proofs[key] = decide(
                    head, classes=[class_id], device="cpu", time_limit=_SECONDS, progress=False
                )
                while len(self._proofs) > _PROOFS:
                    self._proofs.popitem(last=False)
            return self._proofs[key]


def _load(stored: StoredAudit) -> Weights:
    source = stored.source
    found: Found | None = None
    drawn = _RANDOM.fullmatch(source)
    if drawn is not None:
        init, classes, features, seed, bias = drawn.groups()
        if int(classes) * int(features) > _MOST_DRAWN:
            raise UncorkError(f"{source} is too large to be drawn again")
        head = random_head(int(classes), int(features), init, bias is not None, int(seed))
    elif is_address(source):
        raise UncorkError(f"{source} is on the hub, and these pages fetch nothing")
    elif not source or not Path(source).exists():
        raise UncorkError(f"{source or 'the source'} is no longer there")
    else:
        found = find(source, domain="auto")
        head = found.head
    if head.fingerprint != stored.fingerprint and head.bias is not None:
        head = head.replace(bias=None)  # audited with --drop-bias, perhaps
    if head.fingerprint != stored.fingerprint:
        raise UncorkError(
            f"{source} holds other weights now, or was audited with tensors named by hand"
        )
    vocabulary = None if found is None else found.vocabulary
    return Weights(head, _domain(stored, head), odd_rows(head, vocabulary))


def _domain(stored: StoredAudit, head: Head) -> Domain | None:
    """The audit's domain: what its text says, or what the file shows, or its certificates."""
    if str(head.domain) == stored.domain:
        return head.domain
    try:
        return parse_domain(stored.domain)
    except UncorkError:
        pass
    if stored.certificates and Path(stored.certificates).is_file():
        try:
            domain = Audit.load(stored.certificates).domain
        except UncorkError:
            return None
        return domain if str(domain) == stored.domain else None
    return None
