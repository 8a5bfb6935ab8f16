"""The same sweep on real Dask and Ray clusters on loopback: the same rows in the store."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from tests.sweep.manifests import content, write_manifest
from tests.sweep.test_sweep import Dying, InThisProcess, check_lost_workers, run

from uncork.core.errors import UncorkError
from uncork.sweep.engines import open_engine

pytestmark = [pytest.mark.filterwarnings("ignore")]  # the clusters' own


@pytest.mark.parametrize("kind", ["dask", "ray"])
def test_a_cluster_started_for_the_sweep_stores_the_same_rows(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("distributed" if kind == "dask" else "ray")
    manifest = write_manifest(tmp_path)
    here, there = str(tmp_path / "here.db"), str(tmp_path / "there.db")
    run(manifest, here, InThisProcess())
    with open_engine(kind, None, 2) as engine:
        run(manifest, there, engine)
    assert content(there) == content(here)


@pytest.mark.parametrize("kind", ["dask", "ray"])
def test_a_lost_worker_of_a_cluster_is_no_failure_of_a_model(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uncork.sweep.run._TRIES", 1)  # each takes seconds
    dask = pytest.importorskip("dask" if kind == "dask" else "ray")
    # Dask tries again itself before it says so, which only takes longer.
    once = {"distributed.scheduler.allowed-failures": 0}
    settings = dask.config.set(once) if kind == "dask" else contextlib.nullcontext()
    with settings, open_engine(kind, None, 1) as engine:
        check_lost_workers(Dying(engine, tmp_path / "deaths"), tmp_path, calm=0)


def test_an_existing_dask_cluster_is_used_by_its_address(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    manifest = write_manifest(tmp_path, 2)
    url = str(tmp_path / "s.db")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
        open_engine("dask", cluster.scheduler_address, None) as engine,
    ):
        outcomes = run(manifest, url, engine)
    assert [outcome.state for outcome in outcomes] == ["stored"] * 4 + ["failed"]


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
    monkeypatch.setattr("uncork.sweep.engines.ANSWERS_WITHIN", 1)
    with pytest.raises(UncorkError, match=message):
        open_engine(kind, address, workers)
