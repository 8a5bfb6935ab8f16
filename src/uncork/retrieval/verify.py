"""Checking a retrieval: every proof in it once more, with no solver."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from uncork.core.items import Items
from uncork.retrieval.certify import Seen, SetCertifier
from uncork.retrieval.places import upper_bound
from uncork.retrieval.result import Retrieval, SetProof, TopSet

_CHUNK = 256
_RIVALS = 64  # at least so many are looked at, for what fractions have to settle


@dataclass
class Checked:
    """How many claims were proven again, and what was wrong with the others."""

    held: dict[str, int] = field(
        default_factory=lambda: {"possible": 0, "impossible": 0, "bounds": 0}
    )
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.failed


def verify_retrieval(
    claimed: Retrieval | str | os.PathLike[str],
    items: Items,
    *,
    tick: Callable[[int], None] | None = None,
) -> Checked:
    """Prove every verdict and every bound again, from the stored proofs and these items alone."""
    if not isinstance(claimed, Retrieval):
        claimed = Retrieval.load(claimed, items)
    checked = Checked()
    if claimed.fingerprint != items.fingerprint:
        checked.failed = dict.fromkeys(range(len(claimed.judgements)), "it is about other vectors")
        return checked
    certifier = SetCertifier(items, claimed.domain)
    for start in range(0, len(claimed.judgements), _CHUNK):
        part = range(start, min(start + _CHUNK, len(claimed.judgements)))
        with np.errstate(all="ignore"):
            seen = _looked(certifier, claimed, part)
            for q in part:
                problem = _problem(certifier, claimed, q, *seen[q])
                if problem:
                    checked.failed[q] = problem
                    continue
                if claimed.verdicts[q] != TopSet.UNDECIDED:
                    checked.held[str(TopSet(int(claimed.verdicts[q])))] += 1
                checked.held["bounds"] += 1
        if tick is not None:
            tick(len(part))
    return checked


def _looked(
    certifier: SetCertifier, claimed: Retrieval, part: range
) -> dict[int, tuple[Seen | None, Seen | None]]:
    """What is proven at the query of each verdict, and at that of each bound from below."""
    found: dict[int, tuple[Seen | None, Seen | None]] = {}
    first = [claimed.proofs[q] for q in part]
    second = [SetProof(claimed.places[q].u, claimed.places[q].exact) for q in part]
    columns = []
    for proofs in (first, second):
        looked: list[Seen | None] = [None] * len(part)
        given = [
            n for n, p in enumerate(proofs)
            if p is not None and p.u is not None and p.exact is None and p.mixtures is None
        ]  # fmt: skip
        if given:
            u = np.array([np.asarray(proofs[n].u, np.float64) for n in given])  # type: ignore[union-attr]
            relevant = [claimed.judgements.relevant[part[n]] for n in given]
            most = max(_RIVALS, claimed.k + 1)
            for n, row, ids, seen in zip(
                given, u, relevant, certifier.look(u, relevant, most), strict=True
            ):
                if seen is not None and not seen.margin > 0:
                    seen = certifier.settled(row, ids, seen)
                looked[n] = seen
        for n, p in enumerate(proofs):
            if p is not None and p.exact is not None:
                ids = claimed.judgements.relevant[part[n]]
                looked[n] = certifier.look_exactly(p.exact, ids)[0]
        columns.append(looked)
    for n, q in enumerate(part):
        found[q] = (columns[0][n], columns[1][n])
    return found


def _problem(
    certifier: SetCertifier, claimed: Retrieval, q: int, top: Seen | None, count: Seen | None
) -> str:
    relevant, place, proof = claimed.judgements.relevant[q], claimed.places[q], claimed.proofs[q]
    verdict, most = claimed.verdicts[q], min(len(relevant), claimed.k)
    if verdict == TopSet.POSSIBLE:
        if top is None or not top.margin > 0:
            return "at its query the relevant items are not on top"
        return "" if place.lower == place.upper == most else "its bounds contradict its verdict"
    if verdict == TopSet.IMPOSSIBLE:
        if proof is None or proof.mixtures is None:
            return "it has no proof"
        if certifier.conflict(relevant, [proof.mixtures]) < 1:
            return "the two mixtures do not prove that it is impossible"
    if place.lower > 0 and (count is None or count.among_first(claimed.k) < place.lower):
        return f"that {place.lower} relevant items can be among the first is not proven"
    if place.lower < 0 or upper_bound(certifier, relevant, claimed.k, place) > place.upper:
        return f"that at most {place.upper} relevant items are among the first is not proven"
    return ""
