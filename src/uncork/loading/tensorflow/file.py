"""TensorFlow: the graph behind a signature as an ONNX graph, its variables from the checkpoint."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from uncork.core.errors import UncorkError
from uncork.loading.contents import AmbiguousError, Choice, Contents
from uncork.loading.onnx.file import OnnxModel
from uncork.loading.tensorflow.bundle import Saved, read_bundle
from uncork.loading.tensorflow.flat import VARIABLES, Flat
from uncork.loading.tensorflow.graph import TensorFlowGraph, read_frozen, read_saved_model
from uncork.loading.tensorflow.labels import labels_beside
from uncork.loading.tensorflow.operators import RULES, Translation

_SAVED = "saved_model.pb"
_DEFAULT = "serving_default"
_INIT = "__saved_model_init_op"
_STARTS = (0x0A, 0x12, 0x22)  # the fields of a graph: nodes, functions, versions
_NO_RESULTS = ("Assert", "NoOp", "SaveV2", "Placeholder", "Const", *VARIABLES)
_MOST_OUTPUTS = 64


def looks_like_tensorflow(path: Path, start: bytes, size: int) -> bool:
    """Whether a file is a SavedModel's by its name, or a graph by its name and first byte."""
    if path.name == _SAVED:
        return True
    return path.suffix.lower() == ".pb" and start[:1] != b"" and start[0] in _STARTS


def is_saved_model(names: set[str]) -> bool:
    """Whether a folder with these files is a SavedModel, and nothing else as well."""
    return _SAVED in names and "config.json" not in names


def read_tensorflow(path: Path) -> Contents:
    """The constants and variables of a graph, and the head that its outputs come from."""
    file = path / _SAVED if path.is_dir() else path
    if file.name == _SAVED:
        graph = read_saved_model(file)
        flat = Flat(graph)
        outputs, how = _served(graph)
        variables = _restored(flat, file.parent / "variables")
    else:
        graph = read_frozen(file)
        flat, how = Flat(graph), ""
        outputs, variables = loose_ends(graph), {}
    made = Translation(flat, [flat.reference(name) for name in outputs], variables)
    return contents_of(path, "tensorflow", OnnxModel(file, made.draft), how)


def contents_of(path: Path, name: str, model: OnnxModel, how: str = "") -> Contents:
    """What a graph holds, once it is written down as an ONNX graph; `how` goes with its choice."""
    folder = path if path.is_dir() else path.parent
    return Contents(
        path,
        name,
        model.constants.tensors(),
        lambda: _settled(model.choose(), how),
        lambda weight: _settled(found, how) if (found := model.around(weight)) else None,
        functools.partial(labels_beside, folder),
        model.domain,
    )


def _settled(choice: Choice, how: str) -> Choice:
    """The graph shows what is added to the logits, and that nothing is."""
    notes = (*choice.notes, how) if how else choice.notes
    return replace(choice, bias_settled=True, notes=notes)


def _served(graph: TensorFlowGraph) -> tuple[list[str], str]:
    """The outputs of the signature for serving, and which one was taken of several."""
    every = {name: one for name, one in graph.signatures.items() if name != _INIT and one.outputs}
    if not every:
        raise AmbiguousError(f"{graph.path} has no signature: nothing says what its outputs are")
    name = _DEFAULT if _DEFAULT in every else sorted(every)[0]
    others = sorted(set(every) - {name})
    if others and name != _DEFAULT:
        raise AmbiguousError(
            f"{graph.path} has signatures {', '.join(sorted(every)[:8])}, none of them the default"
        )
    how = f"signature {name!r} of {len(every)} was taken" if others else ""
    outputs = list(dict.fromkeys(every[name].outputs.values()))
    if len(outputs) > _MOST_OUTPUTS:
        raise UncorkError(f"{graph.path}: {name!r} has {len(outputs)} outputs: too many")
    return outputs, how


def loose_ends(graph: TensorFlowGraph) -> list[str]:
    """The nodes of a graph without a signature that no other node takes anything from."""
    taken = {one.split(":")[0].lstrip("^") for node in graph.nodes for one in node.inputs}
    ends = [node.name for node in graph.nodes
            if node.name not in taken and node.op not in _NO_RESULTS]  # fmt: skip
    known = {node.name for node in graph.nodes if node.op in RULES}
    ends = [name for name in ends if name in known] or ends
    if not ends or len(ends) > _MOST_OUTPUTS:
        raise AmbiguousError(f"{graph.path} has {len(ends)} nodes that could be its output")
    return ends


def _restored(flat: Flat, folder: Path) -> Mapping[str, Saved]:
    """The values of each variable, by the name of its node."""
    if not any(node.op in VARIABLES for node in flat.nodes.values()):
        return {}
    saved = read_bundle(folder, "variables")
    found = flat.variables()
    return {name: saved[key] for name, key in found.items() if key in saved}
