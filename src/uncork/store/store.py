"""Store: audits in, rows out. The one place that opens the database."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from sqlalchemy import Connection, bindparam, case, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from uncork.auditing import Audit
from uncork.auditing.proofs.verdict import Verdict
from uncork.core.errors import UncorkError
from uncork.core.reading import Reading
from uncork.labels.result import LabelAudit, SetVerdict
from uncork.store import schema
from uncork.store.bulk import class_rows, insert_classes
from uncork.store.engine import Database
from uncork.store.keys import audit_key, failure_key, options_text, run_key
from uncork.store.label_rows import label_rows
from uncork.store.queries import (
    StoredAudit,
    audit_query,
    failure,
    filtered,
    matching,
    plain,
    stored,
)
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

    def check_writable(self) -> None:
        """Raise now if nothing can be stored: a row is written, and taken back."""
        with contextlib.suppress(_TakenBack), self.database.writing() as connection:
            connection.execute(
                self._insert(schema.models).values(
                    fingerprint="", classes=0, features=0, dtype="", has_bias=False
                )
            )
            raise _TakenBack

    def save(
        self,
        audit: Audit,
        *,
        name: str | None = None,
        group: str = "",
        certificates: str | None = None,
        iterations: np.ndarray | None = None,
        patience: int | None = None,
        options: Mapping[str, Any] | None = None,
        ranks: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
    ) -> int:
        """Store an audit with all its classes, or nothing; the id of its row.

        Equal heads share their audit, and each name has its own run of it. The same audit is not
        stored twice: one that is there already is left as it is, unless the new one knows more
        (fewer classes undecided, iterations or labels where there were none); what only the
        earlier one knew is kept. A name that is stored again says what its latest look at the
        file showed. `iterations` (C,) are those of the reference algorithm at that `patience`.
        `ranks` are classes and proven bounds on their best ranks; of those and what is there, the
        closer ones are kept. The path of a file is stored in full, so that it is found from any
        folder. Failures of the same source with the same `options` are resolved.
        """
        key = audit_key(audit)
        row = _audit_row(audit, key, iterations, patience)
        with self.database.writing() as connection:
            self._resolve(connection, audit.source, options or {})
            audit_id = self._save_audit(connection, audit, row, iterations)
            if ranks is not None and len(ranks[0]):
                self._save_ranks(connection, audit_id, *ranks)
            self._save_run(
                connection,
                _run_row(audit_id, key, audit.source, audit.reading, name, group, certificates),
            )
        return audit_id

    def save_label_audit(
        self, audit: LabelAudit, *, name: str | None = None, certificates: str | None = None
    ) -> int:
        """Store what was decided about label sets, with every set, or nothing; its row's id."""
        full = None if certificates is None else _in_full(certificates)
        row, sets = label_rows(audit, name or audit.source, _in_full(audit.source), full, _now())
        c = schema.label_audits.c
        with self.database.writing() as connection:
            head = audit.head
            model = self._model(
                connection, audit.fingerprint, audit.sets.labels, audit.features,
                "" if head is None else head.dtype, head is not None and head.bias is not None,
            )  # fmt: skip
            earlier = connection.execute(select(c.id).where(c.key == row["key"])).scalar()
            if earlier is not None:
                of = schema.label_sets.c.label_audit_id
                connection.execute(delete(schema.label_sets).where(of == earlier))
                connection.execute(delete(schema.label_audits).where(c.id == earlier))
            added = connection.execute(
                self._insert(schema.label_audits).values(**row, model_id=model).returning(c.id)
            )
            number = int(added.scalar_one())
            for start in range(0, len(sets), _BATCH):
                part = [{**one, "label_audit_id": number} for one in sets[start : start + _BATCH]]
                connection.execute(schema.label_sets.insert(), part)
        return number

    def label_audits(self) -> list[dict[str, Any]]:
        """What was decided about label sets, the latest first."""
        models, table = schema.models, schema.label_audits
        query = (
            select(table, models.c.fingerprint, models.c.classes, models.c.features)
            .join(models, models.c.id == table.c.model_id)
            .order_by(table.c.id.desc())
        )
        with self.database.reading() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

    def label_sets(self, number: int, verdict: str | None = None) -> list[dict[str, Any]]:
        """The sets of one of them, all or those of a verdict."""
        c = schema.label_sets.c
        query = select(schema.label_sets).where(c.label_audit_id == number).order_by(c.set_id)
        if verdict is not None:
            query = query.where(c.verdict == int(SetVerdict[verdict.upper()]))
        with self.database.reading() as connection:
            return [
                {**row._mapping, "verdict": str(SetVerdict(row.verdict))}
                for row in connection.execute(query)
            ]

    def add_name(
        self,
        audit: StoredAudit,
        *,
        name: str,
        source: str,
        group: str = "",
        reading: Reading | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> bool:
        """Store an audit that is there under one more name; whether that name was new to it."""
        with self.database.writing() as connection:
            self._resolve(connection, source, options or {})
            key = connection.execute(
                select(schema.audits.c.key).where(schema.audits.c.id == audit.id)
            ).scalar_one()
            row = _run_row(audit.id, key, source, reading, name, group, None)
            insert = self._insert(schema.runs).values(**row)
            added = connection.execute(
                insert.on_conflict_do_nothing(index_elements=["key"]).returning(schema.runs.c.id)
            )
            return added.first() is not None

    def _save_audit(
        self,
        connection: Connection,
        audit: Audit,
        row: dict[str, Any],
        iterations: np.ndarray | None,
    ) -> int:
        model = self._model_id(connection, audit)
        c = schema.audits.c
        insert = self._insert(schema.audits).values(**row, model_id=model)
        added = connection.execute(
            insert.on_conflict_do_nothing(index_elements=["key"]).returning(c.id)
        ).first()
        if added is not None:
            insert_classes(connection, class_rows(audit, int(added.id), iterations))
            return int(added.id)
        there = connection.execute(
            select(c.id, c.undecided, c.patience, c.potentially)
            .where(c.key == row["key"])
            .with_for_update()
        ).one()
        audit_id, same = int(there.id), c.id == there.id
        if row["undecided"] < there.undecided:
            if iterations is None and there.patience is not None:
                iterations = self._counted(connection, audit_id, audit.classes)
                row |= {"patience": there.patience, "potentially": there.potentially}
            connection.execute(update(schema.audits).where(same).values(**row))
            connection.execute(delete(schema.results).where(schema.results.c.audit_id == audit_id))
            insert_classes(connection, class_rows(audit, audit_id, iterations))
            return audit_id
        if there.patience is None and iterations is not None:
            new = {name: row[name] for name in ("patience", "potentially")}
            connection.execute(update(schema.audits).where(same).values(**new))
            counts = np.asarray(iterations)
            known = {t: int(counts[t]) for t in np.flatnonzero(counts >= 0).tolist()}
            self._fill(connection, audit_id, "iterations", known)
        if audit.labels is not None and not self._is_labelled(connection, audit_id):
            self._fill(connection, audit_id, "label", dict(enumerate(audit.labels)))
        return audit_id

    def _save_ranks(
        self,
        connection: Connection,
        audit_id: int,
        classes: np.ndarray,
        lower: np.ndarray,
        upper: np.ndarray,
    ) -> None:
        table = schema.best_ranks
        insert = self._insert(table)
        new = insert.excluded
        closer = {
            "lower": case((new.lower > table.c.lower, new.lower), else_=table.c.lower),
            "upper": case((new.upper < table.c.upper, new.upper), else_=table.c.upper),
        }
        upsert = insert.on_conflict_do_update(index_elements=["audit_id", "class_id"], set_=closer)
        each = zip(classes.tolist(), lower.tolist(), upper.tolist(), strict=True)
        rows = [
            {"audit_id": audit_id, "class_id": t, "lower": low, "upper": high}
            for t, low, high in each
        ]
        for start in range(0, len(rows), _BATCH):
            connection.execute(upsert, rows[start : start + _BATCH])

    def _save_run(self, connection: Connection, row: dict[str, Any]) -> None:
        insert = self._insert(schema.runs).values(**row)
        known, new = schema.runs.c, insert.excluded
        # What is not said now is kept, where it was said of the same file.
        same = known.source == new.source
        kept = {
            column: case((same, func.coalesce(new[column], known[column])), else_=new[column])
            for column in ("certificates", "reading")
        }
        changes = {**kept, "source": new.source, "created": new.created}
        connection.execute(insert.on_conflict_do_update(index_elements=["key"], set_=changes))

    def _resolve(self, connection: Connection, source: str, options: Mapping[str, Any]) -> None:
        c = schema.failures.c
        connection.execute(
            update(schema.failures)
            .where(
                c.source.in_([source, _in_full(source)]),
                c.options == options_text(options),
                c.resolved.is_(None),
            )
            .values(resolved=_now())
        )

    @staticmethod
    def _fill(
        connection: Connection, audit_id: int, column: str, values: Mapping[int, Any]
    ) -> None:
        """Give classes of a stored audit what was not known of them."""
        c = schema.results.c
        change = update(schema.results).where(
            c.audit_id == audit_id, c.class_id == bindparam("of_class")
        )
        known = [{"of_class": t, "given": value} for t, value in values.items()]
        for start in range(0, len(known), _BATCH):
            connection.execute(
                change.values({column: bindparam("given", type_=c[column].type)}),
                known[start : start + _BATCH],
            )

    @staticmethod
    def _is_labelled(connection: Connection, audit_id: int) -> bool:
        c = schema.results.c
        query = select(c.class_id).where(c.audit_id == audit_id, c.label.is_not(None)).limit(1)
        return connection.execute(query).first() is not None

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

    def record_failure(
        self,
        source: str,
        error: str,
        *,
        name: str = "",
        group: str = "",
        options: Mapping[str, Any] | None = None,
        weights: str = "",
    ) -> None:
        """Note that a model could not be audited, and why: with these options, of these weights
        (a fingerprint of the head, or of its file where no head was read)."""
        asked, full = options_text(options or {}), _in_full(source)
        row = {
            "key": failure_key(full, asked, weights),
            "name": name or source,
            "group_name": group,
            "source": full,
            "options": asked,
            "weights": weights,
            "error": error,
            "created": _now(),
        }
        with self.database.writing() as connection:
            connection.execute(self._insert(schema.failures).values(**row))

    def delete(self, audit_id: int) -> None:
        """Remove an audit, its classes and all its names."""
        with self.database.writing() as connection:
            for table in (schema.best_ranks, schema.results, schema.runs):
                connection.execute(delete(table).where(table.c.audit_id == audit_id))
            connection.execute(delete(schema.audits).where(schema.audits.c.id == audit_id))

    def _insert(self, table: Any) -> Any:
        is_sqlite = self.database.url.get_backend_name() == "sqlite"
        return sqlite.insert(table) if is_sqlite else postgresql.insert(table)

    def _model_id(self, connection: Connection, audit: Audit) -> int:
        return self._model(
            connection, audit.fingerprint, audit.classes, audit.features, audit.dtype,
            audit.has_bias, audit.metric,
        )  # fmt: skip

    def _model(
        self, connection: Connection, fingerprint: str, classes: int, features: int, dtype: str,
        has_bias: bool, metric: str = "inner",
    ) -> int:  # fmt: skip
        """The id of a head's row, made where there is none."""
        connection.execute(
            self._insert(schema.models)
            .values(
                fingerprint=fingerprint,
                classes=classes,
                features=features,
                dtype=dtype,
                has_bias=has_bias,
                metric=metric,
            )
            .on_conflict_do_nothing(index_elements=["fingerprint"])
        )
        return int(
            connection.execute(
                select(schema.models.c.id).where(schema.models.c.fingerprint == fingerprint)
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
            found = stored(connection, query.order_by(schema.runs.c.id).limit(1))
        return found[0] if found else None

    def audits(
        self,
        *,
        name: str | None = None,
        group: str | None = None,
        fingerprint: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[StoredAudit]:
        """The audits under each of their names, oldest first; `name` keeps those with that text in
        their name or source."""
        query = matching(
            audit_query(), schema.runs, name=name, group=group, fingerprint=fingerprint
        )
        query = query.order_by(schema.audits.c.id, schema.runs.c.id).limit(limit).offset(offset)
        with self.database.reading() as connection:
            return stored(connection, query)

    def find_audit(self, audit_id: int) -> StoredAudit | None:
        """One audit by its id, under the first of its names; None where there is none."""
        query = audit_query().where(schema.audits.c.id == audit_id)
        with self.database.reading() as connection:
            found = stored(connection, query.order_by(schema.runs.c.id).limit(1))
        return found[0] if found else None

    def audit(self, audit_id: int) -> StoredAudit:
        """The same, or an error."""
        found = self.find_audit(audit_id)
        if found is None:
            raise UncorkError(f"store {self.name} has no audit {audit_id}")
        return found

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

    def best_ranks(self, audit_id: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The classes of an audit whose best rank was asked for, and the bounds on it."""
        c = schema.best_ranks.c
        query = select(c.class_id, c.lower, c.upper).where(c.audit_id == audit_id)
        with self.database.reading() as connection:
            rows = [tuple(row) for row in connection.execute(query.order_by(c.class_id))]
        found = np.array(rows, dtype=np.int64).reshape(-1, 3)
        return found[:, 0], found[:, 1], found[:, 2]

    def rows(
        self, *, name: str | None = None, verdict: Verdict | None = None
    ) -> Iterator[dict[str, Any]]:
        """Every class of every audit, one after the other, with its audit's name: for export."""
        for audit in self.audits(name=name):
            yield from self.rows_of(audit, verdict)

    def rows_of(
        self, audit: StoredAudit, verdict: Verdict | None = None
    ) -> Iterator[dict[str, Any]]:
        """The same of one audit."""
        after, reading = -1, audit.reading
        while page := self.classes(audit.id, verdict=verdict, limit=_BATCH, after=after):
            for row in page:
                yield {
                    "audit": audit.id,
                    "name": audit.name,
                    "group": audit.group,
                    "fingerprint": audit.fingerprint,
                    "metric": audit.metric,
                    "domain": audit.domain,
                    **row,
                    "weight": None if reading is None else reading.weight,
                    "doubts": [] if reading is None else list(reading.doubts),
                }
            after = page[-1]["class"]

    def failures(
        self, *, name: str | None = None, group: str | None = None, history: bool = False
    ) -> list[dict[str, Any]]:
        """Models that could not be audited: name, group, source, options, weights, error, created.

        Those that still could not, once for each source, options and weights, with the latest
        error; with `history` every time that one could not, and `resolved`: when it could later.
        """
        c = schema.failures.c
        query = matching(select(schema.failures), schema.failures, name=name, group=group)
        if not history:
            latest = select(func.max(c.id)).group_by(c.key).correlate(None)
            query = query.where(c.resolved.is_(None), c.id.in_(latest))
        with self.database.reading() as connection:
            return [failure(row) for row in connection.execute(query.order_by(c.id))]


class _TakenBack(Exception):
    """Ends a transaction without a trace."""


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
    audit: Audit, key: str, iterations: np.ndarray | None, patience: int | None
) -> dict[str, Any]:
    from uncork import __version__

    potentially = None
    if iterations is not None:
        asked = slice(None) if audit.asked is None else audit.asked
        potentially = int((np.asarray(iterations)[asked] < 0).sum())
    return {
        "key": key,
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
        "uncork": __version__,
        "created": _now(),
    }


def _run_row(
    audit_id: int,
    audit_key: str,
    source: str,
    reading: Reading | None,
    name: str | None,
    group: str,
    certificates: str | None,
) -> dict[str, Any]:
    called = name or source
    return {
        "key": run_key(audit_key, group, called),
        "audit_id": audit_id,
        "name": called,
        "group_name": group,
        "source": _in_full(source),
        "certificates": None if certificates is None else _in_full(certificates),
        "reading": None if reading is None else reading.as_dict(),
        "created": _now(),
    }
