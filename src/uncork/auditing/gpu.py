"""Whether torch sees a GPU, told without importing torch where it cannot see one.

Importing torch takes seconds, longer than most audits, and most machines have no GPU.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from pathlib import Path


def gpu_available() -> bool:
    if "torch" not in sys.modules and not _possible():
        return False
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def _possible() -> bool:
    """False only where torch has no GPU for certain: it is not installed, was built for the CPU
    alone, or for CUDA where no driver is installed."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return spec is not None
    try:
        version = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return True
    built_for = dict(re.findall(r"^(cuda|hip)\b[^=\n]*=\s*(\S+)", version, re.MULTILINE))
    if built_for == {"cuda": "None", "hip": "None"}:
        return False
    if built_for.get("hip") == "None" and sys.platform == "linux":
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return False
    return True
