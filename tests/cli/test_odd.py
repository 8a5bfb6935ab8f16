"""Odd rows are pointed out in the summary, in the JSON and in the report of an audit."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest
from running import Run

from uncork import Head, audit
from uncork.report.page import report_page


@pytest.fixture
def model(tmp_path: Path) -> list[object]:
    """Nine rows: two special, one unused, two equal, two near, two zero ones past the end."""
    rng = np.random.default_rng(0)
    weight = rng.integers(-99, 100, (9, 6)) / 16  # so that the products below are exact
    weight[1], weight[4] = -weight[0], weight[3]
    weight[6] = weight[5] * (1 + 2.0**-10)
    weight[7:] = 0
    np.save(tmp_path / "m.npy", weight)
    tokens = ["<s>", "</s>", "[unused1]", "a", "b", "<c>&", "d"]
    table = {token: k for k, token in enumerate(tokens)}
    (tmp_path / "vocab.json").write_text(json.dumps(table), "utf-8")
    return [tmp_path / "m.npy", "--labels", tmp_path / "vocab.json"]


def test_the_summary_counts_them_and_how_many_are_lost(run: Run, model: list[object]) -> None:
    out = run("audit", *model).out
    assert "rows of special tokens: 2\n" in out
    assert "rows of reserved or unused tokens: 1\n" in out
    assert "rows past the vocabulary's end: 2, 2 of them unargmaxable\n" in out
    assert "rows that are all zero: 2, 2 of them unargmaxable\n" in out
    assert "rows equal to another: 4, 2 of them unargmaxable\n" in out
    assert "rows within rounding of another: 2, 1 of them unargmaxable\n" in out
    some = run("audit", *model, "--classes", "padding").out
    assert "rows past the vocabulary's end: 2, 2 of them unargmaxable\n" in some
    assert "special" not in some


def test_the_json_lists_them(run: Run, model: list[object]) -> None:
    odd = run("audit", *model, "--json", "-").json()["odd"]
    assert odd["zero_rows"] == odd["padding_rows"] == [7, 8]
    assert odd["equal_rows"] == [[3, 4], [7, 8]]
    assert odd["near_rows"] == [[5, 6]]
    assert (odd["special_rows"], odd["unused_rows"]) == ([0, 1], [2])


def kinds(page: str) -> dict[str, list[int]]:
    """What the page's data say of odd rows: name and ids of each kind."""
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert block is not None
    return {
        kind["name"]: np.frombuffer(base64.b64decode(kind["ids"]), "<i4").tolist()
        for kind in json.loads(block[1])["odd"]
    }


def test_the_report_holds_them(run: Run, model: list[object], tmp_path: Path) -> None:
    run("audit", *model, "--report", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text("utf-8")
    found = list(kinds(page).values())
    assert [7, 8] in found  # past the vocabulary's end, and all zero
    assert [5, 6] in found  # within rounding of each other
    assert [3, 4, 7, 8] in found
    assert "<c>&" not in page  # a label, nowhere as markup


def test_a_report_from_python_finds_them_too() -> None:
    page = report_page(audit(Head(np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1], [0, 0]]))))
    assert [4] in kinds(page).values()
    assert kinds(report_page(audit(Head(np.eye(3))))) == {}
