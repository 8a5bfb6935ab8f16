"""Sweeps on local processes: every model stored once, whatever is killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sweep.manifests import content, write_manifest

import uncork
from uncork.auditing.search.reference import braid_reflect
from uncork.auditing.search.together.iterations import count_iterations
from uncork.core.errors import UncorkError
from uncork.store import Store
from uncork.sweep import read_manifest, sweep
from uncork.sweep.manifest import Task
from uncork.sweep.run import work_folder
from uncork.theory.random_heads import random_head
from uncork.workers.engines import open_engine, stop
from uncork.workers.finished_ranges import Kept
from uncork.workers.lock import held


class InThisProcess(Executor):
    """The work done at once where it is asked for, and counted."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls.append(fn.__name__)
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def run(manifest: Path, url: str, engine: Executor, **settings: Any) -> list[Any]:
    with Store(url) as store:
        work = Path(f"{url}.work")
        return sweep(read_manifest(manifest), store, engine, work=work, **settings)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return write_manifest(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("undisturbed")
    url = str(folder / "s.db")
    run(write_manifest(folder), url, InThisProcess())
    return content(url)


def test_every_model_is_stored_and_one_that_fails_stops_nothing(
    tmp_path: Path, manifest: Path
) -> None:
    url = str(tmp_path / "s.db")
    outcomes = run(manifest, url, InThisProcess())
    assert [outcome.state for outcome in outcomes] == ["stored"] * 6 + ["failed"]
    assert "does not exist" in outcomes[-1].error
    facts, classes, failures = content(url)
    assert len(facts) == 6
    assert failures == ["not there:  does not exist: check the path (a hub id is hf:owner/name)"]
    for fact, rows in zip(facts, classes, strict=True):
        if fact["group"] == "Random":
            seed = fact["classes"] - 50
            audit = uncork.audit(random_head(50 + seed, 3, seed=seed), device="cpu")
            assert [row["verdict"] for row in rows] == [str(v) for v in audit.verdicts]
        assert (fact["potentially"] is not None) == (fact["name"] == "random:normal,50x3,seed=0")


def test_local_processes_store_the_same_rows(
    tmp_path: Path, manifest: Path, undisturbed: Any
) -> None:
    url = str(tmp_path / "s.db")
    with open_engine("local", None, 2) as engine:
        run(manifest, url, engine)
    assert content(url) == undisturbed


def test_a_head_of_several_ranges_equals_one_decided_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uncork.sweep.run.UNIT_CLASSES", 64)
    source = "random:uniform,200x3,seed=5,bias"
    task = Task(source, "split", options={"iterations": True, "patience": 100})
    with Store(tmp_path / "s.db") as store:
        (outcome,) = sweep([task], store, InThisProcess(), work=tmp_path / "work")
        assert (outcome.state, outcome.ranges) == ("stored", 4)
        rows = store.classes(outcome.audit_id or 0)
        counts = store.columns(outcome.audit_id or 0)["iterations"]
    head = random_head(200, 3, "uniform", True, 5)
    whole = uncork.audit(head, device="cpu")
    assert [row["verdict"] for row in rows] == [str(v) for v in whole.verdicts]
    assert counts.tolist() == count_iterations(head, patience=100).tolist()
    assert not (tmp_path / "work").exists()


def test_resume_decides_nothing_twice(tmp_path: Path, manifest: Path, undisturbed: Any) -> None:
    url = str(tmp_path / "s.db")

    class Dies(InThisProcess):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            if self.calls.count("decide") == 3:
                raise KeyboardInterrupt
            return super().submit(fn, *args, **kwargs)

    with pytest.raises(KeyboardInterrupt):
        run(manifest, url, Dies())
    engine = InThisProcess()
    outcomes = run(manifest, url, engine, resume=True)
    assert engine.calls.count("decide") == 3
    assert content(url) == undisturbed
    assert [outcome.state for outcome in outcomes].count("failed") == 1
    again = InThisProcess()
    outcomes = run(manifest, url, again, resume=True)
    assert again.calls.count("decide") == 0
    assert [outcome.state for outcome in outcomes] == ["was stored"] * 6 + ["failed"]
    assert outcomes[0].unargmaxable is not None


@pytest.mark.parametrize("classes", ["0-19", "7,3", "5-9,0-2"])
def test_classes_that_were_asked_for_are_not_decided_twice(tmp_path: Path, classes: str) -> None:
    task = Task("random:normal,20x3,seed=0", "some", options={"classes": classes, "domain": "auto"})
    with Store(tmp_path / "s.db") as store:
        states = [
            sweep([task], store, InThisProcess(), work=tmp_path / "work", resume=True)[0].state
            for _ in range(2)
        ]
    assert states == ["stored", "was stored"]


def test_without_resume_everything_is_decided_anew_and_stored_once(
    tmp_path: Path, manifest: Path, undisturbed: Any
) -> None:
    url = str(tmp_path / "s.db")
    run(manifest, url, InThisProcess())
    engine = InThisProcess()
    run(manifest, url, engine)
    assert engine.calls.count("decide") == 6
    assert content(url) == undisturbed


def test_a_damaged_range_on_disk_is_decided_again(
    tmp_path: Path, manifest: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "s.db")

    def full(*args: Any, **kwargs: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Store, "save", full)
        with pytest.raises(KeyboardInterrupt):
            run(manifest, url, InThisProcess())
    kept = list(Path(f"{url}.work").rglob("*.npz"))
    assert kept
    for file in kept:
        file.write_bytes(file.read_bytes()[:-200])
    run(manifest, url, InThisProcess(), resume=True)
    assert content(url) == undisturbed


def test_a_range_that_was_being_written_when_it_was_interrupted_is_kept(
    tmp_path: Path, manifest: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, put = str(tmp_path / "s.db"), Kept.put

    def interrupted(*args: Any) -> None:
        monkeypatch.setattr(Kept, "put", put)
        raise KeyboardInterrupt

    monkeypatch.setattr(Kept, "put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(manifest, url, (first := InThisProcess()))
    again = InThisProcess()
    run(manifest, url, again, resume=True)
    assert first.calls.count("decide") + again.calls.count("decide") == 6
    assert content(url) == undisturbed


def test_stopping_does_not_wait_for_what_is_being_decided() -> None:
    engine = open_engine("local", None, 1)
    future = engine.submit(time.sleep, 300)
    while not future.running():
        time.sleep(0.05)
    began = time.monotonic()
    stop(engine)
    engine.shutdown(wait=True)
    assert time.monotonic() - began < 60


def _start(manifest: Path, url: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "uncork", "sweep", str(manifest), "--store", str(url)]
    return subprocess.Popen(
        [*command, "--workers", "2", *options],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def test_killing_the_sweep_loses_nothing(tmp_path: Path, manifest: Path, undisturbed: Any) -> None:
    url = tmp_path / "s.db"
    program = _start(manifest, url)
    assert program.stderr is not None
    for line in program.stderr:
        if b": stored" in line:
            break
    os.killpg(program.pid, signal.SIGKILL)
    program.wait(30)
    program.stderr.close()
    program = _start(manifest, url, "--resume", "--quiet")
    assert program.wait(120) == 1  # one model fails, as it always does
    assert program.stderr is not None
    program.stderr.close()
    assert content(str(url)) == undisturbed


def test_killing_a_worker_loses_nothing(tmp_path: Path, manifest: Path, undisturbed: Any) -> None:
    psutil = pytest.importorskip("psutil")

    url = tmp_path / "s.db"
    program = _start(manifest, url)
    assert program.stderr is not None
    killed = 0
    for line in program.stderr:
        if b": deciding" in line and not killed:
            time.sleep(0.05)
            for child in psutil.Process(program.pid).children(recursive=True):
                if "spawn_main" in " ".join(child.cmdline()):
                    child.kill()
                    killed += 1
                    break
    assert program.wait(120) == 1
    program.stderr.close()
    assert killed == 1
    assert content(str(url)) == undisturbed


def dying(fn: Any, deaths: Path, times: int, *args: Any) -> Any:
    """The work, in a worker that dies so many times before it does it; to be sent to workers."""
    mark = deaths / str(args[0].name)
    with mark.open("a") as file:
        file.write(".")
    if mark.stat().st_size <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return fn(*args)


class Dying(Executor):
    """An engine whose workers die under models whose name says how often."""

    def __init__(self, engine: Executor, deaths: Path) -> None:
        self.engine, self.deaths = engine, deaths
        deaths.mkdir()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        times = int(args[0].name.split()[1])
        return self.engine.submit(dying, fn, self.deaths, times, *args)


class DyingPool(ProcessPoolExecutor):
    """The same as a pool of processes."""

    deaths: Path

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        times = int(args[0].name.split()[1])
        return super().submit(dying, fn, self.deaths, times, *args)


def check_lost_workers(engine: Executor, folder: Path, calm: int) -> None:
    """Lost once: tried again. Lost always: not run, which is no failure, and costs nobody else."""
    tasks = [
        Task(f"random:normal,{20 + n}x3,seed={n}", f"m{n} {times}")
        for n, times in enumerate([1, 1000, *[0] * calm])
    ]
    with Store(folder / "s.db") as store:
        # One after the other where there is no calm one: Dask suspects all that a worker had.
        parts = [tasks] if calm else [[task] for task in tasks]
        outcomes = [o for part in parts for o in sweep(part, store, engine, work=folder / "work")]
        assert [outcome.state for outcome in outcomes] == ["stored", "not run"] + ["stored"] * calm
        assert "its worker was lost 2 times: " in outcomes[1].error
        assert outcomes[1].error.isprintable()
        assert store.failures(history=True) == []
        assert len(store.audits()) == 1 + calm


def test_a_lost_worker_process_is_no_failure_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pool(workers: int | None) -> DyingPool:
        made = DyingPool(workers, mp_context=multiprocessing.get_context("spawn"))
        made.deaths = tmp_path
        return made

    monkeypatch.setattr("uncork.workers.queue.local_processes", pool)
    monkeypatch.setattr("uncork.workers.queue.TRIES", 1)  # each takes a second
    check_lost_workers(pool(1), tmp_path, calm=4)


def test_equal_weights_under_two_names_are_both_stored(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(30, 2))
    for name in ("a", "b", "c"):
        np.savez(tmp_path / f"{name}.npz", W=weight)
    tasks = [Task(str(tmp_path / f"{name}.npz"), name) for name in "abc"]
    with Store(tmp_path / "s.db") as store:
        sweep(tasks[:2], store, InThisProcess(), work=tmp_path / "work")
        assert sorted(audit.name for audit in store.audits()) == ["a", "b"]
        engine = InThisProcess()
        again = sweep(tasks, store, engine, work=tmp_path / "work", resume=True)
        assert [outcome.state for outcome in again] == ["was stored", "was stored", "stored"]
        assert engine.calls.count("decide") == 0
        assert sorted((a.id, a.name) for a in store.audits()) == [(1, "a"), (1, "b"), (1, "c")]
        assert store.audits()[2].source == str(tmp_path / "c.npz")


def test_failures_of_two_files_at_one_place_and_of_other_options_are_all_kept(
    tmp_path: Path,
) -> None:
    file = tmp_path / "m.npz"
    tasks = [Task(str(file), "m"), Task(str(file), "m", options={"domain": "unbounded"})]
    with Store(tmp_path / "s.db") as store:
        for content in (b"one file", b"another file"):
            file.write_bytes(content)
            sweep(tasks, store, InThisProcess(), work=tmp_path / "work")
        assert len(store.failures()) == 4
        assert len({(f["weights"], str(f["options"])) for f in store.failures()}) == 4
        np.savez(file, W=np.eye(3))
        sweep(tasks, store, InThisProcess(), work=tmp_path / "work")
        assert store.failures() == []
        assert len(store.failures(history=True)) == 4


def test_a_second_sweep_into_a_store_says_which_one_is_running(tmp_path: Path) -> None:
    task = Task("random:normal,40x2,seed=0", "m")
    work = tmp_path / "work"

    class Meanwhile(InThisProcess):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            with Store(tmp_path / "s.db") as store, pytest.raises(UncorkError) as raised:
                sweep([task], store, InThisProcess(), work=work)
            assert f"process {os.getpid()} on {socket.gethostname()}" in str(raised.value)
            return super().submit(fn, *args, **kwargs)

    with Store(tmp_path / "s.db") as store:
        for _ in range(2):  # nothing of the lock is left
            (outcome,) = sweep([task], store, Meanwhile(), work=work)
            assert outcome.state == "stored"
            assert [file.name for file in tmp_path.iterdir()] == ["s.db"]


def test_workers_end_when_a_sweep_is_killed(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    manifest = tmp_path / "models.toml"
    manifest.write_text(
        "".join(f'[[model]]\nsource = "random:normal,16000x60,seed={n}"\n' for n in range(2))
    )
    program = _start(manifest, tmp_path / "s.db")
    assert program.stderr is not None
    deciding = 0
    for line in program.stderr:
        deciding += b": deciding" in line
        if deciding == 2:
            break
    workers = psutil.Process(program.pid).children(recursive=True)
    program.kill()
    program.wait(30)
    program.stderr.close()
    try:
        gone, alive = psutil.wait_procs(workers, timeout=10)
        assert len(gone) >= 2
        assert not alive
        with held(work_folder(str(tmp_path / "s.db"))):  # the lock went with it
            pass
    finally:
        for process in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def test_iterations_are_those_of_the_reference_algorithm() -> None:
    for seed in range(6):
        head = random_head(60, 3, bias=bool(seed % 2), seed=seed)
        counts = count_iterations(head, patience=150)
        expected = []
        for t in range(head.classes):
            x, reflections = braid_reflect(head, t, 150)
            expected.append(-1 if x is None else reflections)
        assert counts.tolist() == expected


def test_iterations_of_classes_not_asked_for_are_not_counted() -> None:
    head = random_head(30, 3)
    some = count_iterations(head, np.array([3, 4]), 50)
    assert (some[[3, 4]] == count_iterations(head, patience=50)[[3, 4]]).all()
    assert (np.delete(some, [3, 4]) == -1).all()


def test_a_store_that_stops_between_two_models_says_that_resuming_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No range is kept at that moment, but a stored model is as good.

    Both are in the store, since plans are answered in any order: whichever comes second meets the
    store that has stopped.
    """
    tasks = [Task(source=f"random:normal,40x20,seed={seed}", name=f"{seed}") for seed in (0, 1)]
    with Store(str(tmp_path / "s.db")) as store:
        sweep(tasks, store, InThisProcess(), work=tmp_path / "work")

        def add_name(*given: Any, **named: Any) -> bool:
            monkeypatch.setattr(Store, "find", stops)
            return False

        def stops(*given: Any, **named: Any) -> None:
            raise UncorkError("the server accepts no connections to it")

        monkeypatch.setattr(Store, "add_name", add_name)
        with pytest.raises(UncorkError, match="--resume goes on"):
            sweep(tasks, store, InThisProcess(), work=tmp_path / "work", resume=True)
