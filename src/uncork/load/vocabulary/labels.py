"""Names of the classes: from a text or JSON file, or from an ONNX model's metadata."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uncork.errors import UncorkError
from uncork.load.contents import Vocabulary

_MOST_BYTES = 256 << 20
_MOST_LITERAL = 4 << 20  # a syntax tree takes a hundred times the text
_METADATA_KEYS = ("character", "labels", "classes", "names", "id2label")
BLANK = "<blank>"  # the class of a CTC recogniser that stands for no character


def read_labels(path: Path, classes: int) -> tuple[str, ...]:
    """One label a class: a line each, exactly as written, or a JSON list or table."""
    if path.is_dir():
        raise UncorkError(f"labels file {path} is a folder: name the file inside it")
    if not path.is_file():
        raise UncorkError(f"labels file {path} does not exist")
    if path.stat().st_size > _MOST_BYTES:
        raise UncorkError(
            f"labels file {path} has {path.stat().st_size} bytes: too many for labels"
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UncorkError(
            f"labels file {path} is not UTF-8 text (byte {error.start}): give one label a line"
        ) from None
    except OSError as error:
        raise UncorkError(f"labels file {path} cannot be read: {error.strerror}") from error
    found: list[str] | None = None
    if path.suffix == ".json" or text[:1] in "[{":
        try:
            found = _from_json(json.loads(text), classes)
        except (ValueError, RecursionError) as error:
            if path.suffix == ".json":
                raise UncorkError(f"labels file {path} is not valid JSON: {error}") from error
        else:
            if found is None:
                raise UncorkError(
                    f"labels file {path} is JSON without {classes} labels: expected a list, or a "
                    "table from class number to label or from label to class number"
                )
    if found is None:
        found = _lines(text)
    if len(found) != classes:
        raise UncorkError(
            f"labels file {path} has {len(found)} labels for {classes} classes: "
            "give one label a class"
        )
    return tuple(found)


def _lines(text: str) -> list[str]:
    """Lines without their newline; nothing else is stripped, as a label may be a space."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if len(lines) > 1 and all(line.endswith("\r") for line in lines[:-1]):  # written on Windows
        lines = [line.removesuffix("\r") for line in lines]
    return lines


def _from_json(data: Any, classes: int) -> list[str] | None:
    if isinstance(data, list):
        return [item if isinstance(item, str) else json.dumps(item) for item in data]
    if not isinstance(data, dict):
        return None
    try:  # {"0": "cat", "1": "dog"}
        if all(isinstance(label, str) for label in data.values()):
            numbered = {int(key): label for key, label in data.items()}
            if sorted(numbered) == list(range(classes)):
                return [numbered[k] for k in range(classes)]
    except ValueError:
        pass
    if all(type(k) is int for k in data.values()):  # {"cat": 0, "dog": 1}
        named = {k: label for label, k in data.items()}
        if sorted(named) == list(range(classes)):
            return [named[k] for k in range(classes)]
    # A configuration file around the labels: the one entry that fits.
    inner = [
        found
        for value in data.values()
        if isinstance(value, list | dict)
        and (found := _from_json(value, classes)) is not None
        and len(found) == classes
        and (isinstance(value, dict) or all(isinstance(item, str) for item in value))
    ]
    # `id2label` and `label2id` say the same thing twice.
    return inner[0] if inner and all(other == inner[0] for other in inner) else None


def labels_from_metadata(metadata: Mapping[str, str], classes: int) -> Vocabulary:
    """The labels an ONNX model carries, and which entry they came from (or why none)."""
    for key in _METADATA_KEYS:
        text = metadata.get(key)
        if not text or len(text) > _MOST_BYTES:
            continue
        for labels, how in _readings(key, text, classes):
            if len(labels) == classes:
                blank = (0,) if labels[0] == BLANK else ()
                return Vocabulary(tuple(labels), f"metadata {key!r}{how}", special=blank)
        counts = sorted({len(labels) for labels, _ in _readings(key, text, classes)})
        why = f"metadata {key!r} has {counts[0]} entries for {classes} classes: not used"
        return Vocabulary(None, why)
    return Vocabulary()


def _readings(key: str, text: str, classes: int) -> list[tuple[list[str], str]]:
    """The ways to read an entry. PaddleOCR's `character` leaves out the blank and the space."""
    lines = _lines(text)
    if key == "character":
        return [
            (lines, ""),
            ([BLANK, *lines], ", blank first"),
            ([BLANK, *lines, " "], ", blank first, space last"),
        ]
    parsers = (json.loads, ast.literal_eval) if len(text) < _MOST_LITERAL else (json.loads,)
    for parse in parsers:
        try:
            found = _from_json(parse(text), classes)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
        if found is not None:
            return [(found, "")]
    return [(lines, "")] if "\n" in text else [([part.strip() for part in text.split(",")], "")]
