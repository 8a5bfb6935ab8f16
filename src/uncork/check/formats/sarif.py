"""SARIF 2.1.0, which code scanning reads: a rule for each check, a result for each not passed."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import quote

from uncork import __version__
from uncork.check.protocol import Outcome, Result
from uncork.check.run import Checked
from uncork.core.text import printable

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_HOME = "https://github.com/uncork-authors/uncork"
_LEVELS = {Outcome.FAIL: "error", Outcome.WARN: "warning", Outcome.PASS: "none",
           Outcome.NOT_APPLICABLE: "none"}  # fmt: skip
_KINDS = {Outcome.FAIL: "fail", Outcome.WARN: "fail", Outcome.PASS: "pass",
          Outcome.NOT_APPLICABLE: "notApplicable"}  # fmt: skip
_CLASSES = 100  # that one result names


def write(checked: Checked) -> str:
    rules = [
        {
            "id": result.name,
            "name": "".join(part.title() for part in result.name.split("-")),
            "shortDescription": {"text": result.check.asks},
            "fullDescription": {"text": result.check.asks},
            "help": {"text": result.check.advice},
            "helpUri": f"{_HOME}/blob/main/docs/how-to/check.md",
            "defaultConfiguration": {"level": _level(result)},
        }
        for result in checked.results
    ]
    driver = {
        "name": "uncork", "version": __version__, "semanticVersion": __version__,
        "informationUri": _HOME, "rules": rules,
    }  # fmt: skip
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True}],
        "results": [
            _result(checked, number, result) for number, result in enumerate(checked.results)
        ],
        "properties": {
            "fingerprint": checked.audit.fingerprint,
            "domain": str(checked.audit.domain),
        },
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, ensure_ascii=True, indent=2, allow_nan=False) + "\n"


def _level(result: Result) -> str:
    """How bad the check is by default: of a check that passed, too."""
    return "error" if result.check.severity.value == "fail" else "warning"


def _result(checked: Checked, number: int, result: Result) -> dict[str, Any]:
    text = "\n".join([printable(result.why), *checked.class_lines(result)])
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(checked.audit.source)}, "region": {"startLine": 1},
        }
    }  # fmt: skip
    if result.classes:
        location["logicalLocations"] = [
            {"name": printable(checked.head.label(one.class_id)) or "(empty)", "kind": "member",
             "fullyQualifiedName": f"class {one.class_id}"}
            for one in result.classes[:_CLASSES]
        ]  # fmt: skip
    level = _LEVELS[result.outcome]
    if checked.fails(result):
        level = "error"
    found: dict[str, Any] = {
        "ruleId": result.name,
        "ruleIndex": number,
        "kind": _KINDS[result.outcome],
        "level": level,
        "message": {"text": text},
        "locations": [location],
        # The same finding on the same model is the same alert.
        "partialFingerprints": {"uncorkCheck/v1": f"{result.name}:{_uri(checked.audit.source)}"},
        "properties": {"classes": len(result.classes)},
    }
    return found


def _uri(source: str) -> str:
    """The source as an address: relative where it was given so."""
    if source.startswith(("hf:", "http:", "https:")):
        return quote(source, safe=":/@.-_~")
    path = (
        PureWindowsPath(source).as_posix() if "\\" in source else PurePosixPath(source).as_posix()
    )
    if not source:
        return "head"
    if Path(source).is_absolute():
        return Path(source).as_uri()
    return quote(path, safe="/@.-_~")
