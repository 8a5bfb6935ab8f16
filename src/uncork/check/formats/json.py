"""JSON: everything, for other programs."""

from __future__ import annotations

import json
from typing import Any

from uncork import __version__
from uncork.check.protocol import Result
from uncork.check.run import Checked
from uncork.core.reading import json_keys
from uncork.core.text import without_infinities


def as_dict(checked: Checked) -> dict[str, Any]:
    """The result as plain values."""
    audit, kept = checked.audit, checked.certificates
    return {
        "uncork": __version__,
        "source": audit.source,
        "fingerprint": audit.fingerprint,
        "classes": audit.classes,
        "features": audit.features,
        "bias": audit.has_bias,
        "dtype": audit.dtype,
        "domain": audit.domain.spec(),
        **json_keys(audit.reading),
        "outcome": checked.outcome.value,
        "failed": checked.failed,
        "strict": checked.strict,
        "counts": checked.counts,
        "audit": {"counts": audit.counts, "proven": audit.proven},
        # As an audit's JSON has it, so that this file serves as a baseline too.
        "unargmaxable": [
            {"class": t, "label": audit.label(t)} for t in audit.unargmaxable.tolist()
        ],
        "certificates": None if kept is None else {"file": kept.path, "sha256": kept.sha256},
        "report": checked.report,
        "checks": [_result(checked, result) for result in checked.results],
        "seconds": {name: round(value, 6) for name, value in audit.seconds.items()},
    }


def _result(checked: Checked, result: Result) -> dict[str, Any]:
    return {
        "name": result.name,
        "outcome": result.outcome.value,
        "why": result.why,
        "asks": result.check.asks,
        "advice": result.check.advice if result.bad else None,
        "classes": [
            {"class": one.class_id, "label": checked.head.label(one.class_id), "note": one.note}
            for one in result.classes
        ],
        "link": result.link(checked.report),
    }


def write(checked: Checked) -> str:
    plain = without_infinities(as_dict(checked))
    # Labels may hold half a surrogate pair, which UTF-8 has no bytes for.
    text = json.dumps(plain, ensure_ascii=False, indent=2, allow_nan=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = json.dumps(plain, ensure_ascii=True, indent=2, allow_nan=False)
    return text + "\n"
