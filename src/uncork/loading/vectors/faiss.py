"""faiss's files: the vectors as the index scores them, codes decoded, and the links of HNSW.

The layout is that of faiss/impl/index_write.cpp (fourccs of faiss 1.5 to 1.15). faiss itself is not
needed. What is nested in an index (storage, coarse quantiser) is read by the same function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.links import Level, Links
from uncork.core.text import printable
from uncork.loading.bounded.cursor import Cursor, mapped, opened
from uncork.loading.contents import Contents, Vocabulary
from uncork.loading.vectors.faiss_codes import (
    Codec,
    flat_codec,
    product_codec,
    scalar_codec,
)
from uncork.loading.vectors.found import APPROXIMATE, Vectors, check_growth, id_labels, vectors_of

_METRICS = {0: "inner", 1: "euclidean"}
_OTHER_METRICS = {
    2: "L1", 3: "Linf", 4: "Lp", 20: "Canberra", 21: "Bray-Curtis", 22: "Jensen-Shannon",
    23: "Jaccard", 24: "NaN-Euclidean", 25: "Gower",
}  # fmt: skip
_DEEPEST = 8  # indices inside an index
_MOST_FEATURES = 1 << 20
# Kinds that are recognised and not read.
_REFUSED = {
    letters: what
    for what, all_letters in {
        "LSH": (b"IxHe", b"IxHE"),
        "a residual quantiser": (b"IxRq", b"IxRQ", b"IwRQ"),
        "a local search quantiser": (b"IxLS", b"IwLS"),
        "a refined index": (b"IxRF", b"IxRP"),
        "IVFPQR": (b"IwQR",),
        "a spectral hash": (b"IwSh",),
        "a deduplicated IVF": (b"IwFd",),
        "NSG": (b"INSf", b"INSp", b"INSs"),
        "NNDescent": (b"INNf",),
        "a two-level HNSW": (b"IHN2",),
        "Cagra": (b"IHNc", b"IHc2"),
        "Panorama": (b"IHfP", b"IxFP", b"IxFp", b"IwP2"),
        "fast scan": (b"IPfs", b"IwPf", b"ILfs", b"IRfs", b"IVLf", b"IVRf"),
        "RaBitQ": (b"Ixrq", b"Iwrq", b"Ixrr", b"Iwrr", b"Irfn", b"Iwrn"),
        "bits": (b"IBxF", b"IBwF", b"IBHf", b"IBMp", b"IBM2"),
    }.items()
    for letters in all_letters
}


@dataclass(frozen=True)
class _Index:
    """An index: how many vectors of how many features, how to decode them, and what is known."""

    count: int
    features: int
    metric: int
    dtype: str
    read: Callable[[], np.ndarray]
    kind: str
    ids: np.ndarray | None = None
    links: Callable[[], Links] | None = None
    folded: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def looks_like_faiss(start: bytes, size: int) -> bool:
    return start[:4] in _READERS or start[:4] in _REFUSED


def read_faiss(path: Path) -> Contents:
    """The vectors of Flat, SQ, PQ, IVF, HNSW, IDMap and PreTransform indices."""
    with opened(path) as cursor:
        index = _read(cursor, 0)
        if cursor.left:
            raise UncorkError(f"{path} is damaged: {cursor.left} bytes follow the index")
    metric = _METRICS.get(index.metric)
    if metric is None:
        name = _OTHER_METRICS.get(index.metric, f"number {index.metric}")
        raise UncorkError(
            f"{path} compares by the metric {name}: only inner products and Euclidean distances "
            "(and cosine, by inner products of rows of length one) are decided"
        )
    if not index.count:
        raise UncorkError(f"{path} is an index without vectors")
    ids = index.ids
    labels = Vocabulary if ids is None else functools.partial(id_labels, ids, "the index's ids")
    found = Vectors(
        (index.count, index.features), index.dtype, index.read, metric,
        f"the vectors of a faiss {index.kind} index", labels, index.folded, index.doubts,
        index.notes, index.links,
    )  # fmt: skip
    return vectors_of(path, "faiss", found)


def _read(cursor: Cursor, depth: int) -> _Index:
    if depth > _DEEPEST:
        raise UncorkError(f"{cursor.path} holds more than {_DEEPEST} indices inside one another")
    letters = cursor.take(4, "the kind of the index")
    reader = _READERS.get(letters)
    if reader is None:
        what = _REFUSED.get(letters, f"kind {printable(letters.decode('latin-1'))!r}")
        raise UncorkError(
            f"{cursor.path} holds a faiss index of {what}, which uncork does not read (Flat, SQ, "
            "PQ, IVF of these, HNSW of these, IDMap and PreTransform are): save what "
            "reconstruct_n gives in Python with numpy.save"
        )
    return reader(cursor, letters, depth)


def _header(cursor: Cursor) -> tuple[int, int, int]:
    """Features, number of vectors, metric."""
    features, count = cursor.unpack("iq", "the index's header")
    cursor.unpack("qqB", "the index's header")
    metric = cursor.number("i", "the index's metric")
    if metric > 1:
        cursor.number("f", "the metric's argument")
    if not 0 < features <= _MOST_FEATURES or count < 0:
        raise UncorkError(
            f"{cursor.path} is damaged: an index of {count} vectors of {features} features"
        )
    return features, count, metric


def _vector(cursor: Cursor, dtype: str, what: str) -> tuple[int, int]:
    """Where a vector of values begins, and how many they are; steps over it."""
    count = cursor.number("Q", what)
    return cursor.skip(count * np.dtype(dtype).itemsize, what), count


def _values(cursor: Cursor, dtype: str, what: str) -> np.ndarray:
    return cursor.array(dtype, cursor.number("Q", what), what)


# Indices that keep their codes in one piece.


def _flat(cursor: Cursor, letters: bytes, depth: int) -> _Index:
    features, count, metric = _header(cursor)
    at, size = _vector(cursor, "<f4", "the vectors")
    if size != count * features:
        raise UncorkError(
            f"{cursor.path} is damaged: {count} vectors of {features} features, and {size} values"
        )
    read = functools.partial(mapped, cursor.path, "<f4", (count, features), at)
    return _Index(count, features, metric, "float32", read, "Flat")


def _codes(cursor: Cursor, codec: Codec, head: tuple[int, int, int], kind: str) -> _Index:
    features, count, metric = head
    at, size = _vector(cursor, "u1", "the codes")
    if size != count * codec.code_size:
        raise UncorkError(
            f"{cursor.path} is damaged: {count} codes of {codec.code_size} bytes, and {size} bytes"
        )
    path = cursor.path
    check_growth(path, count * features, size, "its codes")

    def read() -> np.ndarray:
        return codec.decode(mapped(path, "u1", (count, codec.code_size), at))

    return _Index(count, features, metric, codec.dtype, read, kind, folded=codec.folded)


def _scalar(cursor: Cursor, letters: bytes, depth: int) -> _Index:
    head = _header(cursor)
    return _codes(cursor, scalar_codec(cursor, head[0]), head, "SQ")


def _product(cursor: Cursor, letters: bytes, depth: int) -> _Index:
    head = _header(cursor)
    index = _codes(cursor, product_codec(cursor, head[0]), head, "PQ")
    if letters != b"IxPQ":
        cursor.unpack("iBi", "the search's settings")
    return index


# Inverted files: codes in lists, one for each cell of a coarse quantiser.


def _inverted(cursor: Cursor, letters: bytes, depth: int) -> _Index:
    features, count, metric = _header(cursor)
    lists, probes = cursor.unpack("QQ", "the inverted file's header")
    coarse = _read(cursor, depth + 1)
    direct = cursor.number("B", "the direct map")
    _vector(cursor, "<i8", "the direct map")
    if direct == 2:  # a hash table, as pairs
        cursor.skip(16 * cursor.number("Q", "the direct map"), "the direct map")
    residual = False
    if letters == b"IwFl":
        codec, kind = flat_codec(features), "IVFFlat"
    elif letters == b"IwPQ":
        residual = bool(cursor.number("B", "by_residual"))
        cursor.number("Q", "the size of a code")
        codec, kind = product_codec(cursor, features), "IVFPQ"
    else:
        codec, kind = scalar_codec(cursor, features), "IVFSQ"
        cursor.number("Q", "the size of a code")
        residual = letters == b"IwSQ" or bool(cursor.number("B", "by_residual"))
    runs = _runs(cursor, lists, codec.code_size)
    total = sum(size for _, size, _ in runs)
    if total != count:
        raise UncorkError(f"{cursor.path} is damaged: {count} vectors, and {total} in its lists")
    check_growth(cursor.path, count * features, count * codec.code_size, "its codes")
    if residual and (coarse.features != features or coarse.count < lists):
        raise UncorkError(f"{cursor.path} is damaged: its coarse quantiser does not fit")
    path = cursor.path
    ids = _run_ids(path, runs, codec.code_size)
    order = np.argsort(ids, kind="stable")
    read = functools.partial(
        _gathered, path, runs, codec, order, features, coarse.read if residual else None
    )
    folded = codec.folded
    if residual:
        folded = (*folded, "codes are of differences from the centre of their list: both added")
    notes = (APPROXIMATE, f"a query looks into {probes:,} of {lists:,} lists")
    dtype = "float64" if residual else codec.dtype
    return _Index(
        count, features, metric, dtype, read, kind, ids[order], folded=folded, notes=notes
    )


_Run = tuple[int, int, int]  # the list, how many vectors are in it, where it begins


def _runs(cursor: Cursor, lists: int, code_size: int) -> list[_Run]:
    letters = cursor.take(4, "the inverted lists")
    if letters == b"il00":
        return []
    if letters != b"ilar":
        raise UncorkError(
            f"{cursor.path} keeps its inverted lists as "
            f"{printable(letters.decode('latin-1'))!r}, another file or layout: in faiss, merge "
            "them into the index and write it again"
        )
    count, stored = cursor.unpack("QQ", "the inverted lists")
    if count != lists or stored != code_size:
        raise UncorkError(
            f"{cursor.path} is damaged: {count} lists with codes of {stored} bytes, where "
            f"{lists} lists with codes of {code_size} bytes belong"
        )
    how = cursor.take(4, "the inverted lists")
    sizes = _values(cursor, "<u8", "the sizes of the inverted lists")
    if how == b"full":
        pairs = enumerate(sizes.tolist())
    elif how == b"sprs" and len(sizes) % 2 == 0:
        pairs = zip(sizes[::2].tolist(), sizes[1::2].tolist(), strict=True)  # type: ignore[assignment]
    else:
        raise UncorkError(f"{cursor.path} is damaged: the sizes of its lists")
    runs = []
    for number, size in pairs:
        if number >= lists:
            raise UncorkError(f"{cursor.path} is damaged: list {number} of {lists}")
        if size:
            runs.append((number, size, cursor.skip(size * (code_size + 8), "an inverted list")))
    return runs


def _run_ids(path: Path, runs: list[_Run], code_size: int) -> np.ndarray:
    parts = [mapped(path, "<i8", (size,), at + size * code_size) for _, size, at in runs]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _gathered(
    path: Path,
    runs: list[_Run],
    codec: Codec,
    order: np.ndarray,
    features: int,
    centres: Callable[[], np.ndarray] | None,
) -> np.ndarray:
    """The vectors of all lists, decoded, in the order of their ids."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    middle = None if centres is None else centres()
    rows = np.empty((len(order), features), dtype=np.float64 if middle is not None else codec.kind)
    done = 0
    for number, size, at in runs:
        found = codec.decode(mapped(path, "u1", (size, codec.code_size), at))
        if middle is not None:
            found = middle[number].astype(np.float64) + found
        rows[place[done : done + size]] = found
        done += size
    return rows


# Indices around another.


def _id_map(cursor: Cursor, letters: bytes, depth: int) -> _Index:
    head = _header(cursor)
    inner = _read(cursor, depth + 1)
    ids = _values(cursor, "<i8", "the ids")
    if head[:2] != (inner.features, inner.count) or len(ids) != inner.count:
        raise UncorkError(f"{cursor.path} is damaged: {len(ids)} ids for {inner.count} vectors")
    if inner.ids is None:
        return replace(inner, ids=ids)
    if inner.ids.min(initial=0) < 0 or inner.ids.max(initial=0) >= len(ids):
        raise UncorkError(f"{cursor.path} is damaged: an id of a vector that does not exist")
    return replace(inner, ids=ids[inner.ids])


def _transformed(cursor: Cursor, letters: bytes, depth: int) -> _Index:
    features, count, _ = _header(cursor)
    steps = cursor.number("i", "the number of transforms")
    if not 0 <= steps <= _DEEPEST:
        raise UncorkError(f"{cursor.path} has {steps} transforms before its index: damaged")
    names = [_transform(cursor, depth) for _ in range(steps)]
    inner = _read(cursor, depth + 1)
    if inner.count != count:
        raise UncorkError(
            f"{cursor.path} is damaged: {count} vectors outside, {inner.count} inside"
        )
    doubt = (
        f"a query passes through {', then '.join(names) or 'nothing'} before it is compared: "
        f"vectors and domain are those after it, in {inner.features} features (outside: {features})"
    )
    return replace(inner, kind=f"PreTransform, {inner.kind}", doubts=(doubt, *inner.doubts))


def _transform(cursor: Cursor, depth: int) -> str:
    """Step over a transform of queries; returns what it is."""
    letters = cursor.take(4, "a transform")
    if letters == b"Viqt":
        _vector(cursor, "<f4", "a mean")
        cursor.number("B", "do_pca")
        if depth > _DEEPEST:
            raise UncorkError(f"{cursor.path} has transforms inside transforms: damaged")
        _transform(cursor, depth + 1)
        _transform(cursor, depth + 1)
        name = "ITQ"
    elif letters in (b"rrot", b"LTra", b"Pcam", b"PcAm", b"PCAm", b"Viqm"):
        name = {b"rrot": "a rotation", b"LTra": "a linear map", b"Viqm": "ITQ"}.get(letters, "PCA")
        if letters == b"Viqm":
            cursor.unpack("ii", "an ITQ's settings")
        elif name == "PCA":
            cursor.number("f", "a PCA's settings")
            if letters == b"Pcam":
                cursor.number("f", "a PCA's settings")
            cursor.number("B", "a PCA's settings")
            if letters != b"PCAm":
                cursor.number("i", "a PCA's settings")
            for what in ("mean", "eigenvalues", "matrix"):
                _vector(cursor, "<f4", f"a PCA's {what}")
        cursor.number("B", "have_bias")
        _vector(cursor, "<f4", "a linear map")
        _vector(cursor, "<f4", "a linear map's bias")
    elif letters == b"RmDT":
        _vector(cursor, "<i4", "a remapping")
        name = "a choice of features"
    elif letters == b"VNrm":
        cursor.number("f", "a norm")
        name = "normalisation"
    elif letters == b"VCnt":
        _vector(cursor, "<f4", "a mean")
        name = "centring"
    elif letters == b"HRot":
        cursor.number("I", "a rotation's seed")
        name = "a Hadamard rotation"
    else:
        raise UncorkError(
            f"{cursor.path} has a transform of kind {printable(letters.decode('latin-1'))!r}, "
            "which uncork does not know"
        )
    cursor.unpack("iiB", "a transform's shape")
    return name


def _hnsw(cursor: Cursor, letters: bytes, depth: int) -> _Index:
    features, count, metric = _header(cursor)
    _vector(cursor, "<f8", "the probabilities of levels")
    ends = _values(cursor, "<i4", "the numbers of links by level")
    levels, offsets, neighbours = (
        (dtype, *_vector(cursor, dtype, what))
        for dtype, what in (
            ("<i4", "the levels"), ("<u8", "where links begin"), ("<i4", "the links"),
        )
    )  # fmt: skip
    entry, top, *_ = cursor.unpack("5i", "the entry point")
    storage = _read(cursor, depth + 1)
    if storage.count != count or storage.features != features:
        raise UncorkError(f"{cursor.path} is damaged: its storage does not fit its graph")
    if levels[2] != count or offsets[2] != count + 1:
        raise UncorkError(f"{cursor.path} is damaged: its levels do not fit its vectors")
    path = cursor.path
    # Distances are computed by the storage, whatever the graph's own header says.
    doubts = storage.doubts
    if storage.metric != metric:
        doubts = ("the graph's header names another metric than its storage computes", *doubts)

    def links() -> Links:
        arrays = [
            mapped(path, dtype, (size,), at) for dtype, at, size in (levels, offsets, neighbours)
        ]
        return _walkable(path, entry, top, ends.astype(np.int64), *arrays)

    return replace(
        storage, doubts=doubts, kind=f"HNSW, {storage.kind}", links=links,
        notes=(*storage.notes, APPROXIMATE),
    )  # fmt: skip


def _walkable(
    path: Path,
    entry: int,
    top: int,
    ends: np.ndarray,
    levels: np.ndarray,
    offsets: np.ndarray,
    neighbours: np.ndarray,
) -> Links:
    """The links by level. Those of node i are from offsets[i] on, level by level: of level k from
    ends[k] to ends[k + 1], up to the first −1."""
    count = len(levels)
    deepest = len(ends) - 1
    steps = np.diff(ends)
    begin = offsets.astype(np.int64)
    if (
        not 0 <= top < max(deepest, 1)
        or deepest < 1
        or ends[0] != 0
        or (steps < 0).any()
        or levels.min() < 1
        or levels.max() > deepest
        or begin[0] < 0
        or begin[-1] > len(neighbours)
        or not np.array_equal(np.diff(begin), ends[levels])
    ):
        raise UncorkError(f"{path} is damaged: its links do not fit its levels")
    return Links(
        entry,
        tuple(_level(level, ends, levels, begin, neighbours) for level in range(top + 1)),
        np.arange(count),
    )


def _level(
    level: int, ends: np.ndarray, levels: np.ndarray, begin: np.ndarray, neighbours: np.ndarray
) -> Level:
    on = np.flatnonzero(levels > level)
    width = int(ends[level + 1] - ends[level])
    sizes = np.zeros(len(levels), dtype=np.int64)
    targets = [np.empty(0, dtype=np.int64)]
    step = max(1, (16 << 20) // max(1, width))
    for start in range(0, len(on), step):
        part = on[start : start + step]
        table = neighbours[(begin[part] + ends[level])[:, None] + np.arange(width)]
        used = np.logical_and.accumulate(table >= 0, axis=1)
        sizes[part] = used.sum(axis=1)
        targets.append(table[used].astype(np.int64))
    return Level(np.concatenate([[0], np.cumsum(sizes)]), np.concatenate(targets))


_Reader = Callable[[Cursor, bytes, int], _Index]
_READERS: dict[bytes, _Reader] = {
    **dict.fromkeys((b"IxFI", b"IxF2", b"IxFl"), _flat),
    b"IxSQ": _scalar,
    **dict.fromkeys((b"IxPq", b"IxPo", b"IxPQ"), _product),
    **dict.fromkeys((b"IwFl", b"IwSq", b"IwSQ", b"IwPQ"), _inverted),
    **dict.fromkeys((b"IxMp", b"IxM2"), _id_map),
    b"IxPT": _transformed,
    **dict.fromkeys((b"IHNf", b"IHNp", b"IHNs", b"IH00"), _hnsw),
}
