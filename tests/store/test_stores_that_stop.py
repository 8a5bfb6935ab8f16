"""A PostgreSQL store that is or becomes read-only, or goes away: one line, before the work where it
can be known, and nothing decided is lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from uncork.cli import app
from uncork.store import Store


def _alter(url: str, *statements: str) -> None:
    import psycopg

    server, name = url.rsplit("/", 1)
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.replace("DB", name))


READ_ONLY = "ALTER DATABASE DB SET default_transaction_read_only = on"
CLOSED = "ALTER DATABASE DB ALLOW_CONNECTIONS false"
END = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'DB'"


@pytest.mark.parametrize("command", ["audit", "sweep"])
def test_a_read_only_store_is_noticed_before_the_work(
    database: str, tmp_path: Path, command: str
) -> None:
    np.savez(tmp_path / "m.npz", W=np.eye(3))
    (tmp_path / "m.toml").write_text('[[model]]\nsource = "m.npz"')
    Store(database).close()
    _alter(database, READ_ONLY)
    source = tmp_path / ("m.npz" if command == "audit" else "m.toml")
    result = CliRunner().invoke(app, [command, str(source), "--store", database])
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()  # nothing was begun: no "looking", no "deciding"
    assert "it cannot be written: it is read-only" in line


@pytest.mark.parametrize(
    ("how", "message"),
    # Whether a connection is ended while it is in use is chance, and said as it happened.
    [
        (READ_ONLY, "it is read-only|the server ended the connection"),
        (CLOSED, "the server (ended the|accepts no) connection"),
    ],
)
def test_a_store_that_stops_during_a_sweep_is_one_line_and_loses_nothing(
    database: str, tmp_path: Path, how: str, message: str
) -> None:
    (tmp_path / "m.toml").write_text(
        '[[model]]\nsource = "random:normal,40x20,seed=0"\nname = "small"\n'
        '[[model]]\nsource = "random:normal,16000x20,seed=0"\nname = "large"'
    )
    command = [sys.executable, "-m", "uncork", "sweep", str(tmp_path / "m.toml")]
    program = subprocess.Popen(
        [*command, "--store", database, "--workers", "2"], text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )  # fmt: skip
    assert program.stderr is not None
    awaited = {"uncork: small: stored", "uncork: large: deciding"}  # now only to be stored
    for line in program.stderr:
        awaited.discard(line.strip())
        if not awaited:
            break
    _alter(database, how, END)
    rest = program.stderr.read()
    assert program.wait(60) == 2
    program.stderr.close()
    assert "Traceback" not in rest
    (error,) = [line for line in rest.splitlines() if "error: " in line]
    assert re.search(message, error)
    assert "--resume goes on" in error
    assert list((tmp_path / "cache").rglob("*.npz"))  # what was decided is kept
