"""`uncork audit --engine`: the same audit on workers, stopped and continued by either kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Run
from tests.sweep.test_sweep import InThisProcess


@pytest.fixture
def vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("uncork.workers.split._FEWEST", 50)
    path = tmp_path / "vectors.npy"
    np.save(path, np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32))
    return path


def verdicts(path: Path) -> tuple[Any, list[int], bool]:
    found = json.loads(path.read_text("utf-8"))
    return found["counts"], [one["class"] for one in found["unargmaxable"]], found["proven"]


def test_local_processes_decide_what_one_process_decides(
    run: Run, vectors: Path, tmp_path: Path
) -> None:
    for name, more in (("one", ()), ("two", ("--engine", "local", "--workers", "1"))):
        proofs = tmp_path / f"{name}.npz"
        ran = run("audit", vectors, "--json", tmp_path / f"{name}.json", "--certificates", proofs,
                  "--quiet", *more)  # fmt: skip
        assert ran.status == 0
        assert run("verify", proofs, vectors).status == 0
    assert verdicts(tmp_path / "two.json") == verdicts(tmp_path / "one.json")


class Stops(InThisProcess):
    """An engine during whose third range somebody presses Ctrl-C."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if len(self.calls) == 2:
            raise KeyboardInterrupt
        return super().submit(fn, *args, **kwargs)


@pytest.mark.parametrize("second", [(), ("--engine", "local")])
def test_ctrl_c_keeps_finished_ranges_and_either_kind_of_run_continues(
    run: Run, vectors: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch,
    second: tuple[str, ...],
) -> None:  # fmt: skip
    engines: Iterator[InThisProcess] = iter([Stops(), InThisProcess()])
    monkeypatch.setattr("uncork.workers.engines.open_engine", lambda *how: next(engines))
    ran = run("audit", vectors, "--engine", "local", "--json", tmp_path / "a.json")
    assert ran.status == 130
    assert "interrupted: 100 classes decided, 100 not; the same command with --resume" in ran.err
    assert not (tmp_path / "a.json").exists()
    assert list(cache.glob("uncork/partial/*.ranges/ranges/*.npz"))
    ran = run("audit", vectors, *second, "--resume", "--json", tmp_path / "a.json")
    assert ran.status == 0
    assert run("audit", vectors, "--json", tmp_path / "b.json").status == 0
    assert verdicts(tmp_path / "a.json") == verdicts(tmp_path / "b.json")
    assert not list(cache.glob("uncork/partial/*"))  # nothing is left of it


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers", "2"), "--workers goes with --engine"),
        (("--address", "127.0.0.1:1"), "--address goes with --engine"),
        (("--send-rows",), "--send-rows goes with --engine"),
        (("--engine", "local", "--send-rows"), "--send-rows goes with --engine dask or ray"),
        (("--engine", "local", "--address", "a:1"), "--address goes with --engine dask or ray"),
        (("--engine", "local", "--workers", "0"), "at least one is needed"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    run: Run, vectors: Path, options: tuple[str, ...], message: str
) -> None:
    assert message in run("audit", vectors, *options).error
