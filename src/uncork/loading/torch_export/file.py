"""torch.export's .pt2: the program as an ONNX graph, and the head found there."""

from __future__ import annotations

from pathlib import Path

from uncork.loading.aten.contents import contents_of_program
from uncork.loading.contents import Contents
from uncork.loading.torch_export.archive import read_program

_TYPES = "torch computes in the program's own types (autocast is not part of a program)"


def read_torch_export(path: Path) -> Contents:
    """The parameters of an exported program, and the head that its outputs come from."""
    return contents_of_program(read_program(path), "torch export", _TYPES)
