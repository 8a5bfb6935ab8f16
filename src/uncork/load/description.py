"""describe: what a file holds and what of it is the head, without deciding anything."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from uncork.domain import Domain
from uncork.head import Head
from uncork.load.contents import AmbiguousError
from uncork.load.source import Source, find, open_source

_BLOCK_ROWS = 4096
_NEAR = 2.0**-20  # a column that varies less than this, against the most varied one, hardly counts


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the file; `role` is "weight", "bias" or nothing."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str = ""


@dataclass(frozen=True)
class OddRows:
    """Rows and columns worth a look before an audit."""

    zero_rows: tuple[int, ...] = ()
    equal_rows: tuple[tuple[int, ...], ...] = ()  # groups of classes, weights equal
    tied_rows: tuple[tuple[int, ...], ...] = ()  # groups of classes, weights and biases equal
    constant_columns: tuple[int, ...] = ()  # the same for every class: no say in the argmax
    near_constant_columns: tuple[int, ...] = ()


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
    domain_from: str = ""
    notes: tuple[str, ...] = ()
    problem: str = ""
    odd: OddRows = field(default_factory=OddRows)

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
        }
        if head is not None:
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
                "odd": {
                    "zero_rows": list(self.odd.zero_rows),
                    "equal_rows": [list(group) for group in self.odd.equal_rows],
                    "tied_rows": [list(group) for group in self.odd.tied_rows],
                    "constant_columns": list(self.odd.constant_columns),
                    "near_constant_columns": list(self.odd.near_constant_columns),
                },
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
) -> Description:
    """Read a model file as `load` does and say what was found, and what is odd about it.

    Use it to see why a tensor was chosen, or which to name when `load` cannot tell. A file that
    cannot be read, or a name that is not there, raises `UncorkError` as in `load`.
    """
    contents = open_source(source)
    try:
        found = find(
            source, weight=weight, bias=bias, transpose=transpose, labels=labels, domain=domain,
            contents=contents,
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
        labels_from=found.labels_from,
        domain_from="assumed" if domain is None else "given",
        notes=found.notes,
        odd=odd_rows(found.head),
    )


def odd_rows(head: Head) -> OddRows:
    """Zero rows, equal rows and columns that (nearly) never vary, in one pass over the weight."""
    zero: list[int] = []
    groups: dict[bytes, list[int]] = {}
    low = np.full(head.features, np.inf)
    high = np.full(head.features, -np.inf)
    for first, block in head.blocks(_BLOCK_ROWS):
        block = block + 0.0  # −0 and 0 are the same number
        zero += (first + np.flatnonzero(~block.any(axis=1))).tolist()
        low = np.minimum(low, block.min(axis=0))
        high = np.maximum(high, block.max(axis=0))
        for k, row in enumerate(block):
            groups.setdefault(hashlib.sha256(row.tobytes()).digest(), []).append(first + k)
    equal = [tuple(group) for group in groups.values() if len(group) > 1]
    tied: list[tuple[int, ...]] = []
    for group in equal:
        by_bias: dict[float, list[int]] = {}
        for k in group:
            by_bias.setdefault(float(head.offsets[k]), []).append(k)
        tied += [tuple(same) for same in by_bias.values() if len(same) > 1]
    spread = high - low
    widest = float(spread.max())
    near = (spread > 0) & (spread < _NEAR * widest)
    return OddRows(
        tuple(zero), tuple(equal), tuple(tied),
        tuple(np.flatnonzero(spread == 0).tolist()), tuple(np.flatnonzero(near).tolist()),
    )  # fmt: skip
