"""Formats of results: one function each, in one table."""

from __future__ import annotations

import json

import pytest

from uncork.core.errors import UncorkError
from uncork.report.formats import Result, Sheet, written


class Two(Result):
    """A result of two rows, with what formats have to escape."""

    def as_dict(self) -> dict[str, int]:
        return {"rows": 2}

    def data(self) -> Sheet:
        return Sheet(["name", "count"], [["a|b_c", 1234], ["=1+1", None]], left={"name"})


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("text", "name   count\n-----  -----\na|b_c  1,234\n=1+1       –\n"),
        ("markdown", "| name | count |\n| --- | ---: |\n| a\\|b_c | 1,234 |\n| =1+1 | – |\n"),
        ("csv", "name,count\na|b_c,1234\n'=1+1,\n"),  # or a spreadsheet would compute it
        ("json", '{\n  "rows": 2\n}\n'),
    ],
)
def test_each_format_writes_a_sheet_its_own_way(form: str, text: str) -> None:
    assert written(Two(), form) == text


def test_latex_escapes_what_it_would_take_for_commands() -> None:
    lines = written(Two(), "latex").splitlines()
    assert lines[0] == r"\begin{tabular}{lr}"
    assert r"a|b\_c & 1,234 \\" in lines


def test_no_format_writes_a_number_that_json_does_not_have() -> None:
    class Infinite(Two):
        def as_dict(self) -> dict[str, object]:
            return {"bounds": [float("-inf"), 1.5, float("nan")]}

    assert json.loads(written(Infinite(), "json")) == {"bounds": [None, 1.5, None]}


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(UncorkError, match="expected text, markdown, csv, latex, json"):
        written(Two(), "yaml")
