"""usearch's files: vectors, keys and links, mapped; the header names metric and type.

The layout is that of `index_dense_gt::save_to_stream` (usearch 2): the matrix, a header of 64 bytes
that begins with "usearch", and the graph.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.links import Level, Links, level_of
from uncork.core.text import printable
from uncork.loading.bounded.cursor import mapped
from uncork.loading.contents import Contents, Vocabulary
from uncork.loading.vectors.found import APPROXIMATE, Vectors, id_labels, vectors_of

_MAGIC = b"usearch"
_HEAD = 64
_GRAPH = struct.Struct("<5Q")
_METRICS = {ord("i"): "inner", ord("c"): "cosine", ord("e"): "euclidean"}
_TYPES: dict[int, Any] = {
    4: ml_dtypes.bfloat16, 5: ml_dtypes.float8_e5m2, 6: ml_dtypes.float8_e4m3fn, 10: np.float64,
    11: np.float32, 12: np.float16, 17: np.uint8, 23: np.int8,
}  # fmt: skip
_KEY, _SLOT = 14, 15  # u64 and u32
_FREE = 2**64 - 1  # the key of what was removed
_LEVELS = 1 << 10


@dataclass(frozen=True)
class _Layout:
    """Where the parts of a file begin."""

    rows: int
    bytes_each: int
    head_at: int
    matrix_at: int

    @property
    def graph_at(self) -> int:
        return self.head_at + _HEAD


def _layout(path: Path, start: bytes, size: int) -> _Layout | None:
    """By the matrix's size in 32 or 64 bits, after which the header must stand."""
    with path.open("rb") as file:
        for layout, begin in (("<II", 8), ("<QQ", 16)):
            rows, each = struct.unpack_from(layout, start)
            at = begin + rows * each
            if at + _HEAD > size:
                continue
            file.seek(at)
            if file.read(len(_MAGIC)) == _MAGIC:
                return _Layout(rows, each, at, begin)
    return None


def looks_like_usearch(path: Path, start: bytes, size: int) -> bool:
    return len(start) >= 16 and (start.startswith(_MAGIC) or _layout(path, start, size) is not None)


def read_usearch(path: Path) -> Contents:
    """The vectors of an index that was saved by usearch; removed ones are left out."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(16)
    if start.startswith(_MAGIC):
        raise UncorkError(
            f"{path} is an index that was saved without its vectors: give the file of vectors"
        )
    layout = _layout(path, start, size) if len(start) == 16 else None
    if layout is None:
        raise UncorkError(
            f"{path} is not an index of usearch, whatever its name: truncated or damaged"
        )
    with path.open("rb") as file:
        file.seek(layout.head_at)
        head = file.read(_HEAD)
    metric, scalar, key, slot, _, _, features = struct.unpack_from("<4B3Q", head, 13)
    if metric not in _METRICS:
        raise UncorkError(
            f"{path} compares by usearch's metric {printable(chr(metric))!r}: only inner products, "
            "cosine and Euclidean distances are decided"
        )
    kind = _TYPES.get(scalar)
    if kind is None or key != _KEY or slot != _SLOT:
        raise UncorkError(
            f"{path} keeps vectors or keys of a type that uncork does not read (usearch's types "
            f"{scalar}, {key}, {slot}): index numbers, with keys of 64 bits"
        )
    if features < 1 or features * np.dtype(kind).itemsize != layout.bytes_each:
        raise UncorkError(
            f"{path} is damaged: {layout.bytes_each} bytes for {features} values of "
            f"{np.dtype(kind).name}"
        )
    return _contents(path, layout, _METRICS[metric], kind, features)


def _contents(path: Path, layout: _Layout, metric: str, kind: Any, features: int) -> Contents:
    nodes = _nodes(path, layout)
    kept = np.flatnonzero(nodes.keys != _FREE)
    if not len(kept):
        raise UncorkError(f"{path} is an index without vectors")
    everything = len(kept) == layout.rows

    def read() -> np.ndarray:
        rows = mapped(path, kind, (layout.rows, features), layout.matrix_at)
        return rows if everything else rows[kept]

    notes = [APPROXIMATE]
    if not everything:
        notes.append(f"{layout.rows - len(kept):,} vectors were removed from the index: left out")
    if np.dtype(kind).itemsize < 4:
        notes.append(f"queries are rounded to {np.dtype(kind).name} too before they are compared")

    def labels() -> Vocabulary:
        return id_labels(nodes.keys[kept], "the keys of the index")

    found = Vectors(
        (len(kept), features), np.dtype(kind).name, read, metric,
        "the vectors of a usearch index", labels, notes=tuple(notes),
        links=functools.partial(_links, path, nodes, kept),
    )  # fmt: skip
    return vectors_of(path, "usearch", found)


@dataclass(frozen=True)
class _Nodes:
    """The records of the graph: keys, levels, and where each begins."""

    keys: np.ndarray
    levels: np.ndarray
    begin: np.ndarray
    entry: int
    top: int
    most: int
    most_base: int
    data: np.ndarray


def _nodes(path: Path, layout: _Layout) -> _Nodes:
    data = np.memmap(path, np.uint8, "r", layout.graph_at)
    if len(data) < _GRAPH.size:
        raise UncorkError(f"{path} is truncated: its graph is missing")
    count, most, most_base, top, entry = _GRAPH.unpack(bytes(data[: _GRAPH.size]))
    if count != layout.rows:
        raise UncorkError(f"{path} is damaged: {layout.rows} vectors and {count} nodes")
    if count == 0:
        raise UncorkError(f"{path} is an index without vectors")
    if not 0 < most < 1 << 16 or not 0 < most_base < 1 << 16 or top >= _LEVELS:
        raise UncorkError(f"{path} is damaged: the size of its graph")
    at = _GRAPH.size + 2 * count
    if at > len(data):
        raise UncorkError(f"{path} is truncated: the levels of its nodes are missing")
    levels = data[_GRAPH.size : at].view("<i2").astype(np.int64)
    if levels.min() < 0 or levels.max() > top:
        raise UncorkError(f"{path} is damaged: a node above the top level")
    sizes = 10 + 4 + 4 * most_base + levels * (4 + 4 * most)
    ends = at + np.cumsum(sizes)
    if ends[-1] > len(data):
        raise UncorkError(f"{path} is truncated: {ends[-1] - len(data)} bytes of its graph")
    begin = ends - sizes
    keys = data[begin[:, None] + np.arange(8)].reshape(count, 8).view("<u8").reshape(-1)
    return _Nodes(keys, levels, begin, entry, top, most, most_base, data)


def _links(path: Path, nodes: _Nodes, kept: np.ndarray) -> Links:
    items = np.full(len(nodes.keys), -1, dtype=np.int64)
    items[kept] = np.arange(len(kept))
    levels = [_level(path, nodes, level) for level in range(nodes.top + 1)]
    return Links(nodes.entry, tuple(levels), items)


def _level(path: Path, nodes: _Nodes, level: int) -> Level:
    on = np.flatnonzero(nodes.levels >= level)
    most = nodes.most if level else nodes.most_base
    skip = 10 + (4 + 4 * nodes.most_base + (level - 1) * (4 + 4 * nodes.most) if level else 0)
    width = 4 + 4 * most
    lists = np.asarray(nodes.data)[(nodes.begin[on] + skip)[:, None] + np.arange(width)]
    table = lists.reshape(len(on), width).view("<u4")
    counts = table[:, 0].astype(np.int64)
    if counts.max(initial=0) > most:
        raise UncorkError(f"{path} is damaged: a node has more links than the index allows")
    return level_of(table[:, 1:], counts, on, len(nodes.levels))
