"""A store's rows as CSV, JSON lines or Parquet, written whole or not at all."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError
from uncork.core.whole_file import whole_file

SUFFIXES = (".csv", ".jsonl", ".parquet")
_COLUMNS = (
    "audit", "name", "group", "fingerprint", "metric", "domain", "class", "label", "verdict",
    "margin", "iterations", "stolen_by", "reason", "weight", "doubts",
)  # fmt: skip
_BATCH = 50_000
Row = dict[str, Any]


def check_export(path: str | os.PathLike[str]) -> None:
    """Raise now if rows could not be written to that file."""
    if Path(path).suffix not in SUFFIXES:
        raise UncorkError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")
    if Path(path).suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise UncorkError("Parquet needs pyarrow: pip install pyarrow") from None


def export(rows: Iterable[Row], path: str | os.PathLike[str]) -> int:
    """Write the rows of `Store.rows`; how many there were."""
    check_export(path)
    write = {".csv": _csv, ".jsonl": _json_lines, ".parquet": _parquet}[Path(path).suffix]
    with whole_file(path) as target:
        return write(iter(rows), target)


def _csv(rows: Iterator[Row], path: Path) -> int:
    lines = -1  # the first is the header
    with path.open("wb") as file:
        for line in csv_lines(rows):
            file.write(line)
            lines += 1
    return lines


def csv_lines(rows: Iterable[Row], for_people: bool = False) -> Iterator[bytes]:
    """Rows as lines of CSV in UTF-8, after a header. `for_people`: text that a spreadsheet would
    take for a formula stands after an apostrophe."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    for cells in itertools.chain(
        [_COLUMNS], ([_flat(row[name]) for name in _COLUMNS] for row in rows)
    ):
        writer.writerow([_no_formula(cell) for cell in cells] if for_people else cells)
        yield buffer.getvalue().encode("utf-8", "backslashreplace")
        buffer.seek(0)
        buffer.truncate()


def _no_formula(value: Any) -> Any:
    """A sign alone, as many a label is, is no formula."""
    if isinstance(value, str) and len(value) > 1 and value[0] in "=+-@\t\r":
        return "'" + value
    return value


def _flat(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else value


def _json_lines(rows: Iterator[Row], path: Path) -> int:
    count = 0
    with path.open("w", encoding="ascii") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            count += 1
    return count


def _parquet(rows: Iterator[Row], path: Path) -> int:
    import pyarrow as arrow
    from pyarrow import parquet

    text, whole = arrow.string(), arrow.int64()
    kinds = {"audit": whole, "class": whole, "iterations": whole, "margin": arrow.float64()}
    schema = arrow.schema([(name, kinds.get(name, text)) for name in _COLUMNS])
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        while batch := list(itertools.islice(rows, _BATCH)):
            columns = {name: [_storable(_flat(row[name])) for row in batch] for name in _COLUMNS}
            writer.write_table(arrow.table(columns, schema=schema))
            count += len(batch)
    return count


def _storable(value: Any) -> Any:
    """Text as UTF-8 can hold it: lone surrogates as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value
