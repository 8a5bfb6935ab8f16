"""The domain file: a domain saved on disk, with where it comes from; read by `--domain @FILE`.

A zip of NumPy arrays (`.npz`), no pickle: `header` is JSON text, the arrays are the domain's own.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from uncork.domain.members import domain_from, members_of
from uncork.domain.sets import Domain
from uncork.errors import UncorkError
from uncork.whole_file import whole_file

VERSION = 1
_KIND = "uncork domain"
_LARGEST = 2 << 30  # bytes of one array: a linear layer of 16,384 × 16,384 in float64
_LARGEST_HEADER = 16 << 20


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
    with (
        whole_file(path) as target,
        target.open("wb") as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
    ):
        for name, array in {"header": np.array(text), **arrays}.items():
            info = zipfile.ZipInfo(name + ".npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, narrowest(array), allow_pickle=False)


def narrowest(array: np.ndarray) -> np.ndarray:
    """In float32 where that holds every value exactly."""
    if array.dtype != np.float64:
        return array
    with np.errstate(over="ignore", under="ignore"):
        narrow = array.astype(np.float32)
    return narrow if np.array_equal(narrow.astype(np.float64), array) else array


def read_domain(path: str | os.PathLike[str]) -> tuple[Domain, dict[str, Any]]:
    """The domain of a file, and what the file says of where it comes from."""
    source = Path(path)
    if not source.is_file():
        raise UncorkError(f"{source}: no such file")
    try:
        with source.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return _read(archive)
    except UncorkError as error:
        raise UncorkError(f"{source}: {error}") from None
    except Exception as error:  # whatever a damaged file makes NumPy or zipfile stumble over
        why = " ".join(str(error).split())
        raise UncorkError(f"{source}: not a domain file, or a damaged one ({why})") from None


def _read(archive: Any) -> tuple[Domain, dict[str, Any]]:
    if not hasattr(archive, "zip"):
        raise UncorkError("not a domain file")
    for info in archive.zip.infolist():
        _check_size(archive.zip, info)
    if "header" not in archive:
        raise UncorkError("not a domain file")
    header = json.loads(str(archive["header"]))
    if not isinstance(header, dict) or header.get("kind") != _KIND:
        raise UncorkError("not a domain file")
    if header.get("version") != VERSION:
        raise UncorkError(
            f"a domain file of version {header.get('version')}; this uncork reads version {VERSION}"
        )
    provenance = header.get("provenance")
    domain = domain_from(header.get("domain"), archive)
    return domain, provenance if isinstance(provenance, dict) else {}


def _check_size(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """Refuse an array that is too large, or larger than the file says it is, before it is made."""
    limit = _LARGEST_HEADER if info.filename == "header.npy" else _LARGEST
    with archive.open(info) as member:
        if np.lib.format.read_magic(member) != (1, 0):
            raise UncorkError(f"{info.filename} is damaged")
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
    size = math.prod(shape) * dtype.itemsize
    if size > limit:
        raise UncorkError(f"{info.filename} would take {size:,} bytes")
    if size > info.file_size:
        raise UncorkError(f"{info.filename} is damaged: it announces more than there is")
