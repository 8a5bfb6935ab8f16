"""Lists that users give: how frequent labels are, and classes that must never be said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.text import printable

_MOST_BYTES = 256 << 20
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_COUNTED = re.compile(r"(?P<label>.+?)(?:\t| +|,|;)(?P<count>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")


@dataclass(frozen=True)
class Frequency:
    """Labels by how frequent they are.

    `rank` counts from 1; `share` is of all counts, empty where the list has none.
    """

    path: str
    rank: Mapping[str, int]
    share: Mapping[str, float]


def read_frequency(path: str) -> Frequency:
    """A label and its count on each line (tab, spaces or a comma between), or only labels, the most
    frequent first."""
    lines = [line for line in _lines(path, "--frequency") if line.strip()]
    if not lines:
        raise UncorkError(f"--frequency {path} is empty: give a label and its count on each line")
    matches = [_COUNTED.fullmatch(line.strip()) for line in lines]
    if not all(matches):
        rank: dict[str, int] = {}
        for line in lines:
            rank.setdefault(line, len(rank) + 1)
        return Frequency(path, rank, {})
    counts: dict[str, float] = {}
    for match in matches:
        assert match is not None
        counts[match["label"]] = counts.get(match["label"], 0.0) + float(match["count"])
    total = sum(counts.values())
    if not 0 < total < float("inf"):
        raise UncorkError(f"--frequency {path}: the counts add up to {total:g}")
    order = sorted(counts, key=lambda label: -counts[label])
    return Frequency(
        path,
        {label: place for place, label in enumerate(order, 1)},
        {label: count / total for label, count in counts.items()},
    )


def read_must_not(path: str, head: Head) -> tuple[int, ...]:
    """Classes named a line each: by label, or else by number (17) or range (100-199)."""
    by_label: dict[str, list[int]] = {}
    for t, label in enumerate(head.labels or ()):
        by_label.setdefault(label, []).append(t)
    chosen: set[int] = set()
    for number, line in enumerate(_lines(path, "--must-not"), 1):
        if line in by_label:
            chosen.update(by_label[line])
        elif line.strip():
            chosen.update(_numbered(line.strip(), head, f"--must-not {path}, line {number}"))
    if not chosen:
        raise UncorkError(f"--must-not {path} names no class")
    return tuple(sorted(chosen))


def _numbered(text: str, head: Head, where: str) -> range:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise UncorkError(
            f"{where}: {printable(text[:40])!r} is neither a label of the model nor a class number"
        )
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if last < first or last >= head.classes:
        raise UncorkError(f"{where}: {text}: the head has classes 0 to {head.classes - 1}")
    return range(first, last + 1)


def _lines(path: str, option: str) -> list[str]:
    file = Path(path)
    try:
        if not file.is_file():
            what = "is not a regular file" if file.exists() else "does not exist"
            raise UncorkError(f"{option} {path} {what}")
        if file.stat().st_size > _MOST_BYTES:
            raise UncorkError(f"{option} {path} is too large for a list")
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UncorkError(f"{option} {path} is not UTF-8 text") from None
    except OSError as error:
        raise UncorkError(f"{option} {path} cannot be read: {error.strerror}") from None
    return [line.removesuffix("\r") for line in text.split("\n")]
