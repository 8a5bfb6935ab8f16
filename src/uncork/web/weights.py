"""The weights behind stored audits: loaded from the files that were audited, where they still are.

Only local files are opened, by the same readers as everywhere (nothing in them is run), and only
weights with the audit's fingerprint are believed to be its own.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np

from uncork.auditing import Audit
from uncork.auditing.backend import choose_backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.certify.own_rows import alike
from uncork.auditing.certify.verify import verify_proofs
from uncork.auditing.own_rows import audit_items
from uncork.auditing.proofs.verdict import Verdict
from uncork.auditing.run import audit as decide
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.items import Items
from uncork.domain import Domain, parse_domain
from uncork.loading import Found, find
from uncork.loading.hugging_face.hub_address import is_address
from uncork.loading.odd_rows import OddRows, odd_items, odd_rows
from uncork.loading.source import open_source
from uncork.loading.vectors.items import load_items
from uncork.reach.outlooks import Outlook, outlook
from uncork.store import Store, StoredAudit
from uncork.theory.random_heads import random_head
from uncork.web.queries import is_of_domain

_KEPT = 2  # heads in memory at once
_PROOFS = 256
SECONDS = 20.0  # spent on one class
_MOST_DRAWN = 100_000_000  # numbers of a random head
_RANDOM = re.compile(r"random:(normal|uniform),(\d{1,9})x(\d{1,9}),seed=(\d{1,18})(,bias)?")


@dataclass
class Weights:
    """A head, or the items of an index under another metric; the domain it was audited with (None
    where that is not known), and its odd rows."""

    rows: Head | Items
    domain: Domain | None
    odd: OddRows

    @property
    def head(self) -> Head:
        """The head, or `Unavailable`: items under another metric are not one."""
        if isinstance(self.rows, Items):
            raise Unavailable(f"items compared by {self.rows.metric_in_words} are not a head")
        return self.rows


@dataclass
class Proof:
    """What the weights say of one class, certified: an audit of that class alone.

    `own` says whether the proof is the stored audit's own: True, it is; False, its own is in its
    certificates and does not hold, this is another; None, its own is not at hand.
    """

    audit: Audit
    own: bool | None


class Unavailable(Exception):
    """Why the weights of an audit are not at hand."""


class WeightsCache:
    """Loads heads and proves single classes, one at a time, and remembers the last few."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._heads: OrderedDict[tuple[int, datetime], Weights | str] = OrderedDict()
        self._proofs: OrderedDict[tuple[int, datetime, int], Proof] = OrderedDict()
        self._certificates: tuple[tuple[str, int, int], Audit] | None = None
        self._outlooks: OrderedDict[tuple[int, datetime, int], Outlook] = OrderedDict()

    def of(self, stored: StoredAudit) -> Weights:
        """The weights of a stored audit, or `Unavailable`."""
        key = (stored.id, stored.created)
        with self._lock:
            if key not in self._heads:
                try:
                    self._heads[key] = _load(stored, self._store)
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
        proof = self.proof(stored, class_id).audit
        head = self.of(stored).head.replace(domain=proof.domain)
        key = (stored.id, stored.created, class_id)
        with self._lock:
            if key not in self._outlooks:
                self._outlooks[key] = outlook(head, proof, [class_id], device="cpu")
                while len(self._outlooks) > _PROOFS:
                    self._outlooks.popitem(last=False)
            return self._outlooks[key]

    def proof(self, stored: StoredAudit, class_id: int) -> Proof:
        """The class certified from the weights, or `Unavailable`: by the proof in the audit's
        certificates where they are at hand, else decided anew."""
        weights = self.of(stored)
        if weights.domain is None:
            raise Unavailable(f"the domain {stored.domain} cannot be read back from the store")
        key = (stored.id, stored.created, class_id)
        with self._lock:
            if key not in self._proofs:
                self._proofs[key] = self._prove(stored, weights.rows, weights.domain, class_id)
                while len(self._proofs) > _PROOFS:
                    self._proofs.popitem(last=False)
            return self._proofs[key]

    def _prove(
        self, stored: StoredAudit, rows: Head | Items, domain: Domain, class_id: int
    ) -> Proof:
        if isinstance(rows, Items):  # by the theorem, which is all that its certificates hold
            return Proof(audit_items(rows, domain, [class_id]), None)
        head = rows.replace(domain=domain)
        own = self._own(stored, head, class_id)
        if own is not None and own.proofs.verdicts[class_id] != Verdict.UNDECIDED:
            return Proof(own, True)
        anew = decide(head, classes=[class_id], device="cpu", time_limit=SECONDS, progress=False)
        return Proof(anew, None if own is None else False)

    def _own(self, stored: StoredAudit, head: Head, class_id: int) -> Audit | None:
        """The class in the audit's certificates, undecided there if its proof does not hold."""
        audit = self._certified(stored)
        if audit is None or audit.fingerprint != head.fingerprint or audit.domain != head.domain:
            return None
        if not class_id < audit.classes == head.classes:
            return None
        if audit.proofs.verdicts[class_id] == Verdict.UNDECIDED:
            return None
        proofs = audit.proofs.copy()
        group = proofs.group_of(class_id)
        kept = {class_id} if group is None else {class_id, int(group[0])}
        others = np.setdiff1d(np.arange(audit.classes), sorted(kept))
        proofs.verdicts[others] = Verdict.UNDECIDED
        backend = choose_backend("cpu", 1)
        failed = verify_proofs(Certifier(head, head.domain, backend), proofs, backend).failed
        if class_id in failed:
            proofs.verdicts[class_id] = Verdict.UNDECIDED
        return replace(audit, proofs=proofs, head=head)

    def certificates(self, stored: StoredAudit) -> Audit | None:
        """What the audit's certificate file says, if it is there, can be read and is of this
        audit's weights and inputs. Nothing of it is checked here."""
        with self._lock:
            found = self._certified(stored)
        if found is None or found.fingerprint != stored.fingerprint:
            return None
        return found if is_of_domain(self._store, stored, found.domain) else None

    def _certified(self, stored: StoredAudit) -> Audit | None:
        """The audit's certificate file, if it is there and can be read; the last one is kept."""
        if not stored.certificates:
            return None
        try:
            found = Path(stored.certificates).stat()
        except (OSError, ValueError):
            return None
        key = (str(stored.certificates), found.st_mtime_ns, found.st_size)
        if self._certificates is None or self._certificates[0] != key:
            try:
                self._certificates = (key, Audit.load(key[0]))
            except UncorkError:
                return None
        return self._certificates[1]


def head_of(source: str, fingerprint: str) -> tuple[Head, Found | None]:
    """The head with these weights, drawn again or from the file that was audited."""
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
        contents = open_source(source)
        # An index may compare otherwise, or not say: this audit is about inner products.
        metric = None if contents.metric is None else "inner"
        found = find(source, domain="auto", metric=metric, contents=contents)
        head = found.head
    if head.fingerprint != fingerprint and head.bias is not None:
        head = head.replace(bias=None)  # audited with --drop-bias, perhaps
    if head.fingerprint != fingerprint:
        raise UncorkError(
            f"{source} holds other weights now, or was audited with tensors named by hand"
        )
    return head, found


def items_of(source: str, fingerprint: str, metric: str) -> Items:
    """The items with these vectors under that metric, from the file that was audited."""
    if is_address(source) or not source or not Path(source).exists():
        raise UncorkError(f"{source or 'the source'} is no longer there")
    items = load_items(source, metric=metric)
    if items.fingerprint != fingerprint:
        raise UncorkError(
            f"{source} holds other vectors now, or was audited with vectors named by hand"
        )
    return items


def _load(stored: StoredAudit, store: Store) -> Weights:
    if stored.metric != "inner":
        items = items_of(stored.source, stored.fingerprint, stored.metric)
        level = tuple(tuple(group.tolist()) for group in alike(items))
        odd = replace(odd_items(items), tied_rows=level)
        return Weights(items, parse_domain(stored.domain), odd)
    head, found = head_of(stored.source, stored.fingerprint)
    vocabulary = None if found is None else found.vocabulary
    return Weights(head, _domain(stored, head, store), odd_rows(head, vocabulary))


def _domain(stored: StoredAudit, head: Head, store: Store) -> Domain | None:
    """The audit's domain: what its text says, or what the file shows, or its certificates.

    The text of a domain with arrays does not say what is in them. The audit's key does.
    """
    try:
        return parse_domain(stored.domain)
    except UncorkError:
        pass
    if is_of_domain(store, stored, head.domain):
        return head.domain
    if stored.certificates and Path(stored.certificates).is_file():
        try:
            domain = Audit.load(stored.certificates).domain
        except UncorkError:
            return None
        return domain if is_of_domain(store, stored, domain) else None
    return None
