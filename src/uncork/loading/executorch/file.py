"""ExecuTorch: the head of a program, where it was not compiled into a backend's own form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from uncork.core.errors import UncorkError
from uncork.loading.aten.contents import contents_of_program
from uncork.loading.contents import AmbiguousError, Choice, Contents
from uncork.loading.executorch.program import read_pte

_TYPES = "ExecuTorch's kernels compute in the program's own types"
_INSTEAD = "give the exported program (torch.export.save), or lower the model without a partitioner"


def read_executorch(path: Path) -> Contents:
    """The constants of a program, and the head that its outputs come from."""
    lowered = read_pte(path)
    contents = contents_of_program(lowered.program, "executorch", _TYPES)

    def choose() -> Choice:
        try:
            return contents.choose()
        except AmbiguousError as error:
            if lowered.external:
                raise UncorkError(
                    f"{path} keeps its weights in a .ptd file of its own, which is not read: "
                    "lower the model with its constants inside, or give the exported program"
                ) from error
            if lowered.backends:
                names = ", ".join(dict.fromkeys(lowered.backends))
                raise UncorkError(
                    f"{path}: what its outputs come from was compiled for {names}, which keeps "
                    f"weights in a form of its own: {_INSTEAD}"
                ) from error
            raise

    return replace(contents, choose=choose)
