"""Opening a source: what it is picks the reader, and the reader finds the head."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.items import METRICS, check_metric, not_a_head
from uncork.core.links import Links
from uncork.core.reading import Reading
from uncork.core.text import printable
from uncork.core.words import CLASSES, ITEMS
from uncork.domain import Box, Domain, parse_domain
from uncork.loading.contents import (
    UNSAID,
    Choice,
    Contents,
    FoundDomain,
    UnknownDomain,
    Vocabulary,
    choose_by_hand,
    kept_at,
    turned_to,
)
from uncork.loading.decisions import COSINE, compares_by_cosine
from uncork.loading.formats import recognise, recognise_folder
from uncork.loading.hugging_face.folder import read_folder
from uncork.loading.hugging_face.hub_address import is_address, parse_address
from uncork.loading.vocabulary import read_vocabulary

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
    base: Source | None = None,
    metric: str | None = None,
    contents: Contents | None = None,
) -> Found:
    """As `uncork.load`, and says which tensors were taken, why, and what is worth noting.

    An index that does not compare by inner product is not a head; `metric="inner"` asks about the
    inner products of its rows nevertheless, which is a doubt worth stating.
    """
    auto = isinstance(domain, str) and domain.strip() == "auto"
    given = parse_domain(domain) if isinstance(domain, str) and not auto else domain
    contents = open_source(source, base) if contents is None else contents
    path, typed = contents.path, contents.typed
    used, doubts = used_metric(contents, metric)
    if used != "inner":
        raise UncorkError(not_a_head(str(path), used))
    choice = choose_rows(contents, weight, bias, transpose, drop_bias, labels)
    if metric is None and choice.bias is None and compares_by_cosine(choice.weight_name):
        doubts += (COSINE,)
    choice = replace(choice, doubts=(*doubts, *choice.doubts))
    notes = [*choice.notes, *assumed_metric(contents, metric)]
    is_index = contents.of_items or metric is not None or contents.metric is not None
    if drop_bias:
        notes.append("any bias was left out (--drop-bias)")
    seen = _guarded(path, contents.format, lambda: _shown_domain(contents, choice), typed)
    shown = seen if isinstance(seen, FoundDomain) else None
    if not auto:
        chosen = None if given is None else given
        domain_from = "assumed" if given is None else "given"
    elif shown is not None:
        chosen, domain_from = shown.domain, shown.why
    else:
        chosen = Box(100)
        domain_from = _not_shown(seen if isinstance(seen, UnknownDomain) else None)
    assert chosen is None or isinstance(chosen, Domain)
    if is_index and choice.weight.shape[0] == 1:
        raise UncorkError(f"{path} holds one item, which every query finds: nothing is to be asked")
    try:
        head = Head(choice.weight, choice.bias, domain=chosen, source=str(path))
    except UncorkError as error:
        bias_text = f", bias {choice.bias_name!r}" if choice.bias_name else ""
        raise UncorkError(f"{path} (weight {choice.weight_name!r}{bias_text}): {error}") from error
    own = choice.vocabulary if labels is None else None
    vocabulary = labelled(contents, labels, head.classes) if own is None else own
    if labels is None and vocabulary.labels is None and vocabulary.source:
        notes.append(f"no labels: {vocabulary.source}")
    if vocabulary.labels is not None:
        head = head.replace(labels=vocabulary.labels)
    head.reading = Reading(
        weight=choice.weight_name,
        bias=choice.bias_name or (None if choice.bias is None else ""),
        why=choice.why,
        folded=choice.folded,
        labels_from=vocabulary.source if vocabulary.labels is not None else "",
        preceded_by=_preceded_by(shown),
        domain_from=_in_words(domain, seen),
        doubts=choice.doubts,
        notes=(*notes, *vocabulary.notes),
        words=(ITEMS if is_index else CLASSES).name,
    )
    return Found(
        head, contents, choice.weight_name, choice.bias_name, choice.why, vocabulary, shown,
        domain_from, (*choice.doubts, *choice.folded, *notes),
    )  # fmt: skip


def used_metric(contents: Contents, metric: str | None) -> tuple[str, tuple[str, ...]]:
    """The metric to ask about: as given, or the index's own; and a doubt if they differ."""
    own = contents.metric
    if metric is None and own == UNSAID:
        raise UncorkError(
            f"{contents.path} does not say how it compares vectors, and answers differ between "
            f"metrics: give --metric {'|'.join(METRICS)}"
        )
    used = check_metric(metric or own or "inner")
    if not own or own == used:
        return used, ()
    return used, (
        f"{contents.path.name} compares by {METRICS[own]}; what follows is about {METRICS[used]}, "
        "as --metric says",
    )


def assumed_metric(contents: Contents, metric: str | None) -> tuple[str, ...]:
    """A note where a file of items does not say how they are compared, and nobody else did."""
    if metric is not None or contents.metric is not None or not contents.of_items:
        return ()
    return (
        "how its items are compared is not in the file: this is about inner products; --metric "
        "cosine or euclidean asks about another",
    )


def choose_rows(
    contents: Contents,
    weight: str | None,
    bias: str | None,
    transpose: bool,
    drop_bias: bool,
    labels: Source | Sequence[str] | None,
) -> Choice:
    """The rows and their bias: named by hand or found by the reader, on the side that fits."""
    choice = _guarded(
        contents.path, contents.format,
        lambda: choose_by_hand(contents, weight, bias, transpose, drop_bias), contents.typed,
    )  # fmt: skip
    return _sided(contents.path, choice, labels) if choice.sides_open else choice


def labelled(contents: Contents, labels: Source | Sequence[str] | None, rows: int) -> Vocabulary:
    """What the rows are called: as given, in a file or a list, or as the source itself says."""
    if labels is None:
        return _guarded(
            contents.path, contents.format, lambda: contents.vocabulary(rows), contents.typed
        )
    if isinstance(labels, str | os.PathLike):
        return read_vocabulary(Path(labels), rows)
    return Vocabulary(tuple(labels), "given")


def _sided(path: Path, choice: Choice, labels: Source | Sequence[str] | None) -> Choice:
    """The side of a lone weight that the labels fit; where they fit neither alone, say so."""
    rows, columns = choice.weight.shape
    by_rows, by_columns = (_fit(labels, side) for side in (rows, columns))
    if by_columns and not by_rows:
        return turned_to(choice, "the number of labels")
    if by_rows and not by_columns:
        return kept_at(choice, "the number of labels")
    if columns < rows or choice.weight_name.endswith(".weight"):  # a layer of torch: out × in
        return choice
    doubt = (
        f"nothing in {path.name} says whether the classes of {printable(choice.weight_name)} are "
        f"its {rows} rows or its {columns} columns: the rows were taken; use --transpose if they "
        "are the columns"
    )
    return replace(choice, doubts=(doubt, *choice.doubts))


def _fit(labels: Source | Sequence[str] | None, classes: int) -> bool:
    if labels is None:
        return False
    if not isinstance(labels, str | os.PathLike):
        return len(labels) == classes
    try:
        return read_vocabulary(Path(labels), classes).labels is not None
    except UncorkError:
        return False


def open_source(source: Source | Any, base: Source | None = None) -> Contents:
    """The tensors of a file, a folder, a hub repository or a live model.

    `base` is the folder or hub repository of the model that an adapter is merged into.
    """
    if not isinstance(source, str | os.PathLike):
        from uncork.loading.live.objects import open_live

        if base is not None:
            raise UncorkError("a base goes with an adapter's folder, not with a live model")
        return open_live(source)
    below = None if base is None else _on_disk(base)
    path = _on_disk(source)
    # What people typed says more than where it lies in the hub's cache.
    typed = {
        str(lies): str(parse_address(str(asked)))
        for lies, asked in ((path, source), (below, base))
        if lies is not None and isinstance(asked, str) and is_address(asked)
    }
    contents = _guarded(path, "a model", lambda: _open_path(path, below), typed)
    return replace(contents, path=Path(typed.get(str(path), path)), typed=typed)


def links_of(contents: Contents) -> Links | None:
    """The graph that a search of an index walks, None where it has none."""
    read = contents.links
    if read is None:
        return None
    return _guarded(contents.path, contents.format, read, contents.typed)


def _on_disk(source: Source) -> Path:
    """Where a source lies: a path as it is, a hub repository in the cache once it is fetched."""
    if str(source) == "":
        raise UncorkError("the model's name is empty: give a file, a folder or hf:owner/name")
    if isinstance(source, str) and is_address(source):
        from uncork.loading.hugging_face.hub import fetch

        return _guarded(Path(source), "a hub repository", lambda: fetch(source))
    return Path(source)


def _open_path(path: Path, base: Path | None = None) -> Contents:
    try:
        if path.is_dir():
            vectors = recognise_folder(path)
            if vectors is not None and base is None:
                return _guarded(path, vectors.name, lambda: vectors.read(path))
            return _guarded(path, "hugging face folder", lambda: read_folder(path, base))
        if not path.exists():
            raise UncorkError(f"{path} does not exist: check the path (a hub id is hf:owner/name)")
        if not path.is_file():
            raise UncorkError(f"{path} is not a regular file")
        if base is not None:
            raise UncorkError(f"{path} is a file: a base goes with the folder of an adapter")
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


def _preceded_by(shown: FoundDomain | None) -> str:
    """What stands before the head, and what of it nobody saw."""
    if shown is None:
        return ""
    what = re.sub(r",? precedes the (head|classifier)", "", shown.why)
    return what + (f"; assumed, not seen: {shown.assumed}" if shown.assumed else "")


def _not_shown(seen: UnknownDomain | None) -> str:
    why = "" if seen is None else f" ({seen.why})"
    return f"assumed: the source does not show what precedes the head{why}"


def _in_words(domain: Domain | str | None, seen: FoundDomain | UnknownDomain | None) -> str:
    """How the head came by its domain."""
    text = domain.strip() if isinstance(domain, str) else ""
    if (domain is None or text == "auto") and not isinstance(seen, FoundDomain):
        return _not_shown(seen)
    if domain is None:
        return "assumed; --domain auto would take what precedes the head"
    if text == "auto":
        check = "; it rests on several steps: --check MODEL --data FILES tries it on the model"
        return "what precedes the head" + (
            check if isinstance(seen, FoundDomain) and seen.in_steps else ""
        )
    if text.startswith("@"):
        from uncork.domain.file import read_domain

        said = read_domain(text[1:])[1].get("assumption", "")
        return text[1:] + (f", {said}" if isinstance(said, str) and said else "")
    return "given"


def _guarded(
    path: Path, kind: str, work: Callable[[], T], typed: Mapping[str, str] | None = None
) -> T:
    """Run a reader; whatever a damaged file makes it raise becomes one clear line.

    In it, paths stand as people typed them.
    """
    try:
        return work()
    except UncorkError as error:
        text = str(error)
        for lies, asked in (typed or {}).items():
            text = text.replace(lies, asked)
        # Names in a file are whatever its author chose, and must not move a terminal's cursor.
        text = printable(text)
        if text == str(error):
            raise
        raise type(error)(text) from error
    except MemoryError as error:
        raise UncorkError(f"{path} does not fit into memory as {kind}") from error
    except Exception as error:
        text = printable(" ".join(str(error).split())[:200]) or type(error).__name__
        raise UncorkError(f"{path} cannot be read as {kind}: {text}") from error
