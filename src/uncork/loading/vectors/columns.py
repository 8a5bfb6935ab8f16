"""Columns of vectors in Parquet, Arrow, Feather and Lance, read with pyarrow (and pylance)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.contents import Contents, Tensor, Vocabulary
from uncork.loading.vectors.found import named_vectors

_LABELS = (
    "title",
    "name",
    "word",
    "token",
    "label",
    "id",
    "_id",
    "key",
    "item_id",
    "doc_id",
    "url",
)
_GROWN = 256 << 20
_MOST_GROWTH = 200  # vectors hardly compress: more than this is a file made to fill the memory
_ReadColumn = Callable[[str], Any]  # a pyarrow ChunkedArray


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise UncorkError(f"reading {path} needs pyarrow: pip install 'uncork[parquet]'") from None
    return pyarrow


def read_parquet(path: Path) -> Contents:
    """The vectors in the columns of a Parquet file."""
    _pyarrow(path)
    from pyarrow import parquet

    file = parquet.ParquetFile(path, memory_map=True)
    _check_growth(path, file.metadata)
    return _contents(
        path, "parquet", file.schema_arrow, file.metadata.num_rows,
        lambda name: parquet.ParquetFile(path, memory_map=True).read([name]).column(0),
    )  # fmt: skip


def _check_growth(path: Path, metadata: Any) -> None:
    grown = sum(metadata.row_group(k).total_byte_size for k in range(metadata.num_row_groups))
    size = path.stat().st_size
    if grown > _GROWN and grown > _MOST_GROWTH * size:
        raise UncorkError(
            f"{path} grows {grown // size}-fold to {grown:,} bytes when unpacked, which no file of "
            "vectors does: damaged"
        )


def read_arrow(path: Path) -> Contents:
    """The vectors in the columns of an Arrow or Feather (version 2) file, mapped."""
    pyarrow = _pyarrow(path)

    @functools.lru_cache(maxsize=1)
    def table() -> Any:
        found = pyarrow.ipc.open_file(pyarrow.memory_map(str(path))).read_all()
        found.validate(full=True)
        return found

    return _contents(path, "arrow", table().schema, table().num_rows, lambda name: table()[name])


def read_lance(path: Path) -> Contents:
    """The vectors in the columns of a Lance dataset, its newest version."""
    _pyarrow(path)
    try:
        import lance
    except ImportError:
        raise UncorkError(f"reading {path} needs pylance: pip install 'uncork[lance]'") from None
    data = lance.dataset(str(path))
    return _contents(
        path, "lance", data.schema, data.count_rows(),
        lambda name: data.to_table(columns=[name]).column(0),
    )  # fmt: skip


def _contents(path: Path, kind: str, schema: Any, rows: int, column: _ReadColumn) -> Contents:
    tensors = {}
    for field in schema:
        width = _width(field.type)
        if width is not None:
            read = functools.partial(_matrix, path, column, field.name, rows)
            width = width or _first_width(path, column, field.name)
            dtype = str(field.type.value_type).replace("halffloat", "float16")
            dtype = {"double": "float64", "float": "float32"}.get(dtype, dtype)
            tensors[field.name] = Tensor(field.name, (rows, width), dtype, read)
    if not tensors:
        columns = ", ".join(f"{printable(f.name)} ({f.type})" for f in list(schema)[:8])
        raise UncorkError(
            f"{path} has no column of vectors (lists of numbers): there are {columns or 'none'}"
        )
    if not rows:
        raise UncorkError(f"{path} has no rows")
    return named_vectors(path, kind, tensors, functools.partial(_labels, schema, column))


def _width(kind: Any) -> int | None:
    """How long the lists of a column are: 0 where its type does not say, None if it has none."""
    from pyarrow import types

    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not lists:
        return None
    if not (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)):
        return None
    return int(kind.list_size) if types.is_fixed_size_list(kind) else 0


def _first_width(path: Path, column: _ReadColumn, name: str) -> int:
    found = column(name)
    return len(found[0].as_py() or ()) if len(found) else 0


def _matrix(path: Path, column: _ReadColumn, name: str, rows: int) -> np.ndarray:
    found = column(name)
    found.validate(full=True)
    shown = printable(name)
    if found.null_count:
        raise UncorkError(f"{path}: column {shown} has {found.null_count} rows without a vector")
    width = 0
    parts = []
    for chunk in found.chunks:
        if not len(chunk):
            continue
        # `flatten` and not `values`: a chunk may be a part of a longer array.
        values = chunk.flatten()
        if values.null_count:
            raise UncorkError(f"{path}: column {shown} has vectors with missing values")
        lengths = chunk.value_lengths() if hasattr(chunk, "value_lengths") else None
        here = len(values) // len(chunk)
        if here * len(chunk) != len(values) or (width and here != width):
            raise UncorkError(f"{path}: column {shown} has vectors of different lengths")
        if lengths is not None and (lengths.to_numpy(zero_copy_only=False) != here).any():
            raise UncorkError(f"{path}: column {shown} has vectors of different lengths")
        width = here
        parts.append(values.to_numpy(zero_copy_only=False).reshape(len(chunk), here))
    if not parts or not width:
        raise UncorkError(f"{path}: column {shown} holds no vectors")
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _labels(schema: Any, column: _ReadColumn, rows: int) -> Vocabulary:
    from pyarrow import types

    for name in _LABELS:
        if schema.get_field_index(name) >= 0:
            kind = schema.field(name).type
            if types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind):
                found = column(name)
                if not found.null_count:
                    texts = tuple(str(one) for one in found.to_pylist())
                    return Vocabulary(texts, f"column {printable(name)}")
    return Vocabulary()
