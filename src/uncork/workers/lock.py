"""One run at a time with a folder of ranges: while it lives it holds a lock, which says who it is.

The system lets go of the lock when its process ends, however it ends: nothing is left to clear
away after a crash."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from uncork.core.errors import UncorkError
from uncork.core.text import printable


@dataclass(frozen=True)
class Owner:
    """What a lock is held by, in the words of its messages."""

    what: str  # "a sweep into this store"
    instead: str  # what to do while another one runs
    without: str  # what to do where there are no such locks


SWEEP = Owner(
    "a sweep into this store",
    "wait for it to end, stop it, or give another --store",
    "run it in WSL, or audit the models one by one with uncork audit --store",
)
AUDIT = Owner(
    "an audit of this head with --engine",
    "wait for it to end, or stop it",
    "run it in WSL, or leave out --engine",
)


@contextlib.contextmanager
def held(work: Path, owner: Owner = SWEEP) -> Iterator[None]:
    """Hold the lock of the folder that ranges are kept in, or say who does."""
    path = _lock_file(work)
    file = _take(path, owner)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: who opens it now makes a new one
        file.close()


def check_free(work: Path, owner: Owner = SWEEP) -> None:
    """Raise now if somebody holds that lock."""
    if _lock_file(work).exists():
        with held(work, owner):
            pass


def _lock_file(work: Path) -> Path:
    return Path(f"{work}.lock")


def _take(path: Path, owner: Owner) -> IO[str]:
    try:
        import fcntl
    except ModuleNotFoundError:
        raise UncorkError(
            f"{owner.what} locks its folder as Linux and macOS do, which Windows cannot: "
            f"{owner.without}"
        ) from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = path.open("a+", encoding="utf-8")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with file:
                    raise UncorkError(_who(file, owner)) from None
            # The one who held it may have removed it after we opened it.
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                break
            file.close()
        since = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        me = {"host": socket.gethostname(), "process": os.getpid(), "since": since}
        file.truncate(0)
        file.write(json.dumps(me))
        file.flush()
    except OSError as error:
        raise UncorkError(
            f"{path} cannot be written: {error.strerror}; finished ranges are kept beside it"
        ) from error
    return file


def _who(file: IO[str], owner: Owner) -> str:
    who = "another process"
    with contextlib.suppress(ValueError, KeyError, TypeError):
        file.seek(0)
        said = json.loads(file.read(1000))
        who = f"process {said['process']} on {said['host']}, since {said['since']}"
    return f"{owner.what} is running ({printable(who)}): {owner.instead}"
