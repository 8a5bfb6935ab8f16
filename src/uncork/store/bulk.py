"""Many classes into the database at once: COPY for PostgreSQL, one statement for SQLite."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from sqlalchemy import Connection

from uncork.auditing import Audit
from uncork.auditing.proofs.verdict import Verdict
from uncork.store.schema import AnyText, results

_BATCH = 20_000  # rows handed over at once
_LARGEST = 5  # parts of a mixture that are kept
_COLUMNS = (
    "audit_id", "class_id", "verdict", "margin", "iterations", "label", "stolen_by", "reason"
)  # fmt: skip


def insert_classes(connection: Connection, rows: Iterator[list[tuple[Any, ...]]]) -> None:
    """Insert rows of `class_rows` within the connection's transaction."""
    names = ", ".join(_COLUMNS)
    if connection.dialect.name == "postgresql":
        driver: Any = connection.connection.driver_connection
        with (
            driver.cursor() as cursor,
            cursor.copy(f"COPY {results.name} ({names}) FROM STDIN") as copy,
        ):
            for batch in rows:
                for row in batch:
                    copy.write_row(row)
        return
    marks = ", ".join("?" * len(_COLUMNS))
    for batch in rows:
        connection.exec_driver_sql(f"INSERT INTO {results.name} ({names}) VALUES ({marks})", batch)


def class_rows(
    audit: Audit, audit_id: int, iterations: np.ndarray | None
) -> Iterator[list[tuple[Any, ...]]]:
    """The classes asked for as rows of `results`, values as the database keeps them."""
    proofs = audit.proofs
    ids = np.arange(audit.classes) if audit.asked is None else audit.asked
    verdicts, margins = proofs.verdicts.tolist(), proofs.margins.tolist()
    counts = None if iterations is None else np.asarray(iterations).tolist()
    text = AnyText().process_bind_param
    for start in range(0, len(ids), _BATCH):
        yield [
            (
                audit_id,
                t,
                verdicts[t],
                None if math.isnan(margins[t]) else margins[t],
                None if counts is None or counts[t] < 0 else counts[t],
                None if audit.labels is None else text(audit.labels[t], None),
                _parts(audit, t) if verdicts[t] == Verdict.UNARGMAXABLE else None,
                text(proofs.reasons.get(t), None),
            )
            for t in ids[start : start + _BATCH].tolist()
        ]


def _parts(audit: Audit, t: int) -> str | None:
    """JSON of [[class, share], …], the largest shares first."""
    mixture = audit.mixture(t)
    if mixture is None:
        return None
    return json.dumps([[i, round(share, 6)] for i, share in mixture.top(_LARGEST)])
