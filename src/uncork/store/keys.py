"""What makes two audits the same one."""

from __future__ import annotations

import hashlib

import numpy as np

from uncork.audit import Audit
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
