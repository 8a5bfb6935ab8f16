"""The files that a report's page offers: its classes as CSV, its certificates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from uncork.store import StoredAudit

CSV = "every class as CSV"
CERTIFICATES = "the certificates, for uncork verify"
_PIECE = 1 << 16  # bytes sent at once


def has_certificates(audit: StoredAudit) -> bool:
    """Whether a file is where the audit's certificates were written."""
    try:
        return bool(audit.certificates) and Path(str(audit.certificates)).is_file()
    except (OSError, ValueError):  # no name of a file at all
        return False


def in_pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines, many at a time."""
    piece = bytearray()
    for line in lines:
        piece += line
        if len(piece) >= _PIECE:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)
