"""The variables of a CTranslate2 model.bin by name: types, codes with their scales, aliases.

The layout is that of CTranslate2's own loader (src/models/model.cc): a version, the name of the
specification and its revision, the variables one after another, then other names for some of them.
"""

from __future__ import annotations

import functools
import math
import struct
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.bounded.cursor import Cursor, mapped, opened
from uncork.loading.contents import Tensor

_VERSIONS = range(2, 7)  # the first had no name of a specification
_TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")  # by number, from version 4
_BY_WIDTH = {1: "int8", 2: "int16", 4: "float32"}  # before
_OLD_INT16_SCALE = 1000.0  # of 16-bit codes that came without a scale


@dataclass(frozen=True)
class Model:
    """A model.bin: the specification it follows, and its variables."""

    path: Path
    specification: str
    version: int
    tensors: dict[str, Tensor]
    aliases: dict[str, str]  # other names, to the stored ones

    def number(self, name: str, default: float) -> float:
        """A single number or flag, as the run-time looks it up."""
        found = self.tensors.get(name)
        if found is None or math.prod(found.shape) != 1:
            return default
        return float(found.read().reshape(-1)[0])

    def same(self, one: str, other: str) -> bool:
        """Whether two names stand for one variable."""
        return self.aliases.get(one, one) == self.aliases.get(other, other)


def looks_like_ctranslate2(start: bytes, size: int) -> bool:
    """A version, the length of a name, and a name such as TransformerSpec."""
    if len(start) < 12:
        return False
    version, length = struct.unpack("<IH", start[:6])
    name = start[6 : 6 + length].rstrip(b"\0")
    known = name.endswith(b"Spec") or name in (b"TransformerBase", b"TransformerBig")
    return 0 < version < 64 and len(name) < length and known


def read_variables(path: Path) -> Model:
    """Every variable by name; none of them is read yet."""
    with opened(path) as cursor:
        version = cursor.number("I", "the version")
        if version not in _VERSIONS:
            raise UncorkError(
                f"{path} is version {version} of CTranslate2's format, and {_VERSIONS[0]} to "
                f"{_VERSIONS[-1]} are read: convert the model again"
            )
        specification = _text(cursor, "the specification's name")
        cursor.number("I", "the revision")
        stored: dict[str, Tensor] = {}
        for _ in range(cursor.number("I", "the number of variables")):
            variable = _variable(cursor, version)
            stored.setdefault(variable.name, variable)
        aliases: dict[str, str] = {}
        if version >= 3:
            for _ in range(cursor.number("I", "the number of aliases")):
                alias = _text(cursor, "an alias")
                aliases.setdefault(alias, _text(cursor, "an alias"))
        if cursor.left:
            raise UncorkError(f"{path} is damaged: {cursor.left} bytes are left after its aliases")
    tensors = _dequantised(path, stored)
    known = {alias: name for alias, name in aliases.items() if name in stored}
    for alias, name in known.items():
        for end in ("", "_scale", "_zero"):
            target = tensors.get(name + end)
            if target is not None:
                part_of = target.part_of and alias
                tensors.setdefault(alias + end, replace(target, name=alias + end, part_of=part_of))
    return Model(path, specification, version, tensors, known)


def _text(cursor: Cursor, what: str) -> str:
    length = cursor.number("H", what)
    data = cursor.take(length, what)
    if not data.endswith(b"\0"):
        raise UncorkError(f"{cursor.path} is damaged: {what} does not end with a zero byte")
    return data[:-1].decode("utf-8", "backslashreplace")


def _variable(cursor: Cursor, version: int) -> Tensor:
    name = _text(cursor, "a variable's name")
    what = f"variable {printable(name)[:80]!r}"
    shape = cursor.unpack(f"{cursor.number('B', what)}I", what)
    kind, size = cursor.unpack("BI", what)
    if version >= 4:
        dtype = _TYPES[kind] if kind < len(_TYPES) else ""
    else:
        dtype, size = _BY_WIDTH.get(kind, ""), size * kind
    if not dtype:
        raise UncorkError(f"{cursor.path}: {what} is of type {kind}, which is not known")
    form = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    if size != math.prod(shape) * form.itemsize:
        raise UncorkError(
            f"{cursor.path} is damaged: {what} has shape {list(shape)[:8]} in {dtype}, and {size} "
            "bytes"
        )
    offset = cursor.skip(size, what)
    return Tensor(name, shape, dtype, functools.partial(mapped, cursor.path, form, shape, offset))


def _dequantised(path: Path, stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """The variables with integer weights as the numbers they stand for: codes over their scale."""
    tensors = dict(stored)
    for name, codes in stored.items():
        if not name.endswith("weight") or codes.dtype not in ("int8", "int16") or not codes.shape:
            continue
        scale = stored.get(f"{name}_scale")
        if scale is None and codes.dtype == "int8":
            raise UncorkError(f"{path} is damaged: {printable(name)} is int8 without a scale")
        over = f"{name}_scale" if scale is not None else f"{_OLD_INT16_SCALE:g}"
        if scale is not None:
            if math.prod(scale.shape) not in (1, codes.shape[0]):
                raise UncorkError(f"{path} is damaged: {scale} does not fit the codes of {codes}")
            tensors[scale.name] = replace(scale, part_of=name)
        folded = f"dequantised: {codes.dtype} codes over {over}, rounded once to float64"
        tensors[name] = replace(
            codes, dtype="float64", folded=(folded,),
            read=functools.partial(_over, path, codes, scale),
        )  # fmt: skip
    return tensors


def _over(path: Path, codes: Tensor, scale: Tensor | None) -> np.ndarray:
    values = np.asarray([_OLD_INT16_SCALE])
    if scale is not None:
        values = scale.read().reshape(-1).astype(np.float64)
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise UncorkError(f"{path} is damaged: {scale} holds scales that are not positive")
    form = (-1, *[1] * (len(codes.shape) - 1))
    with np.errstate(over="ignore"):  # Head names the value it ends in
        return codes.read().astype(np.float64) / values.reshape(form)
