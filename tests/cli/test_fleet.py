"""Many models from the command line: sweep, table, figure, export, and audits kept in a store."""

from __future__ import annotations

import csv
import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from running import Run
from tests.sweep.test_sweep import InThisProcess

from uncork.report.fleet_plots import plot_unargmaxable
from uncork.store import Store
from uncork.sweep import Task, sweep
from uncork.sweep.run import work_folder
from uncork.workers.lock import held


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store of two models, one of them with iterations."""
    folder = tmp_path_factory.mktemp("stored")
    tasks = [
        Task("random:normal,40x2,seed=0", "a|b_c", "G & H", {"iterations": True, "patience": 100}),
        Task("random:normal,30x8,seed=1", "=1+1"),
    ]
    with Store(folder / "results.db") as store:
        sweep(tasks, store, InThisProcess(), work=folder / "work")
    return (folder / "results.db").read_bytes()


@pytest.fixture
def store(stored: bytes, tmp_path: Path) -> Path:
    file = tmp_path / "results.db"
    file.write_bytes(stored)
    return file


def test_a_model_that_fails_is_named_and_the_rest_is_stored(run: Run, tmp_path: Path) -> None:
    manifest = tmp_path / "models.toml"
    manifest.write_text(
        '[[model]]\nsource = "missing.npz"\n[[model]]\nsource = "random:normal,30x8,seed=1"\n'
    )
    ran = run("sweep", manifest, "--store", tmp_path / "results.db", "--workers", "1")
    assert ran.status == 1
    assert "1 of 2 models are in" in ran.out
    assert "failed:" in ran.out


def test_a_sweep_in_a_log_says_what_happens_line_by_line(run: Run, tmp_path: Path) -> None:
    manifest = tmp_path / "models.toml"
    manifest.write_text('[[model]]\nsource = "random:normal,40x2,seed=0"\nname = "small"')
    ran = run("sweep", manifest, "--store", tmp_path / "s.db", "--workers", "1")
    assert ran.status == 0
    assert ran.err.splitlines() == [
        "uncork: small: looking", "uncork: small: deciding", "uncork: small: stored",
    ]  # fmt: skip
    quiet = run(
        "sweep", manifest, "--store", tmp_path / "s.db", "--resume", "--quiet", "--json", "-"
    )
    assert quiet.err == ""
    assert [model["state"] for model in quiet.json()] == ["was stored"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep", "none.toml"], "cannot be read"),
        (["table", "--store", "none.db"], "does not exist"),
        (["figure", "unargmaxable", "--store", "none.db", "-o", "x.png"], "does not exist"),
        (["figure", "unargmaxable", "--store", "none.db", "-o", "x.doc"], "ends in .png"),
        (["export", "x.csv", "--store", "none.db"], "does not exist"),
        (["export", "x.xls", "--store", "none.db"], "ends in .csv"),
        (["random", "-C", "10"], "the number of features is missing"),
        (["random", "-C", "10", "-d", "3", "--sweep"], "does not go with --sweep"),
    ],
)
def test_what_cannot_be_is_answered_with_one_line(
    run: Run, arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in run(*arguments).error
    assert list(tmp_path.iterdir()) == []


def test_the_table_has_a_header_and_one_row_a_model(run: Run, store: Path) -> None:
    text = run("table", "--store", store).out.splitlines()
    assert text[0].split()[:3] == ["group", "model", "classes"]
    assert len(text) == 4
    rows = run("table", "--store", store, "--format", "json").json()
    lost = {row["model"]: (row["potentially"], row["unargmaxable"]) for row in rows}
    with Store(store) as opened:
        (first,) = opened.audits(name="a|b_c")
    assert lost["a|b_c"] == (first.potentially, first.unargmaxable)
    assert first.potentially is not None
    assert first.potentially >= first.unargmaxable > 0
    assert lost["=1+1"][0] is None


def test_tables_keep_names_from_breaking_their_format(run: Run, store: Path) -> None:
    markdown = run("table", "--store", store, "--format", "markdown").out
    assert "a\\|b_c" in markdown
    latex = run("table", "--store", store, "--format", "latex").out
    assert r"G \& H & a|b\_c" in latex
    rows = list(csv.reader(run("table", "--store", store, "--format", "csv").out.splitlines()))
    assert rows[1][1] == "'=1+1"  # no spreadsheet computes it


def test_the_table_shows_models_that_failed_and_why(run: Run, store: Path) -> None:
    assert "failed" not in run("table", "--store", store).out
    with Store(store) as opened:
        options = {"domain": "box:3"}
        opened.record_failure("x.npz", "it is | torn", name="torn", group="G & H", options=options)
    (row,) = [r for r in run("table", "--store", store, "--format", "json").json() if r["failed"]]
    known = {name: value for name, value in row.items() if value is not None}
    assert known == {
        "group": "G & H", "model": "torn", "domain": "box:3", "failed": "it is | torn",
    }  # fmt: skip
    text = run("table", "--store", store).out.splitlines()
    assert text[0].split()[-1] == "failed"
    assert text[-1].endswith("it is | torn")
    for form, cell in (("markdown", "it is \\| torn |"), ("latex", "it is"), ("csv", "| torn")):
        assert cell in run("table", "--store", store, "--format", form).out
    assert "torn" not in run("table", "--store", store, "--name", "a|b").out
    assert "torn" not in run("table", "--store", store, "--group", "").out
    summary = run("table", "--store", store, "--summary", "--format", "json").json()
    assert [(row["group"], row["models"], row["failed"]) for row in summary] == [
        ("", 1, 0), ("G & H", 1, 1),
    ]  # fmt: skip


def test_equal_weights_under_two_names_and_groups_are_both_in_the_table(
    run: Run, square: Path, tmp_path: Path
) -> None:
    url = tmp_path / "s.db"
    for name, group in (("one", "G"), ("two", "H")):
        assert run("audit", square, "--store", url, "--name", name, "--group", group).status == 0
    rows = run("table", "--store", url, "--format", "json").json()
    assert [(row["group"], row["model"]) for row in rows] == [("G", "one"), ("H", "two")]
    assert "--group goes with --save" in run("audit", square, "--group", "G").error


def test_a_second_sweep_is_refused_while_one_is_running(run: Run, tmp_path: Path) -> None:
    manifest, url = tmp_path / "m.toml", tmp_path / "s.db"
    manifest.write_text('[[model]]\nsource = "random:normal,40x2,seed=0"')
    with held(work_folder(str(url))):
        for resume in ([], ["--resume"]):
            error = run("sweep", manifest, "--store", url, *resume).error
            assert f"process {os.getpid()} on {socket.gethostname()}" in error
    assert run("sweep", manifest, "--store", url, "--workers", "1").status == 0


def test_the_summary_counts_models_by_group(run: Run, store: Path) -> None:
    rows = run("table", "--store", store, "--summary", "--format", "json").json()
    assert [(row["group"], row["models"], row["with unargmaxable"]) for row in rows] == [
        ("", 1, 0), ("G & H", 1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
@pytest.mark.parametrize("kind", ["unargmaxable", "iterations"])
def test_figures_are_drawn(run: Run, store: Path, kind: str, suffix: str) -> None:
    file = store.with_suffix(f".{suffix}")
    ran = run("figure", kind, "--store", store, "-o", file)
    assert ran.status == 0
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert file.read_bytes().startswith(start)
    if suffix == "svg":
        assert "a|b_c" in file.read_text()


def test_a_figure_of_what_was_not_counted_says_how_to_count_it(run: Run, tmp_path: Path) -> None:
    url = tmp_path / "s.db"
    np.savez(tmp_path / "h.npz", W=np.random.default_rng(0).normal(size=(9, 2)))
    run("audit", tmp_path / "h.npz", "--store", url)
    ran = run("figure", "iterations", "--store", url, "-o", tmp_path / "f.png")
    assert "audit with --iterations" in ran.error
    assert not (tmp_path / "f.png").exists()


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_an_export_has_every_class(run: Run, store: Path, suffix: str) -> None:
    file = store.with_name(f"rows.{suffix}")
    assert run("export", file, "--store", store).out.startswith("70 rows")
    if suffix == "csv":
        rows = list(csv.DictReader(file.read_text().splitlines()))
    elif suffix == "jsonl":
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    else:
        from pyarrow import parquet

        rows = parquet.read_table(file).to_pylist()
    with Store(store) as opened:
        expected = [(row["name"], row["class"], row["verdict"]) for row in opened.rows()]
    assert [(row["name"], int(row["class"]), row["verdict"]) for row in rows] == expected
    lost = store.with_name(f"lost.{suffix}")
    run("export", lost, "--store", store, "--verdict", "unargmaxable")
    assert 0 < lost.stat().st_size < file.stat().st_size


def test_an_audit_is_kept_with_its_iterations(run: Run, square: Path, tmp_path: Path) -> None:
    url = tmp_path / "s.db"
    ran = run("audit", square, "--store", url, "--name", "square", "--iterations")
    assert ran.status == 0
    assert f"stored as audit 1 in {url}" in ran.out.replace("\n", "")
    with Store(url) as store:
        (audit,) = store.audits()
        assert (audit.name, audit.patience) == ("square", 2500)
        assert audit.potentially is not None
    assert "goes with --save" in run("audit", square, "--name", "x").error
    assert "there is no folder" in run("audit", square, "--store", "/no/such/s.db").error


def test_save_goes_to_the_store_that_the_environment_names(
    run: Run, square: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNCORK_STORE", str(tmp_path / "mine.db"))
    run("audit", square, "--save")
    assert len(run("table", "--format", "json").json()) == 1


@pytest.mark.parametrize("form", ["json", "certificates"])
def test_a_baseline_fails_only_on_classes_that_became_unargmaxable(
    run: Run, tmp_path: Path, form: str
) -> None:
    weight = np.array([[1.0, 0], [-1, 0.5], [0, -1], [0, 0.1], [0.5, 1]])
    np.savez(tmp_path / "before.npz", W=weight)
    weight[4] = [0.1, 0.0]
    np.savez(tmp_path / "after.npz", W=weight)
    baseline = tmp_path / "baseline"
    assert run("audit", tmp_path / "before.npz", f"--{form}", baseline).status == 0
    same = run("audit", tmp_path / "before.npz", "--baseline", baseline, "--fail-if-unargmaxable")
    assert same.status == 0
    assert "0 classes became unargmaxable" in same.out
    report = tmp_path / "junit.xml"
    worse = run("audit", tmp_path / "after.npz", "--baseline", baseline, "--junit", report)
    assert worse.status == 1
    assert "1 classes became unargmaxable" in worse.out
    suite = ElementTree.parse(report).getroot()[0]
    assert suite.get("failures") == "1"
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["class 4"]


def test_junit_holds_labels_that_xml_cannot(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "h.npz", W=[[1.0, 0], [-1, 0.5], [0, -1], [0.1, 0]])
    labels = ["a", "b", "c", "]]><x>\x00\x1b&\u202e"]
    (tmp_path / "labels.json").write_text(json.dumps(labels))
    report = tmp_path / "junit.xml"
    run("audit", tmp_path / "h.npz", "--labels", tmp_path / "labels.json", "--junit", report)
    (case,) = [
        c for c in ElementTree.parse(report).iter("testcase") if c.find("failure") is not None
    ]
    assert case.get("name") == "class 3 ]]><x>\\x00\\x1b&\\u202e"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"unargmaxable": 3}', "PK\x03\x04"])
def test_a_baseline_that_is_none_is_named(
    run: Run, square: Path, tmp_path: Path, text: str
) -> None:
    (tmp_path / "b").write_text(text)
    error = run("audit", square, "--baseline", tmp_path / "b").error
    assert str(tmp_path / "b") in error


def test_what_a_sweep_reads_and_fills_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    manifest, store = tmp_path / "m.toml", tmp_path / "s.db"
    manifest.write_text('[[model]]\nsource = "random:normal,40x2,seed=0"')
    for file in (manifest, store):
        failed = run("sweep", manifest, "--store", store, "--json", file)
        assert "would overwrite the" in failed.error
    assert not store.exists()


def test_the_study_of_random_heads_is_stored_and_drawn(run: Run, tmp_path: Path) -> None:
    url, file = tmp_path / "r.db", tmp_path / "r.png"
    ran = run("random", "-C", "60", "--sweep", "--store", url, "--plot", file, "--quiet")
    assert ran.status == 0
    with Store(url) as store:
        audits = store.audits()
    assert len(audits) == 20
    assert {audit.features for audit in audits} == {2, 4, 6, 8, 10, 15, 20, 30, 40, 50}
    assert all(audit.has_bias and audit.patience == 2500 for audit in audits)
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("counts", "logarithmic"), [((3, 5, 9), False), ((0, 7), False), ((2, 3, 4, 4000), True)]
)
def test_one_model_that_dwarfs_the_rest_makes_the_axis_logarithmic(
    tmp_path: Path, counts: tuple[int, ...], logarithmic: bool
) -> None:
    audits = [
        SimpleNamespace(approximate=False, unargmaxable=n, name=f"m{n}", asked=5000) for n in counts
    ]
    plot_unargmaxable(audits, tmp_path / "f.svg")  # type: ignore[arg-type]
    assert ("(logarithmic)" in (tmp_path / "f.svg").read_text("utf-8")) == logarithmic
