"""`--classes`: which classes to ask about, as numbers, from a file, or by the script of labels."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np

from uncork.errors import UncorkError
from uncork.head import Head
from uncork.load.contents import printable

_MOST_BYTES = 64 << 20
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def chosen_classes(text: str, head: Head) -> np.ndarray:
    """Ids (n,) for `0-99,500`, `@file` with the same inside, or `script:CYRILLIC`."""
    if text.startswith("@"):
        return _numbered(_read(Path(text[1:])), head, f"file {text[1:]}")
    if text.startswith("script:"):
        return _of_script(text.removeprefix("script:"), head)
    return _numbered(text, head, "--classes")


def script_of(label: str) -> str | None:
    """The first word of the Unicode names of a label's letters (LATIN, CYRILLIC, CJK, …).

    Digits, punctuation, marks and spaces belong to every script and are dropped. None where no
    letter is left or the letters are of several scripts.
    """
    letters = [c for c in unicodedata.normalize("NFKC", label) if unicodedata.category(c)[0] == "L"]
    scripts = {unicodedata.name(c, "UNNAMED").split()[0] for c in letters}
    return scripts.pop() if len(scripts) == 1 else None


def _of_script(script: str, head: Head) -> np.ndarray:
    if head.labels is None:
        raise UncorkError("--classes script: needs labels, and the model has none: give --labels")
    wanted = script.strip().upper()
    scripts = [script_of(label) for label in head.labels]
    ids = np.flatnonzero(np.array([found == wanted for found in scripts]))
    if not len(ids):
        there = Counter(found for found in scripts if found is not None).most_common(8)
        listed = ", ".join(f"{name} ({count})" for name, count in there) or "none"
        raise UncorkError(f"no label is written in {script!r}; scripts there are: {listed}")
    return ids


def _numbered(text: str, head: Head, where: str) -> np.ndarray:
    chosen = np.zeros(head.classes, dtype=bool)
    for part in re.split(r"[\s,]+", text.strip(" \t\r\n,")):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise UncorkError(
                f"{where}: {printable(part[:40])!r} is no class number or range: "
                "expected for example 0-99,500"
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise UncorkError(f"{where}: the range {part} ends before it begins")
        if last >= head.classes:
            raise UncorkError(
                f"{where}: class {last} does not exist: the head has classes 0 to "
                f"{head.classes - 1}"
            )
        chosen[first : last + 1] = True
    return np.flatnonzero(chosen)


def _read(path: Path) -> str:
    if not path.is_file():
        raise UncorkError(f"--classes file {path} does not exist")
    if path.stat().st_size > _MOST_BYTES:
        raise UncorkError(f"--classes file {path} is too large for a list of class numbers")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UncorkError(f"--classes file {path} is not UTF-8 text") from None
