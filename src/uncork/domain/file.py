"""The domain file: a domain saved on disk, with where it comes from; read by `--domain @FILE`.

A zip of NumPy arrays (`.npz`), no pickle: `header` is JSON text, the arrays are the domain's own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.own_archive import open_archive, write_archive
from uncork.domain.members import array_names, domain_from, members_of
from uncork.domain.protocol import Domain

VERSION = 1
_KIND = "uncork domain"
_WHAT = "a domain file"


def write_domain(
    path: str | os.PathLike[str], domain: Domain, provenance: Mapping[str, Any] | None = None
) -> None:
    """Write a domain, whole or not at all. `provenance` is anything JSON can hold."""
    parts, arrays = members_of(domain)
    header = {"kind": _KIND, "version": VERSION, "domain": parts,
              "provenance": dict(provenance or {})}  # fmt: skip
    try:
        text = json.dumps(header, ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UncorkError(f"{path}: provenance that JSON cannot hold: {error}") from None
    write_archive(
        path, {name: narrowest(a) for name, a in {"header": np.array(text), **arrays}.items()}
    )


def narrowest(array: np.ndarray) -> np.ndarray:
    """In float32 where that holds every value exactly."""
    if array.dtype != np.float64:
        return array
    with np.errstate(over="ignore", under="ignore"):
        narrow = array.astype(np.float32)
    return narrow if np.array_equal(narrow.astype(np.float64), array) else array


def read_domain(path: str | os.PathLike[str]) -> tuple[Domain, dict[str, Any]]:
    """The domain of a file, and what the file says of where it comes from."""
    with open_archive(path, _WHAT, ("header", array_names())) as archive:
        header = archive.header(_KIND)
        if header.get("version") != VERSION:
            raise UncorkError(
                f"a domain file of version {header.get('version')}; this uncork reads version "
                f"{VERSION}"
            )
        provenance = header.get("provenance")
        domain = domain_from(header.get("domain"), archive)
    return domain, provenance if isinstance(provenance, dict) else {}
