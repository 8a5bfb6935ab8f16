"""Finished ranges of what is unfinished, on disk until all of it is done: what `--resume` reads.

One folder a head, one file a range, each written whole or not at all."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.own_archive import open_archive
from uncork.workers.ranges import Decided


class Kept:
    """The folder of finished ranges."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, key: str, start: int, decided: Decided) -> None:
        """Keep a range; a file that is there after a crash was written completely."""
        place = self._path(key, start)
        part = place.with_suffix(".part")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                file.write(_encode(decided))
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, place)
        except OSError as error:
            raise UncorkError(f"{place} cannot be written: {error.strerror}") from error

    def get(self, key: str, start: int) -> Decided | None:
        """A kept range, or None where there is none that can be read."""
        try:
            return _decode(self._path(key, start))
        except Exception:  # damaged in whatever way: it is decided again
            return None

    def starts(self, key: str) -> list[int]:
        """The ranges of a head that are kept, by their starts."""
        names = (file.stem for file in (self.folder / key).glob("*.npz"))
        return sorted(int(name) for name in names if name.isdecimal())

    def forget(self, key: str) -> None:
        """Remove a head's ranges, and the folder once it is empty."""
        shutil.rmtree(self.folder / key, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def is_empty(self) -> bool:
        return not self.folder.is_dir() or not any(self.folder.iterdir())

    def _path(self, key: str, start: int) -> Path:
        return self.folder / key / f"{start}.npz"


def _encode(decided: Decided) -> bytes:
    facts = {"labels": decided.labels, "iterations": decided.iterations}
    buffer = io.BytesIO()
    np.savez(
        buffer,
        proofs=np.frombuffer(decided.proofs, dtype=np.uint8),
        facts=np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
    )
    return buffer.getvalue()


def _decode(path: Path) -> Decided:
    with open_archive(path, "a kept range", ("proofs", "facts")) as archive:
        proofs = archive.array("proofs", (None,), np.uint8).tobytes()
        facts = json.loads(archive.array("facts", (None,), np.uint8).tobytes())
    labels, iterations = facts["labels"], facts["iterations"]
    return Decided(
        proofs,
        None if labels is None else tuple(labels),
        None if iterations is None else tuple(iterations),
    )
