"""The list of models to sweep over: a TOML file of paths, globs, hub ids and random heads."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uncork.auditing.run import Options
from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.domain import parse_domain

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

RANDOM = "random:"
# Options of a model, which are those of `uncork audit`, with the type each must have.
OPTIONS: dict[str, type | tuple[type, ...]] = {
    "weight": str, "bias": str, "transpose": bool, "drop_bias": bool, "labels": str,
    "base": str, "metric": str, "domain": str, "classes": str, "approximate": bool, "patience": int,
    "time_limit": (int, float), "iterations": bool,
}  # fmt: skip
_NOTES = "x-"  # keys that begin so are whoever's who wrote the manifest
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class Task:
    """One model to audit, and how."""

    source: str
    name: str
    group: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def read_manifest(path: str | Path) -> list[Task]:
    """The models a manifest names, globs expanded; paths are relative to the manifest's folder."""
    file = Path(os.path.abspath(path))  # workers may be started in another folder
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise UncorkError(f"{file} is too large for a manifest")
        content = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UncorkError(f"manifest {file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UncorkError(f"manifest {file} is not valid TOML: {error}") from None
    unknown = set(content) - {"defaults", "model"}
    if unknown:
        raise UncorkError(
            f"manifest {file} has {sorted(unknown)[0]!r}: expected [defaults] and [[model]]"
        )
    defaults = _options(file, "[defaults]", content.get("defaults", {}), set())
    entries = content.get("model", [])
    if not isinstance(entries, list) or not entries:
        raise UncorkError(f"manifest {file} names no model: add [[model]] with source = …")
    tasks: list[Task] = []
    for number, entry in enumerate(entries, 1):
        tasks += _tasks(file, number, entry, defaults)
    return _distinct(tasks)


def _tasks(file: Path, number: int, entry: Any, defaults: Mapping[str, Any]) -> list[Task]:
    where = f"[[model]] number {number}"
    own = _options(file, where, entry, {"source", "name", "group"})
    source = own.pop("source", None)
    if not isinstance(source, str) or not source:
        raise UncorkError(
            f"manifest {file}: {where} has no source: a path, a glob or hf:owner/name"
        )
    name, group = own.pop("name", None), own.pop("group", "")
    for key, value in (("name", name), ("group", group)):
        if value is not None and not isinstance(value, str):
            raise UncorkError(f"manifest {file}: {where}: {key} must be text, not {value!r}")
    options = {**defaults, **own}
    _check_values(file, where, options)
    if "labels" in options:
        options["labels"] = str(file.parent / options["labels"])
    if "base" in options:
        (options["base"],) = _sources(file.parent, options["base"])[:1]
    domain = options.get("domain", "")
    if domain.startswith("@"):
        options["domain"] = f"@{file.parent / domain[1:]}"
    found = _sources(file.parent, source)
    return [
        Task(one, (name if len(found) == 1 else None) or _short(one), group, options)
        for one in found
    ]


def _options(file: Path, where: str, table: Any, extra: set[str]) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise UncorkError(f"manifest {file}: {where} is not a table")
    own: dict[str, Any] = {k: v for k, v in table.items() if not k.startswith(_NOTES)}
    for key, value in own.items():
        if key in extra:
            continue
        if key not in OPTIONS:
            known = ", ".join(sorted({*OPTIONS, *extra}))
            raise UncorkError(f"manifest {file}: {where} has {key!r}, which is none of {known}")
        kind = OPTIONS[key]
        right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if not right:
            raise UncorkError(f"manifest {file}: {where}: {key} = {value!r} has the wrong type")
    return own


def _check_values(file: Path, where: str, options: Mapping[str, Any]) -> None:
    """Say what is wrong with a value before anything is started."""
    try:
        domain = options.get("domain")
        if domain is not None and domain.strip() != "auto" and not domain.startswith("@"):
            parse_domain(domain)
        Options(
            approximate=options.get("approximate", False),
            patience=options.get("patience"),
            time_limit=options.get("time_limit"),
        )
    except UncorkError as error:
        raise UncorkError(f"manifest {file}: {where}: {error}") from None


def _sources(folder: Path, source: str) -> list[str]:
    """What a source stands for. A path that is not there stays: it fails when its turn comes."""
    if source.startswith(("hf:", "http:", "https:", RANDOM)):
        return [source]
    path = str(Path(source) if Path(source).is_absolute() else folder / source)
    if any(mark in source for mark in "*?[") and not Path(path).exists():
        return sorted(glob.glob(path, recursive=True)) or [path]
    return [path]


def _short(source: str) -> str:
    if source.startswith(("hf:", "http:", "https:", RANDOM)):
        return source
    return Path(source).stem or source


def _distinct(tasks: list[Task]) -> list[Task]:
    """The same source with the same options twice is one task."""
    seen: set[str] = set()
    kept = []
    for task in tasks:
        key = repr((task.source, sorted(task.options.items())))
        if key not in seen:
            seen.add(key)
            kept.append(task)
    names = [task.name for task in kept]
    for name in names:
        if not name.strip() or printable(name) != name:
            raise UncorkError(f"model name {name!r} cannot be shown: give another")
    return kept
