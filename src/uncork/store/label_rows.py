"""A label audit as rows of the store."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from typing import Any

from uncork import __version__
from uncork.labels.result import LabelAudit, SetVerdict

# Between two names, and between those of labels that are on and off: what no label needs.
_NEXT, _OFF = "\x1f", "\x1e"
_LONGEST = 256  # characters of one name that are kept with a set
_MOST = 64  # names of one set


def label_rows(
    audit: LabelAudit,
    name: str,
    source: str,
    certificates: str | None,
    created: datetime.datetime,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of the audit, and one for each of its sets."""
    same = bool((audit.thresholds == audit.thresholds[0]).all())
    thresholds: Any = float(audit.thresholds[0]) if same else audit.thresholds.tolist()
    sets = [_set_row(audit, k) for k in range(len(audit.sets))]
    asked = [[row["labels"], row["off"], row["count"]] for row in sets]
    text = json.dumps([audit.fingerprint, audit.domain.spec(), thresholds, asked])
    row = {
        "key": hashlib.sha256(text.encode()).hexdigest(),
        "name": name,
        "source": source,
        "domain": audit.domain.spec(),
        "thresholds": thresholds,
        "sets": len(audit.sets),
        **audit.counts,
        "certificates": certificates,
        "reading": None if audit.reading is None else audit.reading.as_dict(),
        "seconds": audit.seconds,
        "uncork": __version__,
        "created": created,
    }
    return row, sets


def _set_row(audit: LabelAudit, k: int) -> dict[str, Any]:
    margin = float(audit.margins[k])
    undecided = audit.verdicts[k] == SetVerdict.UNDECIDED
    return {
        "set_id": k,
        "labels": audit.sets.on[k].tolist(),
        "off": audit.sets.off[k].tolist() if audit.sets.partial[k] else None,
        "verdict": int(audit.verdicts[k]),
        "margin": margin if math.isfinite(margin) else None,
        "count": int(audit.sets.counts[k]),
        "reason": audit.reasons.get(k) if undecided else None,
        "names": _names(audit, k),
    }


def _names(audit: LabelAudit, k: int) -> str | None:
    """The names of a set's labels as one text, which a database can search."""
    if audit.label_names is None:
        return None
    off = audit.sets.off[k].tolist() if audit.sets.partial[k] else []
    return _OFF.join(_joined(audit, ids) for ids in (audit.sets.on[k].tolist(), off))


def _joined(audit: LabelAudit, ids: list[int]) -> str:
    named = (audit.label(i)[:_LONGEST].translate({0x1E: " ", 0x1F: " "}) for i in ids[:_MOST])
    return _NEXT.join(named)


def split_names(text: str | None, on: int, off: int) -> tuple[list[str] | None, list[str] | None]:
    """The names of the first labels that are on, and off, of so many; None where none are known."""
    if text is None:
        return None, None
    first, _, second = text.partition(_OFF)
    return first.split(_NEXT) if on else [], second.split(_NEXT) if off else []
