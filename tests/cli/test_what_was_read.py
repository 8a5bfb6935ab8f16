"""Every command says which matrix its result is about, and what is doubtful about it, first."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from running import Run
from tests.sweep.test_sweep import InThisProcess
from tests.tiny_models import node, save_onnx

from uncork.loading import source as opening
from uncork.store import Store

DOUBT = "nothing says which side the classes are on: \x1b[2J--transpose"
NOTE = "two of a kind\r<b>"
FOLDED = "dequantised: codes times lm_head.SCB / 127"
SAID = "careful: nothing says which side the classes are on: \\x1b[2J--transpose"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that makes its reader doubt, with a note that would steer a terminal."""
    usual = opening.choose_by_hand

    def doubting(*arguments: Any) -> Any:
        choice = usual(*arguments)
        return replace(choice, doubts=(DOUBT,), notes=(NOTE,), folded=(FOLDED,))

    monkeypatch.setattr(opening, "choose_by_hand", doubting)
    weight = np.random.default_rng(3).normal(size=(12, 2))
    np.savez(tmp_path / "model.npz", weight=weight, bias=np.zeros(12))
    return tmp_path / "model.npz"


def test_audit_says_doubts_within_three_lines_and_the_rest_above_the_counts(
    run: Run, model: Path
) -> None:
    lines = run("audit", model).out.splitlines()
    assert lines[0] == str(model)
    assert lines[1] == SAID
    counts = next(k for k, line in enumerate(lines) if line.startswith("argmaxable"))
    assert lines[3:counts] == [
        "weight: weight (its name is that of an output layer)",
        "bias: bias",
        f"folded in: {FOLDED}",
        "labels from: none; classes are numbered",
        "domain from: assumed: the source does not show what precedes the head",
        "note: two of a kind\\r<b>",
        "",
    ]


def test_json_of_an_audit_has_it_and_keeps_its_old_keys(run: Run, model: Path) -> None:
    found = run("audit", model, "--json", "-").json()
    assert found["weight"] == "weight"
    assert found["bias_tensor"] == "bias"
    assert found["preceded_by"] is None
    assert found["notes"] == [SAID.removeprefix("careful: "), FOLDED, "two of a kind\\r<b>"]
    assert found["doubts"] == found["notes"][:1]
    old = {
        "uncork", "source", "fingerprint", "classes", "features", "bias", "dtype", "domain",
        "counts", "unargmaxable", "tied", "undecided", "seconds", "proven", "domain_from", "odd",
    }  # fmt: skip
    assert old <= found.keys()
    assert found["bias"] is True
    assert found["domain_from"] == ""


@pytest.mark.parametrize(("domain", "said"), [
    (None, "domain from: assumed; --domain auto would take what precedes the head"),
    ("auto", "domain from: what precedes the head"),
    ("box:5", "domain from: given"),
])  # fmt: skip
def test_what_precedes_the_head_is_said_whether_or_not_it_is_used(
    run: Run, tmp_path: Path, domain: str | None, said: str
) -> None:
    weight = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    path = tmp_path / "model.onnx"
    nodes = [node("Relu", ["x"], "hidden"), node("MatMul", ["hidden", "head"], "out")]
    save_onnx(path, nodes, {"head": weight}, [None, 3])
    ran = run("audit", path, *([] if domain is None else ["--domain", domain]))
    assert said in ran.out.splitlines()
    (line,) = [line for line in ran.out.splitlines() if line.startswith("preceded by: ")]
    assert "Relu" in line
    found = run("audit", path, "--json", "-").json()
    assert f"preceded by: {found['preceded_by']}" == line


def test_the_report_has_it_at_its_top(run: Run, model: Path, tmp_path: Path) -> None:
    run("audit", model, "--report", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    top = page[: page.index("</header>")]
    assert "<b>Careful:</b> <bdi>nothing says which side the classes are on: \\x1b[2J" in top
    assert "<dt>weight</dt><dd><bdi>weight (its name is that of an output layer)</bdi>" in top
    assert "two of a kind\\r&lt;b&gt;" in top
    assert "\x1b" not in page


def test_junit_has_it_as_properties_and_with_every_failure(
    run: Run, model: Path, tmp_path: Path
) -> None:
    run("audit", model, "--junit", tmp_path / "junit.xml")
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert suite[0].tag == "properties"
    said = [(item.get("name"), item.get("value")) for item in suite[0]]
    assert said[0] == ("careful", SAID.removeprefix("careful: "))
    assert ("weight", "weight (its name is that of an output layer)") in said
    assert said[-1] == ("note", "two of a kind\\r<b>")
    failures = suite.findall("testcase/failure")
    assert failures
    assert all(str(failure.text).startswith(SAID) for failure in failures)


def test_the_table_names_the_weight_and_marks_the_doubtful(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "s.db"
    run("audit", model, "--store", store, "--name", "doubtful")
    monkeypatch.undo()
    np.savez(tmp_path / "other.npz", W=np.random.default_rng(0).normal(size=(5, 2)))
    run("audit", tmp_path / "other.npz", "--store", store, "--name", "plain")
    doubt = SAID.removeprefix("careful: ")
    rows = run("table", "--store", store, "--format", "json").json()
    assert [(row["model"], row["weight"], row["careful"]) for row in rows] == [
        ("doubtful", "weight", doubt), ("plain", "W", None),
    ]  # fmt: skip
    header, _, first, second = run("table", "--store", store).out.splitlines()
    assert header.split()[-3:] == ["weight", "careful", "notes"]
    assert f"weight  {doubt}  " in first
    assert first.endswith("two of a kind\\r<b>")
    assert second.split()[-3:] == ["W", "–", "–"]
    header = run("table", "--store", store, "--name", "plain").out.splitlines()[0]
    assert header.split()[-1] == "weight"
    table = run("table", "--store", store, "--format", "csv").out.splitlines()
    assert [row["careful"] for row in csv.DictReader(table)] == [doubt, ""]
    for said in (rows[0], next(csv.DictReader(table))):
        read = [said[name] for name in ("notes", "folded in", "bias tensor")]
        assert read == ["two of a kind\\r<b>", FOLDED, "bias"]
        assert {"labels from", "preceded by", "domain from"} <= said.keys()
    summary = run("table", "--store", store, "--summary", "--format", "json").json()
    assert [row["doubtful"] for row in summary] == [1]
    export = tmp_path / "rows.jsonl"
    run("export", export, "--store", store)
    exported = [json.loads(line) for line in export.read_text().splitlines()]
    assert {(row["name"], row["weight"], *row["doubts"]) for row in exported} == {
        ("doubtful", "weight", doubt), ("plain", "W"),
    }  # fmt: skip


def test_a_sweep_says_doubts_above_its_table_and_stores_them(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uncork.workers.engines.open_engine", lambda *settings: InThisProcess())
    (tmp_path / "models.toml").write_text('[[model]]\nsource = "model.npz"\nname = "mine"\n')
    command = ["sweep", tmp_path / "models.toml", "--store", tmp_path / "s.db"]
    ran = run(*command)
    assert ran.out.splitlines()[0] == f"mine: {SAID}"
    with Store(tmp_path / "s.db") as store:
        (audit,) = store.audits()
    assert audit.reading is not None
    assert audit.reading.lines()[0] == SAID
    (again,) = run(*command, "--resume", "--quiet", "--json", "-").json()
    assert again["state"] == "was stored"
    assert (again["weight"], again["doubts"]) == ("weight", list(audit.reading.doubts))


def test_commands_that_only_use_a_head_say_its_doubts_under_their_first_line(
    run: Run, model: Path, tmp_path: Path
) -> None:
    proofs, bounds = tmp_path / "proofs.npz", tmp_path / "bounds.npz"
    run("audit", model, "--certificates", proofs)
    commands: list[list[object]] = [
        ["verify", proofs, model],
        ["reach", model, "--certificates", bounds],
        ["reach", model, "--verify", bounds],
        ["reach", model, "--above", "1,2"],
        ["repair", model, "-o", tmp_path / "repaired.npz"],
        ["prevent", model, "-o", tmp_path / "prevented.npz", "--how", "bias"],
        ["prevent", model, "--do-not-prevent"],
        ["rank", model],
    ]
    for command in commands:
        ran = run(*command)
        assert ran.status == 0, command
        assert SAID in ran.out.splitlines()[:2], command
        found = run(*command, "--json", "-").json()
        assert found["reading"]["doubts"] == [SAID.removeprefix("careful: ")], command
        assert found["reading"]["weight"] == "weight"
    drawn = run("draw", model, "-o", tmp_path / "figure.svg")
    assert drawn.out.splitlines()[0] == SAID


def test_counting_the_rankings_of_a_head_and_playing_with_it_say_its_doubts(
    run: Run, model: Path, tmp_path: Path
) -> None:
    weight = np.random.default_rng(3).normal(size=(4, 2))
    np.savez(model, weight=weight)
    assert run("playground", model, "-o", tmp_path / "p.html").out.splitlines()[0] == SAID
    ran = run("count", model)
    assert ran.out.splitlines()[1] == SAID
    assert run("count", model, "--json", "-").json()["reading"]["weight"] == "weight"


def test_show_says_the_same(run: Run, model: Path) -> None:
    out = run("show", model).out
    for line in (
        "careful      nothing says which side the classes are on: \\x1b[2J--transpose",
        f"folded in    {FOLDED}",
        "note         two of a kind\\r<b>",
    ):
        assert line in out
    found = run("show", model, "--json", "-").json()
    assert found["doubts"] == [SAID.removeprefix("careful: ")]
    assert found["folded"] == [FOLDED]
