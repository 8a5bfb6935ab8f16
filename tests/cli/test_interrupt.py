"""Ctrl-C and time limits lose nothing: the same command with --resume continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from running import Run

import uncork
from uncork import UncorkError
from uncork.report import page

# By their names: in their packages the functions stand before the modules.
deciding = import_module("uncork.auditing.run")
showing = import_module("uncork.cli.commands.show")
auditing = import_module("uncork.cli.commands.audit")

SOURCE = Path(uncork.__file__).parents[1]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """A head that the reference algorithm needs minutes for, class after class."""
    path = tmp_path / "long.npy"
    weight = np.random.default_rng(0).normal(size=(1000, 24)).astype(np.float32)
    weight[::2] *= np.float32(0.05)  # deep inside: lost, each by a linear programme
    np.save(path, weight)
    return path


def interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it says when Ctrl-C is pressed; and pressed again, as one would, where nothing comes of
    it: Python loses an interrupt that falls into a callback from C."""
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        return process.communicate(timeout=60)


def partial(cache: Path) -> list[Path]:
    return list(cache.glob("uncork/partial/*.npz"))


def test_ctrl_c_keeps_what_was_decided_and_resume_completes_it(
    run: Run, start: Start, long: Path, cache: Path, tmp_path: Path
) -> None:
    outputs = ["--certificates", tmp_path / "c.npz", "--report", tmp_path / "r.html"]
    command = ["audit", long, "--algorithm", "reference", "--jobs", "1", *outputs]
    for patience in (3, 6, 12, 24):  # on a busy machine the audit begins later
        process = start(*command)
        time.sleep(patience)
        out, err = interrupted(process)
        if partial(cache):
            break
    assert process.returncode == 130
    assert out == ""
    assert "interrupted" in err
    assert "--resume" in err
    assert "Traceback" not in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["long.npy"]
    resumed = run("audit", long, "--resume", "--json", "-", *outputs)
    assert resumed.status == 0
    assert resumed.json()["counts"]["undecided"] == 0
    assert resumed.json()["proven"] is True
    assert partial(cache) == []
    fresh = run("audit", long, "--json", "-")
    assert resumed.json()["counts"] == fresh.json()["counts"]


def test_a_time_limit_leaves_the_rest_undecided_and_resume_completes_it(
    run: Run, long: Path, cache: Path
) -> None:
    limited = run(
        "audit", long, "--algorithm", "reference", "--time-limit", "0.5", "--json", "-", "--quiet"
    )
    assert limited.status == 0
    found = limited.json()
    assert found["counts"]["undecided"] > 0
    # On a busy machine it adds that nothing new was decided by then.
    assert found["undecided"][0]["reason"].startswith("the time limit of 0.5 s was reached")
    assert sum(found["counts"].values()) == 1000
    assert "the time limit of 0.5 s was reached" in limited.err
    assert len(partial(cache)) == 1
    hinted = run("audit", long, "--approximate", "--patience", "1")
    assert "--resume continues it" in hinted.err
    resumed = run("audit", long, "--resume", "--json", "-")
    assert resumed.json()["counts"]["undecided"] == 0
    assert partial(cache) == []


def test_an_audit_of_some_classes_or_one_that_got_less_far_leaves_the_other_alone(
    run: Run, tmp_path: Path, cache: Path
) -> None:
    path = tmp_path / "m.npz"
    np.savez(path, weight=np.random.default_rng(0).normal(size=(300, 6)))
    run("audit", path, "--time-limit", "1e-9", "--quiet")
    (kept,) = partial(cache)
    content = kept.read_bytes()
    assert run("audit", path, "--classes", "0-9").status == 0
    assert partial(cache) == [kept]
    stopped = run("audit", path, "--classes", "0-99", "--time-limit", "1e-9")
    assert "--resume continues" in stopped.err
    assert len(partial(cache)) == 2
    assert (
        "starting from the beginning" not in run("audit", path, "--classes", "0-99", "--resume").err
    )
    assert partial(cache) == [kept]
    again = run("audit", path, "--algorithm", "reference", "--time-limit", "1e-9")
    assert "an earlier run decided" in again.err
    assert kept.read_bytes() == content


def test_another_domain_resumes_nothing(run: Run, long: Path, cache: Path) -> None:
    run("audit", long, "--algorithm", "reference", "--time-limit", "0.2", "--quiet")
    ran = run("audit", long, "--domain", "ball:3", "--classes", "0-9", "--resume")
    assert "starting from the beginning" in ran.err
    assert len(partial(cache)) == 1


def test_a_damaged_partial_audit_is_said_and_not_used(run: Run, long: Path, cache: Path) -> None:
    run("audit", long, "--algorithm", "reference", "--time-limit", "0.2", "--quiet")
    (path,) = partial(cache)
    path.write_bytes(b"PK\x03\x04")
    assert "delete it, or leave out --resume" in run("audit", long, "--resume").error


@pytest.mark.parametrize("where", ["write_report", "low_precision"])
def test_ctrl_c_after_the_last_class_loses_no_work(
    run: Run, square: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    def interrupted(*rest: object, **more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(page if where == "write_report" else deciding, where, interrupted)
        ran = run("audit", square, "--low-precision", "--report", tmp_path / "r.html")
    assert ran.status == 130
    assert "6 classes decided, 0 not; the same command with --resume continues" in ran.err
    assert len(partial(cache)) == 1
    assert run("audit", square, "--resume").status == 0
    assert partial(cache) == []


def test_ctrl_c_where_nothing_is_kept_is_answered_too(
    run: Run, square: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*rest: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(showing, "describe", interrupted)
    ran = run("show", square)
    assert (ran.status, ran.out, ran.err) == (130, "", "uncork: interrupted\n")


def test_ctrl_c_that_arrives_as_an_error_of_an_import_is_ctrl_c(
    run: Run, square: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def importing(*rest: object, **more: object) -> None:
        try:
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt as pressed:
                raise ImportError("initialization failed") from pressed
        except ImportError:
            raise UncorkError("this needs a library: pip install it") from None

    monkeypatch.setattr(showing, "describe", importing)
    ran = run("show", square)
    assert (ran.status, ran.err) == (130, "uncork: interrupted\n")


def test_a_result_that_cannot_be_written_loses_no_work(
    run: Run, square: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(audit: object, path: str, *rest: object, **more: object) -> None:
        raise OSError(28, "No space left on device", path)

    with monkeypatch.context() as patched:
        patched.setattr(page, "write_report", full)
        ran = run("audit", square, "--report", tmp_path / "r.html")
    assert ran.status == 2
    assert "6 classes decided" in ran.err
    assert ran.err.endswith(f"uncork: error: {tmp_path / 'r.html'}: No space left on device\n")
    assert len(partial(cache)) == 1
    assert run("audit", square, "--resume", "--report", tmp_path / "r.html").status == 0
    assert partial(cache) == []


@pytest.mark.parametrize("how", [["-m", "uncork"], ["{command}"]])
def test_ctrl_c_while_importing_shows_no_traceback(how: list[str], tmp_path: Path) -> None:
    """One of the imports, made slower: Ctrl-C is pressed in the middle of it."""
    (tmp_path / "typer.py").write_text(
        "import time\nprint('importing', flush=True)\ntime.sleep(60)\n"
    )
    command = tmp_path / "uncork"
    command.write_text("from uncork.cli import main\nmain()\n")
    argv = [part.format(command=command) for part in how]
    # Alive even where the tests' own is ignored, as that of a background job is: a process starts
    # without what was handled, and ignores what was ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, *argv, "count", "-C", "4", "-d", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"},
    )  # fmt: skip
    signal.signal(signal.SIGINT, before)
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


def test_what_exact_arithmetic_gave_up_is_not_blamed_on_the_time_limit() -> None:
    found = uncork.audit(uncork.Head(np.eye(3)), device="cpu", approximate=True)
    found.proofs.verdicts[:2] = uncork.Verdict.UNDECIDED
    found.proofs.reasons = dict.fromkeys((0, 1), "exact arithmetic took more than 60 s")
    assert auditing._why_left(found) == "exact arithmetic took more than 60 s"
    late = "the time limit of 170 s was reached"
    found.proofs.reasons[1] = f"{late} before anything new was decided: it is too short"
    assert auditing._why_left(found) == late


def test_ctrl_c_in_a_check_keeps_the_audit(
    run: Run, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checking = import_module("uncork.cli.commands.check")
    source = tmp_path / "m.npz"
    np.savez(source, weight=np.random.default_rng(0).normal(size=(30, 3)))

    def pressed(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(checking, "run_checks", pressed)
        done = run("check", source, "--jobs", 1)
    assert (done.status, done.out) == (130, "")
    assert "interrupted: 30 classes decided, 0 not; the same command with --resume" in done.err
    assert len(partial(cache)) == 1
    assert run("check", source, "--jobs", 1, "--resume").status in (0, 1)
    assert partial(cache) == []
