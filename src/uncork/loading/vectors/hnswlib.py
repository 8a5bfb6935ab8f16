"""hnswlib's files: vectors, labels and links, mapped. The file does not say its metric.

The layout is that of `HierarchicalNSW::saveIndex` (hnswlib 0.4 to 0.8): a header, a record for each
element on the base level (its links, its vector, its label), and the links of the upper levels.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.links import Level, Links, level_of
from uncork.loading.contents import UNSAID, Contents
from uncork.loading.vectors.found import APPROXIMATE, Vectors, id_labels, vectors_of

_HEADER = struct.Struct("<6QiI3QdQ")
_DELETED = 1  # a flag in the byte after the number of links


@dataclass(frozen=True)
class Header:
    """The numbers that the layout of an index follows from."""

    count: int
    record: int  # bytes of an element on the base level
    label_at: int
    vector_at: int
    top: int
    entry: int
    most: int  # links of an element on an upper level
    most_base: int

    @property
    def features(self) -> int:
        return (self.label_at - self.vector_at) // 4


HEADER_SIZE = _HEADER.size


def header_of(data: bytes) -> Header | None:
    """The header, or None where the numbers in it do not fit each other."""
    if len(data) < _HEADER.size:
        return None
    (base, most_elements, count, record, label_at, vector_at, top, entry, most, most_base,
     _, _, _) = _HEADER.unpack_from(data)  # fmt: skip
    good = (
        base == 0
        and 0 < count <= most_elements
        and entry < count
        and 0 <= top < 64
        and 0 < most <= most_base < 1 << 16
        and vector_at == 4 + 4 * most_base
        and vector_at < label_at
        and record == label_at + 8
    )
    return Header(count, record, label_at, vector_at, top, entry, most, most_base) if good else None


def _whole(path: Path) -> Header | None:
    """The header of a file that is long enough for what it announces."""
    with path.open("rb") as file:
        header = header_of(file.read(_HEADER.size))
    if header is None:
        return None
    needed = _HEADER.size + header.count * (header.record + 4)
    return header if needed <= path.stat().st_size else None


def _is_empty(path: Path) -> bool:
    """Whether a file is the header of an index to which nothing was added, and no more."""
    with path.open("rb") as file:
        data = file.read(_HEADER.size + 1)
    if len(data) != _HEADER.size:
        return False
    base, _, count, record, label_at, vector_at, top, *_ = _HEADER.unpack(data)
    return base == count == 0 and top == -1 and vector_at < label_at == record - 8


def looks_like_hnswlib(path: Path, start: bytes, size: int) -> bool:
    """Whether a file begins with the header of an index: it has no magic number."""
    return start[:8] == bytes(8) and (_whole(path) is not None or _is_empty(path))


def read_hnswlib(path: Path) -> Contents:
    """The vectors of an index that was saved by hnswlib; deleted elements are left out."""
    header = _whole(path)
    if header is None and _is_empty(path):
        raise UncorkError(f"{path} is an index without vectors")
    if header is None:
        raise UncorkError(
            f"{path} is not an index of hnswlib, whatever its name: truncated or damaged"
        )
    elements = Elements(path, header, _HEADER.size)
    kept = elements.kept
    if not len(kept):
        raise UncorkError(f"every element of {path} is marked as deleted")
    labels = elements.labels[kept]
    notes = [APPROXIMATE]
    if len(kept) < header.count:
        notes.append(f"{header.count - len(kept):,} elements are marked as deleted: left out")
    upper_at = _HEADER.size + header.count * header.record
    found = Vectors(
        (len(kept), header.features), "float32", elements.rows, UNSAID,
        "the vectors of an hnswlib index",
        labels=functools.partial(id_labels, labels, "the labels of the index"), notes=tuple(notes),
        links=lambda: elements.links(path, upper_at),
    )  # fmt: skip
    return vectors_of(path, "hnswlib", found)


class Elements:
    """The records of the base level, mapped from where they begin in a file."""

    def __init__(self, path: Path, header: Header, begin: int) -> None:
        if (header.label_at - header.vector_at) % 4:
            raise UncorkError(f"{path} keeps vectors of other values than float32")
        self.path, self.header = path, header
        if begin + header.count * header.record > path.stat().st_size:
            raise UncorkError(f"{path} is truncated: {header.count} elements are expected")
        self.raw = np.memmap(path, np.uint8, "r", begin, (header.count, header.record))
        self.kept = np.flatnonzero((self.raw[:, 2] & _DELETED) == 0)

    @property
    def labels(self) -> np.ndarray:
        """The label of each element: (count,)."""
        header = self.header
        return np.ndarray((header.count,), "<u8", self.raw, header.label_at, (header.record,))

    def rows(self) -> np.ndarray:
        """The vectors of the elements that are not deleted: (kept, features)."""
        header = self.header
        rows = np.ndarray(
            (header.count, header.features), "<f4", self.raw, header.vector_at, (header.record, 4)
        )
        return rows if len(self.kept) == header.count else rows[self.kept]

    def links(self, upper: Path, upper_at: int) -> Links:
        """The graph; the links of the upper levels lie from that byte on to the file's end."""
        header, count = self.header, self.header.count
        items = np.full(count, -1, dtype=np.int64)
        items[self.kept] = np.arange(len(self.kept))
        counts = np.ndarray((count,), "<u2", self.raw, 0, (header.record,))
        table = np.ndarray((count, header.most_base), "<u4", self.raw, 4, (header.record, 4))
        _check_counts(self.path, counts, header.most_base)
        base = level_of(table, counts, np.arange(count), count)
        return Links(header.entry, (base, *_upper(upper, upper_at, header)), items)


def _check_counts(path: Path, counts: np.ndarray, most: int) -> None:
    if counts.max(initial=0) > most:
        raise UncorkError(f"{path}: an element has more links than the index allows: damaged")


def _upper(path: Path, begin: int, header: Header) -> list[Level]:
    """The levels above the base: a length for each element, and that many bytes of lists."""
    data = np.fromfile(path, np.uint8, offset=begin)
    each = 4 + 4 * header.most
    at = 0
    nodes: list[list[int]] = [[] for _ in range(header.top)]
    places: list[list[int]] = [[] for _ in range(header.top)]
    for node in range(header.count):
        if at + 4 > len(data):
            raise UncorkError(f"{path} is truncated: the links of element {node} are missing")
        (length,) = struct.unpack("<I", data[at : at + 4].tobytes())
        at += 4
        if length % each or length // each > header.top or at + length > len(data):
            raise UncorkError(f"{path} is damaged: the links of element {node} take {length} bytes")
        for level in range(length // each):
            nodes[level].append(node)
            places[level].append(at + level * each)
        at += length
    if at != len(data):
        raise UncorkError(f"{path} is damaged: {len(data) - at} bytes are left over at its end")
    levels = []
    for on, begins in zip(nodes, places, strict=True):
        lists = data[np.array(begins, dtype=np.int64)[:, None] + np.arange(each)]
        lists = lists.reshape(len(on), each)
        counts = lists[:, :2].copy().view("<u2").reshape(-1)
        _check_counts(path, counts, header.most)
        table = lists[:, 4:].copy().view("<u4").reshape(len(on), header.most)
        levels.append(level_of(table, counts, np.array(on, dtype=np.int64), header.count))
    return levels
