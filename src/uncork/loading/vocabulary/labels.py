"""Names of the classes: from a text, CSV or JSON file, or from an ONNX model's metadata."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError
from uncork.loading.contents import LabelCountError, Vocabulary
from uncork.loading.vocabulary.token_text import split_lines

_MOST_BYTES = 256 << 20
_MOST_LITERAL = 4 << 20  # a syntax tree takes a hundred times the text
_METADATA_KEYS = ("character", "labels", "classes", "names", "id2label")
_NUMBER_FIRST = re.compile(r"\s*(?P<number>\d{1,9})(?:\s*[,;:\t]\s*|\s+)(?P<label>\S.*?)\s*")
_NUMBER_LAST = re.compile(r"(?P<label>.*\S)[ \t]+(?P<number>\d{1,9})\s*")
_WHOLE = re.compile(r"\s*\d{1,9}\s*")
_NUMBER_KEYS = ("id", "index", "idx", "class_id", "classid", "class_index", "label_id", "number")
_NAME_KEYS = ("name", "label", "labels", "class_name", "label_name", "display_name", "title",
              "token", "word", "category")  # fmt: skip
_OF_CHARACTERS = re.compile(r"(ppocr_keys.*|.*_dict)\.txt")  # PaddleOCR's lists of characters
BLANK = "<blank>"  # the class of a CTC recogniser that stands for no character


def read_labels(path: Path, classes: int) -> Vocabulary:
    """One label a class: a line each, a table with class numbers, or JSON."""
    text = _text_of(path)
    found, how = None, ""
    if path.suffix == ".json" or text[:1] in "[{":
        try:
            found = _from_json(json.loads(text), classes)
        except (ValueError, RecursionError) as error:
            if path.suffix == ".json":
                raise UncorkError(f"labels file {path} is not valid JSON: {error}") from error
        else:
            if found is None:
                raise LabelCountError(
                    f"labels file {path} is JSON without {classes} labels: expected a list, a "
                    "table from class number to label or from label to class number, or records "
                    f"with a number from 0 to {classes - 1} and a name"
                )
    if found is None:
        try:
            if path.suffix.lower() in (".csv", ".tsv"):
                found, how = _table(_rows(text, path.suffix.lower()), classes)
            else:
                found, how = lines_of_text(text, classes, number_last=path.name == "tokens.txt")
        except UncorkError as error:
            raise UncorkError(f"labels file {path} {error}") from None
    if len(found) != classes and _OF_CHARACTERS.fullmatch(path.name):
        said = labels_from_characters(found, classes)
        if said is not None:
            return Vocabulary(tuple(said[0]), f"{path}{said[1]}", special=said[2])
    if len(found) != classes:
        raise LabelCountError(
            f"labels file {path} has {len(found)} labels for {classes} classes: "
            "give one label a class"
        )
    return Vocabulary(tuple(found), f"{path}{how}")


def _text_of(path: Path) -> str:
    if path.is_dir():
        raise UncorkError(f"labels file {path} is a folder: name the file inside it")
    if not path.is_file():
        raise UncorkError(f"labels file {path} does not exist")
    if path.stat().st_size > _MOST_BYTES:
        raise UncorkError(
            f"labels file {path} has {path.stat().st_size} bytes: too many for labels"
        )
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UncorkError(
            f"labels file {path} is not UTF-8 text (byte {error.start}): give one label a line"
        ) from None
    except OSError as error:
        raise UncorkError(f"labels file {path} cannot be read: {error.strerror}") from error


def lines_of_text(text: str, classes: int, *, number_last: bool = False) -> tuple[list[str], str]:
    """A label a line, and how the lines were read: as they are, or each with its class number.

    Lines have numbers where those are 0 to classes − 1, each once, and the labels without them are
    as different from each other: "0 stars" and "2 stars" are labels.
    """
    lines = split_lines(text.removeprefix("\ufeff"))
    pattern = _NUMBER_LAST if number_last else _NUMBER_FIRST
    if len(lines) == classes:
        matches = [match for line in lines if (match := pattern.fullmatch(line))]
        if len(matches) == classes:
            labels = _by_number([(match["number"], match["label"]) for match in matches], classes)
            if labels is not None and len(set(labels)) == len(set(lines)):
                return labels, ", by class number"
    return lines, ""


def _by_number(pairs: Sequence[tuple[str | int, str]], classes: int) -> list[str] | None:
    """Labels in the order of their numbers, if those are 0 to classes − 1, each once."""
    try:
        table = {int(number): label for number, label in pairs}
    except ValueError:
        return None
    if len(pairs) != classes or table.keys() != set(range(classes)):
        return None
    return [table[k] for k in range(classes)]


def _rows(text: str, suffix: str) -> list[list[str]]:
    """The rows of a table: quoted fields may hold commas and line breaks."""
    first = text.split("\n", 1)[0]
    comma = "\t" if suffix == ".tsv" or ("\t" in first and "," not in first) else ","
    if comma == "," and ";" in first and "," not in first:
        comma = ";"
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=comma, strict=True))
    except csv.Error as error:
        raise UncorkError(f"is not a table: {error}") from None
    return [row for row in rows if row]


def _table(rows: list[list[str]], classes: int) -> tuple[list[str], str]:
    """Labels from a table's rows: by the column of class numbers, where it has one."""
    width = {len(row) for row in rows}
    if len(width) > 1:
        raise UncorkError(f"has rows of {min(width)} and of {max(width)} columns: quote its commas")
    headed = len(rows) == classes + 1 and (
        len(rows[0]) > 1 or rows[0][0].strip().lower() in (*_NAME_KEYS, "class")
    )
    header = [cell.strip().lower() for cell in rows[0]] if headed else []
    body = rows[1:] if headed else rows
    columns = list(zip(*body, strict=True))
    if len(body) != classes or len(columns) == 1:
        return ([row[0] for row in body], "") if columns else ([], "")
    whole = [k for k, column in enumerate(columns) if all(_WHOLE.fullmatch(c) for c in column)]
    numbers = [
        k for k in whole if sorted(map(int, columns[k])) == list(range(classes))
    ]  # fmt: skip
    if whole and not numbers:
        most, least = max(map(int, columns[whole[0]])), min(map(int, columns[whole[0]]))
        raise UncorkError(
            f"has numbers from {least} to {most} for {classes} classes: number them from 0 to "
            f"{classes - 1}, each once"
        )
    named = [k for k, name in enumerate(header) if name in _NAME_KEYS and k not in whole]
    others = named or [k for k in range(len(columns)) if k not in whole]
    if len(others) != 1:
        raise UncorkError(
            f"has {len(columns)} columns, and which one has the labels does not show: give class "
            "number and label, or call one column label"
        )
    if not numbers:
        return list(columns[others[0]]), ""
    pairs = list(zip(columns[numbers[0]], columns[others[0]], strict=True))
    return _by_number(pairs, classes) or [], ", by class number"


def _from_json(data: Any, classes: int) -> list[str] | None:
    if isinstance(data, list):
        if data and all(isinstance(item, dict) for item in data):
            return _records(data, classes)
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
        and (isinstance(value, dict) or all(isinstance(item, str | dict) for item in value))
    ]
    # `id2label` and `label2id` say the same thing twice.
    return inner[0] if inner and all(other == inner[0] for other in inner) else None


def _records(data: list[dict[str, Any]], classes: int) -> list[str] | None:
    """[{"id": 2, "name": "bird"}, …]: by number where there is one, else in their order."""
    shared = [key for key in data[0] if all(key in item for item in data)]
    numbers = [key for key in shared if all(type(item[key]) is int for item in data)]
    names = [key for key in shared if all(isinstance(item[key], str) for item in data)]
    numbers = [key for key in numbers if key.lower() in _NUMBER_KEYS] or numbers
    names = [key for key in names if key.lower() in _NAME_KEYS] or names
    if len(names) != 1 or len(numbers) > 1:
        return None
    if not numbers:
        return [item[names[0]] for item in data]
    return _by_number([(item[numbers[0]], item[names[0]]) for item in data], classes)


def labels_from_metadata(metadata: Mapping[str, str], classes: int) -> Vocabulary:
    """The labels an ONNX model carries, and which entry they came from (or why none)."""
    found: list[tuple[str, list[str], str]] = []
    refused: list[str] = []
    for key in _METADATA_KEYS:
        text = metadata.get(key)
        if not text or len(text) > _MOST_BYTES:
            continue
        readings = _readings(key, text, classes)
        fitting = [(key, labels, how) for labels, how in readings if len(labels) == classes]
        if fitting:
            found.append(fitting[0])
        else:
            count = min(len(labels) for labels, _ in readings)
            refused.append(f"metadata {key!r} has {count} entries for {classes} classes: not used")
    if not found:
        return Vocabulary(None, "; ".join(refused))
    key, labels, how = found[0]
    notes = tuple(
        f"metadata {other!r} names {differing:,} of the classes otherwise: {key!r} was taken"
        for other, named, _ in found[1:]
        if (differing := sum(a != b for a, b in zip(labels, named, strict=True)))
    )
    blank = (0,) if labels[0] == BLANK else ()
    return Vocabulary(tuple(labels), f"metadata {key!r}{how}", special=blank, notes=notes)


def _readings(key: str, text: str, classes: int) -> list[tuple[list[str], str]]:
    """The ways to read an entry."""
    lines = split_lines(text)
    if key == "character":
        return _characters(lines)
    parsers = (json.loads, ast.literal_eval) if len(text) < _MOST_LITERAL else (json.loads,)
    for parse in parsers:
        try:
            found = _from_json(parse(text), classes)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
        if found is not None:
            return [(found, "")]
    return [(lines, "")] if "\n" in text else [([part.strip() for part in text.split(",")], "")]


def _characters(lines: list[str]) -> list[tuple[list[str], str]]:
    """The ways to read PaddleOCR's characters, which leave out the blank and the space."""
    return [
        (lines, ""),
        ([BLANK, *lines], ", blank first"),
        ([BLANK, *lines, " "], ", blank first, space last"),
    ]


def labels_from_characters(
    lines: list[str], classes: int
) -> tuple[list[str], str, tuple[int, ...]] | None:
    """The labels of a recogniser whose characters are these, how they were read, and which class
    is the blank; None where they do not fit."""
    for labels, how in _characters(lines):
        if len(labels) == classes:
            return labels, how, (0,) if labels[0] == BLANK else ()
    return None
