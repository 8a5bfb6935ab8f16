"""Word vectors: GloVe's text, word2vec's text and binary, fastText's .vec."""

from __future__ import annotations

import functools
import io
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.contents import Contents, Vocabulary
from uncork.loading.vectors.found import Vectors, vectors_of

_COUNTS = re.compile(rb"\s*(\d{1,12})\s+(\d{1,7})\s*$")
_LOOKED_AT = 1 << 17
_LONGEST_WORD = 4096  # bytes
_MOST_FEATURES = 1 << 16
_ROUNDED = "decimal numbers, rounded to float32 as the tools that use such files do"


@dataclass(frozen=True)
class _Layout:
    """What the first lines say: rows (None where nothing does), features, and where rows begin."""

    rows: int | None
    features: int
    begin: int
    binary: bool


def _layout(path: Path) -> _Layout | None:
    with path.open("rb") as file:
        start = file.read(_LOOKED_AT)
    lines = start.split(b"\n", 3)
    counts = _COUNTS.match(lines[0])
    if counts is not None and len(lines) > 1:
        rows, features = int(counts[1]), int(counts[2])
        if not rows or not 0 < features <= _MOST_FEATURES:
            return None
        begin = len(lines[0]) + 1
        binary = _numbers(lines[1], features) is None
        least = rows * ((4 if binary else 2) * features + 1)
        if begin + least - 1 > path.stat().st_size:
            return None
        return _Layout(rows, features, begin, binary)
    features = len(lines[0].split()) - 1
    # Without a header, two rows of one width must say that these are vectors.
    if not 2 <= features <= _MOST_FEATURES or len(lines) < 2 or not lines[1].strip():
        return None
    if any(_numbers(line, features) is None for line in lines[:2]):
        return None
    # Where the first column holds numbers too, it is a matrix without words, and all of it counts.
    some = start[: start.rfind(b"\n") + 1].splitlines() or lines[:2]
    if all(_is_number(line.split(None, 1)[0]) for line in some if line.strip()):
        return None
    return _Layout(None, features, 0, False)


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def looks_like_words(path: Path, start: bytes, size: int) -> bool:
    if b"\0" in start.split(b"\n", 1)[0] or start[:1] in (b"{", b"[", b"<", b"\x80"):
        return False
    return _layout(path) is not None


def read_words(path: Path) -> Contents:
    """The vectors and the words beside them."""
    layout = _layout(path)
    if layout is None:
        raise UncorkError(
            f"{path} is not a file of word vectors: expected a word and its numbers on every line, "
            "after a line with the numbers of words and features or without one"
        )
    read = _read_binary if layout.binary else _read_text
    # One pass gives vectors and words, and both are asked for.
    both = functools.lru_cache(maxsize=1)(functools.partial(read, path, layout))
    vectors, words = both()
    kind = "word2vec binary" if layout.binary else "text"
    found = Vectors(
        vectors.shape, "float32", lambda: both()[0], None, f"the rows of word vectors ({kind})",
        lambda: Vocabulary(tuple(words), "the words of the file"),
        () if layout.binary else (_ROUNDED,),
    )  # fmt: skip
    return vectors_of(path, "words", found)


def _split(line: bytes, features: int) -> list[bytes] | None:
    """The word of a line, which may have spaces in it, and its numbers as text; or None."""
    for separator in (b" ", None):
        parts = line.rstrip().rsplit(separator, features)
        if len(parts) == features + 1:
            return parts
    return None


def _numbers(line: bytes, features: int) -> np.ndarray | None:
    """The numbers of a line, or None."""
    parts = _split(line, features)
    try:
        return None if parts is None else np.array([float(one) for one in parts[1:]], np.float32)
    except (ValueError, OverflowError):
        return None


def _read_text(path: Path, layout: _Layout) -> tuple[np.ndarray, list[str]]:
    words: list[str] = []
    blocks: list[np.ndarray] = []
    with path.open("rb") as file:
        file.seek(layout.begin)
        for first, lines in _line_blocks(file):
            rows = _block(lines, layout.features)
            if rows is None:
                before = first + (layout.begin > 0)
                rows = np.stack([
                    _one(path, before + at + 1, line, layout.features)
                    for at, line in enumerate(lines)
                ])  # fmt: skip
            blocks.append(rows)
            split = (_split(line, layout.features) for line in lines)
            words += [parts[0].decode(errors="replace") for parts in split if parts is not None]
    if not blocks or (layout.rows is not None and len(words) != layout.rows):
        raise UncorkError(
            f"{path} announces {layout.rows} words and holds {len(words)}: truncated or damaged"
        )
    return np.concatenate(blocks), words


def _block(lines: list[bytes], features: int) -> np.ndarray | None:
    """The numbers of many lines at once, where no word has spaces; None where something is odd."""
    rest = b" ".join(line.partition(b" ")[2] for line in lines)
    if any(letter not in b"0123456789+-.eE \t\r\n" for letter in set(rest)):
        return None
    try:
        values = np.fromstring(rest, dtype=np.float64, sep=" ")
    except (ValueError, DeprecationWarning):
        return None
    if len(values) != len(lines) * features:
        return None
    with np.errstate(over="ignore"):
        return np.asarray(values.astype(np.float32).reshape(len(lines), features))


def _one(path: Path, number: int, line: bytes, features: int) -> np.ndarray:
    values = _numbers(line, features)
    if values is None:
        text = printable(line[:60].decode(errors="replace"))
        raise UncorkError(f"{path}: line {number} is not a word and {features} numbers: {text}")
    return values


def _line_blocks(file: io.BufferedReader) -> Iterator[tuple[int, list[bytes]]]:
    """Lines that are not empty, some megabytes at a time: (how many came before, lines)."""
    first = 0
    while lines := file.readlines(8 << 20):
        kept = [line for line in lines if line.strip()]
        if kept:
            yield first, kept
        first += len(lines)


def _read_binary(path: Path, layout: _Layout) -> tuple[np.ndarray, list[str]]:
    assert layout.rows is not None
    each = 4 * layout.features
    words: list[str] = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        rows = np.empty((layout.rows, layout.features), dtype=np.float32)
        at = layout.begin
        for row in range(layout.rows):
            end = data.find(b" ", at, at + _LONGEST_WORD)
            if end < 0 or end + 1 + each > len(data):
                raise UncorkError(
                    f"{path} is truncated or damaged: word {row} of {layout.rows} is missing"
                )
            words.append(data[at:end].decode(errors="replace").lstrip("\n"))
            rows[row] = np.frombuffer(data, "<f4", layout.features, end + 1)
            at = end + 1 + each
    return rows, words
