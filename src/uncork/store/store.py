"""Store: audits in, rows out. The one place that opens the database."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from sqlalchemy import Connection, bindparam, delete, func, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite

from uncork.audit import Audit
from uncork.audit.verdict import Verdict
from uncork.errors import UncorkError
from uncork.store import schema
from uncork.store.bulk import class_rows, insert_classes
from uncork.store.engine import Database
from uncork.store.keys import audit_key
from uncork.store.queries import StoredAudit, audit_query, escaped, filtered, plain, stored
from uncork.store.versions import CURRENT, bring_up_to_date, stored_version

_BATCH = 20_000  # rows read from the database at once


class Store:
    """Results of audits, keyed by the head's fingerprint, the domain and the algorithm's version.

    `url` is a file (SQLite), sqlite:///file, or postgresql://user@host/database. A store that does
    not exist is made, unless `create` is false. `wait` is for how many seconds a store that another
    process is writing to is waited for.
    """

    def __init__(self, url: str | os.PathLike[str], *, create: bool = True, wait: float = 60.0):
        self.database = Database(os.fspath(url), create=create, wait=wait)
        self.name = self.database.name
        is_new = self._is_missing_file()
        try:
            self._open(create)
        except BaseException:
            self.database.close()
            if is_new:
                _remove_empty(Path(self.name))
            raise

    def _is_missing_file(self) -> bool:
        return self.database.url.get_backend_name() == "sqlite" and not os.path.exists(self.name)

    def _open(self, create: bool) -> None:
        with self.database.reading() as connection:
            found = stored_version(connection, self.name)
        if found == CURRENT:
            return
        try:
            with self.database.writing() as connection:
                bring_up_to_date(connection, self.name, create)
        except UncorkError as error:
            if found is None:
                raise
            raise UncorkError(
                f"{error} (an earlier uncork made it: it has to be brought up to date, once)"
            ) from None

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Writing

    def save(
        self,
        audit: Audit,
        *,
        name: str | None = None,
        group: str = "",
        certificates: str | None = None,
        iterations: np.ndarray | None = None,
        patience: int | None = None,
    ) -> int:
        """Store an audit with all its classes, or nothing; the id of its row.

        The same audit is not stored twice: one that is there already is left as it is, unless the
        new one knows more (fewer classes undecided, or iterations where there were none); what only
        the earlier one knew is kept. What was read is what the latest look at the same file says.
        `iterations` (C,) are those of the reference algorithm at that `patience`. The path of a
        file is stored in full, so that it is found from any folder.
        """
        key = audit_key(audit)
        row = _audit_row(audit, key, name, group, certificates, iterations, patience)
        with self.database.writing() as connection:
            connection.execute(
                delete(schema.failures).where(
                    schema.failures.c.source.in_([audit.source, row["source"]])
                )
            )
            model = self._model_id(connection, audit)
            there = connection.execute(
                select(
                    schema.audits.c.id,
                    schema.audits.c.undecided,
                    schema.audits.c.patience,
                    schema.audits.c.potentially,
                    schema.audits.c.source,
                )
                .where(schema.audits.c.key == key)
                .with_for_update()
            ).first()
            if there is None:
                insert = self._insert(schema.audits).values(**row, model_id=model)
                added = connection.execute(
                    insert.on_conflict_do_nothing(index_elements=["key"]).returning(
                        schema.audits.c.id
                    )
                ).first()
                if added is None:  # another process was faster with the very same audit
                    return self._id_of(connection, key)
                audit_id = int(added.id)
            else:
                audit_id = int(there.id)
                same = schema.audits.c.id == audit_id
                counted = there.patience is None and patience is not None
                if row["undecided"] >= there.undecided:
                    if row["reading"] is not None and row["source"] == there.source:
                        # Said by the latest look at the same file: an earlier uncork said less.
                        new = {"reading": row["reading"]}
                        connection.execute(update(schema.audits).where(same).values(**new))
                    if counted and iterations is not None:
                        new = {name: row[name] for name in ("patience", "potentially")}
                        connection.execute(update(schema.audits).where(same).values(**new))
                        self._count(connection, audit_id, iterations)
                    return audit_id
                if patience is None and there.patience is not None:
                    iterations = self._counted(connection, audit_id, audit.classes)
                    row |= {"patience": there.patience, "potentially": there.potentially}
                connection.execute(update(schema.audits).where(same).values(**row))
                connection.execute(
                    delete(schema.results).where(schema.results.c.audit_id == audit_id)
                )
            insert_classes(connection, class_rows(audit, audit_id, iterations))
        return audit_id

    @staticmethod
    def _count(connection: Connection, audit_id: int, iterations: np.ndarray) -> None:
        """Give the classes of a stored audit their iterations."""
        c = schema.results.c
        change = update(schema.results).where(
            c.audit_id == audit_id, c.class_id == bindparam("of_class")
        )
        counts = np.asarray(iterations)
        known = [
            {"of_class": t, "counted": int(counts[t])} for t in np.flatnonzero(counts >= 0).tolist()
        ]
        for start in range(0, len(known), _BATCH):
            connection.execute(
                change.values(iterations=bindparam("counted")), known[start : start + _BATCH]
            )

    @staticmethod
    def _counted(connection: Connection, audit_id: int, classes: int) -> np.ndarray:
        """The iterations of a stored audit: (C,), −1 where there are none."""
        c = schema.results.c
        found = np.full(classes, -1, dtype=np.int64)
        query = select(c.class_id, c.iterations).where(
            c.audit_id == audit_id, c.iterations.is_not(None)
        )
        for t, count in connection.execute(query):
            found[t] = count
        return found

    def record_failure(self, source: str, error: str, *, name: str = "", group: str = "") -> None:
        """Note that a model could not be audited, and why."""
        key = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
        row = {
            "key": key,
            "name": name or source,
            "group_name": group,
            "source": source,
            "error": error,
            "created": _now(),
        }
        with self.database.writing() as connection:
            changes = {column: row[column] for column in ("error", "created", "name", "group_name")}
            insert = self._insert(schema.failures).values(**row)
            connection.execute(insert.on_conflict_do_update(index_elements=["key"], set_=changes))

    def delete(self, audit_id: int) -> None:
        """Remove an audit and its classes."""
        with self.database.writing() as connection:
            connection.execute(delete(schema.results).where(schema.results.c.audit_id == audit_id))
            connection.execute(delete(schema.audits).where(schema.audits.c.id == audit_id))

    def _insert(self, table: Any) -> Any:
        is_sqlite = self.database.url.get_backend_name() == "sqlite"
        return sqlite.insert(table) if is_sqlite else postgresql.insert(table)

    def _model_id(self, connection: Connection, audit: Audit) -> int:
        connection.execute(
            self._insert(schema.models)
            .values(
                fingerprint=audit.fingerprint,
                classes=audit.classes,
                features=audit.features,
                dtype=audit.dtype,
                has_bias=audit.has_bias,
            )
            .on_conflict_do_nothing(index_elements=["fingerprint"])
        )
        return int(
            connection.execute(
                select(schema.models.c.id).where(schema.models.c.fingerprint == audit.fingerprint)
            ).scalar_one()
        )

    def _id_of(self, connection: Connection, key: str) -> int:
        return int(
            connection.execute(
                select(schema.audits.c.id).where(schema.audits.c.key == key)
            ).scalar_one()
        )

    # Reading

    def find(self, key: str, *, iterations: bool = False) -> StoredAudit | None:
        """The audit with that key (`audit_key`), if nothing in it was left undecided, and if it has
        the reference algorithm's iterations where those are wanted."""
        query = audit_query().where(
            schema.audits.c.key == key,
            (schema.audits.c.undecided == 0) | schema.audits.c.approximate,
        )
        if iterations:
            query = query.where(schema.audits.c.patience.is_not(None))
        with self.database.reading() as connection:
            row = connection.execute(query).first()
        return None if row is None else stored(row)

    def audits(
        self,
        *,
        name: str | None = None,
        group: str | None = None,
        fingerprint: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[StoredAudit]:
        """The audits, oldest first; `name` keeps those with that text in their name or source."""
        query = audit_query().order_by(schema.audits.c.id).limit(limit).offset(offset)
        if name is not None:
            within = f"%{escaped(name)}%"
            query = query.where(
                schema.audits.c.name.ilike(within, escape="\\")
                | schema.audits.c.source.ilike(within, escape="\\")
            )
        if group is not None:
            query = query.where(schema.audits.c.group_name == group)
        if fingerprint is not None:
            # As text that may hold anything: PostgreSQL refuses to compare with a NUL.
            query = query.where(schema.models.c.fingerprint == literal(fingerprint, schema.AnyText))
        with self.database.reading() as connection:
            return [stored(row) for row in connection.execute(query)]

    def audit(self, audit_id: int) -> StoredAudit:
        """One audit by its id."""
        with self.database.reading() as connection:
            row = connection.execute(audit_query().where(schema.audits.c.id == audit_id)).first()
        if row is None:
            raise UncorkError(f"store {self.name} has no audit {audit_id}")
        return stored(row)

    def count(self, audit_id: int, *, verdict: Verdict | None = None) -> int:
        """How many classes of an audit there are, of all or of one verdict."""
        query = select(func.count()).select_from(schema.results)
        query = filtered(query, audit_id, verdict, None)
        with self.database.reading() as connection:
            return int(connection.execute(query).scalar_one())

    def classes(
        self,
        audit_id: int,
        *,
        verdict: Verdict | None = None,
        label: str | None = None,
        limit: int | None = None,
        after: int = -1,
    ) -> list[dict[str, Any]]:
        """Classes of an audit by id, those after `after` (pages that stay quick however deep)."""
        query = filtered(select(schema.results), audit_id, verdict, label)
        query = query.where(schema.results.c.class_id > after).order_by(schema.results.c.class_id)
        with self.database.reading() as connection:
            return [plain(dict(row._mapping)) for row in connection.execute(query.limit(limit))]

    def columns(self, audit_id: int) -> dict[str, np.ndarray]:
        """Class ids, verdicts, margins and iterations (−1: none) of an audit as arrays."""
        c = schema.results.c
        query = select(c.class_id, c.verdict, c.margin, c.iterations).where(c.audit_id == audit_id)
        with self.database.reading() as connection:
            rows = connection.execute(query.order_by(c.class_id)).all()
        margins = [math.nan if row.margin is None else row.margin for row in rows]
        counts = [-1 if row.iterations is None else row.iterations for row in rows]
        return {
            "class_id": np.array([row.class_id for row in rows], dtype=np.int64),
            "verdict": np.array([row.verdict for row in rows], dtype=np.uint8),
            "margin": np.array(margins, dtype=np.float64),
            "iterations": np.array(counts, dtype=np.int64),
        }

    def rows(
        self, *, name: str | None = None, verdict: Verdict | None = None
    ) -> Iterator[dict[str, Any]]:
        """Every class of every audit, one after the other, with its audit's name: for export."""
        for audit in self.audits(name=name):
            after, reading = -1, audit.reading
            while page := self.classes(audit.id, verdict=verdict, limit=_BATCH, after=after):
                for row in page:
                    yield {
                        "audit": audit.id,
                        "name": audit.name,
                        "group": audit.group,
                        "fingerprint": audit.fingerprint,
                        "domain": audit.domain,
                        **row,
                        "weight": None if reading is None else reading.weight,
                        "doubts": [] if reading is None else list(reading.doubts),
                    }
                after = page[-1]["class"]

    def failures(self) -> list[dict[str, Any]]:
        """Models that could not be audited: name, group, source, error, created."""
        c = schema.failures.c
        query = select(c.name, c.group_name.label("group"), c.source, c.error, c.created)
        with self.database.reading() as connection:
            return [dict(row._mapping) for row in connection.execute(query.order_by(c.id))]


def _remove_empty(path: Path) -> None:
    """Remove a file that never became a store, unless another process is making it one."""
    with contextlib.suppress(OSError):
        if not path.stat().st_size and not Path(f"{path}-journal").exists():
            path.unlink()


def _in_full(source: str) -> str:
    return os.path.abspath(source) if os.path.exists(source) else source


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def _audit_row(
    audit: Audit,
    key: str,
    name: str | None,
    group: str,
    certificates: str | None,
    iterations: np.ndarray | None,
    patience: int | None,
) -> dict[str, Any]:
    from uncork import __version__

    potentially = None
    if iterations is not None:
        asked = slice(None) if audit.asked is None else audit.asked
        potentially = int((np.asarray(iterations)[asked] < 0).sum())
    return {
        "key": key,
        "name": name or audit.source,
        "group_name": group,
        "source": _in_full(audit.source),
        "domain": str(audit.domain),
        "algorithm": audit.algorithm,
        "algorithm_version": schema.ALGORITHM_VERSION,
        "approximate": audit.approximate,
        "asked": audit.classes if audit.asked is None else len(audit.asked),
        **audit.counts,
        "patience": patience if iterations is not None else None,
        "potentially": potentially,
        "proven": audit.proven,
        "device": audit.device,
        "seconds": {stage: float(value) for stage, value in audit.seconds.items()},
        "certificates": None if certificates is None else _in_full(certificates),
        "reading": None if audit.reading is None else audit.reading.as_dict(),
        "uncork": __version__,
        "created": _now(),
    }
