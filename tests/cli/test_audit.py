"""`uncork audit`: what it prints and writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from running import Run

import uncork
from models import MAGIKA, MAGIKA_CONFIG, PP_OCR_V4
from uncork.auditing import Audit
from uncork.loading.chosen_classes import script_of


def test_the_summary_names_head_domain_counts_losers_and_proof(
    run: Run, square: Path, labels: Path
) -> None:
    ran = run("audit", square, "--labels", labels)
    assert ran.status == 0
    assert ran.err == ""
    assert "6 classes × 2 features, float32, with bias; inputs in box:-100,100" in ran.out
    counts = ran.out.split("\n\n")[1]
    assert [line.split()[:2] for line in counts.splitlines()] == [
        ["argmaxable", "3"], ["unargmaxable", "1"], ["tied", "2"], ["undecided", "0"],
    ]  # fmt: skip
    assert "[red]middle" in ran.out  # labels are text, not markup
    assert "4 five, 5 15" in ran.out
    assert "proven: each of the 6 verdicts passed the certifier" in ran.out


def test_json_has_the_promised_shape(run: Run, square: Path, labels: Path) -> None:
    ran = run("audit", square, "--labels", labels, "--json", "-")
    found = ran.json()
    assert ran.status == 0
    promised = {
        "uncork": uncork.__version__, "source": str(square), "classes": 6, "features": 2,
        "bias": True, "dtype": "float32", "domain": "box:-100,100", "proven": True,
        "counts": {"argmaxable": 3, "unargmaxable": 1, "tied": 2, "undecided": 0},
        "undecided": [],
    }  # fmt: skip
    assert {key: found[key] for key in promised} == promised
    assert found["fingerprint"] == uncork.load(square).fingerprint
    (lost,) = found["unargmaxable"]
    assert (lost["class"], lost["label"]) == (3, "[red]middle")
    assert lost["slack"] >= 0
    assert [set(thief) for thief in lost["stolen_by"]][:1] == [{"class", "label", "weight"}]
    shares = [thief["weight"] for thief in lost["stolen_by"]]
    assert shares == sorted(shares, reverse=True)
    assert [(t["class"], t["group"]) for t in found["tied"]] == [(4, [4, 5]), (5, [4, 5])]
    assert {"load", "screen", "decide", "certify", "total"} <= set(found["seconds"])


def test_json_in_a_file_leaves_the_summary_on_stdout(
    run: Run, square: Path, tmp_path: Path
) -> None:
    ran = run("audit", square, "--json", tmp_path / "a.json")
    assert "unargmaxable" in ran.out
    assert json.loads((tmp_path / "a.json").read_text("utf-8"))["counts"]["unargmaxable"] == 1


def test_without_the_bias_it_is_another_head(run: Run, tmp_path: Path) -> None:
    np.savez(
        tmp_path / "m.npz", weight=np.array([[1.0], [-1.0], [0.0]]), bias=np.array([0, 0, 1.0])
    )
    assert run("audit", tmp_path / "m.npz", "--json", "-").json()["counts"]["unargmaxable"] == 0
    dropped = run("audit", tmp_path / "m.npz", "--drop-bias", "--json", "-").json()
    assert dropped["bias"] is False
    assert [t["class"] for t in dropped["unargmaxable"]] == [2]


def test_the_domain_decides(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", weight=np.array([[1.0], [-1.0]]))
    lost = {
        spec: [t["class"] for t in run("audit", tmp_path / "m.npz", "--domain", spec, "--json", "-")
               .json()["unargmaxable"]]
        for spec in ("box:1", "box:0.5,2", "box:-3,-1", "ball:2", "unbounded")
    }  # fmt: skip
    assert lost == {"box:1": [], "box:0.5,2": [1], "box:-3,-1": [0], "ball:2": [], "unbounded": []}


@pytest.mark.parametrize(
    ("which", "asked"),
    [("0-2,5", 4), ("3", 1), ("script:CYRILLIC", 1), ("script:latin", 3), ("@", 2)],
)
def test_some_classes_can_be_asked_for(
    run: Run, square: Path, labels: Path, tmp_path: Path, which: str, asked: int
) -> None:
    if which == "@":
        (tmp_path / "ids.txt").write_text("1\n3\n")
        which = f"@{tmp_path / 'ids.txt'}"
    ran = run("audit", square, "--labels", labels, "--classes", which, "--json", "-")
    assert ran.json()["asked"] == asked
    assert ran.json()["undecided"] == []


def test_scripts_go_by_letters_alone() -> None:
    assert script_of("▁при-вет42") == "CYRILLIC"
    assert script_of("Ａbc") == "LATIN"
    assert script_of("榷") == "CJK"
    assert script_of("42!") is None
    assert script_of("aб") is None


def test_approximate_reports_what_is_left_as_potential(run: Run, square: Path) -> None:
    ran = run("audit", square, "--approximate", "--patience", "10")
    assert ran.status == 0
    assert "potentially unargmaxable  1" in ran.out
    found = run("audit", square, "--approximate", "--patience", "9", "--json", "-").json()
    assert found["counts"]["unargmaxable"] == 0
    assert "potentially unargmaxable" in found["undecided"][0]["reason"]


def test_the_reference_agrees(run: Run, square: Path) -> None:
    ran = run("audit", square, "--algorithm", "reference", "--json", "-")
    assert ran.json()["counts"] == {"argmaxable": 3, "unargmaxable": 1, "tied": 2, "undecided": 0}


def test_low_precision_is_counted_apart(run: Run, square: Path) -> None:
    ran = run("audit", square, "--low-precision")
    assert "with logits computed in float32: 3 witnesses still win, 0 only tie, 0 lose" in ran.out


def test_fail_if_unargmaxable_is_a_check(run: Run, square: Path, tmp_path: Path) -> None:
    assert run("audit", square, "--fail-if-unargmaxable").status == 1
    assert (
        run("audit", square, "--fail-if-unargmaxable", "--approximate", "--patience", "9").status
        == 1
    )
    np.save(tmp_path / "corners.npy", np.array([[1.0, 0], [0, 1], [-1, -1]]))
    assert run("audit", tmp_path / "corners.npy", "--fail-if-unargmaxable").status == 0


def test_labels_cannot_steer_the_terminal(run: Run, square: Path, tmp_path: Path) -> None:
    hostile = ["a", "b", "c", "\x1b[31m\x00\u202e[bold]\ud800", "d", "e"]
    (tmp_path / "l.json").write_text(json.dumps(hostile))
    ran = run("audit", square, "--labels", tmp_path / "l.json")
    assert "\\x1b[31m\\x00\\u202e[bold]\\ud800" in ran.out
    assert not {"\x1b", "\x00", "\u202e"} & set(ran.out)
    found = run("audit", square, "--labels", tmp_path / "l.json", "--json", "-").json()
    assert found["unargmaxable"][0]["label"] == hostile[3]


def test_a_real_recogniser_loses_202_characters(run: Run, tmp_path: Path) -> None:
    certificates, page = tmp_path / "c.npz", tmp_path / "r.html"
    ran = run("audit", PP_OCR_V4, "--certificates", certificates, "--report", page, "--json", "-")
    assert ran.json()["counts"] == {
        "argmaxable": 6423, "unargmaxable": 202, "tied": 0, "undecided": 0,
    }  # fmt: skip
    assert len(Audit.load(certificates).unargmaxable) == 202
    assert "202 of the 6,625 classes can never be the argmax" in page.read_text("utf-8")
    verified = run("verify", certificates, PP_OCR_V4, "--json", "-")
    assert verified.status == 0
    assert verified.json()["held"] == {"argmaxable": 6423, "unargmaxable": 202, "tied": 0}


def test_a_classifier_that_can_say_everything(run: Run) -> None:
    ran = run("audit", MAGIKA, "--labels", MAGIKA_CONFIG, "--fail-if-unargmaxable")
    assert ran.status == 0
    assert "argmaxable    214  100.0%" in ran.out
