"""Head: the last linear map of a model, z = W x + b, exactly as it was stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.reading import Reading
from uncork.core.stored import as_stored, check_values, digest_array, largest, row_blocks
from uncork.domain import Box, Domain


class Head:
    """z = W x + b with one row of W a class; labels name the classes, the domain bounds x.

    `weight` (classes, features) and `bias` (classes,) keep the type they are given in, and may be
    memory-mapped: nothing is copied. Every value must be finite and exact in float64, because a
    verdict is a statement about exactly these numbers. `reading` says which tensors of a source
    they are, None for a head built by hand.
    """

    weight: np.ndarray
    bias: np.ndarray | None
    labels: tuple[str, ...] | None
    domain: Domain
    source: str
    reading: Reading | None

    def __init__(
        self,
        weight: Any,
        bias: Any = None,
        labels: Sequence[str] | None = None,
        domain: Domain | None = None,
        *,
        source: str = "",
        reading: Reading | None = None,
    ) -> None:
        self.weight = as_stored(weight, "weight")
        self.domain = Box(100) if domain is None else domain
        self.source = source
        self.reading = reading
        if self.weight.ndim != 2:
            raise UncorkError(
                f"weight has shape {self.weight.shape}: a head has two dimensions, "
                "classes × features"
            )
        if self.classes < 2:
            raise UncorkError(
                f"weight has shape {self.weight.shape}: a head needs at least two classes "
                "(are classes the columns? then transpose)"
            )
        if self.features < 1:
            raise UncorkError(f"weight has shape {self.weight.shape}: there are no features")
        check_values(self.weight, "weight")
        self.bias = None
        if bias is not None:
            self.bias = as_stored(bias, "bias")
            if self.bias.shape != (self.classes,):
                raise UncorkError(
                    f"bias has shape {self.bias.shape} but there are {self.classes} classes: "
                    f"expected ({self.classes},)"
                )
            check_values(self.bias, "bias")
        if not isinstance(self.domain, Domain):
            raise UncorkError(
                f"domain must be a Domain such as Box or LayerNorm, not {self.domain!r}"
            )
        self.domain.check(self.features)
        if labels is None:
            self.labels = None
        else:
            self.labels = tuple(str(label) for label in labels)
            if len(self.labels) != self.classes:
                raise UncorkError(
                    f"there are {len(self.labels)} labels for {self.classes} classes: "
                    "give one label a class"
                )

    @property
    def classes(self) -> int:
        return int(self.weight.shape[0])

    @property
    def features(self) -> int:
        return int(self.weight.shape[1])

    @property
    def dtype(self) -> str:
        return str(self.weight.dtype)

    def __repr__(self) -> str:
        bias = "with" if self.bias is not None else "no"
        return f"Head({self.classes} × {self.features}, {self.dtype}, {bias} bias, {self.domain})"

    def label(self, class_id: int) -> str:
        """The class's label, or its number where there are no labels."""
        return str(class_id) if self.labels is None else self.labels[class_id]

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows start to stop of W in float64, exactly: (stop − start, d)."""
        return np.asarray(self.weight[start:stop], dtype=np.float64)

    def take(self, classes: np.ndarray) -> np.ndarray:
        """The named rows of W in float64, exactly: (n, d)."""
        return np.asarray(self.weight[classes], dtype=np.float64)

    @cached_property
    def offsets(self) -> np.ndarray:
        """The bias in float64, exactly; zeros where there is none: (C,)."""
        if self.bias is None:
            return np.zeros(self.classes)
        return np.asarray(self.bias, dtype=np.float64)

    @property
    def stored(self) -> np.ndarray | None:
        """The rows as they are stored."""
        return self.weight

    @cached_property
    def largest_weight(self) -> float:
        """The largest magnitude in W, exactly."""
        return max(largest(block) for block in row_blocks(self.weight))

    def blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        """Every row of W in float64, in order, `rows` at a time: (first row, block)."""
        for start in range(0, self.classes, rows):
            yield start, self.rows(start, min(start + rows, self.classes))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of types, shapes and bytes of weight and bias (little-endian, row by row).

        It says nothing of labels, domain or reading: two heads with one fingerprint are the same
        function.
        """
        digest = hashlib.sha256(b"uncork head 1\n")
        for name, array in (("weight", self.weight), ("bias", self.bias)):
            if array is not None:
                digest_array(digest, name, array)
        return "sha256:" + digest.hexdigest()

    def replace(self, **changes: Any) -> Head:
        """A copy with some of weight, bias, labels, domain, source, reading changed."""
        fields = {
            "weight": self.weight, "bias": self.bias, "labels": self.labels,
            "domain": self.domain, "source": self.source, "reading": self.reading,
        }  # fmt: skip
        unknown = set(changes) - set(fields)
        if unknown:
            raise TypeError(f"a head has no {', '.join(sorted(unknown))}")
        if "bias" in changes and self.reading is not None:
            fields["reading"] = self.reading.with_bias(changes["bias"] is not None)
        return Head(**{**fields, **changes})
