"""A domain as named arrays and a short description: for files, and for its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.domain.protocol import KINDS, Domain

_DEEPEST = 8  # images of images


def array_names() -> str:
    """What the arrays of `members_of` can be called, as a regular expression."""
    names = sorted({name for kind in KINDS.values() for name in kind.arrays})
    return f"(inner_){{0,{_DEEPEST + 1}}}({'|'.join(names)})"


def members_of(domain: Domain) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `domain_from` reads back: a description for JSON, and its arrays by name."""
    storing = Storing({}, "")
    return storing.describe(domain), storing.arrays


def domain_from(
    parts: Any, arrays: Mapping[str, np.ndarray], depth: int = 0, prefix: str = ""
) -> Domain:
    """The domain behind a description and its arrays, everything checked anew. `prefix` stands
    before the arrays' names."""
    if not isinstance(parts, dict) or depth > _DEEPEST:
        raise UncorkError("the description of the domain is damaged")
    kind = parts.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise UncorkError(f"a domain of kind {kind!r} is not known to this uncork")
    return KINDS[kind].from_members(Stored(parts, arrays, prefix, depth))


@dataclass(frozen=True)
class Storing:
    """Takes in the arrays of a domain, and gives the names that its description has for them."""

    arrays: dict[str, np.ndarray]
    prefix: str  # of their names: that of the arrays of inner domains differs

    def array(self, name: str, array: np.ndarray) -> str:
        self.arrays[self.prefix + name] = np.asarray(array, dtype=np.float64)
        return self.prefix + name

    def inner(self, domain: Domain) -> dict[str, Any]:
        return Storing(self.arrays, self.prefix + "inner_").describe(domain)

    def describe(self, domain: Domain) -> dict[str, Any]:
        if getattr(domain, "kind", None) not in KINDS:
            raise UncorkError(f"{type(domain).__name__} is not a domain that can be stored")
        return {"kind": domain.kind, **domain.members(self)}


@dataclass(frozen=True)
class Stored:
    """A description that was read, and the arrays that it names."""

    parts: dict[str, Any]
    arrays: Mapping[str, np.ndarray]
    prefix: str  # stands before the arrays' names
    depth: int  # within how many images

    def number(self, name: str) -> float:
        return float.fromhex(str(self.parts[name]))

    def array(self, name: str) -> np.ndarray | None:
        if name not in self.parts:
            return None
        array = self.arrays[self.prefix + str(self.parts[name])]
        if array.dtype != np.float64 and array.dtype != np.float32:
            raise UncorkError(f"{self.parts[name]} holds {array.dtype} values: expected floats")
        return array

    def inner(self) -> Domain:
        return domain_from(self.parts.get("inner"), self.arrays, self.depth + 1, self.prefix)


def digest_of(domain: Domain) -> str:
    """SHA-256 over the description and the arrays' values as little-endian float64."""
    parts, arrays = members_of(domain)
    digest = hashlib.sha256(b"uncork domain 1\n")
    digest.update(json.dumps(parts, sort_keys=True).encode())
    for name in sorted(arrays):
        # −0 and 0 are the same number: one digest for one domain.
        values = np.ascontiguousarray(arrays[name], dtype="<f8") + 0.0
        digest.update(f"\n{name} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()
