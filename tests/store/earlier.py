"""Stores as earlier versions of uncork made them: their schema by the migrations, their rows by
hand."""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy import MetaData, Table

from uncork.auditing import Audit
from uncork.store.bulk import class_rows, insert_classes
from uncork.store.engine import Database
from uncork.store.keys import audit_key
from uncork.store.store import _audit_row, _now
from uncork.store.versions import upgrade


def make_earlier_store(url: str, version: str, audits: dict[str, Audit]) -> None:
    """A store of that schema with an audit for each name, and a failure."""
    database = Database(url, create=True, wait=10)
    with database.writing() as connection:
        upgrade(connection, version)
        tables = MetaData()
        tables.reflect(connection)

        def insert(table: str, row: dict[str, Any]) -> None:
            into: Table = tables.tables[table]
            connection.execute(into.insert().values({into.c[k]: v for k, v in row.items()}))

        for number, (name, audit) in enumerate(audits.items(), 1):
            head = {"fingerprint": audit.fingerprint, "classes": audit.classes}
            rest = {"features": audit.features, "dtype": audit.dtype, "has_bias": audit.has_bias}
            insert("models", {"id": number, **head, **rest})
            row = _audit_row(audit, audit_key(audit), None, None)
            row |= {"name": name, "group_name": "old", "source": audit.source}
            if version > "0001" and audit.reading is not None:
                row["reading"] = audit.reading.as_dict()
            insert("audits", {"id": number, "model_id": number, **row})
            insert_classes(connection, class_rows(audit, number, None))
        key = hashlib.sha256(b"gone.npz").hexdigest()
        row = {"key": key, "name": "gone", "group_name": "old", "source": "gone.npz"}
        insert("failures", {**row, "error": "is truncated", "created": _now()})
        if connection.dialect.name == "postgresql":  # as if the numbers had been given out
            for table in ("models", "audits"):
                connection.exec_driver_sql(
                    f"SELECT setval('{table}_id_seq', (SELECT max(id) FROM {table}))"
                )
    database.close()
