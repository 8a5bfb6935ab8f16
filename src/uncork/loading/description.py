"""describe: what a file holds and what of it is the head, without deciding anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from uncork.core.head import Head
from uncork.core.items import Items
from uncork.core.reading import json_keys
from uncork.domain import Domain
from uncork.loading.contents import UNSAID, AmbiguousError, Contents, FoundDomain, Vocabulary
from uncork.loading.odd_rows import OddRows, odd_rows
from uncork.loading.source import Source, find, open_source
from uncork.loading.vectors.items import find_items


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the file; `role` is "weight", "bias" or nothing."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str = ""


@dataclass(frozen=True)
class Description:
    """What `uncork show` prints. `head` is None where the file does not say which tensor it is,
    and `problem` then tells what to do."""

    source: str
    format: str
    tensors: tuple[TensorInfo, ...]
    head: Head | None = None
    weight: str | None = None
    bias: str | None = None
    why: str = ""
    labels_from: str = ""
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    domain_from: str = ""
    shown_domain: FoundDomain | None = None  # what the source shows, whether or not it is used
    notes: tuple[str, ...] = ()
    problem: str = ""
    odd: OddRows = field(default_factory=OddRows)
    items: Items | None = None  # instead of a head, where an index compares by another metric
    metric: str = "inner"  # "" where the index does not say

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        head = self.head
        found: dict[str, Any] = {
            "source": self.source,
            "format": self.format,
            "tensors": [
                {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "role": t.role}
                for t in self.tensors
            ],
            "problem": self.problem,
            "notes": list(self.notes),
            "metric": self.metric or None,
        }
        if self.items is not None:
            found |= {
                "items": len(self.items),
                "features": self.items.features,
                "dtype": self.items.dtype,
                "fingerprint": self.items.fingerprint if self.metric else None,
                "labels": None if self.items.labels is None else len(self.items.labels),
                **json_keys(self.items.reading),
            }
        if head is not None:
            said = json_keys(head.reading)
            found |= {
                "weight": self.weight,
                "bias": self.bias,
                "why": self.why,
                "classes": head.classes,
                "features": head.features,
                "dtype": head.dtype,
                "fingerprint": head.fingerprint,
                "domain": str(head.domain),
                "domain_from": self.domain_from,
                "labels": None if head.labels is None else len(head.labels),
                "labels_from": self.labels_from,
                "labels_notes": list(self.vocabulary.notes),
                **{name: said[name] for name in ("doubts", "folded", "preceded_by")},
                "domain_shown": None
                if self.shown_domain is None
                else {
                    "domain": str(self.shown_domain.domain),
                    "why": self.shown_domain.why,
                    "assumed": self.shown_domain.assumed,
                },
                "odd": self.odd.as_dict(),
            }
        return found


def describe(
    source: Source,
    *,
    weight: str | None = None,
    bias: str | None = None,
    transpose: bool = False,
    labels: Source | Sequence[str] | None = None,
    domain: Domain | str | None = None,
    base: Source | None = None,
    metric: str | None = None,
) -> Description:
    """Read a model file as `load` does and say what was found, and what is odd about it.

    Use it to see why a tensor was chosen, or which to name when `load` cannot tell. A file that
    cannot be read, or a name that is not there, raises `UncorkError` as in `load`.
    """
    contents = open_source(source, base)
    try:
        if contents.metric not in (None, "inner") and (metric or contents.metric) != "inner":
            return _of_items(contents, metric, weight, labels, transpose)
        found = find(
            source, weight=weight, bias=bias, transpose=transpose, labels=labels, domain=domain,
            metric=metric, contents=contents,
        )  # fmt: skip
    except AmbiguousError as error:
        tensors = tuple(TensorInfo(t.name, t.shape, t.dtype) for t in contents.tensors.values())
        return Description(str(contents.path), contents.format, tensors, problem=str(error))
    roles = {found.bias_name: "bias", found.weight_name: "weight"}
    return Description(
        source=str(contents.path),
        format=contents.format,
        tensors=tuple(
            TensorInfo(t.name, t.shape, t.dtype, roles.get(t.name, ""))
            for t in contents.tensors.values()
        ),
        head=found.head,
        weight=found.weight_name,
        bias=found.bias_name,
        why=found.why,
        labels_from=found.vocabulary.source if found.head.labels else "",
        vocabulary=found.vocabulary,
        domain_from=found.domain_from,
        shown_domain=found.shown_domain,
        notes=found.notes,
        odd=odd_rows(found.head, found.vocabulary),
    )


def _of_items(
    contents: Contents,
    metric: str | None,
    vectors: str | None,
    labels: Source | Sequence[str] | None,
    transpose: bool,
) -> Description:
    """An index that compares by another metric than inner products, or does not say by which."""
    unsaid = contents.metric == UNSAID and metric is None
    # What its rows are is the same under every metric.
    found = find_items(
        contents, metric="euclidean" if unsaid else metric, vectors=vectors, labels=labels,
        transpose=transpose,
    )  # fmt: skip
    name = found.items.reading.weight if found.items.reading is not None else ""
    return Description(
        source=str(contents.path),
        format=contents.format,
        tensors=tuple(
            TensorInfo(t.name, t.shape, t.dtype, "vectors" if t.name == name else "")
            for t in contents.tensors.values()
        ),
        items=found.items,
        metric="" if unsaid else found.items.metric,
        weight=name,
        labels_from=found.vocabulary.source if found.items.labels else "",
        vocabulary=found.vocabulary,
    )
