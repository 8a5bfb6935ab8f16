"""The codes of faiss: what the bytes of a scalar or product quantiser stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.bounded.cursor import Cursor

_MOST_CODES = 1 << 16
_LAST_BIT = (
    "dequantised: 8-, 6- and 4-bit codes times the range of their feature, in float32 (faiss's own "
    "arithmetic differs in the last bit from one processor to another)"
)


@dataclass(frozen=True)
class Codec:
    """Codes of `code_size` bytes, and what (n, code_size) of them decode to: (n, features)."""

    code_size: int
    kind: Any  # the NumPy type of what is decoded
    decode: Callable[[np.ndarray], np.ndarray]
    folded: tuple[str, ...] = ()

    @property
    def dtype(self) -> str:
        return np.dtype(self.kind).name


def flat_codec(features: int) -> Codec:
    """Vectors in float32, as they are."""
    return Codec(4 * features, np.float32, lambda codes: codes.view("<f4"))


def scalar_codec(cursor: Cursor, features: int) -> Codec:
    """A quantiser of single values, as the file describes it."""
    kind, _, _ = cursor.unpack("iif", "the scalar quantiser")
    wide, code_size = cursor.unpack("QQ", "the scalar quantiser")
    trained = cursor.array("<f4", cursor.number("Q", "its ranges"), "its ranges")
    codec = _scalar(kind, features, trained)
    if codec is None or wide != features or code_size != codec.code_size:
        raise UncorkError(
            f"{cursor.path} holds codes of faiss's kind {kind}, {code_size} bytes for {wide} "
            "features, which uncork does not decode: save what reconstruct_n gives with numpy.save"
        )
    return codec


def _scalar(kind: int, features: int, trained: np.ndarray) -> Codec | None:
    bits = {0: 8, 1: 4, 2: 8, 3: 4, 6: 6}.get(kind)
    if bits is not None:
        shared = kind in (2, 3)
        if len(trained) != (2 if shared else 2 * features):
            return None
        low, width = (trained[0], trained[1]) if shared else np.split(trained, 2)
        size = (features * bits + 7) // 8

        def decode(codes: np.ndarray) -> np.ndarray:
            share = (_unpacked(codes, bits, features).astype(np.float32) + np.float32(0.5)) / (
                np.float32(2**bits - 1)
            )
            return np.asarray(low + share * width, dtype=np.float32)

        return Codec(size, np.float32, decode, (_LAST_BIT,))
    if kind == 4:
        return Codec(2 * features, np.float16, lambda codes: codes.view("<f2"))
    if kind == 5:
        return Codec(features, np.uint8, lambda codes: codes)
    if kind == 7:
        return Codec(2 * features, ml_dtypes.bfloat16, lambda codes: codes.view(ml_dtypes.bfloat16))
    if kind == 8:
        return Codec(features, np.int8, lambda codes: (codes ^ np.uint8(128)).view(np.int8))
    return None


def product_codec(cursor: Cursor, features: int) -> Codec:
    """A product quantiser: each part of a vector is one of 2^bits centroids of its own."""
    wide, parts, bits = cursor.unpack("QQQ", "the product quantiser")
    centroids = cursor.array("<f4", cursor.number("Q", "the centroids"), "the centroids")
    if wide != features or not 0 < parts <= features or features % parts or not 0 < bits <= 16:
        raise UncorkError(
            f"{cursor.path} is damaged: {parts} parts of {bits} bits for {features} features"
        )
    each = features // parts
    if 2**bits > _MOST_CODES or len(centroids) != parts * 2**bits * each:
        raise UncorkError(f"{cursor.path} is damaged: {len(centroids)} values of centroids")
    table = centroids.reshape(parts, 2**bits, each)
    which = np.arange(parts)

    def decode(codes: np.ndarray) -> np.ndarray:
        rows = np.empty((len(codes), features), dtype=np.float32)
        step = max(1, (16 << 20) // features)
        for start in range(0, len(codes), step):
            chosen = _unpacked(codes[start : start + step], bits, parts)
            rows[start : start + step] = table[which, chosen].reshape(-1, features)
        return rows

    text = f"decoded: {parts} codes of {bits} bits, each one of {2**bits:,} centroids"
    return Codec((parts * bits + 7) // 8, np.float32, decode, (text,))


def _unpacked(codes: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Numbers of so many bits, the lowest bits of the first byte first: (n, bytes) → (n, count)."""
    if bits == 8:
        return codes[:, :count]
    if bits == 16:
        return codes.view("<u2")[:, :count]
    every = np.unpackbits(codes, axis=1, bitorder="little")[:, : count * bits]
    weights = (1 << np.arange(bits)).astype(np.int32)
    return np.asarray(every.reshape(len(codes), count, bits) @ weights)
