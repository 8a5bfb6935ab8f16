"""Stores that cannot be: a clear message each, and nothing half-written."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from tests.store.audits import large_audit, small_audit
from tests.store.earlier import make_earlier_store

from uncork.core.errors import UncorkError
from uncork.store import Store, default_store
from uncork.store.schema import metadata


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "empty"),
        ("mysql://localhost/x", "a kind that is not known"),
        ("postgresql://127.0.0.1:1/x", "no server answers"),
        ("://", "not a database URL"),
        ("postgresql://no-such-host.invalid/x", "no such host|server does not answer"),
        ("/nonexistent/folder/store.db", "there is no folder"),
        (":memory:", "a store is a file"),
    ],
)
def test_a_wrong_url_is_explained(url: str, message: str) -> None:
    with pytest.raises(UncorkError, match=message):
        Store(url, wait=2)


def test_a_password_is_never_shown() -> None:
    with pytest.raises(UncorkError) as raised:
        Store("postgresql://user:secret@127.0.0.1:1/x", wait=2)
    assert "secret" not in str(raised.value)


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(UncorkError, match="is a folder"):
        Store(tmp_path)


def test_a_store_to_read_from_must_exist_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(UncorkError, match="does not exist"):
        Store(tmp_path / "none.db", create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("no database, " * 100)
    with pytest.raises(UncorkError, match="no SQLite database"):
        Store(file)
    assert file.read_text() == "no database, " * 100


def test_a_database_of_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    before = file.read_bytes()
    with pytest.raises(UncorkError, match="something else"):
        Store(file)
    assert file.read_bytes() == before


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "newer.db"
    Store(file).close()
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(UncorkError, match=r"'9999'.*another version of uncork"):
        Store(file)


def test_a_store_locked_by_another_process_is_waited_for_and_then_named(tmp_path: Path) -> None:
    file = tmp_path / "locked.db"
    Store(file).close()
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(UncorkError, match="locked by another process"):
            Store(file, wait=0.1)
    finally:
        other.close()


def test_a_full_disk_stores_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "full.db")
    store.save(small_audit())

    def small_disk(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA max_page_count = 40")

    store.database.engine.dispose()
    event.listen(store.database.engine, "connect", small_disk)
    with pytest.raises(UncorkError, match="disk is full"):
        store.save(large_audit(50_000))
    assert [audit.classes for audit in store.audits()] == [40]
    store.close()


def test_a_read_only_store_can_be_read_and_says_so_when_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "store.db"
    with Store(file) as store:
        store.save(small_audit())
    url = f"sqlite:///file:{file}?mode=ro&uri=true"
    monkeypatch.setattr("uncork.store.engine.Database._check_file", lambda *args: None)
    with Store(url) as store:
        assert len(store.audits()) == 1
        with pytest.raises(UncorkError, match="read-only"):
            store.save(small_audit(1))
        assert len(store.audits()) == 1


def test_a_read_only_store_of_an_earlier_uncork_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "store.db"
    make_earlier_store(str(file), "0001", {})
    url = f"sqlite:///file:{file}?mode=ro&uri=true"
    monkeypatch.setattr("uncork.store.engine.Database._check_file", lambda *args: None)
    with pytest.raises(UncorkError, match=r"read-only \(an earlier uncork made it"):
        Store(url, create=False)


def test_migrations_make_the_tables_that_the_code_expects(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    with Store(tmp_path / "store.db") as store, store.database.reading() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, metadata) == []


def test_the_default_store_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNCORK_STORE", "postgresql://somewhere/x")
    assert default_store() == "postgresql://somewhere/x"
    monkeypatch.delenv("UNCORK_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_store(create=False) == str(tmp_path / "uncork" / "uncork.db")
    assert not (tmp_path / "uncork").exists()  # looking at a store makes nothing
    assert default_store() == str(tmp_path / "uncork" / "uncork.db")
    assert (tmp_path / "uncork").is_dir()


def test_a_store_that_another_process_made_meanwhile_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"

    def interrupted(self: Store, create: bool) -> None:
        with monkeypatch.context() as undone:
            undone.setattr(Store, "_open", opened)
            with Store(path) as other:
                other.save(small_audit())
        raise KeyboardInterrupt

    opened = Store._open
    monkeypatch.setattr(Store, "_open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Store(path)
    monkeypatch.undo()
    with Store(path, create=False) as store:
        assert len(store.audits()) == 1
