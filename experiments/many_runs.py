"""Many small trainings over several processes: resumed, budgeted, each written when it is done."""

from __future__ import annotations

import json
import multiprocessing
import queue
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError

Work = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Run:
    """One training: its name; what makes it what it is; where things are, which `work` is given too
    and its result does not repeat; and its length against the others'."""

    name: str
    asked: dict[str, Any]
    where: dict[str, Any]
    cost: float = 1.0


def write_json(path: Path, value: Any, *, lines: bool = False) -> None:
    """The file appears whole or not at all. `lines` keeps each entry of a list to a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    made = _in_lines(value) if lines else json.dumps(value, ensure_ascii=False)
    beside.write_text(made + "\n", encoding="utf-8")
    beside.replace(path)


def _in_lines(value: Any) -> str:
    if isinstance(value, list):
        return "[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in value) + "\n]"
    if isinstance(value, dict):
        entries = (f"{json.dumps(key)}: {_in_lines(one)}" for key, one in value.items())
        return "{\n" + ",\n".join(entries) + "\n}"
    return json.dumps(value, ensure_ascii=False)


def read_results(folder: Path) -> list[dict[str, Any]]:
    """What finished runs left, by name."""
    return [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]


def run_all(
    runs: list[Run],
    work: Work,
    folder: Path,
    *,
    workers: int = 1,
    budget_seconds: float | None = None,
    line: Callable[[dict[str, Any]], str] = str,
) -> int:
    """Do the runs that have no result in the folder yet, in order; how many failed or were left.

    A run is not begun where, at the pace so far, it would end after the budget. `line` says in a
    line what came of a run, for stderr.
    """
    folder.mkdir(parents=True, exist_ok=True)
    left = [run for run in runs if not (folder / f"{run.name}.json").exists()]
    if len(left) < len(runs):
        _say(f"{len(runs) - len(left)} of {len(runs)} runs are done already")
    if not left:
        return 0
    begun = time.time()
    deadline = begun + (1e9 if budget_seconds is None else budget_seconds)
    finished: list[str] = []
    failed: list[str] = []

    def report(came: dict[str, Any] | str) -> None:
        if isinstance(came, str):
            failed.append(came)
            _say(came)
        else:
            finished.append(came["name"])
            spent = f"{len(finished)}/{len(left)}, {time.time() - begun:.0f} s"
            _say(f"[{spent}] {came['name']}: {line(came)}")

    if min(workers, len(left)) <= 1:
        _one_after_another(left, work, folder, _Counter(), _Counter(), deadline, report)
    else:
        _side_by_side(left, work, folder, min(workers, len(left)), deadline, report)
    missing = len(left) - len(finished)
    if missing > len(failed):
        _say(f"{missing - len(failed)} runs are left: the same command goes on with them")
    return missing


class _Counter:
    """What multiprocessing.Value is, within one process."""

    def __init__(self) -> None:
        self.value: Any = 0

    def get_lock(self) -> Any:
        return nullcontext()


def _side_by_side(left, work, folder, workers, deadline, report) -> None:
    context = multiprocessing.get_context("spawn")
    reports = context.Queue()
    following, pace = context.Value("i", 0), context.Value("d", 0.0)
    shared = (left, work, folder, following, pace, deadline, reports.put)
    processes = [context.Process(target=_one_after_another, args=shared) for _ in range(workers)]
    for process in processes:
        process.start()
    while True:
        alive = any(process.is_alive() for process in processes)  # asked before looking: what a
        try:  # process reported before it ended is then found
            report(reports.get(timeout=0.5))
        except queue.Empty:
            if not alive:
                break
    for process in processes:
        process.join()


def _one_after_another(left, work, folder, following, pace, deadline, report) -> None:
    while True:
        with following.get_lock():
            index = following.value
            following.value += 1
        if index >= len(left):
            return
        run = left[index]
        if time.time() + pace.value * run.cost > deadline:
            continue  # a shorter one further on may still fit
        begun = time.time()
        try:
            result = {"name": run.name, **run.asked, **work({**run.asked, **run.where})}
        except UncorkError as error:
            report(f"{run.name} failed: {error}")
            continue
        except Exception:
            report(f"{run.name} failed\n{traceback.format_exc()}")
            continue
        seconds = time.time() - begun
        result["seconds"] = round(seconds, 2)
        with pace.get_lock():
            pace.value = seconds / run.cost  # the latest: the first ones also start everything up
        write_json(folder / f"{run.name}.json", result)
        report(result)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
