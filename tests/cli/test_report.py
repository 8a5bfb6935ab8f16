"""The report: one file, no requests, and labels that stay text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from running import Run

from uncork import Ball, Box, Head, Unbounded, audit
from uncork.report.page import report_page, write_report

HOSTILE = ["<script>alert(1)</script>", "\x00", "\u202eevil", "\ud800", "</script><b>", "{{data}}"]


def page_of(weight: object, **options: object) -> str:
    return report_page(audit(Head(np.asarray(weight, dtype=float), **options)))  # type: ignore[arg-type]


@pytest.fixture
def page() -> str:
    corners = [[1, 1], [1, -1], [-1, 1], [-1, -1], [0, 0.1], [0.1, 0]]
    return page_of(corners, labels=HOSTILE, source="a\"<b>&'.npz")


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def embedded(page: str) -> dict:
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(block)


def test_the_answer_is_a_sentence(page: str) -> None:
    assert "2 of the 6 classes can never be the argmax, whatever the input." in page
    everything = page_of(np.eye(3))
    assert "Every one of the 3 classes can be the argmax." in everything
    twice = page_of([[1.0], [1.0], [-1.0]])
    assert "2 are equal to another: first only in a tie." in twice


def test_nothing_is_asked_of_any_other_machine(page: str) -> None:
    assert "http:" not in page
    assert "https:" not in page
    assert "//" not in re.sub(r'content="[^"]*"', "", page)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|import\(", page)
    for tag, attributes in Elements(page).tags:
        assert tag not in ("link", "img", "iframe", "object")
        assert not {"src", "href"} & set(attributes)
    assert "default-src 'none'" in page


def test_labels_stay_text(page: str) -> None:
    assert [tag for tag, _ in Elements(page).tags].count("script") == 2
    assert "<b>&" not in page
    assert not {"\x00", "\u202e", "\ud800"} & set(page)
    (block,) = re.findall(r'id="data">(.*?)</script>', page, re.S)
    assert not {"<", ">", "&"} & set(block)
    thieves = {name for row in embedded(page)["unargmaxable"] for _, name, _ in row["by"]}
    assert thieves <= {"<script>alert(1)</script>", "\\x00", "\\u202eevil", "\\ud800", *HOSTILE}
    assert embedded(page)["unargmaxable"][0]["label"] == "</script><b>"


def test_the_only_script_that_may_run_is_the_one_written_here(page: str) -> None:
    script = page.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page


def test_every_marker_is_filled(page: str) -> None:
    assert set(re.findall(r"\{\{\w+\}\}", page)) == {"{{data}}"}  # the label of a class


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        (Box(100), "each feature between -100 and 100"),
        (Box([0.0, 1.0], [2.0, np.inf]), "each feature in its own range, all within 0 and inf"),
        (Ball(2), "Euclidean length at most 2"),
        (Unbounded(), "every input there is"),
    ],
)
def test_the_assumption_is_in_words(domain: object, words: str) -> None:
    assert words in page_of(np.eye(2), domain=domain)


def test_undecided_and_asked_are_said() -> None:
    head = Head(np.array([[1.0], [-1.0], [0.0]]))
    assert "1 more may be unargmaxable" in report_page(audit(head, approximate=True, patience=9))
    assert "1 of the 1 classes asked about can never" in report_page(audit(head, classes=[2]))


def test_it_is_written_whole_or_not_at_all(run: Run, square: Path, tmp_path: Path) -> None:
    target = tmp_path / "r.html"
    assert f"report written to {target}" in run("audit", square, "--report", target).out
    assert target.read_text("utf-8").startswith("<!DOCTYPE html>")
    write_report(audit(Head(np.eye(2))), target)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.html", "square.npz"]
