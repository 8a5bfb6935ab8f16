"""Which schema a database holds, and bringing it to ours with Alembic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect

from uncork.core.errors import UncorkError

CURRENT = "0007"
_KNOWN = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")  # oldest first
_LOCK = 0x756E636F726B  # "uncork": the name of the lock under which tables are made


def bring_up_to_date(connection: Connection, name: str, create: bool) -> None:
    """Create or upgrade the tables within the connection's transaction, or say why not."""
    if connection.dialect.name == "postgresql":  # one at a time; SQLite's writers are, always
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    found = stored_version(connection, name)
    if found == CURRENT:
        return
    if found is None and not create:
        raise UncorkError(f"{name} is empty: nothing was stored in it yet")
    upgrade(connection)


def stored_version(connection: Connection, name: str) -> str | None:
    """The version of the tables there are; None for an empty database."""
    tables = inspect(connection).get_table_names()
    if not tables:
        return None
    if "alembic_version" not in tables or "audits" not in tables:
        raise UncorkError(
            f"{name} is a database of something else ({', '.join(sorted(tables)[:3])}, …): "
            "give another file or URL"
        )
    row = connection.exec_driver_sql("SELECT version_num FROM alembic_version").fetchone()
    version = "" if row is None else str(row[0])
    if version not in _KNOWN:
        raise UncorkError(
            f"{name} has schema version {version!r}, and this uncork knows {_KNOWN[0]} to "
            f"{CURRENT}: it was written by another version of uncork; upgrade uncork, or give "
            "another store"
        )
    return version


def upgrade(connection: Connection, version: str = CURRENT) -> None:
    """Run the migrations up to that version."""
    from alembic import command
    from alembic.config import Config

    config: Any = Config()
    # A path may hold a %, which the configuration would read as an interpolation.
    folder = str(Path(__file__).parent / "migrations").replace("%", "%%")
    config.set_main_option("script_location", folder)
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, version)
