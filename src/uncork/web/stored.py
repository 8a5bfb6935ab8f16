"""A stored audit as a report shows it, and one class with all that can be said of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from uncork.auditing import Audit
from uncork.auditing.proofs.verdict import Verdict
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.items import Items
from uncork.core.reading import json_keys
from uncork.domain import Domain, parse_domain
from uncork.reach.outlooks import Outlook
from uncork.report.neighbours import nearest_rows, next_items, row_norms, runners_up
from uncork.report.rows import Shown, ShownMixture, Summary, base_name
from uncork.report.wording import answer, checking_commands, on_the_command_line
from uncork.store import Store, StoredAudit
from uncork.web.queries import (
    class_with_label,
    every_class,
    labels_of,
    one_class,
    same_name,
    unreached_classes,
)
from uncork.web.weights import SECONDS, Unavailable, Weights, WeightsCache

_PARTS = 24  # of a mixture, in the answer about one class
_NEAREST = 8
_HISTORY = 200
_UNKNOWN = Verdict.UNDECIDED
# What two audits can differ in, about one class; and that both lose it.
DIFFERENCES = ("lost", "regained", "other", "added", "removed", "both")
_COUNTS = ("argmaxable", "unargmaxable", "tied", "undecided")


def shown_stored(store: Store, audit: StoredAudit, cache: WeightsCache) -> Shown:
    """The report of a stored audit; with norms and odd rows where the weights are at hand."""
    rows = [tuple(row) for row in every_class(store, audit.id)]
    classes = np.array([row[0] for row in rows], dtype=np.int64)
    labels = {row[0]: row[3] for row in rows if row[3] is not None}
    mixtures: dict[int, ShownMixture] = {}
    reasons: dict[int, str] = {}
    for t, parts, reason in unreached_classes(store, audit.id):
        if parts:
            mixtures[t] = ShownMixture([(int(i), float(share)) for i, share in parts])
        if reason:
            reasons[t] = reason
    weights: Weights | None
    try:
        weights = cache.of(audit)
    except Unavailable:
        weights = None
    if weights is not None and weights.rows.labels is not None and labels:
        labels = {**dict(enumerate(weights.rows.labels)), **labels}
    return Shown(
        **vars(summary(audit)),
        ids=classes,
        verdicts=np.array([row[1] for row in rows], dtype=np.uint8),
        margins=np.array([math.nan if row[2] is None else row[2] for row in rows]),
        labels=labels or None,
        norms=None if weights is None else row_norms(weights.rows)[classes],
        mixtures=mixtures,
        groups=[] if weights is None else [list(group) for group in weights.odd.tied_rows],
        reasons=reasons,
        odd=None if weights is None else weights.odd,
        outlook=_ranked(store, audit),
    )


def _ranked(store: Store, audit: StoredAudit) -> Outlook | None:
    """What was proven of best ranks, where they were asked for."""
    classes, lower, upper = store.best_ranks(audit.id)
    if not len(classes):
        return None
    found = Outlook(classes, fingerprint=audit.fingerprint, domain=audit.domain)
    return found.with_ranks(lower, upper)


def summary(audit: StoredAudit) -> Summary:
    """What the store says of an audit as a whole: no class is looked at, no weights are read."""
    counts = {name: int(getattr(audit, name)) for name in _COUNTS}
    some = audit.asked < audit.classes
    found = Summary(
        name=title(audit),
        answer=answer(counts, audit.asked, some, audit.approximate, audit.metric),
        facts=_facts(audit, some),
        counts=counts,
        reading=audit.reading,
        metric=audit.metric,
    )
    found.answer = found.words.say(found.answer)
    return found


def title(audit: StoredAudit) -> str:
    """What a page calls an audit: its names, or the last part of where it is from."""
    own = audit.name if audit.name != audit.source else base_name(audit.source)
    return ", ".join([own, *audit.also])


def _facts(audit: StoredAudit, some: bool) -> dict[str, Any]:
    domain: Domain | None
    try:
        domain = parse_domain(audit.domain)
        domain.check(audit.features)
    except UncorkError:  # its arrays are not in the text
        domain = None
    option = "auto" if domain is None else on_the_command_line(domain)
    return {
        "source": audit.source,
        "fingerprint": audit.fingerprint,
        "classes": audit.classes,
        "features": audit.features,
        "dtype": audit.dtype,
        "bias": audit.has_bias,
        "assumed": (
            f"every input of {audit.domain}" if domain is None else domain.in_words(audit.features)
        ),
        "domain": audit.domain,
        "check": checking_commands(audit.source, option, audit.has_bias, metric=audit.metric),
        "approximate": audit.approximate,
        "proven": audit.proven,
        "checked": (
            "This page shows what the store holds; the page of a class proves its verdict again "
            "from the weights, or says that it does not hold."
        ),
        "made": (
            f"uncork {audit.uncork}, {audit.seconds.get('total', 0.0):.1f} s on {audit.device}, "
            f"{audit.created:%Y-%m-%d %H:%M} UTC"
        ),
        "some": some,
    }


def plain_audit(audit: StoredAudit) -> dict[str, Any]:
    """A stored audit as JSON has it."""
    plain = {**dataclasses.asdict(audit), "created": audit.created.isoformat()}
    del plain["reading"]
    return {**plain, **json_keys(audit.reading)}


def described_class(
    store: Store, audit: StoredAudit, class_id: int, cache: WeightsCache
) -> dict[str, Any] | None:
    """All that is known of one class: its row, its proof, nearest rows and history."""
    row = one_class(store, audit.id, class_id)
    if row is None:
        return None
    described: dict[str, Any] = {
        **row,
        "stolen_by": [[int(i), float(share)] for i, share in row["stolen_by"] or []],
        "stored_parts": [],
        "audit": audit.id,
        "name": audit.name,
        "weights": "",
        "slack": None,
        "check": _check(None, None, ""),
        "mixture": None,
        "runners_up": None,
        "nearest": None,
        "row_length": None,
        **_stored_rank(store, audit.id, class_id),
    }
    if row["verdict"] == "unargmaxable" and row["margin"] is not None:
        described["slack"] = abs(row["margin"])
    try:
        _prove(described, audit, class_id, cache)
    except Unavailable as why:
        described["weights"] = str(why)
        described["check"] = _check(None, None, f"As stored, and not checked: {why}.")
    if described["check"]["holds"] is None and described["stolen_by"]:
        described["mixture"] = _mixture(described["stolen_by"], None, False)
    described["stored_parts"] = _mixture(described["stolen_by"], None, False)["parts"]
    described["history"] = _history(store, audit, row)
    _name_others(store, audit, described, cache)
    return described


def _stored_rank(store: Store, audit_id: int, class_id: int) -> dict[str, int | None]:
    """The bounds on a class's best rank that the store holds, or nothing."""
    classes, *bounds = store.best_ranks(audit_id)
    (place,) = np.nonzero(classes == class_id)
    names = ("best_rank_lower", "best_rank_upper")
    return {
        name: int(bound[place[0]]) if len(place) else None
        for name, bound in zip(names, bounds, strict=True)
    }


def _prove(
    described: dict[str, Any], audit: StoredAudit, class_id: int, cache: WeightsCache
) -> None:
    rows, asked = cache.of(audit).rows, np.array([class_id])
    if isinstance(rows, Head):
        near, apart = nearest_rows(rows, asked, _NEAREST)
        described["nearest"] = [
            {"class": int(i), "distance": float(d)} for i, d in zip(near[0], apart[0], strict=True)
        ]
    described["row_length"] = float(np.linalg.norm(rows.take(asked)[0]))
    proof = cache.proof(audit, class_id)
    said, proven = Verdict[described["verdict"].upper()], proof.audit
    found = Verdict(int(proven.proofs.verdicts[class_id]))
    margin = None if found is Verdict.UNDECIDED else proven.margin(class_id)
    described["check"] = _check(found, margin, _checked(said, found, proof.own))
    described["check"]["holds"] = None if _UNKNOWN in (said, found) else said == found
    described["mixture"], described["runners_up"] = proof_of(proven, rows, class_id)


def proof_of(
    proven: Audit, rows: Head | Items, class_id: int
) -> tuple[dict[str, Any] | None, list[dict[str, Any]] | None]:
    """The proof of a class that was decided: the mixture that beats it, or who comes next at its
    witness."""
    found, mixture = Verdict(int(proven.proofs.verdicts[class_id])), proven.mixture(class_id)
    if mixture is not None and found is Verdict.UNARGMAXABLE:
        alone = mixture.tilt is None and not mixture.bulk
        parts = [[i, share] for i, share in mixture.top(_PARTS)]
        return _mixture(parts, len(mixture.classes) if alone else None, True), None
    if found not in (Verdict.ARGMAXABLE, Verdict.TIED):
        return None, None
    if isinstance(rows, Items):
        others, leads = next_items(rows, np.array([class_id]), _NEAREST)
    else:
        others, leads = runners_up(proven, rows, np.array([class_id]), _NEAREST)
    return None, [
        {"class": int(i), "lead": float(lead)}
        for i, lead in zip(others[0], leads[0], strict=True)
        if i >= 0
    ]


def _checked(said: Verdict, found: Verdict, own: bool | None) -> str:
    """What came of proving a stored verdict from the weights, in words."""
    broken = "The proof in the audit's certificates does not hold. " if own is False else ""
    if found is _UNKNOWN:
        if said is _UNKNOWN:
            return f"{broken}Nothing was proven in {SECONDS:g} s now either."
        return (
            f"{broken}This is the verdict as stored: it was not proven again from the weights "
            f"within {SECONDS:g} s."
        )
    if said is _UNKNOWN:
        return f"{broken}The audit left it undecided; the weights prove it {found}, just now."
    if said != found:
        return (
            f"{broken}The stored verdict does not hold. The store says {said}; the weights prove "
            f"the class {found}, certified just now."
        )
    if own:
        return "The audit's own proof, certified against the weights just now."
    return f"{broken}Proven anew from the weights, and certified, just now."


def _check(verdict: Verdict | None, margin: float | None, text: str) -> dict[str, Any]:
    said = None if verdict is None else str(verdict)
    return {"holds": None, "verdict": said, "margin": margin, "text": text}


def _mixture(parts: list[Any], size: int | None, certified: bool) -> dict[str, Any]:
    return {
        "parts": [{"class": int(i), "share": float(share)} for i, share in parts],
        "size": size,
        "certified": certified,
    }


def _history(store: Store, audit: StoredAudit, row: dict[str, Any]) -> list[dict[str, Any]]:
    """The class in every audit of the same model names: by label where there are labels."""
    history = []
    for other in same_name(store, (audit.name, *audit.also), _HISTORY):
        if row["label"] is not None:
            found = class_with_label(store, other.id, row["label"])
            same = one_class(store, other.id, row["class"])
            if same is not None and same["label"] == row["label"]:  # a label may stand twice
                found = same
        else:
            found = one_class(store, other.id, row["class"])
        history.append(
            {
                "audit": other.id,
                "name": other.name,
                "created": other.created.isoformat(),
                "domain": other.domain,
                "fingerprint": other.fingerprint,
                "class": None if found is None else found["class"],
                "verdict": None if found is None else found["verdict"],
                "margin": None if found is None else found["margin"],
            }
        )
    return history


def _name_others(
    store: Store, audit: StoredAudit, described: dict[str, Any], cache: WeightsCache
) -> None:
    """Give the classes that are named their labels and verdicts."""
    entries = [
        *(described["mixture"] or {"parts": []})["parts"],
        *described["stored_parts"],
        *(described["nearest"] or []),
        *(described["runners_up"] or []),
    ]
    at_hand = described["row_length"] is not None and described["label"] is not None
    named(store, audit, entries, cache.of(audit).rows.labels if at_hand else None)


def named(
    store: Store, audit: StoredAudit, entries: list[dict[str, Any]], labels: Sequence[str] | None
) -> None:
    """Give classes that are named their labels and verdicts: the store's, else the head's."""
    known = labels_of(store, audit.id, sorted({entry["class"] for entry in entries}))
    for entry in entries:
        entry["label"], entry["verdict"] = known.get(entry["class"], (None, None))
        if entry["label"] is None and labels is not None:
            entry["label"] = labels[entry["class"]]


def compared(store: Store, before: StoredAudit, after: StoredAudit) -> dict[str, Any]:
    """Which classes changed their verdict, appeared or went, between two audits, or are
    unargmaxable in both.

    Classes are matched by label where both audits have labels, each of them once; else by number.
    """
    old, new = (list(every_class(store, audit.id)) for audit in (before, after))
    labelled = all(row.label is not None for rows in (old, new) for row in rows)
    earlier, later = _by_key(old, labelled), _by_key(new, labelled)
    counts = dict.fromkeys(DIFFERENCES, 0)
    changes = []
    for key, row in later.items():
        was = earlier.get(key)
        if was is None:
            kind = "added"
        elif was.verdict == row.verdict != Verdict.UNARGMAXABLE:
            continue
        elif was.verdict == row.verdict:
            kind = "both"
        elif row.verdict == Verdict.UNARGMAXABLE:
            kind = "lost"
        else:
            kind = "regained" if was.verdict == Verdict.UNARGMAXABLE else "other"
        counts[kind] += 1
        changes.append(_change(kind, was, row))
    for key, row in earlier.items():
        if key not in later:
            counts["removed"] += 1
            changes.append(_change("removed", row, None))
    changes.sort(key=lambda change: DIFFERENCES.index(change["change"]))
    return {"matched_by": "label" if labelled else "class", "counts": counts, "changes": changes}


def differing(changes: list[dict[str, Any]], kind: str | None, search: str) -> list[dict[str, Any]]:
    """Those of one kind, or all that differ, whose label holds a text or whose number it is."""
    sought = search.strip().casefold()
    number = int(sought) if sought.isascii() and sought.isdigit() and len(sought) < 10 else -1

    def fits(change: dict[str, Any]) -> bool:
        if (change["change"] == "both") if kind is None else (change["change"] != kind):
            return False
        numbers = (change["class_before"], change["class_after"])
        return not sought or number in numbers or sought in (change["label"] or "").casefold()

    return [change for change in changes if fits(change)]


def _by_key(rows: list[Any], labelled: bool) -> dict[Any, Any]:
    """Classes by number, or by (label, how often that label came before)."""
    if not labelled:
        return {row.class_id: row for row in rows}
    seen: dict[str, int] = {}
    found: dict[Any, Any] = {}
    for row in rows:
        times = seen.get(row.label, 0)
        seen[row.label] = times + 1
        found[(row.label, times)] = row
    return found


def _change(kind: str, before: Any, after: Any) -> dict[str, Any]:
    change: dict[str, Any] = {"change": kind, "label": (before if after is None else after).label}
    for name, row in (("before", before), ("after", after)):
        change[f"class_{name}"] = None if row is None else row.class_id
        change[f"verdict_{name}"] = None if row is None else str(Verdict(row.verdict))
        change[f"margin_{name}"] = None if row is None else row.margin
    return change
