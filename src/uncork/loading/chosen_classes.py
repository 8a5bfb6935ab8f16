"""Which classes a text names: by number, file, script, kind of token or pattern."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.text import printable
from uncork.loading.contents import Vocabulary
from uncork.loading.vocabulary import vocabulary_of
from uncork.loading.vocabulary.scripts import MIXED, NONE, script_of, scripts_of, wanted_scripts

__all__ = ["HELP", "chosen_classes", "script_of"]

HELP = (
    "Ask about some classes only: 0-99,500; @FILE with the same; script:CYRILLIC; special, unused "
    "(or reserved), padding, or ordinary (all but these); label:REGEX. Commas join them."
)
_MOST_BYTES = 64 << 20
_LISTED = 12
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_KINDS = ("special", "unused", "reserved", "padding", "ordinary")
_SAME = {"reserved": "unused"}


def chosen_classes(
    text: str, head: Head, vocabulary: Vocabulary | None = None, option: str = "--classes"
) -> np.ndarray:
    """Ids (n,), ascending, of the classes that any of the parts between commas names.

    `0-99`, `@file`, `script:CYRILLIC`, `special`, `unused` (or `reserved`), `padding`, `ordinary`;
    a part that begins with `label:` is a regular expression and reaches to the end of the text.
    Without a vocabulary the kinds are told by the labels' names alone. Errors name the `option`.
    """
    if vocabulary is None:
        vocabulary = Vocabulary()
        if head.labels is not None:
            vocabulary = vocabulary_of(head.labels, head.classes, "labels", byte_level=False)
    chosen = np.zeros(head.classes, dtype=bool)
    try:
        _choose(text, head, vocabulary, chosen, "--classes")
    except UncorkError as error:
        if option == "--classes":
            raise
        raise UncorkError(str(error).replace("--classes", option)) from None
    return np.flatnonzero(chosen)


def _choose(text: str, head: Head, vocabulary: Vocabulary, chosen: np.ndarray, where: str) -> None:
    rest = text.strip(" \t\r\n,")
    if not rest:
        raise UncorkError(f"{where}: no class number: expected for example 0-99,500")
    while rest:
        if rest.startswith("label:"):
            chosen |= _labelled(rest.removeprefix("label:"), head)
            return
        part, _, rest = rest.partition(",")
        rest = rest.lstrip(" \t\r\n,")
        if part.startswith("@"):
            if where != "--classes":
                raise UncorkError(f"{where}: {printable(part[:40])!r}: a file cannot name a file")
            _choose(_read(Path(part[1:])), head, vocabulary, chosen, f"file {part[1:]}")
        elif part.strip().startswith("script:"):
            chosen |= _of_script(part.strip().removeprefix("script:"), head, vocabulary)
        elif part.strip() in _KINDS:
            chosen |= _of_kind(_SAME.get(part.strip(), part.strip()), head, vocabulary)
        else:
            for piece in part.split():
                _number(piece, head, chosen, where)


def _of_script(name: str, head: Head, vocabulary: Vocabulary) -> np.ndarray:
    """Classes all of whose letters are of that script; no control tokens, no spare rows."""
    if head.labels is None:
        raise UncorkError("--classes script: needs labels, and the model has none: give --labels")
    words = ~_aside(head, vocabulary)
    scripts = [
        scripts_of(label) if word else frozenset()
        for label, word in zip(head.labels, words, strict=True)
    ]
    wanted = wanted_scripts(name)
    if wanted == {NONE}:
        found = np.array([not letters for letters in scripts]) & words
    elif wanted == {MIXED}:
        found = np.array([len(letters) > 1 for letters in scripts])
    else:
        found = np.array([bool(letters) and letters <= wanted for letters in scripts])
    if not found.any():
        there = Counter(_name(letters) for letters in scripts if letters).most_common(_LISTED)
        listed = ", ".join(f"{script} ({count:,})" for script, count in there) or "none"
        raise UncorkError(
            f"no label is written in {printable(name[:40])!r}; scripts there are: {listed}"
        )
    return found


def _name(letters: frozenset[str]) -> str:
    return next(iter(letters)) if len(letters) == 1 else MIXED


def _aside(head: Head, vocabulary: Vocabulary) -> np.ndarray:
    """Rows that stand for no ordinary word."""
    mask = np.zeros(head.classes, dtype=bool)
    for ids in (vocabulary.special, vocabulary.unused, vocabulary.padding):
        mask[list(ids)] = True
    return mask


def _of_kind(kind: str, head: Head, vocabulary: Vocabulary) -> np.ndarray:
    if head.labels is None:
        raise UncorkError(f"--classes {kind} needs labels, and the model has none: give --labels")
    if kind == "ordinary":
        found = ~_aside(head, vocabulary)
    else:
        found = np.zeros(head.classes, dtype=bool)
        found[list(getattr(vocabulary, kind))] = True
    if not found.any():
        raise UncorkError(
            f"--classes {kind}: there are none; {len(vocabulary.special):,} rows are special, "
            f"{len(vocabulary.unused):,} unused, {len(vocabulary.padding):,} padding"
        )
    return found


def _labelled(pattern: str, head: Head) -> np.ndarray:
    if head.labels is None:
        raise UncorkError("--classes label: needs labels, and the model has none: give --labels")
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise UncorkError(
            f"--classes label:{printable(pattern[:40])} is not a regular expression: {error}"
        ) from None
    found = np.array([compiled.search(label) is not None for label in head.labels])
    if not found.any():
        raise UncorkError(f"--classes label:{printable(pattern[:40])}: no label matches")
    return found


def _number(text: str, head: Head, chosen: np.ndarray, where: str) -> None:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise UncorkError(
            f"{where}: {printable(text[:40])!r} is not a class number or range: expected "
            f"for example 0-99,500 or script:CYRILLIC or {', '.join(_KINDS)}"
        )
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if last < first:
        raise UncorkError(f"{where}: the range {text} ends before it begins")
    if last >= head.classes:
        raise UncorkError(
            f"{where}: class {last} does not exist: the head has classes 0 to {head.classes - 1}"
        )
    chosen[first : last + 1] = True


def _read(path: Path) -> str:
    try:
        if not path.is_file():
            raise UncorkError(f"--classes file {path} does not exist")
        if path.stat().st_size > _MOST_BYTES:
            raise UncorkError(f"--classes file {path} is too large for a list of class numbers")
        return path.read_text(encoding="utf-8").replace("\n", ",")
    except UnicodeDecodeError:
        raise UncorkError(f"--classes file {path} is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        if isinstance(error, UncorkError):
            raise
        raise UncorkError(f"--classes file {path}: {error}") from None
