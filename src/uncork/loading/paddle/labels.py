"""What a Paddle model's classes are called: inference.yml, or a list of characters beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from uncork.loading.contents import Vocabulary
from uncork.loading.vocabulary.labels import labels_from_characters, read_labels

_MOST_BYTES = 16 << 20
_SETTINGS = ("inference.yml", "infer_cfg.yml", "inference.yaml")
_LISTS = ("character_dict", "label_list")
_DICTIONARIES = re.compile(r"(ppocr_keys.*|.*_dict|label_list|labels?|synset.*)\.txt")
_ESCAPES = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r",
    "e": "\x1b", '"': '"', "/": "/", "\\": "\\", "N": "\x85", "_": "\xa0", "L": "\u2028",
    "P": "\u2029", " ": " ",
}  # fmt: skip
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")


def labels_beside(folder: Path, classes: int) -> Vocabulary:
    """The labels that lie in the model's folder, or why there are none."""
    refused = []
    for name in _SETTINGS:
        path = folder / name
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        for key in _LISTS:
            found = listed(text, key)
            if found is None:
                continue
            said = _fitting(key, found, classes)
            if said is not None:
                return Vocabulary(tuple(said[0]), f"{key} of {name}{said[1]}", special=said[2])
            refused.append(f"{key} of {name} has {len(found)} entries for {classes} classes")
    for path in sorted(folder.iterdir()):
        if _DICTIONARIES.fullmatch(path.name) and path.is_file():
            try:
                return read_labels(path, classes)
            except ValueError as error:
                refused.append(str(error))
    return Vocabulary(None, "; ".join(refused))


def _fitting(
    key: str, found: list[str], classes: int
) -> tuple[list[str], str, tuple[int, ...]] | None:
    if key == "character_dict":
        return labels_from_characters(found, classes)
    return (found, "", ()) if len(found) == classes else None


def listed(text: str, key: str) -> list[str] | None:
    """The list under a key of a YAML file, one entry a line; None where there is none.

    Only what PaddleOCR's own tools write is read: a block of plain or quoted scalars.
    """
    lines = text.split("\n")
    for at, line in enumerate(lines):
        match = re.fullmatch(rf"(\s*){key}:\s*", line)
        if match:
            try:
                return list(_entries(lines[at + 1 :], len(match[1])))
            except ValueError:
                return None
    return None


def _entries(lines: list[str], indent: int) -> Iterator[str]:
    for line in lines:
        match = re.match(r"( *)-(?: (.*))?$", line.rstrip("\r"))
        if match is None or len(match[1]) < indent:
            return
        yield _scalar((match[2] or "").strip(" "))


def _scalar(text: str) -> str:
    """One entry without its quotes; ValueError where it is more than that."""
    if any(end in text for end in "\x85\u2028\u2029"):  # ends of lines, to YAML
        raise ValueError
    if text[:1] == "'":
        if len(text) < 2 or text[-1] != "'":
            raise ValueError
        return text[1:-1].replace("''", "'")
    if text[:1] == '"':
        if len(text) < 2 or text[-1] != '"':
            raise ValueError
        return _ESCAPE.sub(_unescaped, text[1:-1])
    if text[:1] in ("|", ">", "&", "*", "!", "{", "[", "%", "@", "`", "#"):
        raise ValueError
    return text


def _unescaped(match: re.Match[str]) -> str:
    found = match[1]
    if found[0] in "xuU" and len(found) > 1:
        return chr(int(found[1:], 16))
    if found not in _ESCAPES:
        raise ValueError
    return _ESCAPES[found]
