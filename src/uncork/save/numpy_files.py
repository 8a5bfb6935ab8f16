"""Writing .npy and .npz: changed arrays replaced, the other members copied as they are."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import numpy as np

from uncork.loading.source import Found
from uncork.save.tensors import replaced_tensors
from uncork.save.write import rounded

_TYPES = {"float16", "float32", "float64"}  # what .npy can name


def write_npy(found: Found, weight: np.ndarray, bias: np.ndarray | None, out: Path) -> None:
    """The one array."""
    (array,) = replaced_tensors(found, weight, None).values()
    with out.open("wb") as file:
        np.lib.format.write_array(file, array, allow_pickle=False)


def write_npz(found: Found, weight: np.ndarray, bias: np.ndarray | None, out: Path) -> None:
    """Every member of the archive, in its order."""
    changed = replaced_tensors(found, weight, bias)
    with zipfile.ZipFile(found.contents.path) as old, zipfile.ZipFile(out, "w") as new:
        for member in old.infolist():
            array = changed.pop(member.filename.removesuffix(".npy"), None)
            entry = zipfile.ZipInfo(member.filename, member.date_time)
            entry.compress_type = member.compress_type
            entry.external_attr = member.external_attr
            with new.open(entry, "w", force_zip64=True) as target:
                if array is None:
                    with old.open(member) as source:
                        shutil.copyfileobj(source, target, 1 << 20)
                else:
                    np.lib.format.write_array(target, array, allow_pickle=False)
        for name, array in changed.items():
            with new.open(f"{name}.npy", "w", force_zip64=True) as target:
                np.lib.format.write_array(target, array, allow_pickle=False)


def write_plain(found: Found, weight: np.ndarray, bias: np.ndarray | None, out: Path) -> None:
    """The head alone, from a file of whatever format: `weight`, and `bias` if there is one."""
    stored = found.head.dtype
    # bfloat16 and float8 have no name in .npy files; every value of theirs is exact in float32.
    dtype = np.dtype(stored if stored in _TYPES else np.float32)
    arrays = {"weight": rounded(weight, dtype, "weight")}
    if bias is not None:
        arrays["bias"] = rounded(bias, dtype, "bias")
    with out.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
