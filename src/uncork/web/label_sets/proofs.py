"""One label set of a stored audit, proven again from the weights while somebody looks."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.domain import Domain, parse_domain
from uncork.labels import LabelAudit, LabelSets, SetVerdict, decide_sets
from uncork.labels.certify import LabelCertifier
from uncork.labels.verify import proven_margins
from uncork.report.data import cut
from uncork.web.weights import SECONDS, Unavailable, head_of

_PARTS = 24  # of a mixture
_NEAREST = 8


class LabelProofs:
    """Loads the head of one label audit at a time, and proves single sets of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._head: tuple[Any, Head | str] | None = None
        self._claimed: tuple[Any, LabelAudit] | None = None

    def of(self, stored: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        """What the weights prove of the set now; where they are not at hand, why."""
        try:
            with self._lock:
                return self._proven(stored, row)
        except (Unavailable, UncorkError) as why:
            text = "This is the verdict as stored: it was not checked against the weights."
            check = {"holds": None, "verdict": None, "margin": None, "text": text}
            return {"weights": str(why), "check": check, "mixture": None, "nearest": None}

    def _proven(self, stored: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        head = self._weights(stored)
        domain = _domain(stored, head)
        thresholds = np.broadcast_to(
            np.asarray(stored["thresholds"], dtype=np.float64), (head.classes,)
        )
        asked = _asked(head.classes, row)
        claimed = self._certificates(stored, head)
        found, own = _own(claimed, int(row["set"]), head, asked, (domain, thresholds)), True
        broken = False
        if found is None or found.verdicts[0] == SetVerdict.UNDECIDED:
            broken, own = found is not None, False
            found = decide_sets(
                head, asked, thresholds=thresholds, domain=domain, device="cpu",
                time_limit=SECONDS, keep=True,
            )  # fmt: skip
        names = _names(head, row)
        verdict, said = SetVerdict(int(found.verdicts[0])), SetVerdict[row["verdict"].upper()]
        margin = float(found.margins[0])
        unknown = SetVerdict.UNDECIDED in (said, verdict)
        return {
            "weights": "",
            "check": {
                "holds": None if unknown else said == verdict,
                "verdict": str(verdict),
                "margin": margin if np.isfinite(margin) else None,
                "text": _text(said, verdict, own, broken),
            },
            "mixture": _named(found.conflict(0, _PARTS), names) or None,
            "nearest": _named(_nearest(found, head), names) or None,
        }

    def _weights(self, stored: dict[str, Any]) -> Head:
        key = (stored["id"], stored["created"])
        if self._head is None or self._head[0] != key:
            try:
                loaded: Head | str = head_of(stored["source"], stored["fingerprint"])[0]
            except UncorkError as error:
                loaded = str(error)
            self._head = (key, loaded)
        if isinstance(self._head[1], str):
            raise Unavailable(self._head[1])
        return self._head[1]

    def _certificates(self, stored: dict[str, Any], head: Head) -> LabelAudit | None:
        path = stored["certificates"]
        if not path:
            return None
        try:
            found = Path(path).stat()
            key = (path, found.st_mtime_ns, found.st_size, head.fingerprint)
            if self._claimed is None or self._claimed[0] != key:
                self._claimed = (key, LabelAudit.load(path, head))
        except (OSError, ValueError, UncorkError):
            return None
        return self._claimed[1]


def _own(
    claimed: LabelAudit | None,
    k: int,
    head: Head,
    asked: LabelSets,
    of: tuple[Domain, np.ndarray],
) -> LabelAudit | None:
    """Set k of an audit's certificates, undecided if its proof does not hold; None where it is not
    the set that is asked about, of that domain and those thresholds."""
    if claimed is None or claimed.domain != of[0] or not np.array_equal(claimed.thresholds, of[1]):
        return None
    if not k < len(claimed.sets) or not _same(claimed.sets, k, asked):
        return None
    if claimed.verdicts[k] == SetVerdict.UNDECIDED or claimed.proofs[k] is None:
        return None
    certifier = LabelCertifier(head, of[1], of[0])
    margins = proven_margins(certifier, claimed, np.array([k]))
    feasible = claimed.verdicts[k] == SetVerdict.FEASIBLE
    holds = margins[0] > 0 if feasible else margins[0] >= 0
    verdict = claimed.verdicts[k] if holds else SetVerdict.UNDECIDED
    return LabelAudit(
        asked, np.array([verdict], dtype=np.int8), margins, head.fingerprint, of[1], of[0],
        head.features, [claimed.proofs[k]], label_names=head.labels, head=head,
    )  # fmt: skip


def _asked(labels: int, row: dict[str, Any]) -> LabelSets:
    if row["off"] is None:
        return LabelSets.of(labels, [row["labels"]])
    return LabelSets.question(labels, row["labels"], row["off"])


def _same(sets: LabelSets, k: int, asked: LabelSets) -> bool:
    return (
        bool(sets.partial[k]) == bool(asked.partial[0])
        and np.array_equal(sets.on[k], asked.on[0])
        and np.array_equal(sets.off[k], asked.off[0])
    )


def _domain(stored: dict[str, Any], head: Head) -> Domain:
    """The audit's domain: what its text says, or what the file shows; the text names the arrays of
    a domain by their digest."""
    try:
        return parse_domain(stored["domain"])
    except UncorkError:
        if head.domain.spec() == stored["domain"]:
            return head.domain
    raise Unavailable(f"the domain {stored['domain']} cannot be read back from the store")


def _names(head: Head, row: dict[str, Any]) -> dict[int, str]:
    """What is known of labels' names: from the file, and from the store for those of the set."""
    known = {} if head.labels is None else dict(enumerate(head.labels))
    for ids, names in ((row["labels"], row["names"]), (row["off"], row["off_names"])):
        known.update(zip(ids or (), names or (), strict=False))
    return known


def _named(parts: list[dict[str, Any]], names: dict[int, str]) -> list[dict[str, Any]]:
    return [
        {**part, "name": cut(names[part["label"]]) if part["label"] in names else None}
        for part in parts
    ]


def _nearest(found: LabelAudit, head: Head) -> list[dict[str, Any]]:
    """At the witness, the labels that are nearest to being on the wrong side."""
    x = found.witness(0)
    if x is None:
        return []
    signs = found.sets.signs()[0].astype(np.float64)
    logits = np.concatenate([rows @ x for _, rows in head.blocks(4096)]) + head.offsets
    leads = signs * (logits - found.thresholds)
    asked = np.flatnonzero(signs)
    order = asked[np.argsort(leads[asked], kind="stable")][:_NEAREST]
    return [{"label": int(i), "on": bool(signs[i] > 0), "lead": float(leads[i])} for i in order]


def _text(said: SetVerdict, found: SetVerdict, own: bool, broken: bool) -> str:
    """What came of proving a stored verdict from the weights, in words."""
    start = "The proof in the audit's certificates does not hold. " if broken else ""
    if found is SetVerdict.UNDECIDED:
        return f"{start}Nothing was proven from the weights within {SECONDS:g} s now."
    if said is SetVerdict.UNDECIDED:
        return f"{start}The audit left it undecided; the weights prove it {found}, just now."
    if said != found:
        return (
            f"{start}The stored verdict does not hold. The store says {said}; the weights prove "
            f"the set {found}, certified just now."
        )
    if own:
        return "The audit's own proof, certified against the weights just now."
    return f"{start}Proven anew from the weights, and certified, just now."
