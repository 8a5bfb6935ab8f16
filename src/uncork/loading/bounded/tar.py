"""Members of a tar archive: where their bytes lie, by the headers alone, each checked."""

from __future__ import annotations

from pathlib import Path

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.bounded.archive import Storage

_BLOCK = 512
_MOST_MEMBERS = 100_000
_FILES = (b"0", b"\0")
_WITHOUT_BYTES = b"123456"  # links, devices and folders, whatever their size says
_LONG_NAMES = b"LKS"
_ABOUT_THE_NEXT = b"xgX"
_CHANGES = (b" path=", b" size=", b" GNU.sparse")


def members_of(path: Path) -> dict[str, Storage]:
    """Where each plain file of an archive lies, by its name; links and folders are left out."""
    found: dict[str, Storage] = {}
    size, at = path.stat().st_size, 0
    with path.open("rb") as file:
        for _ in range(_MOST_MEMBERS):
            file.seek(at)
            header = file.read(_BLOCK)
            if len(header) < _BLOCK or not any(header):
                return found
            name = header[:100].partition(b"\0")[0].decode("utf-8", "backslashreplace")
            prefix = header[345:500].partition(b"\0")[0] if header[257:262] == b"ustar" else b""
            if prefix:
                name = f"{prefix.decode('utf-8', 'backslashreplace')}/{name}"
            length = _octal(path, name, header[124:136])
            kind = header[156:157]
            _check(path, name, header)
            if kind in _WITHOUT_BYTES:
                length = 0
            if at + _BLOCK + length > size:
                raise UncorkError(
                    f"{path} is truncated or damaged: {printable(name)[:80]} takes {length} bytes "
                    f"by its own account, and {size - at - _BLOCK} are left"
                )
            said = file.read(length) if kind in _ABOUT_THE_NEXT else b""
            if kind in _LONG_NAMES or any(one in said for one in _CHANGES):
                raise UncorkError(
                    f"{path}: {printable(name)[:80]} is a header that changes the name or size of "
                    "another member: pack it again with short names"
                )
            found.pop(name, None)  # what comes later replaces it, be it a link
            if kind in _FILES:
                found[name] = Storage(at + _BLOCK, length)
            at += _BLOCK + -(-length // _BLOCK) * _BLOCK
    raise UncorkError(f"{path} has more than {_MOST_MEMBERS} members: damaged")


def _check(path: Path, name: str, header: bytes) -> None:
    """The sum of a header's bytes, its own eight as blanks."""
    total = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    if total != _octal(path, name, header[148:156].partition(b"\0")[0]):
        raise UncorkError(f"{path} is damaged: the header of {printable(name)[:80]} adds up wrong")


def _octal(path: Path, name: str, digits: bytes) -> int:
    text = digits.strip(b" \0")
    if not text.isdigit() or any(digit in b"89" for digit in text):
        raise UncorkError(f"{path} is damaged: {printable(name)[:80]} does not say its size or sum")
    return int(text, 8)
