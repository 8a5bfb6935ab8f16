"""Files whose bytes are elsewhere: only the ranges that are asked for are fetched, and kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from uncork.core.errors import UncorkError
from uncork.core.progress import Progress, ProgressBar

_FIRST_BYTES = 64 << 10  # most safetensors headers fit, so that one request is enough
_ATTEMPTS = 4  # in a row that bring nothing new
_MIB = 1 << 20
_WORTH_A_BAR = 8 << 20


class BrokenOffError(Exception):
    """The connection ended before the last byte: asking for the rest is worth a try."""


class RangeIgnoredError(Exception):
    """The server sends whole files only."""


class Stream(Protocol):
    """Opens the bytes begin … end − 1 of a file, as a context of chunks that come in order.

    It raises `BrokenOffError` where asking again may help, `RangeIgnoredError` where the server
    does no ranges, and `UncorkError`, whose text is for the user, where neither helps.
    """

    def __call__(self, begin: int, end: int) -> AbstractContextManager[Iterator[bytes]]: ...


@dataclass(frozen=True)
class RemoteFile:
    """A file of which `path` holds no more than the beginning, or nothing.

    `stream` gets bytes, `whole` the file as such (the way out where a server does no ranges).
    What was fetched lies in the folder `kept`, a file a range, and is never fetched again; what
    was cut short lies there too, and is continued.
    """

    name: str
    path: Path
    size: int
    kept: Path
    stream: Stream
    whole: Callable[[], Path]

    def safetensors_header(self) -> bytes:
        """The 8 bytes of length and the header they announce, in `path` from now on."""
        start = self.path.read_bytes() if self.path.exists() else b""
        if len(start) < 8 or len(start) < 8 + struct.unpack("<Q", start[:8])[0]:
            start = self._bytes(0, min(self.size, _FIRST_BYTES))
            length = struct.unpack("<Q", start[:8])[0] if len(start) >= 8 else 0
            end = 8 + length
            if end > min(self.size, 8 + 100_000_000):  # the format's own limit
                raise UncorkError(
                    f"{self.name} is damaged: its header is {length} bytes long by its own "
                    f"account, and the file has {self.size}"
                )
            if end > len(start):
                start += self._bytes(len(start), end)
            start = start[:end]
            write_atomically(self.path, start)
        return start

    def range(self, begin: int, end: int) -> tuple[Path, int]:
        """A file that holds these bytes, and where in it they begin."""
        target = self.kept / f"{begin}-{end}"
        if target.exists():
            return target, 0
        try:
            download(self.stream, begin, end, target, self.name)
        except RangeIgnoredError:
            return self.whole(), begin
        return target, 0

    def _bytes(self, begin: int, end: int) -> bytes:
        path, offset = self.range(begin, end)
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(end - begin)
        if path.parent == self.kept:
            path.unlink(missing_ok=True)  # the header is kept in `path` instead
        return data


# The files of this process whose bytes are elsewhere. A file on disk cannot put itself here, so
# opening a local file never reaches for the network.
_ELSEWHERE: dict[str, RemoteFile] = {}


def register(file: RemoteFile) -> None:
    """From now on reading `file.path` fetches what is read."""
    _ELSEWHERE[os.path.abspath(file.path)] = file


def forget(path: Path) -> None:
    """The file is on disk after all."""
    _ELSEWHERE.pop(os.path.abspath(path), None)


def remote(path: Path) -> RemoteFile | None:
    """The remote file that stands behind a path, if one does."""
    return _ELSEWHERE.get(os.path.abspath(path))


def download(stream: Stream, begin: int, end: int, target: Path, name: str) -> None:
    """Bytes begin … end − 1 into `target`, continuing what an earlier attempt left behind."""
    from filelock import FileLock  # comes with the hub's client

    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    with FileLock(f"{target}.lock"):
        if target.exists():
            return
        have = partial.stat().st_size if partial.exists() else 0
        if have > end - begin:
            partial.unlink()
            have = 0
        _check_room(target.parent, end - begin - have, name)
        with ProgressBar() if end - begin > _WORTH_A_BAR else Progress() as bar:
            bar.stage("MiB fetched", (end - begin) // _MIB)
            bar.advance(have // _MIB)
            failures = 0
            while have < end - begin:
                before = have
                try:
                    with partial.open("ab") as file, stream(begin + have, end) as chunks:
                        for chunk in chunks:
                            if have + len(chunk) > end - begin:
                                raise UncorkError(
                                    f"{name}: the server sends more than it announced"
                                )
                            file.write(chunk)
                            bar.advance((have + len(chunk)) // _MIB - have // _MIB)
                            have += len(chunk)
                except BrokenOffError as error:
                    failures = failures + 1 if have == before else 0
                    if failures >= _ATTEMPTS:
                        raise _broken(name, have, end - begin, error) from error
                except OSError as error:
                    raise UncorkError(
                        f"{name} cannot be kept in {target.parent}: {error.strerror or error}"
                    ) from error
                else:
                    if have < end - begin and have == before:
                        raise _broken(name, have, end - begin, None)
        os.replace(partial, target)


def _broken(name: str, have: int, length: int, error: Exception | None) -> UncorkError:
    why = f" ({' '.join(str(error).split())[:120]})" if error is not None and str(error) else ""
    return UncorkError(
        f"{name}: the connection broke off after {have} of {length} bytes{why}: run the command "
        "again, it goes on from there"
    )


def check_digest(path: Path, sha256: str, name: str) -> None:
    """Refuse, and forget, a file whose bytes are not those the hub announces."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_MIB):
            found.update(block)
    if found.hexdigest() != sha256:
        path.unlink()
        raise UncorkError(f"{name} arrived damaged (its SHA-256 differs): run the command again")


def write_atomically(path: Path, data: bytes) -> None:
    """Either the old file or the new one is there, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        scratch.write_bytes(data)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def _check_room(folder: Path, wanted: int, name: str) -> None:
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise UncorkError(
            f"{name} needs {wanted / 1e6:.0f} MB and {folder} has room for {free / 1e6:.0f} MB: "
            "make room, or set HF_HOME to a larger disk"
        )
