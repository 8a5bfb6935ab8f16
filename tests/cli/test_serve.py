"""`uncork serve` as a process: where it listens, what it refuses, how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from running import Run

import uncork
from uncork.store import Store
from uncork.theory.random_heads import random_head


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "results.db"
    with Store(path) as opened:
        opened.save(uncork.audit(random_head(9, 2), jobs=1), name="small")
    return path


def test_it_serves_on_loopback_until_ctrl_c(
    start: Callable[..., subprocess.Popen[str]], store: Path
) -> None:
    process = start("serve", "--store", store, "--port", "0")
    assert process.stdout is not None
    line = process.stdout.readline()
    address = line.split(" at ")[1].split()[0]
    assert address.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(address + "api/audits", timeout=30) as answer:
        assert b'"name":"small"' in answer.read()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")
    assert [path.name for path in store.parent.iterdir()] == ["results.db"]


def test_other_machines_are_let_in_only_when_that_is_said(run: Run, store: Path) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "example.org"):
        error = run("serve", "--store", store, "--host", host).error
        assert host in error
        assert "--allow-remote" in error


def test_a_port_in_use_is_said(run: Run, store: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = run("serve", "--store", store, "--port", port).error
    assert f"port {port} of 127.0.0.1 cannot be listened on" in error
    assert "--port" in error


def test_a_store_that_is_missing_or_broken_is_said(run: Run, tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"
    assert "does not exist" in run("serve", "--store", missing).error
    assert not missing.exists()
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"not a database at all" * 100)
    assert "no SQLite database" in run("serve", "--store", broken).error


def test_without_its_extra_it_says_what_to_install(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    error = run("serve", "--store", store).error
    assert "needs uvicorn" in error
    assert "uncork[web]" in error


def test_pages_are_written_as_files_and_nothing_is_served(
    run: Run, store: Path, tmp_path: Path
) -> None:
    with Store(store) as opened:
        opened.save(uncork.audit(random_head(8, 2), jobs=1), name="other")
    site = tmp_path / "site"
    said = run("serve", "--store", store, "--export", site).out
    assert said.startswith("2 audits in ")
    assert said.endswith(f"open {site / 'index.html'}\n")
    assert (site / "audit-2.html").is_file()
    run("serve", "--store", store, "--export", site, "--audit", 1, "--quiet")
    assert not (site / "audit-2.html").exists()
    run("serve", "--store", store, "--export", site, "--name", "oth")
    assert not (site / "audit-1.html").exists()


def test_what_cannot_be_exported_is_said_and_nothing_is_written(
    run: Run, store: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    assert "has no audit 7" in run("serve", "--store", store, "--export", site, "--audit", 7).error
    assert "no such audit" in run("serve", "--store", store, "--export", site, "--name", "?").error
    assert not site.exists()
    assert "not empty" in run("serve", "--store", store, "--export", tmp_path).error
    assert "goes with --export" in run("serve", "--store", store, "--audit", 1).error
    missing = tmp_path / "not" / "there"
    assert "cannot be written" in run("serve", "--store", store, "--export", missing).error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.db"]
