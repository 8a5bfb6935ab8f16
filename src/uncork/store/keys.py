"""What makes two audits, two runs or two failures the same one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from uncork.auditing import Audit
from uncork.store.schema import ALGORITHM_VERSION


def audit_key(audit: Audit) -> str:
    """What makes two audits the same: head, domain, algorithm and version, classes asked for."""
    asked = None if audit.asked is None else audit.asked
    return make_key(
        audit.fingerprint, audit.domain.spec(), audit.algorithm, audit.approximate, asked
    )


def make_key(
    fingerprint: str, domain: str, algorithm: str, approximate: bool, asked: np.ndarray | None
) -> str:
    """The same before there is an audit."""
    digest = hashlib.sha256(b"uncork audit\n")
    parts = (fingerprint, domain, algorithm, str(approximate), str(ALGORITHM_VERSION))
    for part in parts:
        digest.update(part.encode() + b"\n")
    if asked is not None:
        digest.update(np.asarray(asked, dtype="<i8").tobytes())
    return digest.hexdigest()


def run_key(audit: str, group: str, name: str) -> str:
    """What makes two runs the same: the audit's key, and what it is called."""
    return _digest([audit, group, name])


def failure_key(source: str, options: str, weights: str) -> str:
    """What makes two failures the same: source, options (as `options_text`) and weights."""
    if options == options_text({}) and not weights:  # as the first schema had it
        return hashlib.sha256(_bytes(source)).hexdigest()
    return _digest([source, options, weights])


def options_text(options: Mapping[str, Any]) -> str:
    """Options as one text that is equal where they are: those left at their default left out."""
    given = {name: value for name, value in options.items() if value not in (None, False)}
    return json.dumps(given, sort_keys=True, default=str)


def _digest(parts: list[str]) -> str:
    return hashlib.sha256(_bytes(json.dumps(parts))).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
