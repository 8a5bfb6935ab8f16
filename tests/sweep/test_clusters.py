"""The same sweep on real Dask and Ray clusters on loopback: the same rows in the store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

import pytest
from tests.sweep.manifests import content, write_manifest
from tests.sweep.test_sweep import Dying, InThisProcess, check_lost_workers, run

from uncork.core.errors import UncorkError
from uncork.workers.engines import open_engine

pytestmark = [pytest.mark.filterwarnings("ignore")]  # the clusters' own


@pytest.fixture(scope="module", params=["dask", "ray"])
def engine(request: pytest.FixtureRequest) -> Iterator[Executor]:
    """A cluster of two workers, started as a sweep starts one; once, since it takes seconds."""
    kind = request.param
    pytest.importorskip("distributed" if kind == "dask" else "ray")
    settings: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if kind == "dask":  # tries again itself before it says that a worker is lost
        import dask

        settings = dask.config.set({"distributed.scheduler.allowed-failures": 0})
    with settings, open_engine(kind, None, 2) as started:
        yield started


def test_a_cluster_started_for_the_sweep_stores_the_same_rows(
    engine: Executor, tmp_path: Path
) -> None:
    manifest = write_manifest(tmp_path)
    here, there = str(tmp_path / "here.db"), str(tmp_path / "there.db")
    run(manifest, here, InThisProcess())
    run(manifest, there, engine)
    assert content(there) == content(here)


def test_a_lost_worker_of_a_cluster_is_no_failure_of_a_model(
    engine: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uncork.workers.queue.TRIES", 1)  # each takes seconds
    check_lost_workers(Dying(engine, tmp_path / "deaths"), tmp_path, calm=0)


@pytest.mark.parametrize("engine", ["dask"], indirect=True)
def test_an_existing_dask_cluster_is_used_by_its_address_and_left_running(
    engine: Executor, tmp_path: Path
) -> None:
    address = engine._cluster.scheduler_address  # type: ignore[attr-defined]
    manifest = write_manifest(tmp_path, 2)
    url = str(tmp_path / "s.db")
    with open_engine("dask", address, None) as another:
        outcomes = run(manifest, url, another)
    assert [outcome.state for outcome in outcomes] == ["stored"] * 4 + ["failed"]
    assert engine.submit(abs, -1).result(60) == 1


@pytest.mark.parametrize(
    ("kind", "address", "workers", "message"),
    [
        ("dask", "127.0.0.1:1", None, "no Dask scheduler answers at 127.0.0.1:1"),
        ("local", "127.0.0.1:1", None, "--address goes with"),
        ("slurm", None, None, "expected local, dask, ray"),
        ("local", None, 0, "at least one"),
    ],
)
def test_an_engine_that_cannot_be_is_explained(
    kind: str,
    address: str | None,
    workers: int | None,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("uncork.workers.engines.ANSWERS_WITHIN", 1)
    with pytest.raises(UncorkError, match=message):
        open_engine(kind, address, workers)
