"""Formats of results: one function each, in one table; `--format` offers all of them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from running import Run

from uncork.report import formats


@pytest.mark.parametrize("form", formats.FORMATS)
def test_every_kind_of_count_is_written_in_every_format(
    run: Run, tmp_path: Path, form: str
) -> None:
    path = tmp_path / "m.npz"
    np.savez(path, weight=np.array([[0.0, 0], [1, 0], [0, 1]]))
    for asked in (("-C", 4, "-d", 2), ("--table", "-C", 3, "-d", 2), (path,)):
        ran = run("count", *asked, "--format", form)
        assert (ran.status, ran.err) == (0, "")
        assert "12" in ran.out or "ranking" in ran.out or "6" in ran.out
        if form == "json":
            json.loads(ran.out)
        if form == "csv":
            widths = {len(row) for row in csv.reader(io.StringIO(ran.out))}
            assert len(widths) == 1


def test_a_new_format_is_one_function_and_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(formats.FORMATS, "names", lambda result: ",".join(result.data().columns))
    assert run("count", "-C", 4, "-d", 2, "--format", "names").out.startswith("classes,features")


def test_an_unknown_format_is_refused_with_the_known_ones(run: Run) -> None:
    error = run("table", "--format", "yaml").error
    assert "'yaml': expected text, markdown, csv, latex, json" in error
