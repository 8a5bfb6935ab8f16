"""Writing .safetensors: a new header, changed tensors replaced, the others' bytes copied."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np

from uncork.loading.source import Found
from uncork.save.tensors import replaced_tensors

_NAMES = {
    np.dtype(np.float64): "F64", np.dtype(np.float32): "F32", np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16", np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(ml_dtypes.float8_e5m2): "F8_E5M2",
}  # fmt: skip
_CHUNK = 16 << 20


def write_safetensors(found: Found, weight: np.ndarray, bias: np.ndarray | None, out: Path) -> None:
    """Every tensor in its order, and the file's own metadata; a new bias goes last."""
    changed = replaced_tensors(found, weight, bias)
    with found.contents.path.open("rb") as old, out.open("wb") as new:
        (length,) = struct.unpack("<Q", old.read(8))
        header = json.loads(old.read(length))
        begin = 8 + length
        entries = sorted(
            ((name, entry) for name, entry in header.items() if name != "__metadata__"),
            key=lambda item: item[1]["data_offsets"][0],
        )
        layout: dict[str, dict[str, object]] = {}
        if "__metadata__" in header:
            layout["__metadata__"] = header["__metadata__"]
        at = 0
        for name, entry in entries:
            first, last = entry["data_offsets"]
            layout[name] = {**entry, "data_offsets": [at, at + last - first]}
            at += last - first
        known = {name for name, _ in entries}
        added = {name: array for name, array in changed.items() if name not in known}
        for name, array in added.items():
            layout[name] = {
                "dtype": _NAMES[array.dtype], "shape": list(array.shape),
                "data_offsets": [at, at + array.nbytes],
            }  # fmt: skip
            at += array.nbytes
        text = json.dumps(layout, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # the format aligns its data
        new.write(struct.pack("<Q", len(text)) + text)
        for name, entry in entries:
            if name in changed:
                new.write(changed[name].tobytes())
                continue
            first, last = entry["data_offsets"]
            old.seek(begin + first)
            left = last - first
            while left:
                block = old.read(min(left, _CHUNK))
                if not block:
                    raise OSError(f"{found.contents.path} ends inside {name}")
                new.write(block)
                left -= len(block)
        for array in added.values():
            new.write(array.tobytes())
