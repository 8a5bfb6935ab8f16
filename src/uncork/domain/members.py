"""A domain as named arrays and a short description: for files, and for its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.domain.sets import Ball, Box, Domain, Unbounded

_DEEPEST = 8  # images of images
# What the arrays of `members_of` can be called, as a regular expression.
DOMAIN_NAMES = f"(inner_){{0,{_DEEPEST + 1}}}(lower|upper|gain|offset|matrix)"


def members_of(domain: Domain) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `domain_from` reads back: a description for JSON, and its arrays by name."""
    arrays: dict[str, np.ndarray] = {}
    return _describe(domain, arrays, ""), arrays


def _describe(domain: Domain, arrays: dict[str, np.ndarray], prefix: str) -> dict[str, Any]:
    from uncork.domain.images import Image, LayerNorm, RMSNorm

    def keep(name: str, array: np.ndarray) -> str:
        arrays[prefix + name] = np.asarray(array, dtype=np.float64)
        return prefix + name

    if isinstance(domain, Unbounded):
        return {"kind": "unbounded"}
    if isinstance(domain, Ball):
        return {"kind": "ball", "radius": float(domain.radius).hex()}
    if isinstance(domain, Box):
        return {"kind": "box", "lower": keep("lower", domain.lower),
                "upper": keep("upper", domain.upper)}  # fmt: skip
    if isinstance(domain, (LayerNorm, RMSNorm, Image)):
        parts: dict[str, Any] = {"kind": domain.kind}
        if not isinstance(domain, Image):
            parts["features"] = domain.features
        for name, array in domain._arrays().items():
            if array is not None:
                parts[name] = keep(name, array)
        if isinstance(domain, Image):
            parts["inner"] = _describe(domain.inner, arrays, prefix + "inner_")
        return parts
    raise UncorkError(f"{type(domain).__name__} is not a domain that can be stored")


def domain_from(
    parts: Any, arrays: Mapping[str, np.ndarray], depth: int = 0, prefix: str = ""
) -> Domain:
    """The domain behind a description and its arrays, everything checked anew. `prefix` stands
    before the arrays' names."""
    from uncork.domain.images import Image, LayerNorm, RMSNorm

    if not isinstance(parts, dict) or depth > _DEEPEST:
        raise UncorkError("the description of the domain is damaged")

    def array(name: str) -> np.ndarray | None:
        if name not in parts:
            return None
        stored = arrays[prefix + str(parts[name])]
        if stored.dtype != np.float64 and stored.dtype != np.float32:
            raise UncorkError(f"{parts[name]} holds {stored.dtype} values: expected floats")
        return stored

    kind = parts.get("kind")
    if kind == "unbounded":
        return Unbounded()
    if kind == "ball":
        return Ball(float.fromhex(str(parts["radius"])))
    if kind == "box":
        lower, upper = array("lower"), array("upper")
        if lower is None or upper is None:
            raise UncorkError("a box needs its lower and its upper bounds")
        return Box(lower, upper)
    if kind == "layernorm":
        return LayerNorm(array("gain"), array("offset"), features=parts.get("features"))
    if kind == "rmsnorm":
        return RMSNorm(array("gain"), features=parts.get("features"))
    if kind == "image":
        inner = domain_from(parts.get("inner"), arrays, depth + 1, prefix)
        return Image(inner, array("matrix"), array("offset"))
    raise UncorkError(f"a domain of kind {kind!r} is not known to this uncork")


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
