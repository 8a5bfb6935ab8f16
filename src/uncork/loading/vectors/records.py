"""Vectors in JSON and JSON lines: lists of numbers, records with a vector, exports of databases.

Read are lists of lists, records as a scroll of Qdrant gives them (`{"id": …, "vector": …}`, named
vectors too), what `collection.get` of Chroma gives (`{"ids": …, "embeddings": …}`), answers of
embedding services (`{"data": [{"embedding": …}]}`), and tables from words to vectors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.contents import Contents, Tensor, Vocabulary
from uncork.loading.vectors.found import named_vectors

_LOOKED_AT = 1 << 16
_LARGEST = 2 << 30  # bytes of one JSON value; lines are read one by one
_VECTOR = ("vector", "embedding", "values", "vec", "emb", "dense_vector", "vectors", "embeddings")
_ID = ("id", "_id", "key", "word", "token", "title", "name")
_LISTS = ("points", "data", "vectors", "records", "items", "result", "hits")
_DEEPEST = 5
_SHAPES = (
    re.compile(rb"^\s*\[\s*\[\s*-?\d"),
    re.compile(
        rb'"(vector|embedding|values|vec|emb|dense_vector|vectors|embeddings)"\s*:\s*[\[{]\s*["\[{\-\d]'
    ),
    re.compile(rb'^\s*\{\s*"[^"]*"\s*:\s*\[\s*-?\d'),
)
_NOT_THESE = re.compile(r"(config|index|tokenizer\w*|vocab|special_tokens_map|added_tokens)\.json$")


def looks_like_json_vectors(path: Path, start: bytes, size: int) -> bool:
    if start.lstrip()[:1] not in (b"{", b"[") or _NOT_THESE.search(path.name.lower()):
        return False
    with path.open("rb") as file:
        begin = file.read(_LOOKED_AT)
    return any(shape.search(begin) for shape in _SHAPES)


def read_json(path: Path) -> Contents:
    """The vectors of a JSON file, with their ids; numbers are JSON's, in float64."""
    ids: list[str] = []
    columns: dict[str, list[Any]] = {}
    for number, (label, vectors) in enumerate(_records(_values(path), path)):
        ids.append(str(number) if label is None else str(label))
        for name, vector in vectors.items():
            column = columns.setdefault(name, [])
            if len(column) != number:
                raise UncorkError(f"{path}: record {len(column)} has no vector {printable(name)!r}")
            column.append(vector)
    if not columns:
        raise UncorkError(f"{path} is JSON in which no vectors were found")
    short = next((name for name, rows in columns.items() if len(rows) != len(ids)), None)
    if short is not None:
        raise UncorkError(
            f"{path}: record {len(columns[short])} has no vector {printable(short)!r}"
        )
    tensors = {name: _tensor(path, name, rows) for name, rows in columns.items()}

    def labels(rows: int) -> Vocabulary:
        counted = all(label == str(at) for at, label in enumerate(ids))
        return Vocabulary() if counted else Vocabulary(tuple(ids), "the ids in the file")

    return named_vectors(path, "json", tensors, labels)


def _tensor(path: Path, name: str, rows: list[Any]) -> Tensor:
    width = len(rows[0])
    for at, row in enumerate(rows):
        if len(row) != width:
            raise UncorkError(
                f"{path}: the vector of record {at} has {len(row)} values and the first has {width}"
            )
    try:
        matrix = np.array(rows, dtype=np.float64).reshape(len(rows), width)
    except (TypeError, ValueError, OverflowError) as error:
        raise UncorkError(f"{path}: a vector holds something other than numbers") from error
    return Tensor(name, matrix.shape, "float64", lambda: matrix)


def _values(path: Path) -> Iterator[Any]:
    """The value of a JSON file, or of each of its lines."""
    with path.open("rb") as file:
        first = file.readline(_LARGEST)
        rest = file.read(1)
    try:
        if rest and first.strip():
            value = json.loads(first)
            yield value
            with path.open("rb") as file:
                file.readline()
                for line in file:
                    if line.strip():
                        yield json.loads(line)
            return
    except ValueError:
        if first.strip().endswith((b"}", b"]")) and first.strip() not in (b"{", b"["):
            raise UncorkError(f"{path} has a line that is no JSON: truncated or damaged") from None
    if path.stat().st_size > _LARGEST:
        raise UncorkError(f"{path} is one JSON value of more than 2 GiB: give one record a line")
    try:
        yield json.loads(path.read_bytes())
    except ValueError as error:
        raise UncorkError(f"{path} is no JSON: truncated or damaged ({error})") from None


_Record = tuple[Any, dict[str, Any]]  # the id, and the vectors by name


def _records(values: Iterable[Any], path: Path) -> Iterator[_Record]:
    number = 0
    for value in values:
        for found in _within(value, 0):
            if found is None:
                raise UncorkError(
                    f"{path}: record {number} has no vector: expected a list of numbers, or one "
                    f"under {', '.join(_VECTOR[:3])}"
                )
            yield found
            number += 1


def _is_vector(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(one, int | float) and not isinstance(one, bool) for one in value)
    )


def _within(value: Any, depth: int) -> Iterator[_Record | None]:
    """The records in a JSON value, however they are wrapped; None for one without a vector."""
    if _is_vector(value):
        yield None, {"vectors": value}
    elif isinstance(value, list) and value and depth < _DEEPEST:
        for one in value:
            yield from _within(one, depth + 1)
    elif isinstance(value, dict) and value and depth < _DEEPEST:
        yield from _of_table(value, depth)
    else:
        yield None


def _of_table(value: dict[str, Any], depth: int) -> Iterator[_Record | None]:
    ids, rows = value.get("ids"), value.get("embeddings")
    if isinstance(ids, list) and isinstance(rows, list) and len(ids) == len(rows):  # Chroma
        for label, row in zip(ids, rows, strict=True):
            yield (label, {"embeddings": row}) if _is_vector(row) else None
        return
    vectors = _named(value)
    if vectors:
        yield next((value[key] for key in _ID if key in value), None), vectors
        return
    inside = next((value[key] for key in _LISTS if isinstance(value.get(key), list | dict)), None)
    if inside is not None:
        yield from _within(inside, depth + 1)
        return
    for label, row in value.items():  # a table from words to vectors, or to records
        vectors = _named(row) if isinstance(row, dict) else {}
        if _is_vector(row):
            vectors = {"vectors": row}
        yield (label, vectors) if vectors else None


def _named(value: dict[str, Any]) -> dict[str, Any]:
    """The vectors of a record by name: one, or a table of several as Qdrant keeps them."""
    for key in _VECTOR:
        held = value.get(key)
        if _is_vector(held):
            return {key: held}
        if isinstance(held, dict):
            several = {name: row for name, row in held.items() if _is_vector(row)}
            if several and len(several) == len(held):
                return several
    return {}
