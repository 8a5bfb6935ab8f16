"""What the readers of vectors have in common: how what they found becomes `Contents`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.items import METRICS
from uncork.core.links import Links
from uncork.loading.contents import (
    UNSAID,
    AmbiguousError,
    Choice,
    Contents,
    Tensor,
    Vocabulary,
    listing,
)

APPROXIMATE = (
    "the search of such an index is approximate: verdicts are about the scores of all items, and a "
    "search that misses better ones may return an item that no exact search would"
)
_GROWN = 64 << 20  # decoded bytes up to which codes may grow by any factor
_MOST_GROWTH = 4096  # bytes that one byte of codes stands for, at most, in larger files
NAME = "vectors"


@dataclass(frozen=True)
class Vectors:
    """The vectors of a source: shape and type by the header, read when they are asked for."""

    shape: tuple[int, int]
    dtype: str
    read: Callable[[], np.ndarray]
    metric: str | None
    why: str
    labels: Callable[[], Vocabulary] = Vocabulary
    folded: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    links: Callable[[], Links] | None = None


def vectors_of(path: Path, kind: str, found: Vectors) -> Contents:
    """Contents of a source that holds the vectors of items and nothing else."""
    tensor = Tensor(NAME, found.shape, found.dtype, found.read, found.folded, found.doubts)

    def choose() -> Choice:
        return Choice(found.read(), None, NAME, None, found.why, found.notes, bias_settled=True)

    def vocabulary(rows: int) -> Vocabulary:
        named = found.labels()
        if named.labels is not None and len(named.labels) != rows:
            return Vocabulary(source=f"{len(named.labels)} ids for {rows} vectors")
        return named

    return Contents(
        path, kind, {NAME: tensor}, choose, vocabulary=vocabulary, metric=found.metric,
        of_items=True, links=found.links,
    )  # fmt: skip


def named_vectors(
    path: Path,
    kind: str,
    matrices: Mapping[str, Tensor],
    labels: Callable[[int], Vocabulary],
    metrics: Mapping[str, str] | None = None,
) -> Contents:
    """Contents of a source that has vectors under several names, of which one is to be taken.

    `metrics` is how each is compared, where the source says it. Where they differ, the metric has
    to be given: it must be that of what is chosen.
    """

    def choose() -> Choice:
        if len(matrices) != 1:
            raise AmbiguousError(
                f"{path} holds {len(matrices)} kinds of vectors: {listing(matrices.values())}: "
                "name one with --weight"
            )
        return of(next(iter(matrices)), "the only vectors")

    def of(name: str, why: str = "vectors of that name") -> Choice:
        notes = (
            () if metrics is None else (f"the source compares these by {METRICS[metrics[name]]}",)
        )
        return Choice(matrices[name].read(), None, name, None, why, notes, bias_settled=True)

    metric = None
    if metrics is not None:
        metric = next(iter(metrics.values())) if len(set(metrics.values())) == 1 else UNSAID
    return Contents(path, kind, matrices, choose, of, labels, metric=metric, of_items=True)


def id_labels(ids: np.ndarray, source: str) -> Vocabulary:
    """Ids as labels; none where they only count the rows."""
    if np.array_equal(ids, np.arange(len(ids))):
        return Vocabulary()
    return Vocabulary(tuple(map(str, ids.tolist())), source)


def check_growth(path: Path, values: int, code_bytes: int, what: str) -> None:
    """Refuse codes that decode into far more than any index makes of them."""
    grown = 4 * values
    if grown > _GROWN and grown > _MOST_GROWTH * code_bytes:
        raise UncorkError(
            f"{path}: {what} would grow {grown // max(1, code_bytes):,}-fold to {grown:,} bytes, "
            "which no index does: damaged"
        )
