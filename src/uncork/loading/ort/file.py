"""ONNX Runtime's `.ort`: read as the ONNX model it was made from, by the same rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from uncork.core.errors import UncorkError
from uncork.loading.contents import Choice, Contents
from uncork.loading.onnx.file import OnnxModel, contents_of

_NOTE = (
    "the graph is as ONNX Runtime optimised it for one kind of machine: constants may be folded "
    "and names differ from those of the .onnx model it was made from"
)


def read_ort_file(path: Path) -> Contents:
    """The constants of the graph, and the head that its outputs come from."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise UncorkError(
            "reading ONNX Runtime's format needs the onnx package: pip install 'uncork[onnx]'"
        ) from None
    from uncork.loading.ort.model import read_ort

    model = read_ort(path)
    if not model.graph.node:
        raise UncorkError(f"{path} holds a model without nodes: damaged")
    contents = contents_of(OnnxModel(path, model), "ort")

    def noted(choice: Choice) -> Choice:
        return replace(choice, notes=(*choice.notes, _NOTE))

    def around(name: str) -> Choice | None:
        found = contents.around(name)
        return None if found is None else noted(found)

    return replace(contents, choose=lambda: noted(contents.choose()), around=around)
