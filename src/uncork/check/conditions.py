"""Conditions and severities from a user's file: uncork.toml, or pyproject.toml's [tool.uncork].

[check]                      # in pyproject.toml: [tool.uncork.check]
strict = true                # as --strict
domain = "auto"              # as --domain; labels, baseline, frequency and must-not likewise
tied = "fail"                # a check's severity: fail, warn or off

[check.lost]                 # or a table, with what else the check has
severity = "fail"
most = 5                     # classes that may break the condition
allow = ["<unk>", 17]            # classes that may: labels, or numbers
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uncork.check.checks import CHECKS
from uncork.check.protocol import Check, Condition, Severity
from uncork.core.errors import UncorkError
from uncork.core.text import printable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

OWN_FILE, PROJECT_FILE = "uncork.toml", "pyproject.toml"
# Options of the command that a file can hold. Those that name files are relative to it.
OPTIONS: dict[str, type] = {
    "strict": bool, "domain": str, "labels": str, "baseline": str, "frequency": str,
    "must-not": str,
}  # fmt: skip
_FILES = ("labels", "baseline", "frequency", "must-not")
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class Suite:
    """The conditions that were set, by the check's name, and options of the command."""

    conditions: Mapping[str, Condition] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    @property
    def strict(self) -> bool:
        return bool(self.options.get("strict", False))

    def condition(self, check: Check) -> Condition:
        return self.conditions.get(check.name, check.condition)

    def option(self, name: str) -> str | None:
        """An option that is text; a file is found from the folder of the file that names it."""
        value = self.options.get(name)
        if value is None or self.path is None:
            return value
        if name in _FILES:
            return str(self.path.parent / value)
        if name == "domain" and value.startswith("@"):
            return f"@{self.path.parent / value[1:]}"
        return str(value)

    def with_strict(self, strict: bool) -> Suite:
        return Suite(self.conditions, {**self.options, "strict": strict or self.strict}, self.path)


def read_suite(path: str | None = None, checks: Sequence[Check] = CHECKS) -> Suite:
    """The suite of a file; without one that of uncork.toml or pyproject.toml in this folder, if
    either is there and says anything."""
    if path is not None:
        return _read(Path(path), checks)
    for name in (OWN_FILE, PROJECT_FILE):
        file = Path(name)
        if file.is_file():
            found = _read(file, checks)
            if found.path is not None:
                return found
    return Suite()


def _read(path: Path, checks: Sequence[Check]) -> Suite:
    try:
        if path.exists() and not path.is_file():
            raise UncorkError(f"--config {path} is not a regular file")
        if path.stat().st_size > _MOST_BYTES:
            raise UncorkError(f"--config {path} is too large for a configuration")
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UncorkError(f"--config {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UncorkError(f"--config {path} is not valid TOML: {error}") from None
    where = "[check]"
    if path.name == PROJECT_FILE:
        where = "[tool.uncork.check]"
        content = _table(path, "[tool]", content.get("tool", {})).get("uncork")
        if content is None:
            return Suite()
        content = _table(path, "[tool.uncork]", content)
    _refuse(path, "the file", set(content), {"check"})
    return _suite(path, where, _table(path, where, content.get("check", {})), checks)


def _suite(path: Path, where: str, table: Mapping[str, Any], checks: Sequence[Check]) -> Suite:
    by_name = {check.name: check for check in checks}
    _refuse(path, where, set(table), {*by_name, *OPTIONS})
    options = {name: value for name, value in table.items() if name in OPTIONS}
    for name, value in options.items():
        if not isinstance(value, OPTIONS[name]) or value == "":
            raise _wrong(path, where, name, value, OPTIONS[name].__name__)
    conditions = {
        name: _condition(path, f"{where[:-1]}.{name}]", by_name[name], value)
        for name, value in table.items()
        if name in by_name
    }
    return Suite(conditions, options, path)


def _condition(path: Path, where: str, check: Check, value: Any) -> Condition:
    table = {"severity": value} if isinstance(value, str) else _table(path, where, value)
    _refuse(path, where, set(table), {"severity", "allow", *check.limits})
    given = table.get("severity", check.severity.value)
    names = [severity.value for severity in Severity]
    if given not in names:
        hint = _nearest(given, names) if isinstance(given, str) else ""
        raise UncorkError(
            f"--config {path}: {where}: severity {given!r}: expected {', '.join(names)}{hint}"
        )
    limits = dict(check.limits)
    for name in limits:
        number = table.get(name, limits[name])
        if isinstance(number, bool) or not isinstance(number, int | float) or not number >= 0:
            raise _wrong(path, where, name, number, "a number, zero or more")
        limits[name] = number
    allow: Any = table.get("allow", [])
    good = isinstance(allow, list) and all(
        isinstance(one, int | str) and not isinstance(one, bool) for one in allow
    )
    if not good:
        raise _wrong(path, where, "allow", allow, "a list of labels and class numbers")
    return Condition(Severity(given), limits, frozenset(allow))


def _table(path: Path, where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UncorkError(f"--config {path}: {where} is not a table")
    return value


def _refuse(path: Path, where: str, given: set[str], known: Iterable[str]) -> None:
    """Raise on a key that means nothing, with the name that comes nearest."""
    known = sorted(known)
    for name in sorted(given - set(known)):
        hint = _nearest(name, known) or f": expected {', '.join(known)}"
        raise UncorkError(f"--config {path}: {where} has {printable(name)!r}{hint}")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.replace("_", "-"), list(known), n=1, cutoff=0.5)
    return f": did you mean {near[0]}?" if near else ""


def _wrong(path: Path, where: str, name: str, value: Any, expected: str) -> UncorkError:
    words = {"str": "text", "bool": "true or false"}.get(expected, expected)
    return UncorkError(
        f"--config {path}: {where}: {name} = {printable(str(value)[:60])}: expected {words}"
    )
