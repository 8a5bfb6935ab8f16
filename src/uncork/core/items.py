"""Items: the vectors of an index as it stores them, and how it compares a query with them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.reading import Reading
from uncork.core.stored import as_stored, check_values, digest_array
from uncork.domain import Domain

# Each metric, and what it is called in a sentence.
METRICS = {"inner": "inner product", "cosine": "cosine", "euclidean": "Euclidean distance"}


def check_metric(metric: str) -> str:
    """The metric, or an error that names those there are."""
    if metric not in METRICS:
        raise UncorkError(f"metric {metric!r} is not one of {', '.join(METRICS)}")
    return metric


def not_a_head(source: str, metric: str) -> str:
    """Why items under this metric are not a head, and what to do."""
    return (
        f"{source or 'these items'}: items compared by {METRICS[metric]} are not a head, whose "
        "scores are inner products: uncork audit says which can be first; --metric inner "
        '(metric="inner") asks about the inner products of the same vectors'
    )


@dataclass(frozen=True, eq=False)
class Items:
    """Vectors w_i (n, d), one a row, of which a query x brings the one with the highest score
    to the top:

        inner       w_i·x + b_i
        cosine      w_i·x / (‖w_i‖ ‖x‖)
        euclidean   −‖w_i − x‖

    `vectors` and `bias` keep the type they are stored in and may be memory-mapped; every value is
    finite and exact in float64. Only scores by inner product may have a `bias` (n,). `labels` are
    ids or titles. Only items compared by inner product are a head (`head`): a proof about the
    inner products of an index that uses another metric would be about another index.
    """

    vectors: np.ndarray
    metric: str = "inner"
    labels: tuple[str, ...] | None = None
    bias: np.ndarray | None = None
    source: str = ""
    reading: Reading | None = None

    def __post_init__(self) -> None:
        check_metric(self.metric)
        vectors = as_stored(self.vectors, "vectors")
        if vectors.ndim != 2 or not vectors.shape[0] or not vectors.shape[1]:
            raise UncorkError(
                f"vectors has shape {vectors.shape}: expected items × features, with at least one "
                "of each"
            )
        check_values(vectors, "vectors")
        object.__setattr__(self, "vectors", vectors)
        if self.bias is not None:
            self._set_bias(as_stored(self.bias, "bias"))
        if self.labels is not None:
            object.__setattr__(self, "labels", tuple(str(label) for label in self.labels))
            if len(self.labels) != len(self):
                raise UncorkError(
                    f"there are {len(self.labels)} labels for {len(self)} items: give one an item"
                )

    def _set_bias(self, bias: np.ndarray) -> None:
        if self.metric != "inner":
            raise UncorkError(f"items compared by {self.metric_in_words} have no bias")
        if bias.shape != (len(self),):
            raise UncorkError(
                f"bias has shape {bias.shape} but there are {len(self)} items: "
                f"expected ({len(self)},)"
            )
        check_values(bias, "bias")
        object.__setattr__(self, "bias", bias)

    def __len__(self) -> int:
        return int(self.vectors.shape[0])

    def __repr__(self) -> str:
        return f"Items({len(self)} × {self.features}, {self.dtype}, {self.metric_in_words})"

    @property
    def features(self) -> int:
        return int(self.vectors.shape[1])

    @property
    def dtype(self) -> str:
        return str(self.vectors.dtype)

    @property
    def metric_in_words(self) -> str:
        return METRICS[self.metric]

    def label(self, item: int) -> str:
        """The item's label, or its number where there are no labels."""
        return str(item) if self.labels is None else self.labels[item]

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Vectors start to stop in float64, exactly: (stop − start, d)."""
        return np.asarray(self.vectors[start:stop], dtype=np.float64)

    def take(self, items: np.ndarray) -> np.ndarray:
        """The named vectors in float64, exactly: (n, d)."""
        return np.asarray(self.vectors[items], dtype=np.float64)

    def blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        """Every vector in float64, in order, `rows` at a time: (first item, block)."""
        for start in range(0, len(self), rows):
            yield start, self.rows(start, min(start + rows, len(self)))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the metric and of types, shapes and bytes of vectors and bias.

        Of inner products it is the head's, which is the same function; under another metric the
        same vectors have another one. It says nothing of labels or reading.
        """
        if self.metric == "inner":
            begin = b"uncork head 1\n"
        else:
            begin = f"uncork items 1 {self.metric}\n".encode()
        digest = hashlib.sha256(begin)
        for name, array in (("weight", self.vectors), ("bias", self.bias)):
            if array is not None:
                digest_array(digest, name, array)
        return "sha256:" + digest.hexdigest()

    def head(self, domain: Domain | None = None) -> Head:
        """The head whose classes are these items, with queries in the domain; nothing is copied.

        Only for inner products: under another metric this raises `UncorkError`.
        """
        if self.metric != "inner":
            raise UncorkError(not_a_head(self.source, self.metric))
        return Head(
            self.vectors, self.bias, self.labels, domain, source=self.source, reading=self.reading
        )

    def replace(self, **changes: Any) -> Items:
        """A copy with some of the fields changed."""
        return replace(self, **changes)
