"""load_items: from a file to the vectors of an index, under the metric that it compares them by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from uncork.core.errors import UncorkError
from uncork.core.items import METRICS, Items
from uncork.core.reading import Reading
from uncork.core.words import ITEMS
from uncork.loading.contents import Contents, Vocabulary
from uncork.loading.source import (
    Source,
    assumed_metric,
    choose_rows,
    labelled,
    open_source,
    used_metric,
)


def load_items(
    source: Source,
    *,
    metric: str | None = None,
    vectors: str | None = None,
    labels: Source | Sequence[str] | None = None,
    transpose: bool = False,
) -> Items:
    """Read the vectors of an index, a file of vectors or a recommender's factors.

    `metric` is "inner", "cosine" or "euclidean"; by default what the index says, and inner products
    for plain arrays. An index whose file does not say (hnswlib) needs it. `vectors` names the
    array or column to take where there are several, `transpose` says that the items are its
    columns. `labels` is a file with one label a line, a JSON file, or the labels themselves; by
    default the ids that the index itself keeps. Values keep the type they are stored in, and are
    memory-mapped where the format allows it. Files are never unpickled. Bad input raises
    `UncorkError`.
    """
    return find_items(
        open_source(source), metric=metric, vectors=vectors, labels=labels, transpose=transpose
    ).items


@dataclass(frozen=True)
class FoundItems:
    """Items, and what their source says beside them."""

    items: Items
    contents: Contents
    vocabulary: Vocabulary


def find_items(
    contents: Contents,
    *,
    metric: str | None = None,
    vectors: str | None = None,
    labels: Source | Sequence[str] | None = None,
    transpose: bool = False,
) -> FoundItems:
    """As `load_items`, from a source that has been opened."""
    used, doubts = used_metric(contents, metric)
    choice = choose_rows(contents, vectors, None, transpose, False, labels)
    if choice.bias is not None and used != "inner":
        raise UncorkError(
            f"{contents.path} adds a bias to each item ({choice.bias_name or 'without a name'}), "
            f"which belongs to inner products and not to {METRICS[used]}: leave out --metric"
        )
    vocabulary = labelled(contents, labels, choice.weight.shape[0])
    reading = Reading(
        weight=choice.weight_name,
        bias=choice.bias_name or (None if choice.bias is None else ""),
        why=choice.why,
        folded=choice.folded,
        labels_from=vocabulary.source if vocabulary.labels is not None else "",
        doubts=(*doubts, *choice.doubts),
        notes=(*choice.notes, *assumed_metric(contents, metric), *vocabulary.notes),
        words=ITEMS.name,
    )
    try:
        items = Items(
            choice.weight, used, vocabulary.labels, choice.bias, str(contents.path), reading
        )
    except UncorkError as error:
        raise UncorkError(f"{contents.path} (vectors {choice.weight_name!r}): {error}") from error
    return FoundItems(items, contents, vocabulary)
