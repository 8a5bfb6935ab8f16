"""Core ML: the neural network or ML Program as an ONNX graph, its head, and the labels that kraken
or Core ML keep in the file."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path, PurePosixPath

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.aten.contents import contents_of_program
from uncork.loading.contents import (
    Choice,
    Contents,
    FoundDomain,
    UnknownDomain,
    Vocabulary,
    require_file,
)
from uncork.loading.coreml.network import Network, read_model
from uncork.loading.coreml.operators import Translation
from uncork.loading.coreml.program import MLProgram, read_compiled
from uncork.loading.onnx.file import OnnxModel
from uncork.loading.vocabulary.labels import BLANK

_FLOATS = "Core ML computes in float32 (on a GPU or the Neural Engine it uses float16)"
_TYPES = (
    "Core ML computes in the program's own types (on a GPU or the Neural Engine it may use float16)"
)
_MOST_MANIFEST = 1 << 20
_SHOWN = 3  # characters that a class is part of


def is_package(names: set[str]) -> bool:
    """Whether a folder with these files is an .mlpackage."""
    return {"Manifest.json", "Data"} <= names


def read_package(path: Path) -> Contents:
    """The model that the manifest of an .mlpackage names."""
    manifest = path / "Manifest.json"
    try:
        if manifest.stat().st_size > _MOST_MANIFEST:
            raise ValueError("too long")
        said = json.loads(manifest.read_bytes())
        inside = said["itemInfoEntries"][said["rootModelIdentifier"]]["path"]
        parts = PurePosixPath(inside)
        if parts.is_absolute() or ".." in parts.parts:
            raise ValueError("its model lies outside")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UncorkError(f"{path} has no manifest that names its model: damaged") from error
    model = path / "Data" / parts
    require_file(model)
    return replace(read_coreml(model), path=path)


def is_compiled(names: set[str]) -> bool:
    """Whether a folder with these files is a compiled ML Program, an .mlmodelc."""
    return {"model.mil", "coremldata.bin"} <= names


def read_compiled_model(path: Path) -> Contents:
    """The program of an .mlmodelc, by its folder or by the text in it."""
    text = path / "model.mil" if path.is_dir() else path
    require_file(text)
    return replace(_of_program(path, read_compiled(text)), path=path)


def read_coreml(path: Path) -> Contents:
    """The weights of a network or program, and the head that its outputs come from."""
    require_file(path)
    found = read_model(path)
    return _of_program(path, found) if isinstance(found, MLProgram) else _of_network(path, found)


def _of_program(path: Path, found: MLProgram) -> Contents:
    contents = contents_of_program(found.program, "coreml", _TYPES)
    labels = found.labels

    def vocabulary(classes: int) -> Vocabulary:
        if not labels:
            return contents.vocabulary(classes)
        if len(labels) != classes:
            why = f"the model has {len(labels)} class labels for {classes} classes"
            return Vocabulary(None, f"{why}: not used")
        return Vocabulary(tuple(labels), "the model's class labels")

    return replace(contents, vocabulary=vocabulary)


def _of_network(path: Path, network: Network) -> Contents:
    translation = Translation(network)
    model = OnnxModel(path, translation.draft)
    tensors = model.constants.tensors()
    for name, made in translation.made.items():
        tensors[name] = replace(tensors[name], folded=(printable(made),))

    def domain(choice: Choice) -> FoundDomain | UnknownDomain | None:
        found = model.domain(choice)
        if not isinstance(found, FoundDomain):
            return found
        return replace(found, assumed="; ".join(filter(None, (found.assumed, _FLOATS))))

    def around(name: str) -> Choice | None:
        found = model.around(name)
        return None if found is None else replace(found, bias_settled=True)

    return Contents(
        path,
        "coreml",
        tensors,
        lambda: replace(model.choose(), bias_settled=True),
        around,
        functools.partial(_vocabulary, network),
        domain,
    )


def _vocabulary(network: Network, classes: int) -> Vocabulary:
    if network.labels:
        if len(network.labels) != classes:
            why = f"the model has {len(network.labels)} class labels for {classes} classes"
            return Vocabulary(None, f"{why}: not used")
        return Vocabulary(tuple(network.labels), "the model's class labels")
    return _kraken(network.metadata.get("codec", ""), classes)


def _kraken(codec: str, classes: int) -> Vocabulary:
    """kraken's codec: characters to the classes that spell them; class 0 is CTC's blank."""
    try:
        table = json.loads(codec) if codec else None
    except (ValueError, RecursionError):
        table = None
    table = table.get("c2l", table) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        return Vocabulary()
    whole: dict[int, str] = {}
    partly: dict[int, list[str]] = {}
    for text, spelled in table.items():
        numbers = spelled if isinstance(spelled, list) else [spelled]
        if not all(type(n) is int and 0 < n < classes for n in numbers) or not numbers:
            return Vocabulary(None, f"kraken's codec names classes beyond the head's {classes}")
        if len(numbers) == 1:
            whole[numbers[0]] = text
        for number in numbers:
            partly.setdefault(number, []).append(text)
    labels = [BLANK]
    for number in range(1, classes):
        several = partly.get(number)
        part = f"<part of {' '.join(several[:_SHOWN])}>" if several else f"<row {number}>"
        labels.append(whole.get(number, part))
    return Vocabulary(tuple(labels), "kraken's codec", special=(0,))
