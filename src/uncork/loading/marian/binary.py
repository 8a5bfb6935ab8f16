"""Marian's .bin: the tensors of its binary format, intgemm's codes as the numbers they stand for.

The layout is that of Marian's src/common/binary.cpp: headers, names, shapes, then the values, with
padding. intgemm's matrices (src/tensors/cpu/integer_common.h) are codes with one multiplier at
their end: an embedding lies as its shape says, every other matrix transposed.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.bounded.cursor import Cursor, mapped, opened
from uncork.loading.contents import Choice, Contents, Tensor
from uncork.loading.marian.head import with_marian
from uncork.loading.naming import choose_by_name

_VERSION = 1
_TYPES = {
    0x101: "int8", 0x102: "int16", 0x104: "int32", 0x108: "int64", 0x201: "uint8", 0x202: "uint16",
    0x204: "uint32", 0x208: "uint64", 0x402: "float16", 0x404: "float32", 0x408: "float64",
}  # fmt: skip
# Codes in the order of the matrix: Bergamot's numbers, then Marian's own.
_INTGEMM = {0x4101: "int8", 0x4102: "int16", 0x10001: "int8", 0x10002: "int16"}
_PACKED = 0x800  # FBGEMM's
_PREPARED = 0x10000  # intgemm's, with marks of a kind of processor
_MOST_NAME = 1 << 16
_SHORTLISTS = ("lex*.bin", "lex*.gz", "*.s2t*")


@dataclass(frozen=True)
class _Header:
    name_length: int
    kind: int
    dimensions: int
    size: int


def looks_like_marian(start: bytes, size: int) -> bool:
    """Version 1, and a first tensor whose name and type can be one's."""
    if len(start) < 32:
        return False
    version, count, length, kind = struct.unpack("<4Q", start)
    known = kind in _TYPES or kind in _INTGEMM or kind & (_PACKED | _PREPARED)
    return version == _VERSION and 0 < count <= size // 32 and 0 < length <= _MOST_NAME and (
        bool(known)
    )  # fmt: skip


def read_marian(path: Path) -> Contents:
    """The tensors, and the head among them by Marian's own naming and options."""
    with opened(path) as cursor:
        tensors = _tensors(cursor)
    contents = Contents(path, "bin", tensors, functools.partial(choose_by_name, path, tensors))
    contents = with_marian(contents)
    choose = contents.choose

    def noted() -> Choice:
        choice = choose()
        return replace(choice, notes=(*choice.notes, *_notes(path, tensors, choice)))

    return replace(contents, choose=noted)


def _tensors(cursor: Cursor) -> dict[str, Tensor]:
    version, count = cursor.unpack("QQ", "the version")
    if version != _VERSION or count > cursor.left // 32:
        raise UncorkError(
            f"{cursor.path} is damaged: version {version} with {count} tensors by its header"
        )
    headers = [_Header(*cursor.unpack("4Q", "a header")) for _ in range(count)]
    names = [cursor.take(header.name_length, "a name") for header in headers]
    shapes = []
    for header in headers:
        if header.dimensions > cursor.left // 4:
            raise UncorkError(f"{cursor.path} is truncated: a shape of {header.dimensions} numbers")
        shapes.append(cursor.unpack(f"{header.dimensions}i", "a shape"))
    cursor.skip(cursor.number("Q", "the offset of the values"), "padding")
    tensors: dict[str, Tensor] = {}
    for header, raw, shape in zip(headers, names, shapes, strict=True):
        name = raw.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")
        offset = cursor.skip(header.size, f"the values of {printable(name)[:80]!r}")
        tensors.setdefault(name, _tensor(cursor.path, name, shape, header, offset))
    return tensors


def _tensor(path: Path, name: str, shape: tuple[int, ...], header: _Header, offset: int) -> Tensor:
    where = f"{path}: {printable(name)[:80]!r}"
    if any(n < 0 for n in shape) or len(shape) > 32:
        raise UncorkError(f"{where} has shape {list(shape)[:8]}: damaged")
    coded = header.kind in _INTGEMM
    dtype = _INTGEMM.get(header.kind) or _TYPES.get(header.kind)
    if dtype is None:
        return Tensor(name, shape, f"type {header.kind:#x}", functools.partial(_packed, where))
    kind = np.dtype(dtype).newbyteorder("<")
    needed = math.prod(shape) * kind.itemsize + (4 if coded else 0)
    if needed > header.size:
        raise UncorkError(
            f"{where} has shape {list(shape)[:8]}, which takes {needed} bytes, and {header.size} "
            "are there: damaged"
        )
    read = functools.partial(mapped, path, kind, shape, offset)
    if not coded:
        return Tensor(name, shape, dtype, read)
    embedding = "Wemb" in name
    what = "rounded to float32 as Marian loads it" if embedding else "rounded once to float64"
    doubts: tuple[str, ...] = ()
    if name.endswith("_Wt"):
        doubts = (
            f"{printable(name)} holds codes, which Marian's converter writes for an untied output "
            "layer (transposed, as read here) and its own decoder does not run",
        )
    return Tensor(
        name,
        shape,
        "float32" if embedding else "float64",
        functools.partial(_decoded, path, where, kind, shape, offset, embedding),
        folded=(f"dequantised: {dtype} codes over the multiplier at their end, {what}",),
        doubts=doubts,
    )


def _packed(where: str) -> np.ndarray:
    raise UncorkError(
        f"{where} is packed for one kind of processor (FBGEMM, or intgemm prepared): take the "
        "model's .npz, or convert that with --gemm-type float32 or intgemm8"
    )


def _decoded(
    path: Path, where: str, kind: np.dtype, shape: tuple[int, ...], offset: int, embedding: bool
) -> np.ndarray:
    count = math.prod(shape)
    codes = mapped(path, kind, (count,), offset)
    multiplier = mapped(path, "<f4", (1,), offset + count * kind.itemsize)[0]
    if not (np.isfinite(multiplier) and multiplier > 0):
        raise UncorkError(f"{where} has the multiplier {multiplier}: damaged")
    if embedding:
        return codes.reshape(shape) * (np.float32(1) / multiplier)
    columns = shape[-1] if shape else 1
    rows = count // columns if columns else 0
    whole = codes.astype(np.float64) / np.float64(multiplier)
    return whole.reshape(columns, rows).T.reshape(shape)


def _notes(path: Path, tensors: Mapping[str, Tensor], choice: Choice) -> list[str]:
    notes = []
    if tensors[choice.weight_name].folded:
        notes.append(
            "Marian also rounds the head's inputs to 8 or 16 bits there, so near ties can fall "
            "differently"
        )
    found = sorted({one.name for like in _SHORTLISTS for one in path.parent.glob(like)})
    if found:
        notes.append(
            f"a lexical shortlist lies beside the model ({printable(found[0])}): where it is used, "
            "only the words it lists for a sentence compete"
        )
    return notes
