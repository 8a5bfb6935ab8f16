"""navec: word vectors as product-quantised codes, decoded to the float32 numbers they stand for."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.bounded.archive import Storage
from uncork.loading.bounded.cursor import mapped, opened
from uncork.loading.contents import Contents, Vocabulary
from uncork.loading.vectors.found import Vectors, check_growth, vectors_of

_MOST_WORD = 256  # bytes of a word with its count, on average
_FOLDED = "decoded: product-quantised codes picked from their codebooks"


def is_navec(members: Mapping[str, Storage]) -> bool:
    return {"pq.bin", "vocab.bin"} <= set(members)


def read_navec(path: Path, members: Mapping[str, Storage]) -> Contents:
    """The vectors of the words; navec itself compares them by cosine."""
    place = members["pq.bin"]
    with opened(path) as cursor:
        cursor.at, cursor.end = place.offset, place.offset + place.size
        rows, width, parts, centroids = cursor.unpack("4I", "navec's sizes")
        codes = cursor.skip(rows * parts, "navec's codes")
        books = cursor.at
    # A part of a vector has width / parts numbers, and as many codebooks are there as parts.
    if not parts or not rows or width % parts or not 0 < centroids <= 256:
        raise UncorkError(f"{path}: sizes {rows} × {width} in {parts} parts are none: damaged")
    if books + 4 * width * centroids != place.offset + place.size:
        raise UncorkError(f"{path}: its codebooks do not have the size it says: damaged")
    check_growth(path, rows * width, rows * parts, "navec's codes")

    def read() -> np.ndarray:
        indices = mapped(path, np.uint8, (rows, parts), codes)
        if int(indices.max()) >= centroids:
            raise UncorkError(f"{path}: a code beyond the {centroids} of its codebook: damaged")
        shape = (parts, centroids, width // parts)
        values = mapped(path, np.dtype("<f4"), shape, books)
        return values[np.arange(parts), indices].reshape(rows, width)

    return vectors_of(path, "navec", Vectors(
        (rows, width), "float32", read, "cosine", "navec's vectors of words",
        lambda: _words(path, members["vocab.bin"], rows), (_FOLDED,),
    ))  # fmt: skip


def unpacked(data: bytes, most: int) -> bytes:
    """What was compressed with gzip, all of it; ValueError where it is cut, longer or damaged."""
    unpack = zlib.decompressobj(wbits=31)
    try:
        found = unpack.decompress(data, most)
    except zlib.error as error:
        raise ValueError("damaged") from error
    if not unpack.eof or unpack.unused_data:
        raise ValueError("not whole, or more than one")
    return found


def _words(path: Path, place: Storage, rows: int) -> Vocabulary:
    with path.open("rb") as file:
        file.seek(place.offset)
        data = file.read(place.size)
    try:
        raw = unpacked(data, 4 + _MOST_WORD * rows)
        count = int.from_bytes(raw[:4], "little")
        words = raw[4 + 4 * count :].decode("utf-8").splitlines()
    except ValueError:
        return Vocabulary(None, "vocab.bin is damaged: not used")
    return Vocabulary(tuple(words) if len(words) == rows else None, "vocab.bin")
