"""A range of a head's classes, decided: the answer of a worker, in plain values that any engine can
carry to another process or machine."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uncork.auditing.proofs.range_file import Range, read_range, write_range
from uncork.auditing.result import Audit
from uncork.core.head import Head


@dataclass(frozen=True)
class Decided:
    """The answer for one range of classes."""

    proofs: bytes  # a range file
    labels: tuple[str, ...] | None = None  # of all classes, where the one who asked has no head
    iterations: tuple[int, ...] | None = None  # of the classes in the range, −1 where not found


def packed(audit: Audit, classes: np.ndarray) -> bytes:
    """What the audit proves of some classes, as the content of a range file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "range.npz"
        write_range(audit, classes, file)
        return file.read_bytes()


def unpacked(proofs: bytes, head: Head | None = None) -> Range:
    """A range file's content read."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "range.npz"
        file.write_bytes(proofs)
        return read_range(file, head)
