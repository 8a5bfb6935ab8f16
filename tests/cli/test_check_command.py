"""`uncork check`: exit statuses, files, conditions, and what is refused before any work."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from running import Run

QUICK = ("--device", "cpu", "--jobs", 1, "--quiet")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """Every class wins."""
    path = tmp_path / "sound.npz"
    np.savez(path, weight=np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], np.float32))
    return path


def outcomes(run: Run, *arguments: object) -> dict[str, str]:
    found = run("check", *arguments, *QUICK, "--json", "-").json()
    return {one["name"]: one["outcome"] for one in found["checks"]}


def test_a_sound_head_exits_with_0_and_a_lost_class_with_1(
    run: Run, sound: Path, square: Path
) -> None:
    assert run("check", sound, *QUICK).status == 0
    done = run("check", square, *QUICK)
    assert done.status == 1
    assert "fail  lost" in done.out
    assert done.err == ""


def test_a_warning_fails_only_with_strict(run: Run, sound: Path, square: Path) -> None:
    Path("uncork.toml").write_text('[check]\nlost = "warn"\n')
    assert run("check", square, *QUICK).status == 0
    assert run("check", square, *QUICK, "--strict").status == 1
    Path("uncork.toml").write_text('[check]\nlost = "off"\ntied = "off"\nrow-equal = "off"\n')
    assert run("check", square, *QUICK, "--strict").status == 0


def test_every_file_that_is_asked_for_is_written(run: Run, square: Path, labels: Path) -> None:
    done = run(
        "check", square, *QUICK, "--labels", labels, "--write", "sarif=c.sarif", "--write",
        "junit=c.xml", "--write", "markdown=c.md", "--report", "page.html", "--certificates",
        "proofs.npz", "--json", "c.json",
    )  # fmt: skip
    assert done.status == 1
    found = json.loads(Path("c.json").read_text("utf-8"))
    digest = hashlib.sha256(Path("proofs.npz").read_bytes()).hexdigest()
    assert found["certificates"] == {"file": "proofs.npz", "sha256": digest}
    assert json.loads(Path("c.sarif").read_text("utf-8"))["version"] == "2.1.0"
    assert Path("c.xml").read_text("utf-8").startswith("<?xml")
    assert "page.html#class=3" in Path("c.md").read_text("utf-8")
    assert run("verify", "proofs.npz", square).status == 0
    assert "sarif written to c.sarif" in done.out


def test_a_format_is_printed_alone(run: Run, square: Path) -> None:
    assert run("check", square, *QUICK, "--format", "github").out.startswith("::error file=")
    assert json.loads(run("check", square, *QUICK, "--format", "json").out)["failed"] is True
    assert "did you mean" not in run("check", square, "--format", "jsn").err


def test_lists_and_baseline_reach_their_checks(run: Run, square: Path, labels: Path) -> None:
    Path("never.txt").write_text("alpha\n1-2\n", encoding="utf-8")
    Path("counts.tsv").write_text("[red]middle\t90\nalpha\t10\n", encoding="utf-8")
    run("audit", square, "--json", "before.json", *QUICK)
    asked = (
        square, "--labels", labels, "--must-not", "never.txt", "--frequency", "counts.tsv",
        "--baseline", "before.json",
    )  # fmt: skip
    found = outcomes(run, *asked)
    assert (found["forbidden"], found["lost-frequent"], found["regressions"]) == (
        "fail", "fail", "pass",
    )  # fmt: skip
    names = 'must-not = "never.txt"\nfrequency = "counts.tsv"\nbaseline = "before.json"\n'
    Path("uncork.toml").write_text(f'[check]\n{names}labels = "{labels.name}"\n')
    assert outcomes(run, square) == found


def test_an_earlier_check_is_a_baseline_too(run: Run, sound: Path, square: Path) -> None:
    run("check", square, *QUICK, "--json", "before.json")
    assert outcomes(run, square, "--baseline", "before.json")["regressions"] == "pass"
    six = np.vstack([np.load(square)["weight"][:4], [[0.2, 0], [0.1, 0.1]]]).astype(np.float32)
    np.savez("worse.npz", weight=six)  # classes 4 and 5 are lost as well
    found = run("check", "worse.npz", *QUICK, "--baseline", "before.json", "--json", "-").json()
    (regressions,) = [one for one in found["checks"] if one["name"] == "regressions"]
    lost = [one["class"] for one in found["unargmaxable"]]
    assert [one["class"] for one in regressions["classes"]] == [t for t in lost if t != 3]


def test_labels_that_do_not_fit_fail_a_check_and_not_the_command(run: Run, square: Path) -> None:
    Path("short.txt").write_text("a\nb\nc\n")
    found = run("check", square, "--labels", "short.txt", *QUICK, "--json", "-")
    assert found.status == 1
    (count,) = [one for one in found.json()["checks"] if one["name"] == "label-count"]
    assert count["outcome"] == "fail"
    assert "3 labels for 6 classes" in count["why"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none.npz",), "none.npz does not exist"),
        (("square.npz", "--config", "none.toml"), "none.toml cannot be read"),
        (("square.npz", "--config", os.devnull), "is not a regular file"),
        (("square.npz", "--baseline", os.devnull), "is not a regular file"),
        (("square.npz", "--card", os.devnull), "is not a regular file"),
        (("square.npz", "--must-not", os.devnull), "is not a regular file"),
        (("square.npz", "--frequency", os.devnull), "is not a regular file"),
        (("square.npz", "--labels", "none.txt"), "none.txt does not exist"),
        (("square.npz", "--must-not", "none.txt"), "none.txt does not exist"),
        (("square.npz", "--must-not", "bad.txt"), "line 1: 'zebra' is neither a label"),
        (("square.npz", "--frequency", "none.txt"), "none.txt does not exist"),
        (("square.npz", "--baseline", "bad.txt"), "bad.txt is not an audit"),
        (("square.npz", "--format", "yaml"), "'yaml': expected text"),
        (("square.npz", "--write", "sarif"), "expected FORMAT=FILE"),
        (("square.npz", "--write", "sarif=square.npz"), "would overwrite the model"),
        (("square.npz", "--write", "sarif=a", "--write", "json=a"), "would overwrite what another"),
        (("square.npz", "--write", "sarif=no/such/place"), "there is no folder"),
        (("square.npz", "--push", "me/mine"), "--push goes with --card"),
        (("square.npz", "--card", "c.md", "--push", "mine"), "expected owner/name"),
        (("square.npz", "--domain", "box"), "box"),
        (("square.npz", "--time-limit", "-1"), "time limit must be positive"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_line_and_nothing_is_written(
    run: Run, square: Path, arguments: tuple[str, ...], said: str
) -> None:
    Path("bad.txt").write_text("zebra\n")
    before = sorted(Path().iterdir())
    assert said in run("check", *arguments, "--report", "page.html", *QUICK).error
    assert sorted(Path().iterdir()) == before
