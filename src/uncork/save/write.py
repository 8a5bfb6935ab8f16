"""write_head: picks the writer of the file's format; the result appears whole or not at all."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.source import Found

#: Formats that can be written, and the module of each writer. Every writer is one function,
#: write(found, weight, bias, out): `weight` (classes, features) and `bias` (classes,) or None.
FORMATS = {
    "npz": "numpy_files:write_npz",
    "npy": "numpy_files:write_npy",
    "safetensors": "safetensors_file:write_safetensors",
    "onnx": "onnx_file:write_onnx",
}
_FAMILY = {"marian npz": "npz", "nematus npz": "npz"}  # written as what they are
_SUFFIXES = {name: f".{name}" for name in FORMATS}

Writer = Callable[[Found, np.ndarray, np.ndarray | None, Path], None]


def check_format(found: Found, out: str | os.PathLike[str], *, needs_bias: bool) -> str:
    """The format `write_head` would write to `out`; raises where it could not."""
    path, kind = Path(out), _kind(found)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return "npz"
    if _in_codes(found) and not needs_bias:
        raise UncorkError(
            f"{found.contents.path} stores {found.weight_name} as codes, which cannot hold a new "
            "weight: name an output that ends in .npz to get the head alone"
        )
    if kind not in FORMATS:
        raise UncorkError(
            f"{found.contents.path} is of format {kind}, which is not written: name an output that "
            "ends in .npz to get the head alone"
        )
    if suffix != _SUFFIXES[kind]:
        alone = "" if kind == "npz" else ", or .npz (the head alone)"
        raise UncorkError(
            f"{path}: from a file of format {kind}, write {_SUFFIXES[kind]} (all of it, with the "
            f"new head){alone}"
        )
    if kind == "npy" and needs_bias:
        raise UncorkError(f"{path}: an .npy file holds one array, and there is a bias: write .npz")
    return kind


def write_head(
    found: Found, weight: np.ndarray, bias: np.ndarray | None, out: str | os.PathLike[str]
) -> None:
    """A copy of the file behind `found` with another head: weight (C, d) and bias (C,) or None.

    The format is the source's own; whatever the source (an .npz of codes too), an `out` that ends
    in .npz holds the head alone. A bias where the file had none is added; where it had one and
    there is none now, zeros are stored. Values are rounded to the type that the file stores them
    in: read the result back before you make claims about it. `out` is replaced only once all is
    written.
    """
    path = Path(out)
    kind = check_format(found, path, needs_bias=bias is not None)
    if weight.shape != found.head.weight.shape:
        raise UncorkError(
            f"the new weight has shape {weight.shape}, the head of {found.contents.path} "
            f"{found.head.weight.shape}: they must agree"
        )
    alone = _kind(found) != kind or (kind == "npz" and _in_codes(found))
    name = "numpy_files:write_plain" if alone else FORMATS[kind]
    module, function = name.split(":")
    writer: Writer = getattr(importlib.import_module(f"uncork.save.{module}"), function)
    try:
        handle, unfinished = tempfile.mkstemp(path.suffix, f".{path.stem}-", path.parent)
        os.close(handle)
    except OSError as error:
        raise UncorkError(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        writer(found, weight, bias, Path(unfinished))
        os.chmod(unfinished, 0o666 & ~_umask())
        os.replace(unfinished, path)
    except OSError as error:
        raise UncorkError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        Path(unfinished).unlink(missing_ok=True)


def _kind(found: Found) -> str:
    return _FAMILY.get(found.contents.format, found.contents.format)


def _in_codes(found: Found) -> bool:
    """Whether the file holds the weight as codes, from which it was made when it was read."""
    stored = found.contents.tensors.get(found.weight_name)
    return stored is not None and bool(stored.folded)


def rounded(values: np.ndarray, dtype: np.dtype, what: str) -> np.ndarray:
    """The values in the type that the file stores, refused where they do not fit into it."""
    if dtype.kind in "iub":
        raise UncorkError(
            f"{what} is stored as {dtype}, which cannot hold a new head: write .npz instead "
            "(from .npy or .npz: store the weights as float32 first)"
        )
    with np.errstate(over="ignore"):
        result = np.asarray(values, dtype=np.float64).astype(dtype)
    if not np.isfinite(result.astype(np.float64)).all():
        raise UncorkError(f"{what} does not fit into {dtype}: values overflow; write .npz instead")
    return result


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
