"""Opening a database: SQLite by path, PostgreSQL by URL. What goes wrong is said in one line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, exc
from sqlalchemy.engine import URL, make_url

from uncork.core.errors import UncorkError

_WRITES = "uncork_writes"


def parse_url(text: str) -> URL:
    """A file's path or sqlite:///path, or postgresql://user@host/database."""
    text = text.strip()
    if not text:
        raise UncorkError("the store's name is empty: give a file or postgresql://host/database")
    if "://" not in text:
        return URL.create("sqlite", database=text)
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError) as error:
        raise UncorkError(
            f"store {text!r} is not a database URL: give a file or postgresql://user@host/database"
        ) from error
    kind = url.get_backend_name()
    if kind in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if kind == "sqlite":
        return url.set(drivername="sqlite")
    raise UncorkError(
        f"store {url.render_as_string()!r} is of a kind that is not known: expected a file, "
        "sqlite:///file or postgresql://user@host/database"
    )


class Database:
    """An engine with uncork's manners: one writer waits for another, reading writes nothing."""

    def __init__(self, text: str, *, create: bool, wait: float) -> None:
        self.url = parse_url(text)
        self.name = self.url.render_as_string(hide_password=True)
        if self.url.get_backend_name() == "sqlite":
            path = self.url.database or ""
            self.name = path
            self._check_file(path, create)
        self.wait = wait
        self.engine = self._engine()

    @staticmethod
    def _check_file(path: str, create: bool) -> None:
        if not path or path == ":memory:":
            raise UncorkError("a store is a file: give its path")
        if os.path.isdir(path):
            raise UncorkError(f"store {path} is a folder: give a file in it")
        if not os.path.exists(path):
            if not create:
                raise UncorkError(f"store {path} does not exist")
            if not Path(path).resolve().parent.is_dir():
                raise UncorkError(
                    f"store {path} cannot be created: there is no folder {Path(path).parent}"
                )

    def _engine(self) -> Engine:
        if self.url.get_backend_name() == "sqlite":
            engine = create_engine(self.url, connect_args={"timeout": self.wait})
            event.listen(engine, "connect", _take_over_transactions)
            event.listen(engine, "begin", _begin)
            return engine
        try:
            return create_engine(
                self.url,
                connect_args={"connect_timeout": max(2, round(self.wait))},
                pool_pre_ping=True,  # a server that was started anew meanwhile is not an error
            )
        except ImportError as error:
            raise UncorkError(
                "a PostgreSQL store needs psycopg: pip install 'uncork[postgres]'"
            ) from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._explained(), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is wholly there at the end, or not at all."""
        with self._explained(), self.engine.connect() as plain:
            connection = plain.execution_options(**{_WRITES: True})
            with connection.begin():
                yield connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except exc.DBAPIError as error:
            why = " ".join(str(error.orig).split())
            raise UncorkError(f"store {self.name}: {_reason(why, self.wait)}") from error

    def close(self) -> None:
        self.engine.dispose()


def _take_over_transactions(connection: Any, record: Any) -> None:
    """Python's sqlite3 begins transactions by rules of its own; ours begin where we say."""
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")


def _begin(connection: Connection) -> None:
    # A writer takes its lock at once: two that have read and then want to write would deadlock.
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


_REASONS = (
    ("locked", "it is locked by another process: wait for that one to end, or stop it"),
    ("readonly", "it cannot be written: the file or its folder is read-only"),
    ("read-only", "it cannot be written: it is read-only"),
    ("permission denied", "permission denied"),
    ("disk is full", "the disk is full: nothing was stored"),
    ("No space left", "the disk is full: nothing was stored"),
    ("unable to open", "it cannot be opened: check the path and its permissions"),
    ("not a database", "it is no SQLite database: give another file"),
    ("malformed", "the database is damaged"),
    ("password authentication", "the server refuses this user and password"),
    ("Connection refused", "no server answers there: is PostgreSQL running?"),
    ("terminating connection", "the server ended the connection: is PostgreSQL still running?"),
    ("server closed the connection", "the server ended the connection: is PostgreSQL running?"),
    ("not currently accepting connections", "the server accepts no connections to it"),
    ("could not translate host", "there is no such host"),
    ("failed to resolve host", "there is no such host"),
    ("timeout expired", "the server does not answer"),
)


def _reason(text: str, wait: float) -> str:
    for part, meaning in _REASONS:
        if part.lower() in text.lower():
            return meaning
    return text[:300]
