"""Core ML: the neural network as an ONNX graph, its head, and the labels that kraken or Core ML
keep in the file."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

from uncork.core.text import printable
from uncork.loading.contents import Choice, Contents, FoundDomain, UnknownDomain, Vocabulary
from uncork.loading.coreml.network import Network, read_network
from uncork.loading.coreml.operators import Translation
from uncork.loading.onnx.file import OnnxModel
from uncork.loading.vocabulary.labels import BLANK

_FLOATS = "Core ML computes in float32 (on a GPU or the Neural Engine it uses float16)"
_SHOWN = 3  # characters that a class is part of


def read_coreml(path: Path) -> Contents:
    """The weights of a network, and the head that its outputs come from."""
    network = read_network(path)
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
