"""The paper's tables: one row a model or a group, and nothing counted that was not decided."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from uncork.report.tables import group_rows, model_rows, render
from uncork.store import StoredAudit


def stored(number: int, group: str, name: str, lost: int, **more: Any) -> StoredAudit:
    given: dict[str, Any] = {
        "id": number, "run": number, "fingerprint": f"sha256:{number}", "name": name,
        "group": group, "source": f"{name}.npz", "classes": 10, "features": 3, "dtype": "float32",
        "has_bias": True, "domain": "box:-100,100", "algorithm": "fast", "approximate": False,
        "asked": 10, "argmaxable": 10 - lost, "unargmaxable": lost, "tied": 0, "undecided": 0,
        "patience": None, "potentially": None, "proven": True, "device": "cpu", "seconds": {},
        "certificates": None, "uncork": "0.1.0", "created": datetime.datetime(2026, 1, 1),
    }  # fmt: skip
    return StoredAudit(**(given | more))


AUDITS = [
    stored(3, "b", "second", 0),
    stored(1, "b", "first", 4),
    stored(2, "a", "only screened", 0, approximate=True, undecided=7),
]
FAILURE = {"group": "b", "name": "broken", "options": {"domain": "auto"}, "error": "damaged"}


def test_rows_are_in_the_order_of_group_and_name() -> None:
    rows = model_rows(AUDITS, [FAILURE])
    assert [row["model"] for row in rows] == ["only screened", "broken", "first", "second"]


def test_screening_alone_says_potentially_and_nothing_else() -> None:
    row = model_rows(AUDITS)[0]
    assert (row["potentially"], row["unargmaxable"], row["undecided"]) == (7, None, None)


def test_a_group_counts_its_models_and_its_failures_and_leaves_screening_out() -> None:
    (row,) = group_rows(AUDITS, [FAILURE])
    assert row == {
        "group": "b", "models": 2, "with unargmaxable": 1, "unargmaxable": 4,
        "most in one model": 4, "doubtful": 0, "failed": 1,
    }  # fmt: skip


@pytest.mark.parametrize("form", ["text", "markdown", "latex"])
def test_people_see_no_column_of_nothing_but_dashes(form: str) -> None:
    assert "careful" not in render(model_rows(AUDITS), form)
    assert "failed" not in render(model_rows(AUDITS), form)
    assert "damaged" in render(model_rows(AUDITS, [FAILURE]), form)


def test_programs_see_every_column() -> None:
    header = render(model_rows(AUDITS), "csv").splitlines()[0].split(",")
    assert {"careful", "failed", "domain from"} <= set(header)
