"""brain.js: the last layer of a network that toJSON wrote, its labels, and what precedes it.

Version 1 keeps a table for each unit, with weights by the names of the units they come from;
version 2 keeps lists. Weights are the float32 numbers that brain.js computes with, spelled out.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.domain import Box
from uncork.loading.contents import Choice, Contents, FoundDomain, Tensor, UnknownDomain, Vocabulary

_RANGES = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "relu": (0.0, np.inf)}
_MOST_LAYERS = 1000


def brain_js(path: Path, said: Mapping[str, Any]) -> Contents | None:
    """The network, or None where the file is not brain.js's."""
    layers, sizes = said.get("layers"), said.get("sizes")
    if not isinstance(layers, list) or not isinstance(sizes, list) or len(layers) != len(sizes):
        return None
    if not 2 <= len(layers) <= _MOST_LAYERS or any(not isinstance(one, dict) for one in layers):
        return None
    tensors: dict[str, Tensor] = {}
    labels: list[str] = []
    for at in range(1, len(layers)):
        weight, bias, labels = _layer(path, layers[at], layers[at - 1], at)
        for part, array in (("weight", weight), ("bias", bias)):
            name = f"layers.{at}.{part}"
            tensors[name] = Tensor(
                name, array.shape, "float64", functools.partial(np.asarray, array)
            )
    options = said.get("options")
    activation = said.get("activation") or (
        options.get("activation") if isinstance(options, dict) else None
    )
    activation = activation if isinstance(activation, str) else "sigmoid"
    last = len(layers) - 1
    named = _looked_up(said.get("outputLookup")) or labels

    def choose() -> Choice:
        return around(f"layers.{last}.weight")

    def around(name: str) -> Choice:
        bias = f"{name.removesuffix('weight')}bias"
        # Version 1 leaves zero of what is negative for its leaky-relu too.
        doubt = (
            f"each score then passes {activation}, where those that are negative can tie at zero"
        )
        ties = activation in ("relu", "leaky-relu") and name == f"layers.{last}.weight"
        doubts = (doubt,) if ties else ()
        return Choice(
            tensors[name].read(), tensors[bias].read(), name, bias, "brain.js's output layer",
            doubts=doubts, bias_settled=True,
        )  # fmt: skip

    def vocabulary(classes: int) -> Vocabulary:
        counted = named == [str(n) for n in range(len(named))]
        if len(named) != classes or counted:
            return Vocabulary()
        return Vocabulary(tuple(named), "brain.js's names of its outputs")

    def domain(choice: Choice) -> FoundDomain | UnknownDomain | None:
        if choice.weight_name == "layers.1.weight":
            return UnknownDomain("the network's own inputs arrive there")
        ends = _RANGES.get(activation)
        if ends is None:
            return UnknownDomain(f"activation {activation[:20]!r} leaves any number")
        return FoundDomain(Box(*ends), f"{activation} precedes the head", "")

    return Contents(
        path, "brain.js", tensors, choose,
        lambda name: around(name) if name.endswith(".weight") else None, vocabulary, domain,
    )  # fmt: skip


def _layer(
    path: Path, layer: Mapping[str, Any], before: Mapping[str, Any], at: int
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Weight (units, inputs), bias and the names of the units, in either version."""
    try:
        if isinstance(layer.get("weights"), list):
            weight, bias = np.array(layer["weights"], float), np.array(layer["biases"], float)
            names = [str(n) for n in range(len(bias))]
        else:
            names = list(layer)
            first = layer[names[0]]["weights"]
            rows = [[layer[name]["weights"][given] for given in first] for name in names]
            weight = np.array(rows, float)
            bias = np.array([layer[name]["bias"] for name in names], float)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise UncorkError(f"{path}: layer {at} of a brain.js network is damaged") from error
    if weight.ndim != 2 or bias.shape != weight.shape[:1] or not weight.size:
        raise UncorkError(f"{path}: layer {at} of a brain.js network has no weights that fit")
    return weight, bias, names


def _looked_up(lookup: Any) -> list[str]:
    """Names of outputs by their numbers."""
    if not isinstance(lookup, dict) or sorted(map(str, lookup.values())) != sorted(
        str(n) for n in range(len(lookup))
    ):
        return []
    return sorted(lookup, key=lambda name: int(lookup[name]))
