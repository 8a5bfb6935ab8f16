"""A result's file, whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from uncork.core.errors import UncorkError


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Where to write what is to appear at `path`, once the block has ended well.

    A link is followed, so that it stays one. Anything else (/dev/null, a pipe) is written to as it
    is: a file in its place would be there for everybody else too. So is a file in a folder in
    which no other can be made.
    """
    given = Path(path)
    try:
        if given.exists() and not given.is_file():
            yield given
            return
        target = Path(os.path.realpath(given))
        if target.exists() and not os.access(target.parent, os.W_OK):
            yield target
            return
        # A name of its own: somebody may be writing the same result, or have such a file.
        unfinished = target.with_name(f"{target.name[:200]}.{secrets.token_hex(4)}.part")
        try:
            yield unfinished
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise UncorkError(f"{given} cannot be written: {error.strerror or error}") from None
