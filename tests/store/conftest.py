"""A real PostgreSQL server on a free port of loopback, and the stores that tests run against."""

from __future__ import annotations

import glob
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def _server_programs() -> Path | None:
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    path = found[-1] if found else shutil.which("initdb")
    return None if path is None else Path(path).resolve().parent


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's URL without a database."""
    programs = _server_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    pytest.importorskip("psycopg")
    folder = Path("/tmp") / f"uncork-postgres-{os.getpid()}"  # sockets need a short path
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    # The server refuses to run as root.
    user = "nobody" if os.getuid() == 0 else None
    if user is not None:
        import pwd  # not on Windows

        record = pwd.getpwnam(user)
        os.chown(folder, record.pw_uid, record.pw_gid)
    port, data = _free_port(), folder / "data"
    settings = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL}
    subprocess.run(
        [programs / "initdb", "-D", data, "-A", "trust", "-U", "uncork", "--no-sync", "-E", "UTF8"],
        check=True, **settings,
    )  # fmt: skip
    server = subprocess.Popen(
        [
            programs / "postgres", "-D", data, "-p", str(port), "-k", folder, "-F",
            "-c", "listen_addresses=127.0.0.1",
        ],
        stderr=subprocess.DEVNULL, **settings,
    )  # fmt: skip
    try:
        import psycopg

        address = f"postgresql://uncork@127.0.0.1:{port}"
        for _ in range(200):
            try:
                psycopg.connect(f"{address}/postgres").close()
                break
            except psycopg.OperationalError:
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database(postgres: str, request: pytest.FixtureRequest) -> str:
    """The URL of a new, empty PostgreSQL database."""
    import psycopg

    name = f"test_{abs(hash(request.node.nodeid))}"
    with psycopg.connect(f"{postgres}/postgres", autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name}")
        connection.execute(f"CREATE DATABASE {name}")
    return f"{postgres}/{name}"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store to be: each test runs on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    return str(request.getfixturevalue("database"))
