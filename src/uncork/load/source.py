"""Opening a source: what it is picks the reader, and the reader finds the head."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from uncork.domain import Box, Domain, parse_domain
from uncork.errors import UncorkError
from uncork.head import Head
from uncork.load.contents import (
    Choice,
    Contents,
    FoundDomain,
    UnknownDomain,
    Vocabulary,
    choose_by_hand,
    printable,
)
from uncork.load.formats import FOLDER, recognise
from uncork.load.hugging_face.hub_address import is_address, parse_address
from uncork.load.vocabulary import read_vocabulary

Source = str | os.PathLike[str]
T = TypeVar("T")


@dataclass(frozen=True)
class Found:
    """A head and where it came from."""

    head: Head
    contents: Contents
    weight_name: str
    bias_name: str | None
    why: str
    vocabulary: Vocabulary
    shown_domain: FoundDomain | None  # what the source shows, whether or not it was asked for
    domain_from: str  # how the head came by its domain: "given", "assumed" or what was seen
    notes: tuple[str, ...]


def find(
    source: Source | Any,
    *,
    weight: str | None = None,
    bias: str | None = None,
    transpose: bool = False,
    drop_bias: bool = False,
    labels: Source | Sequence[str] | None = None,
    domain: Domain | str | None = None,
    contents: Contents | None = None,
) -> Found:
    """As `uncork.load`, and says which tensors were taken, why, and what is worth noting."""
    auto = isinstance(domain, str) and domain.strip() == "auto"
    given = parse_domain(domain) if isinstance(domain, str) and not auto else domain
    contents = open_source(source) if contents is None else contents
    path = contents.path
    choice = _guarded(
        path, contents.format, lambda: choose_by_hand(contents, weight, bias, transpose, drop_bias)
    )
    notes = [*choice.doubts, *choice.folded, *choice.notes]
    seen = _guarded(path, contents.format, lambda: _shown_domain(contents, choice))
    shown = seen if isinstance(seen, FoundDomain) else None
    if not auto:
        chosen = None if given is None else given
        domain_from = "assumed" if given is None else "given"
    elif shown is not None:
        chosen, domain_from = shown.domain, shown.why
    else:
        chosen = Box(100)
        domain_from = "assumed: the source does not show what precedes the head"
        if isinstance(seen, UnknownDomain):
            domain_from += f" ({seen.why})"
    assert chosen is None or isinstance(chosen, Domain)
    try:
        head = Head(choice.weight, choice.bias, domain=chosen, source=str(path))
    except UncorkError as error:
        bias_text = f", bias {choice.bias_name!r}" if choice.bias_name else ""
        raise UncorkError(f"{path} (weight {choice.weight_name!r}{bias_text}): {error}") from error
    if labels is None:
        vocabulary = _guarded(path, contents.format, lambda: contents.vocabulary(head.classes))
        if vocabulary.labels is None and vocabulary.source:
            notes.append(f"no labels: {vocabulary.source}")
    elif isinstance(labels, str | os.PathLike):
        vocabulary = read_vocabulary(Path(labels), head.classes)
    else:
        vocabulary = Vocabulary(tuple(labels), "given")
    if vocabulary.labels is not None:
        head = Head(head.weight, head.bias, vocabulary.labels, head.domain, source=str(path))
    return Found(
        head, contents, choice.weight_name, choice.bias_name, choice.why, vocabulary, shown,
        domain_from, tuple(notes),
    )  # fmt: skip


def open_source(source: Source | Any) -> Contents:
    """The tensors of a file, a folder, a hub repository or a live model."""
    if not isinstance(source, str | os.PathLike):
        from uncork.load.live import open_live

        return open_live(source)
    if source == "":
        raise UncorkError("the model's name is empty: give a file, a folder or hf:owner/name")
    if isinstance(source, str) and is_address(source):
        from uncork.load.hugging_face.hub import fetch

        found = _guarded(Path(source), "a hub repository", lambda: fetch(source))
        # What people typed says more than where it lies in the cache.
        return replace(_open_path(found), path=Path(str(parse_address(source))))
    return _open_path(Path(source))


def _open_path(path: Path) -> Contents:
    try:
        if path.is_dir():
            return _guarded(path, FOLDER.name, lambda: FOLDER.read(path))
        if not path.exists():
            raise UncorkError(f"{path} does not exist: check the path (a hub id is hf:owner/name)")
        if not path.is_file():
            raise UncorkError(f"{path} is not a regular file")
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(32)
    except (OSError, ValueError) as error:
        if isinstance(error, UncorkError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise UncorkError(f"{path} cannot be opened: {reason}") from error
    if size == 0:
        raise UncorkError(f"{path} is empty")
    kind = recognise(path, start, size)
    return _guarded(path, kind.name, lambda: kind.read(path))


def _shown_domain(contents: Contents, choice: Choice) -> FoundDomain | UnknownDomain | None:
    """What the source shows of what precedes the head, if it fits the head."""
    shown = contents.domain(choice)
    if isinstance(shown, FoundDomain):
        shown.domain.check(choice.weight.shape[1])
    return shown


def _guarded(path: Path, kind: str, work: Callable[[], T]) -> T:
    """Run a reader; whatever a damaged file makes it raise becomes one clear line."""
    try:
        return work()
    except UncorkError as error:
        # Names in a file are whatever its author chose, and must not move a terminal's cursor.
        if str(error).isprintable():
            raise
        raise type(error)(printable(str(error))) from error
    except MemoryError as error:
        raise UncorkError(f"{path} does not fit into memory as {kind}") from error
    except Exception as error:
        text = printable(" ".join(str(error).split())[:200]) or type(error).__name__
        raise UncorkError(f"{path} cannot be read as {kind}: {text}") from error
