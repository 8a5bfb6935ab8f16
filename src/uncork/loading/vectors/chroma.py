"""Chroma's folders: the vectors of its collections, from its hnswlib files and its SQLite database.

A collection's vectors lie in a folder of hnswlib files, written now and then; what was added since
waits in the table `embeddings_queue`. Ids lie in a pickle, which is decoded and not executed
(Chroma 0.4 to 1.5).
"""

from __future__ import annotations

import io
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.contents import Contents, Tensor, Vocabulary
from uncork.loading.torch.pickle_decoder import MOST_BYTES, PickleError, Table, decode
from uncork.loading.vectors.found import named_vectors
from uncork.loading.vectors.hnswlib import HEADER_SIZE, Elements, header_of

_DATABASE = "chroma.sqlite3"
_SPACES = {"l2": "euclidean", "ip": "inner", "cosine": "cosine"}
_SEGMENT = re.compile(r"[0-9a-fA-F-]{36}")
_TABLES = ("collections", "segments", "collection_metadata", "max_seq_id", "embeddings_queue")
_MOST_STEPS = 2_000_000_000  # of SQLite's machine: what a view or a damaged index may cost
_MOST_COLLECTIONS = 1000
_DELETE = 3


@dataclass(frozen=True)
class _Collection:
    key: str
    name: str
    metric: str
    segment: str | None


def read_chroma(path: Path) -> Contents:
    """The collections of a folder; where there are several, one is named with --weight."""
    with _opened(path / _DATABASE) as database:
        collections = list(_collections(path, database))
        if not collections:
            raise UncorkError(f"{path} is a folder of Chroma without collections")
        found = {one.name: _vectors(path, database, one) for one in collections}
    filled = {name: held for name, held in found.items() if held[0]}
    if not filled:
        raise UncorkError(f"{path}: the collections of Chroma in it hold no vectors")
    tensors = {name: _tensor(path, name, rows) for name, (_, rows) in filled.items()}
    metrics = {one.name: one.metric for one in collections if one.name in filled}

    def labels(rows: int) -> Vocabulary:
        # A collection is known here by its size alone.
        named = [ids for ids, _ in filled.values() if len(ids) == rows]
        if len(named) != 1:
            return Vocabulary(source="several collections have as many vectors")
        return Vocabulary(tuple(named[0]), "the ids of the collection")

    return named_vectors(path, "chroma", tensors, labels, metrics)


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The database, read only, with a limit on what a query costs."""
    log = path.with_name(f"{path.name}-wal")
    if log.is_file() and log.stat().st_size:
        raise UncorkError(
            f"{path} has changes that wait in {log.name}: end the Chroma that uses it"
        )
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as database:
            steps = iter(range(_MOST_STEPS // 1_000_000))
            database.set_progress_handler(lambda: int(next(steps, None) is None), 1_000_000)
            database.execute("PRAGMA trusted_schema = OFF")
            kinds = dict(database.execute("SELECT name, type FROM sqlite_master"))
            missing = [name for name in _TABLES if kinds.get(name) != "table"]
            if missing:
                raise UncorkError(f"{path} is not a Chroma database: it has no table {missing[0]}")
            yield database
    except sqlite3.Error as error:
        raise UncorkError(f"{path} cannot be read: {printable(str(error))}") from error


def _collections(path: Path, database: sqlite3.Connection) -> Iterator[_Collection]:
    columns = [row[1] for row in database.execute("PRAGMA table_info(collections)")]
    more = [name for name in ("config_json_str", "schema_str") if name in columns]
    rows = database.execute(
        f"SELECT {', '.join(['id', 'name', *more])} FROM collections"
    ).fetchmany(_MOST_COLLECTIONS)
    for key, name, *settings in rows:
        said = [
            value for (value,) in database.execute(
                "SELECT str_value FROM collection_metadata WHERE collection_id = ? AND "
                "key = 'hnsw:space'", (key,),
            )
        ]  # fmt: skip
        said += [space for text in settings for space in _spaces(text)]
        space = next((one for one in said if one is not None), "l2")  # Chroma's default
        if space not in _SPACES:
            raise UncorkError(f"{path}: collection {printable(str(name))} compares by {space!r}")
        segments = [
            str(one) for (one,) in database.execute(
                "SELECT id FROM segments WHERE collection = ? AND scope = 'VECTOR'", (key,)
            )
        ]  # fmt: skip
        segment = segments[0] if segments and _SEGMENT.fullmatch(segments[0]) else None
        yield _Collection(str(key), str(name), _SPACES[space], segment)


def _spaces(text: Any) -> Iterator[str]:
    """The metric that a collection's configuration names, of the index that is in use."""
    try:
        value = json.loads(text or "null")
    except (ValueError, TypeError, RecursionError):
        return
    if not isinstance(value, dict):
        return
    places = (
        ("keys", "#embedding", "float_list", "vector_index", "config", "space"),
        ("defaults", "float_list", "vector_index", "config", "space"),
        ("hnsw", "space"), ("vector_index", "hnsw", "space"),
        ("hnsw_configuration", "space"),
    )  # fmt: skip
    for place in places:
        found: Any = value
        for key in place:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, str):
            yield found


def _vectors(
    path: Path, database: sqlite3.Connection, one: _Collection
) -> tuple[list[str], np.ndarray]:
    """Ids and vectors of a collection: what its files hold, and what came after."""
    held: dict[str, np.ndarray] = {}
    after = -1
    if one.segment is not None and (path / one.segment / "header.bin").is_file():
        held = _stored(path / one.segment)
        last = database.execute(
            "SELECT seq_id FROM max_seq_id WHERE segment_id = ?", (one.segment,)
        )
        after = next((int(number) for (number,) in last if isinstance(number, int)), -1)
    queue = database.execute(
        "SELECT operation, id, vector, encoding FROM embeddings_queue "
        "WHERE topic LIKE ? AND seq_id > ? ORDER BY seq_id", (f"%{one.key}", after),
    )  # fmt: skip
    for operation, key, vector, encoding in queue:
        if operation == _DELETE:
            held.pop(str(key), None)
        elif isinstance(vector, bytes):
            if encoding not in (None, "FLOAT32") or len(vector) % 4:
                raise UncorkError(f"{path} holds vectors that are not of float32 values")
            held[str(key)] = np.frombuffer(vector, "<f4")
    widths = {len(row) for row in held.values()}
    if len(widths) > 1:
        raise UncorkError(f"{path}: vectors of one collection have different lengths: damaged")
    return list(held), np.stack(list(held.values())) if held else np.empty((0, 0), np.float32)


def _stored(folder: Path) -> dict[str, np.ndarray]:
    """Vectors by id, from a folder of hnswlib files."""
    with (folder / "header.bin").open("rb") as file:
        header = header_of(file.read(4 + HEADER_SIZE)[4:])  # after the version of the format
    pickled = folder / "index_metadata.pickle"
    if header is None or not pickled.is_file():
        return {}  # nothing has been written yet: everything is in the queue
    elements = Elements(folder / "data_level0.bin", header, 0)
    names = _names(pickled)
    found = {}
    for label, row in zip(elements.labels[elements.kept].tolist(), elements.rows(), strict=True):
        if label not in names:
            raise UncorkError(f"{pickled} has no id for element {label}: damaged")
        found[names[label]] = row
    return found


def _names(path: Path) -> dict[int, str]:
    """The id of each label, from a pickle that is read as data."""
    if path.stat().st_size > MOST_BYTES:
        raise UncorkError(f"{path} is too large to be read as data")
    try:
        value = decode(io.BytesIO(path.read_bytes())).value
    except PickleError as error:
        raise UncorkError(f"{path} cannot be read: {error}") from error
    state = value if isinstance(value, Table) else getattr(value, "state", None)
    table = state.get("id_to_label") if isinstance(state, Table) else None
    if not isinstance(table, Table):
        raise UncorkError(f"{path} holds no table of ids")
    return {label: str(name) for name, label in table.pairs if isinstance(label, int)}


def _tensor(path: Path, name: str, rows: np.ndarray) -> Tensor:
    return Tensor(name, rows.shape, "float32", lambda: rows)
