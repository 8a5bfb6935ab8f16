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
_TYPES = (None, "NeuralNetwork", "NeuralNetworkGPU")


def brain_js(path: Path, said: Mapping[str, Any]) -> Contents | None:
    """The network, or None where the file is not brain.js's."""
    layers, sizes = said.get("layers"), said.get("sizes")
    if not isinstance(layers, list) or not isinstance(sizes, list) or len(layers) != len(sizes):
        return None
    if not 2 <= len(layers) <= _MOST_LAYERS or any(not isinstance(one, dict) for one in layers):
        return None
    tensors: dict[str, Tensor] = {}
    labels: list[str] | None = None
    for at in range(1, len(layers)):
        weight, bias, labels = _layer(path, layers[at], at)
        before = tensors.get(f"layers.{at - 1}.bias")
        if before is not None and before.shape != weight.shape[1:]:
            raise UncorkError(f"{path}: layer {at} of a brain.js network has units of other inputs")
        if sizes[at] != len(bias):
            raise UncorkError(
                f"{path}: layer {at} of a brain.js network has {len(bias)} units, not those that "
                "its sizes say"
            )
        for part, array in (("weight", weight), ("bias", bias)):
            name = f"layers.{at}.{part}"
            tensors[name] = Tensor(
                name, array.shape, "float64", functools.partial(np.asarray, array)
            )
    activation, alpha = _activation(said)
    last = len(layers) - 1
    named = _looked_up(said.get("outputLookup")) if labels is None else labels

    def choose() -> Choice:
        return around(f"layers.{last}.weight")

    def around(name: str) -> Choice:
        bias = f"{name.removesuffix('weight')}bias"
        # Version 1 leaves zero of what is negative for its leaky-relu too.
        doubt = (
            f"each score then passes {activation}, where those that are negative can tie at zero"
        )
        ties = activation in ("relu", "leaky-relu") and name == f"layers.{last}.weight"
        doubts: tuple[str, ...] = (doubt,) if ties else ()
        if ties and activation == "leaky-relu" and not _rises(alpha):
            doubts += ("what its leaky-relu leaves is not the order of the scores",)
        output = name == f"layers.{last}.weight"
        return Choice(
            tensors[name].read(), tensors[bias].read(), name, bias,
            "brain.js's output layer" if output else "a hidden layer of brain.js's",
            doubts=doubts, bias_settled=True, vocabulary=None if output else Vocabulary(),
        )  # fmt: skip

    def vocabulary(classes: int) -> Vocabulary:
        counted = named == [str(n) for n in range(len(named))]
        if len(named) != classes or counted:
            return Vocabulary()
        return Vocabulary(tuple(named), "brain.js's names of its outputs")

    def domain(choice: Choice) -> FoundDomain | UnknownDomain | None:
        if choice.weight_name == "layers.1.weight":
            return UnknownDomain("the network's own inputs arrive there")
        if said.get("type") not in _TYPES:
            return UnknownDomain("it is another kind of network of brain.js's")
        ends = _RANGES.get(activation)
        if ends is None:
            return UnknownDomain(f"activation {activation[:20]!r} leaves any number")
        return FoundDomain(Box(*ends), f"{activation} precedes the head", "")

    return Contents(
        path, "brain.js", tensors, choose,
        lambda name: around(name) if name.endswith(".weight") else None, vocabulary, domain,
    )  # fmt: skip


def _activation(said: Mapping[str, Any]) -> tuple[str, Any]:
    """What is run after each layer, and the slope of its leaky form below zero.

    Version 1 says it beside the layers. Version 2 runs what it was last trained with, which need
    not be what the options of its constructor say.
    """
    parts = [part for part in map(said.get, ("trainOpts", "options")) if isinstance(part, dict)]
    names = [one.get("activation") for one in (said, *parts)]
    slopes = [one.get("leakyReluAlpha") for one in (said, *parts)]
    activation = next((name for name in names if isinstance(name, str) and name), "sigmoid")
    return activation, next((slope for slope in slopes if slope is not None), 0.01)


def _rises(alpha: Any) -> bool:
    return isinstance(alpha, int | float) and 0 < alpha <= 1


def _layer(
    path: Path, layer: Mapping[str, Any], at: int
) -> tuple[np.ndarray, np.ndarray, list[str] | None]:
    """Weight (units, inputs), bias and the names of the units, which version 1 alone keeps."""
    names: list[str] | None = None
    same = True
    try:
        if isinstance(layer.get("weights"), list):
            weight, bias = np.array(layer["weights"], float), np.array(layer["biases"], float)
        else:
            names = list(layer)
            first = layer[names[0]]["weights"]
            rows = [[layer[name]["weights"][given] for given in first] for name in names]
            same = all(len(layer[name]["weights"]) == len(first) for name in names)
            weight = np.array(rows, float)
            bias = np.array([layer[name]["bias"] for name in names], float)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise UncorkError(f"{path}: layer {at} of a brain.js network is damaged") from error
    if not same:
        raise UncorkError(f"{path}: layer {at} of a brain.js network has units of other inputs")
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
