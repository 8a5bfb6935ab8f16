"""Many runs: resumed, budgeted, spread over processes, and none lost because another failed."""

import json
import time

import pytest
from many_runs import Run, read_results, run_all, write_json


def work(asked):
    if asked["number"] < 0:
        raise ValueError("a number below zero")
    time.sleep(asked.get("sleep", 0))
    with open(asked["log"], "a") as log:
        log.write(f"{asked['number']}\n")
    return {"square": asked["number"] ** 2}


def runs(folder, numbers, **more):
    where = {"log": str(folder / "log")}
    return [Run(f"run-{n}", {"number": n, **more}, where) for n in numbers]


@pytest.mark.parametrize("workers", [1, 2])
def test_every_run_leaves_its_result_and_a_failure_takes_no_other_with_it(
    tmp_path, capsys, workers
):
    out = tmp_path / "runs"
    left = run_all(runs(tmp_path, [1, 2, -3, 4]), work, out, workers=workers)
    assert left == 1
    assert {one["name"]: one["square"] for one in read_results(out)} == {
        "run-1": 1, "run-2": 4, "run-4": 16
    }  # fmt: skip
    assert "log" not in read_results(out)[0]
    said = capsys.readouterr().err
    assert "run-3 failed" in said.replace("--", "-")
    assert "a number below zero" in said


def test_a_finished_run_is_not_repeated(tmp_path, capsys):
    out = tmp_path / "runs"
    assert run_all(runs(tmp_path, [1]), work, out) == 0
    assert run_all(runs(tmp_path, [1, 2]), work, out) == 0
    assert (tmp_path / "log").read_text() == "1\n2\n"
    assert "1 of 2 runs are done already" in capsys.readouterr().err


def test_no_run_is_begun_that_would_end_after_the_budget(tmp_path, capsys):
    out = tmp_path / "runs"
    first = runs(tmp_path, [1], sleep=0.4)
    long = [Run("long", {"number": 2}, first[0].where, cost=100.0)]
    assert run_all(first + long + runs(tmp_path, [3]), work, out, budget_seconds=20) == 1
    assert [one["number"] for one in read_results(out)] == [1, 3]
    assert "1 runs are left" in capsys.readouterr().err


def test_a_summary_keeps_an_entry_to_a_line(tmp_path):
    value = {"rows": [{"a": [1, 2]}, {"a": [3]}], "count": 2}
    write_json(tmp_path / "x.json", value, lines=True)
    written = (tmp_path / "x.json").read_text()
    assert json.loads(written) == value
    assert '{"a": [1, 2]},\n' in written
