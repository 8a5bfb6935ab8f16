"""The paper's tables from a store: one row a model, or one a group of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uncork.core.items import METRICS
from uncork.core.reading import Reading
from uncork.report.formats import Result, Sheet, written
from uncork.store import StoredAudit

_MODEL_COLUMNS: tuple[str, ...] = (
    "group", "model", "classes", "features", "bias", "domain", "potentially", "unargmaxable",
    "tied", "undecided", "weight", "careful", "notes", "failed",
)  # fmt: skip
# What else was read, where a row may be as long as it likes: CSV and JSON.
_MORE_COLUMNS = ("bias tensor", "folded in", "labels from", "preceded by", "domain from")
_GROUP_COLUMNS: tuple[str, ...] = (
    "group", "models", "with unargmaxable", "unargmaxable", "most in one model", "doubtful",
    "failed",
)  # fmt: skip
_HEADINGS = {"potentially": "potentially unargmaxable"}
# What was read, which is empty for random heads, and why a model could not be audited.
_SAID_COLUMNS = {"weight", "careful", "notes", "failed"}
_TEXT_COLUMNS = {"group", "model", "bias", "domain"}
Rows = list[dict[str, Any]]


def model_rows(audits: Sequence[StoredAudit], failures: Sequence[Mapping[str, Any]] = ()) -> Rows:
    """Tables 4 to 8: how many classes the approximate algorithm gives up on, and how many are
    unargmaxable. The first is empty where its iterations were not counted. The last ones say which
    tensors it is about, what is doubtful of that, all else that was read, and why a model could not
    be audited."""
    rows = [
        {
            "group": audit.group,
            "model": audit.name,
            "classes": audit.classes,
            "features": audit.features,
            "bias": "yes" if audit.has_bias else "no",
            "domain": audit.domain,
            "potentially": audit.undecided if audit.approximate else audit.potentially,
            "unargmaxable": None if audit.approximate else audit.unargmaxable,
            "tied": audit.tied,
            "undecided": None if audit.approximate else audit.undecided,
            **_read(audit.reading, audit.metric),
            "failed": None,
        }
        for audit in sorted(audits, key=lambda audit: audit.id)
    ]
    for failure in failures:
        asked = failure["options"].get("domain")
        known = {"group": failure["group"], "model": failure["name"], "domain": asked}
        rows.append(
            {
                **dict.fromkeys((*_MODEL_COLUMNS, *_MORE_COLUMNS)),
                **known,
                "failed": failure["error"],
            }
        )
    return sorted(rows, key=lambda row: (row["group"], row["model"]))


def _read(reading: Reading | None, metric: str) -> dict[str, str | None]:
    compared = () if metric == "inner" else (f"compared by {METRICS[metric]}",)
    if reading is None:
        none = dict.fromkeys(("weight", "careful", "notes", *_MORE_COLUMNS))
        return {**none, "notes": "; ".join(compared) or None}
    return {
        "weight": reading.weight,
        "careful": "; ".join(reading.doubts) or None,
        "notes": "; ".join((*compared, *reading.notes)) or None,
        "bias tensor": reading.bias or None,
        "folded in": "; ".join(reading.folded) or None,
        "labels from": reading.labels_from or None,
        "preceded by": reading.preceded_by or None,
        "domain from": reading.domain_from or None,
    }


def group_rows(audits: Sequence[StoredAudit], failures: Sequence[Mapping[str, Any]] = ()) -> Rows:
    """Table 1: for each group of models how many of them have unargmaxable classes, and how many
    could not be audited."""
    groups: dict[str, list[StoredAudit]] = {failure["group"]: [] for failure in failures}
    for audit in audits:
        if not audit.approximate:
            groups.setdefault(audit.group, []).append(audit)
    return [
        {
            "group": name,
            "models": len(members),
            "with unargmaxable": sum(audit.unargmaxable > 0 for audit in members),
            "unargmaxable": sum(audit.unargmaxable for audit in members),
            "most in one model": max((audit.unargmaxable for audit in members), default=None),
            "doubtful": sum(bool(audit.reading and audit.reading.doubts) for audit in members),
            "failed": sum(failure["group"] == name for failure in failures),
        }
        for name, members in sorted(groups.items())
    ]


@dataclass(frozen=True)
class Table(Result):
    """The rows of a store, ready for every format."""

    rows: Rows
    summary: bool = False  # one row a group

    def as_dict(self) -> Rows:
        return self.rows

    def data(self) -> Sheet:
        return self._sheet(_GROUP_COLUMNS if self.summary else (*_MODEL_COLUMNS, *_MORE_COLUMNS))

    def sheet(self) -> Sheet:
        """As people read it: no column of nothing but dashes."""
        empty = {name for name in _SAID_COLUMNS if not any(row.get(name) for row in self.rows)}
        columns = _GROUP_COLUMNS if self.summary else _MODEL_COLUMNS
        return self._sheet(tuple(name for name in columns if name not in empty))

    def _sheet(self, columns: Sequence[str]) -> Sheet:
        return Sheet(
            [_HEADINGS.get(name, name) for name in columns],
            [[row[name] for name in columns] for row in self.rows],
            left=_TEXT_COLUMNS if self.summary else _TEXT_COLUMNS | _SAID_COLUMNS,
        )


def render(rows: Rows, form: str, *, summary: bool = False) -> str:
    """The rows under a header, in one of `FORMATS`."""
    return written(Table(rows, summary), form)
