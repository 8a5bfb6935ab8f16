"""Relevance judgements from files: TREC's and BEIR's, and the ids that they name items by."""

from __future__ import annotations

import collections
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.items import Items
from uncork.core.text import printable

MOST_SETS = 1_000_000  # of one size
_LONGEST = 4096  # characters of a line
_LONGEST_LIST = 256 << 20  # bytes of a JSON list of ids
_MOST_MISSING = 3


@dataclass(frozen=True, eq=False)
class Judgements:
    """Queries by name, and the items that are relevant to each."""

    queries: tuple[str, ...]
    relevant: tuple[np.ndarray, ...]  # sorted ids, one array a query
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.queries) != len(self.relevant):
            raise UncorkError(
                f"{len(self.queries)} queries and {len(self.relevant)} sets of relevant items: "
                "give one set a query"
            )
        sets = tuple(np.unique(np.asarray(ids, dtype=np.int64)) for ids in self.relevant)
        if any(not len(ids) for ids in sets):
            raise UncorkError("a query without a relevant item asks for nothing")
        object.__setattr__(self, "relevant", sets)

    def __len__(self) -> int:
        return len(self.queries)

    def check(self, count: int) -> None:
        """Raise if an item does not exist among so many, or a set holds all of them."""
        for name, ids in zip(self.queries, self.relevant, strict=True):
            if ids[0] < 0 or ids[-1] >= count:
                wrong = ids[0] if ids[0] < 0 else ids[-1]
                raise UncorkError(
                    f"query {printable(name)}: item {wrong} does not exist: there are {count:,} "
                    f"items, 0 to {count - 1:,}"
                )

    @classmethod
    def every(cls, items: int, size: int) -> Judgements:
        """Every set of `size` of the first `items` items: LIMIT's construction where it is two."""
        if not 1 <= size < max(items, 1):
            raise UncorkError(f"sets of {size} among {items} items: expected 1 to {items - 1}")
        count = math.comb(items, size)
        if count > MOST_SETS:
            raise UncorkError(
                f"{items:,} items have {count:,} sets of {size}: more than {MOST_SETS:,}, so name "
                "fewer items (--among N)"
            )
        sets = list(itertools.combinations(range(items), size))
        names = tuple("+".join(map(str, ids)) for ids in sets)
        return cls(names, tuple(np.array(ids) for ids in sets))


def read_judgements(path: str | Path, items: Items, least: float = 1.0) -> Judgements:
    """The queries of a file and their relevant items: those judged `least` or more.

    TREC: `query 0 item relevance`, separated by white space. BEIR: tabs between query, item and
    score, under a header. JSON lines with `query-id`, `corpus-id` and `score` are read too. Items
    are named by label, or by number where they have none.
    """
    source = Path(path)
    if not source.is_file():
        raise UncorkError(f"{source}: no such file")
    numbers = _Numbers(items)
    judged: dict[str, set[int]] = {}
    asked: dict[str, None] = {}  # queries with something relevant, in order
    said: dict[tuple[str, int], bool] = {}
    missing: list[str] = []
    lines = contradicted = 0
    try:
        for query, item, score in _lines(source):
            lines += 1
            number = numbers(item)
            if number is not None:
                relevant = score >= least
                contradicted += said.setdefault((query, number), relevant) != relevant
            if score < least:
                continue
            asked[query] = None
            if number is None:
                missing.append(item)
            else:
                judged.setdefault(query, set()).add(number)
    except UnicodeDecodeError:
        raise UncorkError(f"{source}: not text in UTF-8, so no relevance judgements") from None
    except UncorkError as error:
        raise UncorkError(f"{source}: {error}") from None
    if not judged:
        some = f"; the first of them names {printable(missing[0])}" if missing else ""
        what = "no judgement names an item of the index" if missing else (
            f"no judgement of {lines:,} is {least:g} or more" if lines else "no judgement is in it"
        )  # fmt: skip
        hint = "" if not missing or items.labels is not None else " (give --labels with the ids)"
        raise UncorkError(f"{source}: {what}{some}{hint}")
    notes = []
    if missing:
        notes.append(
            f"{len(missing):,} judgements name items that are not in the index, and recall is of "
            f"the others: {_listed(missing)}"
        )
    lost = [query for query in asked if query not in judged]
    if lost:
        notes.append(
            f"{len(lost):,} queries have no relevant item in the index and are left out: "
            + _listed(lost)
        )
    if contradicted:
        notes.append(
            f"{contradicted:,} judgements contradict an earlier one of the same query and item: "
            "judged relevant once, it counts as relevant"
        )
    ordered = tuple(np.array(sorted(ids), dtype=np.int64) for ids in judged.values())
    found = Judgements(tuple(judged), ordered, tuple(notes))
    found.check(len(items))
    return found


def _listed(names: Sequence[str]) -> str:
    more = ", …" if len(names) > _MOST_MISSING else ""
    return ", ".join(printable(name) for name in names[:_MOST_MISSING]) + more


class _Numbers:
    """The number behind an item's name. A name that several items share stands for none."""

    def __init__(self, items: Items) -> None:
        self.count = len(items)
        self.by_name: dict[str, int] | None = None
        self.again: dict[str, int] = {}  # the second of its name
        if items.labels is not None:
            self.by_name = {}
            for i, name in enumerate(items.labels):
                if self.by_name.setdefault(name, i) != i:
                    self.again.setdefault(name, i)

    def __call__(self, name: str) -> int | None:
        if self.by_name is not None:
            if name in self.again:
                raise UncorkError(
                    f"a judgement names {printable(name[:80])}, which is the id of several items "
                    f"({self.by_name[name]} and {self.again[name]} are the first): give --labels "
                    "with an id for each"
                )
            return self.by_name.get(name)
        if name.isascii() and name.isdigit() and len(name) < 18 and int(name) < self.count:
            return int(name)
        return None


def _lines(source: Path) -> Iterator[tuple[str, str, float]]:
    """(query, item, score) of each line."""
    first = True
    with source.open(encoding="utf-8-sig") as lines:
        # Never more of a line than is looked at, however long it is.
        for number, line in enumerate(iter(lambda: lines.readline(_LONGEST + 2), ""), 1):
            text = line.strip("\r\n")
            if len(text) > _LONGEST:
                raise UncorkError(
                    f"line {number} has more than {_LONGEST:,} characters: not a judgement"
                )
            if not text.strip():
                continue
            if text.lstrip().startswith("{"):
                yield _json_line(text, number)
                first = False
                continue
            fields = text.split("\t") if "\t" in text else text.split()
            fields = [part.strip() for part in fields]
            if first and fields[-1].lower() in ("score", "relevance", "rel", "label"):
                first = False
                continue  # BEIR's header
            first = False
            if len(fields) == 4:  # TREC's: query, iteration, item, relevance
                fields = [fields[0], fields[2], fields[3]]
            if len(fields) != 3 or not fields[0] or not fields[1]:
                raise UncorkError(
                    f"line {number} has {len(fields)} fields: expected query 0 item relevance "
                    "(TREC), or query, item and score with tabs between (BEIR)"
                )
            yield fields[0], fields[1], _score(fields[2], number)


def _json_line(text: str, number: int) -> tuple[str, str, float]:
    try:
        entry = json.loads(text)
        query, item = str(entry["query-id"]), str(entry["corpus-id"])
        return query, item, _score(str(entry.get("score", 1)), number)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UncorkError(
            f"line {number} is not a judgement: expected query-id, corpus-id and score"
        ) from None


def _score(text: str, number: int) -> float:
    try:
        value = float(text) if text.isascii() and "_" not in text else float("nan")
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise UncorkError(f"line {number}: the relevance {printable(text[:40])!r} is not a number")
    return value


def read_ids(path: str | Path) -> tuple[str, ...]:
    """Ids in order: one a line, a JSON list, or the `_id` of BEIR's JSON lines."""
    source = Path(path)
    if not source.is_file():
        raise UncorkError(f"{source}: no such file")
    try:
        with source.open(encoding="utf-8-sig") as file:
            first = file.read(1)
            file.seek(0)
            if first == "[":
                if source.stat().st_size > _LONGEST_LIST:
                    raise UncorkError(f"{source} is too large for a list of ids")
                listed = json.load(file)
                if not all(isinstance(name, str | int) for name in listed):
                    raise UncorkError(f"{source}: expected a list of ids")
                return tuple(str(name) for name in listed)
            # BEIR's lines hold whole documents: only the ids stay.
            return tuple(_id(line, number, source) for number, line in enumerate(file, 1)
                         if line.strip())  # fmt: skip
    except (ValueError, RecursionError) as error:
        raise UncorkError(f"{source}: not ids, or a damaged file ({error})") from None


def _id(line: str, number: int, source: Path) -> str:
    if not line.lstrip().startswith("{"):
        return line.strip()
    entry = json.loads(line)
    name = entry.get("_id", entry.get("id"))
    if not isinstance(name, str | int):
        raise UncorkError(f"{source}: line {number} has no _id")
    return str(name)


def matched_queries(
    judgements: Judgements, vectors: np.ndarray, names: Sequence[str] | None
) -> np.ndarray:
    """The vector of each judged query: (queries, d). By name, or by number where names are rows."""
    if names is not None and len(names) != len(vectors):
        raise UncorkError(
            f"there are {len(names):,} query ids for {len(vectors):,} query vectors: give one a "
            "vector"
        )
    rows = []
    places = None if names is None else {name: k for k, name in reversed(list(enumerate(names)))}
    counts = collections.Counter(names)
    for query in judgements.queries:
        if counts[query] > 1:
            raise UncorkError(
                f"query {printable(query)} has {counts[query]} vectors: its name stands so often "
                "among the query ids"
            )
        if places is not None:
            at = places.get(query)
        else:
            plain = query.isascii() and query.isdigit() and len(query) < 18
            at = int(query) if plain and int(query) < len(vectors) else None
        if at is None:
            raise UncorkError(
                f"query {printable(query)} has no vector: "
                + ("it is not among the query ids" if names is not None else
                   "give --query-ids with the name of each row of the query vectors")
            )  # fmt: skip
        rows.append(at)
    return np.asarray(vectors[np.array(rows, dtype=np.int64)], dtype=np.float64)
